from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    materialize,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from pyspark.sql import SparkSession

from dagster_deltaweave import SparkDeltaIOManager, merge_asset
from dagster_deltaweave.metadata.metadata_entries import (
    DONE_BY_STRATEGY,
    MERGE_COUNTS,
    PHASE_TIMES,
    always_zero,
    counted,
    merge_metadata,
    readable_size,
    summary,
)
from deltaweave import MergeMetrics, MergeResult, Table, TouchedFiles
from deltaweave.engine.report import MERGE_METRICS, StrategyName
from deltaweave.identifiers import table_name
from tests.dagster_deltaweave.conftest import Run

CUSTOMERS = AssetKey("customers")


@pytest.fixture
def merged(spark: SparkSession, run: Run) -> ExecuteInProcessResult:
    """The second of two runs: one row updated, one inserted, one copied."""
    batches = {"mon": [(1, "a"), (2, "b")], "tue": [(2, "B"), (3, "c")]}

    @merge_asset(
        keys=["id"],
        schema="id INT NOT NULL COMMENT 'who', name STRING",
        properties={"delta.enableDeletionVectors": "false"},
        partitions_def=StaticPartitionsDefinition(list(batches)),
    )
    def customers(context):  # type: ignore[no-untyped-def]
        """Who buys."""
        return spark.createDataFrame(batches[context.partition_key], "id INT, name STRING")

    run(customers, partition="mon")
    return run(customers, partition="tue")


