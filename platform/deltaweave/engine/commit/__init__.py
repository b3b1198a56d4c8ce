"""Commit a merge: the loop of its runs, and rebasing its output on newer versions."""

from __future__ import annotations

from deltaweave.engine.commit.loop import CommitLoop

__all__ = ["CommitLoop"]
