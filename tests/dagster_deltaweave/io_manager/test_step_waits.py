"""A step waits for older partitions before its inputs are loaded; without Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetMaterialization,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    InputContext,
    Output,
    OutputContext,
    RetryPolicy,
    TimeWindowPartitionMapping,
    asset,
    materialize,
    multi_asset,
)
from dagster._core.execution.context.system import StepExecutionContext
from dagster._core.execution.retries import RetryMode

from dagster_deltaweave import SparkDeltaIOManager, SparkResource, merge_asset
from dagster_deltaweave.io_manager import delta_io_manager, merge_order
from dagster_deltaweave.io_manager.earlier_runs import EarlierRuns
from dagster_deltaweave.io_manager.merge_order import WaitForEarlier
from dagster_deltaweave.partitions import partition_positions
from tests.dagster_deltaweave.io_manager.test_earlier_runs import STARTED, created

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
OLDER, OWN = "2026-01-01", "2026-01-02"
DAY_BEFORE = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
POLICY = RetryPolicy(max_retries=1)


class Stores(SparkDeltaIOManager):
    """Stores nothing."""

    def handle_output(self, context: OutputContext, obj: object) -> None: ...


class Steps:
    """What a step did, in order; after two looks, the older run has ended."""

    def __init__(self, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[str] = []
        self._looks = 0
        monkeypatch.setattr(delta_io_manager, "wait_before_function", self._wait)
        monkeypatch.setattr(delta_io_manager, "load_input", self._load)
        monkeypatch.setattr(merge_order, "SHORTEST_PAUSE_SECONDS", 0)
        monkeypatch.setattr(merge_order, "SHORTEST_RETRY_SECONDS", 0)
        created(instance, OLDER, STARTED)

    def _wait(self, context: OutputContext, *_: object, has_inputs: bool) -> None:
        self.did.append("looks with inputs" if has_inputs else "looks")
        instance = context.step_context.instance

        def newest() -> None:
            self._looks += 1
            if self._looks == 2:
                event = AssetMaterialization(context.asset_key, partition=OLDER)
                instance.report_runless_asset_event(event)

        positions = partition_positions(DAYS, instance)
        assert positions is not None
        earlier = EarlierRuns(context, [context.partition_key], positions)
        WaitForEarlier(earlier, "letters", 60).until_merged(
            newest, has_rows=False, has_inputs=has_inputs
        )

    def _load(self, context: InputContext, *_: object) -> int:
        self.did.append(f"loads {context.asset_key.to_user_string()}")
        return 1


def declared(shape: str, **arguments: Any) -> AssetsDefinition:
    """An asset of this shape with two inputs, which records each call."""
    arguments = {
        "partitions_def": DAYS,
        "ins": {"a": AssetIn("one"), "b": AssetIn("two")},
    } | arguments

    def letters(a: int, b: int) -> int:
        return a + b

    async def asynchronous(a: int, b: int) -> int:
        return a + b

    if shape == "function":
        return merge_asset(keys=["k"], **arguments)(letters)
    if shape == "asynchronous":
        return merge_asset(keys=["k"], name="letters", **arguments)(asynchronous)
    merged = {"deltaweave/write": "merge", "deltaweave/keys": ["k"]}
    if shape == "asset":
        return asset(metadata=merged, **arguments)(letters)
    outs = {"letters": AssetOut(metadata=merged), "others": AssetOut()}

    def both(a: int, b: int) -> tuple[int, int]:
        return a, b

    return multi_asset(outs=outs, **arguments)(both)


def ran(instance: DagsterInstance, definition: AssetsDefinition, *selected: str) -> int:
    """Run a partition, of all assets or those selected; return how many attempts waited."""
    manager = Stores(root="/none", spark=SparkResource())
    resources: dict[str, Any] = {"io_manager": manager}
    assets = [AssetSpec("one"), AssetSpec("two"), definition]
    result = materialize(
        assets,
        resources=resources,
        instance=instance,
        partition_key=OWN,
        selection=selected or None,
    )
    assert result.success
    return len([each for each in result.all_events if each.is_step_up_for_retry])


LOADS = ["loads one", "loads two"]


@pytest.mark.parametrize(
    ("shape", "arguments", "retries", "did", "waited"),
    [
        ("function", {}, "enabled", ["looks"] * 3 + LOADS, 2),
        ("asynchronous", {}, "enabled", ["looks"] * 3 + LOADS, 2),
        ("asset", {}, "enabled", ["looks"] * 3 + LOADS, 2),
        # It waits in its step.
        ("function", {"retry_policy": POLICY}, "enabled", ["looks", *LOADS], 0),
        ("function", {}, "disabled", ["looks", *LOADS], 0),
        ("multi_asset", {}, "enabled", ["looks"] * 3 + LOADS, 2),
        ("multi_asset", {"retry_policy": POLICY}, "enabled", ["looks", *LOADS], 0),
    ],
)
def test_a_step_that_waits_loads_no_input_and_looks_once_an_attempt(
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    arguments: dict[str, Any],
    retries: str,
    did: list[str],
    waited: int,
) -> None:
    monkeypatch.setattr(StepExecutionContext, "retry_mode", RetryMode(retries))
    steps = Steps(instance, monkeypatch)
    assert ran(instance, declared(shape, **arguments)) == waited
    assert steps.did == did


def test_without_inputs_a_step_waits_before_its_function(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(instance, monkeypatch)

    @merge_asset(keys=["k"], partitions_def=DAYS)
    def letters() -> int:
        return 1

    assert ran(instance, letters) == 2
    assert steps.did == ["looks with inputs"] * 3


@pytest.mark.parametrize("retries", ["enabled", "disabled"])
def test_an_asset_that_reads_itself_needs_no_attempt_after_the_wait(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, retries: str
) -> None:
    monkeypatch.setattr(StepExecutionContext, "retry_mode", RetryMode(retries))
    steps = Steps(instance, monkeypatch)
    before = AssetIn("letters", partition_mapping=DAY_BEFORE)
    definition = declared("function", ins={"a": before, "b": AssetIn("two")}, retry_policy=POLICY)
    assert ran(instance, definition) == 0
    assert steps.did == ["looks", "loads letters", "loads two"]


def test_assets_that_are_not_merged_look_for_nothing(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(instance, monkeypatch)

    @asset(partitions_def=DAYS, ins={"a": AssetIn("one")})
    def letters(a: int) -> int:
        return a

    assert ran(instance, letters) == 0
    assert steps.did == ["loads one"]


@pytest.mark.parametrize(("selected", "did"), [("letters", ["looks"] * 3), ("others", [])])
def test_a_multi_asset_waits_for_those_of_its_assets_that_it_makes(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, selected: str, did: list[str]
) -> None:
    steps = Steps(instance, monkeypatch)
    merged = {"deltaweave/write": "merge", "deltaweave/keys": ["k"]}
    outs = {
        "letters": AssetOut(metadata=merged, is_required=False),
        "others": AssetOut(is_required=False),
    }

    @multi_asset(outs=outs, ins={"a": AssetIn("one")}, partitions_def=DAYS, can_subset=True)
    def both(context: AssetExecutionContext, a: int) -> Iterator[Output[int]]:
        for name in sorted(context.selected_output_names):
            yield Output(a, name)

    assert ran(instance, both, selected) == len(did) - bool(did)
    assert steps.did == [*did, "loads one"]
