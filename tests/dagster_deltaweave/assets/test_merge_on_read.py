"""A merge-on-read table as three assets: appended once, merged later, read as one meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetIn,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AutomationCondition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    Definitions,
    ExecuteInProcessResult,
    asset,
    evaluate_automation_conditions,
    load_assets_from_modules,
    materialize,
    mem_io_manager,
)
from dagster._core.storage.tags import PARENT_RUN_ID_TAG
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dagster_deltaweave import (
    MergeOnReadAssets,
    RematerializationPolicy,
    build_pending_changes_check,
    build_stream_job,
    build_upkeep_job,
    merge_on_read_asset,
)
from dagster_deltaweave.dagster_private import DATA_VERSION_TAG
from dagster_deltaweave.io_manager import change_events
from dagster_deltaweave.io_manager.change_events import StreamRun, run_stream
from deltaweave import MergeOnReadTable, Table
from deltaweave.errors import CommitConflictError
from tests.dagster_deltaweave.conftest import Run, eventually, failure_messages

Event = tuple[int, int, int, str]
SCHEMA = "id INT, pieces INT, version INT, op STRING"
NO_TABLES = {"io_manager": mem_io_manager}


def orders_from(function: Callable[[], Any], **arguments: Any) -> MergeOnReadAssets:
    return merge_on_read_asset(
        name="orders",
        keys=["id"],
        sequence_by="version",
        apply_as_deletes="op = 'd'",
        except_column_list=["version", "op"],
        **arguments,
    )(function)


def values(result: ExecuteInProcessResult, node: str) -> dict[str, Any]:
    """The metadata of an asset's materialization, as plain values."""
    made = result.asset_materializations_for_node(node)
    [materialization] = [each for each in made if each.asset_key.path[-1] == node]
    return {key: entry.value for key, entry in materialization.metadata.items()}


def seen_by(downstream: list[list[tuple[Any, ...]]]) -> AssetsDefinition:
    """An asset that reads the view as its input, and notes what it sees."""

    @asset
    def report(orders: DataFrame) -> None:
        downstream.append(sorted(map(tuple, orders.collect())))

    return report


