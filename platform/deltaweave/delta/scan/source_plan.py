"""The plan of a source: whether it gives the same rows again, and which files it reads."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import FileList, TableSnapshot, scan_of_known_files, scan_with_index
from deltaweave.delta.releases import reads_cached_rows
from deltaweave.delta.statement import ResolvedMerge

_IGNORING_FILES = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
_FORCE_UNREADABLE = (
    "spark.databricks.delta.merge.forceSourceMaterializationWithUnreadableFilesConfig"
)
_FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_DELTA_INDEX = "org.apache.spark.sql.delta.files.TahoeFileIndex"
# Rows that the plan itself holds or makes, and references to plans that are searched, too.
_OF_NO_TABLE = frozenset(
    {
        "LocalRelation",
        "LogicalRDD",
        "OneRowRelation",
        "Range",
        "ResolvedInlineTable",
        "CTERelationRef",
    }
)
_FORCE_CACHED = "spark.databricks.delta.merge.materializeCachedSource"


def reason_to_materialize(merge: ResolvedMerge) -> str | None:
    """Why evaluating the source twice could give two results, or None if it cannot.

    Reasons, order and names are those of Delta 4.4.
    """
    spark, node = merge.spark, merge.node
    plan = merge.source_plan
    view = jvm_.jvm(spark)
    options = getattr(
        view.org.apache.spark.sql.delta.util, "DeltaSparkPlanUtils$CheckDeterministicOptions"
    )(True)
    if not node.planContainsOnlyDeltaScans(plan):
        return "NON_DETERMINISTIC_SOURCE_NON_DELTA"
    if not node.planIsDeterministic(plan, options):
        return "NON_DETERMINISTIC_SOURCE_OPERATORS"
    if jvm_.is_on(spark, _FORCE_UNREADABLE, otherwise=True) and _ignores_unreadable_files(merge):
        return "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET"
    if node.planContainsUdf(plan):
        return "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF"
    if jvm_.is_on(spark, _FORCE_CACHED, otherwise=True) and is_cached(merge):
        return "SOURCE_CACHED"
    return None


def is_cached(merge: ResolvedMerge) -> bool:
    """Whether Spark would read a part of the source from its cache."""
    return reads_cached_rows(merge.node, merge.source)


def source_may_read_target(merge: ResolvedMerge) -> bool:
    """Whether the source reads the target's table, or something of which that cannot be told."""
    plan = merge.source_plan
    return _may_read_target(merge, (plan, *jvm_.iterate(plan.subqueriesAll())))


def clauses_may_read_target(merge: ResolvedMerge) -> bool:
    """The same of the subqueries of clauses and of the ON condition."""
    return _may_read_target(merge, _subqueries_of_clauses(merge))


def clauses_read_cached_rows(merge: ResolvedMerge) -> bool:
    """Whether Spark would read a part of these subqueries from its cache."""
    return any(
        reads_cached_rows(merge.node, jvm_.data_frame_of_plan(merge.spark, plan))
        for plan in _subqueries_of_clauses(merge)
    )


def _subqueries_of_clauses(merge: ResolvedMerge) -> list[JavaObject]:
    # The statement's node has no children for Spark: those of the source are not among them.
    return list(jvm_.iterate(merge.node.subqueriesAll()))


def _may_read_target(merge: ResolvedMerge, plans: Sequence[JavaObject]) -> bool:
    return any(
        not _reads_elsewhere(merge, leaf)
        for plan in plans
        for leaf in jvm_.iterate(plan.collectLeaves())
    )


def _reads_elsewhere(merge: ResolvedMerge, leaf: JavaObject) -> bool:
    """Whether a leaf of a plan is known to read no file of the target."""
    if leaf.getClass().getSimpleName() in _OF_NO_TABLE:
        return True
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if not jvm_.is_a(merge.spark, relation, _FILE_RELATION):
        return False
    index = relation.location()
    if jvm_.is_a(merge.spark, index, _DELTA_INDEX):
        return not index.deltaLog().isSameLogAs(merge.target_log)
    target = f"{merge.location.rstrip('/')}/"
    return not any(
        f"{path.toString().rstrip('/')}/".startswith(target)
        for path in jvm_.iterate(index.rootPaths())
    )


