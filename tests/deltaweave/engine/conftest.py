"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaweave.delta.commit.transaction import Transaction
from tests.rivals import overtake


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets other writers commit, one before each of the next commits of merges; see `overtake`."""
    commit = Transaction.commit

    def overtaken_by(*others: Callable[[], object]) -> None:
        monkeypatch.setattr(Transaction, "commit", commit)
        overtake(monkeypatch, *others)

    return overtaken_by
