"""What Spark takes from the session that is active in a thread, and settings that are true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltaweave.delta.jvm.argument_checks import check_is_classic
from deltaweave.delta.jvm.errors import letting_go, translated
from deltaweave.delta.jvm.gateway import jvm
from deltaweave.delta.jvm.names import JavaObject, singleton

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def zone_rules(spark: SparkSession, session: JavaObject) -> JavaObject:
    """The java.time.zone.ZoneRules of a session's time zone.

    Args:
        spark: Any session of the JVM.
        session: The JVM's session.
    """
    zone = str(session.sessionState().conf().sessionLocalTimeZone())
    utilities = jvm(spark).org.apache.spark.sql.catalyst.util
    return singleton(utilities, "DateTimeUtils").getZoneId(zone).getRules()
