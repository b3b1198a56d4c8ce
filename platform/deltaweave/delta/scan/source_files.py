"""The files of a source that is a Delta table, chosen before any query reads it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import (
    FILE_RELATION,
    FileList,
    TableSnapshot,
    scan_of_known_files,
    scan_with_index,
)
from deltaweave.delta.statement import spark_schema

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_NODE = "org.apache.spark.sql.catalyst.trees.TreeNode"


@dataclass(frozen=True)
class SourceFiles:
    """A source that is all rows of a Delta table.

    Attributes:
        table: The table's version.
        files: Its files.
        scan: The relation of them in the source's plan.
    """

    table: TableSnapshot
    files: FileList
    scan: JavaObject

    def columns(self, expressions: JavaObject) -> list[StructField] | None:
        """Return the table's columns that expressions (a Scala Seq) are; None if one is not."""
        spark = self.table.spark
        if not self._is_as_analyzed:
            return None
        kinds = expressions.map(jvm_.function(spark, _NODE, "nodeName")).distinct()
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
        number = jvm_.function(self.table.spark, f"{_EXPRESSIONS}.NamedExpression", "exprId")
        return str(attributes.map(number).mkString(" ")).split(" ")


def with_files_chosen(rows: DataFrame, target: JavaObject) -> tuple[DataFrame, SourceFiles | None]:
    """Read the same rows from the files that Delta chooses now.

    Otherwise, every query of a Delta table chooses them in a job of its own.

    Args:
        rows: Rows of Delta tables.
        target: Delta's log of the merge's target. Delta must see reads of it, so they are left as
            they are.

    Returns:
        The rows, and the files if they are all of a table and its checksum lists them.
    """
    listed = with_listed_files(rows, target)
    return (_with_skipped_files(rows), None) if listed is None else listed


def with_listed_files(rows: DataFrame, target: JavaObject) -> tuple[DataFrame, SourceFiles] | None:
    """Read all rows of a table, or of a view of it, from the files that its checksum lists."""
    spark, view = rows.sparkSession, jvm_.jvm(rows.sparkSession)
    above, scan = _below(
        rows._jdf.queryExecution().analyzed(), ("Project", "SubqueryAlias", "View")
    )
    if scan.getClass().getSimpleName() != "LogicalRelation":
        return None
    relation = scan.relation()
    if not jvm_.is_a(spark, relation, FILE_RELATION):
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
    return jvm_.data_frame_of_plan(spark, plan), SourceFiles(table, listed, scan)


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
    return jvm_.data_frame_of_plan(rows.sparkSession, plan)


def _below(plan: JavaObject, kinds: tuple[str, ...]) -> tuple[list[JavaObject], JavaObject]:
    """Return the topmost nodes of a plan that are of these kinds, and the plan below them."""
    nodes = []
    while plan.getClass().getSimpleName() in kinds:
        nodes.append(plan)
        plan = plan.child()
    return nodes, plan
