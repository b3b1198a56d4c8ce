"""Events that cannot be applied: they stop their batch, or are kept in a table of their own.

An event is unusable if its key has a null, it has no sequence, it names columns that do not exist,
or what read it found something wrong with its values. A column that no message of a batch has is
named in a warning: its name may be wrong, and it would be null.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaweave.delta.jvm import grouped, json_text
from deltaweave.errors import SourceError
from deltaweave.identifiers import column

WRONG = "_cdc_wrong"
"""Column of events: why an event is unusable, its message and itself; null if it is usable."""

_SHOWN = 10

ABSENT = "_cdc_absent"
"""Column of events: the columns that the event's message does not have (array of strings)."""

_FIELD = "absent"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a source's rows that decide whether they are usable.

    Attributes:
        keys: The key columns.
        needs_key: Whether the event needs a key.
        has_sequence: Whether it has a sequence.
        present: The columns that it says it sets, or None if events do not say.
        message: Column with the event's message, a struct of `place`, `problem` and `event`
            (strings), or None.
    """

    keys: Sequence[str]
    needs_key: Column
    has_sequence: Column
    present: Column | None
    message: str | None


def wrong_of(source: DataFrame, parts: Parts, *, keeps_events: bool) -> Column:
    """Return `_cdc_wrong` of a source's rows: a struct of `reason`, `message` and `event`.

    Args:
        source: The rows.
        parts: What of them decides.
        keeps_events: Whether `event` is needed; it is null otherwise.
    """
    lacks_key = F.lit(False)
    for key in parts.keys:
        lacks_key = lacks_key | column(key).isNull()
    nulls = F.concat_ws(", ", *[F.when(column(k).isNull(), F.lit(k)) for k in parts.keys])
    null_key = F.when(parts.needs_key & lacks_key, F.concat(F.lit("a null in its key "), nulls))
    reasons = [null_key, F.when(~parts.has_sequence, F.lit("no sequence"))]
    if parts.present is not None:
        unknown = F.array_except(parts.present, F.array(*map(F.lit, source.columns)))
        named = F.concat(F.lit("the name of a missing column: "), F.array_join(unknown, ", "))
        reasons.append(F.when(F.size(unknown) > 0, named))
    none = F.lit(None).cast("string")
    place, event = none, none
    if keeps_events:
        every = F.struct(*[column(name).alias(name) for name in source.columns])
        event = json_text(every, with_nulls=True)
    if parts.message is not None:
        message = column(parts.message)
        reasons.insert(0, message["problem"])
        place, event = message["place"], message["event"]
    reason = F.coalesce(*reasons)
    wrong = F.struct(reason.alias("reason"), place.alias("message"), event.alias("event"))
    return F.when(reason.isNotNull(), wrong)


def refused(
    rows: DataFrame, keys: Sequence[str], at: Column, count: tuple[int, int], table: str
) -> SourceError:
    """Return the error that names up to 10 of the unusable events.

    Args:
        rows: The unusable events.
        keys: The key columns of the events.
        at: The sequence of the events.
        count: How many they are, and how many events the batch has.
        table: The table, for the message.
    """
    # As text from Spark, because Python has no dates after the year 9999.
    texts = [column(key).cast("string") for key in keys]
    shown = rows.select(F.col(WRONG), at.cast("string"), *texts).take(_SHOWN)
    found = []
    for wrong, sequence, *of_key in shown:
        named = ", ".join(f"{key}={value}" for key, value in zip(keys, of_key, strict=True))
        place = f" ({wrong.message})" if wrong.message else ""
        found.append(f"{named} at {sequence}{place} has {wrong.reason}")
    return SourceError(
        f"{count[0]} of {count[1]} events cannot be applied: {'; '.join(found)}.",
        table=table,
        operation="reading changes",
        hint="Correct them or filter them out, or have them put into a table of their own "
        "(rescued=).",
    )


def absent_of(source: DataFrame, message: str | None) -> list[Column]:
    """Return `_cdc_absent` of a source's rows, if their messages say it.

    Args:
        source: The rows.
        message: Column with the message, a struct that may have the field `absent`, or None.
    """
    of_type = None if message is None else source.schema[message].dataType
    if message is None or not isinstance(of_type, StructType) or _FIELD not in of_type.names:
        return []
    return [column(message)[_FIELD].alias(ABSENT)]


def warnings_of(rows: DataFrame, is_upsert: Column, table: str) -> tuple[str, ...]:
    """Return a warning that names the columns that no upsert's message has, and log it.

    Args:
        rows: The usable events, kept in the executors' memory.
        is_upsert: Whether an event inserts or updates.
        table: The table, for the warning.
    """
    if ABSENT not in rows.columns:
        return ()
    of_upserts = rows.where(is_upsert).select(ABSENT)
    # Most batches have a message with all columns, which ends the first job.
    if of_upserts.where(F.coalesce(F.size(ABSENT) <= 0, F.lit(True))).take(1):
        return ()
    count = F.lit(of_upserts.count())
    names_of_events = of_upserts.select(F.explode(ABSENT).alias("name"))
    of_column = grouped(names_of_events, ["name"], [F.count(F.lit(1)).alias("count")])
    names = sorted(row["name"] for row in of_column.where(F.col("count") == count).collect())
    if not names:
        return ()
    warning = (
        f"{table}: no message of the batch has the column {', '.join(names)}, which stays as it "
        "is, or null: is the name right in schema=?"
    )
    logger.warning(warning)
    return (warning,)
