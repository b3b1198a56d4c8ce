"""Commits a merge's output on the newest version, where the commits that won leave it right.

A merge whose commit lost need not run again if that would give the same output:

- no file that came since holds a row that the source matches: by partitions, statistics and the key
  index, as for candidate files, and where these do not decide, by a scan for one match;
- every file in which a source row matched is still there as it was read. In tables with deletion
  vectors, others may have marked other rows of it: then the vectors are united;
- in the other files that were scanned, rows have at most gone.

Where such a file is gone, because another commit compacted or rewrote it, the files that came are
scanned. If the same source rows match there, only these files are changed again (`moved_rows`).

The newest version is compared with the one that the merge read, by all that makes up a version:
protocol, metadata, domains, application ids and files. So it does not matter which commits made the
difference. What was read is registered again, so that Delta refuses the commit if yet another one
comes in between.

The statement, its source and the table must be of the kinds for which all this is known to hold:
expressions (`known_nodes`), features and properties (`features`), strategies. If in doubt, the
merge is run again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from deltaweave.counts import counted
from deltaweave.delta.commit import (
    TableLock,
    Transaction,
    has_same_domains,
    is_same_table,
    transaction_after,
)
from deltaweave.delta.files import MarkedSince
from deltaweave.delta.jvm import said_by
from deltaweave.delta.log import FileList, FileVersion, file_versions, may_rebase
from deltaweave.delta.scan import estimated_bytes, source_dependence, unknown_in_clauses
from deltaweave.engine import limits
from deltaweave.engine.find import files_by_conditions, hold_match, moved_matches
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.terms import Terms
from deltaweave.engine.write import Changes, Strategy, change_moved_rows, why_not_moved
from deltaweave.errors import CommitConflictError, LockFileError, TableLockedError

logger = logging.getLogger(__name__)

# Their changes are a function of the source's rows and of the rows that these match.
_KINDS = {"matched", "not_matched"}
_STRATEGIES = (
    Strategy.INSERT_ONLY,
    Strategy.DELETION_VECTORS,
    Strategy.COPY_IN_PLACE,
    Strategy.COPY_ON_WRITE,
    Strategy.NONE,
)


@dataclass(frozen=True)
class Followed:
    """The output of a merge, as it can be committed after the commits that won.

    Attributes:
        transaction: A transaction on the newest version.
        changes: What it commits.
        files_redone: How many files were changed again.
    """

    transaction: Transaction
    changes: Changes
    files_redone: int = 0


class _MustRedoError(Exception):
    """Why the output is not known to be right for the newest version."""


def followed(
    lost: Transaction, source: PreparedSource, changes: Changes, terms: Terms, lock: TableLock
) -> Followed | None:
    """Return the output for the newest version; None if the merge must run again.

    Args:
        lost: The transaction whose commit lost.
        source: The source.
        changes: What it wrote.
        terms: What must hold at the commit.
        lock: The table's lock. It is taken, so that no other merge comes between this look at the
            newest version and the next commit, unless the look takes long.
    """
    table = lost.merge.table
    try:
        _check_statement(lost, source, changes, terms)
        lock.take()
        newer = transaction_after(lost)
        _check_table(lost, newer, terms)
        found = _changes_after(newer, source, changes, lock)
    except _MustRedoError as reason:
        lock.release()
        logger.info("%s: the merge cannot follow version %d: %s", table, lost.version, reason)
        return None
    except (TableLockedError, LockFileError):
        raise
    except Exception as error:
        lock.release()
        logger.warning("%s: cannot tell what other commits changed: %s", table, said_by(error))
        return None
    logger.info(
        "%s: what the merge wrote is right for version %d, %d of its files were changed again",
        table,
        newer.version,
        found.files_redone,
    )
    return found


def _check_statement(
    lost: Transaction, source: PreparedSource, changes: Changes, terms: Terms
) -> None:
    """Raise unless other commits are known to leave the output of such a merge right."""
    merge = lost.merge
    _require(terms.computed_from is None, "its source was computed from a version")
    _require(source.gives_same_rows, "its source may give other rows")
    _require(changes.strategy in _STRATEGIES, "of its strategy")
    kinds = {clause.kind for clause in merge.clauses}
    _require(kinds <= _KINDS, "it changes rows that are not in the source")
    _require(not lost.changes_metadata, "it changes the schema")
    verdict = may_rebase(lost.table)
    _require(verdict.ok, verdict.reason)
    unknown = unknown_in_clauses(merge)
    _require(not unknown, f"its clauses are no function of their rows alone: {', '.join(unknown)}")
    read = source_dependence(merge)
    _require(read.is_none, f"its source reads {read.because}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _MustRedoError(otherwise)


def _check_table(lost: Transaction, newer: Transaction, terms: Terms) -> None:
    if newer.version <= lost.version:
        raise _MustRedoError("no other version is there")
    if not is_same_table(lost.table, newer.table):
        raise _MustRedoError("its schema, properties or protocol changed")
    if not has_same_domains(lost.table, newer.table):
        raise _MustRedoError("its domain metadata changed")
    for application_id in terms.application_ids:
        if newer.last_applied(application_id) != lost.last_applied(application_id):
            raise _MustRedoError(f"another commit has the id {application_id}")
    try:
        terms.check_lease(newer)
    except CommitConflictError as taken:
        raise _MustRedoError(taken.problem) from taken


def _changes_after(
    newer: Transaction, source: PreparedSource, changes: Changes, lock: TableLock
) -> Followed:
    """Return the changes, with vectors united where others marked rows of the same files."""
    import numpy as np

    files = files_by_conditions(newer)
    now = file_versions(files)
    known = set(file_versions(changes.found.listed))
    candidates = {each.path: each for each in file_versions(changes.candidates)}
    is_new = np.array([each not in known for each in now], dtype=bool)
    is_marked = np.array(
        [new and _is_marked(each, candidates) for each, new in zip(now, is_new, strict=True)],
        dtype=bool,
    )
    came = files.where(is_new & ~is_marked)
    as_read = {each.path for each, new in zip(now, is_new, strict=True) if not new}
    marked = files.where(is_marked)
    gone = set(changes.matched.paths) - as_read - set(marked.paths)
    files_redone = 0
    if len(came) and not _is_quick(source, came):
        lock.release()  # other writers would wait for it too long
    if gone:
        changes, files_redone = _after_moves(newer, source, changes, gone, came)
    elif hold_match(newer, source, changes.found.keys, came):
        raise _MustRedoError("a file that came since may hold a row that the source matches")
    if len(marked):
        changes = _united(newer, changes, marked)
    return Followed(newer, changes, files_redone)


def _is_quick(source: PreparedSource, came: FileList) -> bool:
    """Return whether files that came are read and joined with the source in a moment."""
    size = source.decoded_bytes
    of_source = estimated_bytes(source.rows) if size is None else size
    return of_source + came.size_in_bytes <= limits.MAX_BYTES_UNDER_LOCK


def _after_moves(
    newer: Transaction,
    source: PreparedSource,
    changes: Changes,
    gone: Collection[str],
    came: FileList,
) -> tuple[Changes, int]:
    """Change the files to which matched rows moved; return the changes and the number of files."""
    why_not = why_not_moved(newer, changes, gone)
    if why_not is not None:
        raise _MustRedoError(f"{counted(len(gone), 'file')} with matches went away, and {why_not}")
    assert changes.scan is not None, "why_not_moved"
    files_then = changes.matched.among(gone)
    scan = moved_matches(newer, source, changes.found.keys, changes.scan, files_then, came)
    if scan is None:
        raise _MustRedoError("in the files that came, other rows match than in those that are gone")
    again = change_moved_rows(newer, source, changes, gone, scan)
    if again is None:
        raise _MustRedoError("a file that came has to be rewritten by Spark")
    return again, len(scan.touched)


def _is_marked(file: FileVersion, candidates: dict[str, FileVersion]) -> bool:
    """Return whether a file was scanned and differs in its deletion vector alone."""
    then = candidates.get(file.path)
    return then is not None and then.row_ids == file.row_ids


def _united(newer: Transaction, changes: Changes, marked: FileList) -> Changes:
    """Unite the changes with the rows that other commits marked in scanned files."""
    if len(marked) > limits.MAX_UNITED_VECTORS:
        raise _MustRedoError(f"rows of {len(marked)} scanned files were marked")
    since = MarkedSince(changes.candidates.among(set(marked.paths)), marked)
    if not since.only_more(newer):
        raise _MustRedoError("rows came back in a scanned file")
    with_matches = set(changes.matched.paths)
    shared = [path for path in marked.paths if path in with_matches]
    if not shared:
        return changes
    if changes.marked is None or not changes.changes_every_match:
        raise _MustRedoError("rows of a file with matches were marked")
    both = MarkedSince(changes.candidates.among(set(shared)), marked.among(set(shared)))
    vectors = both.united(newer, changes.marked)
    if vectors is None:
        raise _MustRedoError(
            "another commit changed the same rows, or rows of a file that the merge rewrites"
        )
    return replace(changes, marked=vectors)
