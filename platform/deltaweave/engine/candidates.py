"""The candidate files: those that can hold a row that the merge changes, registered as read.

A file need not be read if it can hold no row that the source matches and, where the statement looks
at rows without a match, no row that such a clause takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta.conditions import by_source_predicate, skipping_predicates
from deltaweave.delta.file_list import FileList
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.key_index import key_index
from deltaweave.engine.pruning import may_match
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.source_keys import SourceKeys, source_keys

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True)
class Candidates:
    """What is known of matches before any file is read.

    Attributes:
        files: The candidate files.
        keys: The source's keys.
    """

    files: FileList
    keys: SourceKeys


def find_candidates(transaction: Transaction, source: PreparedSource) -> Candidates:
    """Collect the source's keys, and choose the files that have to be scanned."""
    files = files_by_conditions(transaction)
    keys = source_keys(transaction.merge, source, files)
    candidates = candidate_files(transaction, source, keys, files)
    return Candidates(candidates, keys)


def candidate_files(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> FileList:
    """Those of the files that the conditions leave which have to be scanned."""
    import numpy as np

    merge = transaction.merge
    by_source = bool(merge.of_kind("not_matched_by_source"))
    predicate = by_source_predicate(merge) if by_source else None
    if by_source and predicate is None:
        return files
    can_match = _can_match(transaction, source, keys, files)
    if predicate is None or can_match.all():
        return files.where(can_match)
    partitioned_by = transaction.snapshot.metadata().partitionSchema()
    open_to_a_clause = files.in_partitions(partitioned_by, predicate)
    if open_to_a_clause is None:
        open_to_a_clause = set(transaction.candidate_files([predicate]).paths)
    taken = [path in open_to_a_clause for path in files.paths]
    return files.where(can_match | np.array(taken, dtype=bool))


def files_by_conditions(transaction: Transaction) -> FileList:
    """The files that the statement's conditions over the target alone leave.

    All of them are registered with the transaction as read, also where the source's keys then rule
    some out: a commit of another writer may add matching rows.
    """
    merge = transaction.merge
    by_source = bool(merge.of_kind("not_matched_by_source"))
    return transaction.candidate_files([] if by_source else skipping_predicates(merge))


def _can_match(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> numpy.ndarray:
    """Which of the files can hold a row that a source row matches."""
    import numpy as np

    if source.gives_same_rows and source.num_rows == 0:
        return np.zeros(len(files), dtype=bool)
    if not keys.columns or len(files) < 2:
        return np.ones(len(files), dtype=bool)
    mask = may_match(transaction, files, keys)
    index = key_index(transaction.table)
    if index is not None and mask.sum() > 1:
        mask[mask] = index.may_hold(files.where(mask), keys)
    return mask
