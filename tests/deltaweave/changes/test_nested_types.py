"""Columns of nested types, whose fields, elements and values may be required on one side."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
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
from deltaweave.changes.conversions import comparable_field
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
FURTHER, FULL = pytest.mark.minutes, pytest.mark.full_matrix


def orders(first: pytest.MarkDecorator, both: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Whether values may be null in the first and third batch, and then.

    Args:
        first: When it is tested that they may be null in the first batch alone.
        both: When, that they may be null in none.
    """
    cases = [(False, True), pytest.param(True, False, marks=first)]
    return pytest.mark.parametrize(
        ("first", "then"), [*cases, pytest.param(False, False, marks=both)]
    )


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


@pytest.mark.minutes
@orders(FURTHER, FULL)
def test_current_rows_take_nested_types(
    spark: SparkSession, tmp_path: Path, first: bool, then: bool
) -> None:
    path = str(tmp_path / "t")
    for batch, may_be_null in zip([*BATCHES, LAST], [first, then, first], strict=True):
        deltaweave.apply_changes(spark, path, events(spark, batch, may_be_null), **ARGUMENTS)
    assert as_numbers(Table(spark, path).read()) == {(1, "30"), (3, "30")}


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("first", "then", "tracked"),
    [
        (False, True, None),
        pytest.param(True, False, ["map", "struct"], marks=FURTHER),
        pytest.param(True, False, None, marks=FULL),
        pytest.param(False, True, ["map", "struct"], marks=FULL),
        pytest.param(False, False, None, marks=FULL),
        pytest.param(False, False, ["map", "struct"], marks=FULL),
    ],
)
def test_histories_take_nested_types(
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


LCASE = StringType("UTF8_LCASE")  # 'bob' equals 'Bob'


@pytest.mark.parametrize(
    "data_type",
    [LCASE, ArrayType(LCASE), StructType().add("a", LCASE), MapType(StringType(), LCASE)],
    ids=str,
)
def test_texts_with_a_collation_are_tracked_by_their_bytes(
    spark: SparkSession, data_type: DataType
) -> None:
    rows = spark.range(2).selectExpr("id AS k", "if(id = 0, 'bob', 'Bob') AS v")
    nested = {"array": "array(v)", "struct": "struct(v)", "map": "map('a', v)"}
    value = nested.get(data_type.typeName(), "v")
    values = F.struct(F.expr(value).cast(data_type).alias("v"))
    values_of = rows.select("k", values.alias("values"))
    compared = values_of.select(comparable_field(values_of, "values", "v").alias("v"))
    assert compared.distinct().count() == 2


@pytest.mark.minutes
@orders(FULL, FURTHER)
def test_merge_on_read_takes_nested_types(
    spark: SparkSession, tmp_path: Path, first: bool, then: bool
) -> None:
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
def test_a_user_may_require_nested_values_of_a_table(
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


@pytest.mark.minutes
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


OF_FIELDS: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "column_list": COLUMNS}
SAYS = {
    "whole": {},
    "no nulls": {"ignore_null_updates": True},
    "named": {"present_columns": "sets"},
}


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (1, "whole"),
        (2, "whole"),
        ("merge on read", "whole"),
        pytest.param(1, "no nulls", marks=FULL),
        pytest.param(1, "named", marks=FURTHER),
        pytest.param(2, "no nulls", marks=FURTHER),
        pytest.param(2, "named", marks=FULL),
        pytest.param("merge on read", "no nulls", marks=FULL),
        pytest.param("merge on read", "named", marks=FURTHER),
    ],
)
def test_fields_are_found_by_name_and_null_where_an_event_lacks_them(
    spark: SparkSession, tmp_path: Path, kind: Any, says: str
) -> None:
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {**OF_FIELDS, **SAYS[says]}
    table = MergeOnReadTable(spark, path, **arguments) if kind == "merge on read" else None

    def apply(fields: str, *events: tuple[int, int]) -> None:
        rows = spark.createDataFrame(events, "k INT, at INT").selectExpr(
            "*",
            f"named_struct('of', array(named_struct({fields})), 'own', named_struct({fields})) s",
            f"map('x', named_struct({fields})) AS m",
            "array('s', 'm') AS sets",
        )
        if table is not None:
            table.append(rows)
        else:
            deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=kind)

    apply("'a', 1, 'b', 2", (1, 1), (2, 1))
    apply("'B', 32, 'a', 31", (1, 3))  # in another order and case
    apply("'b', 22", (1, 2), (2, 2))  # late, and newest
    rows = table.read() if table is not None else Table(spark, path).read()
    shown = "array(to_json(s.own), to_json(s.of[0]), to_json(m['x'])) AS said"
    found = {(row.k, *row.said) for row in rows.selectExpr("k", shown).collect()}
    made = {(1, 1): '"a":1,"b":2', (1, 2): '"b":22', (1, 3): '"a":31,"b":32'}
    made |= {(2, 1): '"a":1,"b":2', (2, 2): '"b":22'}
    ends = made if kind == 2 else [(1, 3), (2, 2)]
    assert found == {(of[0], *[f"{{{made[of]}}}"] * 3) for of in ends}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", [1, *[pytest.param(k, marks=FURTHER) for k in (2, None)]])
