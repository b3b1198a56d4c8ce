"""What the driver holds in memory where it rewrites files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaweave.engine.backends.local import files as local_files
from deltaweave.engine.backends.local.values import NewValues
from deltaweave.engine.clauses import CLAUSE, ELSEWHERE, NEW_ROW, TARGET_ROW_ID
from deltaweave.engine.tasks import Disk, TableFormat, batches
from tests.support.memory import held

ROWS, MIB = 40_000, 1 << 20


def test_deleted_rows_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that were marked before nor those that the merge deletes."""
    monkeypatch.setattr(batches, "BATCH_BYTES", MIB)
    numbers = {f"c{n}": np.zeros(ROWS, np.int64) for n in range(60)}  # 20 MB
    pq.write_table(pa.table({"k": np.arange(ROWS), **numbers}), tmp_path / "old.parquet")
    schema = pq.read_schema(tmp_path / "old.parquet")
    statistics = json.dumps({"type": "struct", "fields": []})
    table = TableFormat(schema, "snappy", ".parquet", statistics, 32, "4.2.0", True, Disk())
    location, deletes = f"file:{tmp_path}/old.parquet", np.zeros(9_000, np.int64)
    deleted: dict[str, Any] = {
        TARGET_ROW_ID: np.arange(30_000, 39_000),
        ELSEWHERE: deletes.astype(bool),
        CLAUSE: deletes.astype(np.int32),
        NEW_ROW: deletes,
    }
    pairs = SimpleNamespace(marked={location: np.arange(100, 30_000)})
    found: Any = SimpleNamespace(pairs=pairs, updates=NewValues(schema, {}), table=table)
    with held() as pool:
        file = local_files.rewritten_file(found, {location: pa.table(deleted)}, location)
    assert pool.max_memory() < 6 * MIB
    assert file is not None
    left = pq.read_table(tmp_path / file[0])["k"].to_pylist()
    assert left == [*range(100), *range(39_000, ROWS)]
