"""The answer to "may this be done", with the reason where it may not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether something may be done.

    Attributes:
        reason: Why it may not be done; empty if it may.
    """

    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether it may be done."""
        return not self.reason


YES = Verdict()
