"""What a file's statistics in the log mean: its number of rows, and the bounds of each type.

Inexact bounds are widened. Delta truncates strings to 32 characters and times to milliseconds, and
delta-rs writes decimals as doubles (Delta protocol, section "Per-file Statistics"). Where
`spark.sql.legacy.timeParserPolicy` is LEGACY, and in Spark 2, Delta writes old dates and times by
Java's old classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from struct import pack, unpack
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def are_bounded(data_type: DataType) -> bool:
    """Return whether statistics bound values of a type, and Python and Spark order them alike."""
    return type(data_type) in MEANINGS and not is_collated(data_type)


def is_collated(data_type: DataType) -> bool:
    """Return whether texts that are not the same bytes may be equal."""
    return isinstance(data_type, StringType) and data_type.simpleString() != "string"


def bound(raw: Any, read: Callable[[Any], Any], widened: Callable[[Any], Any] | None) -> Any:
    """Read a bound; None if it is not known."""
    try:
        value = None if raw is None else read(raw)
        if value is not None and widened is not None:
            value = widened(value)
    except (ValueError, ArithmeticError):
        return None
    return value if value == value else None  # not NaN


def itself(value: Any) -> Any:
    """Return the value unchanged."""
    return value


@dataclass(frozen=True)
class Meaning:
    """The way in which bounds of a type are read and widened.

    Attributes:
        read: Reads a written bound; None, a ValueError or an ArithmeticError if it is not
            understood.
        below: Widens a low bound: no value that may have been written so is below it. None if
            exact.
        above: Widens a high bound: no value that may have been written so is above it. None if
            exact.
    """

    read: Callable[[Any], Any]
    below: Callable[[Any], Any] | None = None
    above: Callable[[Any], Any] | None = None


_NUMBERS_OF_64_BITS = range(-(1 << 63), 1 << 63)
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def whole(value: Any) -> int | None:
    """Return a whole number of 64 bits, from a JSON number or its text; None for anything else."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return value if type(value) is int and value in _NUMBERS_OF_64_BITS else None


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    if type(value) is int or (isinstance(value, str) and _NUMBER.fullmatch(value)):
        return Decimal(value)
    return None


def _double(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    exact = _decimal(value)
    return None if exact is None else float(exact)


def _single(value: Any) -> float | None:
    """Round to the nearest 4-byte float."""
    double = _double(value)
    try:
        return None if double is None else float(unpack("f", pack("f", double))[0])
    except OverflowError:
        return None


def _string_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"(?P<second>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(\.(?P<fraction>[0-9]+))?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<h>[0-9]{2}):(?P<m>[0-9]{2})(:(?P<s>[0-9]{2}))?)?"
)
_YEAR_1970 = datetime(1970, 1, 1)


def _date(value: Any) -> date | None:
    """Parse a date in the years 1 to 9999; Python has no others."""
    is_date = isinstance(value, str) and _DATE.fullmatch(value)
    return date.fromisoformat(value) if is_date else None


