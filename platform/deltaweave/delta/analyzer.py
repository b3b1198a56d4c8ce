"""What a MERGE means, as Delta's analyzer decides it; nothing is executed.

Statement text or clauses become Spark's `MergeIntoTable` plan; Spark's and Delta's analysis rules
turn that into Delta's resolved MERGE node: stars expanded, values cast, generated columns and
defaults filled in, the evolved schema worked out. So case rules, store assignment and all analysis
errors are exactly Delta's (design, "Resolve").
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType, StructType

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject
from deltaweave.identifiers import RESERVED_PREFIX
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    import numpy
    from pyspark.sql import SparkSession

_CLAUSE_NODES = {
    "DeltaMergeIntoMatchedUpdateClause": ("matched", "update"),
    "DeltaMergeIntoMatchedDeleteClause": ("matched", "delete"),
    "DeltaMergeIntoNotMatchedInsertClause": ("not_matched", "insert"),
    "DeltaMergeIntoNotMatchedBySourceUpdateClause": ("not_matched_by_source", "update"),
    "DeltaMergeIntoNotMatchedBySourceDeleteClause": ("not_matched_by_source", "delete"),
}


@dataclass(frozen=True)
class ResolvedClause:
    """A WHEN clause after analysis.

    Attributes:
        kind: `matched`, `not_matched` or `not_matched_by_source`.
        action: `update`, `delete` or `insert`.
        condition: The condition over source and target attributes, or None.
        node: Delta's clause.
        spark: The session that resolved it.
    """

    kind: str
    action: str
    condition: Column | None
    node: JavaObject
    spark: SparkSession

    def condition_unless_it_fails(self) -> Column | None:
        """The condition, null where evaluating it fails.

        None where there is no condition, or one with a Python function, which Spark runs apart.
        """
        condition = self.node.condition()
        if not condition.isDefined():
            return None
        catalyst = jvm_.jvm(self.spark).org.apache.spark.sql.catalyst
        if condition.get().containsPattern(catalyst.trees.TreePattern.PYTHON_UDF()):
            return None
        column = jvm_.column_of(self.spark, condition.get())
        # In a lambda it is computed by itself: what it has in common with other expressions would
        # be computed once for all of them, and fail outside of TryEval.
        apart = F.exists(F.array(F.lit(True)), lambda _: column)
        guarded = catalyst.expressions.TryEval(jvm_.expression_of(self.spark, apart))
        return jvm_.column_of(self.spark, guarded)

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """For update and insert, one Column per column of the evolved target schema."""
        actions = jvm_.iterate(self.node.resolvedActions())
        return tuple(jvm_.column_of(self.spark, action.expr()) for action in actions)

    def row(self, wanted: numpy.ndarray | None = None) -> Column:
        """The same as one struct, for a few calls to the JVM; by a boolean mask, some of them."""
        view, actions = jvm_.jvm(self.spark), self.node.resolvedActions()
        if wanted is not None and not wanted.all():
            actions = jvm_.select_where(view, actions, wanted)
        values = actions.map(jvm_.function(self.spark, actions.head().getClass(), "expr"))
        struct = jvm_.singleton(view.org.apache.spark.sql.catalyst.expressions, "CreateStruct")
        return jvm_.column_of(self.spark, struct.apply(values))

    def gives_same_values(self, other: ResolvedClause) -> bool:
        """Whether both assign the same expressions, as UPDATE SET * and INSERT * do."""
        return bool(self.node.resolvedActions().equals(other.node.resolvedActions()))


@dataclass(frozen=True)
class ResolvedMerge:
    """A MERGE after analysis: plans, condition and clauses, valid in one Spark session.

    Attributes:
        spark: The session that resolved it.
        table: What messages call the target.
        node: Delta's resolved MERGE node.
        clauses: In statement order within each kind: matched, not matched, not matched by source.
        skips_unchanged: Whether an update that gives a row the values it has leaves it alone.
    """

    spark: SparkSession
    table: str
    node: JavaObject
    clauses: tuple[ResolvedClause, ...]
    skips_unchanged: bool = False

    @cached_property
    def location(self) -> str:
        """Where the target's data is."""
        return str(self.node.targetFileIndex().deltaLog().dataPath().toString())

    @cached_property
    def condition(self) -> Column:
        """The ON condition over source and target attributes."""
        return jvm_.column_of(self.spark, self.node.condition())

    @cached_property
    def source(self) -> DataFrame:
        """The source as the statement gives it."""
        return jvm_.data_frame_of_plan(self.spark, self.node.source())

    @cached_property
    def target_columns(self) -> list[Column]:
        """The target's columns, in the order of its schema."""
        output = jvm_.iterate(self.node.target().output())
        return [jvm_.column_of(self.spark, attribute) for attribute in output]

    @cached_property
    def target_schema(self) -> StructType:
        """The target's schema when the statement was resolved."""
        return _schema(self.node.target().schema())

    @cached_property
    def evolved_schema(self) -> StructType:
        """The target's schema after the merge."""
        migrated = self.node.migratedSchema()
        return _schema(migrated.get()) if migrated.isDefined() else self.target_schema

    def of_kind(self, kind: str) -> tuple[ResolvedClause, ...]:
        """The clauses of one kind, in order."""
        return tuple(clause for clause in self.clauses if clause.kind == kind)

    @property
    def is_insert_only(self) -> bool:
        """Whether there are only WHEN NOT MATCHED clauses."""
        return all(clause.kind == "not_matched" for clause in self.clauses)

    @property
    def takes_insert_only_path(self) -> bool:
        """Whether one anti join does it all (document row M7)."""
        key = "spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled"
        return self.is_insert_only and self.spark.conf.get(key, "true") == "true"

    @property
    def is_matched_only(self) -> bool:
        """Whether there are only WHEN MATCHED clauses."""
        return all(clause.kind == "matched" for clause in self.clauses)

    @property
    def may_match_repeatedly(self) -> bool:
        """Whether several source rows may match a target row: all they can do is delete it."""
        matched = self.of_kind("matched")
        return len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None

    def reads_source_alone(self, clause: ResolvedClause) -> bool:
        """Whether the clause's values read no column of the target."""
        read = self._attributes.apply(clause.node.resolvedActions())
        return bool(read.subsetOf(self.node.source().outputSet()))

    def condition_columns(self) -> list[str]:
        """Names of the target columns that the ON condition reads."""
        read = self.node.target().outputSet().intersect(self.node.condition().references())
        return [attribute.name() for attribute in jvm_.iterate(read)]

    def scan_columns(self) -> list[str]:
        """Names of the target columns that tell which clause takes a row.

        These are the columns that a condition reads; where unchanged rows are skipped, all of them.
        """
        if self.skips_unchanged:
            return list(self.target_schema.names)
        read = self.node.target().outputSet().intersect(self._read_by_conditions)
        return [attribute.name() for attribute in jvm_.iterate(read)]

    def used_source(self) -> DataFrame:
        """The source, with the columns that the ON condition or any part of a clause reads."""
        read = self._read_by_conditions
        for clause in self.clauses:
            if clause.action != "delete":
                # "$plus$plus" is how the JVM spells Scala's "++".
                values = self._attributes.apply(clause.node.resolvedActions())
                read = getattr(read, "$plus$plus")(values)
        source = self.node.source()
        used = source.outputSet().intersect(read)
        if used.size() == source.output().size():
            return self.source
        columns = [jvm_.column_of(self.spark, attribute) for attribute in jvm_.iterate(used)]
        return self.source.select(*columns)

    @property
    def is_case_sensitive(self) -> bool:
        """Whether names that differ in case alone are different."""
        return self.spark.conf.get("spark.sql.caseSensitive", "false") == "true"

    @property
    def _attributes(self) -> JavaObject:
        expressions = jvm_.jvm(self.spark).org.apache.spark.sql.catalyst.expressions
        return jvm_.singleton(expressions, "AttributeSet")

    @cached_property
    def _read_by_conditions(self) -> JavaObject:
        """The attributes that a condition reads."""
        of_clauses = [clause.node.condition() for clause in self.clauses]
        conditions = [self.node.condition(), *[c.get() for c in of_clauses if c.isDefined()]]
        return self._attributes.apply(jvm_.seq(jvm_.jvm(self.spark), conditions))


