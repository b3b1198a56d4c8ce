"""The position of an event in its database's log, which orders events."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave.changes.debezium.envelopes import OPERATION, SOURCE
from deltaweave.changes.epochs import CHANGED_AT, EPOCH, IS_SNAPSHOT, SERVER_ID

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

# It starts again in each event of the log, and all events of a compressed transaction have the
# position of the whole (binlog_transaction_compression). The offset orders them as the log does. So
# it does with Oracle's changes of one SCN: `txSeq` starts again in each transaction.
_NUMBERED_AGAIN = ("mysql", "row")

# Tables have rows that earlier releases numbered, and changes of the same position come after them.
_AFTER_ALL_ROWS = 2**31 - 1

_FILES_IN_INNODB = ".ibb"
_NO_POSITION = (
    " is of a binary log in InnoDB, whose events have no position: set binlog_storage_engine=file."
)


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
    is_snapshot = F.col(OPERATION) == "r"
    fields = [epoch.cast("int").alias(EPOCH)]
    for field, data_type in POSITIONS[connector].items():
        at = F.col(SOURCE)[field].cast(data_type)
        if (connector, field) == ("mysql", "file"):
            at = _in_order(at)
        before_all = F.lit(_BEFORE_ALL[data_type]).cast(data_type)
        of_row = (
            F.coalesce(at, before_all) if connector in _SNAPSHOTS_HAVE_POSITIONS else before_all
        )
        if (connector, field) == _NUMBERED_AGAIN and offset is not None:
            at = F.when(at.isNotNull(), _AFTER_ALL_ROWS)
        fields.append(F.when(is_snapshot, of_row).otherwise(at).alias(field))
    if offset is not None:
        fields.append(offset.cast("bigint").alias("offset"))
    fields += [
        _time(source).alias(CHANGED_AT),
        F.coalesce(is_snapshot, F.lit(False)).alias(IS_SNAPSHOT),
    ]
    if connector == "mysql":
        server = _optional(source, SERVER_ID, "bigint")
        fields.append(F.coalesce(server, F.lit(-1)).alias(SERVER_ID))
    return F.struct(*fields)


def without_position(connector: Connector, place: Column) -> Column:
    """Return what is wrong with a message that its log does not order (string), or null."""
    if connector != "mysql":
        return F.lit(None).cast("string")
    problem = F.concat(F.lit("the message at "), place, F.lit(_NO_POSITION))
    return F.when(F.col(SOURCE)["file"].endswith(_FILES_IN_INNODB), problem)


def _time(source: StructType | None) -> Column:
    """Return when a change was committed, or a snapshot read its row; 1970 if unknown.

    Connectors before Debezium 2.6 have milliseconds alone.
    """
    millis = _optional(source, "ts_ms", "bigint")
    micros = F.coalesce(_optional(source, "ts_us", "bigint"), millis * 1000, F.lit(0))
    return F.timestamp_micros(micros)


def _optional(source: StructType | None, field: str, data_type: str) -> Column:
    is_there = source is None or field in source.names
    return (F.col(SOURCE)[field] if is_there else F.lit(None)).cast(data_type)


def _in_order(file: Column) -> Column:
    """Return a binary log's name so that names are ordered as their numbers are.

    The servers write at least six digits. A name with more of them gets a `~`, which comes after
    all digits, for each of these: `bin.~1000000` comes after `bin.999999`. Shorter names stay as
    they are, because tables have them.
    """
    digits = F.regexp_extract(file, r"(\d+)$", 1)
    more = F.greatest(F.length(digits) - 6, F.lit(0))
    stem = F.substring(file, F.lit(1), F.length(file) - F.length(digits))
    return F.concat(stem, F.repeat(F.lit("~"), more), digits)