def _moment(value: Any) -> int | None:
    """Parse a time with a zone as µs since 1970; in the years 1 to 9999 as written."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None or found["zone"] is None:
        return None
    if found["sign"] is None:
        return _micros(found)
    hours, minutes, seconds = (int(found[part] or 0) for part in "hms")
    offset = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return _micros(found) - (-offset if found["sign"] == "-" else offset)


def _local_time(value: Any) -> int | None:
    """Parse a time without a zone, or a date that was widened to one, as µs since 1970."""
    if isinstance(value, str) and _DATE.fullmatch(value):
        value = f"{value} 00:00:00"
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    return None if found is None or found["zone"] else _micros(found)


def _micros(found: re.Match[str]) -> int:
    second = datetime.fromisoformat(found["second"]) - _YEAR_1970
    micros = (second.days * 86_400 + second.seconds) * 1_000_000
    fraction = found["fraction"]
    return micros + int(fraction[:6].ljust(6, "0")) if fraction else micros


# delta-rs writes decimals as doubles of up to 17 digits, rounded several times.
_DIGITS_OF_DOUBLES = 17
_ROUNDED_BY = Decimal("1e-14")
_EXACT = Context(prec=100)


def _rounding(value: Decimal) -> Decimal:
    """Return the largest rounding error of a decimal that was written as a double."""
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    is_exact = len(digits) > _DIGITS_OF_DOUBLES
    return Decimal(0) if is_exact else _EXACT.multiply(value.copy_abs(), _ROUNDED_BY)


def _below_decimal(value: Decimal) -> Decimal:
    return _EXACT.subtract(value, _rounding(value))


def _above_decimal(value: Decimal) -> Decimal:
    return _EXACT.add(value, _rounding(value))


def _below_single(value: float) -> float:
    # A 4-byte float has 24 binary digits; the smallest is 2^-149.
    return value - abs(value) * 2**-22 - 2**-148


def _above_single(value: float) -> float:
    return value + abs(value) * 2**-22 + 2**-148


# Java's old classes write years before 1 without saying so, the year -43 as 0044. That of -1581 and
# of years before would be taken for a year of our time.
_OLD_YEARS = 1582


def _below_date(value: date) -> date:
    if value.year < _OLD_YEARS:
        return date.min
    # Java's old calendar lacks 5 to 14 October 1582: they are written as days that follow.
    return value - timedelta(days=10) if value.year == 1582 else value


def _above_date(value: date) -> date:
    # A session reads days of files that no Spark wrote by the old calendar or by ours, as does the
    # one that computes their statistics (spark.sql.parquet.datetimeRebaseModeInRead).
    return value + timedelta(days=12) if value.year <= _OLD_YEARS else value


_MILLISECOND, _MINUTE, _DAY = 1_000, 60_000_000, 86_400_000_000  # microseconds
# Java's old classes write local times before 1900 with the zone's present offset, from which the
# offset of that time differs by up to a day, and have the calendar and years of `_below_date`.
_YEAR_1582, _YEAR_1901 = -12_244_089_600_000_000, -2_177_452_800_000_000
_OFF_BEFORE_1900 = 12 * _DAY
# Before 1973, some time zones were not whole minutes from UTC, and some writers leave the seconds
# out. Not all writers round times before 1970 down.
_YEAR_1973 = 94_694_400_000_000


def _below_time(value: int) -> int:
    if value < _YEAR_1901:
        lowest = value - _OFF_BEFORE_1900
        return lowest if lowest >= _YEAR_1582 else _NUMBERS_OF_64_BITS[0]
    return value - _MINUTE if value < _YEAR_1973 else value


def _above_time(value: int) -> int:
    if value < _YEAR_1901:
        return value + _OFF_BEFORE_1900
    return value + (_MINUTE if value < _YEAR_1973 else _MILLISECOND)


_UNCUT = 8  # characters; no writer truncates to fewer
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)  # no characters
# Delta writes this for bytes that are not valid UTF-8. Spark does not check bytes that are cast to
# a string, and orders them differently. Older releases end bounds with it, too.
_REPLACED = "\ufffd"


def _below_text(value: str) -> str:
    return value.partition(_REPLACED)[0]


def _above_text(value: str) -> str | None:
    """Return a string that is above all strings with this prefix; None if there is none.

    Writers truncate long strings, and some append a character so that the bound stays above. Older
    writers may append one that is too low, or after half a character. So the last two characters
    are not trusted.
    """
    if len(value) < _UNCUT and _REPLACED not in value:
        return value
    known = value if len(value) < _UNCUT else value[:-2]
    beginning = known.partition(_REPLACED)[0].rstrip(_LAST_CHARACTER)
    if not beginning:
        return None
    following = ord(beginning[-1]) + 1
    return beginning[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


_OF_WHOLE = Meaning(whole)
MEANINGS: dict[type[DataType], Meaning] = {
    ByteType: _OF_WHOLE,
    ShortType: _OF_WHOLE,
    IntegerType: _OF_WHOLE,
    LongType: _OF_WHOLE,
    DecimalType: Meaning(_decimal, _below_decimal, _above_decimal),
    FloatType: Meaning(_single, _below_single, _above_single),
    DoubleType: Meaning(_double),
    StringType: Meaning(_string_or_none, _below_text, _above_text),
    DateType: Meaning(_date, _below_date, _above_date),
    TimestampType: Meaning(_moment, _below_time, _above_time),
    TimestampNTZType: Meaning(_local_time, _below_time, _above_time),
}


Statistics = dict[str, Any]
"""A file's statistics as Delta's log has them: parsed JSON, numbers with all of their digits."""

NUM_RECORDS = StructField("numRecords", LongType())


def parsed(text: str | None) -> Statistics:
    """Parse a file's statistics, with all digits of their numbers; empty if they are no object."""
    try:
        found = json.loads(text or "{}", parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def num_physical_rows(statistics: Statistics) -> int | None:
    """Return the number of rows in a file, deleted rows included; None without statistics."""
    number = whole(statistics.get("numRecords"))
    return number if number is None or number >= 0 else None


def num_physical_rows_column() -> Column:
    """Build the column of a file's number of rows, deleted rows included, over AddFile's fields."""
    return F.from_json("stats", StructType([NUM_RECORDS]))["numRecords"]
