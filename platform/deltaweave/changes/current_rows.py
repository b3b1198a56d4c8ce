"""A table of current rows (slowly changing dimension of type 1): the newest event of a key wins.

Each row has the sequence of its newest event in `_cdc_sequence`. Where events may speak of some
columns alone, each column has the value of the newest event that speaks of it, and the columns
whose event is another than the row's are in `_cdc_column_sequences` with its sequence, null where
no event ever spoke of them. A key's row is thus what maxima over all its events make of it, so
that it is the same in whatever order they were applied; an event that comes again changes nothing.

A delete takes all that is older. What is known of it when the row is gone is in `tombstones`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructField

from deltaweave.changes.events import (
    DELETE,
    OPERATION,
    PREFIX,
    SEQUENCE,
    TRUNCATE,
    UPSERT,
    VALUES,
    Events,
    last_at,
    literal,
    speaks_of,
)
from deltaweave.changes.tombstones import DELETED, Tombstones
from deltaweave.engine import clauses
from deltaweave.engine.clauses import Clause
from deltaweave.engine.outcome import MergeResult
from deltaweave.identifiers import quoted
from deltaweave.table import Table

COLUMN_SEQUENCES = f"{PREFIX}column_sequences"

_UPSERTED = f"{PREFIX}upserted"
_SPOKEN_OF = f"{PREFIX}spoken_of"


def further_columns(events: Events) -> list[StructField]:
    """The columns of a table of current rows beside those of the events."""
    fields = [StructField(SEQUENCE, events.sequence_type)]
    if events.shape.is_partial:
        sequences = MapType(StringType(), events.sequence_type)
        fields.append(StructField(COLUMN_SEQUENCES, sequences))
    return fields


def newest_of_keys(events: Events) -> DataFrame:
    """One row for each key: the maxima over its events.

    Columns: the keys; `_cdc_upserted` and `_cdc_deleted`, the sequences of the newest upsert and
    delete; `_cdc_values`, the newest values; where upserts may leave columns out, `_cdc_spoken_of`,
    a struct with the sequence of each column's value.
    """
    is_upsert = F.col(OPERATION) == UPSERT
    upserted = F.when(is_upsert, F.col(SEQUENCE))
    maxima = [
        F.max(upserted).alias(_UPSERTED),
        F.max(F.when(F.col(OPERATION) == DELETE, F.col(SEQUENCE))).alias(DELETED),
    ]
    columns = events.shape.columns
    if not events.shape.is_partial:
        maxima.append(F.max_by(VALUES, upserted).alias(VALUES))
    else:
        spoken = {
            c: F.when(is_upsert & speaks_of(c, events.shape), F.col(SEQUENCE)) for c in columns
        }
        values = [F.max_by(F.col(VALUES)[c], spoken[c]).alias(c) for c in columns]
        maxima.append(F.struct(*values).alias(VALUES))
        sequences = [F.max(spoken[c]).alias(c) for c in columns]
        maxima.append(F.struct(*sequences).alias(_SPOKEN_OF))
    keys = [quoted(key) for key in events.shape.keys]
    return events.rows.where(F.col(OPERATION) != TRUNCATE).groupBy(*keys).agg(*maxima)


def apply_to_current_rows(
    table: Table, events: Events, tombstones: Tombstones, idempotency: tuple[str, int] | None
) -> MergeResult:
    """Bring the table's rows up to the events, whose deletes are remembered already."""
    newest = newest_of_keys(events)
    while True:
        version = tombstones.version()
        changes = _alive(tombstones.with_deletes(newest, events, version), events)
        result = _merge(table, changes, events, idempotency)
        # Deletes that others remembered meanwhile may be of keys that were inserted just now.
        if tombstones.version() == version:
            return result
        idempotency = None


def _alive(changes: DataFrame, events: Events) -> DataFrame:
    """The changes without upserts that are older than the key's last delete."""

    def if_newer(sequence: Column) -> Column:
        deleted = F.col(DELETED)
        return F.when(deleted.isNull() | (sequence > deleted), sequence)

    changes = changes.withColumn(_UPSERTED, if_newer(F.col(_UPSERTED)))
    if events.shape.is_partial:
        spoken = [if_newer(F.col(_SPOKEN_OF)[c]).alias(c) for c in events.shape.columns]
        changes = changes.withColumn(_SPOKEN_OF, F.struct(*spoken))
    return changes


def _merge(
    table: Table, changes: DataFrame, events: Events, idempotency: tuple[str, int] | None
) -> MergeResult:
    keys = [f"t.{quoted(key)} = s.{quoted(key)}" for key in events.shape.keys]
    merge = table.merge(changes, on=" AND ".join(keys), idempotency=idempotency)
    of_rows = _column_clauses(events) if events.shape.is_partial else _row_clauses(events)
    return merge.add(*of_rows, *_truncating(events)).execute()


