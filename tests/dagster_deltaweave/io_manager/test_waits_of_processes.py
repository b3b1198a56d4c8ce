"""Runs of newer partitions wait where each step is a process and their pool has one slot."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections import Counter
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    InputContext,
    IOManager,
    JobDefinition,
    OutputContext,
    RetryPolicy,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    execute_job,
    io_manager,
    multiprocess_executor,
    reconstructable,
)
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent
from dagster._core.test_utils import create_run_for_test

from dagster_deltaweave import merge_asset
from dagster_deltaweave.io_manager.earlier_runs import EarlierRuns
from dagster_deltaweave.io_manager.merge_order import WaitForEarlier
from dagster_deltaweave.io_manager.step_attempts import retry_run_if_transient, waits_of_step
from dagster_deltaweave.partitions import partition_positions
from deltaweave.errors import CommitConflictError

LETTERS = StaticPartitionsDefinition(["a", "b"])
PATIENT, IMPATIENT = AssetKey("patient"), AssetKey("impatient")


class WaitsAndLosesOnce(IOManager):
    """Waits as the IO manager of Delta tables does, and loses the first commit after that."""

    def look(self, context: OutputContext, *, has_rows: bool) -> None:
        positions = partition_positions(LETTERS, context.step_context.instance)
        assert positions is not None
        earlier = EarlierRuns(context, [context.partition_key], positions)
        WaitForEarlier(earlier, "letters", 60).until_merged(lambda: None, has_rows=has_rows)

    def wait_for_older(self, context: OutputContext) -> None:
        if context.asset_key in (PATIENT, IMPATIENT):
            self.look(context, has_rows=False)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        if context.asset_key not in (PATIENT, IMPATIENT):
            return
        self.look(context, has_rows=True)
        with retry_run_if_transient(1, context):
            if context.step_context.previous_attempt_count == len(waits_of_step(context)):
                raise CommitConflictError("lost", table="t", operation="merge", version=1)

    def load_input(self, context: InputContext) -> None: ...


def waiting_job() -> JobDefinition:
    arguments: dict[str, Any] = {"keys": ["k"], "partitions_def": LETTERS, "pool": "letters"}

    @merge_asset(**arguments, op_tags={"dagster/priority": 2})
    def patient() -> int:
        return 1

    # Attempts count for its policy, so it waits in its step.
    @merge_asset(**arguments, op_tags={"dagster/priority": 1}, retry_policy=RetryPolicy())
    def impatient() -> int:
        return 1

    @asset(pool="letters", partitions_def=LETTERS)
    def older(context: AssetExecutionContext) -> int:
        """Ends the older runs of both."""
        for key in (PATIENT, IMPATIENT):
            event = AssetMaterialization(key, partition="a")
            context.instance.report_runless_asset_event(event)
        return 1

    forked = {"forkserver": {"preload_modules": ["dagster_deltaweave", __name__]}}
    executor = multiprocess_executor.configured({"max_concurrent": 2, "start_method": forked})
    manager = io_manager()(lambda _: WaitsAndLosesOnce())
    assets, jobs = [patient, impatient, older], [define_asset_job("letters", "*")]
    defs = Definitions(assets, jobs=jobs, resources={"io_manager": manager}, executor=executor)
    return defs.resolve_job_def("letters")


@pytest.mark.minutes
def test_waiting_steps_leave_their_pools_only_slot_to_the_awaited_run(
    instance: DagsterInstance,
) -> None:
    instance.event_log_storage.set_concurrency_slots("letters", 1)
    for key in (PATIENT, IMPATIENT):
        tags = {"dagster/partition": "a"}
        run = create_run_for_test(instance, tags=tags, status=DagsterRunStatus.STARTED)
        planned = AssetMaterializationPlannedData(key, partition="a")
        event = DagsterEvent.build_asset_materialization_planned_event("write", "older", planned)
        instance.report_dagster_event(event, run.run_id)
    job = reconstructable(waiting_job)
    with execute_job(job, instance=instance, tags={"dagster/partition": "b"}) as result:
        assert result.success
        retries = [each for each in result.all_events if each.is_step_up_for_retry]
        logs = instance.all_logs(result.run_id)
    waiting = {each.step_key for each in logs if "This run waits for" in each.user_message}
    assert waiting == {"patient", "impatient"}
    errors = [(each.step_key, each.step_retry_data.error) for each in retries]
    counted = Counter((key, error.cls_name) for key, error in errors if error)
    assert counted.pop(("patient", "WaitsForOlder")) >= 1
    assert counted == {("patient", "RetryRequested"): 1, ("impatient", "RetryRequested"): 1}
