"""The rows that strategies write: those of touched files after a merge, and of the source alone.

Of touched files, these are changed rows and, if asked for, unmodified ones. Of the source, these
are inserted rows, and updated rows whose new values read no column of the target, as with UPDATE
SET *.

Delta's MERGE uses a right or full outer join. Here a left join from the target gives changed rows,
and the pairs give the inserts. If the source is broadcast, target rows are not
shuffled and keep their order. If the pairs are too many for a broadcast, the inserts would shuffle
the source a second time, so one full outer join gives both.

Delta's writer puts rows whose `_change_type` is null into the table's files, and all others into
files of the change data feed. So where a table has a feed, each change becomes several rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.delta.jvm import plan_text
from deltaweave.delta.log import FileList, decoded_location
from deltaweave.delta.scan import RowColumns, TrackedColumns, target_plan, tracked_columns
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.clauses import (
    CLAUSE,
    CLAUSE_VALUES,
    FILE,
    NO_CLAUSE,
    NUMBER,
    SOURCE_ROW,
    TARGET_ROW_ID,
    TARGET_ROW_PRESENT,
    asked_after_join,
    clause_taken,
    columns_before,
    first_insert,
    insert_indexes,
    updated,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan, file_indexes
from deltaweave.engine.prune import Candidates
from deltaweave.engine.source import PreparedSource, within
from deltaweave.identifiers import back_quoted, column

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

CHANGE_TYPE = "_change_type"

_ROW, _BEFORE, _AFTER, _ENTRIES = "_row_", "_before_", "_after_", "_entries_"

# The bits of a row's index, below those of its file's number.
_ROW_INDEX_BITS = 40


def updates_from_source(
    transaction: Transaction, scan: TouchedFilesScan, *, with_row_ids: bool = True
) -> list[int] | None:
    """Return the indexes of the update clauses that took rows, if none needs the target's rows.

    None if one needs them for a value or, unless the caller has them, for a row id; or if nothing
    identifies source rows.
    """
    merge = transaction.merge
    took_rows = [i for i, count in scan.rows_by_clause.items() if count]
    updates = [i for i in took_rows if merge.clauses[i].action == "update"]
    if not updates:
        return updates
    if scan.source_identity is None:
        return None
    if with_row_ids and tracked_columns(transaction) is not None:
        return None
    clauses = [merge.clauses[i] for i in updates]
    # WHEN NOT MATCHED BY SOURCE updates rows that are not in the source, even to constants.
    alone = all(each.kind == "matched" and merge.reads_source_alone(each) for each in clauses)
    return updates if alone else None


def may_insert(run: MergeRun, scan: TouchedFilesScan) -> bool:
    """Return whether the statement inserts, and not every source row is known to match."""
    if not run.statement.of_kind("not_matched"):
        return False
    num_matching = scan.pairs.num_source_rows if scan.source_identity is not None else None
    return num_matching is None or num_matching < run.source.num_rows


def rows_after_scan(
    run: MergeRun,
    scan: TouchedFilesScan,
    updates: Sequence[int] = (),
) -> DataFrame:
    """Return the rows to insert and the new rows of the update clauses at these indexes.

    Args:
        updates: Indexes of the clauses, from `updates_from_source`.
    """
    merge = run.statement
    rows, inserts, identity = run.source.rows, insert_indexes(merge), scan.source_identity
    if identity is None:
        # Without an identity, pairs do not show which rows match: they are matched again, with the
        # files that hold matches.
        if scan.num_matched_rows:
            target = target_plan(run.transaction, scan.matched, merge.condition_columns())
            rows = rows.join(target, merge.condition, "left_anti")
        return _rows_taken(
            merge, rows.withColumn(CLAUSE, asked_after_join(merge, first_insert(merge))), inserts
        )
    if _takes_every_row_once(merge, run.source, scan, updates):
        return _values_of(merge, _in_few_files(rows, run.source), updates[0])
    rows = _in_few_files(_with_clause(merge, rows, scan, identity, updates), run.source)
    return _rows_taken(merge, rows, [*inserts, *updates])


def _takes_every_row_once(
    merge: ResolvedMerge, source: PreparedSource, scan: TouchedFilesScan, updates: Sequence[int]
) -> bool:
    """Return whether every source row gives one row, with the values of the one update clause.

    The source is then written without a join with the pairs. It is known only if the pairs are on
    the driver.
    """
    num_matching = scan.pairs.num_source_rows
    if len(updates) != 1 or num_matching is None:
        return False
    [update] = updates
    if not num_matching == scan.num_matched_pairs == scan.rows_by_clause[update]:
        return False
    if num_matching == source.num_rows:
        return True
    inserts = insert_indexes(merge)
    first = merge.clauses[inserts[0]] if inserts else None
    return (
        first is not None
        and first.condition is None
        and first.gives_same_values(merge.clauses[update])
    )


def _with_clause(
    merge: ResolvedMerge,
    rows: DataFrame,
    scan: TouchedFilesScan,
    identity: Column,
    updates: Sequence[int],
) -> DataFrame:
    """Add to source rows the clause that takes each: that of its pairs, or an insert clause."""
    if not scan.num_matched_rows:
        return rows.withColumn(CLAUSE, first_insert(merge))
    new = None if updates else scan.pairs.few_unmatched()
    if new is not None:
        # A key of a new row may be null.
        rows = rows.join(F.broadcast(new), identity.eqNullSafe(F.col(SOURCE_ROW)), "left_semi")
        return rows.withColumn(CLAUSE, asked_after_join(merge, first_insert(merge)))
    how = "left" if insert_indexes(merge) else "inner"
    pairs = scan.matched_pairs(SOURCE_ROW, CLAUSE)
    rows = rows.join(pairs, identity == F.col(SOURCE_ROW), how)
    clause = F.when(F.col(SOURCE_ROW).isNotNull(), F.col(CLAUSE)).otherwise(first_insert(merge))
    return rows.withColumn(CLAUSE, clause)


def _in_few_files(rows: DataFrame, source: PreparedSource) -> DataFrame:
    """Repartition source rows to the number of new files, as each partition becomes a file.

    Values must be computed after this: those of identity columns depend on the partition's number,
    and a task that coalesces partitions would see several.
    """
    size = source.decoded_bytes
    if size is None or not source.is_materialized:
        return rows
    return rows.coalesce(_num_files(size, rows.sparkSession))


def _num_files(size_in_bytes: int, spark: SparkSession) -> int:
    """Return how many files to write: enough for several cores, but no small ones.

    More files are written only if each of them is full.
    """
    cores = spark.sparkContext.defaultParallelism
    small = min(limits.MAX_SMALL_FILES, cores, size_in_bytes // limits.MIN_FILE_BYTES)
    return max(1, small, math.ceil(size_in_bytes / limits.TARGET_FILE_BYTES))


def inserts_only(run: MergeRun, found: Candidates) -> DataFrame:
    """Return the inserted rows of a merge without other clauses, by one left anti join."""
    merge = run.statement
    candidates, unmatched = found.files, run.source.rows
    if len(candidates):
        target = target_plan(run.transaction, candidates, merge.condition_columns())
        may_match = within(found.keys, merge.spark)
        if may_match is not None:
            target = target.filter(may_match)
        unmatched = unmatched.join(target, merge.condition, "left_anti")
    inserts = insert_indexes(merge)
    # With one clause, Delta evaluates its condition before the join, for every source row.
    clause = (
        first_insert(merge) if len(inserts) == 1 else asked_after_join(merge, first_insert(merge))
    )
    rows = _rows_taken(merge, unmatched.withColumn(CLAUSE, clause), inserts)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeInsertsOnlyWhenNoMatchedClauses using leftanti join: output plan:\n%s",
            plan_text(rows),
        )
    return rows


def _rows_taken(merge: ResolvedMerge, rows: DataFrame, clauses: Sequence[int]) -> DataFrame:
    """Return the rows that one of these clauses takes, with the values that it assigns."""
    *others, last = clauses
    others = [i for i in others if not merge.clauses[i].gives_same_values(merge.clauses[last])]
    chosen = rows.filter(F.col(CLAUSE).isin(list(clauses)))
    if not others:
        return _values_of(merge, chosen, last)
    output: list[Column] = []
    for index, value in enumerate(merge.clauses[last].values):
        for i in others:
            value = F.when(F.col(CLAUSE) == i, merge.clauses[i].values[index]).otherwise(value)
        output.append(value)
    return chosen.select(*output).toDF(*merge.evolved_schema.names)


def _values_of(merge: ResolvedMerge, rows: DataFrame, clause: int) -> DataFrame:
    """Return the values that a clause assigns, as columns of the evolved target schema."""
    values = rows.select(merge.clauses[clause].row().alias(CLAUSE_VALUES)).select(
        f"{CLAUSE_VALUES}.*"
    )
    return values.toDF(*merge.evolved_schema.names)


@dataclass(frozen=True)
class _Images:
    """The columns of a row, over joined rows with `CLAUSE`.

    Attributes:
        names: Names of the table's columns and of those that track its rows.
        before: Their values before the merge.
        after: The columns' values after the merge.
    """

    names: list[str]
    before: list[Column]
    after: list[Column]


def changed_rows(
    run: MergeRun,
    scan: TouchedFilesScan,
    files: FileList,
    *,
    with_unmodified: bool,
    with_inserts: bool = False,
) -> DataFrame:
    """Return rows of touched files after the merge, in the evolved target schema.

    If the table keeps a change data feed, its rows are among them (see `_recorded`).

    Args:
        with_unmodified: Whether rows that no clause takes are copied too (copy on write).
        with_inserts: Whether to include inserted rows, which `may_join_once` must allow.
    """
    merge = run.statement
    # Rows that match repeatedly are deleted, and the feed must show each of them once.
    deduplicates = run.transaction.metadata.keeps_change_feed and scan.num_repeated > 0
    names = RowColumns(row=TARGET_ROW_ID if deduplicates else None)
    tracked = tracked_columns(run.transaction)
    target = target_plan(run.transaction, files, added=names, tracked=tracked or ())
    how = _join_type(merge, with_unmodified=with_unmodified, with_inserts=with_inserts)
    taken = _join_source(merge, run.source, target, how)
    if not with_unmodified:
        taken = taken.filter(F.col(CLAUSE) != NO_CLAUSE)
    if deduplicates:
        taken = taken.dropDuplicates([TARGET_ROW_ID])
    images = _images(merge, target, tracked, and_inserted=with_inserts)
    if run.transaction.metadata.keeps_change_feed:
        rows = _recorded(merge, taken, images)
    else:
        rows = _rows_after_merge(merge, taken, images)
    for added in tracked or ():
        rows = rows.withMetadata(added.name, added.metadata)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeAllChanges using %s join:\n  source.output: %s\n  target.output: %s\n"
            "  condition: %s\n  output plan:\n%s",
            how,
            run.source.rows.columns,
            target.columns,
            merge.condition_text,
            plan_text(rows),
        )
    return rows


def _join_type(merge: ResolvedMerge, *, with_unmodified: bool, with_inserts: bool) -> str:
    """Return how target rows are joined with the source."""
    if with_inserts:
        return "full"
    # Rows without a match are needed if they are copied or a clause looks at them.
    return "left" if with_unmodified or merge.of_kind("not_matched_by_source") else "inner"


def _join_source(
    merge: ResolvedMerge, source: PreparedSource, target: DataFrame, how: str
) -> DataFrame:
    """Join target rows with the source, with their clauses; with the inserts if `full`."""
    if how != "full":
        joined = target.join(source.for_join(), merge.condition, how)
        return joined.withColumn(CLAUSE, asked_after_join(merge, clause_taken(merge)))
    target = target.withColumn(TARGET_ROW_PRESENT, F.lit(True))
    joined = target.join(source.for_join(), merge.condition, how)
    is_new = F.col(TARGET_ROW_PRESENT).isNull()
    clause = F.when(is_new, first_insert(merge)).otherwise(clause_taken(merge))
    taken = joined.withColumn(CLAUSE, asked_after_join(merge, clause))
    return taken.filter(~is_new | (F.col(CLAUSE) != NO_CLAUSE))


def _images(
    merge: ResolvedMerge,
    target: DataFrame,
    tracked: TrackedColumns | None,
    *,
    and_inserted: bool,
) -> _Images:
    names = list(merge.evolved_schema.names)
    before = columns_before(merge)
    after = updated(merge, before, and_inserted=and_inserted)
    if tracked is not None:
        row_id, version = (target[back_quoted(column.name)] for column in tracked)
        names += [column.name for column in tracked]
        before += [row_id, version]
        # A changed row keeps its id; its commit version is that of this merge.
        after += [row_id, F.when(~_is_taken_by(merge, "update"), version)]
    return _Images(names, before, after)


def _rows_after_merge(merge: ResolvedMerge, taken: DataFrame, images: _Images) -> DataFrame:
    """Return the rows after the merge, without those that a clause deletes."""
    if any(clause.action == "delete" for clause in merge.clauses):
        taken = taken.filter(~_is_taken_by(merge, "delete"))
    values = zip(images.names, images.after, strict=True)
    return taken.select(*[value.alias(name) for name, value in values])


def _is_taken_by(merge: ResolvedMerge, action: str) -> Column:
    """Return whether a clause with this action takes a row."""
    indexes = [i for i, clause in enumerate(merge.clauses) if clause.action == action]
    return F.col(CLAUSE).isin(indexes)


def may_join_once(transaction: Transaction, scan: TouchedFilesScan) -> bool:
    """Return whether the join that gives the changed rows should give the inserts, too.

    It should if the pairs are too many for a broadcast. It can if the touched files hold all
    matches, and if new rows have only the table's columns.
    """
    return bool(
        transaction.merge.of_kind("not_matched")
        and not scan.may_broadcast_pairs
        and set(scan.matched.paths) <= set(scan.touched.paths)
        and not transaction.metadata.keeps_change_feed
        and tracked_columns(transaction) is None
    )


def remaining_rows(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> DataFrame:
    """Return the rows of some touched files that no clause takes, in the evolved target schema."""
    merge = transaction.merge
    tracked = tracked_columns(transaction) or ()
    names = RowColumns(file=FILE, row_index=TARGET_ROW_ID)
    rows = target_plan(transaction, files, added=names, tracked=tracked)
    left = _drop_changed_rows(scan, files, rows)
    values = zip(merge.evolved_schema.names, columns_before(merge), strict=True)
    kept = left.select(
        *[value.alias(name) for name, value in values],
        *[rows[back_quoted(column.name)].alias(column.name) for column in tracked],
    )
    for added in tracked:
        kept = kept.withMetadata(added.name, added.metadata)
    return kept


def _drop_changed_rows(scan: TouchedFilesScan, files: FileList, rows: DataFrame) -> DataFrame:
    """Drop the rows of these files that a clause takes, by an anti join on file and row index."""
    names = scan.names_of(files)
    num_changed = sum(scan.changed_by_file)
    if len(names) > limits.MAX_NUMBERED_FILES or num_changed > limits.MAX_BROADCAST_NUMBERS:
        changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
        return rows.join(changed, [FILE, TARGET_ROW_ID], "left_anti")
    # File and row index as one number: its hash table is small, and quickly built and searched.
    numbered = rows.withColumn(NUMBER, _file_and_row(names))
    left = _numbers_left(scan, files, names)
    if left is not None:
        table = rows.sparkSession.createDataFrame(left)
        return numbered.join(F.broadcast(table), NUMBER, "left_semi")
    changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
    taken = changed.select(_file_and_row(names).alias(NUMBER))
    return numbered.join(F.broadcast(taken), NUMBER, "left_anti")


def _file_and_row(names: Sequence[str]) -> Column:
    """Return file and row index as one number, for rows of these files."""
    if len(names) == 1:
        return F.col(TARGET_ROW_ID)
    number = F.lit(None).cast("bigint")
    for i, name in enumerate(names):
        number = F.when(F.col(FILE) == name, F.lit(i << _ROW_INDEX_BITS)).otherwise(number)
    return number + F.col(TARGET_ROW_ID)


def _numbers_left(
    scan: TouchedFilesScan, files: FileList, names: Sequence[str]
) -> pyarrow.Table | None:
    """Return the remaining rows' numbers; None if the others are fewer, or not on the driver.

    They include numbers of rows that were marked as deleted before, which no scan returns.
    """
    import numpy as np
    import pyarrow as pa

    changed = scan.changed_on_driver(files)
    num_rows = files.row_counts + files.rows["num_marked"].to_numpy()
    if changed is None or not num_rows.sum() < 2 * changed.num_rows:  # also if a count is not known
        return None
    rows_of = dict(zip(files.rows["location"].to_pylist(), num_rows, strict=True))
    numbers = file_indexes(changed[FILE], names).to_numpy()
    rows = changed[TARGET_ROW_ID].to_numpy()
    left = []
    for i, name in enumerate(names):
        is_left = np.ones(int(rows_of[decoded_location(name)]), dtype=bool)
        is_left[rows[numbers == i]] = False
        left.append(np.flatnonzero(is_left) + (i << _ROW_INDEX_BITS))
    return pa.table({NUMBER: np.concatenate(left)})


def rows_from_source_alone(run: MergeRun, scan: TouchedFilesScan) -> list[DataFrame] | None:
    """Return updated and inserted rows, if any; None if an update needs the target's rows."""
    updates = updates_from_source(run.transaction, scan)
    if updates is None:
        return None
    if not updates and not may_insert(run, scan):
        return []
    return [rows_after_scan(run, scan, updates)]


