# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetChecksDefinition,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    AutomationCondition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    ExecuteInProcessResult,
    OpDefinition,
    RetryPolicy,
    asset,
    materialize,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import (
    build_merge_checks,
    build_orphan_changes_check,
    build_rescued_events_check,
    build_table_checks,
    merge_asset,
)
from dagster_deltaweave.checks import merge_results, table_rows
from dagster_deltaweave.checks.merge_results import takes_every_row
from dagster_deltaweave.checks.table_rows import nulls_in_columns, repeated_keys
from dagster_deltaweave.tables.metadata_declarations import merge_declaration_in
from deltaweave import Table, clauses
from deltaweave.clauses import Clause
from tests.support.spark_jobs import jobs_of

SCHEMA = "id INT, name STRING"
Rows = list[tuple[int | None, str | None]]


class Customers:
    """A merge asset whose table is made of given batches, in a deployment with its checks."""

    def __init__(
        self, spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
    ) -> None:
        self.batches: list[Rows] = []
        self.downstream_ran = 0
        self._spark, self._resources, self._instance = spark, resources, instance

        @merge_asset(keys=["id"], schema=SCHEMA)
        def customers():  # type: ignore[no-untyped-def]
            return self.delivered(spark, None)

        @asset(deps=[customers])
        def downstream() -> None:
            self.downstream_ran += 1

        self.asset: AssetsDefinition = customers
        self.downstream = downstream

    def delivered(self, spark: SparkSession, partition: str | None) -> DataFrame:
        return spark.createDataFrame(self.batches[-1], SCHEMA)

    def merge(self, *checks: AssetChecksDefinition, batch: Rows) -> ExecuteInProcessResult:
        """One run of asset, checks and downstream asset."""
        self.batches.append(batch)
        return self._run(checks, None)

    def check(self, *checks: AssetChecksDefinition) -> dict[str, Any]:
        """One run of the checks alone: name to evaluation."""
        result = self._run(checks, AssetSelection.checks(*checks))
        return {each.check_name: each for each in result.get_asset_check_evaluations()}

    def _run(
        self, checks: tuple[AssetChecksDefinition, ...], selection: Any
    ) -> ExecuteInProcessResult:
        return materialize(
            [self.asset, self.downstream, *checks],
            instance=self._instance,
            resources=self._resources,
            raise_on_error=False,
            selection=selection,
        )


@pytest.fixture
def customers(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance
) -> Customers:
    return Customers(spark, resources, instance)


def values(evaluation: Any) -> dict[str, Any]:
    return {key: entry.value for key, entry in evaluation.metadata.items()}


@pytest.mark.minutes
def test_a_failing_blocking_check_keeps_downstream_assets_from_running(
    spark: SparkSession, customers: Customers, table: Callable[[str], Table]
) -> None:
    checks = build_table_checks(
        customers.asset,
        unique_key=["id"],
        no_nulls=["name"],
        schema="name STRING, id INT",
        changed_within=timedelta(hours=1),
        blocking=["unique_key"],
    )
    orphans = build_orphan_changes_check(
        customers.asset, changes=customers.delivered, keys=["id"], deleted="s.name = 'gone'"
    )
    accounted = build_merge_checks(
        customers.asset, source_rows=True, row_count_change=(-0.1, 0.5), blocking=True
    )

    # Null keys match nothing, so they are no keys of several rows.
    first = customers.merge(checks, batch=[(1, "a"), (2, "b"), (None, "c"), (None, "d")])
    assert first.success
    assert {e.check_name: e.passed for e in first.get_asset_check_evaluations()} == {
        "unique_key": True,
        "no_nulls": True,
        "declared_schema": True,
        "changed_recently": True,
    }
    assert customers.downstream_ran == 1

    # Another writer doubles a key: this merge updates both rows, and says so.
    path = table("customers").path_or_name
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (2, 'twice')")
    second = customers.merge(checks, orphans, accounted, batch=[(2, None), (3, "gone")])

    assert not second.success
    assert customers.downstream_ran == 1
    found = {each.check_name: each for each in second.get_asset_check_evaluations()}
    assert {name: each.passed for name, each in found.items()} == {
        "unique_key": False,
        "no_nulls": False,
        "declared_schema": True,
        "changed_recently": True,
        "no_orphan_changes": False,  # (3, 'gone') deletes nothing here, it is inserted
        "source_rows_accounted_for": False,
        "row_count_change": True,  # 4 rows, then 6
    }
    unique = values(found["unique_key"])
    assert (unique["check/keys_repeated"], unique["check/rows_repeated"]) == (1, 2)
    assert unique["check/sample"] == "| id | number of rows |\n| --- | --- |\n| 2 | 2 |"
    assert unique["check/version"] == table("customers").version()
    assert found["no_nulls"].description == "There are nulls in the table: 2 in name."
    assert found["source_rows_accounted_for"].description == (
        "Of 2 source rows: 1 inserted, 2 updated, 0 deleted; "
        "1 more than there are, so one matched several rows of the table."
    )
    assert values(found["row_count_change"])["check/row_count_change"] == 0.5
    lost = values(found["no_orphan_changes"])
    assert (lost["check/changes"], lost["check/lost"], lost["check/undone"]) == (2, 0, 1)
    assert lost["check/sample"].splitlines()[-1] == "| 3 | deleted, but there |"


