"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.delta.commit.transaction import Transaction
from deltaweave.engine.merge_run import ON_DRIVER
from tests.support.on_driver import written_on_driver
from tests.support.rivals import overtake
from tests.support.settings import configured


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets other writers commit, one before each of the next commits of merges; see `overtake`."""
    commit = Transaction.commit

    def overtaken_by(*others: Callable[[], object]) -> None:
        monkeypatch.setattr(Transaction, "commit", commit)
        overtake(monkeypatch, *others)

    return overtaken_by


@pytest.fixture
def switched_on(spark: SparkSession) -> Iterator[None]:
    """Merges run on the driver, if they can."""
    with configured(spark, {ON_DRIVER: "true"}):
        yield


@pytest.fixture
def on_driver(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What merges wrote on the driver."""
    return written_on_driver(monkeypatch)
