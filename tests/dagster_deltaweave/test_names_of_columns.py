"""Assets whose columns have names that SQL does not take as they are: a run, a refresh, checks."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dagster import AssetExecutionContext, StaticPartitionsDefinition, asset
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import (
    build_orphan_changes_check,
    build_table_checks,
    merge_asset,
    partition_tags,
)
from deltaweave import Table, clauses
from deltaweave.identifiers import column, quoted
from tests.dagster_deltaweave.conftest import Run, rows
from tests.support.settings import configured

NAMES = ["k.1", "se`lect", "ü's"]
SCHEMA = ", ".join(f"{quoted(name)} INT" for name in NAMES)


@pytest.fixture(params=["defaults", "patterns"])
def _settings(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """With the second, names in back quotes may be regular expressions in a query."""
    name = "spark.sql.parser.quotedRegexColumnNames"
    with configured(spark, {name: str(request.param == "patterns")}):
        yield


@pytest.mark.minutes
@pytest.mark.usefixtures("_settings")
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
        numbers,
        changes=lambda spark, _: numbers_of(spark, delivered[0]),
        keys=["k.1", "se`lect"],
        deleted="`k.1` < 0",
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
@pytest.mark.usefixtures("_settings")
def test_partitions_by_a_column_of_such_a_name(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    letters, values, read = StaticPartitionsDefinition(["a", "b"]), [1], []
    schema = "k INT, `p.1` STRING, p21 STRING"

    def rows_of(*keys: str) -> DataFrame:
        return spark.createDataFrame([(values[-1], key, "c") for key in keys], schema)

    overwritten = {"deltaweave/write": "overwrite", "partition_expr": "`p.1`"}

    @asset(partitions_def=letters, metadata=overwritten)
    def written(context: AssetExecutionContext) -> DataFrame:
        return rows_of(context.partition_key)

    @asset(partitions_def=letters)
    def loaded(written: DataFrame) -> None:
        read.extend(row["p.1"] for row in written.collect())

    @merge_asset(keys=["k"], partitions_def=letters, partition_expr="`p.1`")
    def newest() -> DataFrame:
        return rows_of("b", "a")

    for letter in ("a", "b"):
        run(written, partition=letter)
    values.append(2)
    run(written, loaded, partition="b")
    assert read == ["b"]
    assert rows(table("written")) == [(1, "a", "c"), (2, "b", "c")]
    run(newest, tags=partition_tags(["a", "b"]))
    assert rows(table("newest")) == [(2, "b", "c")]


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
