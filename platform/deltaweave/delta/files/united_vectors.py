"""Unites the rows that a merge marks with those that other commits marked in the same files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files.deletion_vectors import MarkedRows, mark_here, stored_vectors
from deltaweave.delta.jvm import JavaObject, translated
from deltaweave.delta.log import FileList, actions

if TYPE_CHECKING:
    import numpy
    from pyroaring import BitMap64

_LENGTH_OF_MAGIC_NUMBER = 4


@dataclass(frozen=True)
class MarkedSince:
    """Files that have other deletion vectors than when they were read.

    Attributes:
        then: The files as they were read.
        now: The same files, in any order, as the newest version has them.
    """

    then: FileList
    now: FileList

    def only_more(self, transaction: Transaction) -> bool:
        """Return whether every row that was marked then is marked now, too.

        A RESTORE brings marked rows back.
        """
        return all(
            _marked(transaction, then) <= _marked(transaction, now) for then, now in self._pairs()
        )

    def united(self, transaction: Transaction, own: MarkedRows) -> MarkedRows | None:
        """Mark the merge's rows in the current vectors too, and write these again.

        None if another commit marked one of them, too, or if the merge left no row of a file.

        Args:
            transaction: A transaction on the version of `now`.
            own: The vectors that the merge wrote; those of other files stay as they are.
        """
        import pyarrow as pa

        listed = actions.to_json(transaction.merge.spark, own.actions)
        own_vectors = {
            action["path"]: place
            for place, action in enumerate(listed)
            if "deletionTimestamp" not in action
        }
        files: list[str] = []
        rows: list[int] = []
        locations = self.now.rows["location"].to_pylist()
        for path, name, (then, now) in zip(self.now.paths, locations, self._pairs(), strict=True):
            if path not in own_vectors:
                return None
            place = own_vectors[path]
            ours = own.actions.apply(place).deletionVector()
            by_us = _marked(transaction, ours) - _marked(transaction, then)
            if by_us & _marked(transaction, now):
                return None
            rows.extend(by_us)
            files.extend([quote(name, safe="/:")] * len(by_us))  # as scans name files
        if not rows:
            return None
        names, positions = pa.chunked_array([files]), pa.chunked_array([pa.array(rows, pa.int64())])
        again = mark_here(transaction, names, positions, self.now)
        return without_files(own, self.then).and_also(again)

    def _pairs(self) -> list[tuple[JavaObject | None, JavaObject | None]]:
        """Pair each file's vector as it was read with its current one, in the order of `now`."""
        then = dict(zip(self.then.paths, stored_vectors(self.then), strict=True))
        now = zip(self.now.paths, stored_vectors(self.now), strict=True)
        return [(then[path], vector) for path, vector in now]


def without_files(own: MarkedRows, files: FileList) -> MarkedRows:
    """Remove the vectors of some files that have rows left from those that a merge wrote.

    Args:
        own: The vectors.
        files: These files, as they were when the merge read them.
    """
    import numpy as np

    view, paths = jvm_.jvm(files.spark), set(files.paths)
    listed = actions.to_json(files.spark, own.actions)
    others = np.array([action["path"] not in paths for action in listed], dtype=bool)
    return MarkedRows(
        jvm_.select_where(view, own.actions, others),
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
    delta = jvm_.jvm(transaction.merge.spark).org.apache.spark.sql.delta
    stored = jvm_.singleton(delta.deletionvectors, "StoredBitmap")
    stores = jvm_.singleton(delta.storage.dv, "DeletionVectorStore")
    formats = jvm_.singleton(delta.deletionvectors, "RoaringBitmapArrayFormat")
    with translated(transaction.merge.table, version=transaction.version):
        bitmap = stored.create(descriptor, transaction.directory).load(
            stores.createInstance(transaction.hadoop_settings)
        )
        text = bytes(bitmap.serializeAsByteArray(formats.Portable()))
    return BitMap64.deserialize(text[_LENGTH_OF_MAGIC_NUMBER:])
