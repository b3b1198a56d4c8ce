"""Row ids and row commit versions, which rows keep when a merge moves them to another file.

In a table that tracks its rows (Delta protocol, "Row Tracking"), every row has an id and the
version of the commit that last changed it. Both follow from the row's file and its position there,
unless the file stores them in two extra columns, named by the table's properties. A merge stores
both for the rows it copies, and only the id for rows it updates. Inserted rows get new ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from deltaweave.delta.commit import Transaction
from deltaweave.delta.releases import tracked_metadata

ENABLED = "delta.enableRowTracking"
_ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


@dataclass(frozen=True)
class TrackedColumn:
    """A column in which files store row ids or row commit versions.

    Attributes:
        name: The column's name in the table's files (bigint, null where the file's own value
            holds).
        read_from: The field of Spark's metadata column that gives its value in a scan.
        metadata: Makes Delta's writer accept the column, although it is not in the schema.
    """

    name: str
    read_from: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class TrackedColumns:
    """The two columns of a table that tracks its rows."""

    row_id: TrackedColumn
    commit_version: TrackedColumn

    def __iter__(self) -> Any:
        return iter((self.row_id, self.commit_version))


def tracked_columns(transaction: Transaction) -> TrackedColumns | None:
    """Return the columns of row ids and commit versions; None if the table does not track rows."""
    metadata = transaction.table.metadata
    if not metadata.is_on(ENABLED):
        return None

    def column(setting: str, owner: str, field: str) -> TrackedColumn:
        name = metadata.properties[setting]
        accepted = tracked_metadata(transaction.merge.spark, owner, name)
        return TrackedColumn(name, field, json.loads(accepted.json()))

    return TrackedColumns(
        row_id=column(_ROW_ID_COLUMN, "RowId", "row_id"),
        commit_version=column(_COMMIT_VERSION_COLUMN, "RowCommitVersion", "row_commit_version"),
    )
