"""The files of a write before its commit: what it left on storage, and what is deleted if it fails.

Delta's writer gives files random names and forgets those of a failed job. So each write puts its
own prefix before the names of its files, and finds them by it. VACUUM would delete them too, after
a week.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta.jvm import (
    IGNORING_FILES,
    DeltaLog,
    DeltaTransaction,
    JavaObject,
    Jvm,
    reads_leniently,
    suppress_cleanup_errors,
)
from deltaweave.delta.log import FileList, actions, encoder
from deltaweave.errors import CommitConflictError, LockFileError, StatementError, TableLockedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def compaction(spark: SparkSession) -> JavaObject:
    """Return the post-commit hook by which Delta compacts."""
    return Jvm.singleton(Jvm.of(spark).delta.hooks, "AutoCompact")


def leave_out_compaction(spark: SparkSession, transaction: DeltaTransaction) -> None:
    """Keep Delta from compacting after this transaction's commit."""
    hook = Jvm.of(spark).instances_of(compaction(spark).getClass())
    transaction.unregisterPostCommitHooksWhere(hook)


def leave_out_lenient_compaction(
    spark: SparkSession, transaction: DeltaTransaction, table: str
) -> None:
    """Keep Delta from compacting if its reads would pass over files: their rows would be lost."""
    if not reads_leniently(spark):
        return
    conf = spark._jsparkSession.sessionState().conf()
    if compaction(spark).getAutoCompactType(conf, transaction.metadata()).isDefined():
        logger.warning(
            "%s is not compacted: Spark passes over files that it cannot read (%s)",
            table,
            " or ".join(IGNORING_FILES),
        )
        leave_out_compaction(spark, transaction)


CHANGE_FEED = "_change_data"
"""The directory of a table's change data feed (Delta protocol, section "Change Data Files")."""

ChangeFileOf = tuple[str, int, Mapping[str, str | None]]
"""A file of the change data feed: its name, its size in bytes and its partition values."""


@dataclass(frozen=True)
class WrittenFiles:
    """The files that a write left on storage; none is in the table before the commit.

    Attributes:
        actions: Scala Seq of the AddFile and AddCDCFile actions.
        num_change_files: How many files of the change feed there are.
        change_file_bytes: Their total size, in bytes.
    """

    actions: JavaObject
    files: FileList
    num_change_files: int = 0
    change_file_bytes: int = 0

    @classmethod
    def of(cls, files: FileList) -> WrittenFiles:
        """Return written data files, without change files."""
        return cls(files.files, files)

    def __len__(self) -> int:
        return len(self.files)

    def union(self, other: WrittenFiles) -> WrittenFiles:
        """Return the files of both writes."""
        return WrittenFiles(
            self.actions.appendedAll(other.actions),
            self.files.union(other.files),
            self.num_change_files + other.num_change_files,
            self.change_file_bytes + other.change_file_bytes,
        )

    def with_changes(self, changes: Sequence[ChangeFileOf]) -> WrittenFiles:
        """Add files of the change feed, each in the directory of the feed."""
        if not changes:
            return self
        added = [
            {"path": f"{CHANGE_FEED}/{name}", "partitionValues": partition, "size": size}
            for name, size, partition in changes
        ]
        spark = self.files.spark
        made = actions.from_json(spark, "actions.AddCDCFile", added)
        files = Jvm.of(spark).seq_of(made)
        return WrittenFiles(
            self.actions.appendedAll(files),
            self.files,
            self.num_change_files + len(added),
            self.change_file_bytes + sum(size for _, size, _ in changes),
        )

    def without(self, paths: Collection[str]) -> WrittenFiles:
        """Remove some data files from these; there must be no files of the change feed."""
        return WrittenFiles.of(self.files.excluding(paths))


def written_without_spark(transaction: DeltaTransaction, files: FileList) -> WrittenFiles:
    """Announce new files that Delta's writer did not write to the transaction, as it does.

    After the commit, Delta compacts small files if the table or the session asks for that.
    """
    transaction.registerPostCommitHook(compaction(files.spark))
    return WrittenFiles.of(files)


def written_files(spark: SparkSession, actions: JavaObject, data_path: str) -> WrittenFiles:
    """Tell data files from files of the change feed, which Delta's writer puts last.

    Args:
        actions: Scala Seq of the AddFile actions, followed by the AddCDCFile actions.
    """
    first, last = 0, int(actions.size())
    while first < last:
        middle = (first + last) // 2
        if actions.apply(middle).getClass().getSimpleName() == "AddCDCFile":
            last = middle
        else:
            first = middle + 1
    change_files = actions.drop(first)
    return WrittenFiles(
        actions,
        FileList(spark, actions.take(first), data_path),
        int(change_files.size()),
        _total_size(spark, change_files) if change_files.size() else 0,
    )


