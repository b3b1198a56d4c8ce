"""Checks look at the table that their asset has at run time, by whatever key and IO manager."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    Definitions,
    JobDefinition,
    asset,
    define_asset_job,
    load_asset_checks_from_modules,
    load_assets_from_modules,
    materialize,
)
from dagster._core.execution.context.system import StepExecutionContext
from pyspark.sql import SparkSession

from dagster_deltaweave import (
    DeltaTableResource,
    SparkDeltaIOManager,
    SparkResource,
    build_merge_checks,
    build_orphan_changes_check,
    build_pending_changes_check,
    build_rescued_events_check,
    build_table_checks,
    build_upkeep_job,
    merge_asset,
    merge_on_read_asset,
)
from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.metadata import TABLE_ID
from deltaweave import Table
from deltaweave.errors import StatementError
from tests.dagster_deltaweave.conftest import failure_messages

CHECKS = {"unique_key", "source_rows_accounted_for", "no_orphan_changes"}


@pytest.mark.minutes
def test_checks_and_upkeep_look_where_the_asset_is_stored(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @merge_asset(keys=["id"], io_manager_key="lake")
    def orders():  # type: ignore[no-untyped-def]
        return spark.sql("SELECT 1 AS id")

    declared = ModuleType("declared")
    declared.orders = orders  # type: ignore[attr-defined]
    declared.checks = [  # type: ignore[attr-defined]
        build_table_checks(orders, unique_key=["id"]),
        build_merge_checks(orders, source_rows=True),
        build_orphan_changes_check(orders, changes=lambda *_: spark.range(1, 2), keys=["id"]),
    ]
    for place, check in enumerate(declared.checks):
        setattr(declared, f"check_{place}", check)
    lake = {"spark": resources["spark"], "lake": resources["io_manager"]}

    for prefix in ("east", "west"):
        assets = load_assets_from_modules([declared], key_prefix=prefix)
        checks = load_asset_checks_from_modules([declared], asset_key_prefix=prefix)
        result = materialize([*assets, *checks], resources=lake, instance=instance)
        found = result.get_asset_check_evaluations()
        assert {each.check_name for each in found if each.passed} == CHECKS
        assert {each.asset_key for each in found} == {AssetKey([prefix, "orders"])}
        assert (tmp_path / "tables" / prefix / "orders" / "_delta_log").exists()

    [east] = load_assets_from_modules([declared], key_prefix="east")
    assert isinstance(east, AssetsDefinition)
    by_key = build_upkeep_job(
        name="upkeep", tables="east/orders", operations=["statistics"], io_manager_key="lake"
    )
    kept = build_upkeep_job(name="upkeep", tables=[east], operations=["statistics"])
    defs = Definitions(assets=[east], resources=lake)
    monkeypatch.setattr(StepExecutionContext, "repository_def", defs.get_repository_def())
    for job in (by_key, kept):
        assert job.execute_in_process(resources=lake, instance=instance).success
    observed = instance.fetch_observations(AssetKey(["east", "orders"]), limit=1).records
    assert observed[0].asset_observation is not None
    assert "upkeep/version" in observed[0].asset_observation.metadata


LAKE = SparkDeltaIOManager(root="/lake", spark=SparkResource())


@merge_asset(keys=["id"])
def orders() -> None: ...


@merge_asset(keys=["id"], io_manager_key="lake")
def parts() -> None: ...


@merge_on_read_asset(keys=["id"], sequence_by="n", rescued=True)
def items() -> None: ...


UPKEEP = partial(build_upkeep_job, name="upkeep", operations=["statistics"])
IS_ORPHAN = {"changes": lambda *_: None, "keys": ["id"]}
AS_DECLARED = "there is no asset {} in this code location.*there is east/{}"
OTHER_MANAGER = "the IO manager lake stores the asset, and not io_manager"


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (UPKEEP(tables=orders), AS_DECLARED.format(*["orders"] * 2)),
        (UPKEEP(tables="orders"), AS_DECLARED.format(*["orders"] * 2)),
        (UPKEEP(tables="others"), "there is no asset others in this code location"),
        (UPKEEP(tables="parts"), OTHER_MANAGER),
        (build_table_checks("parts", unique_key=["id"]), OTHER_MANAGER),
        (build_orphan_changes_check("parts", **IS_ORPHAN), OTHER_MANAGER),
        (build_table_checks(orders, unique_key=["id"]), AS_DECLARED.format(*["orders"] * 2)),
        (build_merge_checks(orders, source_rows=True), AS_DECLARED.format(*["orders"] * 2)),
        (build_orphan_changes_check(orders, **IS_ORPHAN), AS_DECLARED.format(*["orders"] * 2)),
        (build_pending_changes_check(items), AS_DECLARED.format(*["items"] * 2)),
        (build_rescued_events_check(items.changes), AS_DECLARED.format(*["items_changes"] * 2)),
    ],
)
def test_what_names_no_asset_of_the_code_location_judges_no_table(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, named: Any, problem: str
) -> None:
    declared = ModuleType("declared")
    declared.orders, declared.items = orders, items  # type: ignore[attr-defined]
    assets = load_assets_from_modules([declared], key_prefix="east")
    is_job = isinstance(named, JobDefinition)
    defs = Definitions(
        assets=[*assets, parts],
        jobs=[named if is_job else define_asset_job("checks", AssetSelection.checks(named))],
        asset_checks=[] if is_job else [named],
        resources={"io_manager": LAKE, "lake": LAKE},
    )
    monkeypatch.setattr(StepExecutionContext, "repository_def", defs.get_repository_def())

    job = defs.resolve_job_def("upkeep" if is_job else "checks")
    result = job.execute_in_process(instance=instance, raise_on_error=False)

    assert re.search(problem, failure_messages(result), re.DOTALL)
    assert instance.all_asset_keys() == []


@pytest.mark.parametrize(
    ("recorded", "passed"),
    [
        (None, True),
        ({}, True),
        ({"tags": {DATA_VERSION_TAG: "0"}}, True),  # the first run had no event
        ({"tags": {DATA_VERSION_TAG: "3"}}, False),
        ({"metadata": {TABLE_ID: "an id"}}, False),
    ],
)
def test_pending_changes_of_a_lost_table_are_not_none(
    instance: DagsterInstance, tmp_path: Path, recorded: dict[str, Any] | None, passed: bool
) -> None:
    if recorded is not None:
        instance.report_runless_asset_event(AssetMaterialization(items.changes.key, **recorded))
    check = build_pending_changes_check(items)
    lake = SparkDeltaIOManager(root=str(tmp_path), spark=SparkResource())
    result = materialize(
        [*items, check],
        selection=AssetSelection.checks(check),
        resources={"io_manager": lake},
        instance=instance,
    )
    [found] = result.get_asset_check_evaluations()
    assert (found.passed, "items_changes" in str(found.description)) == (passed, not passed)


def test_a_resource_opens_no_table_by_a_key_that_was_not_loaded(
    instance: DagsterInstance,
) -> None:
    @asset(deps=[AssetKey(["east", "orders"])])
    def report(tables: DeltaTableResource) -> None:
        with pytest.raises(StatementError, match="no asset orders in this") as refused:
            tables.table(orders)
        assert "there is east/orders" in str(refused.value)

    declared = ModuleType("declared")
    declared.orders = orders  # type: ignore[attr-defined]
    assets = load_assets_from_modules([declared], key_prefix="east")
    resources = {"io_manager": LAKE, "tables": DeltaTableResource(io_manager=LAKE)}
    materialize([*assets, report], selection=[report], resources=resources, instance=instance)


@pytest.mark.minutes
def test_merge_on_read_assets_under_two_prefixes_are_two_tables(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    declared = ModuleType("declared")
    appended = [1, 2]

    @merge_on_read_asset(keys=["id"], sequence_by="n")
    def orders():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(appended.pop(0), 1)], "id INT, n INT")

    late = build_pending_changes_check(orders)
    declared.changes, declared.base, declared.view = orders  # type: ignore[attr-defined]
    declared.late = late  # type: ignore[attr-defined]

    for prefix in ("east", "west"):
        assets = load_assets_from_modules([declared], key_prefix=prefix)
        checks = load_asset_checks_from_modules([declared], asset_key_prefix=prefix)
        result = materialize([*assets, *checks], resources=resources, instance=instance)
        [found] = result.get_asset_check_evaluations()
        assert (found.asset_key, found.passed) == (AssetKey([prefix, "orders"]), True)
        assert instance.get_latest_materialization_event(AssetKey([prefix, "orders"]))

    for prefix, expected in (("east", 1), ("west", 2)):
        base = Table(spark, f"{tmp_path}/tables/{prefix}/orders_base")
        assert [row.id for row in base.read().collect()] == [expected]
    assert not (tmp_path / "tables" / "orders_base").exists()
    for key in instance.all_asset_keys():
        assert key.path[0] in ("east", "west")  # no event of a missing asset


def test_a_merge_on_read_asset_whose_key_was_replaced_is_refused(
    resources: dict[str, Any], instance: DagsterInstance
) -> None:
    @merge_on_read_asset(keys=["id"], sequence_by="n")
    def orders():  # type: ignore[no-untyped-def]
        return None

    renamed = orders.changes.with_attributes(
        asset_key_replacements={orders.changes.key: AssetKey("raw")}
    )
    with pytest.raises(StatementError, match="declared as orders_changes"):
        materialize([renamed], resources=resources, instance=instance)
