"""What Spark takes from the session that is active in a thread, and settings that are true.

`own_session` is the door to the engine's own queries. Settings of the caller's session may change
what a query means that is built by names or as SQL. They mean nothing for a statement that Spark
has analyzed, so a statement is resolved in the caller's session and runs in the engine's own.
Change data capture builds all of its queries so, and runs in it as a whole.

`spark.sql.parser.escapedStringLiterals` stays as the caller sets it, since CHECK constraints mean
what it says, to Delta, too. Texts in the engine's SQL mean the same either way
(`identifiers.literal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from deltaweave.delta.jvm.arguments import check_is_classic
from deltaweave.delta.jvm.errors import suppress_cleanup_errors, translated
from deltaweave.delta.jvm.gateway import JavaObject, Jvm
from deltaweave.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IGNORING_FILES = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings with which Spark passes over what it cannot read of files, or files that are gone."""

LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Setting in which Delta notes the version of the session's last commit, to any table."""

PAIR_VERSION = "spark.databricks.delta.write.txnVersion"
"""Setting with the version of the session's idempotency pair, which may be reset after its use."""

_SET_BY_COMMITS = (LAST_COMMIT, PAIR_VERSION)

# What they change is how a query is built, and nothing of one that is analyzed.
_OF_QUERIES_BEING_BUILT = (
    "spark.sql.retainGroupColumns",  # `groupBy(…).agg(…)` leaves out the columns of the groups
    "spark.sql.parser.quotedRegexColumnNames",  # names in back quotes are regular expressions
    "spark.sql.ansi.enforceReservedKeywords",  # SQL must quote more names
)

# The keys of each session's settings, a view that follows them.
_KEYS: WeakKeyDictionary[SparkSession, JavaObject] = WeakKeyDictionary()


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Give the session for the engine's own queries, which is active while the block runs.

    Settings that change what queries mean while they are built have their defaults in it. If the
    caller's session sets any of them, it is a copy of it, since other threads may use that one.

    Args:
        spark: The caller's session, which is the active one.
    """
    check_is_classic(spark)
    jvm, session = Jvm.of(spark), spark._jsparkSession
    if spark not in _KEYS:
        _KEYS[spark] = session.sessionState().conf().settings().keySet()
    of_building = jvm.made_once(
        "settings of queries being built",
        lambda: jvm.java_list(jvm.texts(_OF_QUERIES_BEING_BUILT)),
    )
    if jvm.java.util.Collections.disjoint(_KEYS[spark], of_building):
        yield spark
        return
    copy = session.cloneSession()
    copy.sessionState().conf().settings().keySet().removeAll(of_building)
    _enter_catalog_of(session, copy)
    own = _session_of(spark, copy)
    before = {key: own.conf.get(key, None) for key in _SET_BY_COMMITS}
    try:
        with active(own):
            yield own
    finally:
        with suppress_cleanup_errors("what commits set in the session"):
            for key in _SET_BY_COMMITS:
                _copy_change(key, before[key], own, spark)


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
    """Return the rows as a query of another session; what is no DataFrame stays as it is."""
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
        UnsupportedSessionError: It is a session of Spark Connect, which has no JVM here.
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
    """Return whether a setting of the session is true, spelled as Spark lets it be.

    Args:
        spark: The session.
        key: The setting.
        otherwise: What holds where it is not set.
    """
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

    Args:
        spark: The session.
        key: The setting.
        otherwise: Its value where it is not set.
        is_whole: Whether it must be a whole number.
        table: The table, for the error message.
        operation: The operation, for the error message.

    Raises:
        SettingError: It is no such number.
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
