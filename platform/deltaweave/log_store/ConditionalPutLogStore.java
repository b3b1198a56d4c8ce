package deltaweave;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Delta's log store for S3, whose commits exclude those of other drivers too.
 *
 * <p>Delta's own asks whether a version's file exists, and then writes it: of two drivers, both may
 * find none, and the later file replaces the earlier one. Here the store itself refuses the later
 * one, by `If-None-Match: *`. Files that may be replaced are written as Delta does.
 */
public class ConditionalPutLogStore extends S3SingleDriverLogStore {

  /** With `true`, a commit to a store that ignores the condition is an error. */
  public static final String REQUIRED = "fs.deltaweave.commit.requireConditionalPut";

  private static final Logger LOG = LoggerFactory.getLogger(ConditionalPutLogStore.class);

  // An option of S3A since Hadoop 3.4.2, and the capability by which it says so.
  private static final String IF_NONE_MATCH = "fs.option.create.conditional.overwrite";

  // Without it, S3A asks first whether the path is a directory.
  private static final String WITHOUT_LISTING = "fs.s3a.create.performance";

  // When requests are not sent again; S3A itself may go on for longer with each of them.
  private static final long PATIENCE_MS = 20_000;
  private static final long PAUSE_MS = 250;

  // Why each bucket's store does not exclude other drivers; an empty text if it does.
  private static final Map<String, String> DEFECTS = new HashMap<>();

  public ConditionalPutLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    FileSystem files = path.getFileSystem(conf);
    if (overwrite || !isConditional(files, path.getParent(), conf)) {
      super.write(path, actions, overwrite, conf);
      return;
    }
    StringBuilder lines = new StringBuilder();
    actions.forEachRemaining(action -> lines.append(action).append('\n'));
    put(files, path, lines.toString().getBytes(StandardCharsets.UTF_8));
  }

  /**
   * Create the file, and find out whether it was created, whatever the store answers.
   *
   * <p>After a lost answer or an error, and after a refusal, which may be of a request that was
   * sent again, the file is read: it holds what was to be written, or another commit won. No two
   * commits are alike, since each has an id of its own in its commitInfo. If there is no file yet,
   * the request is sent again, which the condition makes safe.
   */
  private static void put(FileSystem files, Path path, byte[] content) throws IOException {
    IOException failure = null;
    long end = System.currentTimeMillis() + PATIENCE_MS;
    do {
      try {
        if (create(files, path, content)) {
          return;
        }
      } catch (IOException error) {
        failure = error;
      }
      try {
        if (holds(files, path, content)) {
          return;
        }
      } catch (IOException error) { // none is there, or it cannot be read now
        failure = failure == null ? error : failure;
        if (failure instanceof AccessDeniedException) {
          throw failure;
        }
        continue;
      }
      throw new FileAlreadyExistsException(path.toString());
    } while (System.currentTimeMillis() < end && pause());
    throw new CommitStateUnknownException(path, failure);
  }

  /** Return whether the file was created; false if the store refuses because there is one. */
  private static boolean create(FileSystem files, Path path, byte[] content) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
    builder.must(IF_NONE_MATCH, true);
    builder.opt(WITHOUT_LISTING, true);
    FSDataOutputStream stream = builder.build();
    try {
      stream.write(content);
    } catch (Throwable error) {
      stream.abort(); // to close it would put what has been written so far
      throw error;
    }
    try {
      stream.close(); // the request
      return true;
    } catch (IOException error) {
      if (isNamed(error, "RemoteFileChangedException")) { // S3A's, for the status 412
        return false;
      }
      throw error;
    }
  }

  private static boolean holds(FileSystem files, Path path, byte[] content) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      return Arrays.equals(stream.readNBytes(content.length + 1), content);
    }
  }

  /** Wait between attempts; return false if the thread is interrupted, which ends them. */
  private static boolean pause() {
    try {
      Thread.sleep(PAUSE_MS);
      return true;
    } catch (InterruptedException interrupt) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  /** Return whether the bucket's store honours the condition; warn once for each that does not. */
  private static boolean isConditional(FileSystem files, Path log, Configuration conf)
      throws IOException {
    String bucket = files.getUri().toString(), defect;
    synchronized (DEFECTS) {
      defect = DEFECTS.get(bucket);
      if (defect == null) {
        DEFECTS.put(bucket, defect = defect(files, log));
        if (!defect.isEmpty()) {
          LOG.warn(
              "{}: {}, so two drivers that commit to one table at once may LOSE COMMITS. Let one "
                  + "driver write at a time. spark.hadoop.{}=true makes this an error; without "
                  + "this warning, spark.delta.logStore.{}.impl={} does the same.",
              bucket, defect, REQUIRED, files.getScheme(), S3SingleDriverLogStore.class.getName());
        }
      }
    }
    if (!defect.isEmpty() && conf.getBoolean(REQUIRED, false)) {
      throw new IOException(
          bucket + ": " + defect + ", and spark.hadoop." + REQUIRED + " is true. "
              + "Nothing was committed.");
    }
    return defect.isEmpty();
  }

  /** Create a file twice, once in each bucket: return why the store does not refuse the second. */
  private static String defect(FileSystem files, Path log) throws IOException {
    if (!files.hasPathCapability(log, IF_NONE_MATCH)) {
      return "S3A does not put files conditionally (Hadoop before 3.4.2, or"
          + " fs.s3a.create.conditional.enabled is false)";
    }
    Path probe = new Path(log, ".deltaweave.conditional-put"); // readers ignore it, and it stays
    byte[] content = "Commits here exclude each other.\n".getBytes(StandardCharsets.UTF_8);
    try {
      boolean isIgnored = create(files, probe, content) && create(files, probe, content);
      return isIgnored ? "the store ignores If-None-Match" : "";
    } catch (IOException error) {
      if (isNamed(error, "AWSUnsupportedFeatureException")) { // S3A's, for the status 501
        return "the store does not know If-None-Match";
      }
      throw error;
    }
  }

  /** Return whether the error is of a class of S3A, which need not be on the class path. */
  private static boolean isNamed(IOException error, String name) {
    return error.getClass().getSimpleName().equals(name);
  }

  /** Neither the answers of the store nor what it holds show whether a commit succeeded. */
  public static class CommitStateUnknownException extends IOException {
    private static final long serialVersionUID = 1;

    CommitStateUnknownException(Path path, IOException cause) {
      super("It is not known whether " + path + " was written", cause);
    }
  }
}
