"""A small merge on the driver: a job evaluates the source, and pyarrow does the rest.

Changed rows are marked in their files, or their files are rewritten row by row in their order, as
the strategies on Spark do. Before anything is written, any doubt leaves the merge to them.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction, WrittenFiles, written_without_spark
from deltaweave.delta.files import NewFile, additions, mark_here
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    NEW_ROW,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.find import (
    Candidates,
    DriverPairs,
    TouchedFilesScan,
    candidate_files,
    files_by_conditions,
    local_paths,
    name_of,
    pairs_on_driver,
    touched_files_of_pairs,
)
from deltaweave.engine.source import CollectedSource, PreparedSource, collect_source
from deltaweave.engine.tasks import (
    NotRewritableError,
    TableFormat,
    rewrite_rows,
    write_file,
)
from deltaweave.engine.write.driver_choice import (
    DriverChoice,
    check_copied,
    why_not_these_files,
)
from deltaweave.engine.write.driver_feed import record_changes
from deltaweave.engine.write.driver_target import values_of_pairs
from deltaweave.engine.write.driver_values import NewValues, values_of_source
from deltaweave.engine.write.files_format import table_format
from deltaweave.engine.write.mark_or_rewrite import (
    MarkedFiles,
    TouchedFileFates,
    all_rewritten,
    mark_or_rewrite,
)
from deltaweave.engine.write.strategy import Strategy

if TYPE_CHECKING:
    import numpy
    import pyarrow

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """What is known before anything is written.

    Attributes:
        candidates: The candidate files, and the source's keys.
        pairs: The pairs.
        scan: What they say of the files.
        fates: What becomes of the touched files.
        updates: What clauses give to pairs, by `NEW_ROW`.
        inserts: What clauses give to source rows, by their numbers.
        inserted: The numbers of the source rows that are inserted.
        insert_clauses: The clauses that insert them, by their places.
        table: What new files look like.
    """

    candidates: Candidates
    pairs: DriverPairs
    scan: TouchedFilesScan
    fates: TouchedFileFates
    updates: NewValues
    inserts: NewValues
    inserted: numpy.ndarray
    insert_clauses: numpy.ndarray
    table: TableFormat


@dataclass(frozen=True)
class Tried:
    """How far the driver came.

    Attributes:
        candidates: The candidate files, if they are known.
        found: What is to be written; None if that is left to Spark.
    """

    candidates: Candidates | None = None
    found: Found | None = None


def find_on_driver(
    transaction: Transaction,
    source: PreparedSource,
    driver: DriverChoice,
    strategy: Strategy,
) -> Tried:
    """Find what changes, if the driver can do that. Nothing is written.

    Args:
        transaction: The merge's transaction.
        source: The source.
        driver: What `choose_driver` found.
        strategy: The strategy that the merge starts with.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    import pyarrow as pa

    merge, conjuncts = transaction.merge, driver.conjuncts
    collected = collect_source(merge, source, conjuncts, driver.conditions, driver.reads)
    if collected is None:
        return Tried()
    files = files_by_conditions(transaction)
    chosen = candidate_files(transaction, source, collected.keys, files)
    candidates = Candidates(chosen, files, collected.keys)
    try:
        why_not = why_not_these_files(chosen)
        if why_not is not None:
            raise NotRewritableError(why_not)
        pairs = pairs_on_driver(
            transaction,
            chosen,
            collected,
            conjuncts,
            with_insertable=source.insertable is not None,
        )
        found = _found(transaction, source, candidates, collected, pairs, driver, strategy)
    except (NotRewritableError, OSError, MemoryError, pa.ArrowException) as error:
        logger.info("%s: Spark does the merge: %s", merge.table, error)
        return Tried(candidates)
    return Tried(candidates, found)


def _found(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    collected: CollectedSource,
    pairs: DriverPairs,
    driver: DriverChoice,
    strategy: Strategy,
) -> Found:
    import numpy as np

    table = table_format(transaction)
    inserts = values_of_source(collected, table.schema)
    if driver.reads.takes_old_rows:
        pairs, updates = values_of_pairs(
            transaction, collected, pairs, driver.reads, driver.conditions, table
        )
    else:
        updates = inserts
    # The identity is the number of a collected row, which no query over the source can compute.
    identity = F.col(SOURCE_ROW)
    # Rows that are only inserted may match any number of times, and are not inserted then.
    may_repeat = strategy is Strategy.INSERT_ONLY or transaction.merge.may_match_repeatedly
    scan = touched_files_of_pairs(
        transaction, source, candidates, identity, pairs.pairs, may_repeat=may_repeat
    )
    if strategy is Strategy.DELETION_VECTORS:
        fates = mark_or_rewrite(transaction, scan)
    else:
        fates = all_rewritten(scan)
    check_copied(fates.copied, table)
    is_inserted = ~pairs.is_matched & (collected.insert_clauses != NO_CLAUSE)
    inserted = np.flatnonzero(is_inserted)
    clauses = collected.insert_clauses[inserted]
    found = Found(candidates, pairs, scan, fates, updates, inserts, inserted, clauses, table)
    _check_new_rows(found)
    return found


