"""Touched files rewritten row by row in their order, and read back by Spark, Delta and delta-rs."""

from __future__ import annotations

import json
import venv
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

import deltaweave
from deltaweave import Table, errors
from deltaweave._session import installed_pair, line
from deltaweave.engine import limits
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from deltaweave.engine.tasks import Disk, TableFormat, file_tasks
from deltaweave.engine.tasks.batches import batches_of_group
from tests.builders import frame, write_table
from tests.support.footers import SPARK_VERSION, rewritten_footer
from tests.support.oracles import (
    actions,
    change_feed,
    commit_info,
    error_classes,
    newest_version,
    rows_as_text,
)
from tests.support.settings import configured

# A row of every type that the engine writes by itself; the second holds the awkward values.
EVERY_TYPE = """
    SELECT id AS k, id % 2 = 0 AS bool, CAST(id AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small,
      id * 3000000000 AS big, CAST(id AS FLOAT) / 3 AS single,
      CASE id WHEN 1 THEN double('NaN') WHEN 2 THEN double('-Infinity') WHEN 3 THEN -0.0D
        ELSE id / 7D END AS double,
      CAST(id / 8 AS DECIMAL(7, 2)) AS small_decimal, CAST(id AS DECIMAL(17, 4)) AS decimal,
      CAST('12345678901234567890123456.789' AS DECIMAL(38, 3)) + id AS big_decimal,
      CASE id WHEN 1 THEN repeat('é', 40) WHEN 2 THEN '' ELSE concat('text ', id) END AS text,
      encode(CAST(id AS STRING), 'UTF-8') AS bytes, DATE'1582-10-04' + CAST(id AS INT) AS day,
      TIMESTAMP'1969-12-31 23:59:59.999999' + make_dt_interval(id, 0, 0, 0.000001) AS at,
      TIMESTAMP_NTZ'2024-02-29 12:00:00.123456' + make_dt_interval(id) AS local_at,
      array(id, NULL) AS list, map('a', id, 'b', NULL) AS map,
      CASE WHEN id <> 4 THEN named_struct('x', id, 'y', named_struct('z', repeat('long', 12))) END
        AS struct,
      CAST(NULL AS INT) AS nothing
    FROM range({first}, {last})
"""
COUNTS_OF_ROWS = (
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsInserted",
    "numTargetRowsCopied",
)


@pytest.fixture(autouse=True)
def _in_place(spark: SparkSession) -> object:
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        yield


def rows_in_files(path: str, folder: Path) -> dict[str, list[int]]:
    """The keys of each file of the newest version, in the order they are stored."""
    files = deltalake.DeltaTable(path).file_uris()
    return {file: pq.read_table(file.removeprefix("file://"))["k"].to_pylist() for file in files}


def added_files(path: str) -> list[dict[str, Any]]:
    """The files that the newest commit added."""
    log = sorted(Path(path, "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    return [json.loads(line)["add"] for line in log if '"add"' in line]


def added_statistics(path: str) -> list[dict[str, object]]:
    """The statistics of the files that the newest commit added."""
    return [json.loads(add["stats"]) for add in added_files(path)]


@pytest.mark.minutes
def test_one_source_column_may_give_two_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0, 0), (2, 0, 0)], "k INT, a INT, b INT")
    source = frame(spark, [(2, 7)], "k INT, v INT")
    result = (
        Table(spark, path)
        .merge(source, on="t.k = s.k")
        .when_matched_update(set={"a": "s.v", "b": "s.v"})
        .when_not_matched_insert(values={"k": "s.k", "a": "s.v", "b": "s.v"})
        .execute()
    )
    assert result.strategy == "copy-in-place"
    assert sorted(map(tuple, Table(spark, path).read().collect())) == [(1, 0, 0), (2, 7, 7)]


# 3 rows of a file change, of some 1,000 bytes each.
@pytest.mark.minutes
@pytest.mark.parametrize(("most", "strategy"), [(9_000, "in-place"), (2_000, "on-write")])
def test_too_many_bytes_of_changed_rows_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, strategy: str
) -> None:
    monkeypatch.setattr(file_tasks, "MAX_CHANGED_BYTES", most)
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, "old") for k in range(5)], "k INT, v STRING")
    source = spark.range(3).selectExpr("INT(id) AS k", "repeat('x', 1000) AS v")
    with configured(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}):
        result = Table(spark, path).merge(source, "t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == f"copy-{strategy}"
    rows = sorted(map(tuple, Table(spark, path).read().collect()))
    assert rows == [*[(k, "x" * 1000) for k in range(3)], (3, "old"), (4, "old")]


def test_changed_rows_that_are_too_many_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"file": [0] * 100, "index": range(100)})
    monkeypatch.setattr(file_tasks, "MAX_CHANGED_BYTES", 3 * batch.nbytes)
    read = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            read.append(number)
            yield batch

    schema = json.dumps({"type": "struct", "fields": []})
    table = TableFormat(
        pa.schema([]), "snappy", ".parquet", schema, 32, "4.2.0", new_calendar=True, storage=Disk()
    )
    rewrite = file_tasks.rewriter(table, ["x"], frozenset(), {})
    [done] = rewrite((pa.scalar(0),), batches()).to_pylist()
    assert "changed rows" in done["refused"]
    assert read == [0, 1, 2, 3]  # the fourth exceeds the bound
    assert len(list(file_tasks.in_batches(rewrite)((pa.scalar(0),), batches()))) == 1
    assert read[4:] == list(range(10))  # Spark sends them all


