"""A small merge on the driver: one job evaluates the source, and pyarrow does the rest.

Changed rows are marked in their files, or their files are rewritten row by row in their order, as
the strategies on Spark do. Before anything is written, any doubt leaves the merge to them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction, WrittenFiles, written_without_spark
from deltaweave.delta.files import NewFile, additions, conditions_of_rows, mark_here
from deltaweave.delta.statement import Equality
from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, FILE, NO_CLAUSE, SOURCE_ROW, TARGET_ROW_ID
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
from deltaweave.engine.write.driver_choice import check_copied, why_not_these_files
from deltaweave.engine.write.driver_feed import record_changes
from deltaweave.engine.write.driver_rows import SourceValues
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
        source: The source's rows.
        pairs: The pairs.
        scan: What they say of the files.
        fates: What becomes of the touched files.
        inserted: The numbers of the source rows that are inserted.
        table: What new files look like.
    """

    candidates: Candidates
    source: CollectedSource
    pairs: DriverPairs
    scan: TouchedFilesScan
    fates: TouchedFileFates
    inserted: numpy.ndarray
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
    conjuncts: Sequence[Equality],
    strategy: Strategy,
) -> Tried:
    """Find what changes, if the driver can do that. Nothing is written.

    Args:
        transaction: The merge's transaction.
        source: The source.
        conjuncts: The equalities that the ON condition consists of.
        strategy: The strategy that the merge starts with.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    import pyarrow as pa

    conditions = conditions_of_rows(transaction)
    assert conditions is not None, "choose_driver"
    collected = collect_source(transaction.merge, source, conjuncts, conditions)
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
        found = _found(transaction, source, candidates, collected, pairs, strategy)
    except (NotRewritableError, OSError, MemoryError, pa.ArrowException) as error:
        logger.info("%s: Spark does the merge: %s", transaction.merge.table, error)
        return Tried(candidates)
    return Tried(candidates, found)


def _found(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    collected: CollectedSource,
    pairs: DriverPairs,
    strategy: Strategy,
) -> Found:
    import numpy as np

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
    table = table_format(transaction)
    check_copied(fates.copied, table)
    is_inserted = ~pairs.is_matched & (collected.insert_clauses != NO_CLAUSE)
    inserted = np.flatnonzero(is_inserted)
    _check_new_rows(collected, pairs, scan, inserted)
    return Found(
        candidates,
        collected,
        pairs,
        scan,
        fates,
        inserted,
        table,
    )


def _check_new_rows(
    collected: CollectedSource,
    pairs: DriverPairs,
    scan: TouchedFilesScan,
    inserted: numpy.ndarray,
) -> None:
    """Raise NotRewritableError if the new rows may be too big, or if one breaks a constraint."""
    import numpy as np

    assert pairs.pairs.on_driver is not None
    of_source_row = np.bincount(pairs.pairs.on_driver[SOURCE_ROW].to_numpy())
    at_most = collected.rows.nbytes * int(of_source_row.max(initial=1))
    if at_most > limits.MAX_NEW_BYTES_ON_DRIVER:
        raise NotRewritableError(f"the new rows may have {at_most:,} bytes")
    changes = scan.changed_on_driver(scan.touched)
    assert changes is not None, "the pairs are on the driver"
    if collected.breaks_constraint(
        changes[SOURCE_ROW].to_numpy(), changes[CLAUSE].to_numpy()
    ) or collected.breaks_constraint(inserted, collected.insert_clauses[inserted]):
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
    values = SourceValues(found.source, found.table.schema)
    try:
        recorded = _recorded(found, values, changes)  # first, since files may not be readable
        replaced, others = _write_files(transaction, found, values, changes, marks=marks)
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
    transaction: Transaction,
    found: Found,
    values: SourceValues,
    changes: pyarrow.Table,
    *,
    marks: bool,
) -> tuple[dict[str, NewFile], list[NewFile]]:
    """Write rewritten files, by the paths of the old ones, and a file of the other new rows.

    If changed rows are marked, their new rows are in that file; else they keep their places.
    """
    import numpy as np

    rows, clauses = found.inserted, found.source.insert_clauses[found.inserted]
    if marks:
        rows = np.concatenate([rows, changes[SOURCE_ROW].to_numpy()])
        clauses = np.concatenate([clauses, changes[CLAUSE].to_numpy()])
    directory = transaction.data_path.removeprefix("file:")
    new_rows = values.rows(rows, clauses, in_source_order=True)
    paths = local_paths(found.fates.copied)
    with ThreadPoolExecutor(max_workers=limits.MAX_THREADS_ON_DRIVER) as threads:
        write = partial(write_file, directory, new_rows, found.table)
        writing = [threads.submit(write)] if new_rows.num_rows else []
        rewrite = partial(_rewrite, found, values, changes, in_place=not marks)
        rewritten = list(threads.map(rewrite, paths))
    new = zip(found.fates.copied.paths, rewritten, strict=True)
    return {path: file for path, file in new if file}, [file.result() for file in writing]


def _rewrite(
    found: Found, values: SourceValues, changes: pyarrow.Table, path: str, *, in_place: bool
) -> NewFile | None:
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
    rows = np.concatenate([own[SOURCE_ROW].to_numpy(), np.zeros(len(gone), dtype=np.int64)])[first]
    if not in_place:
        clauses = np.full(len(clauses), NO_CLAUSE)
    has_new_row = np.isin(clauses, list(found.source.values_of))
    new_rows = values.rows(rows[has_new_row], clauses[has_new_row])
    # Deleted rows take the place of a row that is never read.
    padded = pa.concat_tables([new_rows, values.nulls(1)])
    order = np.full(len(places), new_rows.num_rows)
    order[has_new_row] = np.arange(new_rows.num_rows)
    new = padded.take(pa.array(order))
    table = replace(found.table, change_feed=None)  # `_recorded` writes it
    return rewrite_rows(path, places, ~has_new_row, new, table).file


def _recorded(found: Found, values: SourceValues, changes: pyarrow.Table) -> tuple[str, int] | None:
    """The file of the change feed, if there is one."""
    new_rows = values.rows(found.inserted, found.source.insert_clauses[found.inserted])
    touched = local_paths(found.scan.touched)
    return record_changes(found.table, values, changes, touched, new_rows)