def parse_statement(spark: SparkSession, text: str) -> tuple[JavaObject, str]:
    """The unresolved plan of a MERGE statement, and what messages call its target.

    Raises:
        StatementError: The text does not parse, or a URI in it holds credentials.
    """
    jvm_.check_is_classic(spark)
    refuse_credentials(text, operation="MERGE")
    label = _target_in_text(text)
    with translated(label):
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    return plan, label or "an unnamed table"


def resolve(
    spark: SparkSession, plan: JavaObject, table: str, *, skip_unchanged_updates: bool = False
) -> ResolvedMerge:
    """Run Spark's and Delta's analysis over an unresolved MERGE plan.

    Raises:
        TableNotFoundError: The target, or a table that the source reads, does not exist.
        NotADeltaTableError: The target is no Delta table.
        StatementError: The plan is no MERGE, or names or types in it do not fit.
    """
    view = jvm_.jvm(spark)
    execution = view.org.apache.spark.sql.execution
    skip = jvm_.singleton(execution, "CommandExecutionMode").SKIP()
    with translated(table):
        analyzed = spark._jsparkSession.sessionState().executePlan(plan, skip).analyzed()
    name = analyzed.getClass().getSimpleName()
    if name == "MergeIntoTable":
        raise errors.NotADeltaTableError(
            "the target is no Delta table.",
            table=table,
            hint="Convert the table with CONVERT TO DELTA, or name a Delta table.",
        )
    if name != "MergeIntoCommand":
        raise errors.StatementError(
            f"the statement is no MERGE (Spark reads it as {name}).",
            table=table,
            hint="Give a statement that starts with MERGE INTO.",
        )
    _refuse_reserved_names(analyzed, table)
    _refuse_other_columns(analyzed, table)
    nodes = [
        *jvm_.iterate(analyzed.matchedClauses()),
        *jvm_.iterate(analyzed.notMatchedClauses()),
        *jvm_.iterate(analyzed.notMatchedBySourceClauses()),
    ]
    clauses = tuple(_clause(spark, node) for node in nodes)
    return ResolvedMerge(spark, table, analyzed, clauses, skip_unchanged_updates)


