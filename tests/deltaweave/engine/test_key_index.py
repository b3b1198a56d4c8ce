"""An index of random keys spares reading files, and changes nothing else, however stale it is."""

from __future__ import annotations

import datetime
import hashlib
import logging
import shutil
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeResult, Table
from deltaweave.delta.commit import TableLock
from deltaweave.engine import limits
from deltaweave.engine.prune import KeyIndex
from deltaweave.engine.tasks import file_tasks
from deltaweave.errors import StatementError
from tests.builders import frame, write_table
from tests.support.settings import configured

VECTORS = {"delta.enableDeletionVectors": "true"}
SCHEMA = "k STRING, v INT"


def key(number: int) -> str:
    """As random as a UUID, and always the same."""
    return hashlib.md5(str(number).encode()).hexdigest()


ROWS = [
    row
    for file in range(8)
    for row in [
        (f"!{file}", 0),
        *[(key(number), number) for number in range(file * 5, file * 5 + 5)],
        (f"~{file}", 0),
    ]
]


def table_of_random_keys(
    spark: SparkSession, path: Path, properties: dict[str, str] | None = None
) -> Table:
    """40 keys in 8 files, the first five numbers in the first file and so on.

    Each file has a lowest and a highest key besides, so that statistics rule no file out.
    """
    write_table(spark, str(path), ROWS, SCHEMA, files=8, properties=properties)
    return Table(spark, str(path))


def upserted(table: Table, numbers: list[int], value: int) -> MergeResult:
    changes = frame(table.spark, [(key(number), value) for number in numbers], SCHEMA)
    merge = table.merge(changes, on="t.k = s.k")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def values(table: Table) -> dict[str, int]:
    rows = table.read().collect()
    found = {row.k: row.v for row in rows}
    assert len(found) == len(rows), "no key twice"
    return found


