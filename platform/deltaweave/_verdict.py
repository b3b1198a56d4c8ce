"""The answer to "may this be done", with the reason where it may not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether something may be done, and why not.

    Attributes:
        ok: Whether it may be done.
        reason: Why it may not be done; empty if it may.
    """

    ok: bool
    reason: str = ""


YES = Verdict(True)


def no(reason: str) -> Verdict:
    """Return the verdict that something may not be done, for a reason."""
    return Verdict(False, reason)
