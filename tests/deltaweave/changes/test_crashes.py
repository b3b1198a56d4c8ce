"""Processes that are killed at any point of ingestion, rematerialization and purging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.crashes import BATCHES, POINTS, ingest, land, table_at

pytestmark = pytest.mark.minutes

# Rows by the newest batch that the table has.
ROWS = {
    1: {(1, 10), (2, 20), (3, 30)},
    2: {(1, 11), (3, 30), (4, 40)},
    3: {(1, 11), (3, 31), (4, 40), (5, 50)},
}


@pytest.fixture(scope="module")
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tables whose process was killed; the third batch landed since."""
    folder = tmp_path_factory.mktemp("crashed")
    points = [
        item.callspec.params["point"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    root = Path(__file__).parents[3]
    program = subprocess.run(
        [sys.executable, "-m", "tests.support.crashes", str(folder), *points],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'platform'}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,  # it kills its group
        check=False,
    )
    assert program.returncode == -signal.SIGKILL, program.stderr[-4000:]
    land(folder, 3)
    return folder


# Between the two commits of each; the other points take CI beyond its time.
TELLING = [
    "appended, and the stream does not know",
    "merged",
    "overwritten",
]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(name, marks=() if name in TELLING else pytest.mark.full_matrix)
        for name in POINTS
    ],
)
def test_every_change_is_there_once_after_a_kill_and_another_attempt(
    spark: SparkSession, crashed: Path, point: str
) -> None:
    died = POINTS[point]
    folder = crashed / f"at-{list(POINTS).index(point)}"
    table = table_at(spark, folder)
    assert rows(table.read()) == ROWS[died.seen]

    if died.work == "purge":
        assert table.purge() == 2
    ingest(spark, folder, crashed / "landing")
    appended = [row.k for row in table.changes.read().collect()]
    kept = [3] if died.work == "purge" else [1, 2, 3]
    assert sorted(appended) == sorted(event[0] for batch in kept for event in BATCHES[batch])
    assert rows(table.read()) == ROWS[3]
    table.rematerialize("overwrite" if died.work == "overwrite" else "merge")
    assert rows(table.read_optimized()) == ROWS[3]


def rows(read: DataFrame) -> set[tuple[int, int]]:
    found = [(row.k, row.v) for row in read.collect()]
    assert len(found) == len(set(found))
    return set(found)
