"""Retries of work that lost to another commit or creator: how often, and after which waits.

Use it only around a function that reads everything again and may be applied twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from deltaweave.errors import (
    LOG_WITHOUT_VERSIONS,
    CommitConflictError,
    DeltaweaveError,
    NotADeltaTableError,
)

P = ParamSpec("P")
R = TypeVar("R")


def retried_after_conflict(function: Callable[P, R]) -> Callable[P, R]:
    """Repeat a function while another commit wins: up to 10 attempts, some 20 s of waiting."""
    return retry(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_attempt(10),
        wait=wait_random_exponential(max=5),
        reraise=True,
    )(function)


def attempts_at_a_merge(
    may_repeat: Callable[[], bool], before_sleep: Callable[[RetryCallState], None]
) -> Retrying:
    """Build attempts at a merge, while another commit wins and the caller allows another attempt.

    The waits grow as those of `retried_after_conflict`, from 0.2 s on.
    """
    return Retrying(
        retry=retry_if_exception(lambda error: _is_conflict(error) and may_repeat()),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        before_sleep=before_sleep,
        reraise=True,
    )


def wait_after_losses(losses: int) -> None:
    """Wait before the same output is committed again: not after two losses, then up to 2 s."""
    if losses > 2:
        time.sleep(random.uniform(0, min(2, 0.05 * 2 ** min(losses, 6))))


def retried_after_creation(function: Callable[P, R]) -> Callable[P, R]:
    """Repeat a function while another caller creates the same table.

    A location that holds other files looks the same, so give up within two seconds.
    """
    return retry(
        retry=retry_if_exception(_met_another_creator),
        stop=stop_after_attempt(5),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )(function)


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, CommitConflictError)


def _met_another_creator(error: BaseException) -> bool:
    """Return whether Delta met the log of another creator, empty or with its first commit."""
    return isinstance(error, (CommitConflictError, NotADeltaTableError)) or (
        isinstance(error, DeltaweaveError)
        and error.error_class
        in ("DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION", LOG_WITHOUT_VERSIONS)
    )
