"""Keys of events get the types of the table; those that this would change are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.conversions import depends_on_zone, exact
from deltaweave.changes.side_tables.stored_events import converted_exactly
from deltaweave.errors import DeltaweaveError

# By column: its type, a value, the same value of another type, and one that the type would change,
# in this or another time zone.
KEYS = {
    "day": (
        "DATE",
        "'2026-01-01'",
        "TIMESTAMP_NTZ'2026-01-01'",
        "TIMESTAMP_NTZ'2026-01-01 10:00:00'",
    ),
    "local": ("TIMESTAMP_NTZ", "'2026-01-01'", "DATE'2026-01-01'", "TIMESTAMP'2026-01-01'"),
    "instant": (
        "TIMESTAMP",
        "'2026-01-01 00:00:00Z'",
        "'2026-01-01T09:00:00+09:00'",
        "'2026-01-01 00:00:00'",
    ),
    "second": (
        "TIMESTAMP",
        "'2026-01-01 00:00:00Z'",
        "1767225600L",
        "TIMESTAMP_NTZ'2026-01-01 00:00:00'",
    ),
    "epoch": (
        "BIGINT",
        "1767225600",
        "TIMESTAMP'2026-01-01 00:00:00Z'",
        "TIMESTAMP'2026-01-01 00:00:00.5Z'",
    ),
    "number": ("INT", "1", "1.0D", "1.5D"),
    "big": ("SMALLINT", "1", "1L", "70000"),
    "amount": ("DECIMAL(5,1)", "1.5", "1.50", "1.52"),
    "price": ("DECIMAL(5,1)", "1.5", "'1.50'", "'1.52'"),
    "text": ("INT", "1", "'01'", "'x'"),
    "fields": (
        "STRUCT<a: INT>",
        "named_struct('a', 1)",
        "named_struct('a', 1.0)",
        "named_struct('a', 1.5)",
    ),
}
ARGUMENTS: dict[str, Any] = {
    "keys": list(KEYS),
    "sequence_by": "seq",
    "except_column_list": ["seq"],
}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["current rows", "histories", "merge on read"])
def test_a_key_of_another_type_is_the_tables_or_an_error(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path = str(tmp_path / "t")

    def apply(seq: int, keys: dict[str, str]) -> None:
        named = ", ".join(f"{value} AS {name}" for name, value in keys.items())
        events = spark.sql(f"SELECT {named}, {seq} AS seq, {seq} AS v")
        if kind == "merge on read":
            table = MergeOnReadTable(spark, path, **ARGUMENTS)
            table.append(events)
            table.rematerialize()
        else:
            scd_type: Any = 2 if kind == "histories" else 1
            deltaweave.apply_changes(spark, path, events, stored_as_scd_type=scd_type, **ARGUMENTS)

    first = {name: f"CAST({value} AS {of})" for name, (of, value, _, _) in KEYS.items()}
    apply(1, first)
    apply(2, {name: same for name, (_, _, same, _) in KEYS.items()})
    for name, (*_, other) in KEYS.items():
        with pytest.raises(
            DeltaweaveError, match=rf"the key {name}=.* does not fit the table|CAST_"
        ):
            apply(3, {**first, name: other})
    newest = "__END_AT IS NULL" if kind == "histories" else "true"
    assert [row.v for row in Table(spark, path).read().where(newest).collect()] == [2]


A_DAY, NOON = "2026-01-01", "2026-01-01 12:00:00"


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (f"DATE'{A_DAY}'", "TIMESTAMP"),
        (f"TIMESTAMP_NTZ'{NOON}'", "TIMESTAMP"),
        (f"'{NOON}'", "TIMESTAMP"),
        (f"TIMESTAMP'{A_DAY}'", "DATE"),
        (f"TIMESTAMP'{NOON}'", "TIMESTAMP_NTZ"),
        (f"TIMESTAMP'{NOON}'", "STRING"),
        (f"named_struct('a', TIMESTAMP_NTZ'{NOON}')", "STRUCT<a: TIMESTAMP>"),
        (f"array(named_struct('a', 1, 'b', DATE'{A_DAY}'))", "ARRAY<STRUCT<a: INT, b: TIMESTAMP>>"),
    ],
)
def test_what_depends_on_the_sessions_zone_fits_no_key_and_sequence(
    spark: SparkSession, held: str, wanted: str
) -> None:
    rows = spark.sql(f"SELECT {held} AS value UNION ALL SELECT NULL")
    [field] = rows.schema
    [of_table] = spark.sql(f"SELECT CAST(NULL AS {wanted}) AS value").schema
    value = exact(rows["value"], field.dataType, of_table.dataType, ("the key k=", " does not fit"))
    with pytest.raises(SparkRuntimeException, match=r"the key k=.*2026-01-01.* does not fit"):
        rows.select(value).collect()
    assert rows.where("value IS NULL").select(value).collect() == [(None,)]


@pytest.mark.parametrize(
    ("other", "depends"),
    [
        *[(each, True) for each in (DateType(), TimestampNTZType(), StringType())],
        *[(each, False) for each in (LongType(), DoubleType(), DecimalType(16, 6))],
        *[(each, False) for each in (TimestampType(), NullType())],
    ],
)
def test_numbers_are_instants_in_whatever_zone(other: DataType, depends: bool) -> None:
    instant = TimestampType()
    assert depends_on_zone(other, instant) == depends_on_zone(instant, other) == depends


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ("TIMESTAMP", "2026-01-01T00:00:00.123456000Z", "2026-01-01T00:00:00.1234567Z"),
        ("TIMESTAMP", " +2026-1-1 10:34:56Z", "10:34:56Z"),
        ("TIMESTAMP", "2026-01-01T10:34:00 NZ", "T10:34:56+09:00"),
        ("TIMESTAMP_NTZ", "2026-01-01T09:00:00", "2026-01-01T09:00:00+09:00"),
        ("TIMESTAMP_NTZ", "2026-01-01", "2026-01-01T00:00:00.000000001"),
        ("DATE", "2026-01-01T00:00", "2026-01-01T10:00"),
        ("TIMESTAMP_NTZ", "2026-01-01T09:00:00Z", "2026-01-01T09:00:00 Europe/Berlin"),
        ("TIMESTAMP_NTZ", "2026-01-01T09:00:00 UTC", "2026-01-01T09:00:00 NZ"),
        ("DATE", "2026-1-1", "2026-01-01T00:00:00+09:00"),
        ("DATE", "2026-01-01T00:00:00Z", "2026-01-01T10:00:00Z"),
        ("DOUBLE", "0.30000000000000004", "9007199254740993"),
        ("DOUBLE", "-1.50e3", "0.12345678901234567890"),
        ("FLOAT", "16777200", "16777217"),
        ("DECIMAL(5,1)", "15.00e-1", "152e-2"),
        ("DECIMAL(38,1)", "1.50", "1.51"),
        ("STRUCT<a: TIMESTAMP>", "2026-01-01 00:00:00Z", "2026-01-01 00:00:00"),
        ("STRUCT<a: DECIMAL(5,1)>", "1.5", "1.52"),
    ],
)
def test_texts_that_their_type_would_change_fit_no_key(
    spark: SparkSession, wanted: str, right: str, wrong: str
) -> None:
    text = "named_struct('A', value)" if wanted.startswith("STRUCT") else "value"
    [field] = spark.sql(f"SELECT CAST(NULL AS {wanted}) AS value").schema

    def read(value: str) -> DataFrame:
        rows = spark.sql(f"SELECT {text} AS value FROM VALUES ('{value}'), (NULL) AS t (value)")
        [held] = rows.schema
        types, problem = (held.dataType, field.dataType), ("the key k=", " does not fit")
        return rows.select(converted_exactly(rows, rows["value"], types, problem).alias("value"))

    assert read(right).schema[0].dataType == field.dataType
    assert read(right).distinct().count() == 2
    with pytest.raises(SparkRuntimeException, match=r"the key k=.* does not fit"):
        read(wrong).collect()


# By the type of a table's sequences: sequences that do not fit, and some that are newer than 1.
SEQUENCES = {
    "TIMESTAMP": (
        [f"DATE'{A_DAY}'", f"TIMESTAMP_NTZ'{NOON}'", f"'{NOON}'"],
        ["1600000000L", "1600000000.5BD", "1600000001D", f"'{A_DAY}T09:00:00+09:00'"],
    ),
    "TIMESTAMP_NTZ": (
        [f"TIMESTAMP'{A_DAY}'", f"'{NOON}+09:00'"],
        [f"DATE'{A_DAY}'", f"'{NOON}'", f"'{A_DAY} 13:00:00Z'"],
    ),
    "STRUCT<lsn: BIGINT, n: BIGINT>": (
        ["named_struct('lsn', 9L, 'm', 9L)", "named_struct('n', 9L)"],
        # Later in the log, with a smaller number within its transaction.
        ["named_struct('n', 1L, 'lsn', 7L)", "named_struct('LSN', 8, 'n', 0)"],
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("of", SEQUENCES)
@pytest.mark.parametrize(
    "kind",
    [
        "current rows",
        pytest.param("histories", marks=pytest.mark.full_matrix),
        pytest.param("merge on read", marks=pytest.mark.full_matrix),
    ],
)
def test_sequences_are_those_of_the_table_by_name_in_every_zone(
    spark: SparkSession, tmp_path: Path, kind: str, of: str
) -> None:
    path = str(tmp_path / "t")
    wrong, right = SEQUENCES[of]
    first = "'2020-01-01'" if of.startswith("TIMESTAMP") else "named_struct('lsn', 5L, 'n', 5L)"

    def apply(v: int, at: str) -> None:
        events = spark.sql(f"SELECT 1 AS k, {v} AS v, {at} AS at")
        arguments = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}
        apply_as(kind, path, events, arguments, 1)

    apply(0, f"CAST({first} AS {of})")
    for at in wrong:
        with pytest.raises(
            DeltaweaveError, match=r"does not fit the table, whose sequences are|has no column"
        ):
            apply(-1, at)
    for v, at in enumerate(right, 1):
        apply(v, at)
    newest = "__END_AT IS NULL" if kind == "histories" else "true"
    found = Table(spark, path).read().where(newest).collect()
    assert [row.v for row in found] == [len(right)]


def apply_as(kind: str, where: str, events: DataFrame, arguments: Any, rows: int) -> None:
    """Apply events to a table of a kind; one of merge on read has so many rows before the merge."""
    spark = events.sparkSession
    if kind == "merge on read":
        table = MergeOnReadTable(spark, where, **arguments)
        table.append(events)
        assert table.read().count() == rows
        table.rematerialize()
    else:
        scd_type: Any = 2 if kind == "histories" else 1
        deltaweave.apply_changes(spark, where, events, stored_as_scd_type=scd_type, **arguments)


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["current rows", "histories", "merge on read"])
def test_texts_of_limited_length_are_compared_as_the_table_stores_them(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """CHAR has blanks up to its length, and neither CHAR nor VARCHAR has blanks beyond it."""
    path, like = str(tmp_path / "t"), str(tmp_path / "like")
    arguments: dict[str, Any] = {
        "keys": ["k", "w"],
        "sequence_by": "seq",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["seq", "op"],
    }
    if kind == "histories":
        arguments["track_history_except_column_list"] = ["v"]

    def apply(where: str, seq: int, k: str, w: str, op: str = "u", rows: int = 1) -> None:
        columns = f"'{k}' AS k, '{w}' AS w, 'x' AS t, {seq} AS v, {seq} AS seq, '{op}' AS op"
        events = spark.sql(f"SELECT {columns}")
        apply_as(kind, where, events, arguments, rows)

    apply(like, 1, "a", "b")
    limits = {"k": "CHAR(5)", "w": "VARCHAR(3)", "t": "CHAR(2)"}
    columns = ", ".join(
        f"`{field.name}` {limits.get(field.name, field.dataType.simpleString())}"
        for field in Table(spark, like).read().schema
    )
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    # Each event is one of the same key.
    for seq, (k, w) in enumerate([("a", "b"), ("a  ", "b"), ("a", "b")]):
        apply(path, seq, k, w)
    assert [
        tuple(row) for row in Table(spark, path).read().select("k", "w", "t", "v").collect()
    ] == [("a    ", "b", "x ", 2)]
    apply(path, 4, "a", "b", "d", rows=0)
    apply(path, 3, "a    ", "b", rows=0)  # late: the delete is remembered
    newest = "__END_AT IS NULL" if kind == "histories" else "true"
    assert Table(spark, path).read().where(newest).count() == 0
    apply(path, 5, "c", "abc")
    apply(path, 6, "c", "abc   ")
    kept = Table(spark, path).read().where(newest).select("k", "w", "v").collect()
    assert [tuple(row) for row in kept] == [("c    ", "abc", 6)]


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["current rows", "histories", "merge on read"])
def test_nested_texts_of_char_are_compared_as_the_table_stores_them(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path, like, oracle = (str(tmp_path / name) for name in ("t", "like", "oracle"))
    arguments: dict[str, Any] = {
        "keys": ["k", "l"],
        "sequence_by": "seq",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["seq", "op"],
    }
    # By column: its type, its texts as strings, and a value.
    columns = {
        "k": ("STRUCT<A: CHAR(5), b: VARCHAR(3)>", "named_struct('a', '{0}', 'b', 'x')"),
        "l": ("ARRAY<STRUCT<c: CHAR(3)>>", "array(named_struct('c', '{0}'), NULL)"),
        "s": ("STRUCT<a: ARRAY<CHAR(4)>>", "named_struct('a', array('{0}', NULL))"),
        "m": ("MAP<CHAR(2), CHAR(3)>", "map('{0}', '{0}')"),
        "t": ("CHAR(2)", "'{0}'"),
    }
    values = {name: value for name, (_, value) in columns.items()}

    def apply(where: str, seq: int, text: str, op: str = "u", rows: int = 1) -> None:
        of_events = ", ".join(f"{value.format(text)} AS {name}" for name, value in values.items())
        events = spark.sql(f"SELECT {of_events}, {seq} AS seq, '{op}' AS op")
        apply_as(kind, where, events, arguments, rows)

    apply(like, 1, "a")
    of_table = ", ".join(
        f"`{field.name}` {columns.get(field.name, (field.dataType.simpleString(),))[0]}"
        for field in Table(spark, like).read().schema
    )
    for name in (path, oracle):
        spark.sql(f"CREATE TABLE delta.`{name}` ({of_table}) USING delta")
    for seq, text in enumerate(["a", "a ", "a"], 1):
        apply(path, seq, text)
    literals = ", ".join(value.format("a") for value in values.values())
    spark.sql(f"INSERT INTO delta.`{oracle}` ({', '.join(values)}) SELECT {literals}")

    def rows_of(name: str, where: str = "true") -> list[str]:
        read = Table(spark, name).read().where(where)
        return [
            row[0] for row in read.selectExpr(f"to_json(struct({', '.join(values)}))").collect()
        ]

    # One row, and one version.
    assert rows_of(path) == rows_of(oracle)
    apply(path, 5, "a ", "d", rows=0)
    apply(path, 4, "a", rows=0)
    assert rows_of(path, "__END_AT IS NULL" if kind == "histories" else "true") == []