def _row_clauses(events: Events) -> list[Clause]:
    upserted, deleted, held = F.col(f"s.{_UPSERTED}"), F.col(f"s.{DELETED}"), F.col(f"t.{SEQUENCE}")
    values = {quoted(c): F.col(f"s.{VALUES}")[c] for c in events.shape.columns}
    values[SEQUENCE] = upserted
    keys = {quoted(key): F.col(f"s.{quoted(key)}") for key in events.shape.keys}
    return [
        # A row without a sequence was there before any event.
        clauses.when_matched_delete(
            condition=upserted.isNull() & F.coalesce(deleted >= held, deleted.isNotNull())
        ),
        clauses.when_matched_update(
            values, condition=F.coalesce(upserted > held, upserted.isNotNull())
        ),
        clauses.when_not_matched_insert({**keys, **values}, condition=upserted.isNotNull()),
    ]


def _column_clauses(events: Events) -> list[Clause]:
    shape = events.shape
    upserted, deleted, held = F.col(f"s.{_UPSERTED}"), F.col(f"s.{DELETED}"), F.col(f"t.{SEQUENCE}")
    others = F.col(f"t.{COLUMN_SEQUENCES}")

    def outlives(sequence: Column) -> Column:
        return F.coalesce(sequence > deleted, deleted.isNull())

    row_outlives = outlives(held)
    sequence = F.greatest(upserted, F.when(row_outlives, held))
    values: dict[str, str | Column] = {SEQUENCE: sequence}
    inserted: dict[str, str | Column] = {
        quoted(key): F.col(f"s.{quoted(key)}") for key in shape.keys
    }
    inserted[SEQUENCE] = upserted
    of_columns, of_inserted, changing = {}, {}, [F.lit(False)]
    for c in shape.columns:
        spoken = F.col(f"s.{_SPOKEN_OF}")[c]
        held_of = F.when(F.map_contains_key(others, c), others[c]).otherwise(held)
        kept = outlives(held_of)
        wins = spoken.isNotNull() & (~kept | F.coalesce(spoken > held_of, F.lit(True)))
        old, new = F.col(f"t.{quoted(c)}"), F.col(f"s.{VALUES}")[c]
        values[quoted(c)] = F.when(wins, new).when(kept, old)
        inserted[quoted(c)] = F.when(spoken.isNotNull(), new)
        of_columns[c] = F.when(wins, spoken).when(kept, held_of)
        of_inserted[c] = spoken
        changing += [wins, ~kept & held_of.isNotNull()]
    values[COLUMN_SEQUENCES] = _other_than(sequence, of_columns)
    inserted[COLUMN_SEQUENCES] = _other_than(upserted, of_inserted)
    newer = F.coalesce(upserted > held, upserted.isNotNull())
    return [
        clauses.when_matched_delete(condition=upserted.isNull() & ~row_outlives),
        clauses.when_matched_update(values, condition=newer | reduce(or_, changing)),
        clauses.when_not_matched_insert(inserted, condition=upserted.isNotNull()),
    ]


def _other_than(sequence: Column, of_columns: dict[str, Column]) -> Column:
    """The columns' sequences by name, without those that are the row's; null where all are."""
    # Not as a filter of a map: Delta resolves no columns of a merge inside lambda functions.
    entries = [
        F.when(~of.eqNullSafe(sequence), F.struct(F.lit(c).alias("key"), of.alias("value")))
        for c, of in of_columns.items()
    ]
    others = F.map_from_entries(F.array_compact(F.array(*entries)))
    return F.when(F.size(others) > 0, others)


def _truncating(events: Events) -> list[Clause]:
    """What becomes of the rows of other keys where an event empties the table."""
    if events.truncated is None:
        return []
    held = F.col(f"t.{SEQUENCE}")
    truncated = last_at(literal(events.truncated, events.sequence_type["at"].dataType))
    found = [
        clauses.when_not_matched_by_source_delete(
            condition=F.coalesce(held <= truncated, F.lit(True))
        )
    ]
    if not events.shape.is_partial:
        return found
    others = F.col(f"t.{COLUMN_SEQUENCES}")
    emptied: dict[str, str | Column] = {}
    for c in events.shape.columns:
        is_older = F.map_contains_key(others, c) & (others[c] <= truncated)
        emptied[quoted(c)] = F.when(~F.coalesce(is_older, F.lit(False)), F.col(f"t.{quoted(c)}"))
    emptied[COLUMN_SEQUENCES] = F.transform_values(
        others, lambda _, each: F.when(each > truncated, each)
    )
    has_older = F.exists(F.map_values(others), lambda each: each <= truncated)
    found.append(clauses.when_not_matched_by_source_update(emptied, condition=has_older))
    return found