def with_files_chosen(rows: DataFrame, target: JavaObject) -> tuple[DataFrame, int | None]:
    """The same rows, from the files that Delta chooses now.

    Otherwise, every query of a Delta table chooses them in a job of its own.

    Args:
        rows: Rows of Delta tables.
        target: Delta's log of the merge's target. Delta must see reads of it, so they are left as
            they are.

    Returns:
        The rows, and their number if the files' statistics have it.
    """
    listed = _with_listed_files(rows, target)
    return (_with_skipped_files(rows), None) if listed is None else listed


def _with_listed_files(rows: DataFrame, target: JavaObject) -> tuple[DataFrame, int | None] | None:
    """All files of one table, from its checksum; None if that does not list them."""
    spark, view = rows.sparkSession, jvm_.jvm(rows.sparkSession)
    above, scan = _below(rows._jdf.queryExecution().analyzed(), ("Project", "SubqueryAlias"))
    if scan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = scan.relation()
    if not jvm_.is_a(spark, relation, _FILE_RELATION):
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
        batch = view.org.apache.spark.sql.delta.files.TahoeBatchFileIndex(
            spark._jsparkSession, "batch", files, log, index.path(), snapshot, False
        )
        plan = scan_with_index(spark, scan, batch)
    for node in reversed(above):
        plan = node.withNewChildren(jvm_.seq(view, [plan]))
    return jvm_.data_frame_of_plan(spark, plan), listed.num_records


def _with_skipped_files(rows: DataFrame) -> DataFrame:
    """The rows of a filtered and projected table, from the files that data skipping leaves.

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
    return jvm_.data_frame_of_plan(rows.sparkSession, plan)


def _below(plan: JavaObject, kinds: tuple[str, ...]) -> tuple[list[JavaObject], JavaObject]:
    """The topmost nodes of a plan that are of these kinds, and the plan below them."""
    nodes = []
    while plan.getClass().getSimpleName() in kinds:
        nodes.append(plan)
        plan = plan.child()
    return nodes, plan


def estimated_bytes(rows: DataFrame) -> int:
    """Spark's estimate of the size of a query's result; very high where it knows nothing."""
    statistics = rows._jdf.queryExecution().optimizedPlan().stats()
    return int(str(statistics.sizeInBytes()))


def first_of_partitions(rows: DataFrame, number: int) -> DataFrame:
    """At most so many rows of each partition. A limit of all rows would take one more job."""
    spark = rows.sparkSession
    plans = jvm_.jvm(spark).org.apache.spark.sql.catalyst.plans.logical
    at_most = jvm_.expression_of(spark, F.lit(number))
    plan = plans.LocalLimit(at_most, rows._jdf.queryExecution().analyzed())
    return jvm_.data_frame_of_plan(spark, plan)


def _ignores_unreadable_files(merge: ResolvedMerge) -> bool:
    if any(jvm_.is_on(merge.spark, key, otherwise=False) for key in _IGNORING_FILES):
        return True
    leaves = jvm_.iterate(merge.source_plan.collectLeaves())
    return any(_ignores_files(merge.spark, leaf) for leaf in leaves)


def _ignores_files(spark: SparkSession, leaf: JavaObject) -> bool:
    """Whether a leaf of the plan reads files with an option to skip unreadable ones."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if not jvm_.is_a(spark, relation, _FILE_RELATION):
        return False
    settings = [relation.options().get(key.rsplit(".", 1)[-1]) for key in _IGNORING_FILES]
    return any(setting.isDefined() and setting.get() == "true" for setting in settings)
