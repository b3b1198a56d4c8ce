"""`debezium_changes`, and the arguments of `apply_changes` for the rows that it returns.

Columns whose value a message does not have are not in `_cdc_present`, so they stay as they are.

A snapshot's row comes before every change that the log has after it. If Debezium's position for the
row does not ensure that, the row gets a position before the whole log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave._validation import check_choice
from deltaweave.changes.conversions import holds_type
from deltaweave.changes.debezium.decoded import rows_of_structs
from deltaweave.changes.debezium.documents import rows_of_documents
from deltaweave.changes.debezium.envelopes import (
    OPERATION,
    SOURCE,
    UNAVAILABLE,
    EnvelopeRows,
    Messages,
    Placeholder,
    rows_of_json,
)
from deltaweave.changes.debezium.values import TIMES, ReadValue, TimeUnit, or_error
from deltaweave.changes.epochs import CHANGED_AT, EPOCH, IS_SNAPSHOT, SERVER_ID
from deltaweave.changes.events import PREFIX, PRESENT
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

_OP, _POSITION, _MESSAGE = "_cdc_op", "_cdc_position", "_cdc_message"
_UNREAD_OP = "unread"

FROM_DEBEZIUM: Mapping[str, Any] = MappingProxyType(
    {
        "sequence_by": _POSITION,
        "apply_as_deletes": f"{_OP} = 'd'",
        "apply_as_truncates": f"{_OP} = 't'",
        "present_columns": PRESENT,
        "message_column": _MESSAGE,
        "except_column_list": (_OP, _POSITION),
    }
)
"""The arguments of `apply_changes` for rows from `debezium_changes`."""

Connector = Literal["postgresql", "mysql", "sqlserver", "oracle", "mongodb"]

# The fields of `source` with an event's position in its database's log.
POSITIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": {"lsn": "bigint"},
        "mysql": {"file": "string", "pos": "bigint", "row": "int"},
        "sqlserver": {"commit_lsn": "string", "change_lsn": "string", "event_serial_no": "bigint"},
        "oracle": {"scn": "decimal(38,0)"},
        "mongodb": {"ts_ms": "bigint", "ord": "int"},
    }
)

# For each type, a value below all positions.
_BEFORE_ALL: Mapping[str, Any] = MappingProxyType(
    {"string": "", "bigint": -1, "int": -1, "decimal(38,0)": -1}
)

# For these databases, a snapshot's row has the position at which the snapshot was taken. For the
# others, its position may be above that of a change which the row lacks: PostgreSQL and Oracle
# number a change when it is made and not when it is committed, Debezium leaves the number out of
# incremental snapshots of PostgreSQL, and for MongoDB it may be the time at which the row was sent.
_SNAPSHOTS_HAVE_POSITIONS = ("mysql", "sqlserver")

# Fields that do not order the changes of one position as the database made them. The offset does,
# and these get a value above all others: changes come after those that earlier releases applied.
# MySQL's `row` starts again in each event of the log, and all events of a compressed transaction
# have the position of the whole (binlog_transaction_compression). SQL Server does not number the
# changes of a transaction in their order: `change_lsn` is its `__$seqval`, and the connector sends
# them by `__$command_id`, which it leaves out of `source`. Of Oracle, no field is taken: `txSeq`
# starts again in each transaction of an SCN.
_ORDERED_BY_OFFSET: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mysql": {"row": 2**31 - 1},
        "sqlserver": {"change_lsn": "~", "event_serial_no": 2**63 - 1},
    }
)

_SNAPSHOTS = (
    "true",
    "first",
    "first_in_data_collection",
    "last_in_data_collection",
    "last",
    "incremental",
)

_FILES_IN_INNODB = ".ibb"
_NO_POSITION = (
    " is of a binary log in InnoDB, whose events have no position: set binlog_storage_engine=file."
)


def debezium_changes(  # noqa: PLR0913 - the public options
    envelopes: DataFrame,
    *,
    schema: StructType | str,
    connector: Connector,
    value: str = "value",
    key: str | None = None,
    offset: str | None = "offset",
    time_unit: TimeUnit | Mapping[str, TimeUnit] = "micros",
    unavailable: str = UNAVAILABLE,
    rescues: bool = False,
    epoch: int | Column = 0,
) -> DataFrame:
    """Convert the envelopes to rows of the table whose changes they are.

    >>> rows = debezium_changes(kafka, schema="id INT, name STRING", connector="postgresql")
    >>> deltaweave.apply_changes(spark, target, rows, keys=["id"], **FROM_DEBEZIUM)

    Args:
        envelopes: One envelope in each row, e.g. what Spark reads from a Kafka topic.
        schema: Columns and types of the table. In JSON, numbers, decimals, dates as days, times,
            binary in base64, and nested types as JSON are converted to these types; a value that
            cannot be converted is an error. Messages with their Connect schema say what times
            count and how decimals are written. Without it, see `time_unit`, and let the connector
            send decimals as strings (`decimal.handling.mode=string`).
        connector: The database the events come from, whose log position orders them.
        value: Column of the envelope: a string, its bytes, or a struct.
        key: Column of Kafka's key, for MongoDB: a delete has its document's `_id` there alone.
        offset: Column that orders events of the same position, such as those of a snapshot, of
            one statement or of a compressed transaction; None if there is none.
        time_unit: What times count since 1970 if messages come without their Connect schema:
            `millis`, `micros` or `nanos`, for all columns, or by column (the others count
            `micros`); also for times within a column's values. By default, connectors send times
            with up to 3 digits of a second in `millis`, with up to 6 in `micros`, and with more in
            `nanos`; with `time.precision.mode=connect`, all are in `millis`.
        unavailable: The connector's `unavailable.value.placeholder`. It is recognized in every form
            that Debezium gives it; in another form, the message is an error that says where it is.
        rescues: Whether a message that cannot be read is a row that says so, for the `rescued` of
            `apply_changes`: its position is null, and so are values that cannot be read. By default
            it is an error when the rows are evaluated.
        epoch: The number of the log, or a condition of the envelopes' columns that gives it. A log
            whose positions start over gets a greater one, and its changes come after all of the log
            before: after a failover, a promotion, RESET MASTER, a move to another cluster, or with
            a topic that was made again.

    Returns:
        The columns of `schema`; `_cdc_op` (string); `_cdc_present` (array of strings, null for
        all); `_cdc_position`, a struct of `epoch`, the position, the offset, `changed_at`
        (timestamp) and `is_snapshot` (boolean); and `_cdc_message`, a struct of strings: `place`
        (where the message is), `problem` (what is wrong with it, null if nothing is) and `event`
        (its text); and of arrays of columns: `absent`, those that it does not have (null for
        MongoDB's messages and decoded ones), and `cut`, times that lost digits below the
        microsecond, which keys may not.

    Raises:
        StatementError: There is no such connector, time unit or column, a column's name is taken,
            or `unavailable` is empty.
    """
    check_choice("connector", connector, POSITIONS, table=None, operation="reading changes")
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(wanted, StructType)
    units = _units(time_unit, wanted)
    _check_names(envelopes, wanted, [value, offset, key])
    messages, placeholder = Messages(envelopes, value, offset, key), Placeholder.of(unavailable)
    if connector == "mongodb":
        rows = rows_of_documents(messages, wanted, placeholder, units)
    elif isinstance(envelopes.schema[value].dataType, StructType):
        rows = rows_of_structs(messages, wanted, placeholder, units)
    else:
        rows = rows_of_json(messages, wanted, placeholder, units)
    unread = F.coalesce(rows.unread, without_position(connector, messages.location))
    rows = replace(rows, unread=unread)
    source = rows.frame.schema[SOURCE].dataType
    event_position = position(
        connector,
        source if isinstance(source, StructType) else None,
        epoch if isinstance(epoch, Column) else F.lit(epoch),
        None if offset is None else column(offset),
    )
    present = F.array_compact(
        F.array(*[F.when(~is_missing, F.lit(name)) for name, is_missing in rows.missing.items()])
    )
    is_delete = F.col(OPERATION) == "d"
    is_whole = is_delete | (F.size(present) == len(wanted))
    problem = rows.problem if rescues else F.lit(None).cast("string")
    if rescues:
        # Without a position, the row is not applied even where its problem is overlooked.
        event_position = F.when(problem.isNull(), event_position)
        kind = F.when(rows.unread.isNull(), F.col(OPERATION)).otherwise(F.lit(_UNREAD_OP))
    else:
        kind = or_error(F.col(OPERATION), rows.unread)

    def checked(read: ReadValue) -> Column:
        # Only the key of a deleted row counts, and a key that cannot be read is null.
        return read.value if rescues else or_error(read.value, F.when(~is_delete, read.problem))

    return rows.frame.select(
        *[checked(read).alias(name) for name, read in rows.columns.items()],
        kind.alias(_OP),
        event_position.alias(_POSITION),
        F.when(~is_whole & (F.col(OPERATION) != "t"), present).alias(PRESENT),
        _message(messages, problem, rows).alias(_MESSAGE),
    )


def _message(messages: Messages, problem: Column, rows: EnvelopeRows) -> Column:
    """Build the struct of where a message is, its problem, its text, and columns by their state."""
    absent = F.lit(None) if rows.absent is None else rows.absent
    cut = F.array(*[F.when(is_cut, F.lit(name)) for name, is_cut in rows.cut.items()])
    return F.struct(
        messages.location.alias("place"),
        problem.alias("problem"),
        messages.text.alias("event"),
        absent.cast("array<string>").alias("absent"),
        F.array_compact(cut).cast("array<string>").alias("cut"),
    )


def _check_names(envelopes: DataFrame, wanted: StructType, needed: Sequence[str | None]) -> None:
    """Raise a StatementError if columns are missing, or have names that are taken."""
    names = (*wanted.names, *envelopes.columns)
    taken = [name for name in names if name.lower().startswith(PREFIX)]
    if taken:
        raise StatementError(
            f"column names that begin with {PREFIX} are taken: {', '.join(taken)}.",
            operation="reading changes",
            hint="Rename them in what is given to debezium_changes.",
        )
    for name in filter(None, needed):
        if name not in envelopes.columns:
            raise StatementError(
                f"the envelopes have no column {name}.",
                operation="reading changes",
                hint=f"They have {', '.join(envelopes.columns)}.",
            )


def _units(
    time_unit: TimeUnit | Mapping[str, TimeUnit], wanted: StructType
) -> Mapping[str, TimeUnit]:
    """Return what times count, for every column.

    Raises:
        StatementError: There is no such unit, or a column is no time.
    """
    given = time_unit if isinstance(time_unit, Mapping) else {}
    for unit in given.values() if isinstance(time_unit, Mapping) else [time_unit]:
        check_choice("time_unit", unit, get_args(TimeUnit), table=None, operation="reading changes")
    times = [f.name for f in wanted if holds_type(f.dataType, lambda part: isinstance(part, TIMES))]
    others = [name for name in given if name not in times]
    if others:
        raise StatementError(
            f"time_unit names {', '.join(others)}, which is no TIMESTAMP in schema.",
            operation="reading changes",
            hint=f"Times are {', '.join(times) or 'none of the columns'}.",
        )
    every: TimeUnit = "micros" if isinstance(time_unit, Mapping) else time_unit
    return {name: given.get(name, every) for name in wanted.names}


def position(
    connector: Connector, source: StructType | None, epoch: Column, offset: Column | None
) -> Column:
    """Return the position of an event; only rows of snapshots may lack parts of it.

    The time and what follows it are behind the position and the offset, so that they decide over
    nothing.

    Args:
        connector: The database the event comes from.
        source: The fields of `source`; None if it is a map.
        epoch: The number of the log.
        offset: Orders events of the same position, or None.
    """
    is_snapshot = _is_of_snapshot(source)
    fields = [epoch.cast("int").alias(EPOCH)]
    for field, data_type in POSITIONS[connector].items():
        at = F.col(SOURCE)[field].cast(data_type)
        if (connector, field) == ("mysql", "file"):
            at = _sortable_name(at)
        before_all = F.lit(_BEFORE_ALL[data_type]).cast(data_type)
        at_snapshot = (
            F.coalesce(at, before_all) if connector in _SNAPSHOTS_HAVE_POSITIONS else before_all
        )
        if offset is not None and field in _ORDERED_BY_OFFSET.get(connector, ()):
            after_all = F.lit(_ORDERED_BY_OFFSET[connector][field]).cast(data_type)
            at = F.when(at.isNotNull(), after_all)
        fields.append(F.when(is_snapshot, at_snapshot).otherwise(at).alias(field))
    if offset is not None:
        fields.append(offset.cast("bigint").alias("offset"))
    fields += [
        _changed_at(source).alias(CHANGED_AT),
        F.coalesce(is_snapshot, F.lit(False)).alias(IS_SNAPSHOT),
    ]
    if connector == "mysql":
        server = _optional(source, SERVER_ID, "bigint")
        fields.append(F.coalesce(server, F.lit(-1)).alias(SERVER_ID))
    return F.struct(*fields)


def _is_of_snapshot(source: StructType | None) -> Column:
    """Return whether a snapshot read the row, also if a transform changed its `op`."""
    # The transform ReadToInsertEvent turns a snapshot's reads into inserts.
    snapshot = _optional(source, "snapshot", "string")
    is_insert = (F.col(OPERATION) == "c") & F.lower(snapshot).isin(*_SNAPSHOTS)
    return (F.col(OPERATION) == "r") | F.coalesce(is_insert, F.lit(False))


def without_position(connector: Connector, location: Column) -> Column:
    """Return what is wrong with a message that its log does not order (string), or null."""
    if connector != "mysql":
        return F.lit(None).cast("string")
    problem = F.concat(F.lit("the message at "), location, F.lit(_NO_POSITION))
    return F.when(F.col(SOURCE)["file"].endswith(_FILES_IN_INNODB), problem)


def _changed_at(source: StructType | None) -> Column:
    """Return when a change was committed, or a snapshot read its row; 1970 if unknown.

    Connectors before Debezium 2.6 have milliseconds alone.
    """
    millis = _optional(source, "ts_ms", "bigint")
    micros = F.coalesce(_optional(source, "ts_us", "bigint"), millis * 1000, F.lit(0))
    return F.timestamp_micros(micros)


def _optional(source: StructType | None, field: str, data_type: str) -> Column:
    is_there = source is None or field in source.names
    return (F.col(SOURCE)[field] if is_there else F.lit(None)).cast(data_type)


def _sortable_name(file: Column) -> Column:
    """Return a binary log's name so that names are ordered as their numbers are.

    The servers write at least six digits. A name with more of them gets a `~`, which comes after
    all digits, for each of these: `bin.~1000000` comes after `bin.999999`. Shorter names stay as
    they are, because tables have them.
    """
    digits = F.regexp_extract(file, r"(\d+)$", 1)
    more = F.greatest(F.length(digits) - 6, F.lit(0))
    stem = F.substring(file, F.lit(1), F.length(file) - F.length(digits))
    return F.concat(stem, F.repeat(F.lit("~"), more), digits)
