"""Positions in a database's log that come with an epoch and a time.

A sequence may be a struct with `epoch` first and, behind the position, `changed_at` and
`is_snapshot`. The epoch counts the logs: positions start over in another log, and its changes come
after all of the log before. The time is for readers, and does not decide over the position.

A key's changes have positions in the order in which they were made, because the database locks
rows. So a change with a later time and an earlier position is from another log, for which no epoch
was given. It is an error, because it would otherwise be ignored as old. Rows of snapshots are
compared with each other alone, because a snapshot may read a row long after its position.

Tables from before positions had these fields keep their type, and other logs go unnoticed.

The functions `unless_…` return SQL for a value whose evaluation is an error if events are from
another log: `value` is its SQL, `fields` are the `log_fields`, `keys` has the SQL of the key
columns by name, and `newest` is the SQL for `_cdc_newest` of the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from deltaweave.changes.conversions import nullable
from deltaweave.changes.events import PREFIX, SEQUENCE, EventShape
from deltaweave.errors import StatementError
from deltaweave.identifiers import literal, quoted
from deltaweave.table import Table

EPOCH, CHANGED_AT, IS_SNAPSHOT, SERVER_ID = "epoch", "changed_at", "is_snapshot", "server_id"

NEWEST = f"{PREFIX}newest"
"""Column of changes: the times of the key's newest change and newest row of a snapshot."""

# Clocks of two servers differ by seconds, and clocks that show local time go back by an hour. A
# server's own changes are timed by MySQL when their statement began, which may take hours.
_TOLERANCE, _TOLERANCE_OF_A_SERVER = "INTERVAL '1' HOUR", "INTERVAL '24' HOUR"
_BEFORE_THIS = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"

_HINT = (
    " that was made long before it, so it is of another log, whose positions start over. Give the "
    "messages of that log a greater epoch (debezium_changes: epoch=): "
    "docs/how-to/another-log.md shows how."
)

_START = "__START_AT"
_NEW = (EPOCH, CHANGED_AT, IS_SNAPSHOT, SERVER_ID)


def has_epochs(at_type: DataType) -> bool:
    """Return whether positions of the type come with an epoch and a time."""
    if not isinstance(at_type, StructType) or at_type.names[0] != EPOCH:
        return False
    types = {field.name: field.dataType.simpleString() for field in at_type}
    held = (types[EPOCH], types.get(CHANGED_AT), types.get(IS_SNAPSHOT))
    return held == ("int", "timestamp", "boolean")


def log_fields(at_type: DataType) -> tuple[str, ...]:
    """Return the fields of positions by which logs are told apart; empty if they are not."""
    if not has_epochs(at_type):
        return ()
    assert isinstance(at_type, StructType)
    return tuple(name for name in (EPOCH, CHANGED_AT, SERVER_ID) if name in at_type.names)


def newest_changes(fields: Sequence[str], window: str = "") -> str:
    """Return the SQL for `_cdc_newest` over all events of a group, or of a window."""
    at = f"{SEQUENCE}.at"
    time = ", ".join(f"'{name}', {at}.{name}" for name in fields)
    newest_change, newest_snapshot_row = (
        f"max(CASE WHEN {condition} THEN named_struct({time}) END){window}"
        for condition in (f"NOT {at}.{IS_SNAPSHOT}", f"{at}.{IS_SNAPSHOT}")
    )
    return f"named_struct('of_log', {newest_change}, 'of_snapshot', {newest_snapshot_row})"


def unless_of_other_log(
    value: str, fields: Sequence[str], keys: Mapping[str, str], newest: str, last: str
) -> str:
    """Return the SQL for a value; evaluating it is an error if events are of another log.

    `last` is the SQL for a sequence that is not before that of any of these events.
    """
    if not fields:
        return value
    newest_of_kind = f"if({last}.at.{IS_SNAPSHOT}, {newest}.of_snapshot, {newest}.of_log)"
    return _unless_later(value, fields, keys, newest_of_kind, f"{last}.at")


def unless_earlier_are_of_other_log(value: str, shape: EventShape, in_order: str) -> str:
    """Return the SQL for a value of events; evaluating it is an error if they are of two logs."""
    if not shape.log_fields:
        return value
    before = newest_changes(shape.log_fields, f" OVER ({in_order} {_BEFORE_THIS})")
    keys = {key: quoted(key) for key in shape.keys}
    return unless_of_other_log(value, shape.log_fields, keys, f"({before})", SEQUENCE)


