"""A table is what its log says now, also where other processes create, remove and replace it."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from deltaweave import Table, apply_changes, errors, merge
from tests.builders import frame
from tests.deltaweave.engine.test_october_of_1582 import jvm_in


def write(path: Path, *keys: int) -> None:
    """Append rows as another process does, unknown to this one's Delta."""
    write_deltalake(str(path), pa.table({"k": pa.array(keys, pa.int64())}), mode="append")


def keys_of(table: Table) -> list[int]:
    return sorted(row.k for row in table.read().collect())


def test_a_table_that_another_process_creates_removes_and_replaces_is_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    table = Table(spark, str(path))
    assert not table.exists()
    write(path, 1)
    assert table.exists()
    assert not table.create_if_missing("k LONG")
    assert (table.version(), keys_of(table)) == (0, [1])
    shutil.rmtree(path)
    assert not table.exists()
    with pytest.raises(errors.NotADeltaTableError):
        table.snapshot()
    write(path, 2)
    write(path, 3)
    assert table.exists()
    assert (table.version(), keys_of(table)) == (1, [2, 3])
    assert table.read(0).count() == 1


def test_a_relative_path_is_one_below_the_directory_of_the_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    table = Table(spark, os.path.relpath(path))
    assert table.path_or_name == str(path)
    assert table.create_if_missing("k LONG")
    merge = table.merge(frame(spark, [(1,)], "k LONG"), on="t.k = s.k")
    merge.when_not_matched_insert_all().execute()
    assert keys_of(Table(spark, str(path))) == [1]
    for given in (f"file:{path}", "sales.orders"):
        assert Table(spark, given).path_or_name == given


def test_a_relative_path_in_a_statement_is_answered_with_what_to_write(
    spark: SparkSession,
) -> None:
    statement = "MERGE INTO {} t USING (SELECT 1 k) s ON t.k = s.k WHEN MATCHED THEN DELETE"
    with pytest.raises(errors.StatementError, match="Give the whole path, as delta"):
        merge(spark, statement.format("delta.`lake/orders`"))


def test_a_wrong_expression_of_a_builder_is_blamed_on_its_argument(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, str(tmp_path / "table"))
    write(tmp_path / "table", 1)
    wrong = table.merge(frame(spark, [(1,)], "k LONG"), on="t.kk = s.k").when_matched_delete()
    assert repr(wrong) == f"MergeBuilder('{tmp_path}/table', on='t.kk = s.k', 1 clause)"
    with pytest.raises(errors.StatementError, match="or the argument that holds the expression"):
        wrong.execute()


def test_a_table_with_a_checkpoint_that_is_removed_does_not_exist(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    write(path, 1)
    write(path, 2)
    DeltaTable(str(path)).create_checkpoint()
    table = Table(spark, str(path))
    assert table.version() == 1
    shutil.rmtree(path)
    assert not table.exists()


def test_a_log_without_a_version_is_of_no_table(spark: SparkSession, tmp_path: Path) -> None:
    """As while another process creates it: Delta makes directories of the log first."""
    for name in ("seen", "new"):
        path = tmp_path / name
        table = Table(spark, str(path))
        assert name == "new" or not table.exists()
        (path / "_delta_log" / "_staged_commits").mkdir(parents=True)
        assert not table.exists()
        write(path, 1)
        assert table.exists()


@pytest.mark.minutes
def test_deletes_that_another_process_remembered_are_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, other = tmp_path / "table", tmp_path / "other"

    def apply(place: Path, sequence: int, operation: str) -> None:
        events = frame(spark, [(1, sequence, operation)], "k INT, n INT, op STRING")
        apply_changes(
            spark,
            str(place),
            events,
            keys=["k"],
            sequence_by="n",
            apply_as_deletes="op = 'D'",
            except_column_list=["op"],
            late_by=timedelta(days=1),
        )

    apply(path, 1, "I")
    shutil.copytree(path, other)  # where this session plays the other process
    apply(other, 5, "D")
    shutil.copytree(other, path, dirs_exist_ok=True)
    apply(path, 3, "I")  # older than the delete
    assert Table(spark, str(path)).row_count() == 0


PREDICATES = {
    "a day that java.sql.Date lacks": ("DATE", "DATE'1582-10-10'", "k = DATE'1582-10-10'"),
    "a time on such a day": (
        "TIMESTAMP",
        "TIMESTAMP'1582-10-10 05:00:00'",
        "k = TIMESTAMP'1582-10-10 05:00:00'",
    ),
    "a day that the zone skipped": ("DATE", "DATE'2011-12-30'", "k = DATE'2011-12-30'"),
    "a widened decimal": ("DECIMAL(9,2)", "1BD", "k < 30000000"),
    "a widened decimal of bytes": ("DECIMAL(18,2)", "1BD", f"k < {'9' * 18}BD"),
}
SKIPPING = [f"spark.sql.parquet.filterPushdown.{kind}" for kind in ("date", "timestamp", "decimal")]


@pytest.mark.minutes
@pytest.mark.parametrize("case", PREDICATES)
def test_a_predicate_finds_rows_that_filters_on_files_skip(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    data_type, key, predicate = PREDICATES[case]
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k {data_type}, v INT) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    table, before = Table(spark, path), [spark.conf.get(each) for each in SKIPPING]
    seen = []
    with jvm_in(spark, "Pacific/Apia"):
        spark.sql(f"INSERT INTO delta.`{path}` VALUES ({key}, 0)")
        if "widened" in case:
            spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN k TYPE DECIMAL(20,2)")
        for v in (1, 2):
            table.write(
                spark.sql(f"SELECT {key} AS k, {v} AS v"),
                "overwrite",
                replace_where=predicate,
                check=lambda: seen.append([spark.conf.get(each) for each in SKIPPING]),
            )
            assert [row.v for row in table.read().collect()] == [v]
        table.delete(predicate)
    assert table.read().count() == 0
    assert seen == [before, before]  # the settings of the caller's session, while it is written
    assert [spark.conf.get(each) for each in SKIPPING] == before


def test_rows_are_deleted_by_a_variable_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.range(4).write.format("delta").save(path)
    spark.sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 2")
    try:
        Table(spark, path).delete("id < least")
    finally:
        spark.sql("DROP TEMPORARY VARIABLE least")
    assert {row.id for row in Table(spark, path).read().collect()} == {2, 3}
