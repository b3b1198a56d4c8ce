"""The source of a merge: whether its plan gives the same rows again, its kept rows, and its files.

Rows that are computed once are kept on the executors, as a local checkpoint or in Spark's cache.
The checkpoint cuts the lineage, so that no later phase computes the rows again with other results.
If the executors that hold it die, the rows are lost, and reading them fails with
`CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND`.

Cached rows are read by a plan that is the cache alone. Spark analyzes, compares and copies the
whole plan of cached rows again in each query over them. The plan of a batch of changes is large:
this took most of a batch's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from deltaweave.delta.jvm import (
    DeltaLog,
    JavaObject,
    Jvm,
    Plan,
    is_on,
    reads_leniently,
    suppress_cleanup_errors,
)
from deltaweave.delta.log import (
    FILE_RELATION,
    STRICTLY,
    FileList,
    TableSnapshot,
    options_of_files,
    scan_of_known_files,
    scan_with_index,
)
from deltaweave.delta.releases import reads_cached_rows
from deltaweave.delta.statement import ResolvedMerge, asks_for_current, spark_schema

NAME = "mergeMaterializedSource"


@dataclass(frozen=True)
class Materialized:
    """Checkpointed rows.

    Attributes:
        rows: The rows, with the attribute ids of the materialized DataFrame.
        num_rows: How many there are.
        total: The sum of an expression over the rows, or None if none was asked for.
    """

    rows: DataFrame
    num_rows: int
    total: int | None


@contextmanager
def materialized(
    rows: DataFrame, storage_level: str, summed: str | None = None
) -> Iterator[Materialized]:
    """Compute the rows in one job and keep them until the block ends.

    Args:
        storage_level: Name of a Spark storage level, e.g. `DISK_ONLY_2`.
        summed: SQL of a BIGINT to sum over the rows in the same job.
    """
    spark = rows.sparkSession
    jvm = Jvm.of(spark)
    level = jvm.org.apache.spark.storage.StorageLevel.fromString(storage_level.upper())
    if summed is not None:
        rows = rows.observe(NAME, F.expr(f"sum({summed})"))
    kept = jvm.data_frame(rows._jdf.localCheckpoint(False, level))
    rdd = kept._jdf.queryExecution().analyzed().rdd()
    rdd.setName(NAME)
    try:
        # This count fills the checkpoint. It is one of the RDD and not of SQL, so it reads every
        # row.
        num_rows = int(rdd.count())
        yield Materialized(kept, num_rows, None if summed is None else _observed(rows))
    finally:
        with suppress_cleanup_errors("the materialized rows"):
            rdd.unpersist(False)


def _observed(rows: DataFrame) -> int | None:
    """Return the sum that the checkpoint's job observed, since it ran the plan of these rows."""
    values = rows._jdf.queryExecution().observedMetrics().get(NAME)
    if values.isEmpty():
        return None
    row = values.get()
    return 0 if row.isNullAt(0) else int(row.getLong(0))


def checkpointed(rows: DataFrame) -> DataFrame:
    """Compute rows once and keep them on the executors, and remember what they are computed from.

    A merge that reads them can then be run again after a lost commit, if that is not the target.
    """
    kept = rows.localCheckpoint()
    rdd = kept._jdf.queryExecution().analyzed().rdd()
    _origins(rows.sparkSession).put(rdd, rows._jdf.queryExecution().analyzed())
    return kept


def origin_of(spark: SparkSession, rdd: JavaObject) -> JavaObject | None:
    """Return the plan of the rows that `checkpointed` keeps in an RDD; None for other RDDs."""
    return _origins(spark).get(rdd)


def _origins(spark: SparkSession) -> JavaObject:
    """Return the map from RDDs to plans, which lasts as long as the JVM keeps the RDDs."""

    def make() -> JavaObject:
        util = Jvm.of(spark).java.util
        return util.Collections.synchronizedMap(util.WeakHashMap())

    return Jvm.of(spark).made_once("plans of checkpoints", make)


@contextmanager
def cached(rows: DataFrame, what: str) -> Iterator[DataFrame]:
    """Keep rows in the executors' memory until the block ends; what they lose is computed again.

    Args:
        rows: The rows, which the first query over them computes.
        what: The name of the rows in the log.
    """
    kept = rows.persist()
    try:
        yield from_cache(kept)
    finally:
        with suppress_cleanup_errors(what):
            kept.unpersist()


