"""The rows that a merge writes for its touched files: changed ones and, where asked, the others.

The left join from the target takes the place of Delta's right or full outer join: the inserts, its
other half, come from the pairs (see source_rows). Where the source is broadcast, rows are not
shuffled and keep their order. Pairs that are too many to be broadcast would be shuffled with the
source, for the second time: the inserts then come from a full outer join, too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.file_list import FileList, decoded_location
from deltaweave.delta.row_tracking import tracked_columns
from deltaweave.delta.target_plan import target_plan
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.change_feed import recorded
from deltaweave.engine.evolution import columns_before
from deltaweave.engine.pairs import CLAUSE, FILE, NO_CLAUSE, TARGET_ROW_ID
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.source_rows import first_insert
from deltaweave.engine.touched_files import TouchedFilesScan, clause_taken
from deltaweave.identifiers import RESERVED_PREFIX, quoted

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

_TARGET_ROW_PRESENT = f"{RESERVED_PREFIX}target_row_present"
_NUMBER = f"{RESERVED_PREFIX}number"
_PLACE_BITS = 40
_FEW_FILES = 32
_BROADCAST_LIMIT_ROWS = 2_000_000  # some 64 MB as a hash table of numbers


def changed_rows(
    transaction: Transaction,
    source: PreparedSource,
    scan: TouchedFilesScan,
    files: FileList,
    *,
    with_unmodified: bool,
    with_inserts: bool = False,
) -> DataFrame:
    """Rows of touched files after the merge, in the evolved target schema.

    Where the table keeps a change feed, its rows are among them (see change_feed).

    Args:
        transaction: The merge's transaction.
        source: The prepared source.
        scan: What the scan for matches found.
        files: The touched files to read.
        with_unmodified: Whether rows that no clause takes are copied too (copy on write).
        with_inserts: Whether the inserted rows are to be among them, as `may_join_once` allows.
    """
    merge = transaction.merge
    # The one clause there is deletes a row once, however often it matches.
    deduplicates = transaction.keeps_change_feed and scan.num_repeated > 0
    tracked = tracked_columns(transaction)
    target = target_plan(
        transaction,
        files,
        row_column=TARGET_ROW_ID if deduplicates else None,
        tracked=tracked or (),
    )
    # Rows without a source row matter where they are copied or a clause looks at them.
    outer = with_unmodified or merge.of_kind("not_matched_by_source")
    how = "left" if outer else "inner"
    if with_inserts:
        target, how = target.withColumn(_TARGET_ROW_PRESENT, F.lit(True)), "full"
    taken = target.join(source.for_join(), merge.condition, how)
    if with_inserts:
        is_new = F.col(_TARGET_ROW_PRESENT).isNull()
        clause = F.when(is_new, first_insert(merge)).otherwise(clause_taken(merge))
        taken = taken.withColumn(CLAUSE, clause).filter(~is_new | (F.col(CLAUSE) != NO_CLAUSE))
    else:
        taken = taken.withColumn(CLAUSE, clause_taken(merge))
    if not with_unmodified:
        taken = taken.filter(F.col(CLAUSE) != NO_CLAUSE)
    before = columns_before(merge)
    after = updated(merge, before, and_inserted=with_inserts)
    deletes = [i for i, clause in enumerate(merge.clauses) if clause.action == "delete"]
    updates = [i for i, clause in enumerate(merge.clauses) if clause.action == "update"]
    is_update = F.col(CLAUSE).isin(updates)
    names = list(merge.evolved_schema.names)
    if tracked is not None:
        row_id, version = (target[quoted(column.name)] for column in tracked)
        names += [column.name for column in tracked]
        before += [row_id, version]
        after += [row_id, F.when(~is_update, version)]
    if transaction.keeps_change_feed:
        if deduplicates:
            taken = taken.dropDuplicates([TARGET_ROW_ID])
        rows = recorded(
            taken,
            names,
            before,
            after,
            is_update=is_update,
            is_delete=F.col(CLAUSE).isin(deletes),
        )
    else:
        kept = taken.filter(~F.col(CLAUSE).isin(deletes)) if deletes else taken
        rows = kept.select(*[value.alias(name) for name, value in zip(names, after, strict=True)])
    for column in tracked or ():
        rows = rows.withMetadata(column.name, column.metadata)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "writeAllChanges using %s join:\n  source.output: %s\n  target.output: %s\n"
            "  condition: %s\n  output plan:\n%s",
            how,
            source.rows.columns,
            target.columns,
            merge.node.condition().toString(),
            rows._jdf.queryExecution().toString(),
        )
    return rows


def may_join_once(transaction: Transaction, scan: TouchedFilesScan) -> bool:
    """Whether the inserts are to come from the join that gives the changed rows.

    That is so where the pairs are many. The files must have all of the matches, and the new rows no
    columns but the table's.
    """
    return bool(
        transaction.merge.of_kind("not_matched")
        and not scan.may_broadcast_pairs
        and set(scan.matched.paths) <= set(scan.touched.paths)
        and not transaction.keeps_change_feed
        and tracked_columns(transaction) is None
    )


def remaining_rows(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> DataFrame:
    """The rows of some touched files that no clause takes, in the evolved target schema."""
    merge = transaction.merge
    tracked = tracked_columns(transaction) or ()
    rows = target_plan(
        transaction, files, file_column=FILE, row_index_column=TARGET_ROW_ID, tracked=tracked
    )
    left = _without(scan, files, rows)
    values = zip(merge.evolved_schema.names, columns_before(merge), strict=True)
    kept = left.select(
        *[value.alias(name) for name, value in values],
        *[rows[quoted(column.name)].alias(column.name) for column in tracked],
    )
    for column in tracked:
        kept = kept.withMetadata(column.name, column.metadata)
    return kept


def _without(scan: TouchedFilesScan, files: FileList, rows: DataFrame) -> DataFrame:
    """The rows of these files, named by file and place, that no clause takes."""
    names = scan.names_of(files)
    if len(names) > _FEW_FILES or sum(scan.changed_by_file) > _BROADCAST_LIMIT_ROWS:
        changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
        return rows.join(changed, [FILE, TARGET_ROW_ID], "left_anti")
    # File and place as one number: a hash table of numbers is small, and soon built and searched.
    numbered = rows.withColumn(_NUMBER, _numbers(names))
    left = _numbers_left(scan, files, names)
    if left is not None:
        table = rows.sparkSession.createDataFrame(left)
        return numbered.join(F.broadcast(table), _NUMBER, "left_semi")
    changed = scan.changed_pairs(FILE, TARGET_ROW_ID, files=files)
    taken = changed.select(_numbers(names).alias(_NUMBER))
    return numbered.join(F.broadcast(taken), _NUMBER, "left_anti")


def _numbers(names: Sequence[str]) -> Column:
    """The numbers of rows that are all in these files."""
    if len(names) == 1:
        return F.col(TARGET_ROW_ID)
    number = F.lit(None).cast("bigint")
    for i, name in enumerate(names):
        number = F.when(F.col(FILE) == name, F.lit(i << _PLACE_BITS)).otherwise(number)
    return number + F.col(TARGET_ROW_ID)


def _numbers_left(
    scan: TouchedFilesScan, files: FileList, names: Sequence[str]
) -> pyarrow.Table | None:
    """The numbers of the rows left, where they are fewer than the others and pairs are at hand.

    Those of rows that were marked as deleted before are among them: no scan gives these.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    changed = scan.changed_on_driver(files)
    num_rows = files.row_counts + files.rows["num_marked"].to_numpy()
    if changed is None or not num_rows.sum() < 2 * changed.num_rows:  # also where it is not known
        return None
    rows_of = dict(zip(files.rows["location"].to_pylist(), num_rows, strict=True))
    left = []
    for i, name in enumerate(names):
        taken = changed.filter(pc.equal(changed[FILE], name))[TARGET_ROW_ID].to_numpy()
        is_left = np.ones(int(rows_of[decoded_location(name)]), dtype=bool)
        is_left[taken] = False
        left.append(np.flatnonzero(is_left) + (i << _PLACE_BITS))
    return pa.table({_NUMBER: np.concatenate(left)})


def updated(
    merge: ResolvedMerge, before: Sequence[Column], *, and_inserted: bool = False
) -> list[Column]:
    """The columns' values where the update clause that takes a row gives new ones.

    Args:
        merge: The statement.
        before: The columns' values before it.
        and_inserted: Whether insert clauses take rows, too.
    """
    actions = ("update", "insert") if and_inserted else ("update",)
    after = []
    for place, value in enumerate(before):
        for i, clause in enumerate(merge.clauses):
            if clause.action in actions:
                value = F.when(F.col(CLAUSE) == i, clause.values[place]).otherwise(value)
        after.append(value)
    return after
