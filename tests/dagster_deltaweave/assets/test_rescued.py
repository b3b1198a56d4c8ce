"""Events that cannot be applied are counted in Dagster, and fail a check until they are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    Definitions,
    ExecuteInProcessResult,
    MetadataValue,
    materialize,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dagster_deltaweave import (
    build_rescued_events_check,
    build_stream_job,
    cdc_asset,
    merge_on_read_asset,
)
from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.io_manager import change_events
from deltaweave import Table
from tests.dagster_deltaweave.conftest import eventually

SCHEMA = "id INT, pieces INT, version INT"
EVENTS: dict[str, Any] = {"keys": ["id"], "sequence_by": "version"}
GOOD, WRONG = (1, 10, 1), (None, 20, 2)


def cdc(function: Callable[[], DataFrame], **more: Any) -> list[AssetsDefinition]:
    return [cdc_asset(name="orders", **EVENTS, **more)(function)]


def merge_on_read(function: Callable[[], DataFrame], **more: Any) -> list[AssetsDefinition]:
    return list(merge_on_read_asset(name="orders", **EVENTS, **more)(function))


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("declare", "of_table"),
    [(cdc, "orders_rescued"), (merge_on_read, "orders_base_rescued")],
    ids=["cdc_asset", "merge_on_read_asset"],
)
def test_events_that_cannot_be_applied_are_counted_and_checked(
    spark: SparkSession,
    resources: dict[str, Any],
    instance: DagsterInstance,
    table: Callable[[str], Table],
    declare: Callable[..., list[AssetsDefinition]],
    of_table: str,
) -> None:
    batches: Iterator[list[Any]] = iter([[GOOD], [GOOD, WRONG], [GOOD]])
    absent = F.struct(
        *[F.lit(None).cast("string").alias(name) for name in ("place", "problem", "event")],
        F.array(F.lit("pieces")).alias("absent"),
    )

    def changes() -> DataFrame:
        return spark.createDataFrame(next(batches), SCHEMA).withColumn("message", absent)

    assets = declare(changes, rescued=True, message_column="message")
    check = build_rescued_events_check(assets[0])

    def run() -> tuple[int, bool]:
        result: ExecuteInProcessResult = materialize(
            [assets[0], check], resources=resources, instance=instance
        )
        [made] = result.asset_materializations_for_node(assets[0].op.name)
        [checked] = result.get_asset_check_evaluations()
        count = made.metadata["changes/rescued_events"].value
        warnings = made.metadata["deltaweave/warnings"].value
        assert "no message of the batch has the column pieces" in str(warnings)
        assert checked.metadata["changes/rescued_events"].value == count
        if count:
            assert "a null in its key id" in str(checked.metadata["check/sample"].value)
        return count, checked.passed  # type: ignore[return-value]

    assert [run(), run()] == [(0, True), (1, False)]
    spark.sql(f"DELETE FROM delta.`{table(of_table).path_or_name}`")
    assert run() == (0, True)


@pytest.mark.minutes
def test_an_endless_stream_counts_events_of_batches_that_append_nothing(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    landing = str(tmp_path / "landing")

    def land(row: tuple[Any, ...]) -> None:
        spark.createDataFrame([row], SCHEMA).coalesce(1).write.mode("append").json(landing)

    land(GOOD)
    stream = merge_on_read_asset(name="orders", **EVENTS, rescued=True)(
        lambda: spark.readStream.schema(SCHEMA).json(landing)
    )
    job = build_stream_job(
        name="stream", tables=stream, every="1 second", observe_every=timedelta(0)
    )
    run = Definitions(assets=[*stream], jobs=[job], resources=resources).resolve_job_def("stream")

    def reported(key: AssetKey) -> tuple[str | None, Any]:
        event = instance.get_latest_materialization_event(key)
        made = event.asset_materialization if event else None
        if made is None:
            return None, None
        waiting = made.metadata["changes/rescued_events"].value
        return (made.tags or {}).get(DATA_VERSION_TAG), waiting

    def has_ended() -> bool:
        for query in spark.streams.active:
            query.stop()
        return running.done()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run.execute_in_process, instance=instance)
        try:
            for expected in (("1", 0), ("1", 1)):
                now = expected
                eventually(lambda now=now: running.done() or reported(stream.changes.key) == now)
                assert not running.done()
                land(WRONG)
            assert reported(stream.view.key) == ("1", 0)  # nothing changed for its readers
        finally:
            eventually(has_ended)


def test_a_count_that_cannot_be_read_now_is_no_other_one() -> None:
    reported = change_events.Reported(1, 2)
    assert reported.with_batch(1, {}) == reported
    counted = {change_events.RESCUED_EVENTS: MetadataValue.int(3)}
    assert reported.with_batch(1, counted) == change_events.Reported(1, 3)


@pytest.mark.parametrize("declare", [cdc, merge_on_read])
def test_a_check_of_an_asset_that_puts_nothing_aside_is_refused(
    declare: Callable[..., list[AssetsDefinition]],
) -> None:
    [asset, *_] = declare(lambda: None)
    with pytest.raises(DagsterInvalidDefinitionError, match="declare it with rescued="):
        build_rescued_events_check(asset)
