"""MergeAssetComponent: a merge asset from a defs.yaml, loaded and scaffolded by Dagster's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import (
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    StaticPartitionsDefinition,
    materialize,
    mem_io_manager,
)
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from dagster_shared.serdes.objects import EnvRegistryKey
from pyspark.sql import SparkSession

from dagster_deltaweave import (
    MergeAssetComponent,
    SparkDeltaIOManager,
    SparkResource,
    merge_asset,
    partition_tags,
)
from dagster_deltaweave.components.table_component import PathSource, function_of_source
from dagster_deltaweave.tables.declaration import MergeDeclaration
from dagster_deltaweave.tables.metadata_declarations import merge_declaration_in
from deltaweave import Table
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.components.refusals import all_messages
from tests.dagster_deltaweave.conftest import Run, rows

ORDERS_KEY = AssetKey(["sales", "orders"])
TYPE = "dagster_deltaweave.MergeAssetComponent"

ORDERS = """
type: dagster_deltaweave.MergeAssetComponent
attributes:
  asset:
    key: sales/orders
    description: Every order once.
    owners: ["team:sales"]
    tags: {tier: gold}
    automation_condition: "{{ dg.AutomationCondition.eager() }}"
  keys: [id]
  clauses:
    - {when: matched, then: delete, condition: s.op = 'delete'}
    - {when: matched, then: update_all}
    - {when: not_matched, then: insert_all, condition: s.op <> 'delete'}
  except_column_list: [op]
  source: {type: path, path: "LANDING/{partition}", format: json, columns: "id INT, op STRING"}
  table_schema: id INT
  cluster_by: [id]
  properties: {delta.enableDeletionVectors: "false"}
  dynamic_partitions: landed_orders
  op: {pool: sales}
---
type: dagster_deltaweave.MergeAssetComponent
attributes:
  asset: {key: sizes}
  keys: [size]
  skip_unchanged_updates: true
  source:
    type: sql
    sql: "SELECT 'all' AS size, count(*) AS n FROM {orders}"
    upstreams: {orders: sales/orders}
---
type: dagster_deltaweave.MergeAssetComponent
attributes:
  asset: {key: letters}
  merge_text: "MERGE INTO {target} t USING {source} s ON t.v = s.v WHEN NOT MATCHED THEN INSERT *"
  source: {type: function, function: .orders.letters.both}
"""

LETTERS = """
from dagster_deltaweave import SparkResource

def both(spark: SparkResource):
    return spark.session.createDataFrame([("x",), ("y",)], "v STRING")
