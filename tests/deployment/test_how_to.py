"""The examples of docs/how-to, run as they stand, and the site's structure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
import yaml
from dagster import AssetKey, AssetsDefinition
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from packaging.specifiers import SpecifierSet
from pyspark.sql import SparkSession

import deltaweave
from dagster_deltaweave import (
    DeltaTablesComponent,
    MergeAssetComponent,
    SparkResource,
)
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


@contextmanager
def kept_settings(spark: SparkSession) -> Iterator[None]:
    """Reset what a resource of a page sets on the session of all tests."""
    shared = {"spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions"}
    before = {key: spark.conf.get(key) for key in shared}
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))


def test_assets_are_tested_as_the_page_says(spark: SparkSession, tmp_path: Path) -> None:
    names_of("testing.md", "python without-spark")["test_orders_reads_its_days"]()
    with kept_settings(spark):
        names = names_of("testing.md", "python with-spark")
        resources = names["resources"].__wrapped__(tmp_path)
        names["test_orders_are_merged_once"](resources, tmp_path)
        recorded = names_of("testing.md", "python with-recorded-tables")
        recorded["test_states_are_counted"](tmp_path / "copy", recorded_tables=tmp_path)


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


@pytest.mark.minutes
@pytest.mark.parametrize("scd_type", [1, 2])
def test_no_file_has_a_person_whose_rows_were_deleted(
    spark: SparkSession, tmp_path: Path, scd_type: int
) -> None:
    path = str(tmp_path / "customers")
    options: dict[str, Any] = {"keys": ["id"], "sequence_by": "lsn"}
    options |= {"apply_as_deletes": "op = 'd'", "except_column_list": ["op", "lsn"]}
    names = names_of("delete-a-person.md", "python delete")
    exec(example("delete-a-person.md", "python purge"), names)

    def apply(*events: tuple[Any, ...]) -> None:
        rows = spark.createDataFrame(list(events), "id INT, name STRING, op STRING, lsn BIGINT")
        deltaweave.apply_changes(spark, path, rows, stored_as_scd_type=scd_type, **options)

    def set_properties(table: str, **properties: str) -> None:
        given = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({given})")

    apply((7, "Ada", "u", 1), (8, "Bob", "u", 2))
    set_properties(path, enableChangeDataFeed="true", enableDeletionVectors="true")
    apply((7, "Ada L.", "u", 4), (7, None, "d", 3), (8, None, "d", 5))
    apply((7, "Ada M.", "u", 6), (7, "Ada K.", "u", 2), (8, "Bob B.", "u", 7))
    for table in names["tables"](spark, path):
        set_properties(table.path_or_name, deletedFileRetentionDuration="interval 0 hours")
    names["forget"](spark, path, 7)
    if scd_type == 1:
        names["keep_away"](spark, path, 7, **options)
        apply((7, "Ada late", "u", 5))
    names["purge"](spark, path)

    files = [each for each in tmp_path.rglob("*.parquet") if "_delta_log" not in each.parts]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert any("Bob" in str(row) for row in rows)
    assert [row for row in rows if "Ada" in str(row)] == []
    assert [row.name for row in Table(spark, path).read().where("id = 7").collect()] == []


@pytest.mark.minutes
def test_a_history_has_the_rows_of_each_moment(spark: SparkSession, tmp_path: Path) -> None:
    def of_lake(language: str) -> str:
        return example("histories.md", language).replace("/lake", str(tmp_path))

    landing = tmp_path / "landing" / "customers"
    landing.mkdir(parents=True)
    days = {
        "2026-01-01": ("Ada", "Bern"),
        "2026-02-01": ("Ada L.", "Bern"),
        "2026-03-01": ("Ada L.", "Rome"),
    }
    events = [
        {"id": 1, "name": name, "city": city, "op": "u", "changed_at": f"{day}T00:00:00Z"}
        for day, (name, city) in reversed(days.items())
    ]
    events.append({"id": 1, "op": "d", "changed_at": "2026-04-01T00:00:00Z"})
    (landing / "1.json").write_text("\n".join(map(json.dumps, events)))
    names: dict[str, Any] = {}
    exec(compile(of_lake("python asset"), "histories.md", "exec", dont_inherit=True), names)
    with kept_settings(spark):
        assert names["defs"].resolve_implicit_global_asset_job_def().execute_in_process().success
    exec(of_lake("python query"), names)

    def city_of(day: str) -> list[str]:
        moment = datetime.fromisoformat(f"{day}T12:00:00+00:00")
        return [row.city for row in names["as_of"](spark, moment).collect()]

    found = {day: city_of(day) for day in ("2025-12-31", "2026-02-02", "2026-03-02", "2026-04-02")}
    assert list(found.values()) == [[], ["Bern"], ["Rome"], []]
    assert Table(spark, str(tmp_path / "customers")).row_count() == 2
    orders = spark.sql(
        "SELECT 5 AS id, 1 AS customer, timestamp'2026-02-15T00:00:00Z' AS ordered_at"
    )
    orders.write.format("delta").save(str(tmp_path / "orders"))
    assert [tuple(row) for row in spark.sql(of_lake("sql order")).collect()] == [(5, "Bern")]


@pytest.mark.minutes
def test_alerts_are_sent_for_failed_runs_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    names = names_of("alerts.md", "python alerts")

    @dg.asset
    def broken() -> None:
        raise ValueError("no such file")

    @dg.asset
    def orders() -> None: ...

    @dg.asset_check(asset=orders)
    def changed_recently() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, description="Rows changed 7 hours ago")

    own = dg.Definitions(
        assets=[broken, orders],
        asset_checks=[changed_recently],
        resources={"io_manager": dg.mem_io_manager},
    )
    defs = dg.Definitions.merge(names["defs"], own)
    with dg.DagsterInstance.ephemeral() as instance:
        for asset, sensor in (("orders", "failed_checks"), ("broken", "failed_runs")):
            ran = defs.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=instance, raise_on_error=False, asset_selection=[dg.AssetKey(asset)]
            )
            [end] = [each for each in ran.all_events if each.is_job_success or each.is_job_failure]
            context = dg.build_run_status_sensor_context(sensor, end, instance, ran.dagster_run)
            names[sensor](context.for_run_failure() if end.is_job_failure else context)
    [check, failure] = capsys.readouterr().out.splitlines()[:2]
    assert check == "changed_recently of orders: Rows changed 7 hours ago"
    assert re.fullmatch(r"broken failed in run [\w-]+: ValueError: no such file", failure)
    looked_at = {
        each.name for each in names["look"].selection.resolve_checks(defs.resolve_asset_graph())
    }
    assert looked_at == {"changed_recently", "no_rescued_events"}


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
