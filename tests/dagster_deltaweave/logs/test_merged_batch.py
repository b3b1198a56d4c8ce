"""The newest batch in a base by its commits, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dagster_deltaweave.logs.merged_batch import merged_by_commits

MARK = "deltaweave/merged_batch/id"
CREATED = {"operation": "CREATE TABLE"}
MERGED_2, MERGED_5 = ({"operation": "MERGE", "merged": batch} for batch in (2, 5))


def restored(version: int | None) -> dict[str, Any]:
    return {"operation": "RESTORE", "operationParameters": {"version": version}}


@pytest.mark.parametrize(
    ("commits", "merged"),
    [
        ([CREATED, MERGED_2, MERGED_5, {"operation": "OPTIMIZE"}], 5),
        ([CREATED, MERGED_2, MERGED_5, restored(1)], 2),
        ([CREATED, MERGED_2, MERGED_5, restored(0)], 0),
        ([CREATED, MERGED_2, MERGED_5, restored(1), restored(2)], 5),
        ([CREATED, MERGED_2, restored(0), MERGED_5], 5),
        ([CREATED, MERGED_2, MERGED_5, restored(None)], 0),  # by time: all count as pending
        ([CREATED, MERGED_5, {"operation": "CLONE"}], 0),
        ([None, {"operation": "OPTIMIZE"}], 9),  # the log is cleaned up: the mark counts
        ([None, None, restored(1)], 0),
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
        info = {name: value for name, value in commit.items() if name != "merged"}
        actions: list[dict[str, Any]] = [{"commitInfo": info}, {"add": {"path": "x"}}]
        if "merged" in commit:
            actions.append({"txn": {"appId": MARK, "version": commit["merged"]}})
        text = "\n".join(map(json.dumps, actions))
        (log / f"{version:020}.json").write_text(text)
    assert merged_by_commits(str(tmp_path), len(commits) - 1, MARK, 9) == merged