@pytest.mark.minutes
def test_nulls_are_searched_only_in_files_added_since_the_check_passed(
    spark: SparkSession, customers: Customers, table: Callable[[str], Table]
) -> None:
    no_nulls = build_table_checks(customers.asset, no_nulls=["id"])
    customers.merge(no_nulls, batch=[(1, "a"), (2, "b")])

    path = table("customers").path_or_name
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (3, NULL)")
    [added] = customers.check(no_nulls).values()
    # The columns are others, so that nothing is known of the rows before.
    [other] = customers.check(build_table_checks(customers.asset, no_nulls=["name"])).values()
    [whole] = customers.check(
        build_table_checks(customers.asset, no_nulls=["id"], whole_table=True)
    ).values()
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (NULL, 'x')")
    [null] = customers.check(no_nulls).values()

    read = [values(each)["check/rows"] for each in (added, other, whole, null)]
    assert read == [1, 3, 3, 1]
    assert [each.passed for each in (added, other, whole, null)] == [True, False, True, False]


@pytest.mark.minutes
def test_unique_key_and_nulls_share_a_pass_over_the_table(
    spark: SparkSession,
    customers: Customers,
    table: Callable[[str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    customers.merge(batch=[(1, "a"), (2, "b")])
    target = table("customers")

    def look(name: str, find: Callable[..., Any], *columns: Sequence[str]) -> tuple[int, Any]:
        found: list[Any] = []
        version = target.version()
        arguments = (*columns, None) if find is nulls_in_columns else columns
        jobs = jobs_of(spark, name, lambda: found.append(find(target, version, *arguments)))
        return jobs, found[0]

    assert look("key", repeated_keys, ["id"], [])[0] == 1
    assert look("both", repeated_keys, ["id"], ["name"])[0] == 1
    assert look("no nulls", nulls_in_columns, ["id", "name"])[0] == 0  # by statistics

    spark.sql(f"INSERT INTO delta.`{target.path_or_name}` VALUES (3, NULL), (3, 'c'), (3, 'd')")
    jobs, few = look("nulls", nulls_in_columns, ["id", "name"])
    assert jobs == 1
    _, twice = look("twice", repeated_keys, ["id"], ["name"])
    # The same is found of larger tables, whose rows are shuffled.
    monkeypatch.setattr(table_rows, "SMALL_BYTES", -1)
    assert look("large nulls", nulls_in_columns, ["id", "name"])[1] == few
    assert look("large twice", repeated_keys, ["id"], ["name"])[1] == twice
    assert few[0] is False
    assert few[2] == {"check/rows": 5, "check/nulls": 1}
    assert {name: found[2]["check/rows"] for name, found in twice.items()} == {
        "unique_key": 5,
        "no_nulls": 5,
    }
    assert twice["unique_key"][2]["check/rows_repeated"] == 3


@pytest.mark.minutes
def test_nulls_are_not_looked_for_in_a_column_that_is_no_longer_there(
    spark: SparkSession, customers: Customers, table: Callable[[str], Table]
) -> None:
    by_name, otherwise = (
        build_table_checks(customers.asset, no_nulls=[name]) for name in ("name", "NAME")
    )
    customers.merge(by_name, batch=[(1, "a")])
    path = table("customers").path_or_name
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    assert [each.passed for each in customers.check(by_name).values()] == [True]
    assert [each.passed for each in customers.check(otherwise).values()] == [True]
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN name")
    assert customers.check(by_name) == {}  # it fails, as it did before with any file to read
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN name STRING")
    assert [each.passed for each in customers.check(by_name).values()] == [False]
    assert [each.passed for each in customers.check(otherwise).values()] == [False]


@pytest.mark.minutes
def test_a_lost_change_is_found_at_the_version_of_the_run(
    spark: SparkSession, customers: Customers, table: Callable[[str], Table]
) -> None:
    customers.merge(batch=[(1, "a"), (None, "b")])
    orphans = build_orphan_changes_check(customers.asset, changes=customers.delivered, keys=["id"])
    # Deleted later, by another: at the version of the merge it is there.
    spark.sql(f"DELETE FROM delta.`{table('customers').path_or_name}` WHERE id = 1")
    [found] = customers.check(orphans).values()
    assert found.passed
    assert values(found)["check/changes"] == 2

    # If one delivery writes and deletes a key, it is unknown which came last.
    customers.batches.append([(1, "gone"), (1, "a"), (8, "gone"), (8, "h"), (None, "b")])
    either = build_orphan_changes_check(
        customers.asset, changes=customers.delivered, keys=["id"], deleted="s.name = 'gone'"
    )
    [found] = customers.check(either).values()
    assert found.passed, found.description

    customers.batches.append([(1, "a"), (9, "never merged")])
    [lost] = customers.check(orphans).values()
    assert not lost.passed
    assert values(lost)["check/sample"].splitlines()[-1] == "| 9 | not there |"


def test_checks_of_a_missing_table_fail_and_those_of_merges_pass(
    customers: Customers,
) -> None:
    """Checks of merges have nothing to report."""
    found = customers.check(
        build_table_checks(customers.asset, unique_key=["id"]),
        build_merge_checks(customers.asset, source_rows=True, row_count_change=(0, None)),
        build_orphan_changes_check(customers.asset, changes=customers.delivered, keys=["id"]),
    )

    assert {name: each.passed for name, each in found.items()} == {
        "unique_key": False,
        "source_rows_accounted_for": True,
        "row_count_change": True,
        "no_orphan_changes": False,
    }
    assert "There is no table at" in found["unique_key"].description


UPDATE, DELETE = clauses.when_matched_update_all, clauses.when_matched_delete
INSERT = clauses.when_not_matched_insert_all


@pytest.mark.parametrize(
    ("declared", "sequence", "takes_all"),
    [
        ([], None, True),  # an upsert
        ([], "n", False),  # older rows are left alone
        ([INSERT()], "n", False),
        ([DELETE("s.op = 'd'"), UPDATE(), INSERT()], None, True),
        ([DELETE("s.op = 'd'"), UPDATE(), INSERT("s.op <> 'd'")], None, False),
        ([UPDATE("s.n > t.n"), INSERT()], None, False),
        ([INSERT()], None, False),  # matched rows are left alone
        ([UPDATE()], None, False),
        ([DELETE(), INSERT()], None, False),  # several source rows may go with one deleted row
        ([UPDATE(), INSERT(), clauses.when_not_matched_by_source_delete()], None, True),
    ],
)
def test_clauses_without_conditions_take_every_source_row(
    declared: list[Clause], sequence: str | None, takes_all: bool
) -> None:
    @merge_asset(keys=["id"], clauses=declared, sequence_by=sequence)
    def customers() -> None: ...

    declaration = merge_declaration_in(customers.metadata_by_key[customers.key])
    assert takes_every_row(declaration) is takes_all


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "no check is asked for"),
        ({"unique_key": "id"}, r"unique_key=\['id'\]"),
        ({"no_nulls": ["id"], "blocking": ["unique_key"]}, "blocking names 'unique_key'"),
    ],
)
def test_wrong_declarations_are_refused_when_they_are_made(
    arguments: dict[str, Any], problem: str
) -> None:
    @merge_asset(keys=["id"])
    def customers() -> None: ...

    with pytest.raises(DagsterInvalidDefinitionError, match=problem):
        build_table_checks(customers, **arguments)


