"""The retry policy of runs: transient errors start the step again, all others fail it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import RetryRequested

from deltaweave.errors import DeltaweaveError, Transient

_SECONDS_BEFORE_RETRY = 5


@contextmanager
def retry_run_if_transient(retries: int) -> Iterator[None]:
    """Ask Dagster to try the step again after a transient error, such as a commit conflict.

    Args:
        retries: How often the step may be tried again.

    Raises:
        RetryRequested: The error is transient, and `retries` is not 0.
    """
    try:
        yield
    except DeltaweaveError as error:
        if isinstance(error, Transient) and retries:
            raise RetryRequested(retries, _SECONDS_BEFORE_RETRY) from error
        raise
