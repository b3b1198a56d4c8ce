"""Which rows of a table belong to partitions: an SQL predicate over the partition expression.

The type of the expression decides with what it is compared (`docs/internals/outputs.md`). When
clocks are set back, an hour occurs twice: a wall-clock time is refused for a window that begins or
ends between the two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

from dagster import MultiPartitionKey, MultiPartitionsDefinition, PartitionsDefinition
from dagster import TimeWindowPartitionsDefinition as TimeWindows
from pyspark.sql.types import DataType, DateType, StringType, TimestampNTZType, TimestampType

from dagster_deltaweave.partitions.positions import is_skipped
from deltaweave.delta.jvm import parsed_expression, translated
from deltaweave.errors import StatementError
from deltaweave.identifiers import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The key of the rows for which the partition expression is null, as Hive's directories name it."""

NO_ROW_PREDICATE = "false"
"""The predicate of no partition's rows."""

_SAMPLE_TIME = datetime(2033, 11, 22, 13, 14, 15)
_LIKE_DATE = re.compile(r"....-..-..")
_ANY_TIME, _TIME_WITH_MINUTES = "%", "__:%"
_ANY_TEXT = {" ": _ANY_TIME, "T": _ANY_TIME}
_SHORTEST_DAY = timedelta(hours=23)
_HOUR = timedelta(hours=1)
_COMES_TWICE = "wall-clock times, and one of the partition's comes twice"
_Window = tuple[datetime, datetime]


def partition_predicate(
    definition: PartitionsDefinition[str] | None,
    keys: Sequence[str],
    expression: str | Mapping[str, str] | None,
    *,
    table: str,
    rows: DataFrame,
) -> str:
    """Build the SQL predicate of the rows of these partitions.

    `definition` is that of the asset's partitions; None if it has none.

    Raises:
        StatementError: There is no expression, or none for a dimension, or no partition; or the
            expression's type, or texts of times among the rows, cannot distinguish the rows of
            these partitions from others.
    """
    if definition is None or not keys:
        raise _no_predicate("the run names none of the asset's partitions.", table)
    if isinstance(definition, MultiPartitionsDefinition):
        return _multi_predicate(definition, keys, expression, table, rows)
    if not isinstance(expression, str) or not expression.strip():
        raise _no_predicate("nothing says which rows a partition has.", table)
    return _predicate(definition, keys, expression, table, rows)


def _multi_predicate(
    definition: MultiPartitionsDefinition,
    keys: Sequence[str],
    expression: str | Mapping[str, str] | None,
    table: str,
    rows: DataFrame,
) -> str:
    expressions = expression if isinstance(expression, Mapping) else {}
    lacking = [each.name for each in definition.partitions_defs if not expressions.get(each.name)]
    if lacking:
        raise _no_predicate(
            f"nothing says which rows a partition has, by {', '.join(lacking)}.", table
        )
    first, second = definition.partitions_defs
    # A year of days in a hundred regions is one condition, and not 36,500.
    seconds: defaultdict[str, set[str]] = defaultdict(set)
    for key in keys:
        parts = _by_dimension(definition, key)
        seconds[parts[first.name]].add(parts[second.name])
    firsts: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for part, others in seconds.items():
        firsts[tuple(sorted(others))].append(part)

    terms = [
        " AND ".join(
            _predicate(each.partitions_def, those, expressions[each.name], table, rows)
            for each, those in ((first, some), (second, others))
        )
        for others, some in firsts.items()
    ]
    return " OR ".join(f"({term})" for term in terms)


def _by_dimension(definition: MultiPartitionsDefinition, key: str) -> Mapping[str, str]:
    known = (
        key if isinstance(key, MultiPartitionKey) else definition.get_partition_key_from_str(key)
    )
    return known.keys_by_dimension


def _predicate(
    definition: PartitionsDefinition[str],
    keys: Sequence[str],
    expression: str,
    table: str,
    rows: DataFrame,
) -> str:
    with translated(table, operation="choosing partitions", otherwise=StatementError):
        partition = parsed_expression(rows.sparkSession, f"({expression})")
        kind = rows.select(partition.alias("partition")).schema[0].dataType
    if isinstance(definition, TimeWindows):
        return _windows_predicate(definition, keys, expression, kind, table, rows)
    return _keys_predicate(keys, expression)


def _keys_predicate(keys: Sequence[str], expression: str) -> str:
    named = [literal(key) for key in keys if key != NULL_PARTITION]
    parts = [f"({expression}) IN ({', '.join(named)})"] if named else []
    if len(named) < len(keys):
        parts.append(f"({expression}) IS NULL")
    return f"({' OR '.join(parts)})" if len(parts) > 1 else parts[0]


