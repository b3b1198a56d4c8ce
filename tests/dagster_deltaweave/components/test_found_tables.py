"""DeltaTablesComponent: the tables below a root as external assets, from Dagster's state alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from dagster import AssetKey, AssetSpec, DagsterInstance, Definitions, asset, materialize
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import DeltaTablesComponent
from deltaweave import Table
from deltaweave.delta.jvm import active
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.components.refusals import all_messages

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def write_yaml(sandbox: DefsFolderSandbox, **attributes: Any) -> None:
    document = {"type": "dagster_deltaweave.DeltaTablesComponent", "attributes": attributes}
    (sandbox.defs_folder_path / "lake").mkdir(exist_ok=True)
    (sandbox.defs_folder_path / "lake" / "defs.yaml").write_text(yaml.safe_dump(document))


def refresh(sandbox: DefsFolderSandbox) -> None:
    """What `dg utils refresh-defs-state` does."""
    with sandbox.build_component_tree() as tree:
        [component] = tree.get_all_components(of_type=DeltaTablesComponent)
        asyncio.run(component.refresh_state(sandbox.project_root))


def keys(sandbox: DefsFolderSandbox) -> set[str]:
    with sandbox.build_all_defs() as defs:
        graph = defs.resolve_asset_graph()
        return {key.to_user_string() for key in graph.external_asset_keys}


@pytest.mark.minutes
def test_tables_are_assets_with_their_columns_and_inputs_of_others(
    spark: SparkSession,
    sandbox: DefsFolderSandbox,
    instance: DagsterInstance,
    resources: dict[str, Any],
    lake: Path,
) -> None:
    place = lake / "bronze" / "orders"
    table = Table(spark, str(place))
    columns = "id INT NOT NULL COMMENT 'of the shop', state STRUCT<since: DATE, `a.b`: STRING>"
    table.create_if_missing(columns, properties={"delta.checkpointInterval": "2"})
    spark.sql(f"COMMENT ON TABLE delta.`{place}` IS 'Every order once.'")
    rows = spark.createDataFrame([(1,)], "id INT").selectExpr("id", "NULL AS state")
    for _ in range(2):  # the second one makes a checkpoint
        table.write(rows, "append")
    write_yaml(sandbox, root=str(lake), key_prefix=["lake"])
    assert keys(sandbox) == set()  # nothing was looked for yet
    refresh(sandbox)

    key = AssetKey(["lake", "bronze", "orders"])
    with sandbox.build_all_defs() as defs:
        spec = defs.resolve_asset_graph().get(key).to_asset_spec()
    assert list((place / "_delta_log").glob("*.checkpoint.parquet"))
    assert spec.description == "Every order once."
    assert spec.kinds == {"delta"}
    metadata = dict(spec.metadata)
    found = [
        (each.name, each.type, each.description, each.constraints.nullable)
        for each in metadata.pop("dagster/column_schema").columns
    ]
    assert found == [
        ("id", "int", "of the shop", False),
        ("state", "struct<since:date,a.b:string>", None, True),
    ]
    for of_component in ("dagster/code_references", "dagster/component_origin"):
        metadata.pop(of_component, None)
    assert {name: getattr(each, "value", each) for name, each in metadata.items()} == {
        "dagster/table_name": f"delta.`{place}`",
        "dagster/uri": table.location(),
        "dagster/storage_kind": "deltalake",
        "deltaweave/table": str(place),
    }
    seen: list[Any] = []

    @asset
    def report(orders: DataFrame) -> None:
        seen.append(orders.count())

    renamed = spec.replace_attributes(key=AssetKey("orders"))
    assert materialize([renamed, report], resources=resources, instance=instance).success
    assert seen == [2]


def test_what_is_found_and_what_is_not(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    names = ["orders", "sales.db/a b", "sales.db/day=1", "x/y/z", "scratch/t", "sales.db/a`b"]
    names += ["too/far/a/way", "_tmp/t", ".trash/t", "orders/inner"]
    for number, name in enumerate(names):
        log = lake / name / "_delta_log"
        log.mkdir(parents=True)
        schema = r"{\"type\":\"struct\",\"fields\":[]}"
        (log / f"{number % 2:020}.json").write_text(
            f'{{"commitInfo":{{}}}}\n{{"metaData":{{"id":"i","schemaString":"{schema}"}}}}\n'
        )
    spark.range(1).write.parquet(str(lake / "files"))
    (lake / "empty" / "_delta_log").mkdir(parents=True)
    for name, text in {"torn": '{"metaData":{', "odd": '{"metaData":[1]}'}.items():
        (lake / name / "_delta_log").mkdir(parents=True)
        (lake / name / "_delta_log" / f"{0:020}.json").write_text(text)
    (lake / "new_type" / "_delta_log").mkdir(parents=True)
    of_tomorrow = r"{\"type\":\"struct\",\"fields\":[{\"name\":\"a\",\"type\":\"qubit\"}]}"
    (lake / "new_type" / "_delta_log" / f"{0:020}.json").write_text(
        f'{{"metaData":{{"schemaString":"{of_tomorrow}"}}}}'
    )
    (lake / "circle").symlink_to(lake)
    write_yaml(sandbox, root=f"file:{lake}", exclude=["scratch/*", "circle/*"])
    refresh(sandbox)
    assert keys(sandbox) == {"orders", "sales.db/a b", "sales.db/day=1", "x/y/z", "new_type"}
    with sandbox.build_all_defs() as defs:
        spec = defs.resolve_asset_graph().get(AssetKey("new_type")).to_asset_spec()
    assert "dagster/column_schema" not in spec.metadata


def test_definitions_follow_the_state_and_not_the_lake(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    for name in ("a", "b"):
        Table(spark, str(lake / name)).create_if_missing("id INT")
    write_yaml(sandbox, root=str(lake))
    refresh(sandbox)
    (lake / "b").rename(lake / "c")
    assert keys(sandbox) == {"a", "b"}
    refresh(sandbox)
    assert keys(sandbox) == {"a", "c"}
    write_yaml(sandbox, root=str(lake), key_prefix=["other"])
    assert keys(sandbox) == set()  # that component has a state of its own
    write_yaml(sandbox, root=str(lake))
    lake.rename(lake.with_name("gone"))
    with pytest.raises(SourceError, match="cannot be listed"):
        refresh(sandbox)
    assert keys(sandbox) == {"a", "c"}  # a deleted root does not count


def test_specs_are_translated_in_yaml_and_by_subclasses(
    sandbox: DefsFolderSandbox, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    found = {"path": ["bronze", "orders"], "location": "/lake/bronze/orders"}
    state.write_text(json.dumps({"tables": [{**found, "description": None, "columns": None}]}))

    class Owned(DeltaTablesComponent):
        def get_asset_spec(self, table: Mapping[str, Any]) -> AssetSpec:
            spec = super().get_asset_spec(table)
            return spec.replace_attributes(owners=[f"{table['name']}@example.com"])

    write_yaml(
        sandbox,
        root="/lake",
        key_prefix=["lake"],
        translation={
            "key_prefix": "eu",
            "group_name": "{{ table.path[0] }}",
            "metadata": {"of": "{{ spec.key.to_user_string() }}"},
        },
    )
    with sandbox.build_component_tree() as tree:
        [component] = tree.get_all_components(of_type=DeltaTablesComponent)
        [translated] = component.build_defs_from_state(tree.load_context, state).assets or []
        owned = Owned(root="/lake").build_defs_from_state(tree.load_context, state)

    assert isinstance(translated, AssetSpec)
    assert translated.key == AssetKey(["eu", "lake", "bronze", "orders"])
    assert translated.group_name == "bronze"
    assert translated.metadata["of"] == "lake/bronze/orders"
    assert translated.metadata["deltaweave/table"] == "/lake/bronze/orders"
    [of_orders] = owned.assets or []
    assert isinstance(of_orders, AssetSpec)
    assert of_orders.owners == ["orders@example.com"]


def test_components_that_look_differently_keep_states_of_their_own() -> None:
    looks: list[dict[str, Any]] = [
        {"root": "/lake"},
        {"root": "/la:ke"},
        {"root": "/la_ke"},
        {"root": "/ke", "key_prefix": ["la"]},
        {"root": "/la/ke"},
    ]
    keys = {DeltaTablesComponent(**each).defs_state_config.key for each in looks}
    assert len(keys) == len(looks)


def test_what_is_left_out_is_not_even_looked_at(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    Table(spark, str(lake / "a")).create_if_missing("id INT")
    for name in ("secret/deep", "private"):
        # It cannot be read: a refresh that looks at it fails, and leaves the state as it is.
        (lake / name / "_delta_log" / f"{0:020}.json").mkdir(parents=True)
    # A checkpoint of nobody, which no reader understands, and one whose Parquet is torn.
    for name, text in {"odd": '{"metaData":{"schemaString":7}}', "torn": "PAR1"}.items():
        log = lake / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text('{"commitInfo":{}}\n')
        (log / f"{0:020}.checkpoint.parquet").write_text(text)
    write_yaml(sandbox, root=str(lake))
    with pytest.raises(SourceError, match="cannot be listed"):
        refresh(sandbox)
    write_yaml(sandbox, root=str(lake), exclude=["secret", "private"])
    refresh(sandbox)
    assert keys(sandbox) == {"a"}


@pytest.mark.minutes
def test_a_part_of_a_checkpoint_alone_is_none(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    """As a writer leaves it that is killed between the parts; the rows are in the commits."""
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.checkpoint.partSize", "1")
    table = Table(session, str(lake / "orders"))
    table.create_if_missing("id INT", properties={"delta.checkpointInterval": "2"})
    with active(session):
        for number in range(2):
            table.write(session.createDataFrame([(number,)], "id INT"), "append")
    parts = sorted((lake / "orders" / "_delta_log").glob("*.checkpoint.*.parquet"))
    assert len(parts) > 1
    write_yaml(sandbox, root=str(lake))
    refresh(sandbox)
    assert keys(sandbox) == {"orders"}
    for part in parts:
        if any(pq.read_table(part)["metaData"].is_valid().to_pylist()):
            part.unlink()
    assert any(part.exists() for part in parts)
    refresh(sandbox)
    assert keys(sandbox) == {"orders"}


@pytest.mark.minutes
def test_a_checkpoint_with_damaged_pages_leaves_out_its_table_alone(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    for name in ("a", "b"):
        table = Table(spark, str(lake / name))
        table.create_if_missing("id INT", properties={"delta.checkpointInterval": "1"})
        table.write(spark.range(1).selectExpr("CAST(id AS INT) id"), "append")
    log = lake / "b" / "_delta_log"
    for commit in log.glob("*.json"):
        commit.unlink()
    [checkpoint] = log.glob("*.checkpoint.parquet")
    bytes_ = bytearray(checkpoint.read_bytes())
    for place in range(4, len(bytes_) // 2):  # the pages, and not the footer
        bytes_[place] ^= 0xFF
    checkpoint.write_bytes(bytes_)
    write_yaml(sandbox, root=str(lake))
    refresh(sandbox)
    assert keys(sandbox) == {"a"}


def test_what_is_excluded_later_is_removed_before_the_next_refresh(
    spark: SparkSession, sandbox: DefsFolderSandbox, lake: Path
) -> None:
    for name in ("a", "deep/b"):
        Table(spark, str(lake / name)).create_if_missing("id INT")
    where = {"management_type": "LOCAL_FILESYSTEM", "refresh_if_dev": False}
    write_yaml(sandbox, root=str(lake), defs_state=where)
    refresh(sandbox)
    write_yaml(sandbox, root=str(lake), defs_state=where, exclude=["deep"])
    assert keys(sandbox) == {"a"}


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"root": "s3://KEY:SECRET@bucket/lake"}, "holds credentials"),
        ({"root": "/lake", "levels": 0}, "greater than or equal to 1"),
        ({}, "root"),
    ],
)
def test_attributes_that_make_no_sense_are_refused(
    sandbox: DefsFolderSandbox, attributes: dict[str, Any], problem: str
) -> None:
    write_yaml(sandbox, **attributes)
    with pytest.raises(ComponentTreeException) as refused, sandbox.build_all_defs():
        pass
    assert problem in all_messages(refused.value)
    assert "SECRET" not in all_messages(refused.value)


PROGRAM = """
import sys
from pathlib import Path
from dagster_deltaweave import DeltaTablesComponent
component, state = DeltaTablesComponent(root=sys.argv[1]), Path(sys.argv[2])
component.write_state_to_path(state)
defs = component.build_defs_from_state(None, state)
from pyspark import SparkContext
print(len(defs.assets), SparkContext._gateway)
"""


@pytest.mark.minutes
def test_neither_a_refresh_nor_a_load_starts_a_jvm(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    Table(spark, str(lake / "a")).create_if_missing("id INT")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(lake), str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform"), "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["1", "None"]


def test_what_is_scaffolded_loads_without_assets(sandbox: DefsFolderSandbox) -> None:
    sandbox.scaffold_component(DeltaTablesComponent, defs_path="bronze")
    with sandbox.build_all_defs() as defs:
        assert isinstance(defs, Definitions)
        assert not list(defs.assets or [])
