"""Candidate files: those that may hold a row that the merge changes, registered as read.

A file is pruned if it can hold no row that the source matches. If the statement has WHEN NOT
MATCHED BY SOURCE clauses, it must also hold no row that such a clause can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList
from deltaweave.delta.statement import by_source_predicate, skipping_predicates
from deltaweave.engine.find.key_index import stored_index
from deltaweave.engine.find.statistics_pruning import may_match
from deltaweave.engine.local_attempt import attempted
from deltaweave.engine.source import PreparedSource, SourceKeys, source_keys

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True)
class Candidates:
    """What is known before any file is read.

    Attributes:
        files: The candidate files.
        listed: The files that the statement's conditions left, from which they were chosen.
        keys: The values that the source has for the equalities of the ON condition.
    """

    files: FileList
    listed: FileList
    keys: SourceKeys


def find_candidates(transaction: Transaction, source: PreparedSource) -> Candidates:
    """Collect the source's keys, and prune files by them."""
    files = files_by_conditions(transaction)
    keys = source_keys(transaction.merge, source, files)
    candidates = candidate_files(transaction, source, keys, files)
    return Candidates(candidates, files, keys)


def candidate_files(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> FileList:
    """Return the candidates among the files that the statement's conditions leave."""
    import numpy as np

    merge = transaction.merge
    by_source = bool(merge.of_kind("not_matched_by_source"))
    predicate = by_source_predicate(merge) if by_source else None
    if by_source and predicate is None:
        return files
    can_match = _can_match(transaction, source, keys, files)
    if predicate is None or can_match.all():
        return files.where(can_match)
    open_to_a_clause = transaction.files_in_partitions(files, [predicate])
    if open_to_a_clause is None:
        open_to_a_clause = set(transaction.candidate_files([predicate]).paths)
    taken = [path in open_to_a_clause for path in files.paths]
    return files.where(can_match | np.array(taken, dtype=bool))


def files_by_conditions(transaction: Transaction) -> FileList:
    """Return the files that the statement's conditions over the target alone leave.

    All of them are registered with the transaction as read, also those that the source's keys then
    prune, since a commit of another writer may add matching rows.
    """
    merge = transaction.merge
    by_source = bool(merge.of_kind("not_matched_by_source"))
    return transaction.candidate_files([] if by_source else skipping_predicates(merge))


def _can_match(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    if len(files) < 2 and not (source.gives_same_rows and source.num_rows == 0):
        return np.ones(len(files), dtype=bool)  # its statistics would not spare its scan
    return may_hold_match(transaction, source, keys, files)


def may_hold_match(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> numpy.ndarray:
    """Return for each file whether it can hold a match of a source row, by keys and index."""
    import numpy as np

    if not len(files) or (source.gives_same_rows and source.num_rows == 0):
        return np.zeros(len(files), dtype=bool)
    if not keys.columns:
        return np.ones(len(files), dtype=bool)
    table = transaction.merge.table
    mask = attempted(table, "no file is pruned", partial(may_match, transaction, files, keys))
    if mask is None:
        return np.ones(len(files), dtype=bool)
    index = stored_index(transaction.table)
    if index is not None and mask.sum() > 1:
        left = files.where(mask)
        held = attempted(table, "the key index prunes no file", partial(index.may_hold, left, keys))
        mask[mask] = True if held is None else held
    return mask
