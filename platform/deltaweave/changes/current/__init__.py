"""Tables of current rows (SCD type 1): the newest event of a key wins.

- `rows`: applies events to a table of current rows.
- `combining`: combines a row with the changes of its key.
- `tombstones`: remembers deletes, so that late events do not undo them.
- `truncates`: events that empty the table, and the rows that they leave.
"""

from __future__ import annotations

from deltaweave.changes.current.combining import DELETED, OWN_COLUMNS, UPSERTED, combined, new_row
from deltaweave.changes.current.rows import (
    alive,
    apply_to_current_rows,
    current_row_columns,
    newest_of_keys,
)
from deltaweave.changes.current.tombstones import Tombstones
from deltaweave.changes.current.truncates import EMPTIED, rows_left

__all__ = [
    "DELETED",
    "EMPTIED",
    "OWN_COLUMNS",
    "UPSERTED",
    "Tombstones",
    "alive",
    "apply_to_current_rows",
    "combined",
    "current_row_columns",
    "new_row",
    "newest_of_keys",
    "rows_left",
]