def from_cache(kept: DataFrame) -> DataFrame:
    """Return persisted rows by a plan that is the cache alone, with their attribute ids."""
    spark = kept.sparkSession
    leaf = kept._jdf.queryExecution().withCachedData()
    if leaf.getClass().getSimpleName() != "InMemoryRelation":  # e.g. beneath a hint
        return kept
    jvm = Jvm.of(spark)
    # With its order, Spark 4.2 cannot join it with itself: the order keeps the old attribute ids.
    # Scans take the order from the plan that filled the cache.
    relations = Jvm.singleton(jvm.sql.execution.columnar, "InMemoryRelation")
    relation = relations.apply(
        leaf.output(), leaf.cacheBuilder(), jvm.seq([]), leaf.statsOfPlanToCache()
    )
    return jvm.data_frame_of_plan(relation)


_FORCE_UNREADABLE = (
    "spark.databricks.delta.merge.forceSourceMaterializationWithUnreadableFilesConfig"
)
UNSTABLE_OPERATORS = "NON_DETERMINISTIC_SOURCE_OPERATORS"
_FORCE_CACHED = "spark.databricks.delta.merge.materializeCachedSource"


def reason_to_materialize(merge: ResolvedMerge, *, through_views: bool = False) -> str | None:
    """Return why evaluating the source twice could give two results, or None if it cannot.

    Reasons, order and names are those of Delta 4.4, except for the current time.

    Args:
        through_views: Whether to look at the queries of views, which Delta takes for queries that
            may give other rows. What subqueries read is not looked at then.
    """
    spark, node = merge.spark, merge.node
    plan = merge.source_plan
    jvm = Jvm.of(spark)
    options = getattr(jvm.delta.util, "DeltaSparkPlanUtils$CheckDeterministicOptions")(True)
    if not node.planContainsOnlyDeltaScans(plan):
        return "NON_DETERMINISTIC_SOURCE_NON_DELTA"
    catalyst = jvm.catalyst
    if through_views:
        plan = Jvm.singleton(catalyst.analysis, "EliminateView").apply(plan)
        if plan.containsPattern(catalyst.trees.TreePattern.PLAN_EXPRESSION()):
            return UNSTABLE_OPERATORS
    # Delta takes the time of day for a constant, and each query has another.
    if asks_for_current(spark, plan):
        return UNSTABLE_OPERATORS
    if not node.planIsDeterministic(plan, options):
        return UNSTABLE_OPERATORS
    if is_on(spark, _FORCE_UNREADABLE, otherwise=True) and _ignores_unreadable_files(merge):
        return "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET"
    if node.planContainsUdf(plan):
        return "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF"
    if is_on(spark, _FORCE_CACHED, otherwise=True) and is_cached(merge):
        return "SOURCE_CACHED"
    return None


def is_cached(merge: ResolvedMerge) -> bool:
    """Return whether Spark would read a part of the source from its cache."""
    return reads_cached_rows(merge.node, merge.source)


def estimated_bytes(rows: DataFrame) -> int:
    """Return Spark's estimate of a result's size, in bytes; very high where it knows nothing."""
    statistics = rows._jdf.queryExecution().optimizedPlan().stats()
    return int(str(statistics.sizeInBytes()))


def limit_of_partitions(rows: DataFrame, number: int) -> DataFrame:
    """Take at most this many rows of each partition. A limit of all rows would take another job."""
    spark = rows.sparkSession
    plans = Jvm.of(spark).catalyst.plans.logical
    at_most = Jvm.of(spark).expression_of(F.lit(number))
    plan = plans.LocalLimit(at_most, rows._jdf.queryExecution().analyzed())
    return Jvm.of(spark).data_frame_of_plan(plan)


def _ignores_unreadable_files(merge: ResolvedMerge) -> bool:
    if reads_leniently(merge.spark):
        return True
    leaves = Jvm.iterate(merge.source_plan.collectLeaves())
    return any(_ignores_files(merge.spark, leaf) for leaf in leaves)


def _ignores_files(spark: SparkSession, leaf: Plan) -> bool:
    """Return whether a leaf of the plan reads files with an option to skip unreadable ones."""
    options = options_of_files(spark, leaf)
    if options is None:
        return False
    settings = [options.get(key) for key in STRICTLY]
    return any(found.isDefined() and found.get().lower() == "true" for found in settings)


_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_NODE = "org.apache.spark.sql.catalyst.trees.TreeNode"


