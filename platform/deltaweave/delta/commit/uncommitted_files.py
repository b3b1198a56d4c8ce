"""Deletes the files of a write that failed before its commit.

Delta's writer gives files random names and forgets those of a failed job. So each write puts its
own prefix before the names of its files, and finds them by it. VACUUM would delete them too, after
a week.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.written_files import CHANGE_FEED
from deltaweave.delta.jvm import JavaObject, letting_go
from deltaweave.delta.log import FileList
from deltaweave.errors import (
    CommitConflictError,
    LockFileError,
    StatementError,
    TableLockedError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Delta's writer reads it from the local properties of its task, as any Spark setting.
_PREFIX = "spark.databricks.delta.testOnly.dataFileNamePrefix"

# The last is a setting of the lock that is no number.
_BEFORE_ANY_COMMIT = (CommitConflictError, TableLockedError, LockFileError, StatementError)


@dataclass
class OwnFiles:
    """The files that one transaction writes.

    Attributes:
        spark: The session.
        log: Delta's log of the table.
        transaction: Delta's transaction.
        prefix: What the names of the files begin with.
        may_exist: Whether a write was begun.
        is_committing: Whether the commit was called.
        directories: Locations of directories in which files are written beside older ones.
    """

    spark: SparkSession
    log: JavaObject
    transaction: JavaObject
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
            with letting_go("the prefix of file names"):
                context.setLocalProperty(_PREFIX, before)  # type: ignore[arg-type]

    def change_feed(self) -> str:
        """Return the location of the directory for files of the change feed."""
        return f"{self.log.dataPath().toString().rstrip('/')}/{CHANGE_FEED}"

    @contextmanager
    def deleted_unless_committed(self) -> Iterator[None]:
        """Delete the files if the block fails and no version of the table can hold them.

        After an interrupt, Spark may still be writing. A commit that failed for another reason than
        a conflict may still appear in storage. In both cases VACUUM deletes the files later.
        """
        try:
            yield
        except Exception as error:
            is_known = not self.is_committing or isinstance(error, _BEFORE_ANY_COMMIT)
            if self.may_exist and is_known:
                self.delete_all()
            raise

    def delete_all(self, prefix: str | None = None) -> None:
        """Delete all that was written; what cannot be deleted is left to VACUUM.

        Files that other tasks of a failed job still write are deleted too, until Spark has ended
        the tasks.

        Args:
            prefix: Delete only files whose names begin so; it begins with the transaction's prefix.
        """
        with letting_go("the files of a write that failed"):
            self._delete(prefix or self.prefix)

    def delete(self, files: FileList) -> None:
        """Delete files that were written, and that the commit did not take."""
        view = jvm_.jvm(self.spark)
        system = self.log.dataPath().getFileSystem(self.log.newDeltaHadoopConf())
        for location in files.rows["location"].to_pylist():
            system.delete(view.org.apache.hadoop.fs.Path(location), False)

    def _delete(self, prefix: str) -> None:
        path = jvm_.jvm(self.spark).org.apache.hadoop.fs.Path
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
