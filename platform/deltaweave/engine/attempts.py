"""Run an attempt of the engine; if it fails, Spark does the work.

No error of an attempt fails a merge, unless Spark would raise it too or the caller asked to stop.
Code that writes deletes its files before it raises. After a task that finds no pyarrow or numpy on
executors, no other is tried, nor for a table whose store Python does not open.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from deltaweave.delta.files import settings_for_arrow
from deltaweave.delta.jvm import raise_hidden_interrupts, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.engine.tasks import Disk, NotRewritableError, ObjectStore, Storage
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

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


SPARK_DOES_THE_MERGE = "Spark does the merge"
"""What happens where the local backend declines a small merge."""

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

WITHOUT_PYARROW = "the executors' Python has no pyarrow or no numpy (spark.pyspark.python)"

_IS_MISSING = re.compile(
    r"No module named '(pyarrow|numpy)['.]|PACKAGE_NOT_INSTALLED[^\n]*(PyArrow|pyarrow|NumPy|numpy)"
)

# The interpreters that lack one, by the driver that starts them.
_LACKING: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()


def attempted(
    table: str,
    otherwise: str,
    attempt: Callable[[], _Result],
    *,
    passing: type[Exception] | tuple[()] = (),
) -> _Result | None:
    """Run an attempt; return its result, None if it is refused or fails and Spark must do the work.

    `otherwise` says what happens in that case, e.g. "Spark does the merge". An attempt that raises
    leaves nothing written. Errors of the class `passing` are raised.

    Raises:
        DeltaweaveError: The error is the merge's answer. An interrupt is raised, too.
    """
    try:
        with raise_hidden_interrupts(), translated(table):
            return attempt()
    except passing:
        raise
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
    """Log a warning that an attempt failed, and add it to the warnings of the merge's result."""
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


def lacks_pyarrow(spark: SparkSession) -> bool:
    """Return whether a task has found that the executors' Python lacks pyarrow or numpy."""
    context = spark.sparkContext
    return context.pythonExec in _LACKING.get(context, ())


def found_without_pyarrow(spark: SparkSession, error: Exception) -> bool:
    """Return whether a task failed for lack of one of them; warn once, and remember it."""
    if not _IS_MISSING.search(str(error)):
        return False
    context = spark.sparkContext
    lacking = _LACKING.setdefault(context, set())
    if context.pythonExec not in lacking:
        lacking.add(context.pythonExec)
        logger.warning(
            "The executors' Python (%s) has no pyarrow or no numpy. Spark rewrites files that "
            "could be copied in place, and key indexes are not used. Install both there, or set "
            "spark.pyspark.python (or PYSPARK_PYTHON) to an interpreter that has them, and "
            "start a new session: this one does not try again.",
            context.pythonExec,
        )
    return True


def storage_of(table: TableSnapshot) -> Storage | None:
    """Return the storage of a table's files; None if Python does not open it."""
    if table.data_path.startswith("file:"):
        return Disk()
    settings = settings_for_arrow(table)
    return None if isinstance(settings, str) else ObjectStore(settings)
