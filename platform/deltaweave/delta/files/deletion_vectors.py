"""Deletion vectors, which mark rows of a file as deleted (Delta protocol, "Deletion Vectors").

The rows that a merge marks are united with those that other commits marked in the same files.
"""

from __future__ import annotations

import time
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import JavaObject, Jvm, is_on
from deltaweave.delta.log import FileList, actions, decoded_location, parsed
from deltaweave.delta.releases import actions_of_vectors
from deltaweave.delta.scan import METADATA_COLUMN

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyroaring import BitMap64

# Reading an existing vector takes some calls of the JVM. With 100 of them, a merge took half of the
# time that it took with Spark's jobs.
FEW_VECTORS = 200
# Delta's portable format: this comes before the bitmap, which RoaringBitmap serializes
# (Delta protocol, section "Deletion Vector Format").
_MAGIC_NUMBER = (1681511377).to_bytes(4, "little")

USE_PERSISTENT = "spark.databricks.delta.merge.deletionVectors.persistent"


@dataclass(frozen=True)
class MarkedRows:
    """Vectors written to storage for one merge; nothing is in the table before the commit.

    Attributes:
        actions: Scala Seq of the removes and adds that put the vectors in place. Files with no row
            left are only removed.
        num_added: Files that had no vector and now have one.
        num_updated: Files whose vector was merged with the new one.
        num_removed: Vectors of files that are now fully deleted.
    """

    actions: JavaObject
    num_added: int
    num_updated: int
    num_removed: int

    def union(self, other: MarkedRows) -> MarkedRows:
        """Return the vectors of both sets of files."""
        return MarkedRows(
            self.actions.appendedAll(other.actions),
            self.num_added + other.num_added,
            self.num_updated + other.num_updated,
            self.num_removed + other.num_removed,
        )


def vectors_writable(transaction: Transaction) -> bool:
    """Return whether modified rows can be marked instead of rewriting their files.

    They cannot if the table has a column with the name of Spark's metadata column: Delta 4.4
    confuses the two when it reads files with marked rows, so the table could not be read.
    """
    spark = transaction.merge.spark
    names = transaction.merge.evolved_schema.names
    if any(name.lower() == METADATA_COLUMN for name in names):
        return False
    utils = Jvm.singleton(Jvm.of(spark).delta.commands, "DeletionVectorUtils")
    wanted = is_on(spark, USE_PERSISTENT, otherwise=True)
    snapshot = transaction.snapshot
    return wanted and bool(utils.deletionVectorsWritable(snapshot.protocol(), snapshot.metadata()))


def mark_rows(
    transaction: Transaction, rows: DataFrame, file: str, row_index: str, touched: FileList
) -> MarkedRows:
    """Write vectors that mark these rows, merged with the files' existing vectors.

    Args:
        rows: The rows to mark; a row may be named more than once.
        file: Name of their column (string) with the file as `_metadata.file_path` gives it.
        row_index: Name of their column (bigint) with the row's position in the file.
    """
    spark = transaction.merge.spark
    jvm = Jvm.of(spark)
    if not len(touched):
        return MarkedRows(jvm.seq([]), 0, 0, 0)
    delta = jvm.delta
    generator = Jvm.singleton(delta.commands, "DeletionVectorBitmapGenerator")
    every_row = Jvm.singleton(jvm.catalyst.expressions, "Literal")
    with transaction.translated():
        stored = generator.buildRowIndexSetsForFilesMatchingCondition(
            spark._jsparkSession,
            transaction.transaction,
            True,
            rows._jdf,
            touched.files,
            every_row.TrueLiteral(),
            jvm.option(F.col(file)._jc),
            jvm.option(F.col(row_index)._jc),
        )
        return _in_their_files(transaction, touched, stored)


def may_mark_on_driver(touched: FileList) -> bool:
    """Return whether `mark_on_driver` can mark rows of these files: each vector costs JVM calls."""
    return touched.num_vectors <= FEW_VECTORS


def mark_on_driver(
    transaction: Transaction,
    files: pyarrow.ChunkedArray,
    row_indexes: pyarrow.ChunkedArray,
    touched: FileList,
) -> MarkedRows:
    """Mark rows as deleted from the driver, which writes the deletion vectors without a job.

    Args:
        files: The file of each row to mark, as `_metadata.file_path` gives it.
        row_indexes: The row's position in the file (int64).
    """
    spark = transaction.merge.spark
    jvm = Jvm.of(spark)
    if not len(touched):
        return MarkedRows(jvm.seq([]), 0, 0, 0)
    commands = jvm.delta.commands
    writer = Jvm.singleton(commands, "DeletionVectorWriter")
    length = Jvm.singleton(jvm.delta.util, "Utils").getRandomPrefixLength(
        transaction.transaction.metadata()
    )
    with transaction.translated():
        store = writer.createMapperToStoreDeletionVectors(
            spark._jsparkSession,
            transaction.hadoop_settings,
            transaction.directory,
            length,
        )
        vectors = _vectors(files, row_indexes, _base64_vectors(touched))
        new = actions.from_json(spark, "commands.DeletionVectorData", vectors)
        stored = store.apply(jvm.scala_buffer(new).iterator()).toSeq()
        return _in_their_files(transaction, touched, stored)


