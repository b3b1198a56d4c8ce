"""The hours that come twice, where a zone sets its clocks back, and partition values in them.

Spark names the directory of a partition by TIMESTAMP by the wall-clock time of the session's zone,
and Delta takes the partition's value from that name: of two times with one name, the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Delta writes years beyond 9999 with a sign; east of Greenwich, the year 1 begins in the year 0.
# Python has no such years: they are left as Delta writes them.
_VALUE = re.compile(r"((?!0000)(\d{4})-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z?)")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400


@dataclass(frozen=True)
class RepeatedHours:
    """A period that comes twice: `[at - back, at)` and `[at, at + back)`, in seconds since 1970.

    Attributes:
        at: When the clocks are set back.
        back: By how many seconds.
        offset: How far the zone is ahead of UTC afterwards, in seconds.
    """

    at: int
    back: int
    offset: int

    def first(self, value: PartitionTime) -> int | None:
        """Return the first time of the value's wall-clock time, if that comes twice.

        A value in UTC must be the first time, as Delta writes it.
        """
        first = value.seconds if value.is_utc else value.seconds - self.offset - self.back
        return first if self.at - self.back <= first < self.at else None

    def is_second(self, value: PartitionTime) -> bool:
        """Return whether a value in UTC is in the second period."""
        return value.is_utc and self.at <= value.seconds < self.at + self.back


@dataclass(frozen=True)
class PartitionTime:
    """A partition value by TIMESTAMP (Delta protocol, section "Partition Value Serialization").

    Attributes:
        year: Its year.
        seconds: Seconds since 1970, of UTC or of the zone's wall clock.
        fraction: Microseconds.
        is_utc: Whether it is in UTC.
    """

    year: int
    seconds: int
    fraction: int
    is_utc: bool

    @classmethod
    def of(cls, value: str | None) -> PartitionTime | None:
        """Parse a value of the log; None for NULL and for years that Python lacks.

        >>> PartitionTime.of("1970-01-01T00:01:00.5Z")
        PartitionTime(year=1970, seconds=60, fraction=500000, is_utc=True)
        """
        parts = _VALUE.fullmatch(value or "")
        if parts is None:
            return None
        day, year, time, fraction, utc = parts.groups()
        seconds = (datetime.fromisoformat(f"{day} {time}") - _EPOCH) // timedelta(seconds=1)
        return cls(int(year), seconds, int((fraction or "").ljust(6, "0")), bool(utc))

    def at(self, seconds: int) -> str:
        """Write another time with this fraction of a second, in UTC as the log has it.

        >>> PartitionTime(1, 0, 5, True).at(-62135596800)
        '0001-01-01T00:00:00.000005Z'
        """
        return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}.{self.fraction:06}Z"


def hours_that_repeat(
    spark: SparkSession, session: JavaObject, values: Iterable[str | None]
) -> list[RepeatedHours]:
    """Return the hours that come twice in a session's zone, in the years of partition values.

    A few calls of the JVM for each year, whose rules name the directories.

    Args:
        spark: The session.
        session: The JVM's session that writes; it may be another one.
        values: The partition values.
    """
    view = jvm_.jvm(spark)
    rules = jvm_.zone_rules(spark, session)
    if rules.isFixedOffset():
        return []
    times = map(PartitionTime.of, values)
    found: dict[int, RepeatedHours] = {}
    for year in sorted({time.year for time in times if time is not None}):
        begin = (datetime(year, 1, 1) - _EPOCH).days * _DAY
        instant = view.java.time.Instant.ofEpochSecond(begin - 2 * _DAY)
        while (change := rules.nextTransition(instant)) is not None:
            instant = change.getInstant()
            if (at := int(instant.getEpochSecond())) > begin + 368 * _DAY:
                break
            if change.isOverlap():
                back = -int(change.getDuration().getSeconds())
                found[at] = RepeatedHours(at, back, int(change.getOffsetAfter().getTotalSeconds()))
    return list(found.values())
