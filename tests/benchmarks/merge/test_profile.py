from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.data.tables import Workspace, sql_name
from benchmarks.merge.case import UPSERT, Case, Merges, Statement
from benchmarks.merge.parquet_limit import ParquetLimit
from benchmarks.merge.profile import Profile, ProfileReport, TimeParts, measure_profile, time_parts
from benchmarks.merge.spark_work import noted_calls, noted_work
from tests.builders import frame, write_table

SCHEMA = "id INT, state STRING"


def upsert(workspace: Workspace) -> Merges:
    """5 of 40 rows, in two of four files, are updated, and two are new."""
    spark, directory = workspace.spark, workspace.directory
    properties = {"delta.enableDeletionVectors": str(workspace.deletion_vectors).lower()}
    target, source = directory / "target", directory / "source"
    rows = [(number, "old") for number in range(40)]
    write_table(spark, str(target), rows, SCHEMA, files=4, properties=properties)
    changed = frame(spark, [(number, "new") for number in (1, 2, 3, 11, 12, 40, 41)], SCHEMA)
    changed.write.format("delta").save(str(source))
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    return Merges(target, (statement, Statement("never run", "t.id = s.id", UPSERT)))


@pytest.mark.minutes
@pytest.mark.parametrize("vectors", [True, False])
def test_a_profile_says_what_a_merge_did_and_its_parts_add_up(
    spark: SparkSession, tmp_path: Path, vectors: bool
) -> None:
    workspace = Workspace(spark, tmp_path, 1, vectors)

    found = measure_profile(Case("tiny", "tiny", upsert), workspace, runs=1)

    parts = found.parts
    assert parts.whole == pytest.approx(parts.jobs + parts.planning + parts.commit + parts.python)
    assert min(parts.jobs, parts.planning, parts.commit) > 0
    assert parts.python >= 0
    assert found.strategy == ("deletion-vectors" if vectors else "copy-on-write")
    assert found.deletion_vectors is vectors
    assert 0 < found.jobs <= found.tasks
    assert found.calls > 100
    assert found.read_bytes > 0
    assert found.written_bytes > 0
    assert found.limit.read_seconds > 0
    assert found.limit.write_seconds > 0
    assert found.times_limit == parts.whole / found.limit.seconds
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"target", "source"}


def test_a_moment_counts_once_whatever_runs_in_it() -> None:
    parts = time_parts(
        (10.0, 20.0),
        jobs=[(13.0, 15.0), (12.0, 14.0), (18.5, 19.0)],
        calls=[(9.0, 11.0), (12.5, 16.0), (18.0, 25.0)],
        commit=[(18.0, 19.5)],
    )

    # Calls alone: 10 to 11, 15 to 16 and 19.5 to 20. Nothing: 11 to 12 and 16 to 18.
    assert parts == TimeParts(whole=10.0, jobs=3.0, planning=2.5, commit=1.5, python=3.0)


def test_work_is_of_the_block_alone(spark: SparkSession) -> None:
    rows = spark.sparkContext.parallelize(range(4), 2)
    rows.count()

    with noted_work(spark) as work:
        rows.count()
        rows.map(lambda number: (number % 2, number)).groupByKey(2).count()
    rows.count()

    assert len(work.jobs) == 2
    assert work.tasks == 2 + 4
    assert all(began <= ended for began, ended in work.jobs)


def test_calls_are_of_the_block_alone(spark: SparkSession) -> None:
    with noted_calls(spark) as calls:
        version = spark._jsc.sc().version()
    spark._jsc.sc().version()

    assert version == spark.version
    assert len(calls) == 2


PROFILES = [
    Profile(
        Case("upsert", "upsert 0.05/0.99/0.001", upsert),
        True,
        "deletion-vectors",
        TimeParts(2.0, 1.0, 0.5, 0.25, 0.25),
        jobs=3,
        tasks=8,
        task_seconds=1.5,
        calls=1234,
        read_bytes=3 << 20,
        written_bytes=1 << 19,
        limit=ParquetLimit(0.1, 0.4),
    ),
    Profile(
        Case("none", "nothing", upsert),
        False,
        "none",
        TimeParts(1.0, 0.5, 0.25, 0.0, 0.25),
        jobs=1,
        tasks=1,
        task_seconds=0.5,
        calls=99,
        read_bytes=0,
        written_bytes=0,
        limit=ParquetLimit(0.0, 0.0),
    ),
]
REPORT = ProfileReport({"scale": 1}, {"spark": "4.2.0"}, PROFILES)


def test_the_tables_have_a_row_for_each_profile_and_fit_a_narrow_screen() -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(REPORT.table())

    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert "upsert 0.05/0.99/0.001 on 2.00 1.00 0.50 0.25 0.25 0.500 4.0" in lines
    assert "upsert 0.05/0.99/0.001 on 3 8 1.50 1,234 3.0 0.5" in lines
    assert "nothing off 1.00 0.50 0.25 0.00 0.25 0.000 -" in lines
    assert "nothing off 1 1 0.50 99 0.0 0.0" in lines


def test_the_json_has_all_that_was_measured(tmp_path: Path) -> None:
    REPORT.write_json(tmp_path / "profile.json")

    written = json.loads((tmp_path / "profile.json").read_text())
    assert (written["benchmark"], written["scale"]) == ("profile", 1)
    assert written["environment"] == {"spark": "4.2.0"}
    assert written["cases"][0] == {
        "name": "upsert",
        "deletion_vectors": True,
        "strategy": "deletion-vectors",
        "seconds": {"whole": 2.0, "jobs": 1.0, "planning": 0.5, "commit": 0.25, "python": 0.25},
        "jobs": 3,
        "tasks": 8,
        "task_seconds": 1.5,
        "py4j_calls": 1234,
        "candidate_bytes": 3 << 20,
        "written_bytes": 1 << 19,
        "limit_seconds": {"read_seconds": 0.1, "write_seconds": 0.4},
        "times_limit": 4.0,
    }
    assert written["cases"][1]["times_limit"] is None