def stored_vectors(files: FileList) -> list[JavaObject | None]:
    """Return Delta's descriptor of the deletion vector that each file has, or None."""
    import numpy as np

    found: list[JavaObject | None] = [None] * len(files)
    # Files without a vector take no call, however many there are.
    indexes = np.flatnonzero(files.rows["has_vector"].to_numpy()).tolist()
    if files.adds is None:
        for index in indexes:
            found[index] = files.files.apply(index).deletionVector()
    elif indexes:
        described = [files.adds[index]["deletionVector"] for index in indexes]
        made = actions.from_json(files.spark, "actions.DeletionVectorDescriptor", described)
        for number, index in enumerate(indexes):
            found[index] = made.get(number)
    return found


def _base64_vectors(touched: FileList) -> dict[str, str]:
    """Return the existing deletion vectors as Delta writes them, by the file's location."""
    locations = touched.rows["location"].to_pylist()
    return {
        location: str(vector.serializeToBase64())
        for location, vector in zip(locations, stored_vectors(touched), strict=True)
        if vector is not None
    }


def _vectors(
    files: pyarrow.ChunkedArray, row_indexes: pyarrow.ChunkedArray, vector_ids: dict[str, str]
) -> list[dict[str, Any]]:
    """Return Delta's `DeletionVectorData` of each file, as JSON has it."""
    import numpy as np
    from pyroaring import BitMap64

    named = files.combine_chunks().dictionary_encode()
    numbers = named.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    rows = row_indexes.to_numpy().astype(np.uint64)[order]
    names = named.dictionary.to_pylist()
    ends = np.cumsum(np.bincount(numbers, minlength=len(names)))
    vectors = []
    for name, marked in zip(names, np.split(rows, ends[:-1]), strict=True):
        if not len(marked):  # a dictionary may have further files
            continue
        bitmap = BitMap64(marked)
        vectors.append(
            {
                "filePath": name,
                "deletionVectorId": vector_ids.get(decoded_location(name)),
                "deletedRowIndexSet": b64encode(_MAGIC_NUMBER + bitmap.serialize()).decode(),
                "deletedRowIndexCount": len(bitmap),
            }
        )
    return vectors


def _in_their_files(transaction: Transaction, touched: FileList, stored: JavaObject) -> MarkedRows:
    """Build the actions that put vectors, a Scala Seq of DeletionVectorResult, in place."""
    spark = transaction.merge.spark
    jvm = Jvm.of(spark)
    by_us = _replaced(touched, stored)
    if by_us is not None:
        return by_us
    commands = jvm.delta.commands
    helper = Jvm.singleton(commands, "DMLWithDeletionVectorsHelper")
    by_name = helper.generateCandidateFileMap(transaction.directory, touched.files)
    marked = helper.findFilesWithMatchingRows(transaction.transaction, by_name, stored)
    result = actions_of_vectors(
        spark, marked, transaction.snapshot, transaction.string_prefix_length
    )
    counts = result._2()
    return MarkedRows(
        actions=result._1(),
        num_added=_count(counts, "numDeletionVectorsAdded"),
        num_updated=_count(counts, "numDeletionVectorsUpdated"),
        num_removed=_count(counts, "numDeletionVectorsRemoved"),
    )


def _replaced(touched: FileList, stored: JavaObject) -> MarkedRows | None:
    """Build the actions that replace the files by the same files with new vectors.

    None if statistics are not in the driver or not in the form that Delta writes. Delta then reads
    them from its state or from the files, in several jobs.

    Args:
        stored: A Scala Seq of Delta's DeletionVectorResults: `filePath`, `deletionVector`,
            `matchedRowCount`.
    """
    if touched.adds is None or not touched.have_statistics:
        return None
    files = dict(zip(touched.rows["location"].to_pylist(), touched.adds, strict=True))
    adds, removes = [], []
    now_ms = time.time_ns() // 1_000_000
    for result in actions.to_json(touched.spark, stored):
        old = files[decoded_location(result["filePath"])]
        stats = with_wide_bounds(old)
        if stats is None:
            return None
        # Delta's writer needs the position of the last marked row; the log does not have it.
        vector = {k: v for k, v in result["deletionVector"].items() if k != "maxRowIndex"}
        adds.append({**old, "dataChange": True, "stats": stats, "deletionVector": vector})
        removes.append(actions.removal(old, now_ms))
    updated = sum("deletionVector" in old for old in removes)
    added = actions.from_json(touched.spark, "actions.AddFile", adds)
    added.addAll(actions.from_json(touched.spark, "actions.RemoveFile", removes))
    return MarkedRows(Jvm.of(touched.spark).seq_of(added), len(adds) - updated, updated, 0)


