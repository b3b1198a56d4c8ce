"""Partitions by TIMESTAMP in the hour that comes twice a year: their values, and what moves them.

Spark names the directory of a partition by TIMESTAMP by the wall-clock time of the session's zone,
and Delta takes the partition's value from that name: of two times with one name, the first. It
would take rows of the second such hour for rows of the first. Each of its files is of one value,
and those of Delta 4.4 hold the column too, unless `delta.writePartitionColumnsToParquet` is off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from deltaweave.delta.commit.written_files import OwnFiles, escaped, leave_out_compaction
from deltaweave.delta.jvm import DeltaMetadata, JavaObject, Jvm, grouped, refuse_lenient_reads
from deltaweave.delta.log import STRICTLY, TableSnapshot, actions
from deltaweave.delta.releases import files_may_hold_partition_columns, partition_times_are_kept
from deltaweave.errors import NOTHING_WRITTEN, StatementError
from deltaweave.identifiers import column, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Delta writes years beyond 9999 with a sign; east of Greenwich, the year 1 begins in the year 0.
# Python has no such years: they are left as Delta writes them.
_VALUE = re.compile(r"((?!0000)(\d{4})-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z?)")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400


@dataclass(frozen=True)
class RepeatedHours:
    """A period that comes twice: `[at - back, at)` and `[at, at + back)`, in seconds since 1970.

    Attributes:
        at: When the clocks are set back.
        back: By how many seconds.
        offset: How far the zone is ahead of UTC afterwards, in seconds.
    """

    at: int
    back: int
    offset: int

    def first(self, value: PartitionTime) -> int | None:
        """Return the first time of the value's wall-clock time, if that comes twice.

        A value in UTC must be the first time, as Delta writes it.
        """
        first = value.seconds if value.is_utc else value.seconds - self.offset - self.back
        return first if self.at - self.back <= first < self.at else None

    def is_second(self, value: PartitionTime) -> bool:
        """Return whether a value in UTC is in the second period."""
        return value.is_utc and self.at <= value.seconds < self.at + self.back


@dataclass(frozen=True)
class PartitionTime:
    """A partition value by TIMESTAMP (Delta protocol, section "Partition Value Serialization").

    Attributes:
        year: Its year.
        seconds: Seconds since 1970, of UTC or of the zone's wall clock.
        fraction: Microseconds.
        is_utc: Whether it is in UTC.
    """

    year: int
    seconds: int
    fraction: int
    is_utc: bool

    @classmethod
    def of(cls, value: str | None) -> PartitionTime | None:
        """Parse a value of the log; None for NULL and for years that Python lacks.

        >>> PartitionTime.of("1970-01-01T00:01:00.5Z")
        PartitionTime(year=1970, seconds=60, fraction=500000, is_utc=True)
        """
        parts = _VALUE.fullmatch(value or "")
        if parts is None:
            return None
        day, year, time, fraction, utc = parts.groups()
        seconds = (datetime.fromisoformat(f"{day} {time}") - _EPOCH) // timedelta(seconds=1)
        return cls(int(year), seconds, int((fraction or "").ljust(6, "0")), bool(utc))

    def at(self, seconds: int) -> str:
        """Write another time with this fraction of a second, in UTC as the log has it.

        >>> PartitionTime(1, 0, 5, True).at(-62135596800)
        '0001-01-01T00:00:00.000005Z'
        """
        return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{self.fraction:06}Z"


def repeated_hours(
    spark: SparkSession, session: JavaObject, values: Iterable[str | None]
) -> list[RepeatedHours]:
    """Return the hours that come twice in a session's zone, in the years of partition values.

    A few calls of the JVM for each year, whose rules name the directories.

    Args:
        session: The JVM's session that writes; it may be another one.
    """
    jvm = Jvm.of(spark)
    rules = jvm.zone_rules(session)
    if rules.isFixedOffset():
        return []
    times = map(PartitionTime.of, values)
    found: dict[int, RepeatedHours] = {}
    for year in sorted({time.year for time in times if time is not None}):
        begin = (datetime(year, 1, 1) - _EPOCH).days * _DAY
        instant = jvm.java.time.Instant.ofEpochSecond(begin - 2 * _DAY)
        while (change := rules.nextTransition(instant)) is not None:
            instant = change.getInstant()
            if (at := int(instant.getEpochSecond())) > begin + 368 * _DAY:
                break
            if change.isOverlap():
                back = -int(change.getDuration().getSeconds())
                found[at] = RepeatedHours(at, back, int(change.getOffsetAfter().getTotalSeconds()))
    return list(found.values())


_KINDS = ("AddFile", "AddCDCFile")


def check_partition_times(
    spark: SparkSession, metadata: DeltaMetadata, *, table: str, operation: str
) -> None:
    """Refuse to write a table where Delta's writer would change times that are partition values.

    Raises:
        StatementError: It is partitioned by a TIMESTAMP, and the running Delta and the zones of
            the session and the JVM do not keep all times.
    """
    if partition_times_are_kept(spark) or not _columns_of_times(metadata):
        return
    raise StatementError(
        "it is partitioned by a TIMESTAMP, and this release of Delta may take a time of the "
        "session's zone for another one.",
        table=table,
        operation=operation,
        state=NOTHING_WRITTEN,
        hint="Take Delta 4.4, which has a jar for each Spark; or set spark.sql.session.timeZone "
        "to UTC, and -Duser.timezone=UTC in spark.driver.extraJavaOptions and "
        "spark.executor.extraJavaOptions.",
    )


def with_true_times(rows: DataFrame, own_files: OwnFiles, written: JavaObject) -> JavaObject:
    """Put the partitions' true times into a write's actions for its new files.

    Costs nothing but a look at the schema where no partition column is a TIMESTAMP or the session's
    zone has one offset for all times; a job where a time is one that comes twice. Delta does not
    compact after such a commit, since it would take the times for others again.

    Args:
        written: Scala Seq of its actions; those of other files stay as they are.

    Raises:
        StatementError: There is such a time, and the files do not hold the column.
    """
    spark = rows.sparkSession
    columns = _columns_of_times(own_files.transaction.metadata())
    if not columns:
        return written
    new = {kind: written.filter(_is_a(spark, kind)) for kind in _KINDS}
    firsts = {
        kind: _doubtful(rows, own_files.prefix, each, list(columns.values()))
        for kind, each in new.items()
    }
    if not any(firsts.values()):
        return written
    leave_out_compaction(spark, own_files.transaction)
    table = str(own_files.log.dataPath().toString())
    for kind, doubtful in firsts.items():
        for index, action in _corrected(spark, table, doubtful, columns).items():
            (changed,) = actions.from_json(spark, f"actions.{kind}", [action])
            new[kind] = new[kind].updated(index, changed)
        written = written.filterNot(_is_a(spark, kind))
    return new["AddFile"].appendedAll(new["AddCDCFile"]).appendedAll(written)


def rewritable_partitions(table: TableSnapshot) -> str:
    """Return a WHERE for commands that rewrite files, without the hours whose rows they would move.

    Empty if there are none. OPTIMIZE and REORG read and name partitions as any write of Delta does.

    Raises:
        StatementError: See `check_partition_times`.
        SettingError: Spark passes over files that it cannot read.
    """
    metadata = table.snapshot.metadata()
    refuse_lenient_reads(table.spark, table.data_path, "rewriting files")
    check_partition_times(table.spark, metadata, table=table.data_path, operation="rewriting files")
    conditions = []
    for shown, stored in _columns_of_times(metadata).items():
        value = F.col("partitionValues")[stored].alias("value")
        # At most as many rows as partitions, which the log lists anyway.
        values = [row.value for row in table.files.select(value).distinct().collect()]
        hours = repeated_hours(table.spark, table.spark._jsparkSession, values)
        times = [time for each in values if (time := PartitionTime.of(each)) is not None]
        second = [time for time in times if any(each.is_second(time) for each in hours)]
        if second:
            micros = (time.seconds * 1_000_000 + time.fraction for time in second)
            listed = ", ".join(f"timestamp_micros({each})" for each in sorted(micros))
            conditions.append(f"({quoted(shown)} IS NULL OR {quoted(shown)} NOT IN ({listed}))")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _columns_of_times(metadata: DeltaMetadata) -> dict[str, str]:
    """Map the partition columns of times with a zone to their names in files and the log."""
    fields = json.loads(metadata.partitionSchema().json())["fields"]
    stored = json.loads(metadata.physicalPartitionSchema().json())["fields"]
    return {
        field["name"]: physical["name"]
        for field, physical in zip(fields, stored, strict=True)
        if field["type"] == "timestamp"
    }


def _is_a(spark: SparkSession, kind: str) -> JavaObject:
    jvm = Jvm.of(spark)
    return jvm.instances_of(jvm.class_of_delta(f"org.apache.spark.sql.delta.actions.{kind}"))


_Doubtful = dict[int, tuple[actions.LogAction, dict[str, tuple[RepeatedHours, int]]]]
"""Actions by their place, with the hours and the first time of each of their doubtful values."""


def _doubtful(rows: DataFrame, prefix: str, added: JavaObject, names: Sequence[str]) -> _Doubtful:
    """Return the actions of own files whose partition has a time that comes twice."""
    spark, doubtful = rows.sparkSession, _Doubtful()
    # The writer's session is that of the rows' plan, which need not be the one of their DataFrame.
    session = rows._jdf.sparkSession()
    for begin in range(0, int(added.size()), actions.FEW):
        piece = actions.to_json(spark, added.slice(begin, begin + actions.FEW))
        own = {
            index: action
            for index, action in enumerate(piece, begin)
            if _name(action["path"]).startswith(prefix)
        }
        values = {action["partitionValues"].get(name) for action in own.values() for name in names}
        hours = repeated_hours(spark, session, values)
        for index, action in own.items():
            firsts = {
                name: (each, first)
                for name in names
                if (time := PartitionTime.of(action["partitionValues"].get(name))) is not None
                for each in hours
                if (first := each.first(time)) is not None
            }
            if firsts:
                doubtful[index] = (action, firsts)
    return doubtful


def _corrected(
    spark: SparkSession, table: str, doubtful: _Doubtful, columns: Mapping[str, str]
) -> dict[int, actions.LogAction]:
    """Return the actions whose files are of the second time, with that time; in one job."""
    if not doubtful:
        return {}
    locations = [
        f"{table.rstrip('/')}/{unquote(action['path'])}" for action, _ in doubtful.values()
    ]
    held = _times(spark, locations, list(columns.values()))
    changed = {}
    for index, (action, firsts) in doubtful.items():
        values = dict(action["partitionValues"])
        for name, (hours, first) in firsts.items():
            micros = held.get(_name(action["path"]), {}).get(name)
            if micros is None:
                column = next(each for each, stored in columns.items() if stored == name)
                raise _refused(spark, table, column)
            # The file may hold fewer digits than the value.
            if micros // 1_000_000 >= first + hours.back // 2:
                time = PartitionTime.of(values[name])
                assert time is not None
                values[name] = time.at(first + hours.back)
        if values != action["partitionValues"]:
            changed[index] = {**action, "partitionValues": values}
    return changed


def _name(path: str) -> str:
    return PurePosixPath(unquote(path)).name


def _times(
    spark: SparkSession, locations: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, int | None]]:
    """Read the times in these files, in µs since 1970, by file name."""
    schema = StructType([StructField(name, TimestampType()) for name in names])
    of_files = spark.read.options(**STRICTLY).schema(schema).parquet(*map(escaped, locations))
    micros = [F.max(F.unix_micros(column(name))).alias(f"_{at}") for at, name in enumerate(names)]
    # As many rows as files in the hours that come twice.
    found = grouped(of_files, [F.col("_metadata.file_name").alias("file")], micros).collect()
    return {row["file"]: {name: row[f"_{at}"] for at, name in enumerate(names)} for row in found}


def _refused(spark: SparkSession, table: str, name: str) -> StatementError:
    hint = "Set spark.sql.session.timeZone to UTC"
    if files_may_hold_partition_columns(spark):
        hint += ", or the table's property delta.writePartitionColumnsToParquet to true"
    return StatementError(
        f"partition column {name!r} has times of an hour that comes twice in the session's zone, "
        "and Delta would take one for the other: its files do not hold the column.",
        table=table,
        operation="writing",
        state="Nothing was committed.",
        hint=f"{hint}.",
    )