@pytest.mark.minutes
def test_a_stream_is_appended_once_and_read_with_its_base(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    """The rows are the same before the changes are merged and after."""
    landing = tmp_path / "landing"

    def land(*events: Event) -> None:
        rows = spark.createDataFrame(events, SCHEMA)
        rows.coalesce(1).write.mode("append").json(str(landing))

    orders = orders_from(lambda: spark.readStream.schema(SCHEMA).json(str(landing)))
    seen: list[list[tuple[Any, ...]]] = []
    report = seen_by(seen)

    land((1, 10, 1, "u"), (2, 20, 1, "u"))
    first = run(*orders, report)  # appended, merged, looked at
    land((1, 11, 2, "u"), (2, 0, 2, "d"), (3, 30, 2, "u"))
    second = run(orders.changes)
    again = run(orders.changes)  # nothing new
    run(*orders, report, selection=[report])
    base = run(*orders, report, selection=[orders.base, orders.view, report])

    merged = [(1, 11), (3, 30)]
    assert seen == [[(1, 10), (2, 20)], merged, merged]
    appended = [values(each, "orders_changes") for each in (first, second, again)]
    assert [each["changes/appended_rows"] for each in appended] == [2, 3, 0]
    assert [each["changes/pending_rows"] for each in appended] == [2, 3, 3]
    assert values(first, "orders_base")["rematerialize/strategy"] == "overwrite"
    view = values(base, "orders")
    assert (view["changes/pending_rows"], view["changes/newest_batch"]) == (0, 2)
    assert view["changes/read_amplification"] == 1
    assert values(base, "orders_base")["dagster/row_count"] == 2


@pytest.mark.minutes
def test_a_running_stream_reports_each_batch_and_stops_with_its_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing, table = (
        tmp_path / "landing",
        MergeOnReadTable(spark, str(tmp_path / "orders"), keys=["id"], sequence_by="version"),
    )

    def land(*events: Event) -> None:
        spark.createDataFrame(events, SCHEMA).coalesce(1).write.mode("append").json(str(landing))

    def query() -> StreamingQuery:
        stream = spark.readStream.schema(SCHEMA).json(str(landing))
        checkpoint = str(tmp_path / "checkpoint")
        return table.ingest(stream, name="orders", checkpoint=checkpoint, every="1 second")

    class Terminated(BaseException):
        pass

    told: list[tuple[Any, Any]] = []

    def observe(progress: Mapping[str, Any], is_last: bool) -> None:
        if not progress["stream/rows"]:
            return
        assert progress["stream/freshness_seconds"] >= 0
        told.append((progress["stream/batch"], progress["stream/rows"]))
        if len(told) == 2:
            raise Terminated
        land((2, 20, 1, "u"), (3, 30, 1, "u"))

    land((1, 10, 1, "u"))
    running = query()
    with pytest.raises(Terminated):
        run_stream(running, StreamRun(observe_seconds=0), observe, table="orders")
    assert not running.isActive
    assert told == [(0, 1), (1, 2)]
    run_stream(query(), StreamRun(run_seconds=0), lambda *_: None, table="orders")
    assert table.read().count() == 3
    assert table.pending().rows == 3


@pytest.mark.minutes
def test_a_job_keeps_a_stream_running_for_its_time_and_observes_it(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    landing = str(tmp_path / "landing")
    spark.createDataFrame([(1, 10, 1, "u")], SCHEMA).write.json(landing)
    orders = orders_from(lambda: spark.readStream.schema(SCHEMA).json(landing))
    job = build_stream_job(
        name="stream", tables=orders, every="1 second", run_for=timedelta(seconds=1)
    )
    defs = Definitions(assets=[*orders], jobs=[job], resources=resources)
    result = defs.resolve_job_def("stream").execute_in_process(instance=instance)

    assert values(result, "orders_changes")["changes/appended_rows"] == 1
    [record, *_] = instance.fetch_observations(AssetKey("orders_changes"), limit=5).records
    assert record.asset_observation is not None
    observed = {key: entry.value for key, entry in record.asset_observation.metadata.items()}
    assert (observed["stream/batch"], observed["stream/rows"]) == (0, 1)
    assert observed["changes/pending_rows"] == 1
    assert observed["stream/rows_per_second"] > 0
    assert observed["stream/processed_rows_per_second"] > 0


@pytest.mark.minutes
def test_what_depends_on_a_stream_runs_while_the_stream_runs_without_end(
    spark: SparkSession, resources: dict[str, Any], instance: DagsterInstance, tmp_path: Path
) -> None:
    landing = str(tmp_path / "landing")

    def land(*events: Event) -> None:
        spark.createDataFrame(events, SCHEMA).coalesce(1).write.mode("append").json(landing)

    land((1, 10, 1, "u"))
    orders = orders_from(lambda: spark.readStream.schema(SCHEMA).json(landing))

    @asset(deps=[orders.view], automation_condition=AutomationCondition.eager())
    def of_view() -> None: ...

    @asset(deps=[orders.changes], automation_condition=AutomationCondition.eager())
    def of_changes() -> None: ...

    job = build_stream_job(
        name="stream", tables=orders, every="1 second", observe_every=timedelta(0)
    )
    defs = Definitions(assets=[*orders, of_view, of_changes], jobs=[job], resources=resources)
    stream = defs.resolve_job_def("stream")
    evaluated = evaluate_automation_conditions(defs, instance)
    assert evaluated.total_requested == 0

    def versions() -> set[str | None]:
        events = map(
            instance.get_latest_materialization_event, [orders.view.key, orders.changes.key]
        )
        made = [event and event.asset_materialization for event in events]
        return {((each and each.tags) or {}).get(DATA_VERSION_TAG) for each in made}

    def has_ended() -> bool:
        for query in spark.streams.active:
            query.stop()
        return running.done()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stream.execute_in_process, instance=instance)
        try:
            for batch in (1, 2):
                eventually(lambda number=str(batch): running.done() or versions() == {number})
                assert not running.done()
                evaluated = evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
                requested = {of_view.key, of_changes.key}
                found = {key for key in requested if evaluated.get_num_requested(key)}
                assert found == requested, batch
                # What a tick requests, the next one counts as handled.
                evaluated = evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
                land((batch, 20, 2, "u"))
        finally:
            eventually(has_ended)
    assert running.result().success


@pytest.mark.minutes
def test_a_retried_run_appends_nothing_twice_and_a_new_run_appends(
    spark: SparkSession,
    run: Run,
    table: Callable[[str], Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = orders_from(lambda: spark.createDataFrame([(1, 10, 1, "u")], SCHEMA))

    append = MergeOnReadTable.append

    def dies(*args: Any, **kwargs: Any) -> None:
        append(*args, **kwargs)
        raise RuntimeError("the machine went away")

    with monkeypatch.context() as patch:  # after the commit, before the run knows of it
        patch.setattr(MergeOnReadTable, "append", dies)
        failed = run(orders.changes, raise_on_error=False)
    assert not failed.success
    tried_again = run(orders.changes, tags={PARENT_RUN_ID_TAG: failed.run_id})
    executed_again = run(orders.changes, tags={PARENT_RUN_ID_TAG: tried_again.run_id})

    appended = [values(each, "orders_changes") for each in (tried_again, executed_again)]
    assert [each["changes/appended_batches"] for each in appended] == [0, 1]
    assert table("orders_changes").row_count() == 2


@pytest.mark.minutes
def test_a_batch_that_is_no_better_than_nothing_makes_no_table(
    spark: SparkSession, run: Run, table: Callable[[str], Table]
) -> None:
    batches: list[list[Event]] = [[], [(1, 10, 1, "u")]]
    orders = orders_from(lambda: spark.createDataFrame(batches.pop(0), SCHEMA))
    first = run(*orders)
    assert not table("orders_base").exists()
    assert "dagster/row_count" not in values(first, "orders_changes")
    assert values(run(*orders), "orders")["changes/newest_batch"] == 1


@pytest.mark.minutes
def test_bad_events_fail_the_run_and_a_stream_says_why(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    bad = spark.createDataFrame([(1, 10, None, "u")], SCHEMA)
    bad.coalesce(1).write.json(str(tmp_path / "landing"))
    stream = orders_from(lambda: spark.readStream.schema(SCHEMA).json(str(tmp_path / "landing")))
    for orders in (orders_from(lambda: bad), stream):
        result = run(orders.changes, raise_on_error=False)
        assert "no sequence" in failure_messages(result)
        assert re.search(
            r"(reading changes|ingesting) of \S+orders_changes", failure_messages(result)
        )


@pytest.mark.minutes
def test_a_rematerialization_that_meets_a_conflict_is_tried_again(
    spark: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = orders_from(lambda: spark.createDataFrame([(1, 10, 1, "u")], SCHEMA))
    run(orders.changes)
    rematerialize, attempts = MergeOnReadTable.rematerialize, [0]

    def conflicts_once(table: MergeOnReadTable, strategy: Any) -> Any:
        attempts[0] += 1
        if attempts[0] == 1:
            raise CommitConflictError("another one was first.")
        return rematerialize(table, strategy)

    monkeypatch.setattr(MergeOnReadTable, "rematerialize", conflicts_once)
    monkeypatch.setattr("dagster_deltaweave.io_manager.step_attempts.SECONDS_BEFORE_RETRY", 0)
    result = run(*orders, selection=[orders.base])
    assert attempts == [2]
    assert values(result, "orders_base")["dagster/row_count"] == 1


@pytest.mark.parametrize(
    "broken", ["purge", "table_metadata", "observe_pending", "merged_batch", "keep_view_fresh"]
)
def test_nothing_that_fails_after_a_rematerialization_fails_its_run(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """A step tried again would find nothing left to merge."""

    def or_breaks(name: str, value: Any = None) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if name == broken:
                raise CommitConflictError("the log went away.")  # a step is retried after it
            return value

        return call

    committed: list[str] = []
    table = SimpleNamespace(
        base=SimpleNamespace(exists=lambda: True),
        spark=None,
        rematerialize=lambda strategy: (
            committed.append(strategy) or SimpleNamespace(version=3, strategy="merge")
        ),
        purge=or_breaks("purge", 1),
        merged_batch=or_breaks("merged_batch", 2),
    )
    module = "dagster_deltaweave.assets.change_events"
    for name in ("run_locator", "merge_on_read_locations", "keep_view_fresh"):
        monkeypatch.setattr(f"{module}.{name}", or_breaks(name))
    for name in ("table_metadata", "observe_pending"):
        monkeypatch.setattr(f"{module}.{name}", or_breaks(name, {name: 1}))
    monkeypatch.setattr(f"{module}.open_merge_on_read", lambda *_: table)
    monkeypatch.setattr(f"{module}.tag_commits_with_run", lambda *_: nullcontext())

    orders = orders_from(lambda: None)
    result = materialize([*orders], selection=[orders.base], instance=instance, resources=NO_TABLES)

    assert committed == ["auto"]
    found = values(result, "orders_base")
    assert "the log went away" in found.pop("deltaweave/warnings")
    of_each = {
        "purge": "rematerialize/purged_batch",
        "table_metadata": "table_metadata",
        "observe_pending": "observe_pending",
    }
    expected = {each for name, each in of_each.items() if name != broken}
    assert found.keys() == {*expected, "rematerialize/strategy", "rematerialize/version"}
    [made] = result.asset_materializations_for_node("orders_base")
    version = (made.tags or {}).get(DATA_VERSION_TAG)
    assert (version == "2") == (broken != "merged_batch")


def test_an_observation_that_fails_does_not_end_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches are appended; the next observation has what this one left out."""
    newest, recorded, warned = iter([CommitConflictError("the log went away."), 1, 2]), [], []
    waits = iter([False, False, True])

    def newest_batch() -> int:
        number = next(newest)
        if isinstance(number, Exception):
            raise number
        return number

    progress = SimpleNamespace(
        batchId=0, numInputRows=1, timestamp="2026-01-01T00:00:00.000Z", processedRowsPerSecond=1.0
    )
    query = SimpleNamespace(
        awaitTermination=lambda _: next(waits),
        recentProgress=[progress],
        status={"message": "Waiting", "isTriggerActive": False},
        stop=lambda: None,
    )
    table = SimpleNamespace(
        base=None, warnings=(), ingest=lambda *_, **__: query, newest_batch=newest_batch
    )
    for name in ("pending_metadata", "rescued_metadata"):
        monkeypatch.setattr(change_events, name, lambda *_: {})
    monkeypatch.setattr(change_events, "last_report", lambda *_: change_events.Reported(None, 0))
    context: Any = SimpleNamespace(
        log=SimpleNamespace(warning=warned.append), log_event=recorded.append
    )
    orders = orders_from(lambda: None)
    change_events.append_stream(
        context,
        orders.declaration,
        cast("Any", table),
        cast("Any", SimpleNamespace(checkpoint="", changes="orders_changes")),
        cast("Any", None),
        StreamRun(observe_seconds=0),
    )
    assert [str(each) for each in warned if "the log went away" in each] == warned
    assert len(warned) == 1
    made = [each.asset_key for each in recorded if isinstance(each, AssetMaterialization)]
    assert made == [orders.changes.key, orders.view.key]


@pytest.mark.minutes
def test_an_input_is_the_rows_of_some_keys_or_the_base_or_the_events(
    spark: SparkSession, run: Run
) -> None:
    batches: list[list[Event]] = [
        [(1, 10, 1, "u"), (2, 20, 1, "u")],
        [(2, 21, 2, "u"), (3, 30, 2, "u")],
    ]
    orders = orders_from(lambda: spark.createDataFrame(batches.pop(0), SCHEMA))
    found: dict[str, Any] = {}

    @asset(ins={"orders": AssetIn(metadata={"deltaweave/where": "id <= 2"})})
    def report(orders: DataFrame, orders_base: DataFrame, orders_changes: DataFrame) -> None:
        found["where"] = sorted(map(tuple, orders.collect()))
        found["base"] = sorted(map(tuple, orders_base.collect()))
        found["events"] = orders_changes.count()

    run(*orders)
    run(orders.changes)
    run(*orders, report, selection=[report])
    assert found == {"where": [(1, 10), (2, 21)], "base": [(1, 10), (2, 20)], "events": 4}

    @asset(ins={"orders": AssetIn(metadata={"deltaweave/read": "changes"})})
    def changed(orders: DataFrame) -> None: ...

    result = run(*orders, changed, selection=[changed], raise_on_error=False)
    assert "Read its changes: orders_changes is an asset too." in failure_messages(result)


@pytest.mark.minutes
def test_pending_changes_are_checked_and_observed_until_they_are_merged(
    spark: SparkSession, run: Run, instance: DagsterInstance
) -> None:
    """Merging them makes nothing downstream stale."""
    orders = orders_from(lambda: spark.createDataFrame([(1, 10, 1, "u")], SCHEMA))
    check = build_pending_changes_check(
        orders,
        policy=RematerializationPolicy(rows=2, fraction_of_base=None),
        severity=AssetCheckSeverity.ERROR,
    )
    found = []
    for steps in ([orders.changes], [orders.changes], [orders.base]):
        result = run(*orders, check, selection=[*steps, orders.view, check])
        [evaluation] = result.get_asset_check_evaluations()
        event = instance.get_latest_materialization_event(AssetKey("orders"))
        assert event is not None
        assert isinstance(event.asset_materialization, AssetMaterialization)
        version = (event.asset_materialization.tags or {})["dagster/data_version"]
        found.append((evaluation.passed, evaluation.description, version))

    assert found == [
        (True, "1 row is pending, which is allowed.", "1"),
        (False, "2 rows are pending, the limit is 2.", "2"),
        (True, "0 rows are pending, which is allowed.", "2"),
    ]
    observations = instance.fetch_observations(AssetKey("orders"), limit=10).records
    pending = [
        each.asset_observation.metadata["changes/pending_rows"].value
        for each in observations
        if each.asset_observation
    ]
    assert pending == [0, 2, 1]  # the newest first


def test_upkeep_keeps_the_base_in_turn_with_its_merges() -> None:
    orders = orders_from(lambda: None)
    job = build_upkeep_job(name="upkeep", tables=[orders.base], operations=["optimize"])
    assert job.get_node_named("optimize_orders_base").definition.pools == {"merge/orders_base"}


def test_the_three_assets_have_their_lineage_pools_and_owners() -> None:
    eager = AutomationCondition.eager()
    nightly = AutomationCondition.on_cron("0 1 * * *")

    @asset
    def raw() -> None: ...

    @merge_on_read_asset(
        keys=["id"],
        sequence_by="version",
        key_prefix=["shop"],
        group_name="sales",
        owners=["team:sales"],
        tags={"tier": "gold"},
        deps=[raw],
        automation_condition=eager,
        base_automation_condition=nightly,
        view_automation_condition=eager,
    )
    def orders() -> None:
        """Orders as of now."""

    defs = Definitions(assets=[raw, *orders])
    graph = defs.resolve_asset_graph()
    changes, base, view = (AssetKey(["shop", f"orders{end}"]) for end in ("_changes", "_base", ""))
    assert graph.get(changes).parent_keys == {AssetKey("raw")}
    assert graph.get(base).parent_keys == {changes}
    assert graph.get(view).parent_keys == {changes, base}
    nodes = [graph.get(key) for key in (changes, base, view)]
    assert [node.pools for node in nodes] == [
        {"merge/shop/orders_changes"},
        {"merge/shop/orders_base"},
        set(),
    ]
    for node in nodes:
        assert (node.group_name, node.owners) == ("sales", ["team:sales"])
        assert node.tags["tier"] == "gold"
    assert [node.automation_condition for node in nodes] == [eager, nightly, eager]
    assert graph.get(view).description == "Orders as of now."

    module = type(sys)("module_of_assets")
    module.orders = orders  # type: ignore[attr-defined]
    loaded = {each.key for each in load_assets_from_modules([module])}  # type: ignore[union-attr]
    assert loaded == {changes, base, view}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"keys": "id"}, "keys is a list"),
        ({"strategy": "swap"}, "known are merge, overwrite, replace_where, auto"),
        ({"table": "sales.orders"}, "'sales.orders' is not a path"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(
    arguments: dict[str, Any], problem: str
) -> None:
    declared = merge_on_read_asset(**{"keys": ["id"], "sequence_by": "version", **arguments})
    with pytest.raises(DagsterInvalidDefinitionError, match=problem):
        declared(lambda: None)


DEFINED = """
import sys
from datetime import timedelta
from dagster import Definitions
from dagster_deltaweave import *

@merge_on_read_asset(keys=["id"], sequence_by="version")
def orders(): ...

defs = Definitions(
    assets=[*orders],
    asset_checks=[build_pending_changes_check(orders)],
    jobs=[build_stream_job(name="stream", tables=orders, run_for=timedelta(hours=8))],
    sensors=[build_rematerialization_sensor(name="due", tables=[orders])],
    schedules=[
        build_rematerialization_schedule(name="night", tables=[orders], cron_schedule="0 1 * * *")
    ],
    resources={"io_manager": SparkDeltaIOManager(root="/lake", spark=SparkResource())},
)
defs.get_repository_def().get_all_jobs()
from pyspark import SparkContext
assert SparkContext._gateway is None, "a JVM was started"
heavy = {"pandas", "pyarrow", "numpy", "delta", "deltalake"} & set(sys.modules)
assert not heavy, heavy
"""


def test_definitions_start_no_jvm_and_import_nothing_heavy() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", DEFINED], capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
