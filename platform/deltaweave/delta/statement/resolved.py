"""A MERGE statement after analysis: its condition, its clauses, and what they read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from deltaweave.delta.jvm import Expression, JavaObject, Jvm, Plan, is_on
from deltaweave.delta.statement.lost_days import may_filter_by_lost_days

if TYPE_CHECKING:
    import numpy
    from pyspark.sql import SparkSession

OF_LIMITED_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata that marks it as CHAR or VARCHAR, or has such a part."""

# Schemas of up to so many columns are mostly one part of an answer, so they are read at once.
_FEW_COLUMNS = 60

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"


def spark_type(java_type: JavaObject) -> DataType:
    """Convert a JVM data type to PySpark's."""
    schema = f'{{"fields": [{{"name": "", "type": {java_type.json()}, "nullable": true}}]}}'
    return StructType.fromJson(json.loads(schema)).fields[0].dataType


def spark_schema(spark: SparkSession, java_schema: JavaObject, *, columns: int = 0) -> StructType:
    """Convert a JVM schema to PySpark's; the arguments are those of `schema_json`."""
    return StructType.fromJson(schema_json(spark, java_schema, columns=columns))


def is_padded(column: StructField) -> bool:
    """Return whether Spark pads a column, or a part of it, on reading files without blanks."""
    return re.search(r"\bchar\(", column.metadata.get(OF_LIMITED_LENGTH, "")) is not None


def schema_json(spark: SparkSession, java_schema: JavaObject, *, columns: int = 0) -> Any:
    """Parse the JSON of a JVM schema.

    `columns` says about how many columns it has, if that is known: those of many are read in pieces
    (`Jvm.text`).
    """
    if columns <= _FEW_COLUMNS:
        return json.loads(java_schema.json())
    [schema] = Jvm.of(spark).json_of("org.apache.spark.sql.types.DataType", "json", [java_schema])
    return schema


def conjuncts(expression: Expression) -> list[JavaObject]:
    """Split an expression into its AND-ed parts."""
    if expression.getClass().getSimpleName() == "And":
        return [*conjuncts(expression.left()), *conjuncts(expression.right())]
    return [expression]


def asks_for_current(spark: SparkSession, plan: Plan) -> bool:
    """Return whether each query of a plan looks up the current time, user, catalog or schema."""

    def make() -> JavaObject:
        return Jvm.of(spark).catalyst.trees.TreePattern.CURRENT_LIKE()

    return bool(plan.containsPattern(Jvm.of(spark).made_once("CURRENT_LIKE", make)))


@dataclass(frozen=True)
class ResolvedClause:
    """A WHEN clause after analysis.

    Attributes:
        kind: `matched`, `not_matched` or `not_matched_by_source`.
        action: `update`, `delete` or `insert`.
        condition: The condition over source and target attributes, or None.
        node: Delta's clause.
    """

    kind: str
    action: str
    condition: Column | None
    node: JavaObject
    spark: SparkSession

    def condition_or_null(self) -> Column | None:
        """Return the condition, null for rows for which evaluating it fails.

        None without a condition, or if it has a Python function, which Spark runs separately.
        """
        condition = self.node.condition()
        if not condition.isDefined():
            return None
        catalyst = Jvm.of(self.spark).catalyst
        if condition.get().containsPattern(catalyst.trees.TreePattern.PYTHON_UDF()):
            return None
        column = Jvm.of(self.spark).column_of(condition.get())
        # A lambda keeps its subexpressions inside of TryEval. Spark would compute those that it
        # shares with other expressions once, outside of it, and fail there.
        apart = F.exists(F.array(F.lit(True)), lambda _: column)
        guarded = catalyst.expressions.TryEval(Jvm.of(self.spark).expression_of(apart))
        return Jvm.of(self.spark).column_of(guarded)

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """For update and insert, one Column per column of the evolved target schema."""
        actions = Jvm.iterate(self.node.resolvedActions())
        return tuple(Jvm.of(self.spark).column_of(action.expr()) for action in actions)

    def value_expressions(self) -> JavaObject:
        """Return the clause's values as a Scala Seq of expressions, in a few JVM calls."""
        value = Jvm.of(self.spark).function(f"{_LOGICAL}.DeltaMergeAction", "expr")
        return self.node.resolvedActions().map(value)

    def row(self, wanted: numpy.ndarray | None = None) -> Column:
        """Return the values as one struct, in a few JVM calls; only those in the mask."""
        jvm, values = Jvm.of(self.spark), self.value_expressions()
        if wanted is not None and not wanted.all():
            values = jvm.select_where(values, wanted)
        struct = Jvm.singleton(jvm.catalyst.expressions, "CreateStruct")
        return jvm.column_of(struct.apply(values))

    def has_subquery(self) -> bool:
        """Return whether the clause's condition or values have a subquery."""
        trees = Jvm.of(self.spark).catalyst.trees
        return bool(self.node.containsPattern(trees.TreePattern.PLAN_EXPRESSION()))

    def gives_same_values(self, other: ResolvedClause) -> bool:
        """Return whether both clauses assign the same values, as UPDATE SET * and INSERT * do."""
        return bool(self.node.resolvedActions().equals(other.node.resolvedActions()))


