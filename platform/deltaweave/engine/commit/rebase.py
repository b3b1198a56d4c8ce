"""Rebase: commit the same output on the newest version, where a rerun would give that output.

- No added file holds a row that the source matches: partitions, statistics, the key index or, where
  these do not decide, a scan for one match show it.
- Every file with a match is still as it was read. In tables with deletion vectors, other commits
  may have deleted other rows of it: the vectors are united.
- The other scanned files have lost rows at most.

Where another commit compacted or rewrote a file with matches, the added files are scanned. If the
same source rows match there, and the same clauses take them, the merge inserts the same rows, and
only these files are changed again (`Strategy.rebased`).

The newest version is compared with the one that the merge read (protocol, metadata, domains,
application ids, files), so it does not matter which commits made the difference. The reads are
registered again, so that Delta refuses the commit if yet another one wins in between.

The kinds of expressions (`dependence`), of features and properties (`features`) and of strategies
(`Strategy.can_rebase`) must allow it. If in doubt, the merge reruns.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave._validation import Verdict, counted, no
from deltaweave.delta.commit import (
    TableLock,
    Transaction,
    has_same_domains,
    is_same_table,
    transaction_after,
)
from deltaweave.delta.files import RemarkedFiles
from deltaweave.delta.jvm import raise_hidden_interrupts, reported_by, translated
from deltaweave.delta.log import (
    FileList,
    FileVersion,
    decoded_location,
    file_versions,
    may_rebase,
)
from deltaweave.delta.scan import (
    estimated_bytes,
    source_dependence,
    target_plan,
    unknown_in_clauses,
)
from deltaweave.engine import limits
from deltaweave.engine.attempts import reason_of, was_cancelled
from deltaweave.engine.backends import DeclinedError, allowed, find_touched_files, require
from deltaweave.engine.clauses import CLAUSE, FILE, SOURCE_ROW
from deltaweave.engine.merge_run import MergeRun, Preconditions
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.prune import Candidates, files_by_conditions, may_hold_match
from deltaweave.engine.source import PreparedSource, SourceKeys, within
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies import STRATEGIES
from deltaweave.errors import CommitConflictError, LockFileError, TableLockedError

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

# Their changes are a function of the source's rows and of the rows that these match.
_KINDS = {"matched", "not_matched"}

_STRATEGY_OF = {each.name: each for each in STRATEGIES}


def rebase(lost: Staged, lock: TableLock) -> Staged | None:
    """Return the output for the newest version; None if the merge must run again.

    Args:
        lost: The output whose commit lost.
        lock: The table's lock. It is taken, so that no other merge comes between this look at the
            newest version and the next commit, unless the look takes long.

    Raises:
        DeltaweaveError: A job was cancelled, or the lock cannot be had.
    """
    table, transaction = lost.run.table, lost.run.transaction
    try:
        with raise_hidden_interrupts(), translated(table, version=transaction.version):
            _check_statement(lost)
            lock.take()
            newer = transaction_after(transaction)
            _check_table(transaction, newer, lost.run.preconditions)
            rebased = _rebased(replace(lost, run=lost.run.on(newer)), lock)
    except DeclinedError as reason:
        lock.release()
        logger.info(
            "%s: the merge cannot follow version %d: %s", table, transaction.version, reason
        )
        return None
    except (TableLockedError, LockFileError):
        raise
    except Exception as error:
        if was_cancelled(error):
            raise
        lock.release()
        doubt = "%s: it is unknown what other commits changed: %s"
        logger.debug(doubt, table, reported_by(error), exc_info=True)
        logger.warning(doubt, table, reason_of(error))  # which quotes no row
        return None
    logger.info(
        "%s: what the merge wrote is right for version %d, %d of its files were changed again",
        table,
        newer.version,
        rebased.files_redone,
    )
    return rebased


def _check_statement(lost: Staged) -> None:
    """Raise unless other commits are known to leave the output of such a merge right."""
    merge, transaction = lost.run.statement, lost.run.transaction
    computed_from = lost.run.preconditions.computed_from
    require(computed_from is None, "its source was computed from a version")
    require(lost.run.source.gives_same_rows, "its source may give other rows")
    kinds = {clause.kind for clause in merge.clauses}
    require(kinds <= _KINDS, "it changes rows that are not in the source")
    require(not transaction.changes_metadata, "it changes the schema")
    require(*may_rebase(transaction.table))
    unknown = unknown_in_clauses(merge)
    require(not unknown, f"its clauses depend on more than their rows: {', '.join(unknown)}")
    read = source_dependence(merge)
    require(read.is_none, f"its source reads {read.because}")


def _check_table(lost: Transaction, newer: Transaction, preconditions: Preconditions) -> None:
    require(newer.version > lost.version, "no other version is there")
    is_same = is_same_table(lost.table, newer.table)
    require(is_same, "its schema, properties or protocol changed")
    require(has_same_domains(lost.table, newer.table), "its domain metadata changed")
    for application_id in preconditions.application_ids:
        is_same = newer.last_applied(application_id) == lost.last_applied(application_id)
        require(is_same, f"another commit has the id {application_id}")
    try:
        preconditions.check_lease(newer)
    except CommitConflictError as taken:
        raise DeclinedError(taken.problem) from taken


def _rebased(staged: Staged, lock: TableLock) -> Staged:
    """Return the output, with vectors united where others marked rows of the same files.

    Args:
        staged: The output, with a transaction on the newest version.
    """
    import numpy as np

    files = files_by_conditions(staged.run.transaction)
    versions = file_versions(files)
    known = set(file_versions(staged.found.listed))
    candidates = {each.path: each for each in file_versions(staged.candidates)}
    is_new = np.array([each not in known for each in versions], dtype=bool)
    is_marked = is_new & np.array([_is_marked(each, candidates) for each in versions], dtype=bool)
    added, marked = files.where(is_new & ~is_marked), files.where(is_marked)
    removed_paths = set(staged.matched.paths) - set(files.where(~is_new | is_marked).paths)
    if len(added) and not _is_quick(staged.run.source, added):
        lock.release()  # other writers would wait for it too long
    if removed_paths:
        staged = _after_moves(staged, removed_paths, added)
    else:
        may_match = hold_match(staged.run, staged.found.keys, added)
        require(not may_match, "an added file may hold a row that the source matches")
    return _united(staged, marked) if len(marked) else staged


def _is_quick(source: PreparedSource, added: FileList) -> bool:
    """Return whether new files are read and joined with the source in a moment."""
    size = source.decoded_bytes
    of_source = estimated_bytes(source.rows) if size is None else size
    return of_source + added.size_in_bytes <= limits.MAX_BYTES_UNDER_LOCK


def _after_moves(staged: Staged, removed_paths: Collection[str], added: FileList) -> Staged:
    """Change the files to which matched rows moved."""
    verdict = _can_follow_moves(staged, removed_paths)
    files = counted(len(removed_paths), "file")
    require(verdict.ok, f"other commits removed {files} with matches, and {verdict.reason}")
    scan = moved_matches(staged, staged.matched.with_paths(removed_paths), added)
    if scan is None:
        raise DeclinedError("other rows match in the added files than in the removed ones")
    return replace(
        allowed(_STRATEGY_OF[staged.strategy].rebased(staged, removed_paths, scan)),
        matched=staged.matched.excluding(removed_paths).union(scan.matched),
        touched=staged.touched.excluding(removed_paths).union(scan.touched),
        files_redone=len(scan.touched),
    )


def _can_follow_moves(staged: Staged, removed_paths: Collection[str]) -> Verdict:
    """Return whether the output of removed files can be replaced."""
    scan = staged.scan
    if scan is None or scan.source_identity is None:
        return no("its pairs of source rows and target rows are not kept")
    if scan.num_repeated:
        return no("several source rows delete one row")
    return _STRATEGY_OF[staged.strategy].can_rebase(staged, removed_paths)


def _is_marked(file: FileVersion, candidates: dict[str, FileVersion]) -> bool:
    """Return whether a file was scanned and differs in its deletion vector alone."""
    earlier = candidates.get(file.path)
    return earlier is not None and earlier.row_ids == file.row_ids


def _united(staged: Staged, marked: FileList) -> Staged:
    """Unite the output with the rows that other commits marked in scanned files."""
    newer = staged.run.transaction
    is_few = len(marked) <= limits.MAX_UNITED_VECTORS
    require(is_few, f"rows of {len(marked)} scanned files were marked")
    since = RemarkedFiles(staged.candidates.with_paths(set(marked.paths)), marked)
    require(since.only_more(newer), "rows were restored in a scanned file")
    with_matches = set(staged.matched.paths)
    shared = [path for path in marked.paths if path in with_matches]
    if not shared:
        return staged
    if staged.marked is None or not staged.changes_every_match:
        raise DeclinedError("rows of a file with matches were marked")
    both = RemarkedFiles(staged.candidates.with_paths(set(shared)), marked.with_paths(set(shared)))
    vectors = both.united(newer, staged.marked)
    if vectors is None:
        raise DeclinedError(
            "another commit changed the same rows, or rows of a file that the merge rewrites"
        )
    return replace(staged, marked=vectors)


def hold_match(run: MergeRun, keys: SourceKeys, files: FileList) -> bool:
    """Return whether a row of these files matches; also True if reading them all costs too much.

    Args:
        run: The merge, on a version that has the files. Its source gives the same rows each time.
    """
    merge = run.statement
    suspects = files.where(may_hold_match(run, keys, files))
    if not len(suspects):
        return False
    if suspects.size_in_bytes > limits.MAX_LATER_BYTES:
        return True
    target = target_plan(run.transaction, suspects, merge.condition_columns())
    possible = within(keys, merge.spark)
    if possible is not None:
        target = target.filter(possible)
    with run.transaction.translated():
        matches = target.join(run.source.for_join(), merge.condition, "left_semi")
        return bool(matches.select(F.lit(True)).take(1))


def moved_matches(staged: Staged, removed: FileList, added: FileList) -> TouchedFilesScan | None:
    """Scan new files, and return the scan if it finds the pairs of the removed ones.

    None if they are others, or too many to be compared on the driver.

    Args:
        staged: The output, on a version that has the new files. Its source gives the same rows each
            time, and they have an identity.
        removed: Files with matches that are no longer in the table.

    Raises:
        AmbiguousMatchError: Several source rows match a row of the new files.
    """
    run, keys = staged.run, staged.found.keys
    before = None if staged.scan is None else staged.scan.pairs.on_driver
    suspects = added.where(may_hold_match(run, keys, added))
    too_big = suspects.size_in_bytes > limits.MAX_LATER_BYTES
    if before is None or too_big or not len(suspects):
        return None
    found = Candidates(suspects, suspects, keys)
    scan = find_touched_files(run, found, with_row_index=True)
    after = scan.pairs.on_driver
    if after is None:
        scan.pairs.unpersist()
        return None
    is_same = _rows_and_clauses(_in_files(before, removed)).equals(_rows_and_clauses(after))
    return scan if is_same and not scan.num_repeated else None


def _in_files(pairs: pyarrow.Table, files: FileList) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    locations = set(files.rows["location"].to_pylist())
    names = pairs[FILE].unique().to_pylist()
    wanted = [name for name in names if decoded_location(name) in locations]
    return pairs.filter(pc.is_in(pairs[FILE], pa.array(wanted, pa.string())))


def _rows_and_clauses(pairs: pyarrow.Table) -> pyarrow.Table:
    """Count the pairs of each source row and clause, in a fixed order."""
    import pyarrow as pa

    rows = pa.table({"row": pairs[SOURCE_ROW], CLAUSE: pairs[CLAUSE]}).flatten().combine_chunks()
    counted = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    return counted.sort_by([(name, "ascending") for name in counted.column_names])
