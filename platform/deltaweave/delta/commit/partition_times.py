"""Partitions by time, in the hour that comes twice a year: their values, as the written files say.

Spark names the directory of a partition by the wall-clock time of the session's zone, and Delta
takes the partition's value from that name. Of two times with the same name it takes the first, so
that rows of 01:30 UTC would come back as rows of 00:30 UTC. The files hold the column too (unless
`delta.writePartitionColumnsToParquet` is off), and each is of one value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.uncommitted_files import OwnFiles, escaped
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import actions
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITTEN = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(Z?)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def with_true_times(rows: DataFrame, own_files: OwnFiles, written: JavaObject) -> JavaObject:
    """The actions of a write, with the partitions' true times in those of its new files.

    Costs nothing but a look at the schema where no partition column is a TIMESTAMP or the session's
    zone has one offset for all times; a job where a time is one that comes twice.

    Args:
        rows: What was written.
        own_files: The files of the write.
        written: Scala Seq of its actions; those of other files stay as they are.

    Raises:
        StatementError: There is such a time, and the files do not hold the column.
    """
    columns = _columns_of_times(own_files.transaction)
    zone = _zone_with_changes(rows) if columns else None
    if zone is None:
        return written
    doubtful = {
        _name(action): (index, action)
        for index, action in _actions(rows.sparkSession, written)
        if _name(action).startswith(own_files.prefix)
        and any(comes_twice(action["partitionValues"].get(name), zone) for name in columns.values())
    }
    if not doubtful:
        return written
    table = str(own_files.log.dataPath().toString())
    locations = [_location(table, action) for _, action in doubtful.values()]
    times = _times(rows.sparkSession, locations, list(columns.values()))
    view = jvm_.jvm(rows.sparkSession)
    for name, (index, action) in doubtful.items():
        before = action["partitionValues"]
        for shown, stored in columns.items():
            if before.get(stored) and times[name][stored] is None:
                raise _refused(table, shown, zone)
        true = {stored: times[name][stored] for stored in columns.values()}
        (changed,) = actions.from_json(
            view, _kind(action), [{**action, "partitionValues": {**before, **true}}]
        )
        written = written.updated(index, changed)
    return written


def comes_twice(value: str | None, zone: str) -> bool:
    """Whether another time has the same wall-clock time in a zone; true where this is not known.

    Args:
        value: A partition value, in UTC (`2026-10-25T01:30:00.000000Z`) or the zone's time.
        zone: The zone's name.

    >>> comes_twice("2026-10-25T00:30:00.000000Z", "Europe/Berlin")
    True
    >>> comes_twice("2026-10-25 01:30:00", "Europe/Berlin")
    False
    """
    if value is None:
        return False
    parts = _WRITTEN.fullmatch(value)
    if parts is None:
        return True  # a year of five digits
    try:
        of_zone = ZoneInfo(zone)
        local = datetime(*map(int, parts.groups()[:6]))  # type: ignore[arg-type]
        if parts[8]:
            local = local.replace(tzinfo=timezone.utc).astimezone(of_zone)
        first, second = (
            local.replace(tzinfo=of_zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1)
        )
    except (KeyError, ValueError, OverflowError):
        return True  # a zone that only Java knows, or a time at the ends of Python's
    return first != second


def _columns_of_times(transaction: JavaObject) -> dict[str, str]:
    """The partition columns of times with a zone: how files and the log call each, by name."""
    metadata = transaction.metadata()
    shown = json.loads(metadata.partitionSchema().json())["fields"]
    stored = json.loads(metadata.physicalPartitionSchema().json())["fields"]
    return {
        field["name"]: physical["name"]
        for field, physical in zip(shown, stored, strict=True)
        if field["type"] == "timestamp"
    }


def _zone_with_changes(rows: DataFrame) -> str | None:
    """The zone by whose time directories were named; None if its offset never changes."""
    # The writer's session is that of the rows' plan, which need not be the one of their DataFrame.
    zone = str(rows._jdf.sparkSession().sessionState().conf().sessionLocalTimeZone())
    util = jvm_.jvm(rows.sparkSession).org.apache.spark.sql.catalyst.util
    of_java = jvm_.singleton(util, "DateTimeUtils").getZoneId(zone)
    return None if of_java.getRules().isFixedOffset() else zone


def _actions(spark: SparkSession, written: JavaObject) -> Iterator[tuple[int, actions.Action]]:
    view = jvm_.jvm(spark)
    for begin in range(0, int(written.size()), actions.FEW):
        piece = written.slice(begin, begin + actions.FEW)
        yield from enumerate(actions.to_json(view, piece), begin)


def _name(action: actions.Action) -> str:
    return PurePosixPath(unquote(action.get("path", ""))).name


def _location(table: str, action: actions.Action) -> str:
    return escaped(f"{table.rstrip('/')}/{unquote(action['path'])}")


def _kind(action: actions.Action) -> str:
    return "actions.AddFile" if "modificationTime" in action else "actions.AddCDCFile"


def _times(
    spark: SparkSession, locations: list[str], names: list[str]
) -> dict[str, dict[str, str | None]]:
    """The times in these files by the files' names, as the log has them; one job."""
    schema = StructType([StructField(name, TimestampType()) for name in names])
    of_files = spark.read.schema(schema).parquet(*locations)
    micros = [F.max(F.unix_micros(column(name))).alias(f"_{at}") for at, name in enumerate(names)]
    # As many rows as files in the hour that comes twice.
    found = of_files.groupBy(F.col("_metadata.file_name").alias("file")).agg(*micros).collect()
    return {
        row["file"]: {name: _in_log(row[f"_{at}"]) for at, name in enumerate(names)}
        for row in found
    }


def _in_log(micros: int | None) -> str | None:
    """A time in microseconds since 1970 as Delta's protocol writes it, in UTC.

    See its section "Partition Value Serialization".
    """
    if micros is None:
        return None
    try:
        time = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None  # a year beyond 9999, which is refused
    return f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"


def _refused(table: str, name: str, zone: str) -> StatementError:
    return StatementError(
        f"partition column {name!r} has times of an hour that comes twice in {zone}, and Delta "
        "would take one for the other, because its files do not hold the column or its year is "
        "beyond 9999.",
        table=table,
        operation="writing",
        state="Nothing was committed.",
        hint="Set spark.sql.session.timeZone to UTC, or the table's property "
        "delta.writePartitionColumnsToParquet to true.",
    )
