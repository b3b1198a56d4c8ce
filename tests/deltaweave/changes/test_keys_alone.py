"""Tables of keys alone, as those that link two others: events say that a key is there, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.merge_on_read.rematerialization import RematerializationStrategy

pytestmark = pytest.mark.minutes

ARGUMENTS: dict[str, Any] = {
    "keys": ["a", "b"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["at", "op", "sets"],
}
# By how events say what they set: further arguments.
EVENTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "naming columns": {"present_columns": "sets"},
    "ignoring nulls": {"ignore_null_updates": True},
}
BATCHES = [
    [(1, 1, 1, ""), (1, 2, 1, ""), (1, 3, 5, "d")],
    [(1, 1, 2, ""), (1, 2, 2, "d"), (1, 3, 4, "")],
]
VERSIONS = {
    (1, 1, 1, None),  # at 2 nothing changed
    (1, 2, 1, 2),
    (1, 3, 4, 5),  # ended by a delete that came first
}
ROWS = {(1, 1)}  # (1, 2) was deleted later, and (1, 3) before its late event came
OF_ROWS = "_cdc_sequence STRUCT<at: INT, tie: BIGINT>"
OF_PARTIAL_ROWS = f"{OF_ROWS}, _cdc_column_sequences MAP<STRING, STRUCT<at: INT, tie: BIGINT>>"
OF_HISTORIES = "__START_AT INT, __END_AT INT"


def batches(spark: SparkSession) -> list[DataFrame]:
    rows = [spark.createDataFrame(batch, "a INT, b INT, at INT, op STRING") for batch in BATCHES]
    return [each.selectExpr("*", "CAST(array() AS ARRAY<STRING>) AS sets") for each in rows]


def created(spark: SparkSession, path: str, own: str, computed: bool) -> None:
    """Create a table whose other columns are all generated, if that is wanted."""
    if computed:
        generated = "g INT GENERATED ALWAYS AS (a * 10 + b)"
        spark.sql(f"CREATE TABLE delta.`{path}` (a INT, b INT, {generated}, {own}) USING delta")


def with_generated(rows: set[tuple[Any, ...]], computed: bool) -> set[tuple[Any, ...]]:
    return {(a, b, a * 10 + b, *others) for a, b, *others in rows} if computed else rows


@pytest.mark.parametrize("computed", [False, True], ids=["alone", "with generated columns"])
@pytest.mark.parametrize("events", EVENTS)
def test_tables_of_keys_alone_have_current_rows(
    spark: SparkSession, tmp_path: Path, events: str, computed: bool
) -> None:
    path, arguments = str(tmp_path / "t"), {**ARGUMENTS, **EVENTS[events]}
    created(spark, path, OF_PARTIAL_ROWS if EVENTS[events] else OF_ROWS, computed)
    for batch in batches(spark):
        deltaweave.apply_changes(spark, path, batch, **arguments)
    names = ["a", "b", *(["g"] if computed else [])]
    found = {tuple(row) for row in Table(spark, path).read().select(*names).collect()}
    assert found == with_generated(ROWS, computed)


@pytest.mark.parametrize("computed", [False, True], ids=["alone", "with generated columns"])
@pytest.mark.parametrize("events", EVENTS)
def test_tables_of_keys_alone_have_histories(
    spark: SparkSession, tmp_path: Path, events: str, computed: bool
) -> None:
    path, arguments = str(tmp_path / "t"), {**ARGUMENTS, **EVENTS[events]}
    created(spark, path, OF_HISTORIES, computed)
    for batch in batches(spark):
        deltaweave.apply_changes(spark, path, batch, **arguments, stored_as_scd_type=2)
    found = {tuple(row) for row in Table(spark, path).read().collect()}
    assert found == with_generated(VERSIONS, computed)


@pytest.mark.parametrize("computed", [False, True], ids=["alone", "with generated columns"])
@pytest.mark.parametrize("events", EVENTS)
def test_tables_of_keys_alone_are_merged_on_read(
    spark: SparkSession, tmp_path: Path, events: str, computed: bool
) -> None:
    path, arguments = str(tmp_path / "base"), {**ARGUMENTS, **EVENTS[events]}
    created(spark, path, OF_PARTIAL_ROWS if EVENTS[events] else OF_ROWS, computed)
    links = MergeOnReadTable(spark, path, **arguments)
    strategies: list[RematerializationStrategy] = ["merge", "overwrite"]
    for batch, strategy in zip(batches(spark), strategies, strict=True):
        links.append(batch)
        read = {tuple(row) for row in links.read("left_join_anti_join").collect()}
        assert {tuple(row) for row in links.read("full_outer_join").collect()} == read
        links.rematerialize(strategy)
        assert {tuple(row) for row in links.read_optimized().collect()} == read
    assert read == with_generated(ROWS, computed)