def metadata_of(result: ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the materialization of customers, in its order."""
    [materialization] = result.asset_materializations_for_node("customers")
    return {key: entry.value for key, entry in materialization.metadata.items()}


def in_the_table(values: dict[str, Any]) -> dict[str, Any]:
    """The numbers that are rows of `merge/metrics`."""
    table = values["merge/metrics"]
    records = table if isinstance(table, list) else table.records
    return {record.data["metric"]: record.data["value"] for record in records}


def test_every_metric_key_maps_to_a_metric_the_engine_reports() -> None:
    assert {*MERGE_COUNTS.values(), *PHASE_TIMES.values()} <= set(MERGE_METRICS)


def test_a_materialization_has_dagsters_table_metadata_and_merge_metrics(
    merged: ExecuteInProcessResult, table: Callable[[str], Table]
) -> None:
    [materialization] = merged.asset_materializations_for_node("customers")
    values = metadata_of(merged)
    target = table("customers")

    assert materialization.partition == "tue"
    assert values["dagster/row_count"] == 3
    # How many rows of the table are the partition's, nobody counted: the source's are no answer.
    assert "dagster/partition_row_count" not in values
    assert (values["table/version"], values["table/id"]) == (target.version(), target.id())
    assert values["dagster/table_name"] == f"delta.`{target.path_or_name}`"
    assert values["dagster/uri"] == target.location()
    assert values["dagster/storage_kind"] == "deltalake"
    columns = values["dagster/column_schema"].columns
    assert [(c.name, c.type, c.description, c.constraints.nullable) for c in columns] == [
        ("id", "int", "who", False),
        ("name", "string", None, True),
    ]
    [detail] = target.spark.sql(f"DESCRIBE DETAIL delta.`{target.path_or_name}`").collect()
    assert detail.description == "Who buys."
    assert values["merge/version"] == target.version()
    assert values["merge/strategy"] == "copy-on-write"
    assert "ON t.`id` = s.`id`" in values["merge/statement"]
    expected = {
        "merge/source_rows": 2,
        "merge/rows_inserted": 1,
        "merge/rows_updated": 1,
        "merge/rows_deleted": 0,
    }
    assert {key: values[key] for key in expected} == expected


def test_a_merge_is_one_observation_of_its_partition_with_its_phases(
    merged: ExecuteInProcessResult, instance: DagsterInstance, table: Callable[[str], Table]
) -> None:
    """The phases are a table in the observation's metadata."""
    records = instance.fetch_observations(CUSTOMERS, limit=10).records
    [observation] = [
        record.asset_observation for record in records if record.run_id == merged.run_id
    ]
    values = metadata_of(merged)

    assert observation is not None
    assert observation.partition == "tue"
    assert observation.description == values["merge/summary"]
    assert list(observation.metadata) == ["merge/phases"]
    phases = [each.data for each in observation.metadata["merge/phases"].records]
    numbers = in_the_table(values)
    size = readable_size(numbers["merge/bytes_before_skipping"])
    added = readable_size(numbers["merge/bytes_added"])
    assert [(each["phase"], each["what it did"]) for each in phases] == [
        (
            "Materialize source",
            "2 rows, computed once, since more than Delta tables is read",
        ),
        (
            "Find touched files",
            f"0 of 1 file skipped (0 bytes of {size}), 1 rewritten",
        ),
        (
            "Write changes",
            "the touched files were rewritten: 1 row updated, 1 inserted, 0 deleted, 1 copied; "
            f"{counted(numbers['merge/files_added'], 'file')} added ({added})",
        ),
        ("Commit", f"version {table('customers').version()}"),
    ]
    spent = sum(each["seconds"] for each in phases)
    assert 0 < spent <= values["merge/seconds"]


def test_the_log_of_a_run_says_what_its_merge_is_doing(
    merged: ExecuteInProcessResult, instance: DagsterInstance
) -> None:
    said = [each.user_message for each in instance.all_logs(merged.run_id)]

    assert [each for each in said if each.startswith("MERGE operation")] == [
        "MERGE operation - materialize source",
        "MERGE operation - scanning files for matches",
        "MERGE operation - Rewriting 1 files",
        "MERGE operation - committing",
    ]


def test_what_matters_comes_first_and_has_the_plots(merged: ExecuteInProcessResult) -> None:
    values = metadata_of(merged)
    numbers = in_the_table(values)

    assert list(values)[:9] == [
        "merge/summary",
        "merge/rows_updated",
        "merge/rows_inserted",
        "merge/rows_deleted",
        "merge/files_skipped",
        "merge/files_removed",
        "merge/seconds",
        "merge/write_amplification",
        "dagster/row_count",
    ]
    # A table without them, a statement without the clause, and a merge that went straight.
    unused = "vectors|change_|by_source|attempts|redone|retries|spark_ui"
    assert [key for key in [*values, *numbers] if re.search(unused, key)] == []
    plotted = {key for key, value in values.items() if isinstance(value, (int, float))}
    # docs/reference/what-dagster-shows.md counts them.
    assert plotted == {
        "dagster/row_count",
        "table/version",
        "merge/rows_updated",
        "merge/rows_inserted",
        "merge/rows_deleted",
        "merge/rows_copied",
        "merge/source_rows",
        "merge/source_rows_unaffected",
        "merge/files_skipped",
        "merge/files_removed",
        "merge/seconds",
        "merge/write_amplification",
        "merge/version",
    }
    every = {**values, **numbers}
    counts = [key for key in [*MERGE_COUNTS, "merge/version"] if key in every]
    assert all(type(every[key]) is int for key in counts)
    assert all(type(numbers[key]) is float for key in PHASE_TIMES)
    assert values["merge/seconds"] >= numbers["merge/rewrite_seconds"] > 0
    assert numbers["merge/commit_seconds"] > 0
    assert values["merge/write_amplification"] == 1.5  # 1 updated, 1 inserted, 1 copied
    assert numbers["merge/files_touched"] == 1
    assert numbers["merge/bytes_touched"] == numbers["merge/bytes_removed"] > 0


# A merge of a plain table; of one with deletion vectors and a change feed, whose zeros stay; by a
# clause for rows that the source lacks; by change events.
@pytest.mark.parametrize(
    ("properties", "statement", "kept"),
    [
        ({}, "WHEN MATCHED THEN DELETE", set()),
        (
            {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "TRUE"},
            "WHEN MATCHED THEN DELETE",
            {
                "merge/deletion_vectors_added",
                "merge/deletion_vectors_updated",
                "merge/deletion_vectors_removed",
                "merge/change_files_added",
                "merge/change_bytes_added",
            },
        ),
        (
            {},
            "when not matched  by source then delete",
            {"merge/by_source_rows_updated", "merge/by_source_rows_deleted"},
        ),
        ({}, None, set()),
    ],
)
def test_a_count_of_zero_is_shown_if_another_merge_of_the_table_may_count(
    properties: dict[str, str], statement: str | None, kept: set[str]
) -> None:
    settings = SimpleNamespace(snapshot=lambda: SimpleNamespace(setting=properties.get))
    result = MergeResult(1, MergeMetrics(), TouchedFiles(), "deletion-vectors")

    unused = always_zero(cast("Table", settings), statement)

    of_features = {key for key in MERGE_COUNTS if re.search("vectors|change_|by_source", key)}
    values = {key: entry.value for key, entry in merge_metadata(result, unused).items()}
    assert of_features & {*values, *in_the_table(values)} == kept


REPEATED = MergeResult(
    7,
    MergeMetrics(
        {
            "numTargetRowsUpdated": 1_897,
            "numTargetRowsInserted": 1_112,
            "numTargetRowsDeleted": 635,
            "numTargetRowsCopied": 9,
            "numTargetFilesBeforeSkipping": 1_200,
            "numTargetFilesAfterSkipping": 4,
            "numTargetBytesBeforeSkipping": 3_456_000_000,
            "numTargetBytesAfterSkipping": 10_000,
            "numTargetDeletionVectorsAdded": 2,
            "numTargetDeletionVectorsUpdated": 1,
            "numTargetFilesRemoved": 1,
            "executionTimeMs": 1_500,
        }
    ),
    TouchedFiles(),
    "deletion-vectors",
    attempts=2,
    commit_attempts=3,
    commit_time_ms=140,
    files_redone=4,
)


def test_a_merge_that_did_not_go_straight_says_so() -> None:
    values = {key: entry.value for key, entry in merge_metadata(REPEATED).items()}

    assert values["merge/summary"] == (
        "1,897 rows updated, 1,112 inserted, 635 deleted. 1,196 of 1,200 files skipped (3.5 GB of "
        "3.5 GB), 3 with new deletion vectors, 1 rewritten. Ran 2 times, since executors died. "
        "Committed at attempt 3, since other commits won; 4 files had to be written again. 1.6 s."
    )
    assert values["merge/files_skipped"] == 1_196
    assert values["merge/write_amplification"] == 0.83  # 3,018 rows for 3,644 changed ones
    counts = ("merge/attempts", "merge/commit_attempts", "merge/files_redone")
    assert [values[key] for key in counts] == [2, 3, 4]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("already-applied", "Nothing was merged, since these changes were applied before."),
        # It does not say which files it touched.
        (
            "builtin",
            "0 rows updated, 0 inserted, 0 deleted. 1 of 3 files skipped (10 bytes of 40 bytes). "
            "0.0 s.",
        ),
    ],
)
def test_the_summary_of_what_the_engine_did_not_merge(strategy: str, said: str) -> None:
    metrics = MergeMetrics(
        {
            "numTargetFilesBeforeSkipping": 3,
            "numTargetFilesAfterSkipping": 2,
            "numTargetBytesBeforeSkipping": 40,
            "numTargetBytesAfterSkipping": 30,
        }
    )
    assert summary(MergeResult(None, metrics, TouchedFiles(), strategy)) == said


