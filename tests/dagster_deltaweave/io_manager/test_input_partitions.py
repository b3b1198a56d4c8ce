"""An input has the rows of the partitions that its partition mapping gives."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import shutil
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AllPartitionMapping,
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    LastPartitionMapping,
    MultiPartitionsDefinition,
    PartitionMapping,
    SpecificPartitionsPartitionMapping,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    asset,
    job,
    op,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import merge_asset
from deltaweave.errors import DeltaweaveError
from tests.dagster_deltaweave.conftest import Run

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
BOTH = MultiPartitionsDefinition({"day": DAYS, "letter": LETTERS})
ROWS = [
    ("2026-01-01", "a"),
    ("2026-01-02", "b"),
    ("2026-01-03", "c"),
    ("2025-12-31", "z"),  # of no partition
]
BY_DAY: dict[str, Any] = {"partitions_def": DAYS, "partition_expr": "day"}
BY_LETTER: dict[str, Any] = {"partitions_def": LETTERS, "partition_expr": "letter"}
BY_BOTH: dict[str, Any] = {
    "partitions_def": BOTH,
    "partition_expr": {"day": "day", "letter": "letter"},
}
MAPPED: list[tuple[dict[str, Any], PartitionMapping | None, str]] = [
    # upstream, its mapping to an asset without partitions, the letters that are read
    (BY_DAY, None, "abcz"),
    (BY_DAY, AllPartitionMapping(), "abcz"),
    (BY_DAY, LastPartitionMapping(), "c"),
    (BY_LETTER, LastPartitionMapping(), "c"),
    (BY_LETTER, SpecificPartitionsPartitionMapping(["a", "c"]), "ac"),
    (BY_DAY, SpecificPartitionsPartitionMapping(["2026-01-02"]), "b"),
    (BY_BOTH, SpecificPartitionsPartitionMapping(["2026-01-01|a", "2026-01-02|c"]), "a"),
    (BY_LETTER, SpecificPartitionsPartitionMapping([]), ""),
]


def upstream_of(**declared: Any) -> AssetsDefinition:
    @merge_asset(keys=["day"], **declared)
    def upstream():  # type: ignore[no-untyped-def]
        raise AssertionError("it is loaded, not run")

    return upstream


@pytest.mark.minutes
def test_an_asset_without_partitions_reads_those_that_its_mapping_gives(
    spark: SparkSession, run: Run, tmp_path: Any
) -> None:
    spark.createDataFrame(ROWS, "day STRING, letter STRING").write.format("delta").save(
        str(tmp_path / "tables" / "upstream")
    )
    for declared, mapping, expected in MAPPED:
        read: list[str] = []

        @asset(ins={"upstream": AssetIn(partition_mapping=mapping)})
        def downstream(upstream: DataFrame) -> None:
            read.extend(sorted(row.letter for row in upstream.collect()))  # noqa: B023

        run(upstream_of(**declared), downstream, selection=[downstream])
        assert "".join(read) == expected, mapping


@pytest.mark.minutes
@pytest.mark.parametrize("schema", ["day STRING, n INT", None])
def test_an_asset_reads_its_earlier_partition_from_its_first_run_on(
    spark: SparkSession, run: Run, schema: str | None
) -> None:
    before: list[Any] = []

    @merge_asset(
        keys=["day"],
        schema=schema,
        ins={
            "running": AssetIn(partition_mapping=TimeWindowPartitionMapping(-1, -1)),
        },
        name="running",
        **BY_DAY,
    )
    def running(context: AssetExecutionContext, running: DataFrame) -> DataFrame:
        before.append((running.columns, [tuple(row) for row in running.collect()]))
        total = sum(row.n for row in running.collect())
        return spark.createDataFrame([(context.partition_key, total + 1)], "day STRING, n INT")

    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        run(running, partition=day)

    assert before == [
        (["day", "n"] if schema else [], []),  # there is no table yet
        (["day", "n"], [("2026-01-01", 1)]),
        (["day", "n"], [("2026-01-02", 2)]),
    ]


def test_a_table_before_its_first_run_is_empty_if_its_columns_are_declared(run: Run) -> None:
    read: list[Any] = []

    @asset
    def downstream(upstream: DataFrame) -> None:
        read.append((upstream.dtypes, upstream.collect()))

    run(upstream_of(schema="day STRING, n INT"), downstream, selection=[downstream])
    assert read == [([("day", "string"), ("n", "int")], [])]
    with pytest.raises(DeltaweaveError):
        run(upstream_of(), downstream, selection=[downstream])


def test_a_table_that_was_lost_is_no_empty_input(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    @merge_asset(keys=["day"], schema="day STRING")
    def upstream():  # type: ignore[no-untyped-def]
        return spark.sql("SELECT '2026-01-01' AS day")

    @asset
    def downstream(upstream: DataFrame) -> None: ...

    run(upstream, downstream)
    shutil.rmtree(tmp_path / "tables" / "upstream")
    with pytest.raises(DeltaweaveError):
        run(upstream, downstream, selection=[downstream])


def test_the_last_of_one_partition_is_no_mapping_of_all(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    one_day = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-02")
    spark.createDataFrame(ROWS, "day STRING, letter STRING").write.format("delta").save(
        str(tmp_path / "tables" / "upstream")
    )
    read: list[str] = []

    @asset(ins={"upstream": AssetIn(partition_mapping=LastPartitionMapping())})
    def downstream(upstream: DataFrame) -> None:
        read.extend(row.letter for row in upstream.collect())

    upstream = upstream_of(partitions_def=one_day, partition_expr="day")
    run(upstream, downstream, selection=[downstream])
    assert read == ["a"]


@pytest.mark.minutes
@pytest.mark.parametrize("declared", [BY_DAY, BY_LETTER, BY_BOTH])
def test_an_op_of_a_job_reads_the_whole_table(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    tmp_path: Path,
    declared: dict[str, Any],
) -> None:
    spark.createDataFrame([*ROWS, (None, None)], "day STRING, letter STRING").write.format(
        "delta"
    ).save(str(tmp_path / "tables" / "upstream"))
    read: list[str] = []

    @op
    def reader(upstream: DataFrame) -> None:
        read.extend(sorted(str(row.letter) for row in upstream.collect()))

    upstream = upstream_of(**declared)

    @job(resource_defs=resources, partitions_def=declared["partitions_def"])
    def reads() -> None:
        reader(upstream.to_source_asset())

    key = declared["partitions_def"].get_partition_keys()[0]
    for partition in (None, key):
        read.clear()
        reads.execute_in_process(instance=instance, partition_key=partition)
        assert read == ["None", "a", "b", "c", "z"]
