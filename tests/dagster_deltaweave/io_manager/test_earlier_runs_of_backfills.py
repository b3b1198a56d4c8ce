"""Partitions that backfills in progress have still to run: newer runs wait for them, too."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetMaterialization,
    BackfillPolicy,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    InputContext,
    IOManager,
    OutputContext,
    PartitionsDefinition,
    RunsFilter,
    TimeWindowPartitionMapping,
    asset,
    define_asset_job,
    instance_for_test,
    materialize,
)
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.events import DagsterEvent, DagsterEventType, StepMaterializationData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.execution.context.system import StepExecutionContext
from dagster._core.remote_origin import (
    CodeLocationOrigin,
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemotePartitionSetOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dagster_deltaweave import merge_asset
from dagster_deltaweave.io_manager import merge_order
from dagster_deltaweave.io_manager.earlier_runs import EarlierRuns
from dagster_deltaweave.io_manager.merge_order import WaitForEarlier
from dagster_deltaweave.partitions import partition_positions, partitions_of_run
from deltaweave.errors import OutOfOrderError
from tests.dagster_deltaweave.io_manager.test_earlier_runs import (
    FAILURE,
    LETTERS,
    QUEUED,
    STARTED,
    WaitsTwice,
    created,
    letters,
    run,
)

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-06")
SUCCESS = DagsterRunStatus.SUCCESS
LOCATION = InProcessCodeLocationOrigin(
    LoadableTargetOrigin(executable_path=sys.executable, module_name=__name__, attribute="defs"),
    location_name="here",
)
NOT_IN_PROGRESS = [each for each in BulkActionStatus if each != BulkActionStatus.REQUESTED]


@asset(
    partitions_def=DAYS,
    ins={"before": AssetIn("days", partition_mapping=TimeWindowPartitionMapping(-1, -1))},
    backfill_policy=BackfillPolicy.multi_run(1),
)
def days(before: object) -> int:
    """Reads its own day before, so the daemon makes the runs of its backfills one by one."""
    return 1


all_letters = define_asset_job("all_letters", [letters])
defs = Definitions([letters, days], jobs=[all_letters])


@dataclass(frozen=True)
class OfAssets:
    """A backfill of assets: what it targets, and what its daemon has noted."""

    target: Sequence[str]
    requested: Sequence[str] = ()
    materialized: Sequence[str] = ()
    failed: Sequence[str] = ()
    of: AssetKey = field(default=letters.key)

    def backfill(self, instance: DagsterInstance, name: str) -> PartitionBackfill:
        graph = defs.resolve_asset_graph()
        definition = graph.get(self.of).partitions_def
        assert definition is not None

        def subset(keys: Sequence[str]) -> AssetGraphSubset:
            return AssetGraphSubset({self.of: definition.subset_with_partition_keys(list(keys))})

        made = PartitionBackfill.from_asset_graph_subset(
            name, time.time(), {}, instance, subset(self.target), None, None, None
        )
        assert made.asset_backfill_data is not None
        noted = made.asset_backfill_data._replace(
            requested_subset=subset(self.requested),
            materialized_subset=subset(self.materialized),
            failed_and_downstream_subset=subset(self.failed),
        )
        return made.with_asset_backfill_data(noted, instance, graph)


@dataclass(frozen=True)
class OfJob:
    """A backfill of a job, by the names of partitions; the last one that was submitted."""

    names: Sequence[str]
    last: str | None = None
    job: str = "__ephemeral_asset_job__"
    selection: Sequence[AssetKey] | None = None
    location: CodeLocationOrigin = LOCATION

    def backfill(self, instance: DagsterInstance, name: str) -> PartitionBackfill:
        repository = RemoteRepositoryOrigin(
            code_location_origin=self.location, repository_name="__repository__"
        )
        return PartitionBackfill(
            name,
            BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=time.time(),
            asset_selection=self.selection,
            partition_set_origin=RemotePartitionSetOrigin(
                repository_origin=repository, partition_set_name=f"{self.job}_partition_set"
            ),
            partition_names=list(self.names),
            last_submitted_partition_name=self.last,
        )


Shape = OfAssets | OfJob


class WaitsForAll(IOManager):
    """Waits for older runs of all the run's partitions, whatever asset these are of."""

    def handle_output(self, context: OutputContext, obj: object) -> None:
        positions = partition_positions(context.asset_partitions_def, context.step_context.instance)
        assert positions is not None
        partitions = list(context.asset_partition_keys)
        earlier = EarlierRuns(context, partitions, positions)
        WaitForEarlier(earlier, "letters", 0).until_merged(lambda: None, has_rows=True)

    def load_input(self, context: InputContext) -> None: ...


