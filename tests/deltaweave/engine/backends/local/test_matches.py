"""What the driver reads of the candidate files: in which batches, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from deltaweave import Table
from deltaweave.delta.files import deletion_vectors
from deltaweave.delta.log import actions
from deltaweave.engine import limits
from deltaweave.engine.backends.local.eligibility import most_local
from tests.builders import Rows, frame, write_table
from tests.support.on_driver import rows_of

pytestmark = pytest.mark.usefixtures("switched_on")

SCHEMA = "region STRING, k INT, v INT"
VECTORS = {"delta.enableDeletionVectors": "true"}
LAYOUTS = pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy_on_write", "vectors"])


def upsert(table: Table, rows: Rows, on: str) -> None:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on=on)
    merge = merge.when_matched_delete("s.v IS NULL").when_matched_update_all()
    merge.when_not_matched_insert_all().execute()


# How many rows a batch has: of one file, of several, and of all.
@pytest.mark.parametrize("batch", [1, 3, 5, 1_000])
@pytest.mark.parametrize(
    "on",
    [
        "t.region = s.region AND t.k = s.k",  # the first leaves all rows
        pytest.param("t.region <=> s.region AND t.k <=> s.k", marks=pytest.mark.full_matrix),
    ],
    ids=["equal", "null_safe"],
)
def test_rows_are_found_at_their_places_in_files_of_several_row_groups(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    batch: int,
    on: str,
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_BATCH_ROWS", batch)
    path = str(tmp_path / "table")
    keys = [0, 1, 2, None, 4, 5, 6]
    for first in (0, 10, 20):
        rows = pa.table(
            {
                "region": pa.array(["DE"] * len(keys)),
                "k": pa.array([None if k is None else first + k for k in keys], pa.int32()),
                "v": pa.array([first] * len(keys), pa.int32()),
            }
        )
        groups = deltalake.WriterProperties(max_row_group_size=2)
        deltalake.write_deltalake(path, rows, mode="append", writer_properties=groups)
    files = deltalake.DeltaTable(path).file_uris()
    assert {pq.ParquetFile(file).num_row_groups for file in files} == {4}
    source: Rows = [("DE", 0, 9), ("DE", 5, None), ("DE", 14, 9), ("DE", 26, None), ("FR", 1, 9)]
    upsert(Table(spark, path), source, on)
    assert on_driver
    expected = [
        ("DE", k if k is None else first + k, first)
        for first in (0, 10, 20)
        for k in keys
        if k is None or first + k not in (0, 5, 14, 26)
    ]
    changed = [("DE", 0, 9), ("DE", 14, 9), ("FR", 1, 9)]
    assert rows_of(Table(spark, path)) == sorted([*expected, *changed], key=repr)


# Rows whose every key is one of the source's: (1, 2) too, though no source row has both.
# With its places, each takes less than 50 bytes, however long its keys are.
@pytest.mark.parametrize(("most", "is_done"), [(150, True), (50, False)])
@pytest.mark.parametrize(
    ("partition_by", "ending"),
    [([], "x" * 1_000), (["region", "k"], "")],
    ids=["long_keys", "keys_of_partitions"],
)
def test_too_many_rows_with_keys_of_the_source_are_left_to_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    most: int,
    is_done: bool,
    partition_by: list[str],
    ending: str,
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_POSSIBLE_BYTES", most)
    path = str(tmp_path / "table")
    de, fr, it = (region + ending for region in ("DE", "FR", "IT"))
    rows: Rows = [(de, 1, 0), (fr, 2, 0), (de, 2, 0), (it, 2, 0)]
    write_table(spark, path, rows, SCHEMA, partition_by=partition_by)
    source: Rows = [(de, 1, 9), (fr, 2, 9)]
    upsert(Table(spark, path), source, "t.region = s.region AND t.k = s.k")
    assert bool(on_driver) == is_done
    assert rows_of(Table(spark, path)) == [(de, 1, 9), (de, 2, 0), (fr, 2, 9), (it, 2, 0)]


@pytest.mark.parametrize(
    ("master", "times"),
    [
        ("local", 16),
        ("local[2]", 16),
        ("local[4, 3]", 16),
        ("local[16]", 4),  # the driver's threads use a quarter
        ("local[1000]", 1),
        ("local-cluster[2,1,1024]", 1),
        ("spark://one:7077", 1),
        ("yarn", 1),
        ("k8s://https://one:6443", 1),
    ],
)
def test_executors_with_cores_of_their_own_are_left_more(master: str, times: int) -> None:
    assert most_local(limits.MAX_LOCAL_BYTES, master) == times * limits.MAX_LOCAL_BYTES


# How many of ten rows are updated, and how many files are added.
@pytest.mark.minutes
@pytest.mark.parametrize(("changed", "num_added"), [(8, 1), (9, 2)])
def test_a_file_keeps_few_rows_and_new_rows_go_to_other_files(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    changed: int,
    num_added: int,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [("DE", k, 0) for k in range(10)], SCHEMA)
    [file] = Path(path).glob("*.parquet")
    monkeypatch.setattr(limits, "MIN_FILE_BYTES", file.stat().st_size // 2)
    table = Table(spark, path)
    upsert(table, [("DE", k, 1) for k in range(changed)], "t.k = s.k")
    assert on_driver
    assert rows_of(table) == [("DE", k, int(k < changed)) for k in range(10)]
    assert len(deltalake.DeltaTable(path).file_uris()) == num_added


# How many files with vectors the driver takes, of the two there are, and how many marked rows.
@pytest.mark.minutes
@pytest.mark.parametrize(("few", "marked", "is_done"), [(2, 2, True), (1, 2, False), (2, 1, False)])
@LAYOUTS
def test_vectors_that_exist_are_read_where_files_are_many(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    properties: dict[str, str],
    few: int,
    marked: int,
    is_done: bool,
) -> None:
    monkeypatch.setattr(deletion_vectors, "FEW_VECTORS", few)
    monkeypatch.setattr(limits, "MAX_MARKED_ROWS", marked)
    path = str(tmp_path / "table")
    rows: Rows = [("DE", k, 0) for k in range(8)]
    write_table(spark, path, rows, SCHEMA, files=2, properties=VECTORS)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k IN (1, 5)")
    if not properties:
        off = "('delta.enableDeletionVectors'='false')"
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES {off}")
    if is_done:
        monkeypatch.setattr(actions, "FEW", 0)  # so that no AddFile comes to the driver
    upsert(Table(spark, path), [("DE", 0, 1), ("DE", 1, 1), ("DE", 5, 1)], "t.k = s.k")
    assert bool(on_driver) == is_done
    assert rows_of(Table(spark, path)) == [("DE", k, int(k in (0, 1, 5))) for k in range(8)]