def _refuse_reserved_names(analyzed: JavaObject, table: str) -> None:
    for plan in (analyzed.target(), analyzed.source()):
        for name in _schema(plan.schema()).names:
            if name.lower().startswith(RESERVED_PREFIX):
                raise errors.StatementError(
                    f"column {name!r} begins with {RESERVED_PREFIX!r}, the names of columns that "
                    "the engine adds while it works.",
                    table=table,
                    hint="Rename the column, in the source by an alias.",
                )


def _refuse_other_columns(analyzed: JavaObject, table: str) -> None:
    """Refuse a view as target that renames or reorders columns, as Delta does when it runs.

    One that leaves columns out is refused later, as a schema that changed since analysis.
    """
    # Delta's scans leave void columns out.
    schema = _schema(analyzed.targetFileIndex().metadata().schema())
    of_table = [f.name.lower() for f in schema.fields if not isinstance(f.dataType, NullType)]
    of_target = [name.lower() for name in _schema(analyzed.target().schema()).names]
    if len(of_target) == len(of_table) and of_target != of_table:
        raise errors.StatementError(
            "the target is a view that renames or reorders the columns of its table.",
            table=table,
            hint="Name the table itself, or a view that selects its columns as they are.",
            error_class="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
        )


def _clause(spark: SparkSession, node: JavaObject) -> ResolvedClause:
    kind, action = _CLAUSE_NODES[node.getClass().getSimpleName()]
    condition = node.condition()
    return ResolvedClause(
        kind=kind,
        action=action,
        condition=jvm_.column_of(spark, condition.get()) if condition.isDefined() else None,
        node=node,
        spark=spark,
    )


def spark_type(java_type: JavaObject) -> DataType:
    """A JVM data type as PySpark has it."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def _schema(java_schema: JavaObject) -> StructType:
    return StructType.fromJson(json.loads(java_schema.json()))


def _target_in_text(text: str) -> str | None:
    """The target as a MERGE statement spells it, read off the text so that errors can name it."""
    found = re.search(r"\bINTO\s+((?:`[^`]*`|[^\s`(])+)", text, re.IGNORECASE)
    return found.group(1) if found else None
