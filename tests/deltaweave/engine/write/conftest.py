"""Fixtures of tests of merges on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave.engine.merge_run import ON_DRIVER
from tests.on_driver import written_on_driver
from tests.settings import configured


@pytest.fixture
def switched_on(spark: SparkSession) -> Iterator[None]:
    """Merges run on the driver, if they can."""
    with configured(spark, {ON_DRIVER: "true"}):
        yield


@pytest.fixture
def on_driver(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What merges wrote on the driver."""
    return written_on_driver(monkeypatch)
