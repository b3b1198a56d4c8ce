package deltaweave;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
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
 * create a version is written as {@link S3SingleDriverLogStore} does, and so are versions where the
 * file system or the store cannot do this: there, commits exclude those of the same JVM.
 */
public class S3LogStore extends S3SingleDriverLogStore {
  /** A commit of which nobody knows whether the store will still make it. */
  public static class UnknownCommitException extends IOException {
    private static final long serialVersionUID = 1;

    UnknownCommitException(Path file, Exception cause) {
      super("It is unknown whether " + file + " was written: " + cause, cause);
    }
  }

  private static final Logger LOG = LoggerFactory.getLogger(S3LogStore.class);
  private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";
  /** The system property in which Python finds a warning. */
  private static final String WARNING = "deltaweave.s3LogStore.warning";

  private static final String SETTING =
      ". Commits of several drivers may replace each other there: let one at a time write, or use "
          + "another log store (spark.delta.logStore.s3a.impl).";
  // S3A has sent each again before, as its settings say.
  private static final int ATTEMPTS = 4;
  private static final long PAUSE_MS = 200;

  /** Errors by which the store decides: no request is on its way. */
  private static final Set<String> ANSWERS =
      Set.of(
          "AccessDeniedException",
          "AWSBadRequestException",
          "AWSRedirectException",
          "AWSUnsupportedFeatureException",
          "UnknownStoreException");

  /** Errors by which a store refuses to replace a file. */
  private static final Set<String> HEEDED =
      Set.of("FileAlreadyExistsException", "RemoteFileChangedException");

  /** Errors of a store that does not know the condition. */
  private static final Set<String> UNSUPPORTED =
      Set.of("AWSBadRequestException", "AWSUnsupportedFeatureException");

  private static final Map<String, Bucket> BUCKETS = new ConcurrentHashMap<>();

  public S3LogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    FileSystem system = path.getFileSystem(conf);
    Path file = system.makeQualified(path);
    if (!overwrite && BUCKETS.computeIfAbsent(bucket(file), Bucket::new).decides(system, file)) {
      create(system, file, content(actions));
    } else {
      super.write(path, actions, overwrite, conf);
    }
  }

  /** What is known of a bucket's store. */
  private static class Bucket {
    private static final byte[] QUESTION =
        "deltaweave asks whether this store replaces objects that must be new.\n"
            .getBytes(StandardCharsets.UTF_8);

    private final String name;
    private boolean isAsked;
    private boolean decides;
    private boolean isWarnedOf;

    Bucket(String name) {
      this.name = name;
    }

    /** Returns whether the store creates files only if absent; warns once if it does not. */
    synchronized boolean decides(FileSystem system, Path file) throws IOException {
      if (!system.hasPathCapability(file, ONLY_IF_ABSENT)) {
        warnOnce(system.getClass().getName() + " cannot create files only if absent in " + name);
        return false;
      }
      for (int attempt = 1; !isAsked; attempt++) {
        // Nobody else knows its name, and Delta does not list names that begin with a dot.
        Path question = new Path(file.getParent(), ".s3-log-store-" + UUID.randomUUID());
        try {
          decides = ask(system, question);
          isAsked = true;
        } catch (IOException failure) { // It decides nothing, and nothing is committed.
          if (attempt == ATTEMPTS || isAnswer(failure) || !pause(attempt)) {
            throw failure;
          }
        } finally {
          remove(system, question);
        }
      }
      return decides;
    }

    private boolean ask(FileSystem system, Path question) throws IOException {
      put(system, question, QUESTION, false);
      try {
        put(system, question, QUESTION, true);
        warnOnce("The store of " + name + " replaces files that must be new");
        return false;
      } catch (IOException answer) {
        String kind = answer.getClass().getSimpleName();
        if (HEEDED.contains(kind)) {
          return true;
        } else if (!UNSUPPORTED.contains(kind)) {
          throw answer;
        }
        LOG.debug("The answer of {}", name, answer);
        warnOnce("The store of " + name + " refuses to create files only if absent");
        return false;
      }
    }

    private void warnOnce(String problem) {
      if (!isWarnedOf) {
        warn(problem);
        isWarnedOf = true;
      }
    }

    private static void remove(FileSystem system, Path question) {
      try {
        system.delete(question, false);
      } catch (IOException | RuntimeException failure) {
        LOG.debug("{} stays", question, failure);
      }
    }
  }

  private static void create(FileSystem system, Path file, byte[] content) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        put(system, file, content, true);
        return;
      } catch (IOException | RuntimeException failure) {
        // Refused, or done by a request whose answer was lost: of this attempt, or of one of S3A's.
        byte[] found;
        try {
          found = read(system, file);
        } catch (IOException | RuntimeException unreadable) {
          failure.addSuppressed(unreadable);
          throw new UnknownCommitException(file, failure);
        }
        if (Arrays.equals(found, content)) {
          return;
        } else if (found != null) {
          throw new FileAlreadyExistsException(file.toString());
        } else if (isAnswer(failure)) {
          throw failure;
        } else if (attempt == ATTEMPTS || !pause(attempt)) {
          // A request may still be on its way.
          throw new UnknownCommitException(file, failure);
        }
      }
    }
  }

  private static boolean isAnswer(Exception failure) {
    return ANSWERS.contains(failure.getClass().getSimpleName());
  }

  private static void warn(String problem) {
    LOG.warn("{}{}", problem, SETTING);
    System.setProperty(WARNING, problem + SETTING);
  }

  private static void put(FileSystem system, Path file, byte[] content, boolean mustBeNew)
      throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = system.createFile(file);
    if (mustBeNew) {
      builder.must(ONLY_IF_ABSENT, true);
    }
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

  /** Waits before a further attempt; returns whether it may be made. */
  private static boolean pause(int attempt) {
    try {
      Thread.sleep(PAUSE_MS << attempt);
      return true;
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  private static String bucket(Path file) {
    return file.toUri().getScheme() + "://" + file.toUri().getAuthority();
  }
}
