"""Columns, keys, partitions and tables with names that SQL does not take as they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructType

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.errors import StatementError
from deltaweave.identifiers import column, quoted, table_name
from tests.support.settings import configured

pytestmark = pytest.mark.minutes

# Keys, other columns, the columns with order, operation and columns of events.
K1, K2 = "k.1", "se`lect"
V, W = 'a b\'s "ü"', "new\nline.`x`"
AT, OP, PRESENT = "at.s", "order by", "t.*"
NAMES = (K1, K2, V, W, AT, OP, PRESENT)

ARGUMENTS: dict[str, Any] = {
    "keys": [K1, K2],
    "sequence_by": quoted(AT),
    "apply_as_deletes": f"{quoted(OP)} = 'd'",
    "except_column_list": [AT, OP],
}
EMPTIES = {"apply_as_truncates": f"{quoted(OP)} = 't'"}

Rows = set[tuple[Any, ...]]


def events(spark: SparkSession, *rows: tuple[Any, ...], partial: bool = False) -> DataFrame:
    made = spark.createDataFrame(
        rows, "k1 INT, k2 STRING, v INT, w INT, at INT, op STRING, present ARRAY<STRING>"
    ).toDF(*NAMES)
    return made if partial else made.drop(PRESENT)


def found(rows: DataFrame, *names: str) -> Rows:
    return {tuple(row) for row in rows.select(*map(column, names)).collect()}


BATCHES = [
    [(1, "x", 10, 10, 1, "", None), (2, "x", 20, 20, 1, "", None), (3, "x", 3, 3, 9, "", None)],
    [(1, "x", 11, None, 3, "", [V]), (2, "x", None, None, 3, "d", None)],
    [(1, "x", None, 12, 2, "", [W]), (2, "x", 21, 21, 2, "", None), (4, "y", 4, 4, 9, "", None)],
]


def test_current_rows_take_any_names(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "tä ble.1's %20")
    partial = {**ARGUMENTS, "present_columns": PRESENT}
    for batch in [*BATCHES, [(None, None, None, None, 2, "t", None)]]:
        source = events(spark, *batch, partial=True)
        deltaweave.apply_changes(spark, path, source, **partial, **EMPTIES)
    rows = found(Table(spark, path).read(), K1, K2, V, W)
    # That the table was emptied at 2 leaves what came at 3, and that alone.
    assert rows == {(1, "x", 11, None), (3, "x", 3, 3), (4, "y", 4, 4)}


@pytest.mark.parametrize("tracked", [None, [V]], ids=["all", "tracked"])
def test_histories_take_any_names(
    spark: SparkSession, tmp_path: Path, tracked: list[str] | None
) -> None:
    path = str(tmp_path / "t")
    rows = [
        [(1, "x", 10, 1, 1, "", None), (1, "x", 10, 1, 4, "", None), (2, "x", 0, 0, 5, "d", None)],
        [(1, "x", 30, 3, 3, "", None), (2, "x", 20, 2, 2, "", None)],
    ]
    for batch in rows:
        deltaweave.apply_changes(
            spark,
            path,
            events(spark, *batch),
            **ARGUMENTS,
            stored_as_scd_type=2,
            track_history_column_list=tracked,
        )
    versions = found(Table(spark, path).read(), K1, K2, V, "__START_AT", "__END_AT")
    assert versions == {
        (1, "x", 10, 1, 3),
        (1, "x", 30, 3, 4),
        (1, "x", 10, 4, None),
        (2, "x", 20, 2, 5),
    }


def test_merge_on_read_takes_any_names(spark: SparkSession, tmp_path: Path) -> None:
    orders = MergeOnReadTable(
        spark, str(tmp_path / "base"), **ARGUMENTS, partition_by=[K2], inserts=f"{quoted(K1)} = 5"
    )
    first, later = BATCHES[0], [(2, "x", 0, 0, 10, "d", None), (5, "z'", 5, 5, 10, "", None)]
    orders.append(events(spark, *first))
    orders.rematerialize("merge")
    orders.append(events(spark, *later))
    expected = {(1, "x", 10, 10), (3, "x", 3, 3), (5, "z'", 5, 5)}
    methods = ("double_rank", "full_outer_join", "left_join_anti_join", "left_join_inserts", "auto")
    for method in methods:
        read = orders.read(method, where=f"{quoted(K1)} < 9")  # type: ignore[arg-type]
        assert found(read, K1, K2, V, W) == expected, method
    orders.create_view("hostile")
    assert found(spark.table("hostile"), K1, K2, V, W) == expected
    assert orders.pending().rows == 2
    orders.rematerialize("replace_where")
    assert found(orders.read_optimized(), K1, K2, V, W) == expected


def test_functions_of_tables_take_any_names(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, str(tmp_path / "t.able's"))
    schema = StructType().add(K1, IntegerType()).add(K2, StringType()).add(V, IntegerType())
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.columnMapping.mode": "name",
    }
    assert table.create_if_missing(schema, [K2], properties)
    table.write(spark.createDataFrame([(1, "x", 1), (2, "y", 2)], schema), "append")
    table.write(
        spark.createDataFrame([(3, "y", 3)], schema), "overwrite", replace_where=f"{quoted(K2)}='y'"
    )
    assert table.index_keys(K1) == 2
    source = spark.createDataFrame([(1, "x", 10), (4, "z", 4)], schema)
    on = f"t.{quoted(K1)} = s.{quoted(K1)}"
    # Not by *: Delta expands it to names that it does not quote.
    every = {quoted(name): column("s", name) for name in (K1, K2, V)}
    merge = table.merge(source, on=on).when_matched_update(every)
    result = merge.when_not_matched_insert(every).execute()
    assert result.metrics.num_target_rows_updated == 1
    assert found(table.read(), K1, K2, V) == {(1, "x", 10), (3, "y", 3), (4, "z", 4)}
    changed = table.changed_rows(2)
    assert found(changed.rows, K1, V, "_change_type") == {
        (1, 1, "update_preimage"),
        (1, 10, "update_postimage"),
        (4, 4, "insert"),
    }
    touched = table.touched_rows(2)
    assert found(touched.added, K1) >= {(1,), (4,)}
    table.delete(f"{quoted(K1)} = 3")
    table.compact()
    assert table.row_count() == 2
    assert table.partition_columns() == [K2]


def test_an_error_gives_the_statement_that_adds_columns_of_any_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")

    def apply(at: int, *columns: str) -> None:
        source = spark.sql(f"SELECT 1 AS k, {at} AS at, {', '.join(columns)}")
        deltaweave.apply_changes(spark, path, source, keys=["k"], sequence_by="at")

    whole = "named_struct('p q', 1, 't`,u', array(named_struct('m.n', 2))) AS s"
    apply(1, "array(named_struct('p q', 1)) AS l", "named_struct('p q', 1) AS s")
    columns = ("array(named_struct('p q', 1, 'a=b', 3)) AS l", whole, "map('a', 4) AS `x \n y`")
    with pytest.raises(StatementError, match="has no column") as raised:
        apply(2, *columns)
    added = str(raised.value.hint).partition("ALTER TABLE … ")[2].partition(", or leave")[0]
    spark.sql(f"ALTER TABLE delta.`{path}` {added}")
    apply(2, *columns)
    [row] = Table(spark, path).read().collect()
    assert (row.s["t`,u"][0]["m.n"], row.l[0]["a=b"], row["x \n y"]) == (2, 3, {"a": 4})


def test_a_table_of_a_catalog_takes_any_names(spark: SparkSession) -> None:
    name = "default.`select`"
    spark.sql(f"CREATE TABLE {name} ({quoted(K1)} INT, v INT) USING delta")
    try:
        table = Table(spark, name)
        source = spark.createDataFrame([(1, 2)], "k INT, v INT").toDF(K1, "v")
        on = f"t.{quoted(K1)} = s.{quoted(K1)}"
        assert table.merge(source, on=on).when_not_matched_insert_all().execute().version == 1
        text = f"MERGE INTO {name} t USING {name} s ON {on} WHEN MATCHED THEN DELETE"
        plan = deltaweave.explain(spark, text)
        assert str(plan)
        assert deltaweave.merge(spark, text).metrics.num_target_rows_deleted == 1
    finally:
        spark.sql(f"DROP TABLE {name}")


# Spark would put the JVM's environment variable, which tests/conftest.py sets, in its place.
REPLACED = "a${env:SPARK_LOCAL_IP}"


@pytest.mark.parametrize("names", [(REPLACED, "v"), ("k", REPLACED)], ids=["key", "column"])
def test_a_name_that_spark_would_replace_by_a_setting_is_refused(
    spark: SparkSession, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The setting may be a secret. Nothing is written."""
    path = str(tmp_path / "t")
    source = spark.createDataFrame([(1, 2)], "k INT, v INT").toDF(*names)

    with pytest.raises(StatementError) as refused:
        deltaweave.apply_changes(spark, path, source, keys=[names[0]], sequence_by="1")

    assert f"SQL text cannot hold the name '{REPLACED}'" in str(refused.value)
    assert os.environ["SPARK_LOCAL_IP"] not in str(refused.value)
    assert not Table(spark, path).exists()


