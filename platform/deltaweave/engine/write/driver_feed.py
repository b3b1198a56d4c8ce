"""The change data feed of a small merge on the driver: one file with all its changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, FILE, NEW_ROW, TARGET_ROW_ID
from deltaweave.engine.find import name_of
from deltaweave.engine.tasks import TableFormat, change_file, images, rows_at
from deltaweave.engine.write.driver_values import NewValues

if TYPE_CHECKING:
    import pyarrow


def record_changes(
    table: TableFormat,
    values: NewValues,
    changes: pyarrow.Table,
    touched: Sequence[str],
    inserted: pyarrow.Table,
) -> tuple[str, int] | None:
    """Write the file, and return its name and its size in bytes; None if the table has no feed.

    A merge that touches no file needs none: readers take the rows of its new files for inserts.

    Args:
        table: How to write.
        values: What the clauses give to changed rows.
        changes: The pairs of changed rows; of a row that several source rows delete, several.
        touched: The paths of the files that they are in.
        inserted: The inserted rows.
    """
    import pyarrow.compute as pc

    if not touched:
        return None
    with change_file(table) as file:
        if file is None:
            return None
        file.add([(inserted, "insert")])
        for path in touched:
            of_file = changes.filter(pc.equal(changes[FILE], name_of(f"file:{path}")))
            file.add(_images(table, values, of_file, path))
    return file.written


def _images(
    table: TableFormat, values: NewValues, changes: pyarrow.Table, path: str
) -> list[tuple[pyarrow.Table, str]]:
    """The entries of the changed rows of one file."""
    import numpy as np

    # A row that several source rows delete has several pairs.
    places, first = np.unique(changes[TARGET_ROW_ID].to_numpy(), return_index=True)
    clauses, numbers = changes[CLAUSE].to_numpy()[first], changes[NEW_ROW].to_numpy()[first]
    before = rows_at(path, places, table, limits.MAX_NEW_BYTES_ON_DRIVER)
    return images(before, values.rows(numbers, clauses), ~values.gives_row(clauses))