def test_fields_of_keys_are_found_by_name(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    path = str(tmp_path / "t")
    for at, key in enumerate(["'a', 1, 'b', 2", "'b', 2, 'a', 1", "'b', 1, 'a', 2"]):
        rows = spark.sql(f"SELECT named_struct({key}) AS k, {at} AS at, 1 AS v")
        arguments: dict[str, Any] = {"keys": ["k"], "sequence_by": "at"}
        if kind is None:
            MergeOnReadTable(spark, path, **arguments).append(rows)
        else:
            deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=kind)
    is_read = kind is None
    rows = (MergeOnReadTable(spark, path, **arguments) if is_read else Table(spark, path)).read()
    assert {tuple(row) for row in rows.selectExpr("k.a", "k.b").collect()} == {(1, 2), (2, 1)}


# Where a struct is: the column's type, what ALTER TABLE calls it, and how it is read.
PLACES = {
    "s": ("{0}", "", "{0}"),
    "l": ("array({0})", ".element", "{0}[0]"),
    "m": ("map('p', {0})", ".value", "{0}['p']"),
    "mk": ("map({0}, 1)", ".key", "map_keys({0})[0]"),
}
AS_IT_WAS = {"a": "{n}", "b": "'x'"}
# How it is changed, its fields then, and what its fields were called that stored events have.
ALTERED: dict[str, tuple[list[str], dict[str, str], dict[str, str]]] = {
    "renamed": (["RENAME COLUMN {0}.a TO z"], {"z": "{n}", "b": "'x'"}, {"z": "a", "b": "b"}),
    "dropped": (["DROP COLUMN {0}.b"], {"a": "{n}"}, {"a": "a"}),
    "widened": (["ALTER COLUMN {0}.a TYPE BIGINT"], AS_IT_WAS, {"a": "a", "b": "b"}),
    "moved": (["ALTER COLUMN {0}.b FIRST"], AS_IT_WAS, {"a": "a", "b": "b"}),
    "added": (["ADD COLUMNS ({0}.y INT FIRST)"], {"y": "{n}", **AS_IT_WAS}, {"a": "a", "b": "b"}),
    "swapped": (
        [f"RENAME COLUMN {{0}}.{one} TO {other}" for one, other in ("at", "ba", "tb")],
        {"b": "{n}", "a": "'x'"},
        {"b": "a", "a": "b"},
    ),
    "other": (
        ["DROP COLUMN {0}.b", "ADD COLUMNS ({0}.b INT)"],
        {"a": "{n}", "b": "{n}"},
        {"a": "a"},
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("scd_type", [2, None])
def test_fields_changed_in_any_place_are_those_of_stored_events(
    spark: SparkSession, tmp_path: Path, scd_type: Any
) -> None:
    path, columns = str(tmp_path / "t"), list(itertools.product(ALTERED, PLACES))
    table = MergeOnReadTable(spark, path, **ARGUMENTS)

    def apply(altered: bool, *events: tuple[int, int, int]) -> None:
        rows = []
        for change, place in columns:
            fields = ALTERED[change][1] if altered else AS_IT_WAS
            struct = ", ".join(f"'{name}', {of}" for name, of in fields.items())
            struct = f"named_struct({struct})".format(n="n")
            rows.append(f"{PLACES[place][0].format(struct)} AS {change}_{place}")
        made = spark.createDataFrame(events, "k INT, at INT, n INT")
        source = made.selectExpr("k", "at", "'u' AS op", *rows)
        if scd_type is None:
            table.append(source)
        else:
            deltaweave.apply_changes(spark, path, source, **ARGUMENTS, stored_as_scd_type=scd_type)

    def shown(rows: DataFrame, *names: str) -> dict[Any, list[Any]]:
        read = [f"to_json({PLACES[p][2].format(f'{c}_{p}')})" for c, p in columns]
        found = rows.selectExpr("k", *names, f"array({', '.join(read)}) AS said").collect()
        return {tuple(row[:-1]): [json.loads(each) for each in row.said] for row in found}

    apply(False, (1, 10, 1), (1, 12, 1), (2, 20, 3))
    for setting in ("columnMapping.mode' = 'name", "enableTypeWidening' = 'true"):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.{setting}')")
    for change, place in columns:
        for statement in ALTERED[change][0]:
            name = f"{change}_{place}{PLACES[place][1]}"
            spark.sql(f"ALTER TABLE delta.`{path}` {statement.format(name)}")

    def made(n: int, is_stored: bool) -> list[Any]:
        values = {"{n}": n, "'x'": "x"}
        found = []
        for change, _ in columns:
            _, fields, stored = ALTERED[change]
            of = {name: AS_IT_WAS[was] for name, was in stored.items()} if is_stored else fields
            found.append({name: values[each] for name, each in of.items()})
        return found

    current = {(1,): made(1, True), (2,): made(8, False)}
    if scd_type is None:
        assert shown(table.read())[(1,)] == made(1, True)
    apply(True, (1, 11, 5), (2, 30, 8))
    if scd_type is None:
        assert shown(table.read()) == current
        table.rematerialize("merge")
        assert shown(table.read_optimized()) == current
        return
    assert shown(Table(spark, path).read(), "__START_AT") == {
        (1, 10): made(1, True),
        (1, 11): made(5, False),
        (1, 12): made(1, True),
        (2, 20): made(3, True),
        (2, 30): made(8, False),
    }