def launched(instance: DagsterInstance, shape: Shape, name: str = "nightly") -> PartitionBackfill:
    backfill = shape.backfill(instance, name)
    instance.add_backfill(backfill)
    return backfill


OTHER = AssetKey("days")

WAITED_FOR = {
    "assets": OfAssets("abc"),
    "assets, the newest first": OfAssets("ab", requested=["b"]),
    "assets, the older one alone": OfAssets("a"),
    "job": OfJob("abcd"),
    "job, the newest first": OfJob("dcba", last="c"),
    "job of selected assets": OfJob("ab", job="other", selection=[letters.key]),
}
PASSED = {
    "assets, none older": OfAssets("cd"),
    "assets, requested": OfAssets("abc", requested="ab"),
    "assets, materialized": OfAssets("abc", materialized="ab"),
    "assets, below what failed": OfAssets("abc", failed="ab"),
    "other assets": OfAssets(["2026-01-01"], of=OTHER),
    "job, all submitted": OfJob("abcd", last="d"),
    "job, submitted": OfJob("abcd", last="b"),
    "job, newer ones left": OfJob("dcab", last="b"),
    "another job": OfJob("abcd", job="other"),
    "job of other assets": OfJob("abcd", selection=[OTHER]),
    "partitions that are gone": OfJob(["0", "1"]),
}


@pytest.mark.parametrize("shape", WAITED_FOR.values(), ids=WAITED_FOR)
def test_a_run_waits_for_what_a_backfill_has_still_to_run(
    instance: DagsterInstance, shape: Shape
) -> None:
    launched(instance, shape)
    problem = "partition a, .* backfill nightly has not made its run after"
    with pytest.raises(OutOfOrderError, match=problem) as raised:
        run(instance)
    assert (raised.value.partition, raised.value.others) == ("c", ("a",))
    assert "cancel the backfill" in str(raised.value)


@pytest.mark.parametrize("shape", PASSED.values(), ids=PASSED)
def test_a_run_passes_what_no_backfill_is_still_to_run(
    instance: DagsterInstance, shape: Shape
) -> None:
    launched(instance, shape)
    assert run(instance)


@pytest.mark.parametrize("status", NOT_IN_PROGRESS)
@pytest.mark.parametrize("kind", ["assets", "job"])
def test_a_backfill_that_is_over_makes_nothing_wait(
    instance: DagsterInstance, kind: str, status: BulkActionStatus
) -> None:
    backfill = launched(instance, WAITED_FOR[kind])
    instance.update_backfill(backfill.with_status(status))
    assert run(instance)


def test_only_partitions_after_the_newest_merged_one_hold_up_a_run(
    instance: DagsterInstance,
) -> None:
    launched(instance, OfAssets("a"))
    assert run(instance, newest="b")
    # It is merged again.
    with pytest.raises(OutOfOrderError, match="partition a, "):
        run(instance, newest="a")


SPANS = {
    "single run": {
        "dagster/asset_partition_range_start": "a",
        "dagster/asset_partition_range_end": "d",
    },
    "range": {
        "dagster/asset_partition_range_start": "c",
        "dagster/asset_partition_range_end": "d",
    },
}


