"""Pairs of a target row and a source row that matches it, with the clause that takes each.

Every later step reads them: counts per file, ambiguity, deletion vectors, updates and inserts. So
they are computed once and kept. Few pairs come to the driver, where counting them and writing
vectors takes no Spark job. More pairs stay on the executors.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from deltaweave.delta.files import Reading, Use, capability
from deltaweave.delta.jvm import collected, grouped
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    INSERTABLE,
    MATCHES,
    NO_CLAUSE,
    NUMBER,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.source import collected_within
from deltaweave.engine.tasks import TooBigError

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)


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
        F.count_if(F.col(MATCHES) > 0).alias("matched"),
        F.count_if(F.col(MATCHES) > 1).alias("ambiguous"),
        F.count_if(F.col(CLAUSE) != NO_CLAUSE).alias("changed"),
        *[F.count_if(F.col(CLAUSE) == i).alias(f"clause_{i}") for i in range(num_clauses)],
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
    matches, clause = pairs[MATCHES], pairs[CLAUSE]
    columns = {
        "pairs": matches,
        "matched": pc.greater(matches, 0).cast("int64"),
        "ambiguous": pc.greater(matches, 1).cast("int64"),
        "changed": pc.not_equal(clause, NO_CLAUSE).cast("int64"),
        **{f"clause_{i}": pc.equal(clause, i).cast("int64") for i in range(num_clauses)},
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
