"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deltaweave.delta.commit.transaction import Transaction


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets other writers commit, one before each of the next commits of merges.

    They run in a thread of their own, where no transaction is active.
    """
    commit = Transaction.commit

    def overtake(*others: Callable[[], Any]) -> None:
        left = list(others)

        def commit_after_another(transaction: Transaction, **arguments: Any) -> Any:
            if left:
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(left.pop(0)).result()
            return commit(transaction, **arguments)

        monkeypatch.setattr(Transaction, "commit", commit_after_another)

    return overtake
