"""The files that a write left on storage, before their commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.compaction import compaction
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import FileList, actions, encoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGE_FEED = "_change_data"
"""The directory of a table's change data feed (Delta protocol, section "Change Data Files")."""

ChangeFileOf = tuple[str, int, Mapping[str, str | None]]
"""A file of the change data feed: its name, its size in bytes and its partition values."""


@dataclass(frozen=True)
class WrittenFiles:
    """What a write left on storage; nothing of it is in the table before the commit.

    Attributes:
        actions: Scala Seq of the AddFile and AddCDCFile actions.
        files: The data files.
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

    def and_also(self, other: WrittenFiles) -> WrittenFiles:
        """Return these files and those of another write."""
        return WrittenFiles(
            self.actions.appendedAll(other.actions),
            self.files.and_also(other.files),
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
        files = jvm_.seq_of(jvm_.jvm(spark), made)
        return WrittenFiles(
            self.actions.appendedAll(files),
            self.files,
            self.num_change_files + len(added),
            self.change_file_bytes + sum(size for _, size, _ in changes),
        )

    def without(self, paths: Collection[str]) -> WrittenFiles:
        """Remove some data files from these; there must be no files of the change feed."""
        return WrittenFiles.of(self.files.but_for(paths))


def written_without_spark(transaction: JavaObject, files: FileList) -> WrittenFiles:
    """Announce new files that Delta's writer did not write to the transaction, as it does.

    After the commit, Delta compacts small files if the table or the session asks for that.
    """
    transaction.registerPostCommitHook(compaction(files.spark))
    return WrittenFiles.of(files)


def written_files(spark: SparkSession, actions: JavaObject, data_path: str) -> WrittenFiles:
    """Tell data files from files of the change feed, which Delta's writer puts last.

    Args:
        spark: The session.
        actions: Scala Seq of the AddFile actions, followed by the AddCDCFile actions.
        data_path: Where the table's data is.
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
    row = jvm_.data_frame(spark, dataset.toDF()).agg(F.sum("size").alias("size")).first()
    assert row is not None
    return int(row["size"] or 0)