@pytest.mark.minutes
def test_arrays_that_are_declared_without_nulls_take_arrays_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark casts no array that may hold nulls to a type that says it holds none."""
    path = str(tmp_path / "table")
    item = StructType([StructField("x", IntegerType()), StructField("y", IntegerType())])
    table = DeltaTable.create(spark).location(path).addColumn("k", IntegerType())
    table.addColumn("items", ArrayType(item, containsNull=False)).execute()
    rows = spark.sql("SELECT id AS k, array(named_struct('x', 1, 'y', 2)) AS items FROM range(4)")
    rows.selectExpr("CAST(k AS INT) AS k", "items").write.format("delta").mode("append").save(path)
    source = spark.sql(
        'SELECT CAST(id AS INT) AS k, from_json(\'[{"x": 3, "y": 4}]\', '
        "'array<struct<x: int, y: int>>') AS items, id = 1 AS gone FROM range(1, 3)"
    )
    for is_gone in ("s.gone", "s.k > 5"):  # two clauses take rows, or one alone
        result = (
            Table(spark, path)
            .merge(source, on="t.k = s.k")
            .when_matched_delete(condition=is_gone)
            .when_matched_update({"items": "s.items"})
            .execute()
        )
        assert result.strategy == "copy-in-place"
    found = Table(spark, path).read().selectExpr("k", "items[0].x")
    assert sorted(map(tuple, found.collect())) == [(0, 1), (2, 3), (3, 1)]


@pytest.mark.minutes
def test_rows_keep_their_indexes_and_deleted_ones_are_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    keys = [5, 3, 9, 1, 7, 2, 8, 6]  # in two files of four; not sorted, so that order shows
    write_table(spark, path, [(k, 0) for k in keys], "k INT, v INT", files=2)
    source = frame(spark, [(3, 1), (8, 1), (1, -1), (4, 1)], "k INT, v INT")
    result = (
        Table(spark, path)
        .merge(source, on="t.k = s.k")
        .when_matched_delete(condition="s.v < 0")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert result.strategy == "copy-in-place"
    assert sorted(rows_in_files(path, tmp_path).values()) == [
        [4],  # inserted, in a file of its own
        [5, 3, 9],  # 3 was updated where it was, 1 deleted
        [7, 2, 8, 6],  # 8 was updated where it was
    ]
    metrics = result.metrics
    assert (metrics["numTargetRowsCopied"], metrics["numTargetFilesAdded"]) == (5, 3)


@pytest.mark.minutes
def test_a_file_without_rows_left_is_not_written(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT")
    source = frame(spark, [(1,), (2,), (2,)], "k INT")  # 2 is deleted by two source rows
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_delete().execute()
    assert (result.strategy, result.touched_files.added) == ("copy-in-place", ())
    assert Table(spark, path).read().count() == 0
    assert len(list(Path(path).glob("*.parquet"))) == 1  # the old file, for older versions


@pytest.mark.minutes
def test_every_type_reads_back_and_has_the_statistics_that_delta_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, written_by_delta = str(tmp_path / "table"), str(tmp_path / "delta")
    properties = {"delta.enableDeletionVectors": "false"}
    whole = spark.sql(EVERY_TYPE.format(first=0, last=8)).coalesce(1)
    whole.write.format("delta").options(**properties).save(path)
    changed = spark.sql(EVERY_TYPE.format(first=3, last=5)).withColumn(
        "tiny", F.lit(-7).cast("byte")
    )
    changed.createOrReplaceTempView("changed_types")
    result = deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t USING changed_types s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET *",
    )
    assert result.strategy == "copy-in-place"
    expected = whole.withColumn(
        "tiny", F.when(F.col("k").isin(3, 4), F.lit(-7).cast("byte")).otherwise(F.col("tiny"))
    )
    expected.coalesce(1).write.format("delta").options(**properties).save(written_by_delta)
    as_text = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    ours = [row[0] for row in spark.read.format("delta").load(path).select(as_text).collect()]
    theirs = [row[0] for row in expected.select(as_text).collect()]
    assert ours == theirs  # in the same order too
    assert added_statistics(path) == added_statistics(written_by_delta)
    by_delta_rs = deltalake.DeltaTable(path).to_pyarrow_table()
    by_spark = deltalake.DeltaTable(written_by_delta).to_pyarrow_table()
    assert by_delta_rs.drop(["double"]).equals(by_spark.cast(by_delta_rs.schema).drop(["double"]))
    # Delta's own compaction reads them too.
    write_more = spark.sql(EVERY_TYPE.format(first=9, last=10))
    write_more.write.format("delta").mode("append").save(path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    assert spark.read.format("delta").load(path).count() == 9


@pytest.mark.minutes
def test_files_that_are_not_proven_safe_are_left_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    properties = {"delta.enableTypeWidening": "true"}
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v SMALLINT", properties=properties)
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN v TYPE INT")
    frame(spark, [(3, 30), (4, 40)], "k INT, v INT").write.format("delta").mode("append").save(path)
    source = frame(spark, [(1, -1), (3, -3)], "k INT, v INT")  # a row of each file
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == "copy-on-write"  # the file with narrow values is Spark's
    assert result.metrics["numTargetRowsCopied"] == 2
    rows = sorted((row.k, row.v) for row in Table(spark, path).read().collect())
    assert rows == [(1, -1), (2, 20), (3, -3), (4, 40)]


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("changed", "by", "strategy"),
    [
        (range(2), "the source", "copy-in-place"),  # a fifth of the first file
        (range(2), "its own values", "copy-in-place"),
        # More than a quarter of the first file, none of the second.
        (range(6), "the source", "copy-on-write"),
        # All of one, more than half of the other.
        ((*range(10), *range(10, 16)), "its own values", "copy-on-write"),
        (range(20), "the source", "copy-on-write"),  # no row is left
    ],
    ids=["few", "few_by_own_values", "many", "most", "all"],
)
def test_files_in_which_many_rows_change_are_left_to_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Sequence[int],
    strategy: str,
    by: str,
) -> None:
    monkeypatch.setattr(limits, "MIN_BYTES_IN_PLACE", 0)
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(20)], "k INT, v INT", files=2)
    source = frame(spark, [(k, 1) for k in (*changed, 99)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_delete("s.k % 5 = 4")
    assigned = "s.v" if by == "the source" else "t.v + s.v"
    merge = merge.when_matched_update({"k": "s.k", "v": assigned}).when_not_matched_insert_all()
    with configured(spark, {REWRITE_IN_PLACE: "auto"}):
        result = merge.execute()
    assert result.strategy == strategy
    expected = {(k, int(k in changed)) for k in range(20) if k not in changed or k % 5 != 4}
    found = [tuple(row) for row in Table(spark, path).read().collect()]
    assert sorted(found) == sorted({*expected, (99, 1)})
    deleted = sum(k % 5 == 4 for k in changed)
    metrics = result.metrics
    assert metrics["numTargetRowsUpdated"] == len(changed) - deleted
    touched = 10 * len({k // 10 for k in changed})
    assert metrics["numTargetRowsCopied"] == touched - len(changed)


@pytest.mark.minutes
def test_files_with_marked_rows_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    rows = [(k, 0) for k in range(6)]
    properties = {"delta.enableDeletionVectors": "true"}
    write_table(spark, path, rows, "k INT, v INT", files=2, properties=properties)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 1")  # marks a row of the first file
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableDeletionVectors = false)")
    source = frame(spark, [(0, 5), (4, 5)], "k INT, v INT")  # a row of each file
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == "copy-on-write"
    found = sorted((row.k, row.v) for row in Table(spark, path).read().collect())
    assert found == [(0, 5), (2, 0), (3, 0), (4, 5), (5, 0)]  # 1 stays deleted


@pytest.mark.minutes
def test_a_column_that_old_files_lack_is_null_in_their_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN w STRING")
    source = frame(spark, [(2, 5, "new")], "k INT, v INT, w STRING")
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == "copy-in-place"
    found = sorted(tuple(row) for row in Table(spark, path).read().collect())
    assert found == [(1, 0, None), (2, 5, "new")]


@pytest.mark.minutes
def test_columns_whose_names_are_paths_into_others_are_distinguished(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Columns of a file are read one after the other; Arrow takes `a.b` for a field of `a`, too."""
    schema = "k INT, a STRUCT<b: INT, c: STRING>, `a.b` INT"
    rows = [(k, (20 + k, f"c{k}"), 10 + k) for k in range(6)]
    frame(spark, [(1, (1, "new"), 0), (2, None, 0)], schema).createOrReplaceTempView("s")
    statement = (
        "MERGE INTO delta.`{path}` t USING s ON t.k = s.k WHEN MATCHED AND s.k = 2 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET a = s.a, `a.b` = s.`a.b`"
    )
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}
    outcomes = []
    for merge in (lambda text: spark.sql(text), lambda text: deltaweave.merge(spark, text)):
        path = str(tmp_path / str(len(outcomes)))
        write_table(spark, path, [], schema, ddl=schema, properties=properties)
        frame(spark, rows, schema).write.format("delta").mode("append").save(path)
        # The file lacks it, and its name is one of a field.
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN `a.c` STRING")
        result = merge(statement.format(path=path))
        read = Table(spark, path).read()
        tracked = read.selectExpr("k", "_metadata.row_id", "_metadata.row_commit_version")
        outcomes.append(
            (
                rows_as_text(read.collect()),
                rows_as_text(tracked.collect()),
                change_feed(spark, path, newest_version(path)),
            )
        )
    assert result.strategy == "copy-in-place"
    [added] = added_files(path)
    by_whom = pq.ParquetFile(Path(path, added["path"])).metadata.created_by
    assert by_whom.startswith("parquet-cpp-arrow")
    assert outcomes[1] == outcomes[0]
    assert len(outcomes[1][0]) == 5


