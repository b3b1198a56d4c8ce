"""Logs of tables that tests make by hand, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from dagster_deltaweave.logs import held_partitions
from dagster_deltaweave.storage import file_system

ID = "11111111-2222"
CREATED = {"metaData": {"id": ID}}


def commit(
    table: Path,
    version: int,
    *actions: Mapping[str, Any],
    operation: str = "",
    read: int | None = None,
) -> None:
    said = {"operation": operation or "MERGE", "operationParameters": {}, "readVersion": read}
    info = {"commitInfo": said}
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    text = "\n".join(json.dumps(action) for action in (info, *actions))
    (log / f"{version:020}.json").write_text(text)


def restore(table: Path, version: int, to: int) -> None:
    commit(table, version)
    info = {"operation": "RESTORE", "operationParameters": {"version": to}}
    (table / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}))


def checkpoint(table: Path, version: int, pairs: Mapping[str, int]) -> None:
    txns = [{"appId": name, "version": number} for name, number in pairs.items()]
    column = pa.array([None, *txns], pa.struct([("appId", pa.string()), ("version", pa.int64())]))
    metadata = pa.array([{"id": ID}, *[None] * len(txns)], pa.struct([("id", pa.string())]))
    path = table / "_delta_log" / f"{version:020}.checkpoint.parquet"
    parquet.write_table(pa.table({"metaData": metadata, "txn": column}), path)


class MadeTable:
    """A table whose log is made by hand, as IO managers look at it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return True

    def snapshot(self) -> Any:
        store, base = file_system(str(self.path))
        version, table_id, applied = held_partitions.newest_ids(store, f"{base}/_delta_log")
        return SimpleNamespace(
            version=version,
            id=table_id,
            data_path=str(self.path),
            last_applied=applied.get,
            applied_versions=lambda prefix="": {n: v for n, v in applied.items() if prefix in n},
        )
