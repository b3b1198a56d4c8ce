"""What the backends share: how they decline a merge, and the phase of the scan."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeVar

from deltaweave._validation import Verdict
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import Phases
from deltaweave.engine.tasks import NotRewritableError

Allowed = TypeVar("Allowed")


class DeclinedError(NotRewritableError):
    """Raised where a backend declines a merge, or where a rebase declines its output.

    Nothing that was written for it is committed.

    Args:
        known: The candidate files, if they were found before.
    """

    def __init__(self, reason: str, known: Candidates | None = None) -> None:
        super().__init__(reason)
        self.known = known


def require(holds: bool, otherwise: str) -> None:
    """Decline unless something holds.

    Raises:
        DeclinedError: It does not hold; `otherwise` says why.
    """
    if not holds:
        raise DeclinedError(otherwise)


def allowed(found: Allowed | Verdict, because: str = "") -> Allowed:
    """Return what was found unless it is a refusal.

    Args:
        because: Words before the reason of a refusal.

    Raises:
        DeclinedError: It is a refusal.
    """
    if isinstance(found, Verdict):
        raise DeclinedError(f"{because} {found.reason}".lstrip())
    return found


def scan_phase(phases: Phases) -> AbstractContextManager[None]:
    """Run the phase that finds the touched files."""
    status = "MERGE operation - scanning files for matches"
    return phases.running("findTouchedFiles", status, "scanTimeMs")