@pytest.mark.parametrize(("span", "expected"), [("single run", None), ("range", "a")])
def test_a_run_of_several_partitions_waits_for_none_of_its_own(
    instance: DagsterInstance, span: str, expected: str | None
) -> None:
    """Until the daemon has written that it made the run, they are all left to the backfill."""
    launched(instance, OfAssets("abcd"))
    several = asset(
        name="letters", partitions_def=LETTERS, backfill_policy=BackfillPolicy.single_run()
    )
    arguments: dict[str, Any] = {
        "resources": {"io_manager": WaitsForAll()},
        "instance": instance,
        "tags": {**SPANS[span], "dagster/backfill": "nightly"},
    }
    definition = several(lambda: 1)
    if expected is None:
        assert materialize([definition], **arguments).success
        return
    with pytest.raises(OutOfOrderError) as raised:
        materialize([definition], **arguments)
    assert raised.value.others == (expected,)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (STARTED, "its run .* has not ended"),
        (FAILURE, "was not merged, because its run .* failed"),
        (SUCCESS, None),
    ],
)
@pytest.mark.parametrize(
    "tags",
    [
        {"dagster/partition": "a"},
        {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"},
    ],
)
def test_the_backfills_own_runs_count_before_its_daemon_has_noted_them(
    instance: DagsterInstance,
    tags: dict[str, str],
    status: DagsterRunStatus,
    problem: str | None,
) -> None:
    launched(instance, OfAssets("ac"))
    created(instance, "a", status, {**tags, "dagster/backfill": "nightly"})
    if problem is None:
        assert run(instance)
        return
    with pytest.raises(OutOfOrderError, match=problem):
        run(instance)


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        (OfAssets("a"), "backfill nightly has not made its run"),  # which runs it once more
        (OfAssets("a", requested="a"), "was not merged, because its run .* failed"),
        (OfAssets("a", failed="a"), "was not merged, because its run .* failed"),
        (OfJob("ab", last="a"), "was not merged, because its run .* failed"),
    ],
)
def test_a_failed_partition_is_waited_for_if_a_backfill_runs_it_again(
    instance: DagsterInstance, shape: Shape, problem: str
) -> None:
    created(instance, "a", FAILURE)
    launched(instance, shape)
    with pytest.raises(OutOfOrderError, match=rf"partition [ab], .* {problem}") as raised:
        run(instance, "b" if isinstance(shape, OfJob) else "c")
    assert raised.value.others == ("a",)


def test_each_of_several_backfills_has_still_to_run_a_partition(
    instance: DagsterInstance,
) -> None:
    for name in ("first", "second"):
        launched(instance, OfAssets("a"), name)
    for name, other in (("first", "second"), ("second", "")):
        created(instance, "a", SUCCESS, {"dagster/partition": "a", "dagster/backfill": name})
        if not other:
            assert run(instance)
            return
        with pytest.raises(OutOfOrderError, match=f"backfill {other} has not made its run"):
            run(instance)


def test_runs_of_other_assets_of_a_backfill_do_not_count(
    instance: DagsterInstance,
) -> None:
    launched(instance, OfAssets("a"))
    tags = {"dagster/partition": "a", "dagster/backfill": "nightly"}
    create_run_for_test(instance, tags=tags, status=SUCCESS, asset_selection=frozenset({OTHER}))
    with pytest.raises(OutOfOrderError, match="backfill nightly has not made its run"):
        run(instance)


