"""Locations with credentials, and empty ones, are refused wherever one enters."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from dagster import AssetSelection, EnvVar, StaticPartitionsDefinition, materialize
from dagster._core.errors import DagsterResourceFunctionError
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import deltaweave
from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_partition_sensor,
    build_table_sensor,
    cdc_asset,
    merge_asset,
    merge_on_read_asset,
    read_source_partition,
)
from dagster_deltaweave.components.table_component import PathSource
from dagster_deltaweave.logs.delta_log import LogReader
from dagster_deltaweave.tables import table_location
from deltaweave import MergeOnReadTable, Table
from deltaweave._validation import refuse_credentials
from deltaweave.cli import app
from deltaweave.errors import StatementError

LEAKY = "s3://AKIA7:hush/hush@lake/orders"
MERGE = f"MERGE INTO delta.`{LEAKY}` t USING s ON t.k = s.k WHEN MATCHED THEN DELETE"


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://AKIA7:hush@lake/orders", "s3://…@lake/orders"),
        ("s3a://AKIA7:hush%2Fhush@lake/orders", "s3a://…@lake/orders"),
        ("s3://AKIA7:hush/hush@lake/orders", "s3://…@lake/orders"),  # a slash in the secret
        ("s3://AKIA7:123/hush@lake/orders", "s3://…@lake/orders"),  # which looks like a port
        ("s3://AKIA7@lake/orders", "s3://…@lake/orders"),
        ("s3://AKIA7:hush/lake", "s3://…"),
        (Path("s3://AKIA7:hush@lake/orders"), "s3:/…@lake/orders"),
        ("abfss://box:hush@account.dfs.core.windows.net/orders", "abfss://…@account.dfs"),
        ("https://user:hush@host:443/orders", "https://…@host:443/orders"),
        ("file://user:hush@host/orders", "file://…@host/orders"),
        ("delta.`s3://AKIA7:hush@lake/orders`", "s3://…@lake/orders"),
        (MERGE, "s3://…@lake/orders"),
        ("abfss://box@account.dfs.core.windows.net/o?sig=hush", "abfss://…@account"),
        ("s3://lake/orders?region=x&secret_key=hush", "s3://lake/orders?…"),
        ("https://host/o?X-Amz-Signature=hush", "https://host/o?…"),
        ("s3://lake/o?endpoint_override=http%3A%2F%2Fme:hush%40host", "s3://lake/o?…"),
    ],
)
def test_credentials_are_refused_and_not_repeated(location: str | Path, shown: str) -> None:
    with pytest.raises(StatementError) as refused:
        refuse_credentials(location)

    told = f"{refused.value} {vars(refused.value)!r}"
    assert shown in told
    assert "hush" not in told
    assert "AKIA7" not in told


@pytest.mark.parametrize(
    "location",
    [
        "/lake/me:x@host/orders?key=1",
        "file:/lake/me:x@host/orders",
        "file:///lake/me:x@host/orders",
        "abfss://box@account.dfs.core.windows.net/orders",
        "hdfs://name-node:8020/user/me@example/orders",
        "hdfs:/user/me@example/orders",
        "s3://lake/me@example/orders?region=eu-1&scheme=http&endpoint_override=localhost:9000",
        "sales.orders",
        "delta.`/lake/orders`",
        "relative/orders",
    ],
)
def test_other_locations_are_taken_as_they_are(location: str) -> None:
    refuse_credentials(location)


PARTITIONS = StaticPartitionsDefinition(["a"])


def _merge(at: str) -> None:
    @merge_asset(keys=["k"], table=at)
    def orders() -> None: ...


def _merge_text(at: str) -> None:
    @merge_asset(merge_text=f"{{target}} {{source}} {MERGE.replace(LEAKY, at)}")
    def orders() -> None: ...


def _write(at: str) -> None:
    table_location({"deltaweave/table": at}, asset="orders")


def _merge_on_read(at: str) -> None:
    @merge_on_read_asset(keys=["k"], sequence_by="n", table=at)
    def orders() -> None: ...


def _cdc(at: str) -> None:
    @cdc_asset(keys=["k"], sequence_by="n", table=at)
    def orders() -> None: ...


def _put_aside(at: str) -> None:
    @cdc_asset(keys=["k"], sequence_by="n", rescued=at)
    def orders() -> None: ...


def _put_aside_from_a_stream(at: str) -> None:
    @merge_on_read_asset(keys=["k"], sequence_by="n", rescued=at)
    def orders() -> None: ...


OF_DEFINITIONS: list[Callable[[str], object]] = [
    lambda at: SparkDeltaIOManager(root=at, spark=SparkResource()),
    _merge,
    _write,
    _cdc,
    _put_aside,
    _put_aside_from_a_stream,
    lambda at: build_partition_sensor(
        name="s", target=AssetSelection.all(), directory=at, partitions_def=PARTITIONS
    ),
    lambda at: build_table_sensor(name="s", target=AssetSelection.all(), table=at),
    lambda at: PathSource(path=at),
]


@pytest.mark.parametrize("enters", [*OF_DEFINITIONS, _merge_text, _merge_on_read, LogReader])
def test_definitions_with_credentials_in_locations_do_not_load(
    enters: Callable[[str], object],
) -> None:
    with pytest.raises(StatementError) as refused:
        enters(LEAKY)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("enters", OF_DEFINITIONS)
@pytest.mark.parametrize("location", ["", " "])
def test_definitions_with_empty_locations_do_not_load(
    enters: Callable[[str], object], location: str
) -> None:
    with pytest.raises(StatementError, match="a location is empty"):
        enters(location)


@pytest.mark.parametrize(
    "enters",
    [
        lambda spark: Table(spark, LEAKY),
        lambda spark: deltaweave.merge(spark, MERGE),
        lambda spark: deltaweave.explain(spark, MERGE),
        lambda spark: MergeOnReadTable(
            spark, "/lake/orders", changes=LEAKY, keys=["k"], sequence_by="n"
        ),
        lambda spark: deltaweave.apply_changes(
            spark, LEAKY, spark.range(1), keys=["id"], sequence_by="id"
        ),
        lambda spark: read_source_partition(spark, LEAKY, schema="k INT", table="orders"),
    ],
)
def test_the_engine_refuses_them_before_spark_sees_them(
    spark: SparkSession, enters: Callable[[SparkSession], object]
) -> None:
    with pytest.raises(StatementError) as refused:
        enters(spark)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("root", [LEAKY, ""])
def test_a_root_from_the_environment_is_refused_when_the_run_reads_it(
    monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    monkeypatch.setenv("LAKE", root)
    tables = SparkDeltaIOManager(root=EnvVar("LAKE"), spark=SparkResource())

    @merge_asset(keys=["k"])
    def orders() -> None: ...

    with pytest.raises(DagsterResourceFunctionError) as failed:
        materialize([orders], resources={"io_manager": tables})
    assert isinstance(failed.value.__cause__, StatementError)
    assert "hush" not in "".join(traceback.format_exception(failed.value))


def test_the_command_line_does_not_repeat_them() -> None:
    told = CliRunner().invoke(app, ["explain", MERGE])

    assert told.exit_code == 1
    assert "holds credentials" in told.output
    assert "hush" not in told.output
