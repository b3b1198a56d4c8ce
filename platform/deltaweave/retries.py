"""The one policy by which writes that lost to another commit are repeated.

Use it only around a function that reads everything again and may be applied twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from deltaweave.errors import CommitConflictError, DeltaweaveError, NotADeltaTableError

P = ParamSpec("P")
R = TypeVar("R")

_ATTEMPTS = 10
_MAX_SECONDS = 5


def again_after_a_conflict(function: Callable[P, R]) -> Callable[P, R]:
    """Repeat a function while another commit wins."""
    return _repeated(function, _is_conflict)


def again_after_another_creator(function: Callable[P, R]) -> Callable[P, R]:
    """Repeat a function while another caller creates the same table."""
    return _repeated(function, _met_another_creator)


def _repeated(
    function: Callable[P, R], is_repeated: Callable[[BaseException], bool]
) -> Callable[P, R]:
    return retry(
        retry=retry_if_exception(is_repeated),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(max=_MAX_SECONDS),
        reraise=True,
    )(function)


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, CommitConflictError)


def _met_another_creator(error: BaseException) -> bool:
    """Whether Delta met the log of another creator, empty or with its first commit."""
    return isinstance(error, (CommitConflictError, NotADeltaTableError)) or (
        isinstance(error, DeltaweaveError)
        and error.error_class == "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"
    )