def _check_new_rows(found: Found) -> None:
    """Raise NotRewritableError if the new rows may be too big, or if one breaks a constraint."""
    changes = found.scan.changed_on_driver(found.scan.touched)
    assert changes is not None, "the pairs are on the driver"
    numbers, clauses = changes[NEW_ROW].to_numpy(), changes[CLAUSE].to_numpy()
    found.updates.check_size(numbers, clauses)
    if found.updates.breaks_constraint(numbers, clauses) or found.inserts.breaks_constraint(
        found.inserted, found.insert_clauses
    ):
        raise NotRewritableError("a new row breaks a constraint")  # which Delta's writer tells


def write_on_driver(transaction: Transaction, found: Found, strategy: Strategy) -> MarkedFiles:
    """Write what was found: new files, and the deletion vectors of files that stay.

    Raises:
        NotRewritableError: A file could not be written. What was written is deleted.
    """
    transaction.own_files.may_exist = True
    marks = strategy is Strategy.DELETION_VECTORS and bool(len(found.scan.touched))
    changes = found.scan.changed_on_driver(found.scan.touched)
    assert changes is not None, "the pairs are on the driver"
    try:
        recorded = _recorded(found, changes)  # first, since files may not be readable
        replaced, others = _write_files(transaction, found, changes, marks=marks)
    except Exception as error:  # of pyarrow, the file system, or a thread that cannot begin
        transaction.own_files.delete_all()
        raise NotRewritableError(f"the driver could not write a file: {error}") from error
    written = None
    if replaced or others:
        written = written_without_spark(
            transaction.transaction, additions(found.fates.copied, replaced, others)
        )
    if recorded is not None:
        written = written or WrittenFiles.of(found.scan.touched.none())
        written = written.with_changes([(*recorded, {})])
    to_mark = found.scan.changed_on_driver(found.fates.stay)
    assert to_mark is not None, "the pairs are on the driver"
    vectors = mark_here(transaction, to_mark[FILE], to_mark[TARGET_ROW_ID], found.fates.stay)
    return MarkedFiles(found.fates, written, vectors)


def _write_files(
    transaction: Transaction, found: Found, changes: pyarrow.Table, *, marks: bool
) -> tuple[dict[str, NewFile], list[NewFile]]:
    """Write rewritten files, by the paths of the old ones, and a file of the other new rows.

    If changed rows are marked, their new rows are in that file; else they keep their places.
    """
    new_rows = found.inserts.rows(found.inserted, found.insert_clauses)
    if marks:
        new_rows = _with_updated(found, new_rows, changes)
    directory = transaction.data_path.removeprefix("file:")
    paths = local_paths(found.fates.copied)
    with ThreadPoolExecutor(max_workers=limits.MAX_THREADS_ON_DRIVER) as threads:
        write = partial(write_file, directory, new_rows, found.table)
        writing = [threads.submit(write)] if new_rows.num_rows else []
        rewrite = partial(_rewrite, found, changes, in_place=not marks)
        rewritten = list(threads.map(rewrite, paths))
    new = zip(found.fates.copied.paths, rewritten, strict=True)
    return {path: file for path, file in new if file}, [file.result() for file in writing]


def _with_updated(found: Found, inserted: pyarrow.Table, changes: pyarrow.Table) -> pyarrow.Table:
    """Inserted and updated rows in the order of the source."""
    import numpy as np
    import pyarrow as pa

    clauses = changes[CLAUSE].to_numpy()
    updated = found.updates.rows(changes[NEW_ROW].to_numpy(), clauses)
    places = changes[SOURCE_ROW].to_numpy()[found.updates.gives_row(clauses)]
    order = np.argsort(np.concatenate([found.inserted, places]), kind="stable")
    return pa.concat_tables([inserted, updated]).combine_chunks().take(pa.array(order))


def _rewrite(found: Found, changes: pyarrow.Table, path: str, *, in_place: bool) -> NewFile | None:
    """Rewrite a file, without the rows that were marked before; None if no row is left."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    name = name_of(f"file:{path}")
    own = changes.filter(pc.equal(changes[FILE], name))
    gone = found.pairs.marked.get(name, np.array([], dtype=np.int64))
    places = np.concatenate([own[TARGET_ROW_ID].to_numpy(), gone])
    # A row that several source rows delete has several pairs.
    places, first = np.unique(places, return_index=True)
    clauses = np.concatenate([own[CLAUSE].to_numpy(), np.full(len(gone), NO_CLAUSE)])[first]
    rows = np.concatenate([own[NEW_ROW].to_numpy(), np.zeros(len(gone), dtype=np.int64)])[first]
    if not in_place:
        clauses = np.full(len(clauses), NO_CLAUSE)
    has_new_row = found.updates.gives_row(clauses)
    new_rows = found.updates.rows(rows, clauses)
    # Deleted rows take the place of a row that is never read.
    padded = pa.concat_tables([new_rows, found.updates.nulls(1)])
    order = np.full(len(places), new_rows.num_rows)
    order[has_new_row] = np.arange(new_rows.num_rows)
    new = padded.take(pa.array(order))
    table = replace(found.table, change_feed=None)  # `_recorded` writes it
    return rewrite_rows(path, places, ~has_new_row, new, table).file


def _recorded(found: Found, changes: pyarrow.Table) -> tuple[str, int] | None:
    """The file of the change feed, if there is one."""
    new_rows = found.inserts.rows(found.inserted, found.insert_clauses)
    touched = local_paths(found.scan.touched)
    return record_changes(found.table, found.updates, changes, touched, new_rows)
