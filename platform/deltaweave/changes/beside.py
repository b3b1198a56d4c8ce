"""Small tables that lie in a table's directory, and forget after a time: its side tables.

VACUUM of the table passes them by, since the names of their directories begin with "_"; so they
need maintenance of their own (`side_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from pyspark.sql.types import StructType

from deltaweave.changes.arguments import needed_properties
from deltaweave.changes.events import PREFIX
from deltaweave.engine import key_index
from deltaweave.table import Table

NOTED = f"{PREFIX}noted_at"
"""Column of a side table: when a row was noted."""

TOMBSTONES, EVENTS = "_deltaweave_tombstones", "_deltaweave_events"
"""The directories of remembered deletes, and of remembered events of histories."""

_OWNER = "deltaweave.sideTableOf"
"""The table property with the id of the table that it is beside."""


def side_table(table: Table, directory: str) -> Table:
    """The side table of a table, which may not be there yet.

    A table that was made anew in the same place has another id: what is remembered of the one
    before would undo its rows. It then has a side table of its own. One without an owner is from
    a version that noted none, and counts as the table's.
    """
    owner = table.id()
    found = Table(table.spark, f"{table.location()}/{directory}")
    if found.exists() and found.setting(_OWNER) not in (None, owner):
        return Table(table.spark, f"{found.path_or_name}_{owner}")
    return found


def create_side_table(kept_in: Table, table: Table, schema: StructType) -> None:
    """Make the side table of a table, where there is none."""
    properties = {_OWNER: table.id(), **needed_properties(schema)}
    kept_in.create_if_missing(schema, properties=properties)


def side_tables(table: Table) -> Iterator[Table]:
    """The side tables of a table that there are, its key index among them."""
    index = Table(table.spark, f"{table.location()}/{key_index.DIRECTORY}")
    for each in (index, side_table(table, TOMBSTONES), side_table(table, EVENTS)):
        if each.exists():
            yield each


def newest_version(kept_in: Table) -> int:
    """Its newest version; -1 where there is no such table yet."""
    return kept_in.version() if kept_in.exists() else -1


def noted_before(keep_for: timedelta) -> str:
    """The SQL condition of rows that were noted longer ago."""
    before = (datetime.now(timezone.utc) - keep_for).isoformat()
    return f"{NOTED} < TIMESTAMP '{before}'"
