"""`deltaweave init`: what it makes loads as it is, and merges what lands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest
from dagster import DagsterInstance, Definitions, build_sensor_context
from dagster._core.workspace.load_target import get_origins_from_toml
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import deltaweave
from dagster_deltaweave import SparkResource
from deltaweave import Table
from deltaweave.cli import app


def init(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with the package `my_shop`, which this process can import."""
    made = init(tmp_path / "my-shop")
    assert made.exit_code == 0, made.output
    monkeypatch.syspath_prepend(str(tmp_path / "my-shop" / "src"))
    yield tmp_path / "my-shop"
    for name in [name for name in sys.modules if name.split(".")[0] == "my_shop"]:
        del sys.modules[name]


def definitions() -> Definitions:
    loaded = import_module("my_shop.definitions").defs()
    assert isinstance(loaded, Definitions)
    return loaded


def test_a_new_project_loads_without_a_session(project: Path) -> None:
    defs = definitions()
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    tables = {key.to_user_string() for key in graph.materializable_asset_keys}
    assert tables == {"orders", "orders_by_state"}
    checks = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    assert checks == {
        ("orders", "unique_key"),
        ("orders", "no_nulls"),
        ("orders", "source_rows_accounted_for"),
    }
    assert [sensor.name for sensor in repository.sensor_defs] == ["orders_landed"]
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly_upkeep"]
    spark = (defs.resources or {})["spark"]
    assert isinstance(spark, SparkResource)
    assert spark._spark_session is None


def test_what_is_written_names_the_package_and_the_release(project: Path) -> None:
    settings = (project / "pyproject.toml").read_text()
    assert 'root_module = "my_shop"' in settings
    assert f'"deltaweave[dagster,cli]=={deltaweave.__version__}"' in settings
    for file in project.rglob("*"):
        assert not file.name.endswith(".template")
        assert file.is_dir() or "$package" not in file.read_text(), file
    assert 'DAGSTER_HOME="$PWD/dagster_home" dagster dev' in (project / "README.md").read_text()


def test_the_location_has_one_name_whatever_starts_it(project: Path) -> None:
    # With another name in `[tool.dg.project]` than that of the origin, Dagster warns at each load.
    [origin] = get_origins_from_toml(str(project / "pyproject.toml"))
    assert origin.location_name == "my_shop"
    assert 'code_location_name = "my_shop"' in (project / "pyproject.toml").read_text()


def test_the_tables_have_groups_owners_and_comments(project: Path) -> None:
    specs = {spec.key.to_user_string(): spec for spec in definitions().resolve_all_asset_specs()}
    for name in ("orders_landing", "orders", "orders_by_state"):
        assert specs[name].group_name == "orders"
        assert specs[name].owners == ["team:shop"]
    for name in ("orders", "orders_by_state"):
        columns = specs[name].metadata["dagster/column_schema"].columns
        assert len(columns) == 3
        assert all(column.description for column in columns)