@pytest.mark.minutes
@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy_on_write", "vectors"])
def test_only_files_that_may_hold_a_key_are_read_also_after_merges(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = table_of_random_keys(spark, tmp_path / "table", properties)
    assert upserted(table, [0], -1).metrics["numTargetFilesAfterSkipping"] == 8  # no index yet
    assert table.index_keys("K") >= 8
    assert table.index_keys("k") == 0  # all have their filter

    first = upserted(table, [7, 33, 100], -2)  # two files and a new key
    assert first.metrics["numTargetFilesAfterSkipping"] == 2
    again = upserted(table, [7, 100], -3)  # which the first merge has rewritten
    most = 3 if properties else 2  # a marked row's key is still in its file's filter
    assert again.metrics["numTargetFilesAfterSkipping"] <= most
    none = upserted(table, [200], -4)
    assert none.metrics["numTargetFilesAfterSkipping"] == 0

    changed = {key(0): -1, key(33): -2, key(7): -3, key(100): -3, key(200): -4}
    assert values(table) == dict(ROWS) | changed
    spark.sql(f"VACUUM delta.`{tmp_path / 'table'}`")
    assert upserted(table, [7], -5).metrics["numTargetFilesAfterSkipping"] <= most


@pytest.mark.minutes
def test_a_recreated_table_is_not_pruned_by_the_old_tables_index(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The files of both tables have the same names."""
    path, other = tmp_path / "table", tmp_path / "other"
    rows = [("!", 0), (key(0), 0), ("~", 0), ("!", 1), (key(1), 1), ("~", 1)]
    write_table(spark, str(path), rows, SCHEMA, files=2)
    table = Table(spark, str(path))
    table.index_keys("k")
    index = spark.read.format("delta").load(str(path / "_deltaweave_keys"))
    old = index.select("path", "column", "hashed_as", "filter").toArrow()
    rows = [(k if len(k) == 1 else key(v + 2), v) for k, v in rows]
    write_table(spark, str(other), rows, SCHEMA, files=2)
    spark.sql(f"ALTER TABLE delta.`{other}` SET TBLPROPERTIES ('deltaweave.keyIndex' = 'k')")
    log = [each.read_text() for each in sorted((other / "_delta_log").glob("*.json"))]
    shutil.rmtree(path / "_delta_log")
    (path / "_delta_log").mkdir()
    for checksum in path.glob(".*.crc"):
        checksum.unlink()
    names = zip(sorted(path.glob("part-*")), sorted(other.glob("part-*")), strict=True)
    for name, file in names:
        file.replace(name)
        log = [each.replace(file.name, name.name) for each in log]
    for version, actions in enumerate(log):
        (path / "_delta_log" / f"{version:020}.json").write_text(actions)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert upserted(table, [2], -1).metrics["numTargetRowsUpdated"] == 1
    # An earlier release's index, too, is not asked, and is rebuilt.
    shutil.rmtree(path / "_deltaweave_keys")
    spark.createDataFrame(old).write.format("delta").save(str(path / "_deltaweave_keys"))
    assert upserted(table, [3], -1).metrics["numTargetRowsUpdated"] == 1
    assert table.index_keys("k") > 0
    assert upserted(table, [3], -2).metrics["numTargetFilesAfterSkipping"] == 1


@pytest.mark.minutes
def test_files_that_the_index_does_not_know_are_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path)
    table.index_keys("k")
    others = frame(spark, [(key(50), 50)], SCHEMA)
    others.write.format("delta").mode("append").save(str(path))  # by another writer
    result = upserted(table, [50], -1)
    assert result.metrics["numTargetRowsUpdated"] == 1
    assert result.metrics["numTargetFilesAfterSkipping"] == 1
    shutil.rmtree(path / "_deltaweave_keys")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert upserted(table, [50], -2).metrics["numTargetFilesAfterSkipping"] == 9
    # It was rebuilt, for all files, after that merge.
    assert upserted(table, [50], -3).metrics["numTargetFilesAfterSkipping"] == 1
    assert values(table)[key(50)] == -3


@pytest.mark.minutes
def test_merges_index_the_files_of_other_writers_now_and_then(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_CATCH_UP_INTERVAL", 2)
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path)
    table.index_keys("k")
    others = frame(spark, [("!", 0), (key(50), 50), ("~", 0)], SCHEMA).coalesce(1)
    others.write.format("delta").mode("append").save(str(path))

    def read_for(number: int) -> int:
        source = f"(SELECT '{key(number)}' AS k)"
        return deltaweave.explain(
            spark,
            f"MERGE INTO delta.`{path}` t USING {source} s ON t.k = s.k WHEN MATCHED THEN DELETE",
        ).after_source_keys.files

    upserted(table, [0], -1)  # indexes the file that it wrote
    assert (read_for(0), read_for(200)) == (2, 1)  # the others' file is asked for any key
    upserted(table, [0], -2)  # looks for more
    assert (read_for(0), read_for(50), read_for(200)) == (1, 1, 0)


@pytest.mark.minutes
def test_rows_that_a_restore_brings_back_are_found(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path, VECTORS)
    gone = frame(spark, [(key(3), 0)], SCHEMA)
    table.merge(gone, on="t.k = s.k").when_matched_delete().execute()
    table.index_keys("k")  # of a file in which the row is marked deleted
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0").collect()
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('deltaweave.keyIndex' = 'k')")
    result = upserted(table, [3], -1)
    assert result.metrics["numTargetRowsUpdated"] == 1
    assert result.metrics["numTargetFilesAfterSkipping"] == 1


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("schema", "keys", "source_schema", "null_safe", "read"),
    [
        ("k INT, v INT", [5, 1, 9, 3], "k BIGINT, v INT", False, 1),  # hashed as bigint
        ("k DATE, v INT", [datetime.date(2000, 1, d) for d in (5, 1, 9, 3)], "", False, 1),
        ("k STRING, v INT", ["ä", "a'\\", "z", "c"], "", False, 1),
        ("k INT, v INT", [5, 1, None, 3], "", False, 1),  # a null key matches nothing
        ("k INT, v INT", [5, 1, None, 3], "", True, 4),  # it does here, so the index is not asked
        ("k INT, v INT", [5, 1, 9, 3], "k DOUBLE, v INT", False, 4),  # nor for another type
    ],
)
def test_keys_of_each_type_are_found(
    spark: SparkSession,
    tmp_path: Path,
    schema: str,
    keys: list[Any],
    source_schema: str,
    null_safe: bool,
    read: int,
) -> None:
    # Each file's first row makes its range hold all keys, so that statistics rule nothing out.
    low, high = min(k for k in keys if k is not None), max(k for k in keys if k is not None)
    path = str(tmp_path / "table")
    rows = [row for n, k in enumerate(keys) for row in [(low, 90), (k, n), (high, 91)]]
    write_table(spark, path, rows, schema, files=4)
    table = Table(spark, path)
    table.index_keys("k")
    wanted = keys[3]
    source = [(float(wanted) if "DOUBLE" in source_schema else wanted, -1)]
    if null_safe:
        source.append((None, -2))
    on = "t.k <=> s.k" if null_safe else "t.k = s.k"
    changes = frame(spark, source, source_schema or schema)
    result = table.merge(changes, on=on).when_matched_update({"v": "s.v"}).execute()
    assert result.metrics["numTargetFilesAfterSkipping"] == read
    updated = {row.k: row.v for row in table.read().where("v < 0").collect()}
    assert updated == ({wanted: -1, None: -2} if null_safe else {wanted: -1})


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("indexed_as", "merged_as"), [("LEGACY", "CORRECTED"), ("CORRECTED", "LEGACY")]
)
def test_old_days_are_found_in_whichever_calendar_a_session_reads_them(
    spark: SparkSession, tmp_path: Path, indexed_as: str, merged_as: str
) -> None:
    """Files that no Spark wrote are read by the session's calendar."""
    path, mode = tmp_path / "table", "spark.sql.parquet.datetimeRebaseModeInRead"
    path.mkdir()
    for file in range(2):
        days = [datetime.date(1400, 1, 1), datetime.date(1500 + file, 1, 1), datetime.date.today()]
        rows = pa.table({"k": days, "v": [0, file + 1, 0]})
        pq.write_table(rows, path / f"{file}.parquet", store_schema=False)
    spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
    table = Table(spark, str(path))
    with configured(spark, {mode: indexed_as}):
        assert table.index_keys("k") == 2
    with configured(spark, {mode: merged_as}):
        changes = table.read().where("v = 1").selectExpr("k", "-1L AS v").localCheckpoint()
        result = table.merge(changes, on="t.k = s.k").when_matched_update_all().execute()
        assert result.metrics["numTargetRowsUpdated"] == 1
        # A day that both calendars have is looked up.
        changes = frame(spark, [(datetime.date(1999, 1, 1), 0)], "k DATE, v BIGINT")
        result = table.merge(changes, on="t.k = s.k").when_matched_update_all().execute()
        assert result.metrics["numTargetFilesAfterSkipping"] == 0


def test_a_column_that_cannot_be_indexed_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{path}` (d DOUBLE, c CHAR(3)) USING delta")
    table = Table(spark, str(path))
    for column in ("d", "c", "missing"):
        with pytest.raises(StatementError, match="has no column"):
            table.index_keys(column)
    assert table.version() == 0  # no property was set


@pytest.mark.minutes
def test_a_merge_stands_where_its_index_cannot_be_written(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of_random_keys(spark, tmp_path / "table")
    spark.sql(
        f"ALTER TABLE delta.`{tmp_path / 'table'}` SET TBLPROPERTIES ('deltaweave.keyIndex' = 'k')"
    )
    (tmp_path / "table" / "_deltaweave_keys").write_text("in the way")
    with caplog.at_level(logging.WARNING, "deltaweave"):
        result = upserted(table, [1], -1)
    assert result.version == table.version()
    assert "updating the key index failed" in caplog.text
    assert ["updating the key index failed" in each for each in result.warnings] == [True]
    assert values(table)[key(1)] == -1


@pytest.mark.minutes
def test_filters_of_files_that_left_go_in_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_REWRITE_INTERVAL", 3)
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path)
    table.index_keys("k")
    for value in (-1, -2, -3):  # each rewrites one file; the third rewrites the index, too
        upserted(table, [0], value)
    index = spark.read.format("delta").load(str(path / "_deltaweave_keys"))
    assert index.count() == 8
    assert values(table)[key(0)] == -3


@pytest.mark.minutes
def test_explain_says_that_the_index_was_asked(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path)
    statement = (
        f"MERGE INTO delta.`{path}` t USING (SELECT '{key(3)}' AS k, 0 AS v) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET *"
    )
    assert deltaweave.explain(spark, statement).key_index == ""
    table.index_keys("k")
    plan = deltaweave.explain(spark, statement)
    assert plan.key_index == "k"
    assert plan.after_source_keys.files == 1
    assert "after the source's keys and the index of k: 1 file, " in str(plan)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=30), max_size=5))
def test_no_key_that_a_file_holds_is_ever_denied(files: list[list[int | None]]) -> None:
    rows = [(f"file-{n}", value) for n, file in enumerate(files) for value in file]
    table = pa.table(
        {
            "location": pa.array([name for name, _ in rows], pa.string()),
            "hash": pa.array([value for _, value in rows], pa.int64()),
        }
    )
    built = list(file_tasks.filters_of(iter(table.to_batches(max_chunksize=7))))
    assert {name for b in built for name in b.column("location").to_pylist()} == {
        name for name, _ in rows
    }
    for n, file in enumerate(files):
        for value in file:
            if value is None:
                continue
            ask = file_tasks.holders_of(np.array([value], dtype=np.int64))
            named = (b.rename_columns(["path", "filter"]) for b in built)
            answers = [row for b in ask(named) for row in b.to_pylist()]
            assert any(row["may_hold"] for row in answers if row["path"] == f"file-{n}")


def test_filters_deny_nearly_all_other_keys() -> None:
    random = np.random.default_rng(seed=3)
    held, others = random.integers(-(2**63), 2**63, (2, 20_000), dtype=np.int64)
    batch = pa.record_batch([pa.array(["file"] * len(held)), pa.array(held)], ["location", "hash"])
    [built] = file_tasks.filters_of(iter([batch]))
    filter_ = built.column("filter")[0].as_buffer()
    assert filter_.size == len(held) * file_tasks.BITS_PER_KEY // 8
    wrong = sum(file_tasks.filter_may_hold(filter_, others[n : n + 1]) for n in range(len(others)))
    assert wrong < 12  # 1.3 are expected: one in 15,000


@pytest.mark.minutes
def test_without_pyarrow_on_the_executors_no_file_is_ruled_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of_random_keys(spark, tmp_path / "table", VECTORS)
    assert table.index_keys("k") == 8
    venv.create(tmp_path / "python", symlinks=True)
    bare = str(tmp_path / "python" / "bin" / "python")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare)
    for value in (100, 200):  # found by the first merge, known by the second
        result = upserted(table, [3], value)
        assert result.metrics["numTargetFilesAfterSkipping"] >= 8
        assert result.warnings == ()
        assert table.read().where(f"k = '{key(3)}'").first().v == value  # type: ignore[union-attr]


@pytest.mark.minutes
def test_an_index_is_built_where_a_killed_builder_left_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    table, left = table_of_random_keys(spark, path), path / "_deltaweave_keys"
    (left / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"column": ["k"]}), left / "part-00000.parquet")
    assert table.index_keys("k") == 8
    assert upserted(table, [7], -1).metrics["numTargetFilesAfterSkipping"] == 1


@pytest.mark.minutes
@pytest.mark.parametrize("is_locked", [True, False], ids=["on a disk", "without a lock"])
def test_several_first_builders_at_once_build_one_index(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_locked: bool
) -> None:
    path = tmp_path / "table"
    table = table_of_random_keys(spark, path)
    begun, stored = threading.Barrier(2, timeout=60), KeyIndex.stored_filters

    def both_find_none(index: KeyIndex) -> Any:
        found = stored(index)
        if found is None:
            begun.wait()
        return found

    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('deltaweave.keyIndex' = 'k')")
    monkeypatch.setattr(KeyIndex, "stored_filters", both_find_none)
    if not is_locked:  # as on an object store
        monkeypatch.setattr(TableLock, "take_for_creation", lambda lock, make_directory: None)
    with ThreadPoolExecutor(2) as threads:
        building = [threads.submit(Table(spark, str(path)).index_keys, "k") for _ in range(2)]
    assert [each.result() for each in building] == [8, 8]
    assert Table(spark, str(path)).index_keys("k") == 0
    assert upserted(table, [7], -1).metrics["numTargetFilesAfterSkipping"] == 1
