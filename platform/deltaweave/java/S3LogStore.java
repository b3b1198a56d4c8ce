package deltaweave;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Delta's log store for S3, whose commits exclude those of other drivers.
 *
 * <p>S3A creates the file of a version only if there is none (HADOOP-19256): the store decides, so
 * that all writers exclude each other that ask it in this way. If the answer is lost, the file's
 * content tells whose commit it is: Delta writes an id of the transaction into it. What does not
 * create a version is written as {@link S3SingleDriverLogStore} does, and so are versions on file
 * systems that cannot ask.
 */
public class S3LogStore extends S3SingleDriverLogStore {
  /** A commit of which nobody knows whether the store will still make it. */
  public static class UnknownCommitException extends IOException {
    private static final long serialVersionUID = 1;

    UnknownCommitException(Path file, IOException cause) {
      super("It is unknown whether " + file + " was written: " + cause, cause);
    }
  }

  private static final Logger LOG = LoggerFactory.getLogger(S3LogStore.class);
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";
  private static final String SETTING =
      ". Commits of several drivers may replace each other there: let one at a time write, or use "
          + "another log store (spark.delta.logStore.s3a.impl).";
  // S3A has sent each again before, as its settings say.
  private static final int ATTEMPTS = 4;
  private static final long PAUSE_MS = 200;

  /** Buckets of which it is known whether their store heeds the condition. */
  private static final Set<String> KNOWN = ConcurrentHashMap.newKeySet();

  public S3LogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    FileSystem system = path.getFileSystem(conf);
    Path file = system.makeQualified(path);
    if (overwrite) {
      super.write(path, actions, true, conf);
    } else if (!system.hasPathCapability(file, ONLY_IF_ABSENT)) {
      if (KNOWN.add(bucket(file))) {
        LOG.warn("{} does not create files conditionally{}", system.getClass().getName(), SETTING);
      }
      super.write(path, actions, false, conf);
    } else {
      byte[] content = content(actions);
      create(system, file, content);
      if (KNOWN.add(bucket(file))) {
        warnIfReplaced(system, file, content);
      }
    }
  }

  private static void create(FileSystem system, Path file, byte[] content) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        put(system, file, content);
        return;
      } catch (IOException failure) {
        // Refused, or done by a request whose answer was lost: of this attempt, or of one of S3A's.
        byte[] found;
        try {
          found = read(system, file);
        } catch (IOException unreadable) {
          failure.addSuppressed(unreadable);
          throw new UnknownCommitException(file, failure);
        }
        if (Arrays.equals(found, content)) {
          return;
        } else if (found != null) {
          throw new FileAlreadyExistsException(file.toString());
        } else if (failure instanceof AccessDeniedException) {
          throw failure;
        } else if (attempt == ATTEMPTS) {
          // A request may still be on its way.
          throw new UnknownCommitException(file, failure);
        }
        pause(file, failure, attempt);
      }
    }
  }

  /** Puts a commit again, which changes nothing: a store that takes it ignores the condition. */
  private static void warnIfReplaced(FileSystem system, Path file, byte[] content) {
    try {
      put(system, file, content);
      LOG.warn("The store of {} replaces files that must be new{}", bucket(file), SETTING);
    } catch (IOException refused) {
      LOG.debug("The store of {} refuses to replace a version", bucket(file), refused);
    }
  }

  private static void put(FileSystem system, Path file, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = system.createFile(file);
    builder.must(ONLY_IF_ABSENT, true);
    FSDataOutputStream out = builder.build();
    try {
      out.write(content);
    } catch (IOException | RuntimeException failure) {
      out.abort(); // closing it would put what there is
      throw failure;
    }
    out.close();
  }

  private static byte[] read(FileSystem system, Path file) throws IOException {
    try (FSDataInputStream in = system.open(file)) {
      return in.readAllBytes();
    } catch (FileNotFoundException absent) {
      return null;
    }
  }

  private static byte[] content(Iterator<String> actions) {
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    return lines.toByteArray();
  }

  private static void pause(Path file, IOException failure, int attempt) throws IOException {
    try {
      Thread.sleep(PAUSE_MS << attempt);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new UnknownCommitException(file, failure);
    }
  }

  private static String bucket(Path file) {
    return file.toUri().getScheme() + "://" + file.toUri().getAuthority();
  }
}
