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
from deltaweave.delta.jvm import delta_message, grouped, translated
from deltaweave.delta.log import FileList, decoded_location
from deltaweave.delta.scan import target_plan
from deltaweave.engine import limits
from deltaweave.engine.columns import FILE, MATCHES, TARGET_ROW_ID
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs.pairs import MatchedRows, Pairs
from deltaweave.engine.prune import Candidates
from deltaweave.errors import AmbiguousMatchError, MergeFailedError
from deltaweave.identifiers import back_quoted

if TYPE_CHECKING:
    import numpy
    import pyarrow

logger = logging.getLogger(__name__)

TRACE = 5  # below DEBUG: the names of touched files, which may be many


@dataclass(frozen=True)
class TouchedFilesScan:
    """The result of the scan for matches.

    Attributes:
        found: The candidate files, which were scanned, and the source's keys.
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
    """

    found: Candidates
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
        """Return columns of the pairs that a clause takes in some of the touched files."""
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
        """Return columns of the pairs with a source row, for a join; broadcast if few."""
        pairs = self.pairs.matched(*columns)
        return F.broadcast(pairs) if self.may_broadcast_pairs else pairs

    @property
    def may_broadcast_pairs(self) -> bool:
        """Whether the pairs are few enough for a broadcast join."""
        return self.num_matched_pairs <= limits.MAX_BROADCAST_PAIRS


def touched_files_of_pairs(
    run: MergeRun,
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
    merge = run.statement
    try:
        with translated(merge.table, version=run.transaction.version):
            counts = pairs.counts_per_file(len(merge.clauses), one_each=candidates.keys.are_unique)
        if _total(counts, "ambiguous") and not may_repeat:
            raise _ambiguous_match(run, candidates.files)
        return _found(run.transaction, candidates, identity, pairs, counts)
    except BaseException:
        pairs.unpersist()
        raise


def nothing_touched(run: MergeRun, found: Candidates, identity: Column | None) -> TouchedFilesScan:
    """Return the result of a scan of no files."""
    return TouchedFilesScan(
        found=found,
        matched=found.files,
        touched=found.files,
        rows_by_clause={},
        num_matched_rows=0,
        num_matched_pairs=0,
        matched_source=MatchedRows(),
        num_repeated=0,
        touched_names=(),
        changed_by_file=(),
        source_identity=identity,
        pairs=Pairs(run.statement.spark.range(0)),
    )


def _found(
    transaction: Transaction,
    found: Candidates,
    identity: Column | None,
    pairs: Pairs,
    counts: pyarrow.Table,
) -> TouchedFilesScan:
    """Build the scan's result from the pairs and their counts per file."""
    matched, _ = _files_with(transaction, found.files, counts, "matched")
    touched, changed_by_file = _files_with(transaction, found.files, counts, "changed")
    logger.log(TRACE, "findTouchedFiles: touched files:\n\t%s", "\n\t".join(touched.paths))
    num_clauses = len(transaction.merge.clauses)
    return TouchedFilesScan(
        found=found,
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


def _ambiguous_match(run: MergeRun, candidates: FileList) -> AmbiguousMatchError:
    """Build Delta's error, with some of the target rows that match several source rows."""
    merge = run.statement
    key_columns = merge.condition_columns()
    target = target_plan(run.transaction, candidates, key_columns, row_column=TARGET_ROW_ID)
    labels = [f"_key_{i}_" for i in range(len(key_columns))]
    pairs = target.join(run.source.for_join(), merge.condition, "inner").select(
        TARGET_ROW_ID,
        *[target[back_quoted(name)].alias(x) for name, x in zip(key_columns, labels, strict=True)],
    )
    shown_of_row = [F.count(F.lit(1)).alias(MATCHES), *[F.first(x).alias(x) for x in labels]]
    counted = grouped(pairs, [TARGET_ROW_ID], shown_of_row)
    repeated = counted.filter(F.col(MATCHES) > 1).limit(limits.MAX_SHOWN_AMBIGUOUS_ROWS)
    try:
        found = repeated.collect()
    except (OverflowError, ValueError):  # dates and times of years that Python does not have
        found = repeated.select(*[F.col(x).cast("string") for x in labels], MATCHES).collect()
    keys = [
        {
            **{name: row[x] for name, x in zip(key_columns, labels, strict=True)},
            "matches": row[MATCHES],
        }
        for row in found
    ]
    message = delta_message(
        merge.spark, "multipleSourceRowMatchingTargetRowInMergeException", with_session=True
    )
    return AmbiguousMatchError(
        message.text,
        keys,
        table=merge.table,
        version=run.transaction.version,
        error_class=message.error_class,
        sql_state=message.sql_state,
    )


@dataclass(frozen=True)
class FilePlan:
    """The touched files by what happens to them.

    Attributes:
        stay: Files in which rows are marked.
        removed: Files that leave the table.
        copied: Removed files that have rows left, which are rewritten.
        num_copied: How many such rows there are.
    """

    stay: FileList
    removed: FileList
    copied: FileList
    num_copied: int


def plan_files(
    run: MergeRun, scan: TouchedFilesScan, row_counts: numpy.ndarray | None = None
) -> FilePlan:
    """Choose for each touched file, by the fraction of its rows that would be marked.

    Rows that earlier merges marked count as marked. A file with an unknown number of rows stays,
    and so does one in which more rows changed than its statistics count. A file whose own row count
    contradicts its statistics is rewritten: Delta would take it for empty by them.

    Args:
        row_counts: The number of rows of each touched file, as the file records it, or None.
    """
    import numpy as np

    recorded = scan.touched.row_counts
    rows = recorded if row_counts is None else row_counts
    num_marked = scan.touched.rows["num_marked"].to_numpy()
    left = rows - np.array(scan.changed_by_file, dtype=float)
    fraction = 1 - left / np.maximum(rows + num_marked, 1)
    is_wrong = (rows != recorded) & ~np.isnan(recorded)
    is_full = fraction > run.settings.max_marked_fraction
    leaves = (left == 0) | ((left > 0) & (is_full | is_wrong))
    return FilePlan(
        scan.touched.where(~leaves),
        scan.touched.where(leaves),
        scan.touched.where(leaves & (left > 0)),
        int(left[leaves].sum()),
    )
