"""The attempts of a step: transient errors and waits start it again, all other errors fail it.

Dagster counts all attempts of a step together. Those that waited for other runs are not failures,
so a step that has waited may be tried again as often as any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dagster import (
    DagsterError,
    DagsterEventType,
    DagsterInvariantViolationError,
    DagsterUserCodeExecutionError,
    InputContext,
    OpDefinition,
    OpExecutionContext,
    RetryRequested,
)

from dagster_deltaweave.dagster_private import StepOutputHandle
from dagster_deltaweave.metadata import TABLE_ID
from deltaweave.errors import DeltaweaveError, Transient

if TYPE_CHECKING:
    from dagster import OutputContext

    from deltaweave import Table


_Context = TypeVar("_Context")
_Result = TypeVar("_Result")

SECONDS_BEFORE_RETRY = 5


class WaitsForOlder(RetryRequested):
    """Asks for another attempt of a step, because an older partition is still to be merged.

    `awaited` is the run or backfill, as the end of a sentence that begins with "it waits for".
    """

    def __init__(self, max_retries: int, seconds_to_wait: float, awaited: str) -> None:
        super().__init__(max_retries, seconds_to_wait)
        self.awaited = awaited

    def __str__(self) -> str:
        return f"it waits for {self.awaited}; nothing needs to be done"


@contextmanager
def retry_run_if_transient(retries: int, context: OutputContext | None = None) -> Iterator[None]:
    """Ask Dagster to try the step again after a transient error, such as a commit conflict.

    `context` is that of the output of a step that may have waited; None if it cannot have.

    Raises:
        RetryRequested: The error is transient, and `retries` is not 0.
    """
    try:
        yield
    except DeltaweaveError as error:
        if isinstance(error, Transient) and retries:
            waits = 0 if context is None else len(waits_of_step(context))
            raise RetryRequested(retries + waits, SECONDS_BEFORE_RETRY) from error
        if context is not None:
            # The log then has it as one entry of the level ERROR.
            context.log.error(str(error))
        raise


@contextmanager
def error_shown_first(context: Any) -> Iterator[Any]:
    """Let the events of a failed step begin with the sentences of the error that ends it.

    Yields the context of the step; None outside of a run.

    Otherwise, Dagster puts an error of its own before it, whose stack trace fills the last row of a
    run's page. What Dagster retries, and what a caller of `materialize` catches, does not change.

    `context` is that of the step's op, asset, check, input or output. Without one, or without a
    run, errors do not change.
    """
    step = _step_of(context)
    try:
        yield step
    except (DeltaweaveError, RetryRequested) as raised:
        error = raised.__cause__ if isinstance(raised, RetryRequested) else raised
        is_shown = isinstance(error, DagsterUserCodeExecutionError)
        if step is None or is_shown or not isinstance(error, DeltaweaveError):
            raise
        retry = raised if isinstance(raised, RetryRequested) else step.op_retry_policy
        if retry is not None:
            is_last = step.retry_mode.disabled or step.previous_attempt_count >= retry.max_retries
            if step.raise_on_error or not is_last:
                raise
        raise _shown(error) from error


def shows_errors_first(function: Callable[[_Context], _Result]) -> Callable[[_Context], _Result]:
    """Wrap the function of an op or a check in `error_shown_first`."""

    @wraps(function)
    def shown(context: _Context) -> _Result:
        with error_shown_first(context):
            return function(context)

    return shown


def _step_of(context: Any) -> Any:
    """Return the context of the step that runs; None outside of a run."""
    try:
        context = getattr(context, "op_execution_context", context)
        if isinstance(context, OpExecutionContext):
            return context.get_step_execution_context()
        return None if context is None else context.step_context
    except DagsterError:
        return None


def _shown(error: DeltaweaveError) -> DeltaweaveError:
    """Return the error as one that Dagster passes on as it is; `except` catches it as before.

    Copying or pickling it gives the error itself, whose class other processes can import.
    """
    kind = type(error)
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__reduce__": lambda shown: shown.user_exception.__reduce__(),
    }
    shown_kind = type(kind.__name__, (kind, DagsterUserCodeExecutionError), names)
    shown: DeltaweaveError = BaseException.__new__(shown_kind, *error.args)
    vars(shown).update(vars(error), user_exception=error, original_exc_info=sys.exc_info())
    return shown


class StepWait(NamedTuple):
    """An attempt of a step that gave way to an older partition: when, and the text of its event."""

    at: float
    text: str


def waits_of_step(context: OutputContext) -> list[StepWait]:
    """Return the attempts of the step that gave way to older partitions."""
    step = context.step_context
    if not step.previous_attempt_count:
        return []
    events = step.instance.all_logs(step.run_id, of_type=DagsterEventType.STEP_UP_FOR_RETRY)
    own = [each for each in events if each.step_key == step.step.key]
    errors = [(each.timestamp, each.get_dagster_event().step_retry_data.error) for each in own]
    return [
        StepWait(at, error.message)
        for at, error in errors
        if error is not None and error.cls_name == WaitsForOlder.__name__
    ]


def wait_before_inputs(context: InputContext) -> None:
    """Let the step that loads an input wait for older partitions of the step's assets."""
    try:
        step = context.step_context
        asset = step.assets_def
    except DagsterInvariantViolationError:  # a value is loaded outside of a run
        return
    if asset is None or not isinstance(asset.node_def, OpDefinition):
        return
    wait_of_step(step, has_inputs=False)


def wait_of_step(step: Any, **state: bool) -> None:
    """Let the IO managers of a step's assets make the step wait for older partitions.

    If a function of several assets is run for some of them alone, it waits for those.
    """
    made = step.selected_output_names
    for output in step.step.step_outputs:
        if output.name not in made:
            continue
        handle = StepOutputHandle(step.step.key, output.name)
        wait = getattr(step.get_io_manager(handle), "wait_for_older", None)
        if wait is not None and output.properties.asset_key is not None:
            wait(step.get_output_context(handle), **state)


class StepAttempt(NamedTuple):
    """An attempt of a step to make an asset."""

    run_id: str
    step: str
    number: int
    asset: str


def attempt_of_step(context: OutputContext) -> StepAttempt:
    """Identify the attempt of a step to make an asset."""
    step, asset = context.step_context, context.asset_key.to_user_string()
    return StepAttempt(step.run_id, step.step.key, step.previous_attempt_count, asset)


_VERSIONS = ("write/version", "merge/version")
"""The metadata with the version that an output committed."""


def other_outputs_of_step(context: OutputContext, table: Table) -> frozenset[int]:
    """Return the versions of a table that other outputs of the asset's function committed.

    Outputs of all ops of a graph count. The event log has them, if another process made them too.
    """
    step = context.step_context
    if step.assets_def is None or len(step.assets_def.keys) == 1:
        return frozenset()
    records = step.instance.get_records_for_run(
        step.run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION
    ).records
    ours, table_id, versions = step.node_handle.path[0], table.id(), set[int]()
    for event in (record.event_log_entry for record in records):
        made = event.asset_materialization
        is_of_function = (event.step_key or "").split(".")[0] == ours
        if made is None or not is_of_function or made.asset_key == context.asset_key:
            continue
        values: dict[str, Any] = {key: entry.value for key, entry in made.metadata.items()}
        if values.get(TABLE_ID) == table_id:
            versions.update(values[key] for key in _VERSIONS if key in values)
    return frozenset(versions)