@dataclass(frozen=True)
class SourceFiles:
    """A source that is all rows of a Delta table.

    Attributes:
        scan: The relation of them in the source's plan.
    """

    table: TableSnapshot
    files: FileList
    scan: Plan

    def columns(self, expressions: JavaObject) -> list[StructField] | None:
        """Return the table's columns that expressions (a Scala Seq) are; None if one is not."""
        spark = self.table.spark
        if not self._is_as_analyzed:
            return None
        kinds = expressions.map(Jvm.of(spark).function(_NODE, "nodeName")).distinct()
        if str(kinds.mkString(" ")) != "AttributeReference":
            return None
        ids = self._ids(expressions)
        return [self._by_id[each] for each in ids] if self._by_id.keys() >= set(ids) else None

    @cached_property
    def _is_as_analyzed(self) -> bool:
        """Whether the columns are still those that the statement knows.

        Delta checks that, unless `spark.databricks.delta.checkLatestSchemaOnRead` is false.
        """
        analyzed = self.scan.relation().location().metadata()
        return bool(analyzed.equals(self.table.snapshot.metadata()))

    @cached_property
    def _by_id(self) -> dict[str, StructField]:
        ids = self._ids(self.scan.output())
        schema = spark_schema(self.table.spark, self.scan.schema(), columns=len(ids))
        return dict(zip(ids, schema.fields, strict=True))

    def _ids(self, attributes: JavaObject) -> list[str]:
        number = Jvm.of(self.table.spark).function(f"{_EXPRESSIONS}.NamedExpression", "exprId")
        return str(attributes.map(number).mkString(" ")).split(" ")


class ListedRows(NamedTuple):
    """All rows of a table, read from listed files."""

    rows: DataFrame
    files: SourceFiles


class ChosenRows(NamedTuple):
    """Rows read from the files that were chosen for them.

    Attributes:
        files: The files, if they are all of a table and its checksum lists them.
    """

    rows: DataFrame
    files: SourceFiles | None


def with_files_chosen(rows: DataFrame, target: DeltaLog) -> ChosenRows:
    """Read the same rows from the files that Delta chooses now.

    Otherwise, every query of a Delta table chooses them in a job of its own.

    Args:
        rows: Rows of Delta tables.
        target: Delta's log of the merge's target. Delta must see reads of it, so they are left as
            they are.
    """
    listed = with_listed_files(rows, target)
    if listed is None:
        return ChosenRows(_with_skipped_files(rows), None)
    return ChosenRows(listed.rows, listed.files)


def with_listed_files(rows: DataFrame, target: DeltaLog) -> ListedRows | None:
    """Read all rows of a table, or of a view of it, from the files that its checksum lists."""
    spark, jvm = rows.sparkSession, Jvm.of(rows.sparkSession)
    above, scan = _below(
        rows._jdf.queryExecution().analyzed(), ("Project", "SubqueryAlias", "View")
    )
    if scan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = scan.relation()
    if not jvm.is_a(relation, FILE_RELATION):
        return None
    index = relation.location()
    if (
        index.getClass().getSimpleName() != "TahoeLogFileIndex"
        or index.partitionFilters().nonEmpty()
        or index.deltaLog().isSameLogAs(target)
    ):
        return None
    log, snapshot = index.deltaLog(), index.getSnapshot()
    table = TableSnapshot(spark, log, snapshot)
    files = table.files_in_checksum()
    if files is None:
        return None
    listed = FileList(spark, files, table.data_path, have_statistics=True)
    plan = scan_of_known_files(spark, scan, listed, log.options())
    if plan is None:
        batch = jvm.delta.files.TahoeBatchFileIndex(
            spark._jsparkSession, "batch", files, log, index.path(), snapshot, False
        )
        plan = scan_with_index(spark, scan, batch)
    for node in reversed(above):
        plan = node.withNewChildren(jvm.seq([plan]))
    return ListedRows(jvm.data_frame_of_plan(plan), SourceFiles(table, listed, scan))


def _with_skipped_files(rows: DataFrame) -> DataFrame:
    """Read a filtered and projected table from the files that data skipping leaves.

    Only Project and Filter over a scan: Spark may fail to re-analyze other optimized plans.
    """
    query = rows._jdf.queryExecution()
    plan = query.optimizedPlan()
    scan = _below(plan, ("Project", "Filter")).below
    # Renamed columns may have lost the attribute ids that the statement uses.
    if scan.getClass().getSimpleName() != "LogicalRelation" or not plan.sameOutput(
        query.analyzed()
    ):
        return rows
    return Jvm.of(rows.sparkSession).data_frame_of_plan(plan)


class _SplitPlan(NamedTuple):
    """The topmost nodes of a plan, and the plan below them."""

    above: list[JavaObject]
    below: JavaObject


def _below(plan: Plan, kinds: tuple[str, ...]) -> _SplitPlan:
    """Split a plan below its topmost nodes that are of these kinds."""
    nodes = []
    while plan.getClass().getSimpleName() in kinds:
        nodes.append(plan)
        plan = plan.child()
    return _SplitPlan(nodes, plan)
