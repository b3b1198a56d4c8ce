"""Events that cannot be applied: they stop their batch, or are kept in a table of their own.

An event is unusable if its key has a null, it has no sequence, it names columns that do not exist,
or what read it found something wrong with its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import json_text
from deltaweave.errors import SourceError
from deltaweave.identifiers import column

WRONG = "_cdc_wrong"
"""Column of events: why an event is unusable, its message and itself; null if it is usable."""

_SHOWN = 10


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
