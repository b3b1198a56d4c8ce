"""The change data feed of a small merge on the driver: a file of changes for each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from deltaweave.delta.commit import ChangeFileOf
from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, NEW_ROW, TARGET_ROW_ID
from deltaweave.engine.find import (
    PartitionColumns,
    PartitionValues,
    by_file,
    in_threads,
    name_of,
    with_partition,
)
from deltaweave.engine.tasks import ChangeFile, TableFormat, change_file, images, rows_at
from deltaweave.engine.write.driver_values import NewValues
from deltaweave.engine.write.partition_parts import Part, parts_of

if TYPE_CHECKING:
    import pyarrow


class _Feed:
    """The files of the feed, one for each partition.

    Args:
        table: The format of the table's files.
        partitioned_by: The table's partition columns.
        stack: Completes the files, or deletes them if it fails.
    """

    def __init__(
        self, table: TableFormat, partitioned_by: PartitionColumns, stack: ExitStack
    ) -> None:
        self._table, self._partitioned_by, self._stack = table, partitioned_by, stack
        self._files: dict[str, tuple[Part, ChangeFile]] = {}

    def add(self, entries: Sequence[tuple[pyarrow.Table, str]]) -> None:
        """Add whole rows of the table, and their `_change_type`."""
        of_parts: dict[str, list[tuple[pyarrow.Table, str]]] = {}
        for rows, what in entries:
            for part in parts_of(rows, self._partitioned_by, self._table.schema):
                if part.directory not in self._files:
                    file = self._stack.enter_context(change_file(self._table))
                    assert file is not None, "record_changes"
                    self._files[part.directory] = part, file
                of_parts.setdefault(part.directory, []).append((part.rows, what))
        for directory, added in of_parts.items():
            self._files[directory][1].add(added)

    def written(self) -> list[ChangeFileOf]:
        """Return the files, once they are complete."""
        files = self._files.values()
        return [(*file.written, part.values) for part, file in files if file.written is not None]


def record_changes(
    table: TableFormat,
    values: NewValues,
    changes: pyarrow.Table,
    touched: Sequence[str],
    inserted: pyarrow.Table,
    partitioned_by: PartitionColumns,
    partitions: Mapping[str, PartitionValues],
) -> list[ChangeFileOf]:
    """Write the files; none if the table has no feed.

    A merge that touches no file needs none: readers take the rows of its new files for inserts.

    Args:
        table: The format of the table's files.
        values: What the clauses give to changed rows.
        changes: The pairs of changed rows; of a row that several source rows delete, several.
        touched: The locations of the files that they are in.
        inserted: The inserted rows.
        partitioned_by: The table's partition columns.
        partitions: The partition of each file, as `FILE` names it.
    """
    if not touched or table.change_feed is None:
        return []
    with ExitStack() as stack:
        feed = _Feed(table, partitioned_by, stack)
        feed.add([(inserted, "insert")])
        of_files = by_file(changes)

        def of_file(location: str) -> list[tuple[pyarrow.Table, str]]:
            name = name_of(location)
            return _images(table, values, of_files[name], location, partitions[name])

        for entries in in_threads(of_file, touched):
            feed.add(entries)
    return feed.written()


def _images(
    table: TableFormat,
    values: NewValues,
    changes: pyarrow.Table,
    location: str,
    partition: PartitionValues,
) -> list[tuple[pyarrow.Table, str]]:
    """Return the change feed's entries for the changed rows of one file."""
    import numpy as np

    # A row that several source rows delete has several pairs.
    places, first = np.unique(changes[TARGET_ROW_ID].to_numpy(), return_index=True)
    clauses, numbers = changes[CLAUSE].to_numpy()[first], changes[NEW_ROW].to_numpy()[first]
    stored = rows_at(location, places, table, limits.MAX_NEW_BYTES_ON_DRIVER)
    before = with_partition(stored, len(places), partition, values.schema.names)
    return images(before, values.rows(numbers, clauses), ~values.gives_row(clauses))
