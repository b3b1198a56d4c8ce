"""The wheel holds the two packages, works without the repository, and brings nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.minutes

ROOT = Path(__file__).parents[2]

MERGE = """
import sys
import deltaweave
from deltaweave import Table

assert deltaweave.__file__.startswith(sys.prefix), deltaweave.__file__
spark = deltaweave.local_session(**{"spark.ui.enabled": "false", "spark.log.level": "OFF"})
table = Table(spark, sys.argv[1])
table.create_if_missing("k INT, v INT")
source = spark.createDataFrame([(1, 10), (2, 20)], "k INT, v INT")
merge = table.merge(source, on="t.k = s.k").when_matched_update_all()
assert merge.when_not_matched_insert_all().execute().version == 1
assert table.read().count() == 2
"""

DEFINITIONS = """
import sys
import dagster_deltaweave
from dagster import Definitions
from dagster_deltaweave import SparkDeltaIOManager, SparkResource, merge_asset

assert dagster_deltaweave.__file__.startswith(sys.prefix), dagster_deltaweave.__file__

@merge_asset(keys=["id"])
def orders():
    return None

io_manager = SparkDeltaIOManager(root=sys.argv[1], spark=SparkResource())
definitions = Definitions(assets=[orders], resources={"io_manager": io_manager})
definitions.resolve_asset_graph()
for name in ("assets", "resources", "benchmarks"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"the wheel brought {name}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT]
    subprocess.run(build, check=True)
    [built] = folder.glob("deltaweave-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel alone."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "--no-deps", wheel]
    subprocess.run(install, check=True)
    return folder / "bin" / "python"


def run(python: Path, program: str, folder: Path) -> None:
    """Run a program with the wheel; its dependencies are those of the tests' environment."""
    # On PYTHONPATH, a folder's .pth files are not read: the editable install is not found by them.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [python, "-c", program, folder / "lake"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_wheel_holds_the_two_packages_and_their_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"deltaweave", "dagster_deltaweave"}
    for package in packages:
        # The stubs are read when a public name is asked for.
        assert {f"{package}/py.typed", f"{package}/__init__.pyi"} <= names
    assert "deltaweave/log_store/deltaweave-log-store.jar" in names


def test_the_public_names_are_found_in_the_zipped_wheel(wheel: Path) -> None:
    # As Spark's --py-files has it.
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import deltaweave, dagster_deltaweave; "
        "[getattr(package, name) for package in (deltaweave, dagster_deltaweave)"
        " for name in package.__all__]; print(deltaweave.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith(str(wheel)), done.stderr[-3000:]


def test_a_project_begins_from_the_wheel(python: Path, tmp_path: Path) -> None:
    run(python, "from deltaweave.cli import app; app(['init', 'shop'])", tmp_path)
    made = {str(file.relative_to(tmp_path / "shop")) for file in (tmp_path / "shop").rglob("*.*")}
    # The names that begin with a dot are there, and what lies in folders.
    assert {".gitignore", "pyproject.toml", "dagster_home/dagster.yaml"} <= made
    assert "src/shop/defs/orders_by_state/defs.yaml" in made


def test_a_merge_runs_from_the_wheel(python: Path, tmp_path: Path) -> None:
    run(python, MERGE, tmp_path)


def test_definitions_load_from_the_wheel(python: Path, tmp_path: Path) -> None:
    run(python, DEFINITIONS, tmp_path)
