"""The dbt project of examples/dbt does what its README says, and its merges run on the engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import deltalake
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "dbt"
REQUIREMENTS = str(EXAMPLE / "requirements.txt")
README = (EXAMPLE / "README.md").read_text()

COUNTED = ("Updated", "Inserted", "Deleted")
AFTER_FIRST = [(1, "open", 5, 1), (2, "open", 1, 2), (3, "open", 2, 3)]
AFTER_MORE = [(1, "open", 5, 1), (2, "sent", 1, 4), (3, "cancelled", 2, 5), (4, "open", 7, 6)]


def block(name: str) -> str:
    """The one block of the README with these words behind its backticks."""
    [text] = re.findall(rf"^```{name}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with dbt, which finds all else in the tests' own; its `bin`."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # pip finds PySpark there, too, and does not download it.
    (packages / "tests.pth").write_text(sysconfig.get_path("purelib"))
    install = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*install, "-r", REQUIREMENTS], capture_output=True, text=True, check=False
    )
    if "(from versions: none)" in done.stderr:
        pytest.skip(f"no registry has dbt: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns(".venv", "logs", "target", "metastore_db", "spark-warehouse")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "dbt", ignore=ignored))


def run(commands: str, project: Path, environment: Path) -> str:
    """What commands of the README print."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    variables = {
        **os.environ,
        "PATH": f"{environment}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f".{os.pathsep}{ROOT / 'platform'}",
        # Derby waits for no disk: nobody needs the metastore after a crash.
        "SPARK_SUBMIT_OPTS": f"{options} -Dderby.system.durability=test",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def orders(project: Path) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(project / "spark-warehouse" / "shop.db" / "orders")


def rows(table: deltalake.DeltaTable) -> list[tuple[int, str, int, int]]:
    found = table.to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["state"], row["pieces"], row["event"]) for row in found)


def writers(table: deltalake.DeltaTable) -> set[str]:
    """The libraries that wrote the table's files: `parquet-mr` is Spark's."""
    files = table.file_uris()
    return {pq.read_metadata(file).created_by.split(" version ")[0] for file in files}


def test_where_no_project_of_spark_runs_nothing_is_imported() -> None:
    program = "import sys, dbt_deltaweave; assert not {'pyspark', 'deltaweave'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=EXAMPLE, check=True)


@pytest.mark.minutes
def test_the_commands_of_the_readme_merge_on_the_engine(project: Path, environment: Path) -> None:
    run(block("sh first"), project, environment)
    table = orders(project)
    assert rows(table) == AFTER_FIRST
    assert writers(table) == {"parquet-mr"}

    run(block("sh more"), project, environment)
    table = orders(project)
    assert rows(table) == AFTER_MORE
    assert table.version() == 1
    [merge, _] = table.history()
    assert merge["operation"] == "MERGE"
    counts = {name: int(merge["operationMetrics"][f"numTargetRows{name}"]) for name in COUNTED}
    assert counts == {"Updated": 2, "Inserted": 1, "Deleted": 0}
    # Delta's own MERGE writes its files by Spark; the engine writes those of a small merge itself.
    assert writers(table) == {"parquet-cpp-arrow"}

    shown = run(f"dbt run\n{block('sh show')}", project, environment)
    assert orders(project).version() == 1  # nothing was new
    for line in README.splitlines():
        assert line in shown or not line.startswith("| ")
