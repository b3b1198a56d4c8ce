"""Columns of nested types, whose fields, elements and values may be required on one side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.errors import StatementError

COLUMNS = ["k", "s", "m"]
ARGUMENTS: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["at", "op"],
}


def nested(may_be_null: bool) -> dict[str, DataType]:
    """The types, in which everything or nothing may be null."""
    text, number = StringType(), IntegerType()
    numbers = ArrayType(number, may_be_null)
    row = StructType().add("n", number, may_be_null).add("of", numbers, may_be_null)
    return {
        "map": MapType(text, number, may_be_null),
        "array": numbers,
        "time": TimestampType(),
        "struct": row,
        "map of structs of arrays": MapType(text, row, may_be_null),
        "array of maps of arrays": ArrayType(MapType(number, numbers, may_be_null), may_be_null),
    }


VALUES = {
    "map": "map('a', {0})",
    "array": "array({0})",
    "time": "timestamp_seconds({0})",
    "struct": "named_struct('n', {0}, 'of', array({0}))",
    "map of structs of arrays": "map('a', named_struct('n', {0}, 'of', array({0})))",
    "array of maps of arrays": "array(map({0}, array({0})))",
}
# At 2, key 1 becomes 20 and key 2 goes; at 3, key 1 becomes 30 in the other shape.
BATCHES = [["(1, 10, 1, '')", "(2, 10, 1, '')"], ["(1, 20, 2, '')", "(2, 0, 2, 'd')"]]
LAST = ["(1, 30, 3, '')", "(3, 30, 3, '')"]
FURTHER = pytest.mark.minutes
ORDERS = [
    (False, True),
    *[pytest.param(*each, marks=FURTHER) for each in ((True, False), (False, False))],
]
# Delta has no structs with required fields in arrays and maps.
REQUIRED = ("map", "array", "struct")


def events(spark: SparkSession, rows: list[str], may_be_null: bool) -> DataFrame:
    """Events with a column of each type, made of a number."""
    numbers = f"SELECT * FROM VALUES {', '.join(rows)} AS t(k, n, at, op)"
    of_types = ", ".join(f"{sql.format('n')} AS `{name}`" for name, sql in VALUES.items())
    made = spark.sql(f"SELECT k, at, op, {of_types} FROM ({numbers})")
    schema = made.schema
    for name, data_type in nested(may_be_null).items():
        schema[name].dataType = data_type
    return spark.createDataFrame(made.rdd, schema)


def as_numbers(rows: DataFrame, *names: str) -> set[tuple[Any, ...]]:
    """Rows whose columns of all types hold one number, as that number; 'differ' if they do not."""
    same = " AND ".join(
        f"to_json(struct(`{c}`)) <=> to_json(struct({sql.format('array[0]')} AS `{c}`))"
        for c, sql in VALUES.items()
    )
    shown = rows.selectExpr("k", f"if({same}, string(array[0]), 'differ') AS n", *names)
    return {tuple(row) for row in shown.collect()}


@pytest.mark.parametrize(("first", "then"), ORDERS)
def test_current_rows(spark: SparkSession, tmp_path: Path, first: bool, then: bool) -> None:
    path = str(tmp_path / "t")
    for batch, may_be_null in zip([*BATCHES, LAST], [first, then, first], strict=True):
        deltaweave.apply_changes(spark, path, events(spark, batch, may_be_null), **ARGUMENTS)
    assert as_numbers(Table(spark, path).read()) == {(1, "30"), (3, "30")}


@pytest.mark.parametrize(
    "tracked", [None, pytest.param(["map", "struct"], marks=FURTHER)], ids=["all", "tracked"]
)
@pytest.mark.parametrize(("first", "then"), ORDERS)
def test_histories(
    spark: SparkSession, tmp_path: Path, first: bool, then: bool, tracked: list[str] | None
) -> None:
    path = str(tmp_path / "t")
    for batch, may_be_null in zip([*BATCHES, LAST], [first, then, first], strict=True):
        deltaweave.apply_changes(
            spark,
            path,
            events(spark, batch, may_be_null),
            **ARGUMENTS,
            stored_as_scd_type=2,
            track_history_column_list=tracked,
        )
    assert as_numbers(Table(spark, path).read(), "__START_AT", "__END_AT") == {
        (1, "10", 1, 2),
        (1, "20", 2, 3),
        (1, "30", 3, None),
        (2, "10", 1, 2),
        (3, "30", 3, None),
    }


@pytest.mark.parametrize(("first", "then"), ORDERS)
def test_merge_on_read(spark: SparkSession, tmp_path: Path, first: bool, then: bool) -> None:
    orders = MergeOnReadTable(spark, str(tmp_path / "base"), **ARGUMENTS)
    for batch, may_be_null in zip(BATCHES, [first, then], strict=True):
        orders.append(events(spark, batch, may_be_null))
        orders.rematerialize("merge")
    orders.append(events(spark, LAST, first))
    expected = {(1, "30"), (3, "30")}
    for method in ("double_rank", "full_outer_join", "left_join_anti_join", "auto"):
        assert as_numbers(orders.read(method)) == expected, method  # type: ignore[arg-type]
    orders.rematerialize("overwrite")
    assert as_numbers(orders.read_optimized()) == expected


@FURTHER
@pytest.mark.parametrize("scd_type", [1, 2])
def test_a_table_of_which_the_user_requires_nested_values(
    spark: SparkSession, tmp_path: Path, scd_type: Any
) -> None:
    path = str(tmp_path / "t")
    of_table = StructType().add("k", IntegerType())
    for name in REQUIRED:
        of_table.add(name, nested(may_be_null=False)[name])
    of_sequence = StructType().add("at", IntegerType()).add("tie", LongType())
    own = {
        1: [("_cdc_sequence", of_sequence)],
        2: [("__START_AT", IntegerType()), ("__END_AT", IntegerType())],
    }
    for name, data_type in own[scd_type]:
        of_table.add(name, data_type)
    spark.createDataFrame([], of_table).write.format("delta").save(path)
    for batch in [*BATCHES, LAST]:
        source = events(spark, batch, may_be_null=True).select("k", "at", "op", *REQUIRED)
        deltaweave.apply_changes(spark, path, source, **ARGUMENTS, stored_as_scd_type=scd_type)
    newest = Table(spark, path).read().where("array[0] = 30")
    assert {tuple(row) for row in newest.selectExpr("k", "map['a']", "struct.of[0]").collect()} == {
        (1, 30, 30),
        (3, 30, 30),
    }


@pytest.mark.parametrize("kind", [1, 2, "merge on read"])
def test_a_field_that_the_table_lacks_is_an_error_at_every_depth(
    spark: SparkSession, tmp_path: Path, kind: Any
) -> None:
    path = str(tmp_path / "t")
    table = MergeOnReadTable(spark, path, keys=["k"], sequence_by="at", column_list=COLUMNS)

    def apply(field: str) -> None:
        rows = spark.sql(
            f"SELECT 1 AS k, 1 AS at, named_struct('a', 1, 'of', array({field})) AS s, "
            f"map('x', {field}) AS m"
        )
        if kind == "merge on read":
            table.append(rows)
        else:
            deltaweave.apply_changes(
                spark,
                path,
                rows,
                keys=["k"],
                sequence_by="at",
                column_list=COLUMNS,
                stored_as_scd_type=kind,
            )

    apply("named_struct('b', 1)")
    version = Table(spark, path).version()
    for more in ("named_struct('b', 1, 'c', 2)", "named_struct('c', 2)"):
        with pytest.raises(StatementError, match=r"no column s\.of\.element\.c, m\.value\.c\."):
            apply(more)
    assert Table(spark, path).version() == version
    apply("named_struct('B', 1)")  # in another case, it is the same
