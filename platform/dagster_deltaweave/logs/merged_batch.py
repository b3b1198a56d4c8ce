"""The newest batch in a merge-on-read base, by the commits that it consists of; without Spark.

RESTORE takes the rows of batches away and leaves the mark that says that they are merged.
"""

from __future__ import annotations

import json
from typing import Any

from dagster_deltaweave.storage import file_system
from deltaweave.changes.lineage import CLONED, RESTORED

# A base that has more commits since its last rematerialization has seen no RESTORE for long.
_MAX_COMMITS = 1_000


def merged_by_commits(location: str, version: int, mark: str, marked: int) -> int:
    """Return the newest batch in a version of a base.

    Args:
        location: Where the base is.
        version: The version.
        mark: The application id that marks merged batches.
        marked: The newest batch by that mark. It counts if the log does not say.

    Raises:
        OSError: A commit cannot be read.
    """
    is_restored, at = False, version
    for _ in range(_MAX_COMMITS):
        actions = _marks_of(location, at)
        if actions is None:
            return 0 if is_restored else marked
        for action in actions:
            if action.get("txn", {}).get("appId") == mark:
                return int(action["txn"]["version"])
        info: dict[str, Any] = next(
            (each["commitInfo"] for each in actions if "commitInfo" in each), {}
        )
        operation = info.get("operation")
        # Of a RESTORE by time, the log does not say the version: batches count as pending.
        before: int | None = at - 1
        if operation == RESTORED:
            is_restored, before = True, (info.get("operationParameters") or {}).get("version")
        if operation == CLONED or before is None or int(before) < 0:
            return 0
        at = int(before)
    return marked


def _marks_of(location: str, version: int) -> list[dict[str, Any]] | None:
    """What a commit says of itself; None if the log does not hold it any more."""
    store, base = file_system(location)
    try:
        with store.open_input_stream(f"{base}/_delta_log/{version:020}.json") as stream:
            lines = stream.read().split(b"\n")
    except FileNotFoundError:
        return None
    # Not of files, whose actions are many.
    return [json.loads(line) for line in lines if b'"commitInfo"' in line or b'"txn"' in line]
