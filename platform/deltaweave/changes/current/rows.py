"""A table of current rows (slowly changing dimension of type 1): the newest event of a key wins.

Each row has the sequence of its newest event in `_cdc_sequence`. If events may leave columns out,
each column has the value of the newest event that sets it. `_cdc_column_sequences` then has the
sequences of columns whose event is not the row's, null for columns that no event set. So a row
consists of maxima over all events of its key. It is the same in whatever order they were applied,
and a repeated event changes nothing.

A delete removes all that is older. `tombstones` remembers it once the row is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructField

from deltaweave import clauses
from deltaweave.changes.current.combining import (
    COLUMN_SEQUENCES,
    DELETED,
    SPOKEN_OF,
    UPSERTED,
    combined,
    new_row,
)
from deltaweave.changes.current.tombstones import Tombstones
from deltaweave.changes.current.truncates import clauses_for_other_keys
from deltaweave.changes.epochs import NEWEST, newest_changes, unless_of_other_log
from deltaweave.changes.events import (
    DELETE,
    INSERTED,
    OPERATION,
    SEQUENCE,
    TRUNCATE,
    UPSERT,
    VALUES,
    Events,
    speaks_of,
)
from deltaweave.changes.lineage import OfOneLine
from deltaweave.clauses import Clause
from deltaweave.delta.jvm import grouped
from deltaweave.engine.report import MergeResult
from deltaweave.identifiers import column, quoted
from deltaweave.table import Table


def current_row_columns(events: Events) -> list[StructField]:
    """Return the columns that a table of current rows has in addition to the events' columns."""
    fields = [StructField(SEQUENCE, events.sequence_type)]
    if events.shape.is_partial:
        sequences = MapType(StringType(), events.sequence_type)
        fields.append(StructField(COLUMN_SEQUENCES, sequences))
    return fields


def newest_of_keys(events: Events) -> DataFrame:
    """Reduce the events to one row for each key: the maxima over its events.

    Columns: the keys; `_cdc_upserted` and `_cdc_deleted`, the sequences of the newest upsert and
    delete; `_cdc_values`, the newest values; if upserts may leave columns out, `_cdc_spoken_of`, a
    struct with the sequence of each column's value; if events say that they insert,
    `_cdc_inserted`, null for a key with events that do not say; if sequences tell logs apart,
    `_cdc_newest`.
    """
    is_upsert = F.col(OPERATION) == UPSERT
    upserted = F.when(is_upsert, F.col(SEQUENCE))
    maxima = [
        F.max(upserted).alias(UPSERTED),
        F.max(F.when(F.col(OPERATION) == DELETE, F.col(SEQUENCE))).alias(DELETED),
    ]
    if INSERTED in events.rows.columns:
        inserts = F.when(F.bool_or(INSERTED), True)
        is_told = F.bool_and(F.col(INSERTED).isNotNull())
        maxima.append(inserts.when(is_told, False).alias(INSERTED))
    if events.shape.log_fields:
        maxima.append(F.expr(newest_changes(events.shape.log_fields)).alias(NEWEST))
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
        maxima.append(F.struct(*sequences).alias(SPOKEN_OF))
    keys = [quoted(key) for key in events.shape.keys]
    rows = events.rows.where(F.col(OPERATION) != TRUNCATE)
    # No event lacks its key. Stated here, this filter is the same for all joins of the result, so
    # they share its computation.
    for key in events.shape.keys:
        rows = rows.where(column(key).isNotNull())
    return grouped(rows, keys, maxima)


def apply_to_current_rows(
    table: Table,
    events: Events,
    tombstones: Tombstones,
    idempotency: tuple[str, int] | None,
    line: OfOneLine,
) -> MergeResult:
    """Apply the events to the table; their deletes are remembered already.

    If the table leaves the line of commits to which these deletes belong, this is a conflict.

    Other runs may meanwhile remember deletes of keys that this merge inserts. Further merges then
    apply these deletes, even if an earlier run applied the same pair and died before it did.
    """
    newest = newest_of_keys(events)
    version = tombstones.version()
    changes = alive(tombstones.with_deletes(newest, events, version), events)
    result = _merge(table, changes, events, line, idempotency)
    seen = None if result.was_applied_before else version
    further = line.of_further_merges
    while (version := tombstones.version()) != seen:
        deleted = _without_upserts(tombstones.with_deletes(newest, events, version), events)
        result = result.then(_merge(table, deleted, events, further))
        seen = version
    return line.checked(result, table)


def alive(changes: DataFrame, events: Events) -> DataFrame:
    """Drop upserts that are older than the key's last delete from the changes.

    Evaluating them is an error if they are of several logs that nothing tells apart.
    """
    shape = events.shape
    if shape.log_fields:
        keys = {key: quoted(key) for key in shape.keys}
        last = f"greatest({UPSERTED}, {DELETED})"
        upserted = unless_of_other_log(UPSERTED, shape.log_fields, keys, NEWEST, last)
        changes = changes.withColumn(UPSERTED, F.expr(upserted))

    def if_newer(sequence: Column) -> Column:
        deleted = F.col(DELETED)
        return F.when(deleted.isNull() | (sequence > deleted), sequence)

    changes = changes.withColumn(UPSERTED, if_newer(F.col(UPSERTED)))
    if events.shape.is_partial:
        spoken = [if_newer(F.col(SPOKEN_OF)[c]).alias(c) for c in events.shape.columns]
        changes = changes.withColumn(SPOKEN_OF, F.struct(*spoken))
    return changes


def _without_upserts(changes: DataFrame, events: Events) -> DataFrame:
    """Keep only the deletes among the changes."""
    nothing = F.lit(None).cast(changes.schema[UPSERTED].dataType)
    changes = changes.withColumn(UPSERTED, nothing)
    if events.shape.is_partial:
        spoken = [nothing.alias(c) for c in events.shape.columns]
        changes = changes.withColumn(SPOKEN_OF, F.struct(*spoken))
    return changes.where(F.col(DELETED).isNotNull())


def _merge(
    table: Table,
    changes: DataFrame,
    events: Events,
    line: OfOneLine,
    idempotency: tuple[str, int] | None = None,
) -> MergeResult:
    keys = [f"t.{quoted(key)} = s.{quoted(key)}" for key in events.shape.keys]
    merge = table.merge(changes, on=" AND ".join(keys), idempotency=idempotency)
    return merge.add(*_clauses(events), *clauses_for_other_keys(events)).execute(lease=line)


def _clauses(events: Events) -> list[Clause]:
    shape = events.shape

    def row(name: str) -> str:
        return f"t.{quoted(name)}"

    def change(name: str) -> str:
        return f"s.{quoted(name)}"

    after = combined(shape, row, change)
    inserted = {key: change(key) for key in shape.keys} | new_row(shape, change)
    # If events have whole rows, an update needs nothing of the old row, not even its key.
    updated = after.values if shape.is_partial else inserted
    return [
        clauses.when_matched_delete(condition=f"NOT {after.is_there}"),
        clauses.when_matched_update(_quoted(updated), condition=after.differs),
        clauses.when_not_matched_insert(
            _quoted(inserted), condition=f"{change(UPSERTED)} IS NOT NULL"
        ),
    ]


def _quoted(values: Mapping[str, str]) -> dict[str, str | Column]:
    return {quoted(name): value for name, value in values.items()}