def updated_and_inserted(run: MergeRun, scan: TouchedFilesScan) -> list[DataFrame]:
    """Return updated and inserted rows: from the source alone if it has all that they need.

    If the table keeps a change data feed, its rows are among them.
    """
    if not run.transaction.metadata.keeps_change_feed:
        rows = rows_from_source_alone(run, scan)
        if rows is not None:
            return rows
    changed = changed_rows(run, scan, scan.touched, with_unmodified=False)
    return [changed, *inserted_rows(run, scan)]


def inserted_rows(run: MergeRun, scan: TouchedFilesScan) -> list[DataFrame]:
    """Return the inserted rows, with those of the change data feed; nothing if none can be."""
    if not may_insert(run, scan):
        return []
    inserts = rows_after_scan(run, scan)
    return [recorded_inserts(inserts) if run.transaction.metadata.keeps_change_feed else inserts]


def write_parts(transaction: Transaction, parts: Sequence[DataFrame]) -> WrittenFiles | None:
    """Write the parts by one job; None if there are none.

    Inserted rows have no row id or commit version yet: parts that have them come first, since the
    columns are known by their metadata there.
    """
    if not parts:
        return None
    union = partial(DataFrame.unionByName, allowMissingColumns=True)
    return transaction.write(reduce(union, parts))