@pytest.mark.parametrize(
    ("others", "newer", "gives_way"),
    [
        ([QUEUED], [], True),
        ([STARTED], [], False),  # which may lead to the awaited run
        ([STARTED, QUEUED], [], False),
        ([STARTED], [QUEUED], False),
        ([QUEUED], [STARTED], False),  # the run of the newest partition makes room
        ([], [QUEUED], False),  # which waits, too, once it is started
    ],
)
def test_a_run_makes_room_if_the_backfill_may_wait_for_its_slot(
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    others: Sequence[DagsterRunStatus],
    newer: Sequence[DagsterRunStatus],
    gives_way: bool,
) -> None:
    monkeypatch.setattr(merge_order, "QUEUED_SECONDS", -1)
    launched(instance, OfAssets("a"))
    tags = {"dagster/backfill": "nightly"}
    for status in others:
        create_run_for_test(instance, tags=tags, status=status, asset_selection=frozenset({OTHER}))
    for status in newer:
        created(instance, "d", status, {"dagster/partition": "d", **tags})
    with pytest.raises(OutOfOrderError) as raised:
        run(instance)
    assert ("waits for others in the queue" in str(raised.value)) == gives_way


def test_a_run_goes_on_once_the_backfill_is_cancelled(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_order, "SHORTEST_RETRY_SECONDS", 0)
    backfill = launched(instance, OfAssets("a"))

    class Cancels(WaitsTwice):
        def look(self, context: Any, *, has_rows: bool) -> None:
            if context.step_context.previous_attempt_count == 2:
                instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
            super().look(context, has_rows=has_rows)

    manager = Cancels("none")

    @merge_asset(keys=["k"], name="letters", partitions_def=LETTERS)
    def merged() -> int:
        return manager.called()

    resources: dict[str, Any] = {"io_manager": manager}
    result = materialize([merged], resources=resources, instance=instance, partition_key="c")
    assert result.success
    assert manager.calls == 1
    errors = [each.step_retry_data.error for each in result.all_events if each.is_step_up_for_retry]
    text = "it waits for backfill nightly to make a run of the older partition a; nothing needs"
    assert [text in each.message for each in errors if each] == [True, True]


def test_a_job_of_another_code_location_is_another_job(instance: DagsterInstance) -> None:
    elsewhere = InProcessCodeLocationOrigin(LOCATION.loadable_target_origin, location_name="other")
    own = RemoteJobOrigin(
        RemoteRepositoryOrigin(code_location_origin=LOCATION, repository_name="__repository__"),
        "letters",
    )
    with patch.object(DagsterRun, "remote_job_origin", own):
        launched(instance, OfJob("ab", location=elsewhere), "elsewhere")
        assert run(instance)
        launched(instance, OfJob("ab"), "here")
        with pytest.raises(OutOfOrderError, match="backfill here has not made"):
            run(instance)


