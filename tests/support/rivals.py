"""Other writers that commit just before a merge does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deltaweave.delta.commit.transaction import Transaction


def overtake(monkeypatch: pytest.MonkeyPatch, *others: Callable[[], Any]) -> list[int]:
    """Let other writers commit, one before each of the next commits of merges.

    They run in a thread of their own, where no transaction is active. The list that is returned
    gets the version that each transaction read whose commit is called.
    """
    commit, left, read = Transaction.commit, list(others), []

    def commit_after_another(transaction: Transaction, **arguments: Any) -> Any:
        read.append(transaction.version)
        if left:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(left.pop(0)).result()
        return commit(transaction, **arguments)

    monkeypatch.setattr(Transaction, "commit", commit_after_another)
    return read
