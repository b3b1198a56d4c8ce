"""How long lost commits wait."""

from __future__ import annotations

import time

import pytest

from deltaweave.engine.commit import loop


def test_waits_between_commits_begin_after_two_losses_and_reach_two_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All commits are of one output."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(loop.random, "uniform", lambda low, high: high)
    for losses in (1, 2, 3, 4, 6, 50, 5_000):
        loop.wait_after_losses(losses)
    assert waits == [0.4, 0.8, 2, 2, 2]
