"""The examples of docs/how-to, run as they stand, and the site's structure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import AssetKey, AssetsDefinition
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from packaging.specifiers import SpecifierSet
from pyspark.sql import SparkSession

import deltaweave
from dagster_deltaweave import DeltaTablesComponent, MergeAssetComponent, SparkResource
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    MergeDeclaration,
    merge_declaration_in,
    table_location,
)
from deltaweave import Table
from deltaweave._session import delta_conf

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"


def example(page: str, language: str) -> str:
    """The one block of a page with these words behind its backticks."""
    text = (HOW_TO / page).read_text()
    [code] = re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(str(code))


def names_of(page: str, language: str) -> dict[str, Any]:
    """What a block defines."""
    names: dict[str, Any] = {}
    # Dagster takes the annotation of `context` as a class.
    exec(compile(example(page, language), page, "exec", dont_inherit=True), names)
    return names


def declared(asset: AssetsDefinition) -> MergeDeclaration:
    declaration = merge_declaration_in(asset.metadata_by_key[asset.key])
    assert declaration is not None
    return declaration


def test_a_table_of_another_library_is_where_it_was() -> None:
    defs = names_of("from-dagster-delta.md", "python asset")["defs"]
    assert declared(defs.resolve_assets_def("orders")).table == "/lake/public/orders"


def test_an_asset_without_deletion_vectors_declares_so() -> None:
    orders = names_of("readers-without-deletion-vectors.md", "python asset")["orders"]
    assert declared(orders).created_properties == {"delta.enableDeletionVectors": "false"}


@pytest.mark.parametrize("environment", ["dev", "prod"])
def test_each_environment_has_its_own_tables(environment: str) -> None:
    defs = names_of("environments.md", "python resources")["definitions"](environment)
    assert defs.resources["io_manager"].root.endswith(f"lake/{environment}")


def test_what_other_systems_declare_is_declared_as_the_pages_say() -> None:
    orders = names_of("from-dbt.md", "python asset")["orders"]
    assert (declared(orders).table, declared(orders).keys) == ("shop.orders", ("id",))
    customers = names_of("from-apply-changes.md", "python asset")["customers"]
    changes = table_location(customers.metadata_by_key[customers.key], asset="customers")
    assert isinstance(changes, ChangesDeclaration)
    assert changes.arguments["except_column_list"] == ["op", "lsn"]


@pytest.mark.minutes
def test_rows_taken_along_are_older_than_every_event(spark: SparkSession, tmp_path: Path) -> None:
    old = spark.createDataFrame([(1, "old"), (2, "old")], "id INT, name STRING")
    old.write.format("delta").save(str(tmp_path / "old_customers"))
    code = example("from-apply-changes.md", "python rows").replace("/lake", str(tmp_path))
    exec(code, {"spark": spark, "deltaweave": deltaweave})
    exec(code, {"spark": spark, "deltaweave": deltaweave})  # once more changes nothing
    events = spark.createDataFrame([(1, "new", 7)], "id INT, name STRING, lsn BIGINT")
    deltaweave.apply_changes(
        spark,
        str(tmp_path / "customers"),
        events,
        keys=["id"],
        sequence_by="lsn",
        except_column_list=["lsn"],
    )
    table = Table(spark, str(tmp_path / "customers"))
    assert sorted((row.id, row.name) for row in table.read().collect()) == [(1, "new"), (2, "old")]


def test_the_image_of_the_containers_page_has_what_the_package_needs() -> None:
    image = example("containers.md", "dockerfile")
    needed = metadata("deltaweave")
    [python], [java] = (
        re.findall(pattern, image) for pattern in (r"python:([\d.]+)", r"jdk-(\d+)")
    )
    [extras] = re.findall(r"whl\)\[([\w,]+)\]", image)
    assert python in SpecifierSet(needed["Requires-Python"])
    assert java in {"17", "21"}  # as `deltaweave doctor`, which the image runs, requires
    assert set(extras.split(",")) <= set(needed.get_all("Provides-Extra") or ())
    resources = yaml.safe_load(example("containers.md", "yaml"))
    resources = resources["dagster-k8s/config"]["container_config"]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


@pytest.mark.parametrize("page", ["clusters.md", "object-stores.md"])
def test_resources_of_a_page_are_valid(page: str) -> None:
    spark = names_of(page, "python resource")["spark"]
    assert isinstance(spark, SparkResource)
    assert spark.warm


def test_assets_are_tested_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    names_of("testing.md", "python without-spark")["test_orders_reads_its_days"]()
    shared = {"spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"}
    before = {key: spark.conf.get(key) for key in shared}
    try:
        names = names_of("testing.md", "python with-spark")
        resources = names["resources"].__wrapped__(tmp_path)
        names["test_orders_are_merged_once"](resources, tmp_path)
        recorded = names_of("testing.md", "python with-recorded-tables")
        recorded["test_states_are_counted"](tmp_path / "copy", recorded_tables=tmp_path)
    finally:  # the resource sets them on the session of all tests
        for key, value in before.items():
            spark.conf.set(key, str(value))


def test_a_session_of_ones_own_gets_what_a_session_of_ours_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, str] = {}

    class Builder:
        def config(self, key: str, value: str) -> Builder:
            found[key] = value
            return self

        def getOrCreate(self) -> None:  # noqa: N802  # as PySpark calls it
            return None

    monkeypatch.setattr(SparkSession, "builder", Builder())
    names_of("own-spark-session.md", "python session")
    assert found == delta_conf()


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as sandbox:
        yield sandbox


def test_the_yaml_and_the_resources_of_the_dg_page_load(sandbox: DefsFolderSandbox) -> None:
    folder = sandbox.scaffold_component(MergeAssetComponent, defs_path="orders")
    (folder / "defs.yaml").write_text(example("dg-and-yaml.md", "yaml"))
    found = sandbox.scaffold_component(DeltaTablesComponent, defs_path="bronze")
    (found / "defs.yaml").write_text(example("dg-and-yaml.md", "yaml found"))
    (folder.parent / "resources.py").write_text(example("dg-and-yaml.md", "python resources"))

    with sandbox.build_all_defs() as defs:
        declaration = declared(defs.resolve_assets_def(AssetKey(["sales", "orders"])))
        assert set(defs.resources or {}) >= {"spark", "io_manager"}
    assert declaration.except_column_list == ("op",)
    assert declaration.skip_unchanged_updates
    assert len(declaration.clauses) == 3


@pytest.mark.minutes
def test_a_rewritten_merge_does_what_it_did_and_explain_says_so(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = "id INT, state STRING"
    changes = spark.createDataFrame([(1, "cancelled"), (2, "sent"), (4, "open")], schema)
    changes.createOrReplaceTempView("changes")
    found = []
    for block in ("before", "after"):
        lake = str(tmp_path / block)
        table = Table(spark, f"{lake}/orders")
        table.create_if_missing(schema)
        spark.createDataFrame([(i, "open") for i in (1, 2, 3)], schema).write.format("delta").mode(
            "append"
        ).save(table.path_or_name)
        names = {"spark": spark, "changes": changes, "deltaweave": deltaweave}
        if block == "after":
            exec(example("tuning.md", "python explain").replace("/lake", lake), names)
        exec(example("from-deltatable-merge.md", f"python {block}").replace("/lake", lake), names)
        found.append(sorted(map(tuple, table.read().collect())))
    assert found == [[(2, "sent"), (3, "open"), (4, "open")]] * 2
    explained, result = capsys.readouterr().out.split("committed version")
    assert "after the source's keys" in explained
    assert "1 updated, 1 inserted, 1 deleted" in result


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_of(entry)


class _Loader(yaml.SafeLoader):
    """Reads the site's configuration, which names a function of the generator."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


def test_the_site_has_every_page_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    documents = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    others = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    others.add("platform/ARCHITECTURE.md")
    assert sorted(pages_of(nav)) == sorted(documents | others)


def test_no_paragraph_of_the_documentation_has_more_than_six_lines() -> None:
    begins_another = re.compile(r"\s*([-*|#>]|\d+\.) ?|<|\[[^\]]+\]:")
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / f"{name}.md" for name in ("README", "SECURITY")),
    ]
    long = []
    for page in pages:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        lines = 0
        for line in text.splitlines():
            lines = 1 if begins_another.match(line) else lines + 1 if line.strip() else 0
            if lines == 7:
                long.append(f"{page.name}: {line}")
    assert long == []