"""


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


@contextmanager
def loaded(sandbox: DefsFolderSandbox, resources: dict[str, Any]) -> Iterator[Definitions]:
    with sandbox.build_all_defs() as defs:
        yield Definitions.merge(defs, Definitions(resources=resources))


def declared(defs: Definitions, key: str) -> MergeDeclaration:
    asset_key = AssetKey.from_user_string(key)
    declaration = merge_declaration_in(
        defs.resolve_assets_def(asset_key).metadata_by_key[asset_key]
    )
    assert declaration is not None
    return declaration


@pytest.mark.minutes
def test_yaml_declares_assets_that_merge_files_queries_and_functions(
    spark: SparkSession,
    sandbox: DefsFolderSandbox,
    resources: dict[str, Any],
    instance: DagsterInstance,
    table: Callable[[str], Table],
    tmp_path: Path,
) -> None:
    landing = tmp_path / "landing"
    (landing / "p1").mkdir(parents=True)
    (landing / "p1" / "1.json").write_text('{"id": 1, "op": "upsert"}\n{"id": 2, "op": "delete"}')
    folder = sandbox.scaffold_component(MergeAssetComponent, defs_path="orders")
    (folder / "defs.yaml").write_text(ORDERS.replace("LANDING", str(landing)))
    (folder / "letters.py").write_text(LETTERS)

    with loaded(sandbox, resources) as defs:
        orders = defs.resolve_assets_def(ORDERS_KEY)
        spec = orders.specs_by_key[ORDERS_KEY]
        assert (list(spec.owners), spec.tags["tier"]) == (["team:sales"], "gold")
        assert spec.kinds == {"spark", "deltalake", "python"}
        assert spec.automation_condition == AutomationCondition.eager()
        assert spec.partitions_def == DynamicPartitionsDefinition(name="landed_orders")
        assert (spec.description, orders.op.pool) == ("Every order once.", "sales")
        assert declared(defs, "sales/orders").created_properties == {
            "delta.enableDeletionVectors": "false"
        }
        skips = [declared(defs, key).skip_unchanged_updates for key in ("sales/orders", "sizes")]
        assert skips == [False, True]

        instance.add_dynamic_partitions("landed_orders", ["p1"])
        others = [defs.resolve_assets_def(name) for name in ("sizes", "letters")]
        materialize([orders], partition_key="p1", instance=instance)
        materialize([orders, *others], selection=others, instance=instance)

    assert rows(table("sales/orders")) == [(1,)]
    assert rows(table("sizes")) == [("all", 1)]
    assert rows(table("letters")) == [("x",), ("y",)]


FILES = {"a": "id,v,w\n1,10,11\n", "b": "id,w,v\n2,21,20\n"}
BY_LETTER = StaticPartitionsDefinition([*FILES])


@pytest.mark.minutes
def test_yaml_reads_each_partition_of_a_run_by_itself(
    run: Run, table: Callable[[str], Table], tmp_path: Path
) -> None:
    for key, text in FILES.items():
        (tmp_path / "landing" / key).mkdir(parents=True)
        (tmp_path / "landing" / key / "1.csv").write_text(text)
    options = {"header": "true", "inferSchema": "true"}
    for name, runs in (("once", ["ab"]), ("each", ["a", "b"])):
        orders = of_files(tmp_path / "landing", name, format="csv", options=options)
        for keys in runs:
            run(orders, tags=partition_tags([*keys]))
    assert rows(table("once")) == rows(table("each")) == [(1, 10, 11), (2, 20, 21)]


@pytest.mark.minutes
def test_partitions_whose_columns_differ_are_refused_in_one_run(
    spark: SparkSession, run: Run, table: Callable[[str], Table], tmp_path: Path
) -> None:
    columns = {"a": "1 AS id, 'x' AS v", "b": "2 AS id, 'y' AS v, 7 AS w"}
    for key, some in columns.items():
        spark.sql(f"SELECT {some}").write.parquet(str(tmp_path / "landing" / key))
    orders = of_files(tmp_path / "landing", "orders", schema_policy="add")
    with pytest.raises(SourceError, match=r"a and b differ in the columns w(?s:.*)one by one"):
        run(orders, tags=partition_tags(["a", "b"]))
    for key in columns:
        run(orders, partition=key)
    assert rows(table("orders")) == [(1, "x", None), (2, "y", 7)]


def of_files(
    landing: Path, name: str, *, schema_policy: Any = "strict", **source: Any
) -> AssetsDefinition:
    """An asset as YAML makes it of the files of each partition."""
    read = function_of_source(PathSource(path=str(landing / "{partition}"), **source))
    return merge_asset(
        keys=["id"],
        name=name,
        partitions_def=BY_LETTER,
        schema_policy=schema_policy,
        required_resource_keys={"spark"},
    )(read)


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"clauses": [{"when": "matched", "then": "update"}]}, "`then: update` needs `set`"),
        ({"clauses": [{"when": "matched", "then": "delete", "set": {}}]}, "`set` goes with"),
        ({"clauses": [{"when": "matched", "then": "insert_all"}]}, "MERGE has no clause"),
        ({"schema_policy": "loose"}, "schema_policy"),
        ({"colour": "red"}, "colour"),
        ({"op": {"name": "merge"}}, "no `name` of its own"),
        ({"op": {"description": "Merges."}}, "no `description` of its own"),
        ({"on": "t.id = s.id"}, "exactly one of keys, on and merge_text"),
    ],
)
def test_yaml_that_cannot_be_meant_is_refused_at_load(
    sandbox: DefsFolderSandbox, attributes: dict[str, Any], problem: str
) -> None:
    required = {"asset": {"key": "a"}, "keys": ["id"], "source": {"type": "path", "path": "/x"}}
    sandbox.scaffold_component(
        MergeAssetComponent,
        defs_yaml_contents={"type": TYPE, "attributes": {**required, **attributes}},
    )

    with pytest.raises(ComponentTreeException) as refused, sandbox.build_all_defs():
        pass
    assert problem in all_messages(refused.value)


def test_the_op_of_yaml_has_its_tags_and_pool(sandbox: DefsFolderSandbox) -> None:
    attributes = {
        "asset": {"key": "a"},
        "keys": ["id"],
        "source": {"type": "path", "path": "/x"},
        "op": {"pool": "sales", "tags": {"dagster/priority": "7"}},
    }
    sandbox.scaffold_component(
        MergeAssetComponent, defs_yaml_contents={"type": TYPE, "attributes": attributes}
    )
    with loaded(sandbox, {"spark": 1, "io_manager": mem_io_manager}) as defs:
        op = defs.resolve_assets_def(AssetKey("a")).op
    assert (op.pool, dict(op.tags)) == ("sales", {"dagster/priority": "7"})


def test_what_is_scaffolded_loads_as_it_is(sandbox: DefsFolderSandbox) -> None:
    folder = sandbox.scaffold_component(MergeAssetComponent, defs_path="my_table")

    written = yaml.safe_load((folder / "defs.yaml").read_text())
    assert written["attributes"]["asset"]["key"] == "my_table"
    spark = SparkResource()
    io_manager = SparkDeltaIOManager(root="/lake", spark=spark)
    with loaded(sandbox, {"spark": spark, "io_manager": io_manager}) as defs:
        assert declared(defs, "my_table").on == "t.`id` = s.`id`"


def test_dg_finds_the_component() -> None:
    [registered] = [
        each
        for each in entry_points(group="dagster_dg_cli.registry_modules")
        if each.name == "dagster_deltaweave"
    ]
    assert registered.value == "dagster_deltaweave"
    key = EnvRegistryKey(namespace="dagster_deltaweave", name="MergeAssetComponent")
    assert discover_entry_point_package_objects()[key] is MergeAssetComponent
