"""Side tables: small tables in a table's directory that remember events for a time.

VACUUM of the table skips them, because the names of their directories begin with "_". So they need
maintenance of their own (`side_tables`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from deltaweave.changes.conversions import (
    changed_leaves,
    converted,
    is_as,
    plain,
    wider,
    with_leaves_of,
)
from deltaweave.changes.events import PREFIX
from deltaweave.changes.options import needed_properties
from deltaweave.delta.commit import alone_on_local_disk
from deltaweave.delta.files import encryption_properties
from deltaweave.delta.jvm import translated
from deltaweave.delta.log import FileList, TableSnapshot, bounds
from deltaweave.engine.prune import KEY_INDEX_DIRECTORY
from deltaweave.errors import StatementError
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table

NOTED = f"{PREFIX}noted_at"
"""Column of a side table: when the row was written."""

TOMBSTONES, EVENTS = "_deltaweave_tombstones", "_deltaweave_events"
"""The directories of remembered deletes, and of remembered events of histories."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OWNER = "deltaweave.sideTableOf"
"""The table property of a side table with the id of its table."""


def side_table(table: Table, directory: str, owner: str | None = None) -> Table:
    """Return the side table of a table; it may not exist yet.

    A new table in the same place has another id. What was remembered for the old table would undo
    its rows, so it gets its own side table. A side table without an owner is from an earlier
    release and belongs to the table.

    Args:
        table: The table.
        directory: The directory of such side tables.
        owner: The table's id; by default that of its newest version.
    """
    owner = owner or table.id()
    found = Table(table.spark, f"{table.location()}/{directory}")
    if found.exists() and found.setting(_OWNER) not in (None, owner):
        return Table(table.spark, f"{found.path_or_name}_{owner}")
    return found


def create_side_table(kept_in: Table, table: Table, schema: StructType) -> None:
    """Create the side table of a table if it does not exist.

    Raises:
        StatementError: See `encryption_of`.
    """
    properties = {_OWNER: table.id(), **needed_properties(schema), **encryption_of(table, kept_in)}
    kept_in.create_if_missing(schema, properties=properties)


def fitted(rows: DataFrame, kept_in: Table, schema: StructType | None = None) -> DataFrame:
    """Fit rows to an existing side table, which first gets columns and wider types for them.

    Args:
        rows: The rows.
        kept_in: The side table.
        schema: The types that it gets for them; by default theirs. What does not fit is cast when
            it is written.

    Raises:
        CommitConflictError: Another writer changed the side table meanwhile.
        DeltaweaveError: Delta cannot change its columns so.
    """
    held = kept_in.snapshot().schema
    wanted = wider(held, schema or rows.schema)
    assert isinstance(wanted, StructType)
    if plain(wanted) != plain(held):
        _evolve(kept_in, held, wanted)
    values = [
        converted(column(f.name), f.dataType, wanted[f.name].dataType).alias(f.name)
        for f in rows.schema
    ]
    are_as = all(is_as(f.dataType, wanted[f.name].dataType) for f in rows.schema)
    return rows if are_as else rows.select(*values)


def _evolve(kept_in: Table, held: StructType, wanted: StructType) -> None:
    """Add columns and fields to a side table, and change types of those that it has."""
    with_new = with_leaves_of(wanted, held)
    if plain(with_new) != plain(held):
        schema = plain(with_new)
        assert isinstance(schema, StructType)
        nothing = kept_in.spark.createDataFrame([], schema)
        kept_in.write(nothing, "append", with_schema_evolution=True)
    name = f"delta.{quoted(kept_in.location())}"
    changed = changed_leaves(held, wanted)
    if not changed:
        return
    properties = ["'delta.enableTypeWidening' = 'true'"]
    if any(isinstance(data_type, TimestampNTZType) for _, data_type in changed):
        properties.append("'delta.feature.timestampNtz' = 'supported'")
    statements = [f"SET TBLPROPERTIES ({', '.join(properties)})"]
    statements += [
        f"ALTER COLUMN {'.'.join(map(quoted, path))} TYPE {data_type.simpleString()}"
        for path, data_type in changed
    ]
    operation = "widening columns"
    with (
        translated(kept_in.path_or_name, operation=operation, commits=True),
        alone_on_local_disk(
            kept_in.spark, kept_in.location(), table=kept_in.path_or_name, operation=operation
        ),
    ):
        for each in statements:
            kept_in.spark.sql(f"ALTER TABLE {name} {each}")


def encryption_of(table: Table, kept_in: Table) -> dict[str, str]:
    """Return the properties that encrypt a table that keeps another table's rows or keys.

    Args:
        table: The other table, if it exists.
        kept_in: The table that keeps them, if it exists.

    Raises:
        StatementError: It exists without them, so that it would hold in plain text what the other
            table encrypts.
    """
    if not table.exists():
        return {}
    wanted = encryption_properties(table.snapshot().metadata.properties)
    if wanted and kept_in.exists():
        missing = sorted(wanted.keys() - kept_in.snapshot().metadata.properties.keys())
        if missing:
            raise StatementError(
                f"{kept_in.path_or_name} keeps keys and rows of the table, and does not have its "
                f"properties {', '.join(missing)}: what it is to keep would not be encrypted.",
                table=table.path_or_name,
                operation="applying changes",
                hint=f"Set them for {kept_in.path_or_name} too, and rewrite its files.",
            )
    return wanted


def side_tables(table: Table) -> Iterator[Table]:
    """Yield the existing side tables of a table, including its key index."""
    index = Table(table.spark, f"{table.location()}/{KEY_INDEX_DIRECTORY}")
    for each in (index, side_table(table, TOMBSTONES), side_table(table, EVENTS)):
        if each.exists():
            yield each


def newest_version(kept_in: Table) -> int:
    """Return the newest version of a side table; -1 if the table does not exist."""
    return kept_in.version() if kept_in.exists() else -1


def noted_before(keep_for: timedelta, noted: int | None = None) -> str:
    """Return the SQL condition of rows that were written longer ago.

    Args:
        keep_for: How long ago.
        noted: Before which time, in µs since 1970; by default before now.
    """
    before = _ago(keep_for)
    if noted is not None:
        before = _EPOCH + timedelta(microseconds=noted) - keep_for
    return f"{NOTED} < TIMESTAMP '{before.isoformat()}'"


def may_hold_noted_before(kept_in: TableSnapshot, keep_for: timedelta) -> bool:
    """Return whether a version of a side table may hold rows that were written longer ago.

    The statistics of its files in the log decide; true if there are none.
    """
    listed = kept_in.files_in_checksum()
    if listed is None:
        return True
    files = FileList(kept_in.spark, listed, kept_in.data_path, have_statistics=True)
    (noted,) = bounds(kept_in, files, [((NOTED,), TimestampType())])
    before = (_ago(keep_for) - _EPOCH) // timedelta(microseconds=1)
    return any(low is None or low < before for low in noted.lows)


def _ago(time: timedelta) -> datetime:
    return datetime.now(timezone.utc) - time
