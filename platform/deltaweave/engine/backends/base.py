"""The interface of a backend: find what changes, write it, or decline the merge."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import Phases
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import Strategy
from deltaweave.engine.tasks import NotRewritableError

BackendScan = TypeVar("BackendScan")


class DeclinedError(NotRewritableError):
    """Raised where a backend declines a merge; nothing has been written.

    Args:
        known: The candidate files, if they were found before.
    """

    def __init__(self, reason: str, known: Candidates | None = None) -> None:
        super().__init__(reason)
        self.known = known


class Backend(Protocol[BackendScan]):
    """A way to find and write the changes of a merge. What it finds is its own type."""

    def find(self, run: MergeRun, strategy: Strategy, known: Candidates | None) -> BackendScan:
        """Find what changes. Nothing is written.

        Raises:
            DeclinedError: Another backend must do the merge.
            AmbiguousMatchError: Several source rows match a target row.
        """

    def write(self, run: MergeRun, strategy: Strategy, found: BackendScan) -> Staged:
        """Write what was found.

        Raises:
            DeclinedError: Another backend must do the merge, and what was written is deleted.
        """


def scan_phase(phases: Phases) -> AbstractContextManager[None]:
    """Run the phase that finds the touched files."""
    status = "MERGE operation - scanning files for matches"
    return phases.running("findTouchedFiles", status, "scanTimeMs")
