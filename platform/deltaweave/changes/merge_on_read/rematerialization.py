"""Merges changes into the base, or rewrites it with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, TimestampType

from deltaweave.changes.current import apply_to_current_rows
from deltaweave.changes.events import Events, count_events
from deltaweave.changes.merge_on_read.merged_view import MergedView
from deltaweave.changes.merge_on_read.sides import KnownDeletes, Sides
from deltaweave.changes.merge_on_read.watermark import (
    at_one_moment,
    merged_batch,
    restored_watermark,
    retire_earlier_watermark,
    watermark_id,
)
from deltaweave.changes.restores import LineageLease, lineage_lease
from deltaweave.changes.side_tables import Noting, Tombstones, noted_at_present
from deltaweave.changes.table_columns import generated
from deltaweave.delta.commit import TransactionId, without_session_transaction_id
from deltaweave.delta.log import TableSnapshot
from deltaweave.errors import CommitConflictError, StatementError
from deltaweave.identifiers import quoted
from deltaweave.table import Table

logger = logging.getLogger(__name__)

RematerializationStrategy = Literal["merge", "overwrite", "replace_where", "auto"]
REMATERIALIZATION_STRATEGIES: tuple[str, ...] = get_args(RematerializationStrategy)

# Above this share of changed rows, a table with deletion vectors is rewritten.
_MARKED_SHARE = 0.3
# Above this expected share of touched files, a table without them is rewritten.
_REWRITTEN_SHARE = 0.5


@dataclass(frozen=True)
class Rematerialized:
    """The outcome of a rematerialization.

    Attributes:
        version: The version of the base that it committed.
        batch: The newest batch that is in it.
        strategy: The strategy that was used.
    """

    version: int
    batch: int
    strategy: str


def best_strategy(base: Table, num_changes: int) -> RematerializationStrategy:
    """Choose by the share of changed rows, or by the expected share of touched files.

    Args:
        base: The table.
        num_changes: The number of events; they are assumed to change different rows, spread evenly.
    """
    layout = base.layout(small_file_bytes=0)
    if not layout.rows:
        return "overwrite"
    if base.setting("delta.enableDeletionVectors") == "true":
        return "merge" if num_changes <= _MARKED_SHARE * layout.rows else "overwrite"
    untouched = (1 - 1 / max(layout.files, 1)) ** num_changes
    if 1 - untouched <= _REWRITTEN_SHARE:
        return "merge"
    return "replace_where" if base.partition_columns() else "overwrite"


def touched_partitions(base: Table, view: MergedView) -> str:
    """Build the SQL condition of the partitions in which a row changes, before or after.

    Raises:
        StatementError: The base has no partitions.
    """
    columns = base.partition_columns()
    if not columns:
        raise StatementError(
            "the base has no partitions to replace.",
            table=base.path_or_name,
            operation="rematerializing",
            hint="Use merge or overwrite.",
        )
    keys = list(view.shape.keys)
    changed = view.changes.select(*map(quoted, keys))
    before = view.base.join(changed, keys, "left_semi").select(*map(quoted, columns))
    rows = view.rows("left_join_anti_join")
    after = rows.join(changed, keys, "left_semi").select(*map(quoted, columns))
    touched = before.unionByName(after).distinct()
    equalities = [_equals(name, touched.schema[name].dataType) for name in columns]
    conditions = touched.select(F.concat_ws(" AND ", *equalities).alias("condition"))
    # One row for each partition at most; the log lists these anyway.
    return " OR ".join(f"({row.condition})" for row in conditions.collect()) or "false"


def _equals(name: str, data_type: DataType) -> Column:
    """Build the SQL condition that a column has a row's value, as text.

    Spark makes the text, because Python has no years beyond 9999 and a time zone of its own. Times
    are compared by microseconds: in a zone with daylight saving, one hour of text is ambiguous each
    year.
    """
    column = F.col(quoted(name))
    if isinstance(data_type, TimestampType):
        micros = F.unix_micros(column).cast("string")
        value = F.concat(F.lit("timestamp_micros("), micros, F.lit(")"))
    elif isinstance(data_type, BinaryType):
        value = F.concat(F.lit("X'"), F.hex(column), F.lit("'"))
    else:
        text = column.cast("string")
        token = F.concat(F.lit("'"), text, F.lit("'"))
        # Settings change how SQL reads these characters in a token (`identifiers.literal`).
        in_bytes = F.concat(F.lit("CAST(X'"), F.hex(text), F.lit("' AS STRING)"))
        text = F.when(text.rlike(r"['\\$]"), in_bytes).otherwise(token)
        value = F.concat(F.lit("CAST("), text, F.lit(f" AS {data_type.simpleString()})"))
    is_equal = F.concat(F.lit(f"{quoted(name)} = "), value)
    return F.coalesce(is_equal, F.lit(f"{quoted(name)} IS NULL"))


def rewrite_base(
    sides: Sides,
    view: MergedView,
    read: TableSnapshot,
    until: int,
    strategy: str,
    lease: LineageLease,
) -> int | None:
    """Rewrite the base, or the partitions that change, with the rows of a view.

    Args:
        sides: The base and its changeset.
        view: The view of the version `read` of the base, and of the batches up to `until`.
        read: The version of the base.
        until: The newest batch in the view.
        strategy: `overwrite` or `replace_where`.
        lease: Remembers the deletes before the commit, which names them.

    Returns:
        The committed version; None if another run brought the batches in meanwhile.

    Raises:
        CommitConflictError: Another writer changed the base since that version.
    """
    base, predicate, columns = sides.base, None, view.base.columns
    if strategy == "replace_where":
        predicate = touched_partitions(base, view)
        view = replace(view, base=view.base.where(predicate))
    try:
        written = base.write(
            view.rows(view.best_for_all).select(*map(quoted, columns)),
            "overwrite",
            replace_where=predicate,
            applied={watermark_id(read.id): until, **lease.marks},
            computed_from=read.version,
            check=lease.before_commit,
        )
    except CommitConflictError:
        if merged_batch(base, sides.changes) >= until:
            return None
        raise
    return written.version


def _merge_events(
    base: Table,
    events: Events,
    tombstones: Tombstones,
    noting: Noting,
    lease: LineageLease,
    until: int,
) -> int | None:
    """Merge events into the base; None if another run brought them in meanwhile."""
    read = lease.newest
    assert read is not None
    applied = TransactionId(watermark_id(read.id), until)
    restored = restored_watermark(read, until)
    if restored is None:
        return apply_to_current_rows(base, events, tombstones, noting, lease, applied).version
    lease = lease.with_transaction_id(applied, restored)
    return apply_to_current_rows(base, events, tombstones, noting, lease).version


@without_session_transaction_id()
def rematerialized(sides: Sides, strategy: RematerializationStrategy) -> Rematerialized | None:
    """Merge all current batches into the base; see `MergeOnReadTable.rematerialize`."""
    base = sides.base
    base.snapshot()  # if there is no base, the error names it
    if not sides.changes.exists():
        return None
    moment = at_one_moment(base, sides.changes, sides.shape)
    snapshot, batches = moment.base, moment.batches
    until = batches.newest
    if until <= batches.after:
        sides.settle()  # for readers of the log alone, who then see that nothing is pending
        return None
    events = count_events(batches.rows, moment.changeset.shape)
    chosen = best_strategy(base, events.count) if strategy == "auto" else strategy
    if chosen == "replace_where" and events.truncated is not None:
        chosen = "overwrite"  # all partitions change
    if generated(snapshot.schema):
        # Rows may hold what another session's time zone generated, which Delta does not write.
        chosen = "merge"
    tombstones = Tombstones.of(base)
    tombstones.settle()
    noting = tombstones.noting(events, sides.options.keeps_deletes_for, noted_at_present())
    lease = lineage_lease(snapshot, noting.noted)
    if chosen == "merge":
        written = _merge_events(base, events, tombstones, noting, lease, until)
    else:
        whole, deletes = snapshot.read_whole(), KnownDeletes(tombstones, noting.read)
        view = sides.view(snapshot, whole, batches, events, deletes, asks_order=True)
        written = rewrite_base(sides, view, snapshot, until, chosen, noting.on(lease))
        seen = noting.seen_by(written, base, snapshot.version)
        if written is not None and tombstones.version() != seen:
            # Other runs remembered deletes in between. This commit may have written rows of their
            # keys, which the base did not have before.
            known = Noting(None, tombstones.version())
            since = lineage_lease(base.snapshot(written))
            apply_to_current_rows(base, events, tombstones, known, since)
    if written is None:
        return None
    retire_earlier_watermark(base)
    logger.info("%s: batches up to %d are in the base, by %s", base, until, chosen)
    return Rematerialized(written, until, chosen)