def _windows_predicate(
    definition: TimeWindows,
    keys: Sequence[str],
    expression: str,
    kind: DataType,
    table: str,
    rows: DataFrame,
) -> str:
    windows = _windows(definition, keys)
    if isinstance(kind, TimestampType):
        return _windows_condition(expression, windows, _instant_literal)
    if isinstance(kind, TimestampNTZType):
        if _begin_or_end_between_two(windows):
            raise _inseparable(windows, _COMES_TWICE, kind, table)
        return _windows_condition(
            expression, windows, lambda moment: f"TIMESTAMP_NTZ'{moment:%Y-%m-%d %H:%M:%S}'"
        )
    if isinstance(kind, DateType):
        if not _are_days(definition, keys, windows):
            raise _inseparable(windows, "days, and a partition is a part of one", kind, table)
        return _windows_condition(
            expression, windows, lambda moment: f"DATE{_date_literal(moment)}"
        )
    if isinstance(kind, StringType):
        texts = _texts_predicate(definition, keys, expression, windows)
        if texts is not None and _begin_or_end_between_two(windows):
            if _has_times(definition, rows, expression, windows, table):
                raise _inseparable(windows, _COMES_TWICE, kind, table)
            texts = None
        has_key = _keys_predicate(keys, expression)
        return has_key if texts is None else f"({has_key} OR {texts})"
    return _keys_predicate(keys, expression)


def _texts_predicate(
    definition: TimeWindows, keys: Sequence[str], expression: str, windows: Sequence[_Window]
) -> str | None:
    """Build the condition for texts of times in the windows, or None if only keys belong to them.

    No key may be among the times of another window. `2024-01-01 06` is, if it begins at 06:30.
    """
    likes = _likes_of_times(definition)
    times = _times_predicate(definition, expression, windows, likes) if likes else None
    begins = _SAMPLE_TIME.strftime(definition.fmt)
    are_dated = not _LIKE_DATE.match(begins) or begins.startswith(f"{_SAMPLE_TIME:%Y-%m-%d}")
    if are_dated and _begin_and_end_days(windows):
        # All hours of a day together have the texts of their date, too.
        each_window = map(definition.time_window_for_partition_key, keys)
        if ("T" in likes and likes.get(" ") == _ANY_TIME) or _begin_and_end_days(
            [(each.start, each.end) for each in each_window]
        ):
            return _dates_predicate(expression, windows, "____-__-__%")
        dates = _dates_predicate(expression, windows, "____-__-__")
        return f"{dates} OR {times}" if times else dates
    return times


def _likes_of_times(definition: TimeWindows) -> dict[str, str]:
    """Return LIKE patterns of texts of times that no key with another order matches.

    Returns:
        What separates the date from the time to the pattern of what follows it.
    """
    key, found = _SAMPLE_TIME.strftime(definition.fmt), dict[str, str]()
    for separator in " T":
        like_a_time = re.match(rf"....-..-..{separator}(..:)?", key)
        if not like_a_time or key.startswith(f"{_SAMPLE_TIME:%Y-%m-%d{separator}%H:%M}"):
            found[separator] = _ANY_TIME
        elif not like_a_time[1]:
            found[separator] = _TIME_WITH_MINUTES
    return found


def _begin_and_end_days(windows: Sequence[_Window]) -> bool:
    return all(_begins_a_day(moment) for window in windows for moment in window)


def _dates_predicate(expression: str, windows: Sequence[_Window], like: str) -> str:
    """Build the condition for texts of dates, or that begin with one, in the windows."""
    in_windows = _windows_condition(expression, windows, _date_literal)
    return f"(({expression}) LIKE '{like}' AND {in_windows})"


def _times_predicate(
    definition: TimeWindows, expression: str, windows: Sequence[_Window], likes: Mapping[str, str]
) -> str:
    """Build the condition for texts of wall-clock times in the windows."""
    each_form = []
    for separator, like in likes.items():
        spelt = partial(_clock_text, separator=separator)
        in_windows = _windows_condition(expression, windows, spelt)
        are_times = f"({expression}) LIKE '____-__-__{separator}{like}'"
        if separator == "T":  # ISO 8601, where a text may name a zone; its clock then counts not
            zone = "(Z|[+]00:00)?" if definition.timezone in ("UTC", "Etc/UTC") else ""
            are_times += f" AND ({expression}) RLIKE '^[-0-9]*T[0-9:.]*{zone}$'"
        each_form.append(f"({are_times} AND {in_windows})")
    return f"({' OR '.join(each_form)})"


