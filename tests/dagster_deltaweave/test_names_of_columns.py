"""Assets whose columns have names that SQL does not take as they are: a run, a refresh, checks."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_deltaweave import build_orphan_changes_check, build_table_checks, merge_asset
from deltaweave import Table, clauses
from deltaweave.identifiers import column, quoted
from tests.dagster_deltaweave.conftest import Run

NAMES = ["k.1", "se`lect", "ü's"]
SCHEMA = ", ".join(f"{quoted(name)} INT" for name in NAMES)


@pytest.mark.minutes
def test_a_run_a_full_refresh_and_checks(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    delivered: list[Any] = [[(1, 1, 1), (2, 2, None)], [(3, 3, 3)]]
    values = {quoted(name): f"s.{quoted(name)}" for name in NAMES}

    @merge_asset(
        keys=["k.1"],
        schema=SCHEMA,
        clauses=[clauses.when_matched_update(values), clauses.when_not_matched_insert(values)],
    )
    def numbers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(delivered[0], SCHEMA)

    checks = build_table_checks(numbers, unique_key=["k.1"], no_nulls=["se`lect", "ü's", "k.1"])
    orphans = build_orphan_changes_check(
        numbers, changes=lambda spark, _: numbers_of(spark, delivered[0]), keys=["k.1", "se`lect"]
    )

    def numbers_of(spark: SparkSession, rows: Any) -> Any:
        return spark.createDataFrame(rows, SCHEMA)

    result = run(numbers, checks, orphans)
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed == {"unique_key": True, "no_nulls": False, "no_orphan_changes": True}

    del delivered[0]
    run(numbers, tags={"deltaweave/full_refresh": "true"})
    found = table("numbers").read().select(*map(column, NAMES)).collect()
    assert [tuple(row) for row in found] == [(3, 3, 3)]


@pytest.mark.minutes
@pytest.mark.parametrize("upper", ["declaration", "rows", "table"])
def test_names_may_differ_in_case(
    spark: SparkSession, run: Run, table: Callable[[str], Table], upper: str
) -> None:
    def named(part: str) -> tuple[str, str, str]:
        return ("K", "AT", "V") if part == upper else ("k", "at", "v")

    def schema(part: str) -> str:
        return ", ".join(f"{name} INT" for name in named(part))

    key, at, value = named("declaration")
    delivered: list[Any] = [[(1, 1, 1), (2, 2, 2)], [(1, 2, 10), (1, 3, 11), (2, 1, 0)]]

    @merge_asset(keys=[key], sequence_by=at, schema=schema("table"))
    def numbers():  # type: ignore[no-untyped-def]
        return spark.createDataFrame(delivered[0], schema("rows"))

    checks = build_table_checks(numbers, unique_key=[key], no_nulls=[value])
    orphans = build_orphan_changes_check(
        numbers,
        changes=lambda spark, _: spark.createDataFrame(delivered[0], schema("rows")),
        keys=[key],
    )
    run(numbers)
    del delivered[0]
    result = run(numbers, checks, orphans)
    passed = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert passed == {"unique_key": True, "no_nulls": True, "no_orphan_changes": True}
    merged = table("numbers").read()
    assert merged.columns == list(named("table"))
    assert {tuple(row) for row in merged.collect()} == {(1, 3, 11), (2, 2, 2)}
