"""What reading and rewriting a file holds in memory does not grow with what its rows decode to."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from deltaweave.engine.tasks import (
    Disk,
    NotRewritableError,
    TableFormat,
    all_rows,
    batches,
    rewrite_rows,
    rows_at,
)
from deltaweave.engine.tasks.batches import batches_of_group
from tests.support.footers import without_dictionary_offset
from tests.support.memory import held

MIB = 1 << 20
ROWS = 20_000
# A new row group, a batch three times (read, changed, compared), and pages and encoders.
GROUP, BATCH = 4 * MIB, MIB
MOST = GROUP + 3 * BATCH + 8 * MIB
ROWS_IN_MEMORY = 40 * MIB


@pytest.fixture(autouse=True)
def _low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_ROW_GROUP_BYTES_IN_MEMORY", GROUP)
    monkeypatch.setattr(batches, "BATCH_BYTES", BATCH)


def texts(length: int, distinct: int = 3) -> list[str]:
    return [f"{i}".ljust(length, "x") for i in range(distinct)]


def repeated(values: list[Any], kind: pa.DataType, *, empty: int = 0) -> pa.Array:
    """The values in turn, after some empty ones."""
    of = pa.array(values, kind)
    nothing = pa.nulls(empty, kind)
    taken = of.take(pa.array(np.arange(ROWS - empty) % len(values)))
    return pa.concat_arrays([nothing, taken])


TEXT, BYTES = pa.string(), pa.binary()
LISTS = pa.list_(TEXT)
STRUCTS = pa.struct([("a", TEXT), ("b", pa.int64()), ("c", LISTS)])
MAPS = pa.map_(TEXT, TEXT)
VALUES: dict[str, Callable[[], pa.Array]] = {
    # 20,000 rows of 2,500 characters: 48 MiB in memory, some KiB in the file
    "repeated_texts": lambda: repeated(texts(2_500), TEXT),
    "repeated_bytes": lambda: repeated([t.encode() for t in texts(2_500)], BYTES),
    # the first rows tell nothing of those that follow
    "late_texts": lambda: repeated(texts(5_000), TEXT, empty=10_000),
    "few_rows_of_documents": lambda: repeated([*[""] * 199, *texts(500_000, 1)], TEXT),
    "lists": lambda: repeated([[t] * 3 for t in texts(800)], LISTS),
    "late_lists": lambda: repeated([[t] * 6 for t in texts(800)], LISTS, empty=10_000),
    "structs": lambda: repeated(
        [{"a": t, "b": 1, "c": [t]} for t in texts(1_200)], STRUCTS, empty=10
    ),
    "maps": lambda: repeated([[(t, t)] for t in texts(1_200)], MAPS, empty=10),
    # each value repeats the start of the one before
    "prefixes": lambda: repeated([text[::-1] for text in texts(2_500)], TEXT),
}


def written(path: Path, name: str) -> tuple[str, pa.Table, TableFormat]:
    """A file of two columns: its location, its rows, and how a new one is written."""
    table = pa.table({"k": pa.array(range(ROWS), pa.int64()), "v": VALUES[name]()})
    file = path / "old.parquet"
    if name == "prefixes":
        encoded = {"v": "DELTA_BYTE_ARRAY"}
        pq.write_table(table, file, use_dictionary=["k"], column_encoding=encoded)
    else:
        pq.write_table(table, file)
    assert table["v"].nbytes > 40 * MIB > 40 * file.stat().st_size
    statistics = json.dumps({"type": "struct", "fields": []})
    of = TableFormat(table.schema, "snappy", ".parquet", statistics, 32, "4.2.0", True, Disk())
    return f"file:{file}", table, of


@pytest.mark.parametrize("feed", [False, True], ids=["", "feed"])
@pytest.mark.parametrize("name", VALUES)
def test_a_rewrite_holds_bounded_bytes_of_rows(tmp_path: Path, name: str, *, feed: bool) -> None:
    location, old, table = written(tmp_path, name)
    check_rewrite(tmp_path, location, old, table, feed=feed)


def test_a_dictionary_counts_where_the_footer_lacks_its_offset(tmp_path: Path) -> None:
    location, old, table = written(tmp_path, "repeated_texts")
    without_dictionary_offset(tmp_path / "old.parquet", 1)
    column = pq.read_metadata(tmp_path / "old.parquet").row_group(0).column(1)
    assert not column.has_dictionary_page
    file = check_rewrite(tmp_path, location, old, table)
    assert pq.read_metadata(tmp_path / file).row_group(0).column(1).has_dictionary_page


def check_rewrite(
    tmp_path: Path, location: str, old: pa.Table, table: TableFormat, *, feed: bool = False
) -> str:
    """Change and delete rows in each batch, and return the new file's name."""
    if feed:
        table = replace(table, change_feed=f"file:{tmp_path}/_change_data")
    changed = np.arange(7, ROWS, 13)  # in each batch
    deleted = changed % 2 == 0
    nulls = pa.nulls(len(changed), old["v"].type)
    new_rows = pa.table([pa.array(changed), nulls], schema=old.schema).filter(pa.array(~deleted))
    is_changed = np.isin(np.arange(ROWS), changed)
    with held() as pool:
        file = rewrite_rows(location, changed, deleted, new_rows, table).file
    assert pool.max_memory() < MOST
    assert file is not None
    rows = pq.ParquetFile(tmp_path / file[0])
    assert rows.num_row_groups > ROWS_IN_MEMORY // GROUP // 2
    stays = np.delete(np.arange(ROWS), changed[deleted])
    assert rows.read()["k"].to_pylist() == stays.tolist()
    updated = pc.if_else(pa.array(is_changed), pa.scalar(None, old["v"].type), old["v"])
    assert rows.read()["v"].equals(updated.take(pa.array(stays)))
    if feed:
        [recorded] = (tmp_path / "_change_data").iterdir()
        assert pq.read_metadata(recorded).num_rows == len(changed) + np.sum(~deleted)
    return file[0]


