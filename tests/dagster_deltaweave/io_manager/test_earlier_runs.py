"""Runs of older partitions, as Dagster knows them: what a run waits for, and what makes it fail."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from dagster import (
    AssetIn,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    InputContext,
    IOManager,
    Output,
    OutputContext,
    RetryPolicy,
    StaticPartitionsDefinition,
    TimeWindowPartitionMapping,
    asset,
    materialize,
)
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.execution.context.system import StepExecutionContext
from dagster._core.execution.retries import RetryMode
from dagster._core.test_utils import create_run_for_test

from dagster_deltaweave import merge_asset
from dagster_deltaweave.dagster_private import PRIORITY_TAG
from dagster_deltaweave.io_manager import merge_order, step_attempts
from dagster_deltaweave.io_manager.earlier_runs import EarlierRuns
from dagster_deltaweave.io_manager.merge_order import WaitForEarlier
from dagster_deltaweave.io_manager.step_attempts import retry_run_if_transient
from dagster_deltaweave.partitions import partition_positions
from deltaweave.errors import CommitConflictError, OutOfOrderError

LETTERS = StaticPartitionsDefinition(["a", "b", "c", "d"])
QUEUED, FAILURE = DagsterRunStatus.NOT_STARTED, DagsterRunStatus.FAILURE
STARTED, CANCELED = DagsterRunStatus.STARTED, DagsterRunStatus.CANCELED


class Waits(IOManager):
    """Waits for earlier runs, stores nothing; `newest` was merged, and the table holds `held`."""

    def __init__(
        self, newest: str | None = None, wait_seconds: float = 0, held: str | None = None
    ) -> None:
        self.newest, self.wait_seconds, self.held = newest, wait_seconds, held

    def handle_output(self, context: OutputContext, obj: object) -> None:
        positions = partition_positions(LETTERS, context.step_context.instance)
        assert positions is not None
        partitions = [context.partition_key]
        earlier = EarlierRuns(context, partitions, positions)
        WaitForEarlier(earlier, "letters", self.wait_seconds).until_merged(
            lambda: self.newest, has_rows=True, holds=lambda key, _: key == self.held
        )

    def load_input(self, context: InputContext) -> None: ...


@asset(partitions_def=LETTERS)
def letters() -> int:
    return 1


def created(
    instance: DagsterInstance,
    partition: str,
    status: DagsterRunStatus,
    tags: dict[str, str] | None = None,
) -> DagsterRun:
    """A run for a partition, with the event by which Dagster knows what it is to materialize."""
    tags = tags or {"dagster/partition": partition}
    run = create_run_for_test(instance, job_name="write", tags=tags, status=status)
    planned = DagsterEvent.build_asset_materialization_planned_event(
        "write", "letters", AssetMaterializationPlannedData(letters.key, partition=partition)
    )
    instance.report_dagster_event(planned, run.run_id)
    return run


def run(
    instance: DagsterInstance,
    partition: str = "c",
    newest: str | None = None,
    wait_seconds: float = 0,
    held: str | None = None,
) -> bool:
    resources: dict[str, Any] = {"io_manager": Waits(newest, wait_seconds, held)}
    return materialize(
        [letters], resources=resources, instance=instance, partition_key=partition
    ).success


@pytest.mark.parametrize(
    ("partition", "status", "problem"),
    [
        ("b", STARTED, "has not ended after"),
        ("b", QUEUED, "has not ended after"),
        ("a", FAILURE, "was not merged, because its run .* failed"),
        ("b", CANCELED, "was not merged, because its run .* failed"),
    ],
)
def test_a_run_does_not_pass_the_run_of_an_older_partition(
    instance: DagsterInstance, partition: str, status: DagsterRunStatus, problem: str
) -> None:
    other = created(instance, partition, status)
    with pytest.raises(OutOfOrderError, match=problem) as raised:
        run(instance)
    assert other.run_id in str(raised.value)
    assert (raised.value.partition, raised.value.others) == ("c", (partition,))


@pytest.mark.parametrize(
    ("partition", "status", "newest"),
    [
        ("d", STARTED, None),  # newer
        ("c", STARTED, None),  # the same partition
        ("a", FAILURE, "b"),  # older than what was merged: it can be merged no more
        ("b", DagsterRunStatus.SUCCESS, None),  # nothing was materialized, and nothing will be
    ],
)
def test_a_run_passes_all_other_runs(
    instance: DagsterInstance, partition: str, status: DagsterRunStatus, newest: str | None
) -> None:
    created(instance, partition, status)
    assert run(instance, newest=newest)


@pytest.mark.parametrize(
    ("partition", "status", "held", "problem"),
    [
        ("b", STARTED, None, "has not ended"),  # the newest merged one is merged again
        ("b", FAILURE, None, None),  # and was merged, though its run was killed afterwards
        ("a", STARTED, None, "has not ended"),  # of the same time as the newest merged one
        ("a", FAILURE, None, "was not merged, because its run .* failed"),
        ("a", FAILURE, "a", None),  # its run was killed after its commit
    ],
)
def test_runs_of_the_newest_merged_time_are_not_passed(
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    partition: str,
    status: DagsterRunStatus,
    held: str | None,
    problem: str | None,
) -> None:
    times = {"a": 1, "b": 1, "c": 2, "d": 3}
    monkeypatch.setitem(globals(), "partition_positions", lambda *_: times.get)
    created(instance, partition, status)
    if problem is None:
        assert run(instance, newest="b", held=held)
        return
    with pytest.raises(OutOfOrderError, match=problem):
        run(instance, newest="b", held=held)


def test_a_partition_that_was_materialized_since_its_run_failed_is_passed(
    instance: DagsterInstance,
) -> None:
    created(instance, "b", FAILURE)
    instance.report_runless_asset_event(AssetMaterialization(letters.key, partition="b"))
    assert run(instance)


@pytest.mark.parametrize(
    "tags",
    [
        {"dagster/partition": "b"},
        {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"},
        {"deltaweave/partitions": '["b"]'},
        {"deltaweave/partitions": "a, b"},
    ],
)
def test_of_several_runs_of_a_partition_the_one_under_way_counts(
    instance: DagsterInstance, tags: dict[str, str]
) -> None:
    under_way = created(instance, "b", STARTED, tags)
    created(instance, "b", FAILURE)
    with pytest.raises(OutOfOrderError, match="has not ended") as raised:
        run(instance)
    assert under_way.run_id in str(raised.value)


def test_a_run_of_other_assets_is_not_one_of_the_partition(instance: DagsterInstance) -> None:
    created(instance, "b", FAILURE)
    create_run_for_test(instance, tags={"dagster/partition": "b"}, status=STARTED)
    with pytest.raises(OutOfOrderError, match="was not merged, because its run"):
        run(instance)


def test_a_failed_run_is_waited_for_while_dagster_will_try_it_again(
    instance: DagsterInstance,
) -> None:
    failed = created(instance, "b", FAILURE)
    instance.add_run_tags(failed.run_id, {"dagster/will_retry": "true"})
    with pytest.raises(OutOfOrderError, match="has not ended"):
        run(instance)
    instance.add_run_tags(failed.run_id, {"dagster/backfill": "deleted"})
    with pytest.raises(OutOfOrderError, match="was not merged, because its run"):
        run(instance)


def test_runs_in_the_queue_come_next_the_oldest_first(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_PAUSE_SECONDS", 0)
    queued = [created(instance, each, QUEUED).run_id for each in ("b", "a")]
    with pytest.raises(OutOfOrderError):
        run(instance, wait_seconds=0.01)
    found = [instance.get_run_by_id(each) for each in queued]
    assert [each.tags[PRIORITY_TAG] for each in found if each] == ["1", "2"]


def test_the_newest_run_that_waits_for_a_queued_one_makes_room(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_order, "QUEUED_SECONDS", -1)
    created(instance, "a", QUEUED)
    with pytest.raises(OutOfOrderError, match="is still in the queue"):
        run(instance, "d")
    created(instance, "d", STARTED)
    with pytest.raises(OutOfOrderError, match="has not ended"):
        run(instance, "b")


class WaitsTwice(IOManager):
    """Waits before and after the function; after two looks the older run has ended."""

    def __init__(self, older: str = "b") -> None:
        self.looks, self.calls, self.is_overtaken, self.older = 0, 0, False, older

    def called(self) -> int:
        self.calls += 1
        return 1

    def look(self, context: OutputContext, *, has_rows: bool) -> None:
        instance = context.step_context.instance

        def newest() -> None:
            self.looks += 1
            if self.looks == 2:
                event = AssetMaterialization(context.asset_key, partition=self.older)
                instance.report_runless_asset_event(event)

        positions = partition_positions(context.asset_partitions_def, instance)
        assert positions is not None
        earlier = EarlierRuns(context, [context.partition_key], positions)
        WaitForEarlier(earlier, "letters", 60).until_merged(newest, has_rows=has_rows)

    def wait_for_older(self, context: OutputContext) -> None:
        self.look(context, has_rows=False)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        self.look(context, has_rows=True)
        with retry_run_if_transient(1, context):
            if self.is_overtaken and self.calls == 1:
                raise CommitConflictError("lost", table="t", operation="merge", version=1)

    def load_input(self, context: InputContext) -> int:
        return self.looks


def declared(shape: str, called: Callable[[], Any], policy: RetryPolicy | None) -> AssetsDefinition:
    """An asset of this shape, whose function calls `called`."""
    merged = merge_asset(keys=["k"], name="letters", partitions_def=LETTERS, retry_policy=policy)

    def function() -> int:
        return int(called())

    def generator() -> Iterator[Output[int]]:
        yield Output(called())

    def generator_of_any() -> Generator[Output[Any], None, None]:
        yield Output(called())

    async def asynchronous() -> int:
        return int(called())

    if shape == "asset":
        return asset(name="letters", partitions_def=LETTERS, retry_policy=policy)(function)
    return merged(locals()[shape])


@pytest.mark.parametrize(
    ("shape", "policy", "retries", "attempts"),
    [
        # Dagster tries the step again, before the function.
        ("function", None, "enabled", 3),
        ("generator", None, "enabled", 3),
        ("generator_of_any", None, "enabled", 3),
        # Another attempt would call the function again, count for the policy, or is not made.
        ("asynchronous", None, "enabled", 1),
        ("asset", None, "enabled", 1),
        ("function", RetryPolicy(max_retries=1), "enabled", 1),
        ("function", None, "disabled", 1),
    ],
)
def test_a_run_waits_and_its_function_is_called_once(
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    policy: RetryPolicy | None,
    retries: str,
    attempts: int,
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_RETRY_SECONDS", 0)
    monkeypatch.setattr(merge_order, "SHORTEST_PAUSE_SECONDS", 0)
    monkeypatch.setattr(step_attempts, "SECONDS_BEFORE_RETRY", 0)
    monkeypatch.setenv("DAGSTER_REDACT_USER_CODE_ERRORS", "1")  # hides causes of errors
    # As a run's configuration says it, which runs in this process do not read.
    monkeypatch.setattr(StepExecutionContext, "retry_mode", RetryMode(retries))
    created(instance, "b", STARTED)
    manager = WaitsTwice()
    letters, resources = declared(shape, manager.called, policy), {"io_manager": manager}
    result = materialize([letters], resources=resources, instance=instance, partition_key="c")
    assert result.success
    assert manager.calls == 1
    assert len([each for each in result.all_events if each.is_step_up_for_retry]) == attempts - 1


def test_waits_are_no_failures_of_a_step(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_RETRY_SECONDS", 0)
    monkeypatch.setattr(step_attempts, "SECONDS_BEFORE_RETRY", 0)
    created(instance, "b", STARTED)
    manager = WaitsTwice()
    manager.is_overtaken = True
    letters = declared("function", manager.called, None)
    resources: dict[str, Any] = {"io_manager": manager}
    result = materialize([letters], resources=resources, instance=instance, partition_key="c")
    assert result.success
    assert manager.calls == 2
    errors = [each.step_retry_data.error for each in result.all_events if each.is_step_up_for_retry]
    assert [each.cls_name for each in errors if each] == ["WaitsForOlder"] * 2 + ["RetryRequested"]


@pytest.mark.parametrize(
    ("shape", "retries", "expected"),
    [
        # Its policy counts attempts, so it waits in its step, and loads its table again after that.
        ("merge_asset", "enabled", [2]),
        ("asset", "enabled", [0, 2]),
        ("merge_asset", "disabled", None),
    ],
)
def test_what_an_asset_reads_of_itself_is_loaded_after_the_wait(
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    retries: str,
    expected: list[int] | None,
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_PAUSE_SECONDS", 0)
    monkeypatch.setattr(merge_order, "SHORTEST_RETRY_SECONDS", 0)
    monkeypatch.setattr(StepExecutionContext, "retry_mode", RetryMode(retries))
    day_before = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    arguments: dict[str, Any] = {
        "partitions_def": DailyPartitionsDefinition("2026-01-01"),
        "retry_policy": RetryPolicy(max_retries=1),
        "ins": {"before": AssetIn("letters", partition_mapping=day_before)},
    }
    loaded = []

    def letters(before: int) -> int:
        loaded.append(before)
        return 1

    decorated = merge_asset(keys=["k"], **arguments) if shape == "merge_asset" else None
    days = decorated(letters) if decorated else asset(**arguments)(letters)
    created(instance, "2026-01-01", STARTED)
    result = materialize(
        [days],
        resources={"io_manager": WaitsTwice("2026-01-01")},
        instance=instance,
        partition_key="2026-01-02",
        raise_on_error=False,
    )
    assert result.success == (expected is not None)
    assert loaded == (expected or [])
