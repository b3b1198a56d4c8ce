"""What Spark takes from the session that is active in a thread, and settings that are true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltaweave.delta.jvm.argument_checks import check_is_classic
from deltaweave.delta.jvm.errors import letting_go, translated
from deltaweave.delta.jvm.gateway import jvm
from deltaweave.delta.jvm.names import JavaObject, singleton
from deltaweave.errors import SettingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IGNORING_FILES = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings with which Spark passes over what it cannot read of files, or files that are gone."""


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
        sessions = jvm(spark).org.apache.spark.sql.classic.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        with letting_go("the active session"):
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()


def is_on(spark: SparkSession, key: str, *, otherwise: bool) -> bool:
    """Whether a setting of the session is true, spelled as Spark lets it be.

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
    """The value of a setting that is a number, 0 or greater.

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
    """Whether Spark takes files that it cannot read for files with fewer rows."""
    return any(is_on(spark, key, otherwise=False) for key in IGNORING_FILES)


def refuse_lenient_reads(spark: SparkSession, table: str, operation: str) -> None:
    """Refuse to keep what is read of a table where Spark passes over what it cannot read.

    Raises:
        SettingError: A setting says so.
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


def zone_rules(spark: SparkSession, session: JavaObject) -> JavaObject:
    """The java.time.zone.ZoneRules of a session's time zone.

    Args:
        spark: Any session of the JVM.
        session: The JVM's session.
    """
    zone = str(session.sessionState().conf().sessionLocalTimeZone())
    utilities = jvm(spark).org.apache.spark.sql.catalyst.util
    return singleton(utilities, "DateTimeUtils").getZoneId(zone).getRules()