def _recorded(merge: ResolvedMerge, taken: DataFrame, images: _Images) -> DataFrame:
    """Return the table's rows and the feed's rows of joined target rows.

    An update gives a row of the table, a pre-image and a post-image. A delete gives a row of the
    feed, and an unmodified row one of the table.
    """
    # A projection of their own computes both images once, since values may be random.
    rows = taken.select(
        _struct(images.names, images.before).alias(_BEFORE),
        _struct(images.names, images.after).alias(_AFTER),
        _is_taken_by(merge, "update").alias("_is_update_"),
        _is_taken_by(merge, "delete").alias("_is_delete_"),
    )
    entries = (
        F.when(
            F.col("_is_update_"),
            F.array(
                _entry(_AFTER, None),
                _entry(_BEFORE, "update_preimage"),
                _entry(_AFTER, "update_postimage"),
            ),
        )
        .when(F.col("_is_delete_"), F.array(_entry(_BEFORE, "delete")))
        .otherwise(F.array(_entry(_BEFORE, None)))
    )
    return _spread(rows, images.names, entries)


def recorded_inserts(inserts: DataFrame) -> DataFrame:
    """Return inserted rows as the table's rows and as the feed's."""
    names = inserts.columns
    columns = [column(name) for name in names]
    rows = inserts.select(_struct(names, columns).alias(_AFTER))
    return _spread(rows, names, F.array(_entry(_AFTER, None), _entry(_AFTER, "insert")))


