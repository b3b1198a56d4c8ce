"""Pairs of a target row and a source row that matches it, with the clause that takes each.

Every later step reads them: counts per file, ambiguity, deletion vectors, updates and inserts. So
they are computed once and kept. Few pairs come to the driver, where counting them and writing
vectors takes no Spark job. More pairs stay on the executors.

Files in which no clause takes a row are not touched, even if rows in them match.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import Reading, Use, capability
from deltaweave.delta.jvm import collected, delta_message, grouped
from deltaweave.delta.log import FileList, decoded_location
from deltaweave.delta.scan import RowColumns, target_plan
from deltaweave.engine import limits
from deltaweave.engine.clauses import (
    CLAUSE,
    FILE,
    INSERTABLE,
    MATCHES,
    NO_CLAUSE,
    NUMBER,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.prune import Candidates
from deltaweave.engine.source import collected_within
from deltaweave.engine.tasks import TooBigError
from deltaweave.errors import AmbiguousMatchError, MergeFailedError
from deltaweave.identifiers import back_quoted

if TYPE_CHECKING:
    import numpy
    import pyarrow

logger = logging.getLogger(__name__)

TRACE = 5  # below DEBUG: the names of touched files, which may be many


@dataclass(frozen=True)
class MatchedRows:
    """The number of source rows that match.

    Attributes:
        pairs: Pairs of a target row and a source row that matches it.
        source_rows: Source rows in a pair; the number of pairs, if counting rows takes a query.
        insertable: Those of them that an insert clause would take if they matched nothing.
    """

    pairs: int = 0
    source_rows: int = 0
    insertable: int = 0


@dataclass(frozen=True)
class Pairs:
    """The pairs, wherever they are kept.

    Attributes:
        computed: The query that gives them: `FILE` (string), `TARGET_ROW_ID` (bigint; the row's
            index in its file, or any number that tells the rows of the scan apart), `SOURCE_ROW`
            (the source row's identity, or 0 if it has none; null where no source row matches),
            `CLAUSE` (int; -1 if no clause takes the pair) and, if asked for, `INSERTABLE` (boolean;
            whether an insert clause would take the source row).
            None if they were found on the driver.
        on_driver: All of them, if they are few or were found there; else None. `FILE` may be a
            dictionary.
        spark: The session; that of `computed` unless it is given.
        unmatched: The identities of the source rows in no pair; None if they are not known.
    """

    computed: DataFrame | None
    on_driver: pyarrow.Table | None = None
    spark: SparkSession | None = None
    unmatched: pyarrow.Array | None = None

    def few_unmatched(self) -> DataFrame | None:
        """Return `SOURCE_ROW` of source rows in no pair, to broadcast; None if there are many."""
        import pyarrow as pa

        if self.unmatched is None or len(self.unmatched) > limits.MAX_BROADCAST_PAIRS:
            return None
        return self._data_frame(pa.table({SOURCE_ROW: self.unmatched}))

    def matched(self, *columns: str) -> DataFrame:
        """Return columns of the pairs with a source row."""
        if self.on_driver is None:
            return self._query.filter(F.col(SOURCE_ROW).isNotNull()).select(*columns)
        return self._data_frame(_with_source_row(self.on_driver).select(columns))

    def changed(self, *columns: str, in_files: Collection[str] | None = None) -> DataFrame:
        """Return columns of the pairs that a clause takes, in all or some files."""
        local_rows = self.changed_on_driver(in_files)
        if local_rows is not None:
            return self._data_frame(local_rows.select(columns))
        rows = self._query.filter(F.col(CLAUSE) != NO_CLAUSE)
        if in_files is not None:
            rows = rows.filter(F.col(FILE).isin(list(in_files)))
        return rows.select(*columns)

    def changed_numbered(self, *columns: str, in_files: Sequence[str]) -> DataFrame:
        """Return changed pairs of some files, whose index among these, from 0 on, is `NUMBER`."""
        if self.on_driver is None:
            return with_numbers(self.changed(FILE, *columns), in_files).select(NUMBER, *columns)
        rows = self.changed_on_driver(in_files)
        assert rows is not None, "the pairs are there"
        numbers = file_indexes(rows[FILE], in_files)
        return self._data_frame(rows.select(columns).add_column(0, NUMBER, numbers))

    def changed_on_driver(self, in_files: Collection[str] | None = None) -> pyarrow.Table | None:
        """Return the pairs that a clause takes, as Arrow; None if they are on the executors."""
        if self.on_driver is None:
            return None
        import pyarrow.compute as pc

        mask = pc.not_equal(self.on_driver[CLAUSE], NO_CLAUSE)
        if in_files is not None:
            mask = pc.and_(mask, pc.is_valid(file_indexes(self.on_driver[FILE], list(in_files))))
        return self.on_driver.filter(mask)

    def _data_frame(self, rows: pyarrow.Table) -> DataFrame:
        import pyarrow as pa

        if self.computed is None:
            assert self.spark is not None
            return _in_few_partitions(self.spark.createDataFrame(rows), rows.nbytes)
        # The name of a file is much longer than all the rest of a pair.
        names: Sequence[str] = []
        numbered = rows
        if FILE in rows.column_names and pa.types.is_dictionary(rows[FILE].type):
            files = rows[FILE].unify_dictionaries().combine_chunks()
            names = files.dictionary.to_pylist()
            numbered = rows.set_column(rows.column_names.index(FILE), NUMBER, files.indices)
        spark, schema = self.computed.sparkSession, self.computed.schema
        types = [
            StructField(NUMBER, IntegerType()) if name == NUMBER else schema[name]
            for name in numbered.column_names
        ]
        pairs = spark.createDataFrame(numbered, StructType(types))
        pairs = _in_few_partitions(pairs, numbered.nbytes)
        if numbered is rows:
            return pairs
        return pairs.join(F.broadcast(numbered_files(spark, names)), NUMBER).select(
            *rows.column_names
        )

    @property
    def _query(self) -> DataFrame:
        assert self.computed is not None, "pairs without a query are on the driver"
        return self.computed

    def counts_per_file(self, num_clauses: int, *, one_each: bool) -> pyarrow.Table:
        """Count per `FILE`: `pairs`, rows `matched`, `ambiguous`, `changed`, by each `clause_i`.

        Where the pairs have `INSERTABLE`, also how many are `insertable`.

        A row with several source rows counts once, as ambiguous and for its one clause.

        Args:
            one_each: Whether it is known that no target row has two pairs.
        """
        if self.on_driver is None:
            return count_pairs(self._query, num_clauses, one_each=one_each)
        return count_locally(self.on_driver, num_clauses, one_each=one_each)

    @cached_property
    def num_source_rows(self) -> int | None:
        """How many source rows are in a pair; None if counting them takes a query."""
        if self.on_driver is None:
            return None
        return _num_source_rows(_with_source_row(self.on_driver))

    @cached_property
    def num_insertable_source_rows(self) -> int | None:
        """How many of them are insertable; None if counting them takes a query."""
        if self.on_driver is None or INSERTABLE not in self.on_driver.column_names:
            return None
        return _num_source_rows(self.on_driver.filter(self.on_driver[INSERTABLE]))

    def unpersist(self) -> None:
        """Drop what the executors keep."""
        if self.on_driver is None:
            self._query.unpersist()


def brought_to_driver(
    pairs: DataFrame, *, at_most: int | None = None, only_file: str | None = None
) -> Pairs | None:
    """Compute the pairs and bring them to the driver in one job; None if they are too many.

    The job is then wasted, so callers try it only if they expect few pairs.

    Args:
        pairs: The query that gives them.
        at_most: The most pairs that there can be, or None if that is not known.
        only_file: The only candidate file as `FILE` names it; None if there are several, or if that
            is not certain.
    """
    import pyarrow as pa

    if not capability(pairs.schema[SOURCE_ROW], Use.IDENTITY, Reading()).ok:
        return None
    brought = pairs if only_file is None else pairs.drop(FILE)
    if at_most is None or at_most > limits.MAX_PAIRS_ON_DRIVER:
        # The limit bounds the driver's memory: a source row may match any number of target rows.
        brought = brought.limit(limits.MAX_PAIRS_ON_DRIVER + 1)
    most = limits.MAX_PAIRS_ON_DRIVER
    max_rows = min(most if at_most is None else at_most, most) + 1
    try:
        table = collected_within(brought, max_rows, limits.MAX_PAIR_BYTES_ON_DRIVER)
    except TooBigError as error:
        logger.info("the pairs stay on the executors: %s", error)
        return None
    if table.num_rows > limits.MAX_PAIRS_ON_DRIVER:
        return None
    if only_file is not None:
        table = table.append_column(FILE, pa.repeat(only_file, table.num_rows))
    return Pairs(pairs, table.select(pairs.columns))


def _in_few_partitions(rows: DataFrame, num_bytes: int) -> DataFrame:
    """Coalesce the rows to as many partitions as cores; else each Arrow batch is one.

    They travel with their tasks, so a partition holds a few MiB.
    """
    cores = rows.sparkSession.sparkContext.defaultParallelism
    return rows.coalesce(max(cores, num_bytes // limits.MAX_BYTES_IN_A_TASK + 1))


def _num_source_rows(pairs: pyarrow.Table) -> int:
    import pyarrow as pa

    identity = pa.table({"row": pairs[SOURCE_ROW]}).flatten()
    return int(identity.group_by(identity.column_names).aggregate([]).num_rows)


def _with_source_row(pairs: pyarrow.Table) -> pyarrow.Table:
    import pyarrow.compute as pc

    return pairs.filter(pc.is_valid(pairs[SOURCE_ROW]))


class _Count(NamedTuple):
    """A count of the rows whose column compares so with a number.

    Attributes:
        comparison: A name in `_COMPARISONS`, which is that of a function of `pyarrow.compute`.
    """

    name: str
    column: str
    comparison: str
    number: int


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "greater": operator.gt,
}


def _counts(num_clauses: int) -> list[_Count]:
    """Return what `Pairs.counts_per_file` counts, by Spark and on the driver."""
    return [
        _Count("matched", MATCHES, "greater", 0),
        _Count("ambiguous", MATCHES, "greater", 1),
        _Count("changed", CLAUSE, "not_equal", NO_CLAUSE),
        *[_Count(f"clause_{i}", CLAUSE, "equal", i) for i in range(num_clauses)],
    ]


def count_pairs(pairs: DataFrame, num_clauses: int, *, one_each: bool) -> pyarrow.Table:
    """Count pairs by Spark; see `Pairs.counts_per_file`."""
    of_source = {INSERTABLE: F.count_if(INSERTABLE)} if INSERTABLE in pairs.columns else {}
    if one_each:
        # Each row is one group: no shuffle is needed.
        rows = pairs.withColumn(MATCHES, F.col(SOURCE_ROW).isNotNull().cast("int"))
    else:
        # If a row may match repeatedly, one clause takes all of its pairs.
        of_pairs = [F.count(SOURCE_ROW).alias(MATCHES), F.max(CLAUSE).alias(CLAUSE)]
        of_pairs += [count.alias(name) for name, count in of_source.items()]
        rows = grouped(pairs, [FILE, TARGET_ROW_ID], of_pairs)
        of_source = {name: F.sum(name) for name in of_source}
    of_rows = [
        F.sum(MATCHES).alias("pairs"),
        *[
            F.count_if(_COMPARISONS[comparison](F.col(of), number)).alias(name)
            for name, of, comparison, number in _counts(num_clauses)
        ],
        *[count.alias("insertable") for count in of_source.values()],
    ]
    return collected(grouped(rows, [FILE], of_rows))


def count_locally(pairs: pyarrow.Table, num_clauses: int, *, one_each: bool) -> pyarrow.Table:
    """Count pairs on the driver, as `count_pairs` does by Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_source = [INSERTABLE] if INSERTABLE in pairs.column_names else []
    pairs = pairs.append_column(MATCHES, pc.is_valid(pairs[SOURCE_ROW]).cast("int64"))
    if not one_each:
        sums = [MATCHES, *of_source]
        pairs = (
            pairs.group_by([FILE, TARGET_ROW_ID])
            .aggregate([(CLAUSE, "max"), *[(name, "sum") for name in sums]])
            .rename_columns({f"{CLAUSE}_max": CLAUSE, **{f"{name}_sum": name for name in sums}})
        )
    columns = {"pairs": pairs[MATCHES]} | {
        name: getattr(pc, comparison)(pairs[of], number).cast("int64")
        for name, of, comparison, number in _counts(num_clauses)
    }
    if of_source:
        columns["insertable"] = pairs[INSERTABLE].cast("int64")
    counts = pa.table({FILE: pairs[FILE], **columns}).group_by(FILE)
    summed = counts.aggregate([(name, "sum") for name in columns])
    return summed.rename_columns({f"{name}_sum": name for name in columns})


def with_numbers(rows: DataFrame, files: Sequence[str]) -> DataFrame:
    """Add the file's `NUMBER`, as in `Pairs.changed_numbered`, to rows of some files."""
    return rows.join(F.broadcast(numbered_files(rows.sparkSession, files)), FILE)


def numbered_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Build a DataFrame of `NUMBER` (int) and `FILE` of the files."""
    import pyarrow as pa

    numbers = pa.array(range(len(files)), pa.int32())
    return spark.createDataFrame(pa.table({NUMBER: numbers, FILE: pa.array(files, pa.string())}))


def file_indexes(column: pyarrow.ChunkedArray, files: Sequence[str]) -> pyarrow.ChunkedArray:
    """Return the index (int32) among some files of each file of a column; null for other files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(files, pa.string())
    if not pa.types.is_dictionary(column.type):
        return pc.index_in(column, value_set=wanted)
    parts = [
        pc.index_in(part.dictionary, value_set=wanted).take(part.indices) for part in column.chunks
    ]
    return pa.chunked_array(parts, pa.int32())


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
        with run.transaction.translated():
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
    matched = _files_with(transaction, found.files, counts, "matched").files
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


class _FilesWithRows(NamedTuple):
    """Files with rows of a kind, and how many rows each of them has."""

    files: FileList
    rows_by_file: tuple[int, ...]


def _files_with(
    transaction: Transaction, candidates: FileList, counts: pyarrow.Table, column: str
) -> _FilesWithRows:
    """Return the candidates with rows that a column counts; raise if a file is unknown."""
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
            f"the scan named files that are not candidates: {sorted(unknown)[:3]}.",
            table=transaction.merge.table,
            version=transaction.version,
            hint="This is a defect of deltaweave: please report it with the file names.",
        )
    chosen = candidates.where(np.array([rows > 0 for rows in by_file], dtype=bool))
    return _FilesWithRows(chosen, tuple(rows for rows in by_file if rows))


def _ambiguous_match(run: MergeRun, candidates: FileList) -> AmbiguousMatchError:
    """Build Delta's error, with some of the target rows that match several source rows."""
    merge = run.statement
    key_columns = merge.condition_columns()
    added = RowColumns(row=TARGET_ROW_ID)
    target = target_plan(run.transaction, candidates, key_columns, added=added)
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
