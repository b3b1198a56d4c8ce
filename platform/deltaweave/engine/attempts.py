"""The boundary between the local backend and Spark: what a local attempt cannot do, Spark does.

While nothing is written, no error of an attempt decides a merge, unless it is the merge's answer:
Spark would give it too, or the caller asked to stop. Whoever writes deletes what was written before
the error comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from deltaweave.delta.jvm import raise_hidden_interrupts, translated
from deltaweave.engine.tasks import NotRewritableError
from deltaweave.errors import (
    AmbiguousMatchError,
    CommitConflictError,
    ConstraintViolationError,
    DeltaweaveError,
    SchemaChangedError,
    SessionEndedError,
    SourceError,
    SourceLostError,
)

logger = logging.getLogger(__name__)

SPARK_DOES_THE_MERGE = "Spark does the merge"
"""What is done where the local backend cannot do a small merge by itself."""

_ANSWERS = (
    AmbiguousMatchError,
    CommitConflictError,
    ConstraintViolationError,
    SchemaChangedError,
    SessionEndedError,
    SourceError,
    SourceLostError,
)

_Result = TypeVar("_Result")

_warnings: ContextVar[list[str] | None] = ContextVar("warnings", default=None)


def attempted(table: str, otherwise: str, attempt: Callable[[], _Result]) -> _Result | None:
    """Run an attempt; return its result, None if it is refused or fails and Spark must do the work.

    Args:
        table: The table's name in messages.
        otherwise: What is done then, such as "Spark does the merge".
        attempt: The attempt. It leaves nothing written if it raises.

    Raises:
        DeltaweaveError: The error is the merge's answer. An interrupt is raised, too.
    """
    try:
        with raise_hidden_interrupts(), translated(table):
            return attempt()
    except NotRewritableError as refused:
        logger.info("%s: %s: %s", table, otherwise, refused)
    except Exception as error:
        if isinstance(error, _ANSWERS) or was_cancelled(error):
            raise
        logger.debug("%s: %s", table, otherwise, exc_info=True)
        warn_of_fallback(table, otherwise, reason_of(error))
    return None


def was_cancelled(error: Exception) -> bool:
    """Return whether an error says that someone cancelled a job of the merge."""
    return isinstance(error, DeltaweaveError) and "CANCELLED" in (error.error_class or "")


def warn_of_fallback(table: str, otherwise: str, reason: str) -> None:
    """Log a warning that an attempt failed, and add it to the warnings of the merge's result.

    Args:
        table: The table's name in messages.
        otherwise: What is done instead.
        reason: Why, without values of rows.
    """
    warning = f"{otherwise}: {reason}"
    logger.warning("%s: %s", table, warning)
    noted = _warnings.get()
    if noted is not None and warning not in noted:
        noted.append(warning)


@contextmanager
def warnings_noted() -> Iterator[list[str]]:
    """Collect the warnings of attempts that fail in the block, in the block's thread."""
    noted: list[str] = []
    before = _warnings.set(noted)
    try:
        yield noted
    finally:
        _warnings.reset(before)


def reason_of(error: Exception) -> str:
    """Return the class of an error that was not expected, in Spark's words if it is Spark's.

    Its message may quote rows, which warnings must not show: they are recorded and displayed.
    """
    known = error.error_class if isinstance(error, DeltaweaveError) else None
    return f"{type(error).__name__} ({known})" if known else type(error).__name__
