"""Find the touched files: which target rows match which source rows, and which clause takes each.

The pairs of the scan (file, row, source row, clause) are kept: the counts per file, the ambiguity
check, the metrics and the inserts all come from them. Files in which no clause takes a row are not
touched, even if rows in them match.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import translated
from deltaweave.delta.log import FileList, decoded_location
from deltaweave.engine import limits
from deltaweave.engine.columns import FILE
from deltaweave.engine.find.ambiguous_match import ambiguous_match
from deltaweave.engine.find.candidates import Candidates
from deltaweave.engine.find.pairs import MatchedRows, Pairs
from deltaweave.engine.find.scan import scanned_pairs
from deltaweave.engine.source import PreparedSource, row_identity
from deltaweave.errors import MergeFailedError

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

TRACE = 5  # below DEBUG: the names of touched files, which may be many


@dataclass(frozen=True)
class TouchedFilesScan:
    """What the scan for matches found.

    Attributes:
        candidates: The files that were scanned.
        matched: The candidates with a row that a source row matches.
        touched: The candidates with a row that a clause changes.
        rows_by_clause: Rows taken, by the clause's index in `ResolvedMerge.clauses`.
        num_matched_rows: Target rows that at least one source row matches.
        num_matched_pairs: Pairs of a target row and a source row that matches it.
        matched_source: The source rows in these pairs.
        num_repeated: Target rows that several source rows match; one clause deletes them all.
        touched_names: The touched files as `FILE` names them, in any order.
        changed_by_file: How many rows of each touched file a clause takes, in their order.
        source_identity: What identifies a source row, or None if nothing does.
        pairs: The pairs.
    """

    candidates: FileList
    matched: FileList
    touched: FileList
    rows_by_clause: dict[int, int]
    num_matched_rows: int
    num_matched_pairs: int
    matched_source: MatchedRows
    num_repeated: int
    touched_names: tuple[str, ...]
    changed_by_file: tuple[int, ...]
    source_identity: Column | None
    pairs: Pairs

    def changed_pairs(self, *columns: str, files: FileList) -> DataFrame:
        """Return these columns of the pairs that a clause takes in some of the touched files."""
        return self.pairs.changed(*columns, in_files=self._unless_all(files))

    def changed_numbered(self, *columns: str, files: FileList) -> DataFrame:
        """Return changed pairs with `NUMBER`: the file's index among `names_of` the files."""
        return self.pairs.changed_numbered(*columns, in_files=self.names_of(files))

    def changed_on_driver(self, files: FileList) -> pyarrow.Table | None:
        """Return the pairs that a clause takes, with all columns, if they are on the driver."""
        return self.pairs.changed_on_driver(self._unless_all(files))

    def _unless_all(self, files: FileList) -> list[str] | None:
        """Return some of the touched files as `FILE` names them; None if they are all of these."""
        return None if len(files) == len(self.touched) else self.names_of(files)

    def names_of(self, files: FileList) -> list[str]:
        """Return some of the touched files as `FILE` names them, in any order."""
        wanted = set(files.rows["location"].to_pylist())
        return [name for name in self.touched_names if decoded_location(name) in wanted]

    def matched_pairs(self, *columns: str) -> DataFrame:
        """Return these columns of the pairs with a source row, for a join; broadcast if few."""
        pairs = self.pairs.matched(*columns)
        return F.broadcast(pairs) if self.may_broadcast_pairs else pairs

    @property
    def may_broadcast_pairs(self) -> bool:
        """Whether the pairs are few enough for a broadcast join."""
        return self.num_matched_pairs <= limits.MAX_BROADCAST_PAIRS


