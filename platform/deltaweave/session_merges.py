"""Runs the MERGE statements of existing code on the engine: `enable` a session, and `disable` it.

`SparkSession.sql` and the `execute` of Delta's merge builder are replaced in the Python process,
once, when the first session is enabled or by `install`. What replaces them asks the session's
configuration at each MERGE, and hands on all other statements and the sessions that are not
enabled. A session that Spark clones from an enabled one, as for `foreachBatch`, is enabled too; one
of `newSession()` is not, unless the setting is in Spark's own configuration.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from deltaweave.delta.jvm import (
    SPARK_ERRORS,
    Jvm,
    active,
    check_is_classic,
    is_on,
    python_error,
    refuse_lenient_reads,
    rows_of_numbers,
    running_releases,
    untranslated,
)
from deltaweave.delta.statement import (
    ParsedMerge,
    builtin_defects,
    is_merge,
    parse_builder,
    parse_statement,
)
from deltaweave.engine.report import MergeResult, StrategyName
from deltaweave.errors import (
    AmbiguousMatchError,
    CommitStateUnknownError,
    DeltaweaveError,
    NotADeltaTableError,
    SchemaChangedError,
    SettingError,
    StatementError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from deltaweave.statements import run_parsed

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MERGES_ENABLED = "spark.deltaweave.enabled"
"""The session's setting: whether its MERGE statements run on the engine. Default false."""

# The counts that Delta returns; the first is the sum of the others.
_COUNTS = {
    "num_affected_rows": ("Updated", "Deleted", "Inserted"),
    "num_updated_rows": ("Updated",),
    "num_deleted_rows": ("Deleted",),
    "num_inserted_rows": ("Inserted",),
}
# Raised before anything is written. Delta's own MERGE says what is wrong in the words that existing
# code expects, or merges what the engine cannot.
_LEFT_TO_BUILT_IN = (StatementError, TableNotFoundError, NotADeltaTableError, SchemaChangedError)

_OURS = "_runs_merges_on_deltaweave"
_installing = threading.Lock()


def enable(spark: SparkSession) -> None:
    """Run the MERGE statements of this session on deltaweave's engine from now on.

    That is `SparkSession.sql` of a MERGE, also with `args` or keyword arguments, and
    `DeltaTable.forName(…).merge(…)….execute()`. Both return what they return without deltaweave, a
    DataFrame of one row with the BIGINT columns `num_affected_rows`, `num_updated_rows`,
    `num_deleted_rows` and `num_inserted_rows`, and raise the errors of Spark and Delta.

    What the engine refuses runs on Delta's own MERGE, with a warning in the log. So does, without
    one, a MERGE inside of a SQL script or of `EXECUTE IMMEDIATE`, and one that a JVM program sends.
    A statement that Delta's own MERGE may get wrong does not run there: the engine's error is
    raised, an `UnsupportedFeatureError` or, after columns changed their types or order, a
    `SchemaChangedError`.

    The first time, the logger `deltaweave` reports it, at INFO.

    Args:
        spark: A classic session with Delta. Only its setting `spark.deltaweave.enabled` changes.

    Raises:
        UnsupportedSessionError: `spark` is a session of Spark Connect.
        UnsupportedVersionError: deltaweave was not tested with its Spark or Delta.
    """
    check_is_classic(spark)
    Jvm.of(spark)  # checks the versions
    install()
    if not is_enabled(spark):
        logger.info(
            "The MERGE statements of this session (Spark %s, Delta %s) run on deltaweave from now "
            "on, by spark.sql and by DeltaTable.merge(…).execute(). disable(spark) ends it.",
            *running_releases(spark),
        )
    spark.conf.set(MERGES_ENABLED, "true")


def disable(spark: SparkSession) -> None:
    """Run the MERGE statements of this session on Delta's own MERGE again."""
    spark.conf.unset(MERGES_ENABLED)


def is_enabled(spark: SparkSession) -> bool:
    """Return whether the session's setting `spark.deltaweave.enabled` is true."""
    return is_on(spark, MERGES_ENABLED, otherwise=False)


def install() -> None:
    """Replace the two methods, unless they have been: the session's setting decides from now on."""
    import delta.exceptions.captured  # gives Delta's conflicts classes in Python  # noqa: F401
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import SparkSession

    with _installing:
        # Others may have wrapped the method too, before or after.
        if not hasattr(SparkSession.sql, _OURS):
            SparkSession.sql = _sql(SparkSession.sql)  # type: ignore[method-assign]
        if not hasattr(DeltaMergeBuilder.execute, _OURS):
            execute = _execute(DeltaMergeBuilder.execute)
            DeltaMergeBuilder.execute = execute  # type: ignore[method-assign]


def _sql(built_in: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @functools.wraps(built_in)
    def sql(self: SparkSession, sqlQuery: str, *given: Any, **named: Any) -> DataFrame:  # noqa: N803
        def by_built_in() -> DataFrame:
            return built_in(self, sqlQuery, *given, **named)

        values = dict(named)
        args = given[0] if given else values.pop("args", None)
        # PySpark refuses other arguments.
        are_known = len(given) <= 1 and isinstance(args, (dict, list, type(None)))
        if not may_be_merge(sqlQuery) or not are_known or not is_enabled(self):
            return by_built_in()
        with _formatted(self, sqlQuery, values) as text:
            # Delta's own MERGE does not bind parameters.
            otherwise = None if args else by_built_in
            return _merged(
                self, lambda: parse_statement(self, text, args or ()), by_built_in, otherwise
            )

    setattr(sql, _OURS, True)
    return sql


def _execute(built_in: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @functools.wraps(built_in)
    def execute(self: DeltaMergeBuilder) -> DataFrame:
        if not is_enabled(self._spark):
            return built_in(self)
        by_built_in = functools.partial(built_in, self)
        return _merged(self._spark, lambda: parse_builder(self), by_built_in, by_built_in)

    setattr(execute, _OURS, True)
    return execute


def may_be_merge(text: object) -> bool:
    """Return whether a statement begins with MERGE, or WITH, after comments; the parser decides.

    It is asked of every statement of the process, so it reads no further than the first word.
    """
    if not isinstance(text, str):
        return False
    at, depth = 0, 0
    while at < len(text):
        two = text[at : at + 2]
        if two == "/*":  # comments may hold comments
            at, depth = at + 2, depth + 1
        elif depth and two == "*/":
            at, depth = at + 2, depth - 1
        elif depth or text[at].isspace():
            at += 1
        elif two == "--":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
        else:
            return text[at : at + 5].upper() == "MERGE" or text[at : at + 4].upper() == "WITH"
    return False


@contextmanager
def _formatted(spark: SparkSession, text: str, kwargs: dict[str, Any]) -> Iterator[str]:
    """Format the text with the keyword arguments, with DataFrames as temporary views."""
    if not kwargs:
        yield text
        return
    from pyspark.sql.sql_formatter import SQLStringFormatter

    formatter = SQLStringFormatter(spark)
    try:
        yield formatter.format(text, **kwargs)
    finally:
        formatter.clear()


def _merged(
    spark: SparkSession,
    parse: Callable[[], ParsedMerge],
    as_it_is: Callable[[], DataFrame],
    by_built_in: Callable[[], DataFrame] | None,
) -> DataFrame:
    """Return the counts of a merge on the engine, or what Delta's own MERGE returns or raises.

    Args:
        spark: The session.
        parse: Reads the statement or builder.
        as_it_is: Runs a statement that is not a MERGE, or that does not parse.
        by_built_in: Runs Delta's own MERGE, if it can do this one.
    """
    try:
        with active(spark):
            parsed = parse()
    except (StatementError, *SPARK_ERRORS):  # these e.g. of a builder without clauses
        return _as_spark_meant(as_it_is)
    if not is_merge(parsed):
        return as_it_is()
    try:
        with active(spark):
            result = run_parsed(parsed)
    except DeltaweaveError as error:
        left_to_built_in = isinstance(error, (*_LEFT_TO_BUILT_IN, UnsupportedFeatureError))
        left_to_built_in &= not isinstance(error, SettingError)  # which may be about the lock
        if by_built_in is None or not left_to_built_in or _goes_wrong_by_built_in(parsed):
            raise _as_built_in_error(spark, error) from None
        if isinstance(error, UnsupportedFeatureError):
            refuse_lenient_reads(spark, parsed.table, "MERGE")
            features = ", ".join(error.features)
            logger.warning("%s uses %s: Delta's own MERGE runs instead", error.table, features)
        else:
            logger.info("%s: Spark runs it as without deltaweave: %s", error.table, error.problem)
        return _as_spark_meant(by_built_in)
    return _counts(spark, result)


def _goes_wrong_by_built_in(parsed: ParsedMerge) -> bool:
    with active(parsed.spark):
        return bool(builtin_defects(parsed))


def _as_spark_meant(run: Callable[[], DataFrame]) -> DataFrame:
    """Run a statement; raise Spark's error with its message, where PySpark fails to show it."""
    try:
        return run()
    except SPARK_ERRORS as error:
        meant = untranslated(error)
        if meant is error:
            raise
        raise meant from None


def _as_built_in_error(spark: SparkSession, error: DeltaweaveError) -> Exception:
    """Return the error that Delta's own MERGE raises in place of this one, if there is one.

    What Spark raises from a job is a Java trace; a traceback shows our sentences below it.
    """
    logger.info("%s: %s", error.table, type(error).__name__)
    if isinstance(error, CommitStateUnknownError):
        return error
    cause: BaseException | None = error
    while isinstance(cause, DeltaweaveError):
        cause = cause.__cause__
    if isinstance(error, AmbiguousMatchError):
        cause = python_error(
            spark, "multipleSourceRowMatchingTargetRowInMergeException", with_session=True
        )
    if not isinstance(cause, SPARK_ERRORS):
        return error
    add_note = getattr(cause, "add_note", None)  # since Python 3.11
    if add_note is not None:
        add_note(str(error))
    return cause


def _counts(spark: SparkSession, result: MergeResult) -> DataFrame:
    """Return the row that Delta's own MERGE returns; none if the merge was applied before."""
    if result.strategy == StrategyName.ALREADY_APPLIED.value:
        return rows_of_numbers(spark, [], list(_COUNTS))
    counts = [
        sum(result.metrics[f"numTargetRows{kind}"] for kind in summed)
        for summed in _COUNTS.values()
    ]
    return rows_of_numbers(spark, [counts], list(_COUNTS))
