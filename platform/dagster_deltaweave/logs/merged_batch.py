"""The newest batch in a merge-on-read base, by the commits that it consists of; without Spark.

RESTORE removes the rows of batches, and leaves the transaction id that records them as merged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dagster_deltaweave.storage import file_system
from deltaweave.changes.commit_lines import applied_in_line
from deltaweave.delta.log import Commit, FileChanges, commit_from, file_changes_from


def merged_by_commits(location: str, version: int, mark: str, marked: int) -> int:
    """Return the newest batch in a version of a base.

    Batches count as pending if log cleanup deleted the commits that say what a RESTORE left.

    Args:
        location: Where the base is.
        version: The version.
        mark: The application id whose version is the newest merged batch.
        marked: That version. It counts if the log has no RESTORE.

    Raises:
        OSError: A commit cannot be read.
    """
    return applied_in_line(LogAt(location), version, mark, marked).version or 0


@dataclass(frozen=True)
class LogAt:
    """The log of the table at a location, as `commit_lines` reads it.

    Attributes:
        place: The location, a path or a URI.
    """

    place: str

    def commit(self, version: int) -> Commit | None:
        """Return the commit of a version, or None."""
        # Not of files, whose actions are many.
        actions = self._actions(version, (b'"commitInfo"', b'"txn"'))
        return None if actions is None else commit_from(version, actions)

    def files(self, version: int) -> FileChanges | None:
        """Return the files that a commit changed, or None."""
        actions = self._actions(version, (b'"add"', b'"remove"'))
        return None if actions is None else file_changes_from(actions)

    def _actions(self, version: int, kinds: tuple[bytes, bytes]) -> list[dict[str, Any]] | None:
        """Return the actions of two kinds in a commit; None if the log does not hold it."""
        store, base = file_system(self.place)
        try:
            with store.open_input_stream(f"{base}/_delta_log/{version:020}.json") as stream:
                lines = stream.read().split(b"\n")
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in lines if any(kind in line for kind in kinds)]
