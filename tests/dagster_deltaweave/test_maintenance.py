"""Upkeep of real tables: what it does, when it finds nothing to do, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    Definitions,
    build_schedule_context,
)
from pyspark.sql import SparkSession

from dagster_deltaweave import (
    UpkeepPolicy,
    build_upkeep_job,
    build_upkeep_schedule,
    merge_asset,
)
from deltaweave import Table
from deltaweave.delta.jvm import Jvm
from deltaweave.delta.log.snapshot import FileLayout
from tests.dagster_deltaweave.conftest import failure_messages, rows

CUSTOMERS = AssetKey(["sales", "customers"])
ALWAYS = UpkeepPolicy(small_files=2, small_file_fraction=0, deleted_row_fraction=0)


@merge_asset(keys=["id"], key_prefix="sales")
def customers() -> None: ...


def upkeep(resources: dict[str, Any], **arguments: Any) -> Definitions:
    schedule = build_upkeep_schedule(
        name="nightly", tables=[customers], cron_schedule="0 3 * * *", **arguments
    )
    return Definitions(assets=[customers], schedules=[schedule], resources=resources)


def observed(instance: DagsterInstance) -> list[tuple[str | None, Mapping[str, Any]]]:
    """Description and metadata of each observation, oldest first."""
    records = instance.fetch_observations(CUSTOMERS, limit=10, ascending=True).records
    observations = [record.asset_observation for record in records]
    return [
        (each.description, {key: entry.value for key, entry in each.metadata.items()})
        for each in observations
        if each is not None
    ]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    """Three files of a row; one is marked deleted in a file of two."""
    table = Table(spark, str(tmp_path / "tables" / "sales" / "customers"))
    table.create_if_missing("id BIGINT", properties={"delta.enableDeletionVectors": "true"})
    for start, end in ((0, 1), (1, 2), (2, 4)):
        one = spark.range(start, end).coalesce(1)
        one.write.format("delta").mode("append").save(table.path_or_name)
    spark.sql(f"DELETE FROM delta.`{table.path_or_name}` WHERE id = 3")
    return table


@pytest.mark.minutes
def test_upkeep_compacts_and_purges_and_kept_versions_stay_readable(
    table: Table, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    """It compacts small files and purges rows that are marked deleted."""
    nightly = upkeep(resources, policy=ALWAYS).resolve_job_def("nightly_job")
    result = nightly.execute_in_process(instance=instance)
    hourly = upkeep(resources, policy=ALWAYS, operations=["optimize"])
    again = hourly.resolve_job_def("nightly_job").execute_in_process(instance=instance)

    assert result.success
    assert again.success
    compacted, unpurged, unbounded, with_statistics, unindexed, vacuumed, *second = observed(
        instance
    )
    assert compacted[0] == "OPTIMIZE compacted 3 files into 1: 3 of 3 files were small"
    expected = {
        "upkeep/files": 3,
        "upkeep/small_files": 3,
        "upkeep/deleted_rows": 1,
        "upkeep/deleted_row_fraction": 0.25,
        "upkeep/files_removed": 3,
        "upkeep/files_added": 1,
        "upkeep/rows_purged": 1,
    }
    assert {key: compacted[1][key] for key in expected} == expected
    # OPTIMIZE has left out the deleted row: nothing remains to be purged.
    assert (unpurged[0], unpurged[1]["upkeep/deleted_rows"]) == ("Nothing to purge", 0)
    assert unbounded[0] == "No file with bounds of floating values"
    assert with_statistics[0] == "No file without statistics"
    assert unindexed[0] == "No key index is asked for"
    # Within the retention VACUUM deletes nothing: the newest version and those before are there.
    assert vacuumed[0].endswith(": the table's history has no VACUUM")
    assert vacuumed[1].get("upkeep/files_deleted", 0) == 0
    assert vacuumed[1]["upkeep/retention_hours"] == 168
    assert [each[0] for each in second] == ["Nothing to optimize"]
    assert rows(table) == [(0,), (1,), (2,)]
    assert table.read(version=2).count() == 2
    history = table.spark.sql(f"DESCRIBE HISTORY delta.`{table.path_or_name}`")
    by_operation = {row.operation: row.userMetadata for row in history.collect()}
    assert result.run_id in by_operation["OPTIMIZE"]
    assert by_operation["DELETE"] is None


@pytest.mark.minutes
def test_rows_marked_deleted_are_purged_by_themselves(
    table: Table, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    job = build_upkeep_job(name="purge", tables=[customers], operations=["purge"], policy=ALWAYS)
    defs = Definitions(assets=[customers], jobs=[job], resources=resources)

    assert defs.resolve_job_def("purge").execute_in_process(instance=instance).success

    [(description, numbers)] = observed(instance)
    assert description == "PURGE rewrote 1 file into 1: 1 of 4 rows were marked deleted"
    assert (numbers["upkeep/files_removed"], numbers["upkeep/rows_purged"]) == (1, 1)
    assert table.layout(0).deleted_rows == 0
    assert rows(table) == [(0,), (1,), (2,)]


def without_statistics(table: Table) -> None:
    """Make of the newest commit that of a writer which knows nothing of statistics."""
    log = Path(table.path_or_name) / "_delta_log" / f"{table.version():020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    log.write_text("\n".join(map(json.dumps, actions)))
    for checksum in (log.parent / f".{log.name}.crc", log.with_suffix(".crc")):
        checksum.unlink(missing_ok=True)
    Jvm.of(table.spark).org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.minutes
def test_files_of_other_writers_get_statistics_and_their_keys_are_indexed(
    table: Table, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    table.index_keys("id")
    spark = table.spark
    new = spark.range(10, 13).coalesce(1)
    new.write.format("delta").mode("append").save(table.path_or_name)
    spark.sql(f"DELETE FROM delta.`{table.path_or_name}` WHERE id = 11")
    without_statistics(table)  # of the file in which a row is marked deleted now
    before = table.layout(0)
    job = build_upkeep_job(
        name="known", tables=[customers], operations=["statistics", "index_keys"]
    )
    defs = Definitions(assets=[customers], jobs=[job], resources=resources)

    assert defs.resolve_job_def("known").execute_in_process(instance=instance).success

    assert before.files_without_statistics == 1
    assert [each[0] for each in observed(instance)] == [
        "Computed the statistics of 1 file without any",
        "Indexed id in 1 file",
    ]
    assert table.layout(0).files_without_statistics == 0
    [text] = [r.stats for r in table.files().collect() if '"minValues":{"id":10}' in r.stats]
    statistics = json.loads(text)
    # The file holds row 11 still; its bounds are of all rows that are in it.
    assert (statistics["numRecords"], statistics["tightBounds"]) == (3, False)
    assert statistics["maxValues"] == {"id": 12}
    assert table.row_count() == 5
    assert rows(table) == [(0,), (1,), (10,), (12,), (2,)]  # sorted as text
    commit = spark.sql(f"DESCRIBE HISTORY delta.`{table.path_or_name}` LIMIT 1").first()
    assert commit is not None
    assert commit.operation == "COMPUTE STATS"


@pytest.mark.minutes
def test_recomputed_statistics_are_those_that_the_writer_makes(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, str(tmp_path / "t"))
    table.create_if_missing("p STRING, k INT, s STRUCT<t: TIMESTAMP, v: STRING>", ["p"])
    values = "VALUES ('a b', 1, struct(timestamp'2026-01-02', 'x')), ('é', 2, null)"
    spark.sql(f"INSERT INTO delta.`{table.path_or_name}` {values}")
    written = sorted((row.path, row.stats) for row in table.files().collect())
    without_statistics(table)

    assert table.compute_missing_statistics() == 2
    assert table.compute_missing_statistics() == 0

    assert sorted((row.path, row.stats) for row in table.files().collect()) == written
    assert table.version() == 2


@pytest.mark.minutes
def test_vacuum_is_refused_where_removed_files_are_kept_too_shortly(
    table: Table, resources: dict[str, Any], instance: DagsterInstance
) -> None:
    table.spark.sql(
        f"ALTER TABLE delta.`{table.path_or_name}` "
        "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 hour')"
    )
    policy = UpkeepPolicy(least_retention=timedelta(days=2))
    defs = upkeep(resources, operations=["vacuum"], policy=policy)

    result = defs.resolve_job_def("nightly_job").execute_in_process(
        instance=instance, raise_on_error=False
    )

    message = failure_messages(result)
    assert f"VACUUM of {table.path_or_name} failed: the table keeps removed files for 1:00:00" in (
        message
    )
    assert "No file was deleted." in message
    assert not observed(instance)


def layout(
    files: int, small: int = 0, unclustered: int = 0, rows: int = 100, deleted: int = 0
) -> FileLayout:
    return FileLayout(files, files, small, unclustered, rows, deleted, 0)


@pytest.mark.parametrize(
    ("of_files", "is_clustered", "compacts", "purges"),
    [
        (layout(0, rows=0), False, False, False),  # an empty table
        (layout(20, small=7), False, False, False),  # too few small files
        (layout(100, small=8), False, False, False),  # many, but a small part of all
        (layout(20, small=8), False, True, False),
        (layout(8, unclustered=8), False, False, False),  # no clustering is asked for
        (layout(8, unclustered=1), True, False, False),
        (layout(8, unclustered=2), True, True, False),
        (layout(1, unclustered=1), True, False, False),  # one file is in order
        (layout(4, deleted=9), False, False, False),
        (layout(4, deleted=10), False, False, True),
    ],
)
def test_the_policy_says_when_a_table_needs_upkeep(
    of_files: FileLayout, is_clustered: bool, compacts: bool, purges: bool
) -> None:
    policy = UpkeepPolicy()

    assert (policy.compacting(of_files, is_clustered) is not None) == compacts
    assert (policy.purging(of_files) is not None) == purges


@pytest.mark.parametrize(
    ("last", "vacuums"),
    [
        (None, True),  # never, as far as the history knows
        (datetime(2026, 11, 20, 3, 0, 1, tzinfo=UTC), False),  # a second less than a day
        (datetime(2026, 11, 20, 3, 0, 0, tzinfo=UTC), True),
    ],
)
def test_the_policy_says_how_often_a_table_is_vacuumed(
    last: datetime | None, vacuums: bool
) -> None:
    now = datetime(2026, 11, 21, 3, tzinfo=UTC)

    assert (UpkeepPolicy().vacuuming(last, now) is not None) == vacuums


@pytest.mark.minutes
def test_a_clustered_table_is_clustered_and_small_files_count_by_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    clustered, partitioned = (f"delta.`{tmp_path / name}`" for name in ("clustered", "partitioned"))
    spark.sql(f"CREATE TABLE {clustered} (id BIGINT) USING delta CLUSTER BY (id)")
    spark.sql(f"CREATE TABLE {partitioned} (id BIGINT, p INT) USING delta PARTITIONED BY (p)")
    for _ in range(2):
        spark.sql(f"INSERT INTO {clustered} SELECT /*+ COALESCE(1) */ id FROM range(2)")
    # Two small files in partition 0, one in partition 1, which nothing could be compacted with.
    spark.sql(f"INSERT INTO {partitioned} VALUES (0, 0)")
    spark.sql(f"INSERT INTO {partitioned} SELECT /*+ COALESCE(1) */ id, int(id) FROM range(2)")

    table = Table(spark, str(tmp_path / "clustered"))
    before = table.layout(1_000_000)
    spark.sql(f"OPTIMIZE {clustered}")
    after = table.layout(1_000_000)

    assert table.is_clustered()
    assert (before.files, before.unclustered_files) == (2, 2)
    assert (after.files, after.unclustered_files, after.small_files) == (1, 0, 0)
    other = Table(spark, str(tmp_path / "partitioned"))
    assert not other.is_clustered()
    assert (other.layout(1_000_000).files, other.layout(1_000_000).small_files) == (3, 2)
    assert other.layout(1).small_files == 0


def test_an_unknown_operation_is_refused_at_load() -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="'compact' is none of optimize, purge"):
        build_upkeep_job(name="nightly", tables=[customers], operations=["compact"])


def test_a_table_that_does_not_exist_yet_is_left_alone(
    resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    job = upkeep(resources).resolve_job_def("nightly_job")

    assert job.execute_in_process(instance=instance).success
    assert not (tmp_path / "tables").exists()


def test_the_schedule_requests_its_job(
    resources: dict[str, Any], instance: DagsterInstance
) -> None:
    defs = upkeep(resources)
    schedule = defs.resolve_schedule_def("nightly")

    with build_schedule_context(
        instance=instance, repository_def=defs.get_repository_def()
    ) as context:
        data = schedule.evaluate_tick(context)

    assert (schedule.cron_schedule, schedule.job_name) == ("0 3 * * *", "nightly_job")
    assert len(data.run_requests or []) == 1
