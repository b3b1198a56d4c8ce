"""Who does a merge: what every backend does, and how it gives a merge up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.phases import Phases
from deltaweave.engine.prune import Candidates
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import Strategy
from deltaweave.engine.tasks import NotRewritableError

Found = TypeVar("Found")


class DeclinedError(NotRewritableError):
    """A backend gives a merge up, and nothing of it is written: the next backend does it.

    Args:
        reason: Why.
        known: The candidate files, if they were found by then.
    """

    def __init__(self, reason: str, known: Candidates | None = None) -> None:
        super().__init__(reason)
        self.known = known


class Backend(Protocol[Found]):
    """A way to find and write the changes of a merge. What it finds is its own type."""

    def find(self, run: MergeRun, strategy: Strategy, known: Candidates | None) -> Found:
        """Find what changes. Nothing is written.

        Args:
            run: The merge.
            strategy: How the changes are to be written.
            known: The candidate files, if another backend found them.

        Raises:
            DeclinedError: Another backend must do the merge.
            AmbiguousMatchError: Several source rows match a target row.
        """

    def write(self, run: MergeRun, strategy: Strategy, found: Found) -> Staged:
        """Write what was found.

        Raises:
            DeclinedError: Another backend must do the merge, and what was written is deleted.
        """


def scan_phase(phases: Phases) -> AbstractContextManager[None]:
    """Run the phase that finds the touched files."""
    status = "MERGE operation - scanning files for matches"
    return phases.running("findTouchedFiles", status, "scanTimeMs")