@pytest.mark.parametrize("name", VALUES)
def test_rows_are_refused_before_they_exceed_a_bound(tmp_path: Path, name: str) -> None:
    location, old, table = written(tmp_path, name)
    with held() as pool:
        with pytest.raises(NotRewritableError, match="bytes"):
            all_rows(table.storage, location, old.schema, ROWS, 4 * MIB, new_calendar=True)
        with pytest.raises(NotRewritableError, match="bytes"):
            rows_at(location, np.arange(ROWS), table, 4 * MIB)
    assert pool.max_memory() < MOST


# 100 rows that repeat all of the value before, which the file stores once: 5 and 30 MB in memory.
@pytest.mark.parametrize(("length", "is_read"), [(50_000, True), (300_000, False)])
def test_values_that_repeat_long_starts_are_read_few_at_once_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, is_read: bool
) -> None:
    monkeypatch.setattr(batches, "BYTES_OF_REPEATED_STARTS", MIB)
    rows = pa.table({"v": ["x" * length] * 100})
    encoded = {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}
    pq.write_table(rows, tmp_path / "old.parquet", **encoded)
    location = f"file:{tmp_path}/old.parquet"
    refused = nullcontext() if is_read else pytest.raises(NotRewritableError, match="the value")
    with held() as pool, Disk().opened(location) as file, refused:
        read = [batch.num_rows for batch in batches.read_batches(Disk(), location, file, ["v"])]
        assert sum(read) == 100
    assert pool.max_memory() < 4 * MIB


@pytest.mark.parametrize(
    ("columns", "items"),
    # 400 columns of 50 kB a row, each of which would fit; a row of 150 MB.
    [(400, 1), (1, 3_000)],
    ids=["columns", "arrays"],
)
def test_values_that_repeat_long_starts_are_counted_over_columns_and_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int, items: int
) -> None:
    monkeypatch.setattr(batches, "MAX_UNEVEN_BYTES", MIB)
    long = "x" * 50_000
    values = pa.array([[long] * items, *[[long]] * 19]) if items > 1 else pa.array([long] * 20)
    names = [f"c{n}" for n in range(columns)]
    rows = pa.table(dict.fromkeys(names, values))
    paths = [f"{name}.list.element" if items > 1 else name for name in names]
    encoded = {"column_encoding": dict.fromkeys(paths, "DELTA_BYTE_ARRAY")}
    pq.write_table(rows, tmp_path / "old.parquet", use_dictionary=False, **encoded)
    location = f"file:{tmp_path}/old.parquet"
    with (
        held() as pool,
        Disk().opened(location) as file,
        pytest.raises(NotRewritableError, match=r"of a row may have|a few rows"),
    ):
        list(batches.read_batches(Disk(), location, file, names))
    assert pool.max_memory() < 4 * MIB