def test_the_next_steps_are_those_of_the_readme(tmp_path: Path) -> None:
    made = init(tmp_path / "shop")
    steps = [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")]
    assert steps[0] == f"cd {tmp_path / 'shop'}"
    readme = (tmp_path / "shop" / "README.md").read_text()
    block = readme.split("```")[1].strip().splitlines()
    assert steps[1:] == [line.split("#")[0].strip() for line in block]


def test_each_name_in_the_readme_is_there(project: Path) -> None:
    readme = (project / "README.md").read_text()
    names = set(re.findall(r"`([^`\n]+)`", readme.replace("```", "")))
    files = {name for name in names if name.startswith(("src/", "dagster_home/", ".github/"))}
    assert len(files) == 9
    assert [name for name in files if not (project / name).exists()] == []
    repository = definitions().get_repository_def()
    assert repository.has_sensor_def("orders_landed")
    orders = (project / "src" / "my_shop" / "defs" / "orders.py").read_text()
    for argument in (
        "SCHEMA = ",
        "keys=",
        "clauses=",
        "build_table_checks(",
        "read_source_partition(",
    ):
        assert argument in orders
    run_path(str(project / "tests" / "test_definitions.py"))["test_the_definitions_load"]()


def test_it_loads_once_what_the_readme_says_is_deleted(project: Path) -> None:
    readme = (project / "README.md").read_text()
    [step] = re.findall(r"^3\. Delete (.*?)^4\. ", readme, re.MULTILINE | re.DOTALL)
    module, folder, table, test = re.findall(r"`([^`]+)`", step)
    (project / module).unlink()
    shutil.rmtree(project / folder)
    written = (project / test).read_text()
    assert table in written
    (project / test).write_text(written.replace(f", {table}", ""))

    run_path(str(project / test))["test_the_definitions_load"]()
    keys = definitions().get_repository_def().asset_graph.materializable_asset_keys
    assert [key.to_user_string() for key in keys] == ["orders"]


def test_an_empty_directory_and_a_name_of_its_own_are_taken(tmp_path: Path) -> None:
    (tmp_path / "2026").mkdir()
    made = init(tmp_path / "2026", "--package", "shop")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "2026" / "src" / "shop" / "definitions.py").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("2026-orders", "'2026_orders' is not a valid name for a Python package"),
        ("orders.v2", "is not a valid name for a Python package"),
        ("bestellungen-für-alle", "is not a valid name for a Python package"),
        ("orders_", "is not a valid name for a Python package"),  # and of no distribution
        ("class", "is not a valid name for a Python package"),
        ("json", "has a package json already"),  # of the standard library
        ("dagster", "has a package dagster already"),
        ("full", "is not empty"),
        ("file", "is a file"),
    ],
)
def test_what_cannot_be_a_project_is_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    made = init(tmp_path / name)
    assert made.exit_code == 2, made.output
    assert said in made.stderr
    assert made.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_project_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(file: Path, text: str, **arguments: str) -> int:
        if file.name == "orders.py":
            raise OSError(28, "No space left on device")
        return write(file, text, **arguments)

    monkeypatch.setattr(Path, "write_text", full)
    made = init(tmp_path / "shop")
    assert made.exit_code == 1
    assert "cannot be written: No space left on device" in made.stderr
    assert list(tmp_path.iterdir()) == []


def land(project: Path) -> str:
    """Land the next batch as its README says; the name of its partition."""
    environment = {"PYTHONPATH": str(project / "src"), "PATH": ""}
    command = [sys.executable, "-m", "my_shop.land"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def merge_landed(defs: Definitions, instance: DagsterInstance, cursor: str | None) -> str | None:
    """Let the sensor tick and execute the one run that it requests; the sensor's next cursor."""
    context = build_sensor_context(
        instance=instance, instance_ref=instance.get_ref(), cursor=cursor, definitions=defs
    )
    tick = defs.resolve_sensor_def("orders_landed").evaluate_tick(context)
    for added in tick.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions("batches", list(added.partition_keys))
    [request] = tick.run_requests or []
    job = defs.resolve_job_def("merge_orders")
    done = job.execute_in_process(
        partition_key=request.partition_key, tags=dict(request.tags), instance=instance
    )
    assert done.success
    checks = done.get_asset_check_evaluations()
    assert {check.check_name: check.passed for check in checks} == {
        "unique_key": True,
        "no_nulls": True,
        "source_rows_accounted_for": True,
    }
    return tick.cursor


@pytest.mark.minutes
def test_a_new_project_merges_the_batches_that_land(
    project: Path, spark: SparkSession, instance: DagsterInstance
) -> None:
    same = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    settings = {key: spark.conf.get(key) for key in same}
    try:
        defs = definitions()
        assert land(project) == "batch-0001"
        cursor = merge_landed(defs, instance, None)
        orders = Table(spark, str(project / "lake" / "tables" / "orders"))
        # All of the first batch are new.
        assert orders.read().where("state = 'open'").count() == orders.read().count() == 10

        assert land(project) == "batch-0002"
        merge_landed(defs, instance, cursor)
    finally:
        for key, value in settings.items():
            spark.conf.set(key, str(value))
    rows = {row.id: (row.state, row.pieces) for row in orders.read().collect()}
    # 5 and 10 were cancelled, the others of the first batch sent; 11 to 20 are new.
    assert rows == {
        order: ("sent" if order <= 10 else "open", 1 + order % 7)
        for order in range(1, 21)
        if order not in (5, 10)
    }
    counts = Table(spark, str(project / "lake" / "tables" / "orders_by_state")).read()
    assert sorted((row.state, row.orders) for row in counts.collect()) == [
        ("open", 10),
        ("sent", 8),
    ]
