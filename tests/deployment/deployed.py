"""The deployment in `assets/`, loaded again on a lake of a test's own, and what lands there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from dagster import Definitions
from dagster._core.definitions.reconstruct import ReconstructableJob
from pyspark.sql import SparkSession

_SESSION_KEYS = (
    "spark.sql.shuffle.partitions",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism",
)
_PACKAGES = ("assets", "resources")


@contextmanager
def deployed(lake: Path, spark: SparkSession) -> Iterator[Definitions]:
    """The definitions over this lake; modules and session are as they were afterwards."""
    # The deployment's resource sets its configuration on the session that all tests share.
    settings = {key: spark.conf.get(key) for key in _SESSION_KEYS}
    loaded = {name: sys.modules[name] for name in list(sys.modules) if _is_ours(name)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTAWEAVE_LAKE", str(lake))
        patch.delenv("DELTAWEAVE_ENV", raising=False)
        _forget()
        try:
            yield import_module("assets.definitions").defs
        finally:
            _forget()
            sys.modules.update(loaded)
            for key, value in settings.items():
                spark.conf.set(key, str(value))


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in _PACKAGES


def _forget() -> None:
    # Dagster keeps the job it last loaded by name in this process.
    ReconstructableJob.get_definition.cache_clear()
    ReconstructableJob.get_repository_definition.cache_clear()
    for name in [name for name in sys.modules if _is_ours(name)]:
        del sys.modules[name]


def partition_path(lake: Path, partition: str) -> Path:
    return lake / "landing" / "web_returns" / partition


def land_rows(
    spark: SparkSession,
    lake: Path,
    partition: str,
    rows: list[Mapping[str, Any]],
    *,
    schema: str | None = None,
    complete: bool = True,
) -> Path:
    """Land rows, given by some of their columns, as one file of a source partition."""
    from pyspark.sql.types import StructType

    from assets.web_returns import SCHEMA

    types = StructType.fromDDL(schema or f"{SCHEMA}, op STRING")
    assert isinstance(types, StructType)
    directory = partition_path(lake, partition)
    frame = spark.createDataFrame([tuple(map(row.get, types.names)) for row in rows], types)
    frame.coalesce(1).write.mode("append").parquet(str(directory))
    if not complete:
        (directory / "_SUCCESS").unlink()
    return directory


def web_return(
    order: int, item: int, *, reason: int | None = 1, quantity: int | None = 1, op: str = "upsert"
) -> dict[str, Any]:
    return {
        "wr_order_number": order,
        "wr_item_sk": item,
        "wr_reason_sk": reason,
        "wr_return_quantity": quantity,
        "op": op,
    }


def deliver_again(directory: Path) -> None:
    """Give the partition's marker the time of a later delivery."""
    marker = directory / "_SUCCESS"
    later = marker.stat().st_mtime_ns + 1_000_000_000
    os.utime(marker, ns=(later, later))