def find_touched_files(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    *,
    with_row_index: bool,
) -> TouchedFilesScan:
    """Scan the candidate files for matches and changed rows.

    The caller unpersists `pairs`. With `with_row_index`, `TARGET_ROW_ID` is the row index.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    identity = row_identity(source, candidates.keys)
    if not len(candidates.files):
        return _nothing_found(transaction, candidates.files, identity)
    pairs = scanned_pairs(transaction, source, candidates, identity, with_row_index=with_row_index)
    may_repeat = transaction.merge.may_match_repeatedly
    return touched_files_of_pairs(
        transaction, source, candidates, identity, pairs, may_repeat=may_repeat
    )


def touched_files_of_pairs(
    transaction: Transaction,
    source: PreparedSource,
    candidates: Candidates,
    identity: Column | None,
    pairs: Pairs,
    *,
    may_repeat: bool,
) -> TouchedFilesScan:
    """Find the touched files by the pairs, and drop the pairs if this fails.

    Raises:
        AmbiguousMatchError: Several source rows match a target row, unless they may.
    """
    merge = transaction.merge
    try:
        with translated(merge.table, version=transaction.version):
            counts = pairs.counts_per_file(len(merge.clauses), one_each=candidates.keys.are_unique)
        if _total(counts, "ambiguous") and not may_repeat:
            raise ambiguous_match(transaction, candidates.files, source)
        return _found(transaction, candidates.files, identity, pairs, counts)
    except BaseException:
        pairs.unpersist()
        raise


def _nothing_found(
    transaction: Transaction, no_files: FileList, identity: Column | None
) -> TouchedFilesScan:
    return TouchedFilesScan(
        candidates=no_files,
        matched=no_files,
        touched=no_files,
        rows_by_clause={},
        num_matched_rows=0,
        num_matched_pairs=0,
        matched_source=MatchedRows(),
        num_repeated=0,
        touched_names=(),
        changed_by_file=(),
        source_identity=identity,
        pairs=Pairs(transaction.merge.spark.range(0)),
    )


def _found(
    transaction: Transaction,
    candidates: FileList,
    identity: Column | None,
    pairs: Pairs,
    counts: pyarrow.Table,
) -> TouchedFilesScan:
    """Build the scan's result from the pairs and their counts per file."""
    matched, _ = _files_with(transaction, candidates, counts, "matched")
    touched, changed_by_file = _files_with(transaction, candidates, counts, "changed")
    logger.log(TRACE, "findTouchedFiles: touched files:\n\t%s", "\n\t".join(touched.paths))
    num_clauses = len(transaction.merge.clauses)
    return TouchedFilesScan(
        candidates=candidates,
        matched=matched,
        touched=touched,
        rows_by_clause={i: _total(counts, f"clause_{i}") for i in range(num_clauses)},
        num_matched_rows=_total(counts, "matched"),
        num_matched_pairs=_total(counts, "pairs"),
        matched_source=_matched_source(pairs, counts, has_identity=identity is not None),
        num_repeated=_total(counts, "ambiguous"),
        touched_names=tuple(_names_with(counts, "changed")),
        changed_by_file=changed_by_file,
        source_identity=identity,
        pairs=pairs,
    )


def _matched_source(pairs: Pairs, counts: pyarrow.Table, *, has_identity: bool) -> MatchedRows:
    num_pairs = _total(counts, "pairs")
    num_insertable = _total(counts, "insertable") if "insertable" in counts.column_names else 0
    rows = pairs.num_source_rows if has_identity else None
    insertable = pairs.num_insertable_source_rows if has_identity else None
    return MatchedRows(
        num_pairs,
        num_pairs if rows is None else rows,
        num_insertable if insertable is None else insertable,
    )


def _total(counts: pyarrow.Table, column: str) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(counts[column]).as_py() or 0)


def _names_with(counts: pyarrow.Table, column: str) -> list[str]:
    """Return the files with a count above 0, as `FILE` names them."""
    import pyarrow.compute as pc

    names: list[str] = counts.filter(pc.greater(counts[column], 0))[FILE].to_pylist()
    return names


def _files_with(
    transaction: Transaction, candidates: FileList, counts: pyarrow.Table, column: str
) -> tuple[FileList, tuple[int, ...]]:
    """Return the candidates with such rows, and how many rows; raise if a file is unknown."""
    import numpy as np

    rows_by_file = {
        decoded_location(name): rows
        for name, rows in zip(counts[FILE].to_pylist(), counts[column].to_pylist(), strict=True)
        if rows
    }
    locations = candidates.rows["location"].to_pylist()
    by_file = [rows_by_file.get(location, 0) for location in locations]
    unknown = rows_by_file.keys() - set(locations)
    if unknown:
        raise MergeFailedError(
            f"the scan named files that are no candidates: {sorted(unknown)[:3]}.",
            table=transaction.merge.table,
            version=transaction.version,
            hint="This is a defect of deltaweave: please report it with the file names.",
        )
    chosen = candidates.where(np.array([rows > 0 for rows in by_file], dtype=bool))
    return chosen, tuple(rows for rows in by_file if rows)
