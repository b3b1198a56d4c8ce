"""Partitions by TIMESTAMP in the hour that comes twice a year: their values, and what moves them.

Delta would take rows of the second such hour for rows of the first (`delta.log.repeated_hours`).
Each of its files is of one value, and those of Delta 4.4 hold the column too, unless
`delta.writePartitionColumnsToParquet` is off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.compaction import leave_out_compaction
from deltaweave.delta.commit.uncommitted_files import OwnFiles, escaped
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import (
    STRICTLY,
    PartitionTime,
    RepeatedHours,
    TableSnapshot,
    actions,
    hours_that_repeat,
)
from deltaweave.delta.releases import files_may_hold_partition_columns, partition_times_are_kept
from deltaweave.errors import StatementError
from deltaweave.identifiers import column, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = ("AddFile", "AddCDCFile")


def check_partition_times(
    spark: SparkSession, metadata: JavaObject, *, table: str, operation: str
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
        state="Nothing was written.",
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
        rows: What was written.
        own_files: The files of the write.
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
        kind: _firsts(rows, own_files.prefix, each, list(columns.values()))
        for kind, each in new.items()
    }
    if not any(firsts.values()):
        return written
    leave_out_compaction(spark, own_files.transaction)
    table = str(own_files.log.dataPath().toString())
    for kind, doubtful in firsts.items():
        for index, action in _told_apart(spark, table, doubtful, columns).items():
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
    jvm_.refuse_lenient_reads(table.spark, table.data_path, "rewriting files")
    check_partition_times(table.spark, metadata, table=table.data_path, operation="rewriting files")
    conditions = []
    for shown, stored in _columns_of_times(metadata).items():
        value = F.col("partitionValues")[stored].alias("value")
        # At most as many rows as partitions, which the log lists anyway.
        values = [row.value for row in table.files.select(value).distinct().collect()]
        hours = hours_that_repeat(table.spark, table.spark._jsparkSession, values)
        times = [time for each in values if (time := PartitionTime.of(each)) is not None]
        second = [time for time in times if any(each.is_second(time) for each in hours)]
        if second:
            micros = (time.seconds * 1_000_000 + time.fraction for time in second)
            listed = ", ".join(f"timestamp_micros({each})" for each in sorted(micros))
            conditions.append(f"({quoted(shown)} IS NULL OR {quoted(shown)} NOT IN ({listed}))")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _columns_of_times(metadata: JavaObject) -> dict[str, str]:
    """Map the partition columns of times with a zone to their names in files and the log."""
    shown = json.loads(metadata.partitionSchema().json())["fields"]
    stored = json.loads(metadata.physicalPartitionSchema().json())["fields"]
    return {
        field["name"]: physical["name"]
        for field, physical in zip(shown, stored, strict=True)
        if field["type"] == "timestamp"
    }


def _is_a(spark: SparkSession, kind: str) -> JavaObject:
    return jvm_.instances_of(
        spark, jvm_.class_of_delta(spark, f"org.apache.spark.sql.delta.actions.{kind}")
    )


Doubtful = dict[int, tuple[actions.Action, dict[str, tuple[RepeatedHours, int]]]]
"""Actions by their place, with the hours and the first time of each of their doubtful values."""


def _firsts(rows: DataFrame, prefix: str, added: JavaObject, names: Sequence[str]) -> Doubtful:
    """Return the actions of own files whose partition has a time that comes twice."""
    spark, doubtful = rows.sparkSession, Doubtful()
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
        hours = hours_that_repeat(spark, session, values)
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


def _told_apart(
    spark: SparkSession, table: str, doubtful: Doubtful, columns: Mapping[str, str]
) -> dict[int, actions.Action]:
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
                shown = next(each for each, stored in columns.items() if stored == name)
                raise _refused(spark, table, shown)
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
    found = jvm_.grouped(of_files, [F.col("_metadata.file_name").alias("file")], micros).collect()
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