@pytest.mark.parametrize("nullable", [True, False])
def test_a_merge_of_all_columns_takes_such_a_name_as_it_is(
    spark: SparkSession, tmp_path: Path, nullable: bool
) -> None:
    schema = StructType().add("k", IntegerType()).add(REPLACED, IntegerType(), nullable)
    table = Table(spark, str(tmp_path / "t"))
    table.create_if_missing(schema, properties={"delta.columnMapping.mode": "name"})
    merge = table.merge(spark.createDataFrame([(1, 2)], schema), on="t.k = s.k")

    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    with configured(spark, {REWRITE_IN_PLACE: "true", ON_DRIVER: "auto"}):
        merge.execute()
        merge.execute()

    assert found(table.read(), "k", REPLACED) == {(1, 2)}


def test_a_path_that_spark_would_replace_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, str(tmp_path / REPLACED))

    with pytest.raises(StatementError, match="SQL text cannot hold the name"):
        table.create_if_missing("k INT")
    with pytest.raises(StatementError, match="SQL text cannot hold the name"):
        table_name(table.path_or_name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [("_cdc_sequence", 1), ("_CDC_x", 1), ("__deltaweave_x", 1), ("__start_at", 2)],
)
@pytest.mark.parametrize("is_key", [True, False], ids=["key", "column"])
def test_a_name_of_a_column_of_our_own_is_refused_before_any_write(
    spark: SparkSession, tmp_path: Path, name: str, kind: int, is_key: bool
) -> None:
    path = str(tmp_path / "t")
    source = spark.createDataFrame([(1, 2, 3)], "k INT, v INT, at INT")
    source = source.withColumnRenamed("k" if is_key else "v", name)
    with pytest.raises(StatementError, match=f"(?i){name}.* taken"):
        deltaweave.apply_changes(
            spark,
            path,
            source,
            keys=[name if is_key else "k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=kind,  # type: ignore[arg-type]
        )
    assert not Table(spark, path).exists()
