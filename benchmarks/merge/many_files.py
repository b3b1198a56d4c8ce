"""A table whose log names many files, one of them touched by a merge: it shows the cost of a log.

Only one file exists. The others are actions with statistics in a commit and a checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from benchmarks.data.tables import Workspace, sql_name
from benchmarks.data.written_tables import write_checkpoint, write_commit
from benchmarks.merge.case import UPSERT, Merges, Statement

_ROWS_OF_A_FILE = 1_000


def found_by_condition(workspace: Workspace) -> Merges:
    """Merge by a condition that names the key range of the one file."""
    return _merges(workspace, f"t.id = s.id AND t.id < {_ROWS_OF_A_FILE}")


def found_by_key(workspace: Workspace) -> Merges:
    """Merge by the source's keys, which alone can prune the other files."""
    return _merges(workspace, "t.id = s.id")


def _merges(workspace: Workspace, condition: str) -> Merges:
    files = workspace.log_files
    target = workspace.target(f"many-files-{files}", lambda path: _write_table(workspace, path))
    source = workspace.made_once(
        f"many-files-{files}-source", lambda path: _write_source(workspace, path)
    )
    statement = Statement(sql_name(source), condition, UPSERT)
    # Compare rows of the one file and new rows, because the other files cannot be read.
    there = f"id < {_ROWS_OF_A_FILE} OR id >= {files * _ROWS_OF_A_FILE}"
    return Merges(target, (statement,), compared=there)


def _write_source(workspace: Workspace, path: Path) -> None:
    there = workspace.spark.range(0, 50, 1, 1)
    begin = workspace.log_files * _ROWS_OF_A_FILE
    new = workspace.spark.range(begin, begin + 50, 1, 1)
    rows = there.union(new).withColumn("state", F.lit("new"))
    rows.coalesce(1).write.format("delta").save(str(path))


def _write_table(workspace: Workspace, path: Path) -> None:
    rows = workspace.spark.range(0, _ROWS_OF_A_FILE, 1, 1).withColumn("state", F.lit("old"))
    workspace.write_delta(rows, path)
    commit = path / "_delta_log" / f"{0:020}.json"
    first = [json.loads(line) for line in commit.read_text().splitlines()]
    added = [{"add": _add(number)} for number in range(1, workspace.log_files)]
    write_commit(path, 1, added)
    write_checkpoint(path, 1, [each for each in first if "commitInfo" not in each] + added)


def _add(number: int) -> dict[str, Any]:
    """Return the action that adds the file of this number, with its thousand ids."""
    low = number * _ROWS_OF_A_FILE
    statistics = {
        "numRecords": _ROWS_OF_A_FILE,
        "minValues": {"id": low, "state": "old"},
        "maxValues": {"id": low + _ROWS_OF_A_FILE - 1, "state": "old"},
        "nullCount": {"id": 0, "state": 0},
    }
    return {
        "path": f"part-{number:08}.snappy.parquet",
        "partitionValues": {},
        "size": 10_000,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }
