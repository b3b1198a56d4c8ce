"""What Spark takes from the session that is active in a thread; true settings; second threads.

`own_session` is the door to the engine's own queries: settings of the caller's session may change
what a query means that is built by names or as SQL. A statement is resolved in the caller's session
and runs in the engine's own, and so does change data capture as a whole. The caller's
`spark.sql.parser.escapedStringLiterals` stays, since CHECK constraints mean what it says.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from pyspark import InheritableThread

from deltaweave.delta.jvm.errors import suppress_cleanup_errors, translated
from deltaweave.delta.jvm.gateway import JavaObject, Jvm, check_is_classic
from deltaweave.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


IGNORING_FILES = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings with which Spark passes over what it cannot read of files, or files that are gone."""

LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Setting in which Delta notes the version of the session's last commit, to any table."""

PAIR_VERSION = "spark.databricks.delta.write.txnVersion"
"""Setting with the version of the session's transaction id, which may be reset after its use."""

_SET_BY_COMMITS = (LAST_COMMIT, PAIR_VERSION)

# Most change how a query is built, and nothing of one that is analyzed.
_HAVE_DEFAULTS = (
    "spark.sql.retainGroupColumns",  # `groupBy(…).agg(…)` leaves out the columns of the groups
    "spark.sql.parser.quotedRegexColumnNames",  # names in back quotes are regular expressions
    "spark.sql.ansi.enforceReservedKeywords",  # SQL must quote more names
    # Delta would neither check that rows are of those to replace, nor record them in the feed.
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled",
    "spark.databricks.delta.replaceWhere.dataColumnsWithCDF.enabled",
)

# Spark hands Parquet a date as java.sql.Date, which lacks some days, and a decimal in the type of
# the file, where it may overflow if the column was widened: row groups that hold rows are skipped.
# Not `java8API.enabled`: Java functions of users would get values of other classes.
_FILTER_EXACTLY = {
    f"spark.sql.parquet.filterPushdown.{kind}": "false" for kind in ("date", "timestamp", "decimal")
}

# The keys of each session's settings, a view that follows them.
_KEYS: WeakKeyDictionary[SparkSession, JavaObject] = WeakKeyDictionary()

Result = TypeVar("Result")


@contextmanager
def own_session(spark: SparkSession, *, filters_exactly: bool = False) -> Iterator[SparkSession]:
    """Give the session for the engine's own queries, which is active while the block runs.

    Settings that change what queries mean while they are built, or with which Delta would not check
    what the engine writes, have their defaults in it. If the caller's session sets any of them, it
    is a copy of it, since other threads may use that one.

    Args:
        filters_exactly: Whether no filter on its scans may skip a row that it holds for. A session
            with SQL variables, which no copy has, is taken as it is.
    """
    check_is_classic(spark)
    jvm, session = Jvm.of(spark), spark._jsparkSession
    filters_exactly = filters_exactly and not _has_variables(session)
    if spark not in _KEYS:
        _KEYS[spark] = session.sessionState().conf().settings().keySet()
    with_defaults = jvm.made_once(
        "settings with defaults", lambda: jvm.java_list(jvm.texts(_HAVE_DEFAULTS))
    )
    if not filters_exactly and jvm.java.util.Collections.disjoint(_KEYS[spark], with_defaults):
        yield spark
        return
    own = session_filtering_exactly(spark) if filters_exactly else _copy_of(spark)
    own._jsparkSession.sessionState().conf().settings().keySet().removeAll(with_defaults)
    before = {key: own.conf.get(key, None) for key in _SET_BY_COMMITS}
    try:
        with active(own):
            yield own
    finally:
        with suppress_cleanup_errors("what commits set in the session"):
            for key in _SET_BY_COMMITS:
                _copy_change(key, before[key], own, spark)


def session_filtering_exactly(spark: SparkSession) -> SparkSession:
    """Copy a session; no filter on the scans of the copy may skip a row that it holds for."""
    copy = _copy_of(spark)
    for key, value in _FILTER_EXACTLY.items():
        copy.conf.set(key, value)
    return copy


def _has_variables(session: JavaObject) -> bool:
    return not session.sessionState().catalogManager().tempVariableManager().isEmpty()


def _copy_of(spark: SparkSession) -> SparkSession:
    """Copy a session with its settings, temporary views and current schema."""
    session = spark._jsparkSession
    copy = session.cloneSession()
    _enter_catalog_of(session, copy)
    return _session_of(spark, copy)


def _copy_change(key: str, before: str | None, own: SparkSession, spark: SparkSession) -> None:
    """Set a setting in the caller's session as it is in the engine's own, if it changed there."""
    after = own.conf.get(key, None)
    if after is None and before is not None:
        spark.conf.unset(key)
    elif after is not None and after != before:
        spark.conf.set(key, after)


def _enter_catalog_of(session: JavaObject, copy: JavaObject) -> None:
    """Make the current catalog and namespace of a session those of its copy.

    A copy starts in Spark's own catalog. `current_catalog()` and `current_schema()` take theirs
    from the session that runs a query, not from the one that analyzed it.
    """
    theirs, ours = session.sessionState().catalogManager(), copy.sessionState().catalogManager()
    catalog = theirs.currentCatalog().name()
    if catalog == ours.currentCatalog().name():
        return
    ours.setCurrentCatalog(catalog)
    namespace = theirs.currentNamespace()
    if list(namespace) != list(ours.currentNamespace()):
        ours.setCurrentNamespace(namespace)


def in_session(rows: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a DataFrame as a query of another session, and any other value unchanged."""
    if getattr(rows, "sparkSession", spark) is spark:
        return rows
    return Jvm.of(spark).data_frame_of_plan(rows._jdf.queryExecution().analyzed())


def _session_of(spark: SparkSession, session: JavaObject) -> SparkSession:
    """Return PySpark's session for one of the JVM; its constructor would redirect `RDD.toDF`."""
    made = object.__new__(type(spark))
    for name in ("_sc", "_jsc", "_jvm", "_profiler_collector"):
        setattr(made, name, getattr(spark, name))
    made._jsparkSession = session
    return made


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread's JVM thread while the block runs.

    Spark's parser and rules take their settings from it (time zone, ANSI), as do Delta's.

    Raises:
        UnsupportedSessionError: The session is of Spark Connect, which has no JVM here.
        SessionEndedError: The session, or its JVM, has ended.
    """
    check_is_classic(spark)
    with translated(None, operation="opening the session"):
        sessions = Jvm.of(spark).sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        with suppress_cleanup_errors("the active session"):
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def is_on(spark: SparkSession, key: str, *, otherwise: bool) -> bool:
    """Return whether a setting of the session is true, spelled as Spark lets it be."""
    return str(spark.conf.get(key, str(otherwise))).strip().lower() == "true"


def number_setting(
    spark: SparkSession,
    key: str,
    *,
    otherwise: float,
    is_whole: bool = False,
    table: str | None = None,
    operation: str = "MERGE",
) -> float:
    """Read a setting that is a number, 0 or greater.

    Raises:
        SettingError: The value is no such number.
    """
    given = spark.conf.get(key, None)
    if given is None:
        return otherwise
    try:
        value = int(given) if is_whole else float(given)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise SettingError(
            f"the setting {key} is {given!r}, which is not a {'whole ' if is_whole else ''}number "
            "from 0 on.",
            table=table,
            operation=operation,
            hint=f"Set it to a number, or unset it: spark.conf.unset({key!r}).",
        )
    return value


def has_local_master(spark: SparkSession) -> bool:
    """Return whether Spark's tasks are threads of the driver's JVM."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def reads_leniently(spark: SparkSession) -> bool:
    """Return whether Spark takes files that it cannot read for files with fewer rows."""
    return any(is_on(spark, key, otherwise=False) for key in IGNORING_FILES)


def refuse_lenient_reads(spark: SparkSession, table: str, operation: str) -> None:
    """Refuse to keep what is read of a table where Spark passes over what it cannot read.

    Raises:
        SettingError: A setting of the session makes reads lenient.
    """
    for key in IGNORING_FILES:
        if is_on(spark, key, otherwise=False):
            raise SettingError(
                f"the setting {key} is on: rows of a file that cannot be read would be taken as "
                "not there, and that would be kept.",
                table=table,
                operation=operation,
                hint=f"Run it with {key} off.",
            )


@contextmanager
def alongside(spark: SparkSession, work: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Do some work while the block runs; when the block has ended, so has the work.

    Until Delta 4.2, it is done before the block: a transaction then kept the files that queries of
    any thread read in a set that two threads must not change at once.

    Its Spark jobs have the block's job group, description, pool and tags, and Delta sees the same
    session. `result()` raises its error.

    Delta's active transaction belongs to one thread: work that needs it must make it active.
    """
    background = started(spark, work)
    try:
        if Jvm.of(spark).delta_line < (4, 3):
            background.future.result()
        yield background.future
    finally:
        background.thread.join()


def do_apart(spark: SparkSession, work: Callable[[], Result]) -> Result:
    """Do some work outside of this thread's active transaction, and return its result.

    In this thread, Delta would take each write to another table for a part of the transaction.
    """
    with alongside(spark, partial(copy_context().run, work)) as done:
        return done.result()


@dataclass(frozen=True)
class StartedWork(Generic[Result]):
    """Work that a second thread does.

    Attributes:
        future: Gets the work's result or error.
    """

    thread: InheritableThread
    future: Future[Result]


def started(spark: SparkSession, work: Callable[[], Result]) -> StartedWork[Result]:
    """Start a thread for some work; an interrupt of the waiting thread does not reach it."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            sessions = Jvm.of(spark).sql.classic.SparkSession
            sessions.setActiveSession(spark._jsparkSession)
            future.set_result(work())
        except BaseException as error:  # raised in the thread that asks for the result
            future.set_exception(error)

    thread = _Started(run, future, spark)
    thread.start()
    return StartedWork(thread, future)


class _Started(InheritableThread):
    """A thread whose future gets an error, too, if PySpark fails before the work begins."""

    def __init__(
        self, work: Callable[[], None], future: Future[Result], spark: SparkSession
    ) -> None:
        self._future = future
        super().__init__(work, name="deltaweave-alongside", session=spark)

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # of the calls that take over the properties of the parent
            self._future.set_exception(error)


@contextmanager
def raise_hidden_interrupts() -> Iterator[None]:
    """Raise an interrupt that came in the block instead of the error that took its place.

    While PySpark collects rows, an interrupt closes the stream that the JVM writes them to. PySpark
    then waits for the job, and raises what the job failed with.
    """
    before = _interrupts_behind(sys.exc_info()[1])
    try:
        yield
    except Exception as error:
        raised = _interrupts_behind(error).items() - before.items()
        if not raised:
            raise
        raise next(iter(raised))[1] from None


def _interrupts_behind(error: BaseException | None) -> dict[int, BaseException]:
    """Return the interrupts during whose handling an error was raised, by their identities."""
    seen: dict[int, BaseException] = {}
    found = [error]
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:  # causes may go in circles
            seen[id(each)] = each
            found += [each.__cause__, each.__context__]
    return {number: each for number, each in seen.items() if not isinstance(each, Exception)}
