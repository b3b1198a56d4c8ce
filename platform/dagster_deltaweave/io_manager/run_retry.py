"""The retry policy of runs: transient errors start the step again, all others fail it.

Dagster counts all attempts of a step together. Those that waited for other runs are no failures,
so a step that has waited may be tried again as often as one that has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import DagsterEventType, RetryRequested

from deltaweave.errors import DeltaweaveError, OutOfOrderError, Transient

if TYPE_CHECKING:
    from dagster import OutputContext

_SECONDS_BEFORE_RETRY = 5


@contextmanager
def retry_run_if_transient(retries: int, waits: int = 0) -> Iterator[None]:
    """Ask Dagster to try the step again after a transient error, such as a commit conflict.

    Args:
        retries: How often the step may be tried again.
        waits: How often it was, because it waited.

    Raises:
        RetryRequested: The error is transient, and `retries` is not 0.
    """
    try:
        yield
    except DeltaweaveError as error:
        if isinstance(error, Transient) and retries:
            raise RetryRequested(retries + waits, _SECONDS_BEFORE_RETRY) from error
        raise


def waits_of_step(context: OutputContext) -> list[tuple[float, str]]:
    """When attempts of the step gave way to the runs of older partitions, and the messages why."""
    step = context.step_context
    if not step.previous_attempt_count:
        return []
    events = step.instance.all_logs(step.run_id, of_type=DagsterEventType.STEP_UP_FOR_RETRY)
    found = []
    for each in events:
        event = each.get_dagster_event()
        error = event.step_retry_data.error
        cause = error.cause if error is not None else None
        waited = cause is not None and cause.cls_name == OutOfOrderError.__name__
        if cause is not None and waited and event.step_key == step.step.key:
            found.append((each.timestamp, cause.message))
    return found