def test_the_summary_of_a_first_merge_counts_no_files() -> None:
    metrics = MergeMetrics({"numTargetRowsInserted": 7, "executionTimeMs": 200})
    assert summary(MergeResult(1, metrics, TouchedFiles(), "insert-only")) == (
        "0 rows updated, 7 inserted, 0 deleted. The table had no files. 0.2 s."
    )


def test_each_strategy_has_a_sentence() -> None:
    assert {each.value for each in StrategyName} == set(DONE_BY_STRATEGY)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (3_456_789, "3.5 MB"),
        (10**16, "10,000.0 TB"),
    ],
)
def test_sizes_are_in_units_that_people_read(size: int, said: str) -> None:
    assert readable_size(size) == said


@pytest.mark.minutes
def test_the_data_version_is_that_of_the_last_change_of_rows(
    spark: SparkSession,
    run: Run,
    instance: DagsterInstance,
    resources: dict[str, Any],
    table: Callable[[str], Table],
) -> None:
    batches: list[Any] = [[(1, "a")], [], None, [(2, "b")]]

    @merge_asset(keys=["id"], schema="id INT, name STRING")
    def customers():  # type: ignore[no-untyped-def]
        batch = batches.pop(0)
        return None if batch is None else spark.createDataFrame(batch, "id INT, name STRING")

    @asset(deps=[customers])
    def downstream() -> None: ...

    graph = Definitions([customers, downstream]).resolve_asset_graph()

    def status() -> StaleStatus:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        return resolver.get_status(downstream.key)

    def data_version(result: ExecuteInProcessResult) -> str | None:
        [materialization] = result.asset_materializations_for_node("customers")
        return (materialization.tags or {}).get("dagster/data_version")

    first = run(customers, downstream)
    path = table("customers").path_or_name
    # Upkeep makes a version, and leaves the rows.
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('note' = 'x')")
    nothing_changed = run(customers, downstream, selection=[customers])
    nothing_returned = run(customers, downstream, selection=[customers])
    assert [data_version(each) for each in (first, nothing_changed, nothing_returned)] == ["1"] * 3
    assert status() == StaleStatus.FRESH

    root = resources["io_manager"].root
    explaining = SparkDeltaIOManager(root=root, spark=resources["spark"], explain=True)
    changed = materialize([customers], resources={"io_manager": explaining}, instance=instance)
    assert data_version(changed) == str(table("customers").version()) == "3"
    assert status() == StaleStatus.STALE
    [materialization] = changed.asset_materializations_for_node("customers")
    assert "version 2\nstrategy: deletion-vectors" in materialization.metadata["merge/plan"].value


def test_a_merge_that_changes_nothing_commits_no_version(spark: SparkSession, run: Run) -> None:
    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([], "id INT")

    [materialization] = run(customers).asset_materializations_for_node("customers")

    assert "merge/version" not in materialization.metadata
    assert materialization.metadata["merge/strategy"].value == "none"
    assert materialization.metadata["merge/source_rows_unaffected"].value == 0


@pytest.mark.parametrize(
    ("path_or_name", "sql"),
    [("db.t", "db.t"), ("/lake/t", "delta.`/lake/t`"), ("delta.`/lake/t`", "delta.`/lake/t`")],
)
def test_sql_names_a_path_as_a_table(path_or_name: str, sql: str) -> None:
    assert table_name(path_or_name) == sql