def with_wide_bounds(add: actions.LogAction) -> str | None:
    """Return a file's statistics after rows of it were marked: its bounds are no longer tight.

    Only the end of the text changes, because parsing and writing all of it would round decimals.
    None if the text does not end as Delta writes it, or more has to change (Delta protocol, section
    "Per-file Statistics").
    """
    text = add.get("stats") or "{}"
    statistics = parsed(text)
    if "numRecords" not in statistics:
        return None
    tight = statistics.get("tightBounds")
    if tight is False:
        return text
    if tight is None:
        return text.rstrip().removesuffix("}") + ',"tightBounds":false}'
    # With tight bounds, null counts are of the remaining rows; with wide bounds, of all rows.
    if "deletionVector" in add or not text.endswith('"tightBounds":true}'):
        return None
    return text.removesuffix("true}") + "false}"


def _count(counts: JavaObject, name: str) -> int:
    found = counts.get(name)
    return int(found.get()) if found.isDefined() else 0


_LENGTH_OF_MAGIC_NUMBER = 4


@dataclass(frozen=True)
class RemarkedFiles:
    """Files that have other deletion vectors than when they were read.

    Attributes:
        before: The files as they were read.
        after: The same files, in any order, as the newest version has them.
    """

    before: FileList
    after: FileList

    def only_more(self, transaction: Transaction) -> bool:
        """Return whether every row that was marked then is marked now, too.

        A RESTORE brings marked rows back.
        """
        return all(
            _marked(transaction, before) <= _marked(transaction, after)
            for before, after in self._pairs()
        )

    def united(self, transaction: Transaction, own: MarkedRows) -> MarkedRows | None:
        """Mark the merge's rows in the current vectors too, and write these again.

        None if another commit marked one of them, too, or if the merge left no row of a file.

        Args:
            own: The vectors that the merge wrote; those of other files stay as they are.
        """
        import pyarrow as pa

        listed = actions.to_json(transaction.merge.spark, own.actions)
        own_vectors = {
            action["path"]: at
            for at, action in enumerate(listed)
            if "deletionTimestamp" not in action
        }
        files: list[str] = []
        rows: list[int] = []
        locations = self.after.rows["location"].to_pylist()
        for path, name, (before, after) in zip(
            self.after.paths, locations, self._pairs(), strict=True
        ):
            if path not in own_vectors:
                return None
            at = own_vectors[path]
            ours = own.actions.apply(at).deletionVector()
            by_us = _marked(transaction, ours) - _marked(transaction, before)
            if by_us & _marked(transaction, after):
                return None
            rows.extend(by_us)
            files.extend([quote(name, safe="/:")] * len(by_us))  # as scans name files
        if not rows:
            return None
        names, positions = pa.chunked_array([files]), pa.chunked_array([pa.array(rows, pa.int64())])
        rewritten = mark_on_driver(transaction, names, positions, self.after)
        return without_files(own, self.before).union(rewritten)

    def _pairs(self) -> list[tuple[JavaObject | None, JavaObject | None]]:
        """Pair each file's vector as it was read with its current one, in the order of `after`."""
        before = dict(zip(self.before.paths, stored_vectors(self.before), strict=True))
        after = zip(self.after.paths, stored_vectors(self.after), strict=True)
        return [(before[path], vector) for path, vector in after]


def without_files(own: MarkedRows, files: FileList) -> MarkedRows:
    """Remove the vectors of some files that have rows left from those that a merge wrote.

    Args:
        files: The files whose vectors go, as they were when the merge read them.
    """
    import numpy as np

    jvm, paths = Jvm.of(files.spark), set(files.paths)
    listed = actions.to_json(files.spark, own.actions)
    others = np.array([action["path"] not in paths for action in listed], dtype=bool)
    return MarkedRows(
        jvm.select_where(own.actions, others),
        own.num_added - (len(files) - files.num_vectors),
        own.num_updated - files.num_vectors,
        own.num_removed,
    )


def marked_rows(transaction: Transaction, files: FileList) -> list[numpy.ndarray]:
    """Return for each file the indexes of the rows (int64) that its deletion vector marks."""
    import numpy as np

    return [
        np.array(_marked(transaction, vector).to_array(), dtype=np.int64)
        for vector in stored_vectors(files)
    ]


def _marked(transaction: Transaction, descriptor: JavaObject | None) -> BitMap64:
    """Read the positions of the rows that a file's deletion vector marks."""
    from pyroaring import BitMap64

    if descriptor is None:
        return BitMap64()
    delta = Jvm.of(transaction.merge.spark).delta
    stored = Jvm.singleton(delta.deletionvectors, "StoredBitmap")
    stores = Jvm.singleton(delta.storage.dv, "DeletionVectorStore")
    formats = Jvm.singleton(delta.deletionvectors, "RoaringBitmapArrayFormat")
    with transaction.translated():
        bitmap = stored.create(descriptor, transaction.directory).load(
            stores.createInstance(transaction.hadoop_settings)
        )
        text = bytes(bitmap.serializeAsByteArray(formats.Portable()))
    return BitMap64.deserialize(text[_LENGTH_OF_MAGIC_NUMBER:])
