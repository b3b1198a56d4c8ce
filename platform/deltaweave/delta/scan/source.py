"""The source of a merge: whether its plan gives the same rows again, and its files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, Plan, is_on, reads_leniently
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
    _, scan = _below(plan, ("Project", "Filter"))
    # Renamed columns may have lost the attribute ids that the statement uses.
    if scan.getClass().getSimpleName() != "LogicalRelation" or not plan.sameOutput(
        query.analyzed()
    ):
        return rows
    return Jvm.of(rows.sparkSession).data_frame_of_plan(plan)


def _below(plan: Plan, kinds: tuple[str, ...]) -> tuple[list[JavaObject], JavaObject]:
    """Return the topmost nodes of a plan that are of these kinds, and the plan below them."""
    nodes = []
    while plan.getClass().getSimpleName() in kinds:
        nodes.append(plan)
        plan = plan.child()
    return nodes, plan
