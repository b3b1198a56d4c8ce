"""The plan of a source: how certain it is to give the same rows again, and which files it reads."""

from __future__ import annotations

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.analyzer import ResolvedMerge

_IGNORING_FILES = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
_FORCE_UNREADABLE = (
    "spark.databricks.delta.merge.forceSourceMaterializationWithUnreadableFilesConfig"
)
_FORCE_CACHED = "spark.databricks.delta.merge.materializeCachedSource"


def reason_to_materialize(merge: ResolvedMerge) -> str | None:
    """Why evaluating the source twice could give two results, or None if it cannot.

    The reasons, their order and their names are those of Delta 4.4 (document row S2).
    """
    spark, node = merge.spark, merge.node
    plan = node.source()
    view = jvm_.jvm(spark)
    options = getattr(
        view.org.apache.spark.sql.delta.util, "DeltaSparkPlanUtils$CheckDeterministicOptions"
    )(True)
    if not node.planContainsOnlyDeltaScans(plan):
        return "NON_DETERMINISTIC_SOURCE_NON_DELTA"
    if not node.planIsDeterministic(plan, options):
        return "NON_DETERMINISTIC_SOURCE_OPERATORS"
    if spark.conf.get(_FORCE_UNREADABLE, "true") == "true" and _ignores_unreadable_files(merge):
        return "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET"
    if node.planContainsUdf(plan):
        return "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF"
    cached = node.planContainsCachedRelation(merge.source._jdf)
    if spark.conf.get(_FORCE_CACHED, "true") == "true" and cached:
        return "SOURCE_CACHED"
    return None


def with_files_chosen(rows: DataFrame) -> DataFrame:
    """The same rows, by the files that Delta's data skipping chooses for them now.

    Every query of a Delta table chooses them anew, in a job. Only a table's filtered and projected
    rows come back so: an optimized plan of more than that may be none that Spark analyzes again.
    """
    query = rows._jdf.queryExecution()
    scan = plan = query.optimizedPlan()
    while scan.getClass().getSimpleName() in ("Project", "Filter"):
        scan = scan.child()
    # Renamed columns may have lost the ids by which the statement knows them.
    if scan.getClass().getSimpleName() != "LogicalRelation" or not plan.sameOutput(
        query.analyzed()
    ):
        return rows
    return jvm_.data_frame_of_plan(rows.sparkSession, plan)


def _ignores_unreadable_files(merge: ResolvedMerge) -> bool:
    if any(merge.spark.conf.get(key, "false") == "true" for key in _IGNORING_FILES):
        return True
    leaves = jvm_.iterate(merge.node.source().collectLeaves())
    return any(_ignores_files(leaf) for leaf in leaves)


def _ignores_files(leaf: jvm_.JavaObject) -> bool:
    """Whether a leaf of the plan reads files with an option that passes over unreadable ones."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    settings = [relation.options().get(key.rsplit(".", 1)[-1]) for key in _IGNORING_FILES]
    return any(setting.isDefined() and setting.get() == "true" for setting in settings)