def test_a_merge_whose_numbers_were_not_recorded_is_not_taken_for_none() -> None:
    assert merge_results.source_rows_finding({}, True)[0]
    warned = {"deltaweave/warnings": ["What was recorded of it: the storage did not answer."]}
    assert not merge_results.source_rows_finding(warned, True)[0]


def test_only_merges_have_source_rows() -> None:
    @asset
    def report() -> None: ...

    with pytest.raises(DagsterInvalidDefinitionError, match="not a merge asset"):
        build_merge_checks(report, source_rows=True)


@pytest.mark.minutes
def test_checks_take_lists_keys_specs_and_dagsters_own_arguments(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    """Checks of an external asset find its table by its spec, or by its key in the definitions."""
    other = AssetSpec("other", metadata={"deltaweave/table": str(tmp_path / "elsewhere")})
    elsewhere = Table(spark, str(tmp_path / "elsewhere"))
    elsewhere.create_if_missing("id BIGINT")
    elsewhere.write(spark.range(2).toDF("id"), "append")

    @merge_asset(keys=["id"])
    def customers():  # type: ignore[no-untyped-def]
        return spark.range(1).toDF("id")

    retries, eager = RetryPolicy(max_retries=2), AutomationCondition.eager()
    built = build_table_checks(
        [customers, other],
        unique_key=["id"],
        automation_condition=eager,
        metadata={"owner": "sales"},
        pool="checks",
        retry_policy=retries,
    )
    of_key = build_table_checks("other", no_nulls=["id"])
    of_merge = build_merge_checks(AssetKey("customers"), source_rows=True)

    for each in built:
        [spec] = each.check_specs
        assert (spec.automation_condition, spec.metadata) == (eager, {"owner": "sales"})
        assert isinstance(each.node_def, OpDefinition)
        assert (each.node_def.pool, each.node_def.retry_policy) == ("checks", retries)
    result = materialize(
        [customers, other, *built, of_key, of_merge],
        selection=AssetSelection.all() | AssetSelection.all_asset_checks(),
        resources=resources,
        instance=instance,
    )
    found = {
        (each.asset_key.to_user_string(), each.check_name): each.passed
        for each in result.get_asset_check_evaluations()
    }
    assert found == {
        ("customers", "unique_key"): True,
        ("other", "unique_key"): True,
        ("other", "no_nulls"): True,
        ("customers", "source_rows_accounted_for"): True,
    }
    with pytest.raises(DagsterInvalidDefinitionError, match="give the asset's definition"):
        build_rescued_events_check("customers")
