"""Find the touched files: which target rows match which source rows, and which clause takes each.

One scan of the target's condition columns gives the pairs (file, row, source row) with the clause
that takes each pair. The pairs are kept: the counts per file, the ambiguity check, the metrics and
the inserts all come from them. Files in which no clause takes a row are not touched, even if rows
in them match.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.analyzer import ResolvedClause, ResolvedMerge
from deltaweave.delta.failures import translated
from deltaweave.delta.file_list import FileList, decoded_location
from deltaweave.delta.target_plan import target_plan
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.candidates import Candidates
from deltaweave.engine.evolution import changes_nothing
from deltaweave.engine.pairs import (
    CLAUSE,
    FILE,
    INSERTABLE,
    MATCHES,
    MAX_ON_DRIVER,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
    Pairs,
    brought_to_driver,
)
from deltaweave.engine.source import SOURCE_ROW_PRESENT, PreparedSource
from deltaweave.engine.source_keys import row_identity, within
from deltaweave.engine.unaffected_rows import MatchedRows
from deltaweave.errors import AmbiguousMatchError, MergeFailedError

if TYPE_CHECKING:
    import pyarrow

from deltaweave.identifiers import quoted

logger = logging.getLogger(__name__)

TRACE = 5  # below DEBUG: the names of touched files, which may be many

# Source row and clause of so many pairs take some 64 MB in a hash table.
_BROADCAST_LIMIT_PAIRS = 1_000_000


@dataclass(frozen=True)
class TouchedFilesScan:
    """What the scan for matches found.

    Attributes:
        candidates: The files that were scanned.
        matched: Those of them with at least one row that a source row matches.
        touched: Those of them with at least one row that a clause changes.
        rows_by_clause: Rows taken, by the clause's place in `ResolvedMerge.clauses`.
        num_matched_rows: Target rows that at least one source row matches.
        num_matched_pairs: Pairs of a target row and a source row that matches it.
        matched_source: The source rows in these pairs.
        num_repeated: Target rows that several source rows match; one clause deletes them all.
        touched_names: The touched files as `FILE` names them, in any order.
        changed_by_file: How many rows of each touched file a clause takes, in their order.
        source_identity: What tells a source row from the others, or None if nothing does.
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
        """These columns of the pairs that a clause takes in some of the touched files."""
        return self.pairs.changed(*columns, in_files=self._unless_all(files))

    def changed_on_driver(self, files: FileList) -> pyarrow.Table | None:
        """The same pairs with all columns, if they are on the driver."""
        return self.pairs.changed_on_driver(self._unless_all(files))

    def _unless_all(self, files: FileList) -> list[str] | None:
        """Some of the touched files as `FILE` names them; None if they are all of these."""
        return None if len(files) == len(self.touched) else self.names_of(files)

    def names_of(self, files: FileList) -> list[str]:
        """Some of the touched files as `FILE` names them, in any order."""
        wanted = set(files.rows["location"].to_pylist())
        return [name for name in self.touched_names if decoded_location(name) in wanted]

    def matched_pairs(self, *columns: str) -> DataFrame:
        """These columns of the pairs with a source row, for a join; broadcast where few."""
        pairs = self.pairs.matched(*columns)
        return F.broadcast(pairs) if self.may_broadcast_pairs else pairs

    @property
    def may_broadcast_pairs(self) -> bool:
        """Whether a hash table of the pairs fits wherever they are joined."""
        return self.num_matched_pairs <= _BROADCAST_LIMIT_PAIRS


def clause_taken(merge: ResolvedMerge) -> Column:
    """The place of the first clause that takes a row of target joined with source, or -1.

    Each condition is computed once per joined row (document row C8). Over joined rows without a
    source row, the WHEN NOT MATCHED BY SOURCE clauses are asked.
    """
    place = {id(clause): i for i, clause in enumerate(merge.clauses)}

    def taken(clause: ResolvedClause) -> Column:
        number = F.lit(place[id(clause)])
        if merge.skips_unchanged and clause.action == "update":
            return F.when(changes_nothing(merge, clause), NO_CLAUSE).otherwise(number)
        return number

    def first(clauses: Sequence[ResolvedClause]) -> Column:
        none = F.lit(NO_CLAUSE)
        return reduce(
            lambda later, clause: (
                taken(clause)
                if clause.condition is None
                else F.when(clause.condition, taken(clause)).otherwise(later)
            ),
            reversed(clauses),
            none,
        )

    without_source_row = F.col(SOURCE_ROW_PRESENT).isNull()
    by_source = first(merge.of_kind("not_matched_by_source"))
    return F.when(without_source_row, by_source).otherwise(first(merge.of_kind("matched")))


