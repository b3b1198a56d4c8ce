from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, Definitions, ExecuteInProcessResult
from pyspark.sql import SparkSession

from deltaweave import Table
from tests.dagster_deltaweave.conftest import failure_messages, rows
from tests.deployment.deployed import deployed, land_rows, partition_path, web_return

pytestmark = pytest.mark.minutes

BAD = "2000-02"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def defs(lake: Path, spark: SparkSession) -> Iterator[Definitions]:
    with deployed(lake, spark) as definitions:
        yield definitions


class Deployment:
    def __init__(
        self, spark: SparkSession, lake: Path, defs: Definitions, instance: DagsterInstance
    ) -> None:
        self.spark, self.lake, self.instance = spark, lake, instance
        self.job = defs.resolve_job_def("merge_web_returns")
        self.table = Table(spark, str(lake / "tables" / "web_returns"))

    def merge(self, partition: str) -> ExecuteInProcessResult:
        self.instance.add_dynamic_partitions("web_returns_partitions", [partition])
        return self.job.execute_in_process(
            instance=self.instance, partition_key=partition, raise_on_error=False
        )

    def fails_on_bad_partition(self) -> str:
        """Merge the bad partition: it must fail and commit nothing; the failure's messages."""
        before = self.table.version(), rows(self.table)
        result = self.merge(BAD)
        assert not result.success
        assert (self.table.version(), rows(self.table)) == before
        assert [each.step_key for each in result.all_events if each.is_step_failure] == [
            "web_returns"
        ]
        assert not result.asset_materializations_for_node("web_returns")
        return failure_messages(result)


@pytest.fixture
def deployment(
    spark: SparkSession, lake: Path, defs: Definitions, instance: DagsterInstance
) -> Deployment:
    """The deployment after one good partition."""
    land_rows(spark, lake, "2000-01", [web_return(1, 1), web_return(2, 1)])
    deployment = Deployment(spark, lake, defs, instance)
    assert deployment.merge("2000-01").success
    return deployment


def assert_names_partition_table_and_operation(message: str, lake: Path) -> None:
    assert "SourceError: MERGE into web_returns failed" in message
    assert f"the source partition {partition_path(lake, BAD)} " in message
    assert "Nothing was committed: the table is as it was." in message


def test_an_unreadable_partition(deployment: Deployment, lake: Path) -> None:
    directory = partition_path(lake, BAD)
    directory.mkdir()
    (directory / "part-0.parquet").write_bytes(b"not Parquet at all, but long enough")

    message = deployment.fails_on_bad_partition()

    assert_names_partition_table_and_operation(message, lake)
    assert "cannot be read" in message


def test_a_partition_that_is_not_there(deployment: Deployment, lake: Path) -> None:
    message = deployment.fails_on_bad_partition()

    assert_names_partition_table_and_operation(message, lake)
    assert "cannot be read" in message


def test_an_empty_partition(deployment: Deployment, lake: Path) -> None:
    partition_path(lake, BAD).mkdir()

    message = deployment.fails_on_bad_partition()

    assert_names_partition_table_and_operation(message, lake)
    assert "holds no file" in message


def test_a_partition_whose_schema_is_wrong(
    deployment: Deployment, lake: Path, spark: SparkSession
) -> None:
    schema = "wr_order_number INT, wr_item_sk INT, wr_reason_sk INT, op STRING, note STRING"
    land_rows(spark, lake, BAD, [web_return(1, 1)], schema=schema)

    message = deployment.fails_on_bad_partition()

    assert_names_partition_table_and_operation(message, lake)
    assert "column wr_order_number is int, not bigint" in message
    assert "column wr_return_quantity int is missing" in message
    assert "column note string is unexpected" in message


def test_a_column_missing_from_one_file_of_several(
    deployment: Deployment, lake: Path, spark: SparkSession
) -> None:
    from assets.web_returns import SCHEMA

    land_rows(spark, lake, BAD, [web_return(1, 1)])
    land_rows(spark, lake, BAD, [web_return(2, 1)], schema=SCHEMA)

    message = deployment.fails_on_bad_partition()

    assert_names_partition_table_and_operation(message, lake)
    assert "column op string is missing" in message


def test_a_file_whose_data_is_damaged_behind_a_good_footer(
    deployment: Deployment, lake: Path, spark: SparkSession
) -> None:
    directory = land_rows(spark, lake, BAD, [web_return(n, 1) for n in range(200)])
    [file] = directory.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:400] = b"\xff" * 396
    # Under a new name: Spark's checksum file speaks for the old one.
    file.unlink()
    (directory / "damaged.parquet").write_bytes(content)

    message = deployment.fails_on_bad_partition()

    assert "MERGE into" in message
    assert f"{BAD}/damaged.parquet" in message


def test_an_ambiguous_source(deployment: Deployment, lake: Path, spark: SparkSession) -> None:
    twice = [web_return(1, 1, quantity=5), web_return(1, 1, quantity=6)]
    land_rows(spark, lake, BAD, twice)

    message = deployment.fails_on_bad_partition()

    assert "AmbiguousMatchError: MERGE into" in message
    assert str(deployment.table.path_or_name) in message
    assert "wr_order_number" in message


def test_the_partition_merges_once_it_is_landed_well(
    deployment: Deployment, lake: Path, spark: SparkSession
) -> None:
    land_rows(spark, lake, BAD, [web_return(3, 1)], schema="wr_order_number BIGINT, op STRING")
    deployment.fails_on_bad_partition()
    shutil.rmtree(partition_path(lake, BAD))
    land_rows(spark, lake, BAD, [web_return(3, 1)])

    assert deployment.merge(BAD).success
    assert deployment.table.row_count() == 3
