"""Settings of a session mean nothing for the queries by which changes are applied and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.history import END, START
from deltaweave.errors import DeltaweaveError
from deltaweave.identifiers import column, quoted
from tests.support.settings import SETTINGS_OF_SPARK, configured

pytestmark = pytest.mark.minutes

K, P, V = "k.1", "p\\d", "v'\\ (x)"
NAMES = (K, P, V, "at.s", "op")
ARGUMENTS: dict[str, Any] = {
    "keys": [K, P],
    "sequence_by": quoted("at.s"),
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op"],
}
PARTITION = "a\\d'b"
BATCHES = [
    [(1, PARTITION, 10, 1, "u"), (2, "a\\\\d", 20, 1, "u"), (3, "z", 30, 4, "u")],
    [(1, PARTITION, 11, 3, "u"), (2, "a\\\\d", 0, 3, "d"), (3, "z", 0, 2, "u")],
]
EVERY = pytest.mark.parametrize("settings", SETTINGS_OF_SPARK.values(), ids=[*SETTINGS_OF_SPARK])


def events(spark: SparkSession, batch: int) -> DataFrame:
    rows = spark.createDataFrame(BATCHES[batch], "k INT, p STRING, v INT, at INT, op STRING")
    return rows.toDF(*NAMES)


def found(rows: DataFrame, *names: str) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in rows.select(*map(column, names)).collect()}


@EVERY
def test_current_rows_are_the_same_with_any_settings(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    path = str(tmp_path / "t")
    partial = {**ARGUMENTS, "ignore_null_updates": True}
    with configured(spark, settings):
        for batch in range(2):
            deltaweave.apply_changes(spark, path, events(spark, batch), **partial)
        assert {key: spark.conf.get(key) for key in settings} == settings
    rows = found(Table(spark, path).read(), K, P, V)
    assert rows == {(1, PARTITION, 11), (3, "z", 30)}


@EVERY
def test_histories_are_the_same_with_any_settings(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    path = str(tmp_path / "t")
    with configured(spark, settings):
        for batch in range(2):
            rows = events(spark, batch)
            deltaweave.apply_changes(spark, path, rows, **ARGUMENTS, stored_as_scd_type=2)
    assert found(Table(spark, path).read(), K, V, START, END) == {
        (1, 10, 1, 3),
        (1, 11, 3, None),
        (2, 20, 1, 3),
        (3, 0, 2, 4),
        (3, 30, 4, None),
    }


@EVERY
def test_merge_on_read_is_the_same_with_any_settings(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    orders = MergeOnReadTable(
        spark, str(tmp_path / "base"), **ARGUMENTS, partition_by=[P], inserts=f"{quoted(K)} = 9"
    )
    expected = {(1, PARTITION, 11), (3, "z", 30)}
    methods = ("double_rank", "full_outer_join", "left_join_anti_join", "left_join_inserts")
    with configured(spark, settings):
        orders.append(events(spark, 0))
        orders.rematerialize("merge")
        orders.append(events(spark, 1))
        for method in methods:
            read = orders.read(method)  # type: ignore[arg-type]
            assert read.sparkSession is spark
            assert found(read, K, P, V) == expected, method
        orders.create_view("of_settings")
        assert orders.pending().rows == 3
        orders.rematerialize("replace_where")
        assert orders.newest_batch() == 2
    assert found(spark.table("of_settings"), K, P, V) == expected
    assert found(orders.read_optimized(), K, P, V) == expected


def test_a_key_index_has_the_name_of_its_column(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, str(tmp_path / "t"))
    table.create_if_missing(
        spark.createDataFrame([], "k INT").toDF(V).schema,
        properties={"delta.columnMapping.mode": "name"},
    )
    with configured(spark, {"spark.sql.parser.escapedStringLiterals": "true"}):
        table.index_keys(V)
    assert table.indexed_column() == V


def test_the_sessions_transaction_id_is_reset_after_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The batch is applied in a copy of the session."""
    version = "spark.databricks.delta.write.txnVersion"
    pair = {
        "spark.databricks.delta.write.txnAppId": "nightly",
        version: "3",
        f"{version}.autoReset.enabled": "true",
        "spark.sql.parser.quotedRegexColumnNames": "true",
    }
    path = str(tmp_path / "t")
    with configured(spark, pair):
        deltaweave.apply_changes(spark, path, events(spark, 0), **ARGUMENTS)
        assert spark.conf.get(version, None) is None
    assert Table(spark, path).last_applied("nightly") == 3


UNFIT = [("v", "STRING", "seven"), ("d", "DECIMAL(9,1)", Decimal("1000"))]


def test_values_that_do_not_fit_are_errors(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"spark.sql.storeAssignmentPolicy": "LEGACY", "spark.sql.ansi.enabled": "false"}
    arguments: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}
    current, histories, base = (str(tmp_path / name) for name in ("c", "h", "m"))
    orders = MergeOnReadTable(spark, base, **arguments)

    def apply_to_all(values: DataFrame) -> Iterator[Callable[[], Any]]:
        rows = values.selectExpr("*", "1 AS k", "CAST(2 AS INT) AS at")
        yield lambda: deltaweave.apply_changes(spark, current, rows, **arguments)
        yield lambda: deltaweave.apply_changes(
            spark, histories, rows, stored_as_scd_type=2, **arguments
        )
        yield lambda: orders.append(rows)

    for apply in apply_to_all(spark.sql("SELECT 10 AS v, CAST(1 AS DECIMAL(4,1)) AS d")):
        apply()
    applied = []
    with configured(spark, settings):
        for name, of, value in UNFIT:
            values = spark.createDataFrame([(value,)], f"{name} {of}")
            other = "CAST(2 AS DECIMAL(4,1)) AS d" if name == "v" else "20 AS v"
            for place, apply in enumerate(apply_to_all(values.selectExpr("*", other))):
                try:
                    apply()
                except DeltaweaveError:
                    continue
                applied.append((value, place))
    assert not applied
    assert found(Table(spark, current).read(), "v") == {(10,)}


@pytest.mark.minutes
@pytest.mark.parametrize("scd_type", [1, 2])
def test_values_that_no_event_sets_may_not_fit(
    spark: SparkSession, tmp_path: Path, scd_type: Literal[1, 2]
) -> None:
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": "at",
        "except_column_list": ["at", "op", "sets"],
        "apply_as_deletes": "op = 'delete'",
        "present_columns": "sets",
        "stored_as_scd_type": scd_type,
    }
    columns = "k INT, v {}, w STRING, at INT, op STRING, sets ARRAY<STRING>"
    first = [(1, 10, "a", 1, "upsert", ["v", "w"]), (2, 20, "b", 1, "upsert", ["v", "w"])]
    deltaweave.apply_changes(
        spark, path, spark.createDataFrame(first, columns.format("INT")), **arguments
    )
    later = [
        (1, "n/a", "", 2, "delete", ["v", "w"]),  # a delete sets no values
        (2, "n/a", "c", 2, "upsert", ["w"]),  # leaves v out
    ]
    texts = spark.createDataFrame(later, columns.format("STRING"))
    deltaweave.apply_changes(spark, path, texts, **arguments)
    newest = Table(spark, path).read().where("w = 'c'")
    assert found(newest, "k", "v") == {(2, 20)}