def test_columns_of_different_lengths_are_an_error_and_no_rows(tmp_path: Path) -> None:
    """Whole row groups would not be read either: such a file is damaged."""
    one, other = (str(tmp_path / name) for name in ("one.parquet", "other.parquet"))
    pq.write_table(pa.table({"k": range(4)}), one)
    pq.write_table(pa.table({"k": range(3)}), other)

    class Damaged(pq.ParquetFile):
        def iter_batches(self, *args: Any, **more: Any) -> Any:
            return pq.ParquetFile(other).iter_batches(*args, **more)

    schema = pa.schema([("k", pa.int64())])
    with pytest.raises(pa.ArrowInvalid, match=r"row group 0 lack 1 row"):
        list(batches_of_group(Disk(), one, Damaged(one), 0, schema))


@pytest.mark.parametrize("added", [[], ["added"]], ids=["", "added"])
@pytest.mark.parametrize("names", [["a.b"], ["a", "x"], ["x", "a.b", "a"], []])
def test_columns_come_by_their_names(tmp_path: Path, names: list[str], added: list[str]) -> None:
    file = str(tmp_path / "file.parquet")
    struct = pa.array([{"b": 1}, {"b": 2}])
    stored = pa.table({"x": [5, 6], "a": struct, "a.b": ["3", "4"]})
    pq.write_table(stored, file)
    types = {**{f.name: f.type for f in stored.schema}, "added": pa.string()}  # the file lacks it
    schema = pa.schema([(name, types[name]) for name in (*names, *added)])
    read = pa.concat_tables(batches_of_group(Disk(), file, pq.ParquetFile(file), 0, schema))
    expected = {name: stored[name].to_pylist() for name in names}
    assert read.to_pydict() == {**expected, **{name: [None, None] for name in added}}


