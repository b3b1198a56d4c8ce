"""Whole events and events that leave columns out, on one table: the order makes no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.side_tables.tombstones import Tombstones

pytestmark = pytest.mark.minutes

# The options of three jobs, in the order in which each step runs them.
OPTIONS: Mapping[str, dict[str, Any]] = {
    "named": {"present_columns": "present"},
    "no nulls": {"ignore_null_updates": True},
    "whole": {},
}
SCHEMA = "k INT, a INT, b INT, at INT, present ARRAY<STRING>"
# A job, a sequence, and the values of a and b; those that "named" leaves out are missing.
Said = tuple[str, int, Mapping[str, int | None]]
Row = tuple[Any, ...]


def both(a: int | None, b: int | None) -> dict[str, int | None]:
    return {"a": a, "b": b}


# Three events of a key, and the row that they make.
CASES: Sequence[tuple[Sequence[Said], Row]] = [
    # A whole event is newer than what is known of each column.
    ([("named", 5, {"a": 5}), ("whole", 8, both(8, 8)), ("named", 6, {"b": 6})], (8, 8)),
    (
        [("named", 5, both(5, 2)), ("whole", 8, both(8, None)), ("no nulls", 6, both(6, 6))],
        (8, None),
    ),
    # It is older than the row, and sets what newer ones leave out.
    ([("named", 5, {"a": 5}), ("whole", 3, both(3, 3)), ("no nulls", 1, both(1, 1))], (5, 3)),
    (
        [("no nulls", 5, both(None, 5)), ("whole", 3, both(3, 3)), ("named", 4, {"a": None})],
        (None, 5),
    ),
    # A null that one job sets is none that another one leaves out.
    ([("named", 5, {"b": None}), ("no nulls", 3, both(3, 3)), ("whole", 1, both(1, 1))], (3, None)),
    ([("whole", 5, both(5, None)), ("no nulls", 3, both(3, 3)), ("named", 7, {"a": 7})], (7, None)),
]
ORDERS = [(*case, order) for case in CASES for order in permutations(range(3))]


def batch(spark: SparkSession, job: str, step: int) -> DataFrame:
    """Make the batch of a job's events that come at a step: each key has an order of its own."""
    rows = []
    for k, (events, _, order) in enumerate(ORDERS):
        of, at, values = events[order[step]]
        if of == job:
            rows.append((k, values.get("a"), values.get("b"), at, sorted(values)))
    events_of_job = spark.createDataFrame(rows, SCHEMA)
    return events_of_job if job == "named" else events_of_job.drop("present")


def arguments(job: str) -> dict[str, Any]:
    return {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"], **OPTIONS[job]}


EXPECTED = {k: row for k, (_, row, _) in enumerate(ORDERS)}


@pytest.mark.parametrize("kind", [1, 2])
def test_tables_are_the_same_whichever_options_come_first(
    spark: SparkSession, tmp_path: Path, kind: Any
) -> None:
    path = str(tmp_path / "t")
    for step in range(3):
        for job in OPTIONS:
            deltaweave.apply_changes(
                spark, path, batch(spark, job, step), stored_as_scd_type=kind, **arguments(job)
            )
    table = Table(spark, path).read()
    newest = table if kind == 1 else table.where("__END_AT IS NULL")
    assert {row.k: (row.a, row.b) for row in newest.collect()} == EXPECTED
    if kind == 2:
        versions: dict[int, set[Row]] = {}
        for row in table.collect():
            versions.setdefault(row.k, set()).add((row.a, row.b, row["__START_AT"]))
        cases = [[versions[6 * case + n] for n in range(6)] for case in range(len(CASES))]
        assert all(each == of_case[0] for of_case in cases for each in of_case)


def test_views_and_bases_are_the_same_whichever_options_come_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    strategies: list[Any] = ["overwrite", "merge", None]
    tables = {
        job: MergeOnReadTable(spark, str(tmp_path / "base"), **arguments(job)) for job in OPTIONS
    }
    for step, strategy in enumerate(strategies):
        for job, table in tables.items():
            table.append(batch(spark, job, step))
        if strategy is not None:
            tables["whole"].rematerialize(strategy)
    for job, table in tables.items():
        assert {row.k: (row.a, row.b) for row in table.read().collect()} == EXPECTED, job


def test_a_history_keeps_its_version_when_whole_events_follow(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    for job, at, b in [("no nulls", 1, 1), ("no nulls", 2, None), ("whole", 3, 1)]:
        source = spark.createDataFrame([(1, 1, b, at)], "k INT, a INT, b INT, at INT")
        deltaweave.apply_changes(spark, path, source, stored_as_scd_type=2, **arguments(job))
    versions = Table(spark, path).read().select("a", "b", "__START_AT", "__END_AT").collect()
    assert [tuple(row) for row in versions] == [(1, 1, 1, None)]


@pytest.mark.parametrize("moment", ["settle", "version"])
def test_a_whole_batch_meets_a_table_that_takes_other_kinds_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The column is added, and used, before and after the batch looks at the table."""
    path = str(tmp_path / "t")

    def applied(job: str, a: int, at: int) -> None:
        source = spark.createDataFrame([(1, a, a, at, ["a"])], SCHEMA)
        source = source if job == "named" else source.drop("present")
        deltaweave.apply_changes(spark, path, source, **arguments(job))

    def after_others(tombstones: Tombstones) -> Any:
        monkeypatch.undo()
        sequences = "MAP<STRING, STRUCT<at: INT, tie: BIGINT>>"
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (_cdc_column_sequences {sequences})")
        applied("named", 8, 8)
        return getattr(tombstones, moment)()

    applied("whole", 5, 5)
    monkeypatch.setattr(Tombstones, moment, after_others)
    applied("whole", 7, 7)
    assert {(row.a, row.b) for row in Table(spark, path).read().collect()} == {(8, 7)}
