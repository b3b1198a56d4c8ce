"""A whole project in YAML: tables of changes and events, what starts, checks and maintains them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from dagster import (
    AssetChecksDefinition,
    AssetKey,
    AutomationCondition,
    DagsterInstance,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    DynamicPartitionsDefinition,
    RetryPolicy,
)
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey

import dagster_deltaweave
from dagster_deltaweave import (
    CdcAssetComponent,
    LandingSensorComponent,
    MaintenanceComponent,
    MergeAssetComponent,
    MergeOnReadAssetComponent,
    SparkDeltaIOManager,
    SparkResource,
    TableChecksComponent,
)
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    MergeOnReadDeclaration,
    table_declaration,
)
from tests.dagster_deltaweave.components.refusals import all_messages
from tests.support.sensor_ticks import requested, tick

EVENTS = """
type: dagster_deltaweave.CdcAssetComponent
attributes:
  asset: {key: sales/customers, owners: ["team:sales"]}
  keys: [id]
  sequence_by: lsn
  apply_as_deletes: op = 'd'
  except_column_list: [op, lsn]
  stored_as_scd_type: 2
  track_history_except_column_list: [seen_at]
  late_by: {days: 1, hours: 12}
  source: {type: path, path: "/landing/customers/{partition}"}
  dynamic_partitions: landed_customers
---
type: dagster_deltaweave.MergeOnReadAssetComponent
attributes:
  asset: {key: sales/orders, group_name: sales}
  keys: [id]
  sequence_by: version
  except_column_list: [version]
  keep_merged_for: {minutes: 30}
  partition_by: [day]
  source: {type: path, path: /landing/orders}
  rematerialization: {batches: 100, age: {hours: 2}, running: true}
  base_automation_condition: "{{ dg.AutomationCondition.eager() }}"
"""

AROUND_THEM = """
type: dagster_deltaweave.LandingSensorComponent
attributes:
  name: customers_landed
  directory: LANDING
  assets: sales/customers
  landing_asset: sales/customers_landing
  marker: null
  minimum_interval_seconds: 5
  running: true
  owners: [team:sales]
  tags: {domain: sales}
  metadata: {source: files}
  run_tags: {priority: high}
---
type: dagster_deltaweave.TableChecksComponent
attributes:
  asset: [sales/customers, sales/orders_base]
  unique_key: [id]
  no_nulls: [id]
  automation_condition: "{{ dg.AutomationCondition.eager() }}"
  metadata: {severity: high}
  pool: checks
  retry_policy: {max_retries: 2, delay: 5}
  changed_within: {days: 2}
  row_count_change: {lowest: -0.1}
  blocking: [unique_key, row_count_change]
---
type: dagster_deltaweave.MaintenanceComponent
attributes:
  name: nightly
  assets: [sales/customers, sales/orders_base]
  cron_schedule: "0 3 * * *"
  operations: [optimize, vacuum]
  policy: {small_files: 20, time_between_vacuums: {days: 7}}
