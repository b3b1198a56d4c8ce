"""What a run shows of an error that ends its step."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from dagster import (
    AssetChecksDefinition,
    AssetsDefinition,
    AssetSelection,
    DagsterEventType,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    InputContext,
    IOManager,
    OutputContext,
    RetryPolicy,
    asset,
    materialize,
)
from dagster._core.errors import DagsterMaxRetriesExceededError

from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_orphan_changes_check,
    build_table_checks,
    build_upkeep_job,
    merge_asset,
)
from dagster_deltaweave.io_manager import error_shown_first, retry_run_if_transient, step_attempts
from dagster_deltaweave.tables import named_asset
from deltaweave.errors import (
    AmbiguousMatchError,
    CommitConflictError,
    DeltaweaveError,
    StatementError,
    Terminal,
)


class Failing(IOManager):
    def __init__(self, error: DeltaweaveError) -> None:
        self.error = error

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        with retry_run_if_transient(
            0 if context.step_context.previous_attempt_count else 1, context
        ):
            raise self.error

    def load_input(self, context: InputContext) -> Any: ...


def errors_of(error: DeltaweaveError) -> list[str]:
    """The texts that the run logs as errors."""

    @asset
    def orders() -> int:
        return 1

    with DagsterInstance.ephemeral() as instance:
        done = materialize(
            [orders],
            resources={"io_manager": Failing(error)},
            instance=instance,
            raise_on_error=False,
        )
        assert not done.success
        logs = instance.all_logs(done.run_id)
        return [
            each.user_message
            for each in logs
            if not each.is_dagster_event and each.level == logging.ERROR
        ]


def test_an_error_that_ends_a_step_is_one_entry_of_the_log() -> None:
    wrong = StatementError("there is no column x.", table="orders")
    assert errors_of(wrong) == [str(wrong)]


def test_an_error_is_logged_only_when_the_last_attempt_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_attempts, "SECONDS_BEFORE_RETRY", 0)
    lost = CommitConflictError("another commit won.", table="orders")
    assert errors_of(lost) == [str(lost)]


def first_messages(done: ExecuteInProcessResult, instance: DagsterInstance) -> list[str]:
    """What the rows of the step's failure and of the run's begin with."""
    [of_step] = done.filter_events(lambda each: each.is_step_failure)
    [of_run] = instance.all_logs(done.run_id, of_type=DagsterEventType.RUN_FAILURE)
    data = of_run.get_dagster_event().job_failure_data
    first = data.first_step_failure_event.step_failure_data
    return [each.error.message for each in (of_step.step_failure_data, first)]


START = "deltaweave.errors.StatementError: "
WRONG = StatementError("there is no column x.", table="orders")


def wrong_function() -> Any:
    raise WRONG


def wrong_generator() -> Iterator[Any]:
    raise WRONG
    yield


def wrong_output() -> Any:
    return 1


@pytest.mark.parametrize("function", [wrong_function, wrong_generator, wrong_output])
@pytest.mark.parametrize("retry_policy", [None, RetryPolicy(max_retries=1)])
def test_a_failed_run_begins_with_the_sentence_that_matters(
    retry_policy: RetryPolicy | None, function: Callable[[], Any]
) -> None:
    orders = merge_asset(keys=["id"], name="orders", retry_policy=retry_policy)(function)
    lake = SparkDeltaIOManager(root="/lake", spark=SparkResource())
    run: dict[str, Any] = {
        "resources": {"io_manager": lake},
        "tags": {"deltaweave/retries": "many"} if function is wrong_output else {},
    }
    with DagsterInstance.ephemeral() as instance:
        done = materialize([orders], instance=instance, raise_on_error=False, **run)
        messages = first_messages(done, instance)
    assert [each.startswith(START) for each in messages] == [True, True], messages
    attempts = done.filter_events(lambda each: each.event_type_value == "STEP_UP_FOR_RETRY")
    assert len(attempts) == (retry_policy is not None)

    # What a caller catches is Dagster's as before.
    caught = StatementError if retry_policy is None else DagsterMaxRetriesExceededError
    with pytest.raises(caught) as failed:
        materialize([orders], **run)
    assert retry_policy or type(failed.value) is StatementError


def test_the_last_of_several_attempts_begins_with_what_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_attempts, "SECONDS_BEFORE_RETRY", 0)

    class Losing(Failing):
        def handle_output(self, context: OutputContext, obj: Any) -> None:
            with error_shown_first(context), retry_run_if_transient(2, context):
                raise self.error

    @asset
    def orders() -> int:
        return 1

    lost = CommitConflictError("another commit won.", table="orders")
    resources = {"io_manager": Losing(lost)}
    with DagsterInstance.ephemeral() as instance:
        done = materialize([orders], resources=resources, instance=instance, raise_on_error=False)
        messages = first_messages(done, instance)
    attempts = done.filter_events(lambda each: each.event_type_value == "STEP_UP_FOR_RETRY")
    assert len(attempts) == 2
    start = "deltaweave.errors.CommitConflictError: MERGE into orders failed: another commit won."
    assert [each.startswith(start) for each in messages] == [True, True], messages
    with pytest.raises(DagsterMaxRetriesExceededError):
        materialize([orders], resources=resources)


def test_failed_upkeep_begins_with_the_sentence_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise WRONG

    monkeypatch.setattr(named_asset, "run_locator", failing)
    orders = merge_asset(keys=["id"], name="orders")(wrong_output)
    nightly = build_upkeep_job(name="nightly", tables=[orders], operations=["optimize"])
    resources = {"io_manager": SparkDeltaIOManager(root="/lake", spark=SparkResource())}
    defs = Definitions(assets=[orders], jobs=[nightly], resources=resources)
    with DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def("nightly")
        done = job.execute_in_process(instance=instance, raise_on_error=False)
        messages = first_messages(done, instance)
    assert [each.startswith(START) for each in messages] == [True, True], messages


@pytest.mark.parametrize(
    "build",
    [
        partial(build_table_checks, unique_key=["id"]),
        partial(build_orphan_changes_check, keys=["id"], changes=lambda *_: None),
    ],
)
def test_a_check_that_fails_to_run_begins_with_what_matters(
    build: Callable[[AssetsDefinition], AssetChecksDefinition], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise WRONG

    monkeypatch.setattr(named_asset, "run_locator", failing)
    orders = merge_asset(keys=["id"], name="orders")(wrong_output)
    lake = {"io_manager": SparkDeltaIOManager(root="/lake", spark=SparkResource())}
    checks = AssetSelection.checks_for_assets(orders)
    with DagsterInstance.ephemeral() as instance:
        done = materialize(
            [orders, build(orders)],
            selection=checks,
            instance=instance,
            resources=lake,
            raise_on_error=False,
        )
        messages = first_messages(done, instance)
    assert [each.startswith(START) for each in messages] == [True, True], messages


def test_an_error_that_is_shown_first_is_what_it_was() -> None:
    @asset
    def orders() -> Any: ...

    class Shows(Failing):
        def handle_output(self, context: OutputContext, obj: Any) -> None:
            with pytest.raises(AmbiguousMatchError) as caught, error_shown_first(context):
                super().handle_output(context, obj)
            shown.append(caught.value)

    wrong = AmbiguousMatchError("two rows match.", [{"id": 1, "matches": 2}], table="orders")
    shown: list[AmbiguousMatchError] = []
    materialize([orders], resources={"io_manager": Shows(wrong)})
    [error] = shown
    assert isinstance(error, Terminal)
    assert (str(error), error.keys, error.__cause__) == (str(wrong), wrong.keys, wrong)
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again)) == (AmbiguousMatchError, str(wrong))
        assert vars(again) == vars(wrong)