@dataclass(frozen=True)
class ResolvedMerge:
    """A MERGE after analysis: plans, condition and clauses.

    Attributes:
        spark: The session whose queries evaluate it: at first the one that resolved it.
        table: What messages call the target.
        node: Delta's resolved MERGE node.
        target_schema: The target's schema when the statement was resolved.
        clauses: In statement order within each kind: matched, not matched, not matched by source.
        skips_unchanged: Whether updates that change no value are skipped.
    """

    spark: SparkSession
    table: str
    node: JavaObject
    target_schema: StructType
    clauses: tuple[ResolvedClause, ...]
    skips_unchanged: bool = False

    def in_session(self, spark: SparkSession) -> ResolvedMerge:
        """Return the statement for queries of another session; it keeps what Spark analyzed."""
        clauses = tuple(replace(clause, spark=spark) for clause in self.clauses)
        return replace(self, spark=spark, clauses=clauses)

    @cached_property
    def location(self) -> str:
        """Where the target's data is."""
        return str(self.target_log.dataPath().toString())

    @cached_property
    def target_index(self) -> JavaObject:
        """Delta's index of the target's files, with metadata and protocol of then."""
        return self.node.targetFileIndex()

    @cached_property
    def target_log(self) -> JavaObject:
        """Delta's log of the target."""
        return self.target_index.deltaLog()

    @cached_property
    def target_plan(self) -> JavaObject:
        """The target as a plan of Spark."""
        return self.node.target()

    @cached_property
    def source_plan(self) -> JavaObject:
        """The source as a plan of Spark."""
        return self.node.source()

    @cached_property
    def condition_expression(self) -> JavaObject:
        """The ON condition as Spark's expression."""
        return self.node.condition()

    @cached_property
    def condition_conjuncts(self) -> list[JavaObject]:
        """The AND-ed parts of the ON condition."""
        return conjuncts(self.condition_expression)

    @cached_property
    def target_attributes(self) -> JavaObject:
        """The set of the target's attributes."""
        return self.target_plan.outputSet()

    @cached_property
    def source_attributes(self) -> JavaObject:
        """The set of the source's attributes."""
        return self.source_plan.outputSet()

    @cached_property
    def condition(self) -> Column:
        """The ON condition over source and target attributes."""
        return Jvm.of(self.spark).column_of(self.condition_expression)

    @property
    def condition_text(self) -> str:
        """The ON condition as Spark prints it."""
        return str(self.condition_expression.toString())

    @cached_property
    def source(self) -> DataFrame:
        """The source as the statement gives it."""
        return Jvm.of(self.spark).data_frame_of_plan(self.source_plan)

    @cached_property
    def target_columns(self) -> list[Column]:
        """The target's columns, in the order of its schema."""
        output = Jvm.iterate(self.target_plan.output())
        return [Jvm.of(self.spark).column_of(attribute) for attribute in output]

    @cached_property
    def evolved_schema(self) -> StructType:
        """The target's schema after the merge."""
        migrated = self.node.migratedSchema()
        if not migrated.isDefined():
            return self.target_schema
        return spark_schema(self.spark, migrated.get(), columns=len(self.target_schema))

    def of_kind(self, kind: str) -> tuple[ResolvedClause, ...]:
        """Return the clauses of one kind, in order."""
        return tuple(clause for clause in self.clauses if clause.kind == kind)

    @property
    def is_insert_only(self) -> bool:
        """Whether there are only WHEN NOT MATCHED clauses."""
        return all(clause.kind == "not_matched" for clause in self.clauses)

    @property
    def takes_insert_only_path(self) -> bool:
        """Whether one anti join is the whole merge."""
        key = "spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled"
        return self.is_insert_only and is_on(self.spark, key, otherwise=True)

    @property
    def is_matched_only(self) -> bool:
        """Whether there are only WHEN MATCHED clauses."""
        return all(clause.kind == "matched" for clause in self.clauses)

    @property
    def may_match_repeatedly(self) -> bool:
        """Whether several source rows may match a target row, because they can only delete it."""
        matched = self.of_kind("matched")
        return len(matched) == 1 and matched[0].action == "delete" and matched[0].condition is None

    def reads_source_alone(self, clause: ResolvedClause) -> bool:
        """Return whether the clause's values read no column of the target."""
        read = self._attributes.apply(clause.node.resolvedActions())
        return bool(read.subsetOf(self.source_attributes))

    def is_of_source_alone(self, clause: ResolvedClause) -> bool:
        """Return whether the clause's condition and values depend on the source row alone."""
        read = clause.node.references()
        is_same_again = clause.node.deterministic()
        return bool(is_same_again and read.subsetOf(self.source_attributes))

    def condition_columns(self) -> list[str]:
        """Return the names of the target columns that the ON condition reads."""
        read = self.target_attributes.intersect(self.condition_expression.references())
        return [attribute.name() for attribute in Jvm.iterate(read)]

    def scan_columns(self) -> list[str]:
        """Return the names of the target columns that decide which clause takes a row.

        These are the columns that a condition reads, or all columns if unchanged rows are skipped.
        """
        if self.skips_unchanged:
            return list(self.target_schema.names)
        read = self.target_attributes.intersect(self._read_by_conditions)
        return [attribute.name() for attribute in Jvm.iterate(read)]

    def used_source(self) -> DataFrame:
        """Return the source with the columns that ON or any part of a clause reads."""
        read = self.node.references()
        if self.source_attributes.subsetOf(read):
            return self.source
        used = Jvm.iterate(self.source_attributes.intersect(read))
        return self.source.select(*[Jvm.of(self.spark).column_of(attribute) for attribute in used])

    @property
    def is_case_sensitive(self) -> bool:
        """Whether names that differ in case alone are different."""
        return is_on(self.spark, "spark.sql.caseSensitive", otherwise=False)

    @cached_property
    def may_filter_by_lost_days(self) -> bool:
        """Whether Spark may filter by days that its filters on Parquet files lack."""
        return may_filter_by_lost_days(self.spark, self.node)

    def attributes_of(self, expressions: Sequence[Expression]) -> JavaObject:
        """Return the attributes that expressions read."""
        return self._attributes.apply(Jvm.of(self.spark).seq(list(expressions)))

    @property
    def _attributes(self) -> JavaObject:
        expressions = Jvm.of(self.spark).catalyst.expressions
        return Jvm.singleton(expressions, "AttributeSet")

    @cached_property
    def _read_by_conditions(self) -> JavaObject:
        """The attributes that a condition reads."""
        of_clauses = [clause.node.condition() for clause in self.clauses]
        conditions = [self.condition_expression, *[c.get() for c in of_clauses if c.isDefined()]]
        return self.attributes_of(conditions)
