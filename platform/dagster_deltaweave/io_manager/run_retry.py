"""The retry policy of runs: transient errors start the step again, all others fail it.

Dagster counts all attempts of a step together. Those that waited for other runs are no failures,
so a step that has waited may be tried again as often as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import DagsterEventType, RetryRequested

from deltaweave.errors import DeltaweaveError, Transient

if TYPE_CHECKING:
    from dagster import OutputContext

_SECONDS_BEFORE_RETRY = 5


class WaitsForOlder(RetryRequested):
    """Asks for another attempt of a step, because an older partition is still to be merged.

    Args:
        max_retries: How often the step may be tried again, all attempts counted.
        seconds_to_wait: After how many s it is tried again.
        awaited: What it waits for, after "it waits for".
    """

    def __init__(self, max_retries: int, seconds_to_wait: float, awaited: str) -> None:
        super().__init__(max_retries, seconds_to_wait)
        self.awaited = awaited

    def __str__(self) -> str:
        return f"it waits for {self.awaited}; nothing needs to be done"


@contextmanager
def retry_run_if_transient(retries: int, context: OutputContext | None = None) -> Iterator[None]:
    """Ask Dagster to try the step again after a transient error, such as a commit conflict.

    Args:
        retries: How often the step may be tried again.
        context: The context of the output of a step that may have waited; None if it cannot have.

    Raises:
        RetryRequested: The error is transient, and `retries` is not 0.
    """
    try:
        yield
    except DeltaweaveError as error:
        if isinstance(error, Transient) and retries:
            waits = 0 if context is None else len(waits_of_step(context))
            raise RetryRequested(retries + waits, _SECONDS_BEFORE_RETRY) from error
        if context is not None:
            # Dagster shows the error below the stack trace of its own, folded.
            context.log.error(str(error))
        raise


def waits_of_step(context: OutputContext) -> list[tuple[float, str]]:
    """Return when attempts of the step gave way to older partitions, and the texts that say so."""
    step = context.step_context
    if not step.previous_attempt_count:
        return []
    events = step.instance.all_logs(step.run_id, of_type=DagsterEventType.STEP_UP_FOR_RETRY)
    of_step = [each for each in events if each.step_key == step.step.key]
    errors = [(each.timestamp, each.get_dagster_event().step_retry_data.error) for each in of_step]
    return [
        (at, error.message)
        for at, error in errors
        if error is not None and error.cls_name == WaitsForOlder.__name__
    ]
