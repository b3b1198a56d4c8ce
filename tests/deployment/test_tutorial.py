"""The tutorial's files load, and its pages' commands and files do what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, Definitions, ExecuteInProcessResult
from pyspark.sql import SparkSession

from deltaweave import Table
from tests.support.sensor_ticks import launch, requested, tick

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples" / "tutorial").glob("*.py"))
PAGES = ROOT / "docs" / "tutorial"

LOADED = """
import runpy, sys
from pathlib import Path
from pyspark import SparkContext
for file in sys.argv[1:]:
    repository = runpy.run_path(file)["defs"].get_repository_def()
    repository.get_all_jobs()
    assert SparkContext._gateway is None, "a JVM was started"
    keys = sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys())
    print(Path(file).stem, *keys)
"""


def definitions(name: str) -> Definitions:
    spec = spec_from_file_location(name, ROOT / "examples" / "tutorial" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    defs = module.defs
    assert isinstance(defs, Definitions)
    return defs


def deliveries(page: str) -> list[str]:
    """The blocks of commands on a page that land something."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "lake/landing" in block]


def land(commands: str, folder: Path) -> None:
    subprocess.run(["bash", "-euc", commands], cwd=folder, check=True)


def test_each_file_loads_by_itself_and_starts_no_jvm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *map(str, FILES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "first_cdc_stream customers customers_base customers_by_letter customers_changes",
        "first_check orders pieces_by_state",
        "first_sensor orders",
        "first_table orders",
    ]


def test_each_file_is_on_a_page_as_it_is() -> None:
    shown = [
        file
        for page in PAGES.glob("*.md")
        for file in re.findall(
            r"^--8<--\nexamples/tutorial/(\w+\.py)\n--8<--$", page.read_text(), re.MULTILINE
        )
    ]
    assert sorted(shown) == [file.name for file in FILES]


def test_dagsters_home_of_the_tutorial_shows_no_dialog(tmp_path: Path) -> None:
    [block] = re.findall(
        r"^```sh\n(mkdir -p lake/dagster\n.*?)^```$",
        (PAGES / "index.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    land(f'{block}\ntest -f "$DAGSTER_HOME/dagster.yaml"', tmp_path)
    with DagsterInstance.from_config(str(tmp_path / "lake" / "dagster")) as instance:
        assert not instance.telemetry_enabled
        assert not instance.nux_enabled


def test_each_step_says_how_dagster_is_started_with_its_file() -> None:
    for page in PAGES.glob("first-*.md"):
        text = page.read_text()
        [file] = re.findall(r"^--8<--\n(examples/tutorial/\w+\.py)\n--8<--$", text, re.MULTILINE)
        assert f".venv/bin/dagster dev -f {file}\n" in text


@pytest.fixture
def _as_it_was(spark: SparkSession) -> Iterator[None]:
    """A resource's configuration stays in the session of all tests."""
    keys = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")
    before = {key: spark.conf.get(key) for key in keys}
    yield
    for key, value in before.items():
        spark.conf.set(key, str(value))


def merged(
    job: str | None, defs: Definitions, instance: DagsterInstance, **arguments: Any
) -> ExecuteInProcessResult:
    of_all = defs.resolve_implicit_global_asset_job_def()
    return (defs.resolve_job_def(job) if job else of_all).execute_in_process(
        instance=instance, raise_on_error=False, **arguments
    )


@pytest.mark.minutes
@pytest.mark.usefixtures("_as_it_was")
def test_the_steps_do_what_their_pages_say(
    spark: SparkSession, instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))

    def rows(table: str) -> list[tuple[Any, ...]]:
        found = Table(spark, str(tmp_path / "lake" / "tables" / table)).read().collect()
        return sorted(map(tuple, found))

    def sensor_requests(defs: Definitions, day: str) -> None:
        """A tick, without the cursor of an earlier step, requests the day; its run is known."""
        asked = tick(defs, instance)
        assert requested(asked) == [day]
        instance.add_dynamic_partitions("days_of_orders", [day])
        launch(instance, "orders_landed", asked)

    def base_rows() -> list[tuple[Any, ...]]:
        return [row[:2] for row in rows("customers_base")]  # without _cdc_sequence

    assert merged(None, definitions("first_table"), instance).success
    assert rows("orders") == [(1, "open", 5), (2, "sent", 1)]

    [first, second] = deliveries("first-sensor.md")
    defs = definitions("first_sensor")
    land(first, tmp_path)
    sensor_requests(defs, "2026-01-01")
    assert merged(None, defs, instance, partition_key="2026-01-01").success
    assert rows("orders") == [(1, "sent", 5), (2, "sent", 1), (3, "open", 2)]
    land(second, tmp_path)
    sensor_requests(defs, "2026-01-02")
    assert merged(None, defs, instance, partition_key="2026-01-02").success
    assert rows("orders") == [(1, "sent", 5), (2, "sent", 1), (3, "sent", 2), (4, "open", 7)]

    [broken, corrected] = deliveries("first-check.md")
    defs = definitions("first_check")
    for delivery, succeeds in ((broken, False), (corrected, True)):
        land(delivery, tmp_path)
        sensor_requests(defs, "2026-01-03")
        run = merged("merge_orders", defs, instance, partition_key="2026-01-03")
        assert run.success is succeeds
        passed = {each.check_name: each.passed for each in run.get_asset_check_evaluations()}
        assert passed == {
            "unique_key": True,
            "no_nulls": succeeds,
            "source_rows_accounted_for": True,
        }
        assert (tmp_path / "lake" / "tables" / "pieces_by_state").exists() is succeeds
    assert rows("pieces_by_state") == [("open", 8), ("sent", 8)]

    [early, late] = deliveries("first-cdc-stream.md")
    defs = definitions("first_cdc_stream")
    land(early, tmp_path)
    assert merged(None, defs, instance).success
    assert base_rows() == [(1, "Ada"), (2, "Grace")]
    land(late, tmp_path)
    appended = [AssetKey("customers_changes")]
    assert merged(None, defs, instance, asset_selection=appended).success
    read = [AssetKey("customers_by_letter")]
    assert merged(None, defs, instance, asset_selection=read).success
    # Ada was renamed by the newest event, Grace deleted, Edsger is new.
    assert rows("customers_by_letter") == [("A", 1), ("E", 1)]
    assert base_rows() == [(1, "Ada"), (2, "Grace")]  # not merged yet
    base = [AssetKey("customers_base")]
    assert merged(None, defs, instance, asset_selection=base).success
    assert base_rows() == [(1, "Ada L."), (3, "Edsger")]