def _total_size(spark: SparkSession, change_files: JavaObject) -> int:
    """Return the total size of a Scala Seq of AddCDCFile, in bytes."""
    if change_files.size() <= actions.FEW:
        few = actions.to_json(spark, change_files)
        return sum(action["size"] for action in few)
    dataset = spark._jsparkSession.createDataset(change_files, encoder(spark, "addCdcFile"))
    row = Jvm.of(spark).data_frame(dataset.toDF()).agg(F.sum("size").alias("size")).first()
    assert row is not None
    return int(row["size"] or 0)


# Delta's writer reads it from the local properties of its task, as any Spark setting.
_PREFIX = "spark.databricks.delta.testOnly.dataFileNamePrefix"

# The last is a setting of the lock that is no number.
_BEFORE_ANY_COMMIT = (CommitConflictError, TableLockedError, LockFileError, StatementError)


@dataclass
class OwnFiles:
    """The files that one transaction writes.

    Attributes:
        prefix: What the names of the files begin with.
        may_exist: Whether a write was begun.
        is_committing: Whether the commit was called, and may have landed; see `committing`.
        directories: Locations of directories in which files are written beside older ones.
    """

    spark: SparkSession
    log: DeltaLog
    transaction: DeltaTransaction
    prefix: str = field(default_factory=lambda: f"{uuid.uuid4().hex[:12]}-")
    may_exist: bool = False
    is_committing: bool = False
    directories: set[str] = field(default_factory=set)

    def begin_beside(self, files: FileList) -> None:
        """Note that a write begins whose files may be beside these."""
        self.may_exist = True
        locations = files.rows["location"].to_pylist()
        self.directories.update(location.rpartition("/")[0] for location in locations)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Put the prefix on files that are written by Spark jobs of this thread and block."""
        self.may_exist = True
        context = self.spark.sparkContext
        before = context.getLocalProperty(_PREFIX)
        context.setLocalProperty(_PREFIX, self.prefix)
        try:
            yield
        finally:
            with suppress_cleanup_errors("the prefix of file names"):
                context.setLocalProperty(_PREFIX, before)  # type: ignore[arg-type]

    def change_feed(self) -> str:
        """Return the location of the directory for files of the change feed."""
        return f"{self.log.dataPath().toString().rstrip('/')}/{CHANGE_FEED}"

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Call the commit in the block; the table may hold the files then, unless it is refused."""
        self.is_committing = True
        try:
            yield
        except _BEFORE_ANY_COMMIT:
            self.is_committing = False
            raise

    @contextmanager
    def deleted_unless_committed(self) -> Iterator[None]:
        """Delete the files if the block fails and no version of the table can hold them.

        After an interrupt, Spark may still be writing. A commit that failed for another reason than
        a conflict may still appear in storage. In both cases VACUUM deletes the files later.
        """
        try:
            yield
        except Exception:
            if self.may_exist and not self.is_committing:
                self.delete_all()
            raise

    def delete_all(self, prefix: str | None = None) -> None:
        """Delete all that was written; what cannot be deleted is left to VACUUM.

        Files that other tasks of a failed job still write are deleted too, until Spark has ended
        the tasks.

        Args:
            prefix: Delete only files whose names begin so; it begins with the transaction's prefix.
        """
        with suppress_cleanup_errors("the files of a write that failed"):
            self._delete(prefix or self.prefix)

    def delete(self, files: FileList) -> None:
        """Delete files that were written, and that the commit did not take."""
        jvm = Jvm.of(self.spark)
        system = self.log.dataPath().getFileSystem(self.log.newDeltaHadoopConf())
        for location in files.rows["location"].to_pylist():
            system.delete(jvm.org.apache.hadoop.fs.Path(location), False)

    def _delete(self, prefix: str) -> None:
        path = Jvm.of(self.spark).org.apache.hadoop.fs.Path
        root = str(self.log.dataPath().toString()).rstrip("/")
        files = self.log.dataPath().getFileSystem(self.log.newDeltaHadoopConf())
        deleted = 0
        for directory in self._searched(root):
            for file in files.globStatus(path(f"{directory}/{prefix}*")) or ():
                deleted += bool(files.delete(file.getPath(), False))
        logger.info("%s: deleted %d files of a write that failed", root, deleted)

    def _searched(self, root: str) -> list[str]:
        """Return globs of the directories that may hold the files."""
        # New files lie in the table's directory, in one of a random name, or in that of a
        # partition. A setting of Delta puts all of these into a further directory.
        depths = {0, 1, int(self.transaction.metadata().partitionColumns().size())}
        further = self.transaction.deltaDataSubdir()
        roots = [root, f"{root}/{further.get()}"] if further.isDefined() else [root]
        globs = [
            escaped(top) + "/*" * depth
            for each in roots
            for top in (each, f"{each}/{CHANGE_FEED}")
            for depth in depths
        ]
        # Older files may lie anywhere: where properties and settings were others.
        for directory in sorted(self.directories):
            is_below = f"{directory}/".startswith(f"{root}/")
            if not is_below or directory.removeprefix(root).count("/") not in depths:
                globs.append(escaped(directory))
        return globs


def escaped(path: str) -> str:
    """Escape a path for Hadoop's globs."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)
