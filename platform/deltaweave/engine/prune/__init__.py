"""Prune files that hold no row that a merge changes: by conditions, statistics and an index.

A file is pruned if it can hold no row that the source matches: if its statistics prove that none of
the source's values lies between the lowest and the highest value of a key column, or if the key
index says so. A file without statistics is never pruned. If the statement has WHEN NOT MATCHED BY
SOURCE clauses, a pruned file must also hold no row that such a clause can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DoubleType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList, bounds
from deltaweave.delta.statement import by_source_predicate, skipping_predicates
from deltaweave.engine.attempts import attempted
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.prune.key_index import (
    KEY_INDEX_DIRECTORY,
    index_new_files,
    stored_index,
    wanted_index,
)
from deltaweave.engine.source import KeyValues, SourceKeys, source_keys

if TYPE_CHECKING:
    import numpy


__all__ = [
    "KEY_INDEX_DIRECTORY",
    "Candidates",
    "candidate_files",
    "files_by_conditions",
    "find_candidates",
    "index_new_files",
    "may_hold_match",
    "stored_index",
    "wanted_index",
]


@dataclass(frozen=True)
class Candidates:
    """The files to scan, and the source's keys, before any file is read.

    Attributes:
        listed: The files that the statement's conditions left, from which they were chosen.
        keys: The values that the source has for the equalities of the ON condition.
    """

    files: FileList
    listed: FileList
    keys: SourceKeys


def find_candidates(run: MergeRun) -> Candidates:
    """Collect the source's keys, and prune files by them."""
    files = files_by_conditions(run.transaction)
    keys = source_keys(run.statement, run.source, files)
    candidates = candidate_files(run, keys, files)
    return Candidates(candidates, files, keys)


def candidate_files(run: MergeRun, keys: SourceKeys, files: FileList) -> FileList:
    """Return the candidates among the files that the statement's conditions leave."""
    import numpy as np

    merge = run.statement
    by_source = bool(merge.of_kind("not_matched_by_source"))
    predicate = by_source_predicate(merge) if by_source else None
    if by_source and predicate is None:
        return files
    can_match = _can_match(run, keys, files)
    if predicate is None or can_match.all():
        return files.where(can_match)
    open_to_a_clause = run.transaction.files_in_partitions(files, [predicate])
    if open_to_a_clause is None:
        open_to_a_clause = set(run.transaction.candidate_files([predicate]).paths)
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


def _can_match(run: MergeRun, keys: SourceKeys, files: FileList) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    if len(files) < 2 and not (run.source.gives_same_rows and run.source.num_rows == 0):
        return np.ones(len(files), dtype=bool)  # its statistics would not spare its scan
    return may_hold_match(run, keys, files)


def may_hold_match(run: MergeRun, keys: SourceKeys, files: FileList) -> numpy.ndarray:
    """Return for each file whether it can hold a match of a source row, by keys and index."""
    import numpy as np

    if not len(files) or (run.source.gives_same_rows and run.source.num_rows == 0):
        return np.zeros(len(files), dtype=bool)
    if not keys.columns:
        return np.ones(len(files), dtype=bool)
    table = run.statement.table
    mask = attempted(table, "no file is pruned", partial(may_match, run.transaction, files, keys))
    if mask is None:
        return np.ones(len(files), dtype=bool)
    index = stored_index(run.transaction.table)
    if index is not None and mask.sum() > 1:
        left = files.where(mask)
        held = attempted(table, "the key index prunes no file", partial(index.may_hold, left, keys))
        mask[mask] = True if held is None else held
    return mask


def may_match(transaction: Transaction, candidates: FileList, keys: SourceKeys) -> numpy.ndarray:
    """Return for each file whether it can hold a row that a source row matches."""
    import numpy as np

    columns = [(key.equality.path, key.equality.data_type) for key in keys.columns]
    mask = np.ones(len(candidates), dtype=bool)
    known = bounds(transaction.table, candidates, columns)
    for key, of_key in zip(keys.columns, known, strict=True):
        files = zip(of_key.lows, of_key.highs, of_key.may_be_null, strict=True)
        for i, (low, high, may_be_null) in enumerate(files):
            mask[i] = mask[i] and _may_hold(key, low, high, may_be_null)
    return mask


def _may_hold(key: KeyValues, low: Any, high: Any, may_be_null: bool) -> bool:
    """Return whether a file with these bounds can hold one of the values."""
    if key.equality.null_safe and key.has_null and may_be_null:
        return True
    if low is None or high is None:
        return True
    if isinstance(key.equality.compared_as, DoubleType):
        # Spark compares such whole numbers as doubles, and two of them may be the same double.
        low, high = float(low), float(high)
    return key.may_lie_within(low, high)