def test_another_job_counts_if_it_materializes_the_asset(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(instance, OfJob("ab", job="all_letters"))
    assert run(instance)  # a run outside of a code location
    repository = defs.get_repository_def()
    monkeypatch.setattr(StepExecutionContext, "repository_def", repository)
    with pytest.raises(OutOfOrderError, match="backfill nightly has not made"):
        run(instance)


NUMBERS = DynamicPartitionsDefinition(name="numbers")


class OneLook(IOManager):
    """Looks once for older partitions, and counts the statements of Dagster's storages."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def handle_output(self, context: OutputContext, obj: object) -> None:
        instance = context.step_context.instance
        positions = partition_positions(context.asset_partitions_def, instance)
        assert positions is not None
        earlier = EarlierRuns(context, [context.partition_key], positions)
        event.listen(Engine, "before_cursor_execute", self._count)
        try:
            WaitForEarlier(earlier, "letters", 0).until_merged(lambda: None, has_rows=True)
        finally:
            event.remove(Engine, "before_cursor_execute", self._count)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.statements.append(statement)

    def load_input(self, context: InputContext) -> None: ...


@pytest.mark.parametrize("kind", ["assets", "job"])
@pytest.mark.parametrize(
    "definition", [DailyPartitionsDefinition("2000-01-01"), NUMBERS], ids=["days", "dynamic"]
)
def test_a_look_has_as_many_statements_whatever_the_number_of_partitions(
    instance: DagsterInstance, kind: str, definition: PartitionsDefinition[str]
) -> None:
    instance.add_dynamic_partitions("numbers", [f"{each:05}" for each in range(2_000)])
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    made = asset(name="letters", partitions_def=definition)(lambda: 1)
    graph = Definitions([made]).resolve_asset_graph()
    counts = []
    for number in (20, 2_000):
        backfill = launched(instance, OfJob(keys[:number]), str(number))
        if kind == "assets":
            instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
            wanted = (graph, keys[:number], [letters.key], time.time(), {}, instance)
            none = (False, None, None, None)
            backfill = PartitionBackfill.from_asset_partitions(f"of {number}", *wanted, *none)
            instance.add_backfill(backfill)
        manager = OneLook()
        resources: dict[str, Any] = {"io_manager": manager}
        with pytest.raises(OutOfOrderError, match="has not made its run"):
            materialize(
                [made], resources=resources, instance=instance, partition_key=keys[number - 1]
            )
        instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
        counts.append(len(manager.statements))
        # Its run failed, which the next one would look up.
        ended = AssetMaterialization(letters.key, partition=keys[number - 1])
        instance.report_runless_asset_event(ended)
    assert counts[0] == counts[1]
    assert counts[0] < 60


class Here(WorkspaceLoadTarget):
    """This module as a code location, in this process."""

    def create_origins(self) -> list[CodeLocationOrigin]:
        return [LOCATION]


@pytest.fixture
def with_queue(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance whose runs stay where the daemon of backfills has put them."""
    coordinator = {"module": "dagster._core.test_utils", "class": "MockedRunCoordinator"}
    with instance_for_test(
        temp_dir=str(tmp_path), overrides={"run_coordinator": coordinator}
    ) as it:
        yield it


@pytest.mark.minutes
def test_a_run_waits_for_what_the_daemon_of_backfills_has_still_to_run(
    with_queue: DagsterInstance,
) -> None:
    instance, keys = with_queue, DAYS.get_partition_keys()
    launched(instance, OfAssets(keys[:3], of=days.key))

    def iterate() -> dict[str, DagsterRun]:
        """The runs of the backfill, after a look of its daemon, by their partitions."""
        with WorkspaceProcessContext(instance, Here()) as workspace:
            errors = list(execute_backfill_iteration(workspace, logging.getLogger("daemon")))
        assert not [each for each in errors if each]
        of_backfill = instance.get_runs(RunsFilter(tags={"dagster/backfill": "nightly"}))
        return {partitions_of_run(each, DAYS, instance)[0]: each for each in of_backfill}

    def problem() -> str:
        resources: dict[str, Any] = {"io_manager": WaitsForAll()}
        try:
            materialize([days], resources=resources, instance=instance, partition_key=keys[4])
        except OutOfOrderError as error:
            return str(error)
        return ""

    not_made = "backfill nightly has not made its run"
    assert f"{keys[0]}, " in (found := problem())
    assert not_made in found
    first = iterate()[keys[0]]
    assert f"its run {first.run_id} has not ended" in problem()
    end(instance, first)
    assert f"{keys[1]}, " in (found := problem())
    assert not_made in found
    second = iterate()[keys[1]]
    instance.report_run_canceled(second)
    assert f"its run {second.run_id} failed" in problem()
    iterate()  # which finds that the third day is not to be run any more
    assert f"its run {second.run_id} failed" in problem()
    end(instance, second)
    assert problem() == ""


def end(instance: DagsterInstance, run: DagsterRun) -> None:
    """Let a run of the daemon materialize its partition, and end."""
    partition = partitions_of_run(run, DAYS, instance)[0]
    made = AssetMaterialization(days.key, partition=partition)
    kinds = {
        DagsterEventType.ASSET_MATERIALIZATION: StepMaterializationData(made),
        DagsterEventType.RUN_SUCCESS: None,
    }
    for kind, data in kinds.items():
        event = DagsterEvent(kind.value, run.job_name, event_specific_data=data)
        instance.report_dagster_event(event, run.run_id)
