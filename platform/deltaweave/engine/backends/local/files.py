"""Write what the local backend found: new files, deletion vectors, the change data feed.

The feed has a file of changes for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.delta.commit import ChangeFileOf, Transaction, WrittenFiles, written_without_spark
from deltaweave.delta.files import FurtherFile, MarkedRows, NewFile, additions, mark_on_driver
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.backends.local.eligibility import in_threads
from deltaweave.engine.backends.local.matches import name_of, own_locations
from deltaweave.engine.backends.local.pairs import LocalPairs, by_file
from deltaweave.engine.backends.local.partitions import (
    Part,
    PartitionColumns,
    PartitionValues,
    parts_of,
    with_partition,
)
from deltaweave.engine.backends.local.values import NewValues
from deltaweave.engine.clauses import (
    CLAUSE,
    ELSEWHERE,
    FILE,
    NEW_ROW,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.pairs import FilePlan, TouchedFilesScan
from deltaweave.engine.tasks import (
    ChangeFile,
    FeedRows,
    TableFormat,
    change_file,
    images,
    rewrite_rows,
    rows_at,
    write_file,
)

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class LocalScan:
    """The changes that the local backend found, before anything is written.

    Attributes:
        scan: What the pairs show about the files.
        plan: What becomes of the touched files.
        updates: The values that clauses assign to pairs, by `NEW_ROW`.
        inserts: The values that clauses assign to source rows, by their numbers.
        inserted: The numbers of the source rows that are inserted.
        insert_clauses: The clauses that insert them, by their indexes.
        table: What new files look like.
        marks_rows: Whether deletion vectors delete the changed rows in files that stay.
    """

    pairs: LocalPairs
    scan: TouchedFilesScan
    plan: FilePlan
    updates: NewValues
    inserts: NewValues
    inserted: numpy.ndarray
    insert_clauses: numpy.ndarray
    table: TableFormat
    marks_rows: bool

    @cached_property
    def changes(self) -> pyarrow.Table:
        """The pairs of changed rows; of a row that several source rows delete, several."""
        changes = self.scan.changed_on_driver(self.scan.touched)
        assert changes is not None, "the pairs are on the driver"
        return changes

    @cached_property
    def inserted_rows(self) -> pyarrow.Table:
        """The rows that are inserted, in the order of the source."""
        return self.inserts.rows(self.inserted, self.insert_clauses)

    @property
    def partitioned_by(self) -> PartitionColumns:
        """The table's partition columns."""
        return self.pairs.partitioned_by


@dataclass(frozen=True)
class LocalFiles:
    """The files that were written.

    Attributes:
        written: The new files, or None.
        marked: The deletion vectors of the files that stay.
    """

    written: WrittenFiles | None
    marked: MarkedRows


def write_files(transaction: Transaction, found: LocalScan) -> LocalFiles:
    """Write what was found: new files, and the deletion vectors of files that stay.

    If it fails, what was written is deleted.
    """
    transaction.own_files.begin_beside(found.plan.copied)
    try:
        return _written(transaction, found)
    except BaseException:  # any error, an interrupt too
        transaction.own_files.delete_all()  # a second interrupt may leave threads running
        raise


def _written(transaction: Transaction, found: LocalScan) -> LocalFiles:
    recorded = record_changes(found)  # first, since files may not be readable
    replaced, others = _write_files(transaction, found)
    written = None
    if replaced or others:
        written = written_without_spark(
            transaction.transaction, additions(found.plan.copied, replaced, others)
        )
    if recorded:
        written = written or WrittenFiles.of(found.scan.touched.empty())
        written = written.with_changes(recorded)
    to_mark = found.scan.changed_on_driver(found.plan.stay)
    assert to_mark is not None, "the pairs are on the driver"
    vectors = mark_on_driver(transaction, to_mark[FILE], to_mark[TARGET_ROW_ID], found.plan.stay)
    return LocalFiles(written, vectors)