def find_touched_files(
    transaction: Transaction,
    source: PreparedSource,
    found: Candidates,
    *,
    with_row_index: bool,
) -> TouchedFilesScan:
    """Scan the candidate files for matches and changed rows.

    The caller unpersists `pairs`. With `with_row_index`, their row ids are places in the files.

    Raises:
        AmbiguousMatchError: Several source rows match a target row.
    """
    merge = transaction.merge
    candidates, keys = found.files, found.keys
    identity = row_identity(source, keys)
    if not len(candidates):
        return TouchedFilesScan(
            candidates=candidates,
            matched=candidates,
            touched=candidates,
            rows_by_clause={},
            num_matched_rows=0,
            num_matched_pairs=0,
            matched_source=MatchedRows(),
            num_repeated=0,
            touched_names=(),
            changed_by_file=(),
            source_identity=identity,
            pairs=Pairs(merge.spark.range(0)),
        )
    target = target_plan(
        transaction,
        candidates,
        merge.scan_columns(),
        file_column=FILE,
        row_column=None if with_row_index else TARGET_ROW_ID,
        row_index_column=TARGET_ROW_ID if with_row_index else None,
    )
    by_source = bool(merge.of_kind("not_matched_by_source"))
    join_type = "left" if by_source else "inner"
    may_match = within(keys)
    if may_match is not None and not by_source:
        target = target.filter(may_match)
    joined = target.join(source.for_join(), merge.condition, join_type)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "findTouchedFiles using %s join:\n  source.output: %s\n  target.output: %s\n"
            "  condition: %s\n  candidate files: %d",
            join_type,
            source.rows.columns,
            target.columns,
            merge.node.condition().toString(),
            len(candidates),
        )
    query = joined.select(
        FILE,
        TARGET_ROW_ID,
        # A name and attribute of its own, so that the pairs can be joined with the source again.
        F.when(F.col(SOURCE_ROW_PRESENT), F.lit(0) if identity is None else identity).alias(
            SOURCE_ROW
        ),
        clause_taken(merge).alias(CLAUSE),
        *_insertable(source),
    )
    if by_source:
        # Rows that neither match nor change: most of a table.
        query = query.filter(F.col(SOURCE_ROW).isNotNull() | (F.col(CLAUSE) != NO_CLAUSE))
    # The inserts and the deletion vectors read the pairs once more.
    read_again = with_row_index or (identity is not None and bool(merge.of_kind("not_matched")))
    with translated(merge.table, version=transaction.version):
        pairs = _kept(query, source, found, by_source=by_source) if read_again else Pairs(query)
    try:
        with translated(merge.table, version=transaction.version):
            counts = pairs.counts_per_file(len(merge.clauses), one_each=keys.are_unique)
        if _total(counts, "ambiguous") and not merge.may_match_repeatedly:
            raise _ambiguity(transaction, candidates, source)
        matched, _ = _files_with(transaction, candidates, counts, "matched")
        touched, changed_by_file = _files_with(transaction, candidates, counts, "changed")
    except BaseException:
        pairs.unpersist()
        raise
    logger.log(TRACE, "findTouchedFiles: touched files:\n\t%s", "\n\t".join(touched.paths))
    return TouchedFilesScan(
        candidates=candidates,
        matched=matched,
        touched=touched,
        rows_by_clause={i: _total(counts, f"clause_{i}") for i in range(len(merge.clauses))},
        num_matched_rows=_total(counts, "matched"),
        num_matched_pairs=_total(counts, "pairs"),
        matched_source=_matched_source(pairs, counts, has_identity=identity is not None),
        num_repeated=_total(counts, "ambiguous"),
        touched_names=tuple(_names_with(counts, "changed")),
        changed_by_file=changed_by_file,
        source_identity=identity,
        pairs=pairs,
    )


def _kept(query: DataFrame, source: PreparedSource, found: Candidates, *, by_source: bool) -> Pairs:
    """The pairs, to be read several times: on the driver where they are expected to be few."""
    at_most = found.files.num_records if found.keys.are_unique else None
    few = source.is_counted and source.num_rows <= MAX_ON_DRIVER
    if by_source:  # rows without a source row may be most of the candidates
        few = at_most is not None and at_most <= MAX_ON_DRIVER
    locations = found.files.rows["location"].to_pylist()
    only_file = quote(locations[0], safe="/:") if len(locations) == 1 else None
    pairs = brought_to_driver(query, at_most=at_most, only_file=only_file) if few else None
    return Pairs(query.persist()) if pairs is None else pairs


def _insertable(source: PreparedSource) -> list[Column]:
    """Of a pair, whether an insert clause would take its source row; nothing where none asks."""
    if source.insertable is None:
        return []
    # A row without a source row, for which WHEN NOT MATCHED BY SOURCE clauses look, has none.
    return [(F.col(SOURCE_ROW_PRESENT).isNotNull() & source.insertable).alias(INSERTABLE)]


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
    """The files with such rows, as `FILE` names them."""
    import pyarrow.compute as pc

    names: list[str] = counts.filter(pc.greater(counts[column], 0))[FILE].to_pylist()
    return names


def _files_with(
    transaction: Transaction, candidates: FileList, counts: pyarrow.Table, column: str
) -> tuple[FileList, tuple[int, ...]]:
    """The candidates with such rows, and how many each; an unknown name is an error (C4)."""
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


def _ambiguity(
    transaction: Transaction, candidates: FileList, source: PreparedSource
) -> AmbiguousMatchError:
    """Delta's error, with up to 10 of the offending target rows (document row M4)."""
    merge = transaction.merge
    shown = merge.condition_columns()
    target = target_plan(transaction, candidates, shown, row_column=TARGET_ROW_ID)
    labels = [f"_key_{i}_" for i in range(len(shown))]
    pairs = target.join(source.for_join(), merge.condition, "inner").select(
        TARGET_ROW_ID,
        *[target[quoted(name)].alias(x) for name, x in zip(shown, labels, strict=True)],
    )
    repeated = (
        pairs.groupBy(TARGET_ROW_ID)
        .agg(F.count(F.lit(1)).alias(MATCHES), *[F.first(x).alias(x) for x in labels])
        .filter(F.col(MATCHES) > 1)
        .limit(10)
    )
    try:
        found = repeated.collect()
    except (OverflowError, ValueError):  # dates and times of years that Python does not have
        found = repeated.select(*[F.col(x).cast("string") for x in labels], MATCHES).collect()
    keys = [
        {**{name: row[x] for name, x in zip(shown, labels, strict=True)}, "matches": row[MATCHES]}
        for row in found
    ]
    message, error_class, sql_state = transaction.ambiguous_match()
    return AmbiguousMatchError(
        message,
        keys,
        table=merge.table,
        version=transaction.version,
        error_class=error_class,
        sql_state=sql_state,
    )
