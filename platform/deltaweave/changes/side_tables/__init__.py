"""Events that are remembered beside a table, in small Delta tables in its directory.

- `side_table`: such a table; which of its rows count after a RESTORE, or for a clone.
- `tombstones`: the remembered deletes of a table of current rows.
- `stored_events`: events as side tables store them, and read back when columns have changed.
"""

from __future__ import annotations

from deltaweave.changes.side_tables.side_table import (
    EVENTS,
    NOTED,
    Noting,
    SideTable,
    check_has_keys,
    check_key_types,
    encryption_of,
    fitted,
    lost_keys,
    may_hold_noted_before,
    noted_at,
    noted_at_present,
    noted_before,
    side_tables,
    time_before,
)
from deltaweave.changes.side_tables.stored_events import (
    ITEM,
    check_are_of,
    completed,
    stored_schema,
    to_events,
    to_stored,
    untaken,
    with_values_of,
)
from deltaweave.changes.side_tables.tombstones import DELETED, EMPTIED, Tombstones

__all__ = [
    "DELETED",
    "EMPTIED",
    "EVENTS",
    "ITEM",
    "NOTED",
    "Noting",
    "SideTable",
    "Tombstones",
    "check_are_of",
    "check_has_keys",
    "check_key_types",
    "completed",
    "encryption_of",
    "fitted",
    "lost_keys",
    "may_hold_noted_before",
    "noted_at",
    "noted_at_present",
    "noted_before",
    "side_tables",
    "stored_schema",
    "time_before",
    "to_events",
    "to_stored",
    "untaken",
    "with_values_of",
]