@pytest.mark.parametrize(
    ("item", "items"),
    # 50 rows: 1,350 MB, 1,400 MB and 400 MB, some KiB in the file
    [("x" * 9_000, 3_000), ("x" * 12, 1_000_000), (1, 1_000_000)],
    ids=["texts", "short_texts", "numbers"],
)
def test_long_arrays_in_neighbouring_rows_are_refused(
    tmp_path: Path, item: object, items: int
) -> None:
    lengths = np.zeros(ROWS, np.int64)
    lengths[500:550] = items
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    indices = pa.array(np.zeros(lengths.sum(), np.int8))
    values = pa.DictionaryArray.from_arrays(indices, pa.array([item]))
    rows = pa.table({"v": pa.ListArray.from_arrays(offsets, values)})
    pq.write_table(rows, tmp_path / "old.parquet", store_schema=False)
    location = f"file:{tmp_path}/old.parquet"
    refused = pytest.raises(NotRewritableError, match="a few rows")
    with held() as pool, Disk().opened(location) as file, refused:
        list(batches.read_batches(Disk(), location, file, ["v"]))
    assert pool.max_memory() < MOST


def test_arrays_are_counted_over_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_UNEVEN_BYTES", MIB)
    values = pa.array([[1] * 100_000, *[[]] * 19], pa.list_(pa.int64()))  # 0.8 MB a column
    names = [f"c{n}" for n in range(40)]
    pq.write_table(pa.table(dict.fromkeys(names, values)), tmp_path / "old.parquet")
    location = f"file:{tmp_path}/old.parquet"
    refused = pytest.raises(NotRewritableError, match="a few rows")
    with held() as pool, Disk().opened(location) as file, refused:
        list(batches.read_batches(Disk(), location, file, names))
    assert pool.max_memory() < MOST


def test_a_dictionary_is_looked_at_in_rows_that_fit_a_batch(tmp_path: Path) -> None:
    """The fields beside it are read with it, and may be wide."""
    wide = [f"{n}".ljust(10_000, "x") for n in range(4_000)]  # 40 MB
    rows = [{"a": t, "b": w} for t, w in zip(texts(2_500) * 2_000, wide, strict=False)]
    pq.write_table(
        pa.table({"v": rows}), tmp_path / "old.parquet", use_dictionary=["v.a"], data_page_size=MIB
    )
    location = f"file:{tmp_path}/old.parquet"
    with held() as pool, Disk().opened(location) as file:
        assert sum(b.num_rows for b in batches.read_batches(Disk(), location, file, ["v"])) == 4_000
    assert pool.max_memory() < MOST


@pytest.mark.parametrize("stored", ["one column", "none"])
def test_columns_that_a_file_lacks_are_counted(tmp_path: Path, stored: str) -> None:
    """They were added to the table later, and are null: 40 MB of a file of some bytes."""
    of_file = pa.table({"k": pa.array(np.zeros(ROWS), pa.int64())})
    pq.write_table(of_file, tmp_path / "old.parquet")
    items = pa.struct([("a", pa.int64()), ("b", pa.string())])
    kinds = {"c": pa.list_(pa.int64()), **{f"c{n}": items for n in range(150)}}
    schema = pa.schema({"k": pa.int64(), **kinds} if stored == "one column" else kinds)
    check_batches(tmp_path, schema)


@pytest.mark.parametrize("digits", [9, 18])
def test_decimals_are_counted_as_they_are_in_memory(tmp_path: Path, digits: int) -> None:
    """Files store short ones in four or eight bytes, and memory holds them in sixteen."""
    values = pa.array([None, 1] * (ROWS // 2), pa.decimal128(digits, 2))
    rows = pa.table({f"c{n}": values for n in range(100)})
    pq.write_table(rows, tmp_path / "old.parquet", store_decimal_as_integer=True)
    check_batches(tmp_path, rows.schema)


def check_batches(tmp_path: Path, schema: pa.Schema) -> None:
    """Read a file whose rows have more bytes in memory than there may be at once."""
    location = f"file:{tmp_path}/old.parquet"
    statistics = json.dumps({"type": "struct", "fields": []})
    table = TableFormat(schema, "snappy", ".parquet", statistics, 32, "4.2.0", True, Disk())
    with held() as pool:
        with Disk().opened(location) as file:
            read = batches_of_group(table.storage, location, file, 0, schema)
            assert sum(rows.num_rows for rows in read) == ROWS
        with pytest.raises(NotRewritableError, match="bytes"):
            all_rows(table.storage, location, schema, ROWS, 4 * MIB, new_calendar=True)
        with pytest.raises(NotRewritableError, match="bytes"):
            rows_at(location, np.arange(ROWS), table, 4 * MIB)
        assert rows_at(location, np.array([1, ROWS - 1]), table, 4 * MIB).num_rows == 2
    assert pool.max_memory() < 2 * 4 * MIB