def unless_held_of_other_log(
    value: str, fields: Sequence[str], keys: Mapping[str, str], newest: str, changed: str, held: str
) -> str:
    """Return the SQL for a value; evaluating it is an error if row and changes are of two logs.

    `changed` is the SQL for the last sequence of the changes, `held` that for the row's, or null.
    """
    if not fields:
        return value
    are_logged = f"NOT {held}.at.{IS_SNAPSHOT} AND NOT {changed}.at.{IS_SNAPSHOT}"
    after = _unless_later(value, fields, keys, f"{held}.at", f"{changed}.at")
    return (
        f"CASE WHEN {held} > {changed} "
        f"THEN {unless_of_other_log(value, fields, keys, newest, held)} "
        f"WHEN {held} < {changed} AND {are_logged} THEN {after} ELSE {value} END"
    )


def _unless_later(
    value: str, fields: Sequence[str], keys: Mapping[str, str], time: str, at: str
) -> str:
    """Return the SQL for a value, or for an error if a time is after that of a later position."""
    tolerance = _TOLERANCE
    if SERVER_ID in fields:
        is_same = f"{time}.{SERVER_ID} = {at}.{SERVER_ID}"
        tolerance = f"if({is_same}, {_TOLERANCE_OF_A_SERVER}, {_TOLERANCE})"
    named = ", ', ', ".join(f"{literal(f'{key}=')}, {key_sql}" for key, key_sql in keys.items())
    problem = (
        f"concat('the change of ', {named}, ' at ', {time}.{CHANGED_AT}, ' has a position before "
        f"that of the change at ', {at}.{CHANGED_AT}, ' (', CAST({at} AS STRING), ')', "
        f"{literal(_HINT)})"
    )
    return (
        f"CASE WHEN {time}.{EPOCH} = {at}.{EPOCH} AND {at}.{CHANGED_AT} > timestamp_micros(0) "
        f"AND {time}.{CHANGED_AT} > {at}.{CHANGED_AT} + {tolerance} "
        f"THEN raise_error({problem}) ELSE {value} END"
    )


def unless_emptied_in_other_log(
    value: Column, fields: Sequence[str], emptied: Column, held: Column
) -> Column:
    """Return a value of rows; evaluating it is an error if another log emptied the table.

    `emptied` is the position of the event that empties the table, `held` that of a row.
    """
    if not fields:
        return value
    tolerance = F.expr(_TOLERANCE)
    if SERVER_ID in fields:
        is_same = emptied[SERVER_ID] == held[SERVER_ID]
        tolerance = F.when(is_same, F.expr(_TOLERANCE_OF_A_SERVER)).otherwise(tolerance)
    is_other = (
        (emptied < held)
        & (emptied[EPOCH] == held[EPOCH])
        & ~held[IS_SNAPSHOT]
        & (held[CHANGED_AT] > F.timestamp_micros(F.lit(0)))
        & (emptied[CHANGED_AT] > held[CHANGED_AT] + tolerance)
    )
    problem = F.lit(f"an event that empties the table has a position before that of a row{_HINT}")
    return F.when(is_other, F.raise_error(problem)).otherwise(value)


def as_held(at: Column, at_type: DataType, table: Table) -> Column:
    """Return positions as a table holds them.

    Raises:
        StatementError: The table's positions are of another kind.
    """
    held = _sequence_type_of(table) if has_epochs(at_type) else None
    if held is None or nullable(at_type) == nullable(held):
        return at
    assert isinstance(at_type, StructType)
    earlier = [name for name in at_type.names if name not in _NEW]
    if not isinstance(held, StructType) or held.names != earlier:
        raise StatementError(
            f"its rows have positions of the type {held.simpleString()}, and the events "
            f"{at_type.simpleString()}.",
            table=table.path_or_name,
            operation="applying changes",
            hint="Read the messages with the connector and offset as before, or apply a snapshot "
            "and all later changes to a new table.",
        )
    problem = F.lit(
        "the table was made before positions had an epoch, so it cannot tell logs apart: apply a "
        "snapshot and all later changes to a new table."
    )
    fields = F.struct(*[at[name].alias(name) for name in earlier])
    return F.when(at[EPOCH] != 0, F.raise_error(problem)).otherwise(fields)


def _sequence_type_of(table: Table) -> DataType | None:
    """Return the type of a table's sequences, without the tie; None if it has none."""
    columns = table.snapshot().schema if table.exists() else StructType()
    types = {field.name: field.dataType for field in columns}
    sequence = types.get(SEQUENCE)
    # In a table of histories, they are the starts of versions.
    return sequence["at"].dataType if isinstance(sequence, StructType) else types.get(_START)
