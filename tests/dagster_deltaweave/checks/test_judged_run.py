"""Checks judge their own run, whatever other runs and writers do meanwhile."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from dagster import (
    AssetChecksDefinition,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    DagsterRun,
    ExecuteInProcessResult,
    StaticPartitionsDefinition,
    asset,
    materialize,
)
from dagster._core.storage.tags import PARENT_RUN_ID_TAG, ROOT_RUN_ID_TAG
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import (
    build_merge_checks,
    build_orphan_changes_check,
    build_table_checks,
    merge_asset,
    partition_keys,
    partition_tags,
)
from dagster_deltaweave.checks.check_definition import judged_run
from deltaweave import Table, clauses
from deltaweave.engine.strategies import rows

SCHEMA = "id INT, name STRING"
PARTITIONS = StaticPartitionsDefinition(["a", "b", "c"])
BATCHES: dict[str, list[tuple[int, str]]] = {
    "a": [(1, "a"), (2, "a")],
    "b": [(3, "b"), (4, "b"), (5, "b"), (6, "b")],
    "c": [(7, "c")],
}
KEY = AssetKey("customers")


def delivered(spark: SparkSession, partition: str | None) -> DataFrame:
    assert partition is not None
    return spark.createDataFrame(BATCHES[partition], SCHEMA)


def customers_of(
    spark: SparkSession, changes: Callable[[str], list[tuple[int, str]]]
) -> AssetsDefinition:
    # Any order: a run meets that of an older partition, and no key is in two of them.
    @merge_asset(keys=["id"], schema=SCHEMA, partitions_def=PARTITIONS, order="any")
    def customers(context):  # type: ignore[no-untyped-def]
        rows = [row for key in partition_keys(context) for row in changes(key)]
        return spark.createDataFrame(rows, SCHEMA)

    return customers


class Deployment:
    """Runs over one instance and lake; a run meets another where `meanwhile` makes one."""

    def __init__(
        self, spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
    ) -> None:
        self.instance, self._resources = instance, resources
        self.meanwhile: Callable[[], object] = lambda: None
        self.lost: set[int] = set()
        self.customers = customers_of(
            spark, lambda key: [row for row in BATCHES[key] if row[0] not in self.lost]
        )

        # Runs after the table is merged into, and before its checks.
        @asset(
            deps=[self.customers],
            partitions_def=PARTITIONS,
            op_tags={"dagster/priority": "10"},
        )
        def other_run() -> None:
            self.meanwhile()

        self.other_run = other_run

    def run(
        self,
        partition: str | None,
        *checks: AssetChecksDefinition,
        selection: Any = None,
        tags: dict[str, str] | None = None,
    ) -> ExecuteInProcessResult:
        return materialize(
            [self.customers, self.other_run, *checks],
            instance=self.instance,
            resources=self._resources,
            partition_key=partition,
            raise_on_error=False,
            selection=selection,
            tags=tags,
        )


@pytest.fixture
def deployment(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
) -> Deployment:
    return Deployment(spark, resources, instance)


def found(result: ExecuteInProcessResult) -> dict[str, tuple[bool, dict[str, Any]]]:
    return {
        each.check_name: (each.passed, {k: entry.value for k, entry in each.metadata.items()})
        for each in result.get_asset_check_evaluations()
    }


@pytest.mark.minutes
def test_checks_judge_the_merge_of_their_own_run_while_others_merge(
    deployment: Deployment,
) -> None:
    checks = (
        build_merge_checks(deployment.customers, source_rows=True, row_count_change=(0, 1)),
        build_orphan_changes_check(deployment.customers, changes=delivered, keys=["id"]),
    )
    first = deployment.run("a", *checks)
    assert first.success
    others: list[ExecuteInProcessResult] = []

    def another() -> None:
        deployment.meanwhile, deployment.lost = lambda: None, {4}  # what it delivers gets lost
        others.append(deployment.run("b", *checks))

    deployment.meanwhile = another
    own = found(deployment.run("c", *checks))

    # The run in between lost a change, and more than doubled the table: 3 rows, then 6.
    [other] = others
    verdicts = {name: passed for name, (passed, _) in found(other).items()}
    assert verdicts == {
        "source_rows_accounted_for": True,
        "row_count_change": True,  # from 3 rows to 6
        "no_orphan_changes": False,
    }
    assert {name: passed for name, (passed, _) in own.items()} == {
        "source_rows_accounted_for": True,
        "row_count_change": True,  # from 2 rows to 3, not to 6
        "no_orphan_changes": True,
    }
    assert own["source_rows_accounted_for"][1]["check/source_rows"] == 1
    of_rows = own["row_count_change"][1]
    assert (of_rows["check/rows_before"], of_rows["check/rows"]) == (2, 3)
    assert own["no_orphan_changes"][1]["check/changes"] == 1
    # The run before is that of the version before, though it was not the last to record one.
    of_rows = found(other)["row_count_change"][1]
    assert (of_rows["check/rows_before"], of_rows["check/rows"]) == (3, 6)


@pytest.mark.minutes
def test_a_check_that_runs_alone_says_which_run_it_judges(deployment: Deployment) -> None:
    checks = (
        build_merge_checks(deployment.customers, source_rows=True),
        build_orphan_changes_check(deployment.customers, changes=delivered, keys=["id"]),
    )
    deployment.run("a")
    newest = deployment.run("c")
    # Another writer, outside of runs, merged nothing.
    deployment.instance.report_runless_asset_event(AssetMaterialization(KEY))

    alone = deployment.run(None, *checks, selection=AssetSelection.checks(*checks))

    for each in alone.get_asset_check_evaluations():
        assert each.passed
        assert f" The check judges run {newest.run_id[:8]} of 2" in str(each.description)
        assert each.metadata["check/judged_run"].value == newest.run_id
    assert found(alone)["source_rows_accounted_for"][1]["check/source_rows"] == 1


def test_a_check_that_python_executes_again_judges_the_parent_of_its_run() -> None:
    """Its run names the parent, and has no tag that does."""

    @asset(key=KEY)
    def customers() -> None: ...

    with DagsterInstance.ephemeral() as instance:
        first, _newer = (materialize([customers], instance=instance) for _ in range(2))
        run = DagsterRun("check", parent_run_id=first.run_id, root_run_id=first.run_id)
        judged = judged_run(instance, run, KEY)
        assert judged is not None
        assert judged.run_id == first.run_id


@pytest.mark.minutes
def test_a_run_executed_again_judges_what_the_run_before_it_materialized(
    deployment: Deployment,
) -> None:
    checks = build_merge_checks(deployment.customers, source_rows=True)
    first = deployment.run("a")
    deployment.run("b")
    lineage = {PARENT_RUN_ID_TAG: first.run_id, ROOT_RUN_ID_TAG: first.run_id}

    again = deployment.run(None, checks, selection=AssetSelection.checks(checks), tags=lineage)

    assert found(again)["source_rows_accounted_for"][1]["check/source_rows"] == 2
    [evaluation] = again.get_asset_check_evaluations()
    assert evaluation.metadata["check/judged_run"].value == first.run_id


@pytest.mark.minutes
def test_all_partitions_of_a_run_are_judged(deployment: Deployment) -> None:
    orphans = build_orphan_changes_check(deployment.customers, changes=delivered, keys=["id"])
    merges = build_merge_checks(deployment.customers, source_rows=True, every_row=True)

    listed = found(deployment.run(None, orphans, merges, tags=partition_tags(["a", "c"])))
    assert listed["no_orphan_changes"] == (
        True,
        {**listed["no_orphan_changes"][1], "check/changes": 3},
    )
    assert listed["source_rows_accounted_for"][1]["check/source_rows"] == 3

    ranged = found(
        deployment.run(
            None,
            orphans,
            merges,
            tags={
                "dagster/asset_partition_range_start": "a",
                "dagster/asset_partition_range_end": "c",
            },
        )
    )
    assert ranged["no_orphan_changes"][1]["check/changes"] == 7
    assert ranged["source_rows_accounted_for"][1]["check/source_rows"] == 7

    # As the asset's function, it may have None for a partition.
    for left_out, changes in (("b", 3), ("abc", None)):
        partly = build_orphan_changes_check(
            deployment.customers,
            changes=lambda spark, key, out=left_out: None if key in out else delivered(spark, key),
            keys=["id"],
        )
        alone = found(deployment.run(None, partly, selection=AssetSelection.checks(partly)))
        passed, metadata = alone["no_orphan_changes"]
        assert (passed, metadata.get("check/changes")) == (True, changes)


@pytest.mark.minutes
def test_the_row_count_of_a_recreated_table_is_compared_with_no_old_one(
    spark: SparkSession, deployment: Deployment, table: Callable[[str], Table]
) -> None:
    check = build_merge_checks(deployment.customers, row_count_change=(-0.5, 0.5))
    deployment.run("b")
    path = table("customers").path_or_name
    shutil.rmtree(path)
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    [evaluation] = deployment.run("c", check).get_asset_check_evaluations()

    assert evaluation.passed
    assert evaluation.description == "No run before recorded a row count of this table."


@pytest.mark.minutes
def test_a_lost_row_fails_a_blocking_check_where_clauses_have_conditions(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [[(1, "a"), (2, "b")], [(1, "A"), (2, "gone"), (3, "c"), (4, "gone"), (5, "e")]]

    @merge_asset(
        keys=["id"],
        schema=SCHEMA,
        clauses=[
            clauses.when_matched_delete("s.name = 'gone'"),
            clauses.when_matched_update_all("s.name <> 'gone'"),
            clauses.when_not_matched_insert_all("s.name <> 'gone'"),
        ],
    )
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(batches[0], SCHEMA)

    check = build_merge_checks(customers, source_rows=True, blocking=True)

    def run() -> Any:
        result = materialize(
            [customers, check], instance=instance, resources=resources, raise_on_error=False
        )
        [evaluation] = result.get_asset_check_evaluations()
        return evaluation

    assert run().passed
    batches.pop(0)
    real = rows.rows_after_scan
    monkeypatch.setattr(rows, "rows_after_scan", lambda *given: real(*given).where("id <> 5"))
    lost = run()
    assert not lost.passed
    assert lost.description == (
        "Of 5 source rows: 1 inserted, 1 updated, 1 deleted; 1 are missing."
    )
    monkeypatch.setattr(rows, "rows_after_scan", real)
    again = run()
    assert again.passed
    # 1, 3 are updated, 5 inserted; 2 was deleted before and 4 was never there.
    assert again.description == (
        "Of 5 source rows: 1 inserted, 2 updated, 0 deleted; 2 left alone."
    )


@pytest.mark.minutes
def test_samples_of_keys_are_shown_unless_they_are_turned_off(
    spark: SparkSession, run: Callable[..., ExecuteInProcessResult]
) -> None:
    rows = [(1, "hush"), (2, "hush")]

    @merge_asset(keys=["id"], schema=SCHEMA)
    def customers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(rows, SCHEMA)

    def lost(spark: SparkSession, partition: str | None) -> DataFrame:
        return spark.createDataFrame([(3, "never merged")], SCHEMA)

    for sample in (True, False):
        unique = build_table_checks(customers, unique_key=["name"], sample=sample)
        orphans = build_orphan_changes_check(
            customers, changes=lost, keys=["id", "name"], sample=sample
        )
        for each in run(customers, unique, orphans).get_asset_check_evaluations():
            assert not each.passed
            assert ("check/sample" in each.metadata) is sample
            assert ("hush" in str(each) or "never" in str(each)) is sample