"""

CUSTOMERS, ORDERS = AssetKey(["sales", "customers"]), AssetKey(["sales", "orders"])


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("landing")


@pytest.fixture(scope="module")
def defs(landing: Path) -> Iterator[Definitions]:
    """The definitions of both files, in folders of their own; no session is started for them."""
    with create_defs_folder_sandbox() as sandbox:
        for folder, text in (("tables", EVENTS), ("around", AROUND_THEM)):
            (sandbox.defs_folder_path / folder).mkdir()
            file = sandbox.defs_folder_path / folder / "defs.yaml"
            file.write_text(text.replace("LANDING", str(landing)))
        with sandbox.build_all_defs() as loaded:
            yield with_resources(loaded)


def with_resources(loaded: Definitions) -> Definitions:
    spark = SparkResource()
    io_manager = SparkDeltaIOManager(root="/lake", spark=spark)
    own = Definitions(resources={"spark": spark, "io_manager": io_manager})
    return Definitions.merge(loaded, own)


def declared(defs: Definitions, key: AssetKey) -> Any:
    found = defs.resolve_assets_def(key)
    return table_declaration(found.metadata_by_key[key], asset=key.to_user_string())


def test_a_table_of_events_has_the_arguments_of_its_decorator(defs: Definitions) -> None:
    declaration = declared(defs, CUSTOMERS)
    assert isinstance(declaration, ChangesDeclaration)
    expected = {
        "keys": ("id",),
        "sequence_by": "lsn",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["op", "lsn"],
        "stored_as_scd_type": 2,
        "track_history_except_column_list": ["seen_at"],
        "late_by": timedelta(hours=36),
    }
    assert {name: declaration.arguments[name] for name in expected} == expected
    asset = defs.resolve_assets_def(CUSTOMERS)
    assert asset.partitions_def == DynamicPartitionsDefinition(name="landed_customers")
    assert list(asset.specs_by_key[CUSTOMERS].owners) == ["team:sales"]
    assert asset.required_resource_keys == {"spark", "io_manager"}


def test_a_merge_on_read_table_is_three_assets_and_a_sensor(defs: Definitions) -> None:
    names = ("orders", "orders_base", "orders_changes")
    declarations = [declared(defs, AssetKey(["sales", name])) for name in names]
    assert [each.part for each in declarations] == ["view", "base", "changes"]
    view = declarations[0]
    assert isinstance(view, MergeOnReadDeclaration)
    assert view.arguments["keep_merged_for"] == timedelta(minutes=30)
    assert view.arguments["partition_by"] == ("day",)
    assert defs.resolve_assets_def(ORDERS).group_names_by_key == {ORDERS: "sales"}
    graph = defs.resolve_asset_graph()
    conditions = [graph.get(AssetKey(["sales", each])).automation_condition for each in names]
    assert conditions == [None, AutomationCondition.eager(), None]
    sensor = defs.resolve_sensor_def("sales__orders_rematerialization")
    assert sensor.default_status == DefaultSensorStatus.RUNNING


def test_a_landing_sensor_takes_the_partitions_of_its_table(
    defs: Definitions, instance: DagsterInstance, landing: Path
) -> None:
    sensor = defs.resolve_sensor_def("customers_landed")
    assert (sensor.default_status, sensor.minimum_interval_seconds) == (
        DefaultSensorStatus.RUNNING,
        5,
    )
    assert (sensor.owners, sensor.tags) == (["team:sales"], {"domain": "sales"})
    assert sensor.metadata["source"].value == "files"
    external = defs.resolve_asset_graph().get(AssetKey(["sales", "customers_landing"]))
    assert external.partitions_def == DynamicPartitionsDefinition(name="landed_customers")

    (landing / "p1").mkdir()
    (landing / "p1" / "1.parquet").write_bytes(b"x")
    only = Definitions(assets=defs.assets, sensors=[sensor], resources=defs.resources)
    first = tick(only, instance)  # sizes have to settle: there is no marker
    assert requested(first) == []
    second = tick(only, instance, first.cursor)
    assert requested(second) == ["p1"]
    [request] = second.run_requests or []
    assert request.tags["priority"] == "high"
    [added] = second.dynamic_partitions_requests or []
    assert added.partitions_def_name == "landed_customers"


def test_checks_look_at_the_table_and_at_its_merges(defs: Definitions) -> None:
    graph = defs.resolve_asset_graph()
    found = {
        key.name: graph.get(key).blocking for key in graph.get_check_keys_for_assets({CUSTOMERS})
    }
    assert found == {
        "unique_key": True,
        "no_nulls": False,
        "changed_recently": False,
        "row_count_change": True,
    }
    keys = graph.get_check_keys_for_assets({CUSTOMERS, AssetKey(["sales", "orders_base"])})
    assert len(keys) == 2 * len(found)
    for key in keys:
        node = graph.get(key)
        assert node.automation_condition == AutomationCondition.eager()
        assert node.metadata["severity"] == "high"
    for checks in defs.asset_checks or []:
        op = cast("AssetChecksDefinition", checks).node_def
        assert (op.pool, op.retry_policy) == ("checks", RetryPolicy(max_retries=2, delay=5))


def test_maintenance_has_a_step_for_each_table_in_its_pool(defs: Definitions) -> None:
    repository = defs.get_repository_def()
    [schedule] = repository.schedule_defs
    assert (schedule.name, schedule.cron_schedule) == ("nightly", "0 3 * * *")
    assert schedule.default_status == DefaultScheduleStatus.STOPPED
    job = defs.resolve_job_def("nightly_job")
    assert {node.name: node.definition.pools for node in job.nodes} == {
        "optimize_sales__customers": {"merge/sales/customers"},
        "vacuum_sales__customers": {"merge/sales/customers"},
        "optimize_sales__orders_base": {"merge/sales/orders_base"},
        "vacuum_sales__orders_base": {"merge/sales/orders_base"},
    }


class OwnSensorComponent(LandingSensorComponent):
    team: str = "sales"


def test_a_subclass_of_the_landing_component_may_have_fields() -> None:
    own = f"type: {__name__}.OwnSensorComponent"
    text = AROUND_THEM.split("---")[0].replace("LANDING", "/x") + "  team: finance\n"
    text = re.sub("type: .*", own, text)
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "own"
        folder.mkdir()
        (folder / "defs.yaml").write_text(f"{EVENTS}---{text}")
        with sandbox.build_all_defs() as loaded:
            names = [each.name for each in loaded.sensors or []]
    assert "customers_landed" in names


TABLE: dict[str, Any] = {
    "asset": {"key": "orders"},
    "keys": ["id"],
    "source": {"type": "path", "path": "/x"},
}
EVENT_TABLE = {**TABLE, "sequence_by": "n"}


@pytest.mark.parametrize(
    ("component", "attributes", "problem"),
    [
        (CdcAssetComponent, TABLE, "sequence_by"),
        (CdcAssetComponent, {**EVENT_TABLE, "late_by": {"weeks": 1}}, "late_by"),
        (CdcAssetComponent, {**EVENT_TABLE, "late_by": {"days": -1}}, "greater than or equal"),
        (CdcAssetComponent, {**EVENT_TABLE, "stored_as_scd_type": 3}, "stored_as_scd_type"),
        (CdcAssetComponent, {**EVENT_TABLE, "keys": []}, "keys is a list"),
        (MergeOnReadAssetComponent, {**EVENT_TABLE, "strategy": "guess"}, "strategy"),
        (MergeOnReadAssetComponent, {**EVENT_TABLE, "table": "orders"}, "is not a path"),
        (
            LandingSensorComponent,
            {"name": "landed", "directory": "/x", "assets": ["order"]},
            "No component declares the table order; declared are: orders.",
        ),
        (
            LandingSensorComponent,
            {"name": "landed", "directory": "/x", "assets": ["orders"]},
            "orders has no partitions",
        ),
        (LandingSensorComponent, {"name": "landed", "directory": "/x", "assets": []}, "at least 1"),
        (TableChecksComponent, {"asset": [], "unique_key": ["id"]}, "at least 1"),
        (TableChecksComponent, {"asset": "orders"}, "Give unique_key, no_nulls"),
        (
            TableChecksComponent,
            {"asset": "orders", "no_nulls": ["id"], "blocking": ["unique_key"]},
            "blocking names 'unique_key'",
        ),
        (
            TableChecksComponent,
            {"asset": "orders", "source_rows": True, "blocking": ["unique_key"]},
            "blocking names 'unique_key'",
        ),
        (
            TableChecksComponent,
            {"asset": "orders", "unique_key": ["id"], "blocking": ["row_count_change"]},
            "blocking names 'row_count_change'",
        ),
        (
            TableChecksComponent,
            {"asset": "orders", "row_count_change": {}},
            "Give lowest or highest",
        ),
        (
            MaintenanceComponent,
            {"name": "n", "assets": ["orders"], "cron_schedule": "0 3 * * *", "operations": ["x"]},
            "'x' is none of optimize",
        ),
        (
            MaintenanceComponent,
            {"name": "n", "assets": ["orders"], "cron_schedule": "0 3 * * *", "operations": []},
            "list of operations is empty",
        ),
        (
            MaintenanceComponent,
            {"name": "n", "assets": [], "cron_schedule": "0 3 * * *"},
            "at least 1",
        ),
    ],
)
def test_yaml_that_cannot_be_meant_is_refused_at_load(
    sandbox: DefsFolderSandbox, component: type[Any], attributes: dict[str, Any], problem: str
) -> None:
    documents = [{"type": f"dagster_deltaweave.{component.__name__}", "attributes": attributes}]
    if "source" not in attributes:
        table = {"type": "dagster_deltaweave.MergeAssetComponent", "attributes": TABLE}
        documents.append(table)
    (sandbox.defs_folder_path / "a").mkdir()
    (sandbox.defs_folder_path / "a" / "defs.yaml").write_text(yaml.safe_dump_all(documents))
    with pytest.raises(ComponentTreeException) as refused, sandbox.build_all_defs() as loaded:
        loaded.get_repository_def()
    assert problem in all_messages(refused.value)


def test_what_is_scaffolded_loads_as_it_is(sandbox: DefsFolderSandbox) -> None:
    sandbox.scaffold_component(MergeAssetComponent, defs_path="orders")
    file = sandbox.defs_folder_path / "orders" / "defs.yaml"
    scaffolded = yaml.safe_load(file.read_text())
    scaffolded["attributes"]["dynamic_partitions"] = "landed"  # which the sensor needs
    file.write_text(yaml.safe_dump(scaffolded))
    sandbox.scaffold_component(CdcAssetComponent, defs_path="customers")
    sandbox.scaffold_component(MergeOnReadAssetComponent, defs_path="prices")
    sandbox.scaffold_component(LandingSensorComponent, defs_path="landed")
    sandbox.scaffold_component(TableChecksComponent, defs_path="checked")
    sandbox.scaffold_component(MaintenanceComponent, defs_path="nightly")
    with sandbox.build_all_defs() as loaded:
        repository = with_resources(loaded).get_repository_def()
    tables = repository.asset_graph.materializable_asset_keys
    assert {key.to_user_string() for key in tables} == {
        "orders",
        "customers",
        "prices",
        "prices_base",
        "prices_changes",
    }
    assert {sensor.name for sensor in repository.sensor_defs} == {
        "landed",
        "prices_rematerialization",
    }
    assert {key.name for key in repository.asset_graph.asset_check_keys} == {
        "unique_key",
        "no_nulls",
        "source_rows_accounted_for",
    }
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly"]


def test_the_yaml_of_the_guide_loads(sandbox: DefsFolderSandbox) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "how-to" / "components.md").read_text()
    [example] = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    (sandbox.defs_folder_path / "orders").mkdir()
    (sandbox.defs_folder_path / "orders" / "defs.yaml").write_text(example)
    with sandbox.build_all_defs() as loaded:
        repository = with_resources(loaded).get_repository_def()
    assert [sensor.name for sensor in repository.sensor_defs] == ["orders_landed"]
    assert {key.name for key in repository.asset_graph.asset_check_keys} == {
        "unique_key",
        "source_rows_accounted_for",
    }


def test_dg_finds_all_components() -> None:
    found = discover_entry_point_package_objects()
    components = [name for name in dagster_deltaweave.__all__ if name.endswith("Component")]
    assert len(components) == 7
    for name in components:
        key = EnvRegistryKey(namespace="dagster_deltaweave", name=name)
        assert found[key] is getattr(dagster_deltaweave, name)