@pytest.mark.minutes
def test_a_sorted_table_is_still_sorted_after_twenty_merges(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(200)], "k INT, v INT", files=5)
    table = Table(spark, path)
    for number in range(20):
        keys = [(number * 7 + i * 40, number) for i in range(5)]  # one row of each file
        changes = frame(spark, [(k % 200, v) for k, v in keys], "k INT, v INT")
        table.merge(changes, on="t.k = s.k").when_matched_update_all().execute()
    files = sorted(rows_in_files(path, tmp_path).values())
    assert [(keys[0], keys[-1]) for keys in files] == [
        (0, 39), (40, 79), (80, 119), (120, 159), (160, 199),  # no file's range overlaps another's
    ]  # fmt: skip
    assert all(keys == sorted(keys) for keys in files)


@pytest.mark.parametrize(
    ("properties", "setting", "reason"),
    [
        ({"delta.columnMapping.mode": "id"}, "true", "finds columns in its files by id"),
        ({}, "false", "is false"),
        ({}, "auto", "the table is small"),
    ],
    ids=["id_mapping", "switched_off", "small"],
)
def test_explain_says_why_spark_rewrites_files(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], setting: str, reason: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0)], "k INT, v INT", properties=properties)
    statement = f"MERGE INTO delta.`{path}` t USING (SELECT 1 AS k) s ON t.k = s.k " + (
        "WHEN MATCHED THEN UPDATE SET v = 5"
    )
    with configured(spark, {REWRITE_IN_PLACE: setting}):
        plan = deltaweave.explain(spark, statement)
        assert (plan.strategy, reason in plan.reason) == ("copy-on-write", True)
        assert deltaweave.merge(spark, statement).strategy == "copy-on-write"


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"partition_by": ["p"]},
        pytest.param(
            {"properties": {"delta.columnMapping.mode": "name"}}, marks=pytest.mark.minutes
        ),
    ],
    ids=["plain", "partitioned", "column_mapping"],
)
def test_files_rewritten_in_place_record_their_changes_in_the_feed(
    spark: SparkSession, tmp_path: Path, layout: dict[str, Any]
) -> None:
    rows = [(k, k * 10, p) for p in ("a", "b", None) for k in range(ord(p or "c"), 130)]
    schema = "k INT, v BIGINT, p STRING"
    statement = (
        "MERGE INTO delta.`{path}` t USING s ON t.k = s.k "
        "WHEN MATCHED AND t.p = 'b' THEN DELETE "  # all rows of a file
        "WHEN MATCHED AND s.v = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = t.v + s.v "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    source = [(k, k % 5, "c") for k in range(98, 132)]
    outcomes = []
    for merge in (lambda text: spark.sql(text), lambda text: deltaweave.merge(spark, text)):
        path = str(tmp_path / str(len(outcomes)))
        write_table(
            spark,
            path,
            [],
            schema,
            ddl=schema,
            partition_by=layout.get("partition_by", ()),
            properties={"delta.enableChangeDataFeed": "true", **layout.get("properties", {})},
        )
        for p in ("a", "b", None):
            of_file = frame(spark, [row for row in rows if row[2] == p], schema)
            of_file.write.format("delta").mode("append").save(path)
        frame(spark, source, schema).createOrReplaceTempView("s")
        result = merge(statement.format(path=path))
        version = newest_version(path)
        metrics = commit_info(path, version)["operationMetrics"]
        outcomes.append(
            (
                rows_as_text(Table(spark, path).read().collect()),
                change_feed(spark, path, version),
                {name: metrics[name] for name in COUNTS_OF_ROWS},
            )
        )
    assert result.strategy == "copy-in-place"
    assert outcomes[1] == outcomes[0]
    in_log = [each["cdc"] for each in actions(path, version) if "cdc" in each]
    assert len(in_log) == int(metrics["numTargetChangeFilesAdded"]) > 3
    sizes = [Path(path, each["path"]).stat().st_size for each in in_log]
    assert sizes == [each["size"] for each in in_log]
    assert sum(sizes) == result.metrics.num_target_change_file_bytes


CONSTRAINED = "k INT NOT NULL, v INT, p STRING NOT NULL, row STRING"
CHECKS = (
    "ALTER TABLE {target} ADD CONSTRAINT of_p CHECK (p <> 'a' OR v < 100)",
    "ALTER TABLE {target} ADD CONSTRAINT of_row CHECK (row IS NULL OR length(row) < 5)",
)


@pytest.mark.parametrize(
    "partition_by",
    [
        pytest.param((), marks=pytest.mark.minutes),
        pytest.param(("p",), marks=pytest.mark.full_matrix),
    ],
    ids=["plain", "partitioned"],
)
def test_constraints_are_checked_of_new_rows(
    spark: SparkSession, tmp_path: Path, partition_by: Sequence[str]
) -> None:
    rows = [(1, 10, "a", None), (2, 20, "b", "old"), (9, 90, "a", "")]
    sources = [
        ([(1, 99, "a", "four"), (2, 200, "b", None), (3, 0, "c", None)], False),
        ([(1, 100, "a", None)], True),
        ([(1, None, "a", None)], True),  # neither true nor false
        ([(2, 5, "b", "five!")], True),
        ([(4, 5, "c", "five!")], True),  # inserted
        ([(2, 5, "b", "gone!")], False),  # its row is deleted
    ]
    paths = [str(tmp_path / who) for who in ("built-in", "ours")]
    for path in paths:
        write_table(
            spark, path, rows, CONSTRAINED, ddl=CONSTRAINED, setup=CHECKS, partition_by=partition_by
        )
    for source, breaks in sources:
        frame(spark, source, "k INT, v INT, p STRING, row STRING").createOrReplaceTempView("s")
        found = []
        for path, merge in zip(paths, (spark.sql, partial(deltaweave.merge, spark)), strict=True):
            classes: tuple[str, ...] = ()
            try:
                result = merge(
                    f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k AND t.p = s.p "
                    "WHEN MATCHED AND s.row = 'gone!' THEN DELETE "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
            except Exception as error:
                classes = error_classes(error)
            found.append((rows_as_text(Table(spark, path).read().collect()), classes))
        assert found[1] == found[0], source
        assert bool(found[1][1]) is breaks, source
        assert breaks or result.strategy == "copy-in-place"


@pytest.mark.minutes
def test_names_in_constraints_are_compared_by_case_as_delta_does(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    check = "ALTER TABLE {target} ADD CONSTRAINT c CHECK (V > 0)"
    write_table(spark, path, [(1, 10)], "k INT, v INT", setup=[check])
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        source = frame(spark, [(1, 20)], "k INT, v INT")
        merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all()
        assert merge.execute().strategy == "copy-on-write"
    assert rows_as_text(Table(spark, path).read().collect()) == ["(1, 20)"]


@pytest.mark.minutes
def test_a_generated_partition_column_is_checked(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    ddl = "k INT, v INT, tens INT GENERATED ALWAYS AS (CAST(v / 10 AS INT))"
    write_table(spark, path, [(1, 10, 1)], "k INT, v INT, tens INT", ddl=ddl, partition_by=["tens"])
    source = frame(spark, [(1, 99, 1)], "k INT, v INT, tens INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k AND t.tens = s.tens")
    with pytest.raises(errors.ConstraintViolationError):
        merge.when_matched_update_all().execute()


@pytest.mark.minutes
@pytest.mark.parametrize("setup", [(), ("ALTER TABLE {target} SET TBLPROPERTIES (%s)",)])
def test_row_ids_of_a_table_that_does_not_track_its_rows_are_not_kept(
    spark: SparkSession, tmp_path: Path, setup: Sequence[str]
) -> None:
    path = str(tmp_path / "table")
    properties = {"delta.feature.rowTracking": "supported"}
    if setup:
        properties = {"delta.enableRowTracking": "true"}
    rows = [(1, None, 7), (2, 5, None), (3, None, None)]
    write_table(
        spark,
        path,
        rows,
        "k BIGINT, a BIGINT, b BIGINT",
        properties=properties,
        setup=[each % "'delta.enableRowTracking' = 'false'" for each in setup],
    )
    source = frame(spark, [(2, 6, None)], "k BIGINT, a BIGINT, b BIGINT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all()
    assert merge.execute().strategy == "copy-in-place"
    found = rows_as_text(Table(spark, path).read().collect())
    assert found == rows_as_text([(1, None, 7), (2, 6, None), (3, None, None)])


def test_delta_compacts_the_table_afterwards_if_it_asks_for_that(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    setup = ("ALTER TABLE {target} SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",)
    rows = [(k, 0) for k in range(4)]
    write_table(spark, path, rows, "k INT, v INT", files=4, setup=setup)
    source = frame(spark, [(1, 10)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all()
    with configured(spark, {"spark.databricks.delta.autoCompact.minNumFiles": "2"}):
        assert merge.execute().strategy == "copy-in-place"
    assert commit_info(path, newest_version(path))["operation"] == "OPTIMIZE"


def test_constraints_that_only_delta_checks_leave_the_files_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    ddl = "k INT, v STRUCT<x: INT NOT NULL> NOT NULL"
    spark.sql(f"CREATE TABLE delta.`{path}` ({ddl}) USING delta")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT 1, named_struct('x', 1)")
    statement = (
        f"MERGE INTO delta.`{path}` t USING (SELECT 1 AS k) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v.x = 2"
    )
    plan = deltaweave.explain(spark, statement)
    assert plan.strategy == "copy-on-write"
    assert "only Delta's writer checks some of the table's constraints" in plan.reason
    assert deltaweave.merge(spark, statement).strategy == "copy-on-write"


@pytest.mark.minutes
def test_a_file_of_the_old_calendar_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    with configured(spark, {"spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY"}):
        spark.sql("SELECT 1 AS k, DATE'1000-01-01' AS day").write.format("delta").save(path)
    source = spark.sql("SELECT 1 AS k, DATE'1000-01-02' AS day")
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == "copy-on-write"
    assert str(Table(spark, path).read().collect()[0].day) == "1000-01-02"


@pytest.mark.minutes
def test_without_pyarrow_on_the_executors_spark_rewrites_the_files(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bare = tmp_path / "python"
    venv.create(bare, symlinks=True)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(bare / "bin" / "python"))
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT")
    table = Table(spark, path)
    statement = (
        f"MERGE INTO delta.`{path}` t USING (SELECT 1 AS k, 5 AS v) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = t.v + s.v"
    )
    assert deltaweave.explain(spark, statement).strategy == "copy-in-place"
    for _ in range(2):
        assert deltaweave.merge(spark, statement).strategy == "copy-on-write"
    assert sorted(tuple(row) for row in table.read().collect()) == [(1, 10), (2, 0)]
    # It is said once, with what to set; the second merge did not try again.
    [warning] = [each.getMessage() for each in caplog.records if "pyarrow" in each.getMessage()]
    assert str(bare) in warning
    assert "spark.pyspark.python" in warning
    plan = deltaweave.explain(spark, statement)
    assert plan.strategy == "copy-on-write"
    assert "the executors' Python has no pyarrow or no numpy (spark.pyspark.python)" in plan.reason


def test_names_that_only_differ_in_case_are_no_other_column(tmp_path: Path) -> None:
    from deltaweave.engine.tasks.parquet_rewrite import NotRewritableError, check_copyable

    pq.write_table(pa.table({"K": [1]}), tmp_path / "file.parquet")
    with (
        pq.ParquetFile(tmp_path / "file.parquet") as file,
        pytest.raises(NotRewritableError, match="another way"),
    ):
        check_copyable(file, pa.schema([("k", pa.int64())]), new_calendar=True)


@pytest.mark.minutes
def test_a_file_that_nobody_can_read_is_named_without_a_traceback(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither Arrow nor Spark can read the file."""
    path = tmp_path / "table"
    rows = [(k, f"{k * 7919 % 1000003:06}" * 20) for k in range(500)]
    write_table(spark, str(path), rows, "k INT, v STRING")
    [file] = path.glob("*.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0).column(1)
    with file.open("r+b") as spoiled:  # values of v, which the scan for matches does not read
        spoiled.seek(column.data_page_offset + 40)
        spoiled.write(bytes(column.total_compressed_size - 60))
    (path / f".{file.name}.crc").unlink(missing_ok=True)
    merge = Table(spark, str(path)).merge(
        frame(spark, [(2, "new")], "k INT, v STRING"), "t.k = s.k"
    )
    with pytest.raises(errors.MergeFailedError) as raised:
        merge.when_matched_update_all().execute()
    assert file.name in raised.value.problem
    assert "Traceback" not in str(raised.value)
    assert "  File " not in str(raised.value)
    assert errors.NOTHING_COMMITTED in str(raised.value)
    assert f"Spark rewrites 1 of 1 files, the first of them {file.name}: " in caplog.text
    assert list(path.glob("*.parquet")) == [file]  # what was begun was deleted


def test_a_task_reports_why_it_could_not_write_a_file(
    tmp_path: Path,
) -> None:
    table = pa.table({"k": pa.array([1, 2], pa.int32())})
    pq.write_table(table, tmp_path / "old.parquet")
    schema = json.dumps({"type": "struct", "fields": []})
    written = TableFormat(
        table.schema, "snappy", ".parquet", schema, 32, "4.2.0", new_calendar=True, storage=Disk()
    )
    changes = pa.table(
        {
            "file": ["x"],
            "index": pa.array([0], pa.int64()),
            "is_deleted": [False],
            "breaks": [False],
            "row": pa.StructArray.from_arrays([pa.array([7], pa.int32())], ["v0"]),
        }
    )
    with (tmp_path / "old.parquet").open("rb") as opened:
        path = f"/dev/fd/{opened.fileno()}"  # a directory in which nobody can make a file
        task = file_tasks.rewriter(written, [path], frozenset(), {})
        [done] = task((pa.scalar(0),), changes.to_batches()).to_pylist()
    assert (done["file"], done["name"], done["refused"]) == (path, None, None)
    assert done["failed"].startswith(("FileNotFoundError: ", "NotADirectoryError: "))


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("metadata", "settings", "is_copied"),
    [
        # Spark 2.4 wrote dates in the calendar of the Romans.
        ({SPARK_VERSION: b"2.4.8"}, {}, False),
        ({SPARK_VERSION: b"3.0.0"}, {}, True),
        ({}, {}, True),  # as delta-rs writes
        ({}, {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"}, False),
    ],
    ids=["spark_2", "spark_3", "another_writer", "another_writer_read_as_spark_2"],
)
def test_dates_of_files_in_another_calendar_stay(
    spark: SparkSession,
    tmp_path: Path,
    metadata: dict[bytes, bytes],
    settings: dict[str, str],
    is_copied: bool,
) -> None:
    path = str(tmp_path / "table")
    columns = "id AS k, DATE'0001-01-01' AS day, 0 AS v"
    rows = spark.range(3).selectExpr(*columns.split(", ")).coalesce(1)
    rows.write.format("delta").option("delta.dataSkippingNumIndexedCols", 1).save(path)
    rewritten_footer(path, metadata)
    table = Table(spark, path)
    with configured(spark, settings):
        before = table.read().selectExpr("k", "CAST(day AS STRING) AS day").collect()
        merge = table.merge(spark.sql("SELECT 1L AS k, 5 AS v"), on="t.k = s.k")
        result = merge.when_matched_update({"v": "s.v"}).execute()
        assert result.strategy == ("copy-in-place" if is_copied else "copy-on-write")
        after = table.read().selectExpr("k", "CAST(day AS STRING) AS day").collect()
    assert sorted(after) == sorted(before)


@pytest.mark.minutes
def test_times_that_a_setting_shifts_stay(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.mkdir()
    noon = pa.array([datetime(2020, 1, 1, 12)] * 2, pa.timestamp("us"))
    rows = pa.table({"k": pa.array([1, 2], pa.int32()), "at": noon, "v": pa.array([0, 0])})
    pq.write_table(
        rows, path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False
    )
    spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
    shifting = {
        "spark.sql.parquet.int96TimestampConversion": "true",
        "spark.sql.session.timeZone": "America/Los_Angeles",
    }
    with configured(spark, shifting):
        table = Table(spark, str(path))
        before = table.read().selectExpr("k", "CAST(at AS STRING)").collect()
        merge = table.merge(spark.sql("SELECT 1 AS k, 5L AS v"), on="t.k = s.k")
        merge.when_matched_update({"v": "s.v"}).execute()
        after = table.read().selectExpr("k", "CAST(at AS STRING)").collect()
    assert sorted(after) == sorted(before)


@pytest.mark.minutes
def test_new_files_name_their_writer_so_that_readers_know_the_calendar(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    spark.sql("SELECT 1 AS k, DATE'0001-01-01' AS day").write.format("delta").save(path)
    source = spark.sql("SELECT 1 AS k, DATE'0001-01-02' AS day")
    result = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert result.strategy == "copy-in-place"
    [file] = deltalake.DeltaTable(path).file_uris()
    assert pq.ParquetFile(file).metadata.metadata == {SPARK_VERSION: spark.version.encode()}
    for mode in ("EXCEPTION", "LEGACY"):
        with configured(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": mode}):
            [row] = Table(spark, path).read().selectExpr("CAST(day AS STRING) AS day").collect()
        assert row.day == "0001-01-02"


@pytest.mark.minutes
def test_a_shallow_clone_leaves_the_directory_of_its_source_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    write_table(spark, str(source), [(1, 0), (2, 0)], "k INT, v INT")
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    files = set(source.glob("*.parquet"))
    changes = frame(spark, [(1, 5), (3, 5)], "k INT, v INT")
    merge = Table(spark, str(clone)).merge(changes, on="t.k = s.k")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert set(source.glob("*.parquet")) == files
    changes = frame(spark, [(1, 6), (2, 6)], "k INT, v INT")  # its own file
    merge = Table(spark, str(clone)).merge(changes, on="t.k = s.k")
    assert merge.when_matched_update_all().execute().strategy == "copy-in-place"
    rows = Table(spark, str(clone)).read().collect()
    assert sorted(map(tuple, rows)) == [(1, 6), (2, 6), (3, 5)]


@pytest.mark.minutes
@pytest.mark.skipif(
    line(installed_pair()[1]) < (4, 2), reason="this Delta has no such table feature"
)
@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize(
    "held",
    [
        "'delta.feature.materializePartitionColumns' = 'supported'",
        pytest.param(
            "'delta.writePartitionColumnsToParquet' = 'true'",
            marks=pytest.mark.skipif(
                line(installed_pair()[1]) < (4, 4), reason="this Delta has no such property"
            ),
        ),
    ],
    ids=["feature", "property"],
)
def test_partition_columns_that_files_have_to_hold_are_in_the_new_ones(
    spark: SparkSession, tmp_path: Path, held: str, vectors: str
) -> None:
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k INT, v INT, p INT) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}', {held})"
    )
    rows = frame(spark, [(k, 0, k % 2) for k in range(40)], "k INT, v INT, p INT")
    rows.repartition(1).write.format("delta").mode("append").save(path)
    source = frame(spark, [(k, 1, k % 2) for k in range(2, 42)], "k INT, v INT, p INT")
    result = (
        Table(spark, path)
        .merge(source, on="t.k = s.k AND t.p = s.p")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    assert result.metrics["numTargetRowsUpdated"] == 38
    for file in map(Path, deltalake.DeltaTable(path).file_uris() if vectors == "false" else []):
        assert pq.ParquetFile(file).schema_arrow.names == ["k", "v", "p"]
    for add in added_files(path):
        assert pq.ParquetFile(Path(path, add["path"])).schema_arrow.names == ["k", "v", "p"]


def test_files_that_may_be_encrypted_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT")
    keys = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
    with configured(spark, {"parquet.crypto.factory.class": keys}):
        merge = Table(spark, path).merge(frame(spark, [(1, 5)], "k INT, v INT"), on="t.k = s.k")
        assert merge.when_matched_update_all().execute().strategy == "copy-on-write"
