"""The newest batch in a base by its commits, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dagster_deltaweave.logs.changeset_log import merged_by_commits

MERGED_BATCH = "deltaweave/merged_batch/id"
CREATED = {"operation": "CREATE TABLE"}
MERGED_2, MERGED_5 = (
    {"operation": "MERGE", "merged": batch, "add": f"of batch {batch}"} for batch in (2, 5)
)
SURELY_0, SURELY_2 = ({"operation": "WRITE", "merged": -1 - batch} for batch in (0, 2))
OPTIMIZED = {"operation": "OPTIMIZE"}


def restored(version: int) -> dict[str, Any]:
    return {"operation": "RESTORE", "operationParameters": {"version": version}}


def restored_by_time(*removed: str) -> dict[str, Any]:
    # Written in the zone of the session that restored, which the log does not name.
    parameters = {"version": None, "timestamp": "2026-03-01 21:00:00.0"}
    return {"operation": "RESTORE", "operationParameters": parameters, "remove": removed}


@pytest.mark.parametrize(
    ("commits", "merged"),
    [
        ([CREATED, MERGED_2, MERGED_5, OPTIMIZED], 5),
        ([CREATED, MERGED_2, MERGED_5, restored(1)], 2),
        ([CREATED, MERGED_2, MERGED_5, restored(0)], 0),
        ([CREATED, MERGED_2, MERGED_5, restored(1), restored(2)], 5),
        ([CREATED, MERGED_2, restored(0), MERGED_5], 5),
        ([CREATED, MERGED_2, MERGED_5, restored_by_time("of batch 5")], 2),
        ([CREATED, MERGED_2, MERGED_5, restored_by_time("of batch 2", "of batch 5")], 0),
        ([CREATED, MERGED_2, MERGED_5, restored(1), *[OPTIMIZED] * 1_100], 2),
        ([CREATED, MERGED_5, {"operation": "CLONE"}], 0),
        ([CREATED, MERGED_5, restored(0), SURELY_2, OPTIMIZED], 2),
        ([CREATED, MERGED_5, restored(0), SURELY_0, OPTIMIZED], 0),
        ([None, OPTIMIZED], 9),  # the log is cleaned up: the id counts
        ([None, OPTIMIZED, restored(0)], 9),  # what was undone merged no batch
        ([None, MERGED_5, restored(0)], 0),
        ([None, None, restored(0)], 0),
    ],
)
def test_batches_count_as_merged_by_the_commits_of_a_version(
    tmp_path: Path, commits: list[dict[str, Any] | None], merged: int
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version, commit in enumerate(commits):
        if commit is None:
            continue
        info = {name: commit[name] for name in commit if name.startswith("operation")}
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if "add" in commit:
            actions.append({"add": {"path": commit["add"]}})
        actions += [{"remove": {"path": path}} for path in commit.get("remove", ())]
        if "merged" in commit:
            actions.append({"txn": {"appId": MERGED_BATCH, "version": commit["merged"]}})
        text = "\n".join(map(json.dumps, actions))
        (log / f"{version:020}.json").write_text(text)
    assert merged_by_commits(str(tmp_path), len(commits) - 1, MERGED_BATCH, 9) == merged