def _leave_file(found: LocalScan) -> numpy.ndarray:
    """Return for each changed row whether its new row goes to a new file.

    True for rows that change partition, for files that keep few rows, and beside marked rows.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    changes = found.changes
    if found.marks_rows:
        return np.ones(len(changes), dtype=bool)
    own = pa.array(found.scan.names_of(_with_most_rows(found)), pa.string())
    leave: numpy.ndarray = ~pc.is_in(changes[FILE], own).to_numpy()
    gives_row = found.updates.gives_row(changes[CLAUSE].to_numpy())
    if not found.partitioned_by.fields:
        return leave
    updated = changes.filter(pa.array(gives_row))
    new = found.updates.rows(updated[NEW_ROW].to_numpy(), updated[CLAUSE].to_numpy())
    files = updated[FILE].combine_chunks().dictionary_encode()
    partitions = [found.pairs.partitions[name] for name in files.dictionary.to_pylist()]
    for field in found.partitioned_by.fields:
        of_files = pa.array([values[field.name].as_py() for values in partitions], field.type)
        old = of_files.take(files.indices)
        is_same = pc.fill_null(pc.equal(new[field.name], old), False)
        both_null = pc.and_(pc.is_null(new[field.name]), pc.is_null(old))
        leave[gives_row] |= ~pc.or_(is_same, both_null).to_numpy()
    return leave


def _with_most_rows(found: LocalScan) -> FileList:
    """Return the files to copy, except large files in which almost every row changes.

    Several threads write the new rows of such large files.
    """
    import numpy as np

    touched, copied = found.scan.touched, found.plan.copied
    most = limits.MAX_LOCAL_CHANGED_FRACTION * found.pairs.row_counts_in(touched)
    is_great = touched.rows["size"].to_numpy() >= 2 * limits.MIN_FILE_BYTES
    nearly_all = touched.where((np.array(found.scan.changed_by_file) > most) & is_great)
    return copied.excluding(nearly_all.paths)


class _NewFiles(NamedTuple):
    """Rewritten files, by the paths of the old ones, and files of the other new rows."""

    replaced: dict[str, NewFile]
    others: list[FurtherFile]


def _write_files(transaction: Transaction, found: LocalScan) -> _NewFiles:
    """Rewrite files, and write the other new rows to new files."""
    import pyarrow as pa

    changes = found.changes.append_column(ELSEWHERE, pa.array(_leave_file(found)))
    new_rows = _with_updated(found, changes.filter(changes[ELSEWHERE]))
    parts = [
        piece
        for part in parts_of(new_rows, found.partitioned_by, found.table.schema)
        for piece in part.in_pieces()
    ]
    if transaction.metadata.has_random_directories:
        parts = [replace(part, directory="") for part in parts]
    root, locations = transaction.data_path.rstrip("/"), own_locations(found.plan.copied)
    of_files = by_file(changes)
    with ThreadPoolExecutor(max_workers=limits.MAX_LOCAL_THREADS) as threads:
        try:
            writing = [threads.submit(_write_part, root, part, found.table) for part in parts]
            rewritten = list(threads.map(partial(rewritten_file, found, of_files), locations))
            others = [file.result() for file in writing]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # what has begun is waited for
            raise
    new = zip(found.plan.copied.paths, rewritten, strict=True)
    return _NewFiles({path: file for path, file in new if file}, others)


def _write_part(root: str, part: Part, table: TableFormat) -> FurtherFile:
    directory = root
    for level in filter(None, part.directory.split("/")):
        directory = f"{directory}/{level}"
        table.storage.make_directory(directory)
    return FurtherFile(part.directory, part.values, write_file(directory, part.rows, table))


def _with_updated(found: LocalScan, changes: pyarrow.Table) -> pyarrow.Table:
    """Return the inserted rows and those of these updates, in the order of the source."""
    import numpy as np
    import pyarrow as pa

    if not changes.num_rows:
        return found.inserted_rows
    clauses = changes[CLAUSE].to_numpy()
    updated = found.updates.rows(changes[NEW_ROW].to_numpy(), clauses)
    indexes = changes[SOURCE_ROW].to_numpy()[found.updates.gives_row(clauses)]
    order = np.argsort(np.concatenate([found.inserted, indexes]), kind="stable")
    return pa.concat_tables([found.inserted_rows, updated]).combine_chunks().take(pa.array(order))


def rewritten_file(
    found: LocalScan, of_files: Mapping[str, pyarrow.Table], location: str
) -> NewFile | None:
    """Rewrite a file, without the rows that were marked before; None if no row is left."""
    import numpy as np

    name = name_of(location)
    own = of_files[name]
    deleted_rows = found.pairs.marked.get(name, np.array([], dtype=np.int64))
    indexes = np.concatenate([own[TARGET_ROW_ID].to_numpy(), deleted_rows])
    # A row that several source rows delete has several pairs.
    indexes, first = np.unique(indexes, return_index=True)
    stays = np.where(own[ELSEWHERE].to_numpy(), NO_CLAUSE, own[CLAUSE].to_numpy())
    clauses = np.concatenate([stays, np.full(len(deleted_rows), NO_CLAUSE)])[first]
    rows = np.concatenate([own[NEW_ROW].to_numpy(), np.zeros(len(deleted_rows), dtype=np.int64)])[
        first
    ]
    deleted = ~found.updates.gives_row(clauses)
    new_rows = found.updates.rows(rows, clauses)
    new_rows = new_rows.select(found.table.schema.names).cast(found.table.schema)
    table = replace(found.table, change_feed=None)  # `record_changes` writes it
    return rewrite_rows(location, indexes, deleted, new_rows, table).file


class _Feed:
    """The files of the feed, one for each partition.

    Args:
        stack: Completes the files, or deletes them if it fails.
    """

    def __init__(
        self, table: TableFormat, partitioned_by: PartitionColumns, stack: ExitStack
    ) -> None:
        self._table, self._partitioned_by, self._stack = table, partitioned_by, stack
        self._files: dict[str, tuple[Part, ChangeFile]] = {}

    def add(self, entries: Sequence[FeedRows]) -> None:
        """Add whole rows of the table."""
        of_parts: dict[str, list[FeedRows]] = {}
        for each in entries:
            for part in parts_of(each.rows, self._partitioned_by, self._table.schema):
                if part.directory not in self._files:
                    file = self._stack.enter_context(change_file(self._table))
                    assert file is not None, "record_changes"
                    self._files[part.directory] = part, file
                of_parts.setdefault(part.directory, []).append(
                    FeedRows(part.rows, each.change_type)
                )
        for directory, added in of_parts.items():
            self._files[directory][1].add(added)

    def written(self) -> list[ChangeFileOf]:
        """Return the files, once they are complete."""
        files = self._files.values()
        return [(*file.written, part.values) for part, file in files if file.written is not None]


def record_changes(found: LocalScan) -> list[ChangeFileOf]:
    """Write the files of the change feed; none if the table has no feed.

    A merge that touches no file needs none: readers take the rows of its new files for inserts.
    """
    table, touched = found.table, own_locations(found.scan.touched)
    if not touched or table.change_feed is None:
        return []
    with ExitStack() as stack:
        feed = _Feed(table, found.partitioned_by, stack)
        feed.add([FeedRows(found.inserted_rows, "insert")])
        of_files = by_file(found.changes)

        def of_file(location: str) -> list[FeedRows]:
            name = name_of(location)
            partition = found.pairs.partitions[name]
            return _images(table, found.updates, of_files[name], location, partition)

        for entries in in_threads(of_file, touched):
            feed.add(entries)
    return feed.written()


def _images(
    table: TableFormat,
    values: NewValues,
    changes: pyarrow.Table,
    location: str,
    partition: PartitionValues,
) -> list[FeedRows]:
    """Return the change feed's entries for the changed rows of one file."""
    import numpy as np

    # A row that several source rows delete has several pairs.
    indexes, first = np.unique(changes[TARGET_ROW_ID].to_numpy(), return_index=True)
    clauses, numbers = changes[CLAUSE].to_numpy()[first], changes[NEW_ROW].to_numpy()[first]
    stored = rows_at(location, indexes, table, limits.MAX_LOCAL_NEW_BYTES)
    before = with_partition(stored, len(indexes), partition, values.schema.names)
    return images(before, values.rows(numbers, clauses), ~values.gives_row(clauses))