def _has_times(
    definition: TimeWindows,
    rows: DataFrame,
    expression: str,
    windows: Sequence[_Window],
    table: str,
) -> bool:
    """Return whether rows have texts of the windows' wall-clock times, by a Spark job."""
    # Before the clock was set back to the window's end, it went on for up to an hour.
    shown = [(start, end + _HOUR if _comes_twice(end) else end) for start, end in windows]
    with translated(table, operation="choosing partitions"):
        likes = _ANY_TEXT | _likes_of_times(definition)
        times = _times_predicate(definition, expression, shown, likes)
        are_texts = parsed_expression(rows.sparkSession, times)
        return not rows.where(are_texts).isEmpty()


def _windows_condition(
    expression: str, windows: Sequence[_Window], spelt: Callable[[datetime], str]
) -> str:
    if not windows:
        return NO_ROW_PREDICATE
    each = (
        f"(({expression}) >= {spelt(start)} AND ({expression}) < {spelt(end)})"
        for start, end in windows
    )
    return f"({' OR '.join(each)})"


def _windows(definition: TimeWindows, keys: Sequence[str]) -> list[_Window]:
    """Return the partitions' time windows in their time zone, adjacent ones as one.

    A time that the zone skipped has no rows: Dagster gives it the window of the next key.
    """
    keys = [key for key in keys if not is_skipped(definition, key)]
    if not keys:
        return []
    # Compared as instants, because Python compares times in one zone by their wall clocks.
    instants = sorted(
        (window.start.astimezone(timezone.utc), window.end.astimezone(timezone.utc))
        for window in map(definition.time_window_for_partition_key, keys)
    )
    joined = [instants[0]]
    for start, end in instants[1:]:
        last_start, last_end = joined[-1]
        if start > last_end:
            joined.append((start, end))
        else:
            joined[-1] = (last_start, max(end, last_end))
    zone = definition.time_window_for_partition_key(keys[0]).start.tzinfo
    return [(start.astimezone(zone), end.astimezone(zone)) for start, end in joined]


def _are_days(definition: TimeWindows, keys: Sequence[str], windows: Sequence[_Window]) -> bool:
    """Return whether the windows are whole days; a day may begin at six in the morning."""
    if _begin_and_end_days(windows):
        return True
    return all(
        end.astimezone(timezone.utc) - start.astimezone(timezone.utc) >= _SHORTEST_DAY
        for start, end in map(definition.time_window_for_partition_key, keys)
    )


def _begins_a_day(moment: datetime) -> bool:
    """Return whether a time is the first moment of its day, which need not be midnight."""
    before = moment.astimezone(timezone.utc) - timedelta(microseconds=1)
    return before.astimezone(moment.tzinfo).date() < moment.date()


def _comes_twice(moment: datetime) -> bool:
    """Return whether a wall-clock time also occurred an hour before, so that it is ambiguous."""
    earlier = moment.replace(fold=0).astimezone(timezone.utc)
    return moment.fold == 1 and earlier != moment.astimezone(timezone.utc)


def _begin_or_end_between_two(windows: Sequence[_Window]) -> bool:
    """Return whether a window begins or ends at a wall-clock time that comes twice."""
    return any(_comes_twice(moment) for window in windows for moment in window)


def _instant_literal(moment: datetime) -> str:
    return f"TIMESTAMP'{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}+00:00'"


def _clock_text(moment: datetime, separator: str) -> str:
    # Texts may lack zero seconds and minutes, and then sort before those that have them.
    text = f"{moment:%Y-%m-%d}{separator}{moment:%H:%M:%S}"
    return literal(text.removesuffix(":00").removesuffix(":00"))


def _date_literal(moment: datetime) -> str:
    return f"'{moment:%Y-%m-%d}'"


def _inseparable(windows: Sequence[_Window], by: str, kind: DataType, table: str) -> StatementError:
    (start, _), (_, end) = windows[0], windows[-1]
    return StatementError(
        f"partition_expr gives a {kind.simpleString().upper()}, which cannot separate rows from "
        f"{start.isoformat()} to {end.isoformat()} from others: it gives {by}.",
        table=table,
        operation="choosing partitions",
        hint="Let partition_expr give a TIMESTAMP, or the partition's key as a string.",
    )


def _no_predicate(problem: str, table: str) -> StatementError:
    return StatementError(
        problem,
        table=table,
        operation="choosing partitions",
        hint="Give the asset partition_expr, the SQL expression of a row's partition (one for "
        "each dimension), and run it for partitions.",
    )