def _struct(names: Sequence[str], values: Sequence[Column]) -> Column:
    return F.struct(*[value.alias(name) for name, value in zip(names, values, strict=True)])


def _entry(image: str, change_type: str | None) -> Column:
    return F.struct(F.col(image).alias(_ROW), F.lit(change_type).cast("string").alias(CHANGE_TYPE))


def _spread(rows: DataFrame, names: Sequence[str], entries: Column) -> DataFrame:
    entry = rows.select(F.explode(entries).alias(_ENTRIES))
    columns = [column(_ENTRIES, _ROW, name).alias(name) for name in names]
    return entry.select(*columns, column(_ENTRIES, CHANGE_TYPE).alias(CHANGE_TYPE))


def copy_phase(run: MergeRun, scan: TouchedFilesScan) -> AbstractContextManager[None]:
    """Run the phase in which touched files are rewritten."""
    return run.phases.running(
        "writeAllUpdatesAndDeletes" if run.statement.is_matched_only else "writeAllChanges",
        f"MERGE operation - Rewriting {len(scan.touched)} files",
        "rewriteTimeMs",
    )


def copy_touched_files(
    run: MergeRun, scan: TouchedFilesScan, *, without_join: bool
) -> WrittenFiles | None:
    """Rewrite all touched files, and the inserts with them; None if no row is left.

    Args:
        without_join: Whether to write changed rows from the source alone, if that is possible, and
            unmodified rows from the target alone. The scan must know the rows' indexes then.
    """
    parts = _changed_and_remaining(run, scan) if without_join else None
    if parts is None:
        # Spark joins all rows of the touched files with the source.
        once = may_join_once(run.transaction, scan)
        rows = changed_rows(run, scan, scan.touched, with_unmodified=True, with_inserts=once)
        parts = [rows] if once else [rows, *inserted_rows(run, scan)]
    return write_parts(run.transaction, parts)


def _changed_and_remaining(run: MergeRun, scan: TouchedFilesScan) -> list[DataFrame] | None:
    """Return changed rows from the source alone, and unmodified rows from the target alone.

    None if a changed row, or its entry in the change feed, needs values of both.
    """
    import numpy as np

    if run.transaction.metadata.keeps_change_feed:
        return None
    parts = rows_from_source_alone(run, scan)
    if parts is None:
        return None
    changed = np.array(scan.changed_by_file)
    with_rows_left = scan.touched.where(changed != scan.touched.row_counts)
    if len(with_rows_left):
        parts = [remaining_rows(run.transaction, scan, with_rows_left), *parts]
    return parts
