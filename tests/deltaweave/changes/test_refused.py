"""Batches that are refused: neither the table nor what is remembered beside it has any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.errors import DeltaweaveError, StatementError

pytestmark = pytest.mark.minutes

ARGUMENTS: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["at", "op", "sets"],
}
HISTORY: dict[str, Any] = {"stored_as_scd_type": 2}
PARTIAL = {"present_columns": "sets"}
TARGETS: dict[str, dict[str, Any]] = {
    "current rows": {"apply_as_truncates": "op = 't'"},
    "current rows of partial events": {"apply_as_truncates": "op = 't'", **PARTIAL},
    "a history": HISTORY,
    "a history with tracked columns": {**HISTORY, "track_history_column_list": ["v"]},
    "a history of partial events": {**HISTORY, **PARTIAL},
}
EVENT = {
    "k": "INT",
    "at": "INT",
    "op": "STRING",
    "v": "INT",
    "w": "STRING",
    "c": "STRING",
    "n": "INT",
    "s": "STRUCT<a: STRING>",
    "sets": "ARRAY<STRING>",
}
COLUMNS = (
    "k INT, v INT, w VARCHAR(3), c CHAR(2), n INT NOT NULL, s STRUCT<a: VARCHAR(2)>, "
    "g INT GENERATED ALWAYS AS (n * 2)"
)
OF_HISTORIES = "__START_AT INT, __END_AT INT"
OF_ROWS = "_cdc_sequence STRUCT<at: INT, tie: BIGINT>"
OF_PARTIAL_ROWS = f"{OF_ROWS}, _cdc_column_sequences MAP<STRING, STRUCT<at: INT, tie: BIGINT>>"

# By what is wrong: the columns of the wrong event, and their types if they are others.
LENGTHS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a text that is too long for VARCHAR": ({"w": "'abcd'"}, {}),
    "a text that is too long for CHAR": ({"c": "'abc'"}, {}),
    "a field that is too long": ({"s": "named_struct('a', 'abc')"}, {}),
    "a field that is too long by blanks": ({"s": "named_struct('a', 'x  ')"}, {}),
}
UNFIT: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "a value of another type": ({"v": "'seven'"}, {"v": "STRING"}),
    "a key of another type": ({"k": "'2.5'"}, {"k": "STRING"}),
    "a sequence of another type": ({"at": "9.5"}, {"at": "DOUBLE"}),
    **LENGTHS,
}
REFUSED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    **UNFIT,
    "a CHECK": ({"v": "-1"}, {}),
    "NOT NULL": ({"n": "NULL"}, {}),
    "a generated column": ({"g": "5"}, {"g": "INT"}),
}


def event(k: int, at: int, op: str = "u", **values: str) -> dict[str, str]:
    return {
        "k": str(k),
        "at": str(at),
        "op": f"'{op}'",
        "v": str(at),
        "w": "'a'",
        "c": "'b'",
        "n": "1",
        "s": "named_struct('a', 'x')",
        "sets": "NULL",
        "g": "2",
        **values,
    }


def batch(spark: SparkSession, rows: list[dict[str, str]], **types: str) -> DataFrame:
    columns = {**EVENT, **types}
    selects = [
        ", ".join(f"CAST({row[name]} AS {of}) AS {name}" for name, of in columns.items())
        for row in rows
    ]
    return spark.sql(" UNION ALL ".join(f"SELECT {each}" for each in selects))


def with_wrong(has_truncates: bool, values: dict[str, str]) -> list[dict[str, str]]:
    """A batch with deletes, an event of a later version, and an event that is wrong."""
    emptied = [{**event(0, 8, "t"), "k": "NULL"}] if has_truncates else []
    others = [event(1, 9, "d"), event(3, 9), event(3, 7, sets="array('w')")]
    return [*emptied, *others, {**event(2, 9), **values}]


def kept_beside(spark: SparkSession, path: Path) -> list[str]:
    """What is remembered beside a table."""
    found = []
    for directory in sorted(path.glob("_deltaweave_*")):
        if (directory / "_delta_log").exists():
            rows = spark.read.format("delta").load(str(directory))
            found += [f"{directory.name} {row}" for row in rows.collect()]
    return sorted(found)


def rows_of(read: DataFrame) -> set[tuple[Any, ...]]:
    names = [name for name in ("k", "v", "__START_AT", "__END_AT") if name in read.columns]
    return {tuple(row) for row in read.select(*names).collect()}


@pytest.mark.parametrize("target", TARGETS)
def test_a_refused_batch_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path, target: str
) -> None:
    path, arguments = tmp_path / "t", {**ARGUMENTS, **TARGETS[target]}
    is_history = "stored_as_scd_type" in arguments
    own = OF_HISTORIES if is_history else OF_PARTIAL_ROWS if "partial" in target else OF_ROWS
    spark.sql(f"CREATE TABLE delta.`{path}` ({COLUMNS}, {own}) USING delta")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (v >= 0)")

    def apply(rows: list[dict[str, str]], **types: str) -> None:
        deltaweave.apply_changes(spark, str(path), batch(spark, rows, **types), **arguments)

    apply([event(k, 1) for k in (1, 2, 3)])
    before, version = kept_beside(spark, path), Table(spark, str(path)).version()
    left_behind = {}
    for what, (values, types) in REFUSED.items():
        with pytest.raises(DeltaweaveError):
            apply(with_wrong(not is_history, values), **types)
        assert Table(spark, str(path)).version() == version, what
        if (kept := kept_beside(spark, path)) != before:
            left_behind[what] = sorted(set(kept) - set(before))
    assert not left_behind
    apply([event(k, 2) for k in (1, 2, 3, 4)])
    read = Table(spark, str(path)).read()
    if is_history:
        ended = {(k, 1, 1, 2) for k in (1, 2, 3)}
        assert rows_of(read) == ended | {(k, 2, 2, None) for k in (1, 2, 3, 4)}
    else:
        assert rows_of(read) == {(k, 2) for k in (1, 2, 3, 4)}
    apply(with_wrong(not is_history, {}))  # corrected
    apply([event(k, 3) for k in (1, 2, 3)])  # late
    read = Table(spark, str(path)).read()
    if is_history:
        newest = read.where("__END_AT IS NULL")
        assert rows_of(newest) == {(2, 9, 9, None), (3, 9, 9, None), (4, 2, 2, None)}
    else:
        assert rows_of(read) == {(2, 9), (3, 9)}


def test_a_refused_batch_is_not_appended(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "base"
    columns = f"{COLUMNS}, {OF_PARTIAL_ROWS}"
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    table = MergeOnReadTable(
        spark, str(path), **ARGUMENTS, **PARTIAL, apply_as_truncates="op = 't'"
    )
    table.append(batch(spark, [event(k, 1) for k in (1, 2, 3)]))
    for what, (values, types) in UNFIT.items():
        with pytest.raises(DeltaweaveError):
            table.append(batch(spark, with_wrong(True, values), **types))
        assert table.pending().batches == 1, what
    table.append(batch(spark, [event(k, 2) for k in (1, 2, 3, 4)]))
    assert rows_of(table.read()) == {(k, 2) for k in (1, 2, 3, 4)}
    table.rematerialize()
    assert rows_of(table.read_optimized()) == {(k, 2) for k in (1, 2, 3, 4)}


@pytest.mark.parametrize("strategy", ["merge", "overwrite"])
def test_a_batch_that_its_base_refuses_leaves_nothing_when_it_is_deleted(
    spark: SparkSession, tmp_path: Path, strategy: Any
) -> None:
    path = tmp_path / "base"
    table = MergeOnReadTable(spark, str(path), **ARGUMENTS, apply_as_truncates="op = 't'")
    table.append(batch(spark, [event(k, 1) for k in (1, 2, 3)]))
    table.rematerialize()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (v >= 0)")
    table.append(batch(spark, with_wrong(True, {"v": "-1"})))
    with pytest.raises(DeltaweaveError, match="positive"):
        table.rematerialize(strategy)
    assert kept_beside(spark, path) == []
    spark.sql(f"DELETE FROM delta.`{path}_changes` WHERE _cdc_batch = 2")
    table.append(batch(spark, [event(k, 2) for k in (1, 2, 3, 4)]))
    table.rematerialize(strategy)
    assert rows_of(table.read()) == {(k, 2) for k in (1, 2, 3, 4)}
    table.append(batch(spark, with_wrong(True, {})))  # corrected, and with what is remembered
    table.rematerialize(strategy)
    assert rows_of(table.read_optimized()) == {(2, 9), (3, 9)}
    assert kept_beside(spark, path) != []


# By the column's type: a value that it cannot hold.
CAST = {
    "INT": "CAST(1.7 AS DOUBLE)",
    "FLOAT": "CAST(1e300 AS DOUBLE)",
    "DOUBLE": "'1e400'",
    "DECIMAL(5,2)": "CAST(1.255 AS DECIMAL(5,3))",
    "DATE": "TIMESTAMP '2026-01-02 03:04:05'",
}


@pytest.mark.parametrize("kind", ["current rows", "a history", "merge on read"])
def test_values_fit_that_deltas_own_merge_casts(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    path, merged = str(tmp_path / "t"), str(tmp_path / "merged")
    columns = ", ".join(f"v{n} {of}" for n, of in enumerate(CAST))
    values = ", ".join(f"{value} AS v{n}" for n, value in enumerate(CAST.values()))
    rows = spark.sql(f"SELECT 1 AS k, {values}")
    own = OF_HISTORIES if kind == "a history" else OF_ROWS
    spark.sql(f"CREATE TABLE delta.`{path}` (k INT, {columns}, {own}) USING delta")
    spark.sql(f"CREATE TABLE delta.`{merged}` (k INT, {columns}) USING delta")
    merge = DeltaTable.forPath(spark, merged).alias("t").merge(rows.alias("s"), "t.k = s.k")
    merge.whenNotMatchedInsertAll().execute()
    events = rows.selectExpr("*", "1 AS at")
    arguments: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}
    if kind == "merge on read":
        table = MergeOnReadTable(spark, path, **arguments)
        table.append(events)
        table.rematerialize()
    else:
        scd_type: Literal[1, 2] = 2 if kind == "a history" else 1
        deltaweave.apply_changes(spark, path, events, stored_as_scd_type=scd_type, **arguments)
    names = [f"v{n}" for n in range(len(CAST))]
    expected = Table(spark, merged).read().select(*names).collect()
    assert Table(spark, path).read().select(*names).collect() == expected
    assert tuple(expected[0][:3]) == (1, float("inf"), float("inf"))


PLAIN: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}


def applied(spark: SparkSession, path: Path, kind: str, columns: str) -> None:
    """Apply an event with these columns."""
    event = spark.sql(f"SELECT {columns}")
    if kind == "merge on read":
        table = MergeOnReadTable(spark, str(path), **PLAIN)
        table.append(event)
        table.rematerialize()
    else:
        scd_type: Literal[1, 2] = 2 if kind == "a history" else 1
        deltaweave.apply_changes(spark, str(path), event, stored_as_scd_type=scd_type, **PLAIN)


# By what has no type: a value whose type is not known, and one that has the column's type.
UNTYPED = {
    "a column": ("NULL", "7"),
    "a field": ("named_struct('a', NULL)", "named_struct('a', 7)"),
    "the items": ("array(NULL)", "array(7)"),
    "the values": ("map('a', NULL)", "map('a', 7)"),
}


@pytest.mark.parametrize("what", UNTYPED)
@pytest.mark.parametrize("kind", ["current rows", "a history", "merge on read"])
def test_a_first_batch_does_not_make_a_column_without_a_type(
    spark: SparkSession, tmp_path: Path, kind: str, what: str
) -> None:
    untyped, typed = UNTYPED[what]
    with pytest.raises(StatementError, match="of the column v is not known"):
        applied(spark, tmp_path / "t", kind, f"1 AS k, 1 AS at, {untyped} AS v")
    assert list(tmp_path.iterdir()) == []  # neither a table nor a changeset
    applied(spark, tmp_path / "t", kind, f"1 AS k, 1 AS at, {typed} AS v")
    applied(spark, tmp_path / "t", kind, f"1 AS k, 2 AS at, {untyped} AS v")  # has one now
    read = Table(spark, str(tmp_path / "t")).read()
    newest = read.where("__END_AT IS NULL") if kind == "a history" else read
    [found] = newest.selectExpr("CAST(v AS STRING) AS v").collect()
    [expected] = spark.sql(f"SELECT CAST({untyped} AS STRING)").collect()
    assert found == expected


# By what no cast makes of the table's type: an event's columns.
UNCASTABLE = {
    "a value": "1 AS k, 2 AS at, map('a', 1) AS v",
    "a key": "array(1) AS k, 2 AS at, 2 AS v",
    "a sequence": "1 AS k, X'02' AS at, 2 AS v",
}


@pytest.mark.parametrize("what", UNCASTABLE)
@pytest.mark.parametrize("kind", ["current rows", "a history", "merge on read"])
def test_types_that_the_table_cannot_take_are_an_error_of_ours(
    spark: SparkSession, tmp_path: Path, kind: str, what: str
) -> None:
    path = tmp_path / "t"
    applied(spark, path, kind, "1 AS k, 1 AS at, 1 AS v")
    with pytest.raises(DeltaweaveError, match="DATATYPE_MISMATCH") as raised:
        applied(spark, path, kind, UNCASTABLE[what])
    assert raised.value.table == str(path)
    assert rows_of(Table(spark, str(path)).read().select("k", "v")) == {(1, 1)}
