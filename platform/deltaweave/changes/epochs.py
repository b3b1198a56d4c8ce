"""Positions in a database's log that come with an epoch and a time.

A sequence may be a struct with `epoch` first and, behind the position, `changed_at` and
`is_snapshot`. The epoch counts the logs: positions begin anew in another log, and its changes come
after all of the log before. The time is for readers, and does not decide over the position.

Tables that were made before positions had these fields keep their type.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from deltaweave.changes.events import SEQUENCE, nullable
from deltaweave.errors import StatementError
from deltaweave.table import Table

EPOCH, CHANGED_AT, IS_SNAPSHOT, SERVER_ID = "epoch", "changed_at", "is_snapshot", "server_id"

_START = "__START_AT"
_NEW = (EPOCH, CHANGED_AT, IS_SNAPSHOT, SERVER_ID)


def has_epochs(at_type: DataType) -> bool:
    """Whether positions of the type come with an epoch and a time."""
    if not isinstance(at_type, StructType) or at_type.names[0] != EPOCH:
        return False
    types = {field.name: field.dataType.simpleString() for field in at_type}
    held = (types[EPOCH], types.get(CHANGED_AT), types.get(IS_SNAPSHOT))
    return held == ("int", "timestamp", "boolean")


def as_held(at: Column, at_type: DataType, table: Table) -> Column:
    """Return positions as a table holds them.

    Args:
        at: The positions.
        at_type: Their type.
        table: The table; it may not exist.

    Raises:
        StatementError: The table's positions are of another kind.
    """
    held = _held(table) if has_epochs(at_type) else None
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


def _held(table: Table) -> DataType | None:
    """The type of a table's sequences, without the tie; None if it has none."""
    columns = table.snapshot().schema if table.exists() else StructType()
    types = {field.name: field.dataType for field in columns}
    sequence = types.get(SEQUENCE)
    # A table of histories has them as the start of each version.
    return sequence["at"].dataType if isinstance(sequence, StructType) else types.get(_START)
