"""A MERGE statement after analysis: its condition, its clauses, and where values come from.

Spark hands dates and times to Parquet as `java.sql.Date` and `java.sql.Timestamp`. These lack some
days (the lost days), and each of them becomes a later one: a scan with such a filter skips row
groups that hold the row. So rows may be overlooked wherever a condition, or what Spark derives from
the source's query, compares a column with such a day. The calendar lacks 5 to 14 October 1582, and
dates also lack a day that the JVM's time zone skipped, as Samoa's did 30 December 2011.

`origins` follows each value of the target to columns of files. Spark's analyzed plan has the exact
lineage, whatever names columns have on the way. An alias makes an attribute from other attributes,
a union from those in the same position, and a relation reads it. The plan is read as JSON, that of
the source and of all clauses together. Only the flow of values counts: conditions, join keys and
groupings are left out. Rows made in Python or on the driver, checkpoints, subqueries in expressions
and grouping sets have no origin, so the lineage is correct but may be incomplete.
"""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StructField, StructType, TimestampType

from deltaweave.delta.jvm import Expression, JavaObject, Jvm, Plan, is_on, reported_by

if TYPE_CHECKING:
    import numpy
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


_MONTH = "1582-10-"
# As java.time prints where clocks were put forward in a zone.
_GAP = re.compile(r"Gap at (\d{4}-\d\d-\d\dT[\d:]+)([+-][\d:]+) to ([+-][\d:]+)")
_WITH_NEW_DATES = "spark.sql.datetime.java8API.enabled"
# By the name of a zone, the days that its clocks passed over.
_SKIPPED: dict[str, frozenset[date]] = {}
_PLAN = "org.apache.spark.sql.catalyst.plans.QueryPlan"
_LITERAL = "org.apache.spark.sql.catalyst.expressions.Literal"
_LOGICAL_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"

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


def may_lose_days(kind: DataType) -> bool:
    """Return whether a column of this type may be compared with such days by Parquet."""
    if isinstance(kind, StructType):
        return any(may_lose_days(field.dataType) for field in kind.fields)
    return isinstance(kind, (DateType, TimestampType))


def names_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether a constant of the statement or of the source's query may be a lost day.

    If a constant cannot be computed, it may be.
    """
    if is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    try:
        lost = (_MONTH, *map(date.isoformat, days_skipped_by_zone(spark)))
        texts = (str(each.mkString(" ")) for each in _constants(spark, node))
        return any(day in text for text in texts for day in lost)
    except Exception as error:
        logger.debug("the constants of a statement are not known: %s", reported_by(error))
        return True


def executors_may_shift_days(spark: SparkSession) -> bool:
    """Return whether executors are JVMs of their own, and read days by a time zone of their own."""
    master = str(spark.sparkContext.master)
    is_local = master == "local" or master.startswith("local[")
    return not is_local and not is_on(spark, _WITH_NEW_DATES, otherwise=False)


def days_skipped_by_zone(spark: SparkSession) -> frozenset[date]:
    """Return the days that `java.sql.Date` lacks in the default time zone of the JVM.

    Of the days on whose midnight clocks were put forward, Spark's own conversions are asked.
    """
    jvm = Jvm.of(spark)
    zone = jvm.java.util.TimeZone.getDefault()
    name = str(zone.getID())
    if name not in _SKIPPED:
        conversions = Jvm.singleton(jvm.catalyst.util, "DateTimeUtils")
        transitions = str(zone.toZoneId().getRules().getTransitions().toString())
        _SKIPPED[name] = frozenset(
            day
            for day in skipped_midnights(transitions)
            for number in [(day - date(1970, 1, 1)).days]
            if conversions.fromJavaDate(conversions.toJavaDate(number)) != number
        )
    return _SKIPPED[name]


def skipped_midnights(transitions: str) -> Iterator[date]:
    """Yield the days whose midnight is in a gap of a zone's transitions, as java.time prints them.

    It prints the offset of UTC as Z, which Python 3.10 does not read.
    """
    for start, before, after in _GAP.findall(transitions.replace("Z", "+00:00")):
        began = datetime.fromisoformat(start)
        length = datetime.fromisoformat(start + before) - datetime.fromisoformat(start + after)
        day = began.date() if began.time() == time.min else began.date() + timedelta(days=1)
        while datetime.combine(day, time.min) < began + length:
            yield day
            day += timedelta(days=1)


def may_filter_by_lost_days(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether Spark may compare a column with such a day.

    Spark also filters by the values of scalar subqueries, which are known at run time alone.
    """
    if is_on(spark, _WITH_NEW_DATES, otherwise=False):
        return False
    return _has_subquery(spark, node) or names_lost_days(spark, node)


def may_filter_by_decimals(spark: SparkSession, node: JavaObject) -> bool:
    """Return whether Spark may compare a column with a constant of type DECIMAL."""
    if _has_subquery(spark, node):
        return True
    jvm = Jvm.of(spark)
    data_type = jvm.function("org.apache.spark.sql.catalyst.expressions.Expression", "dataType")
    is_constant = jvm.instances_of(jvm.class_of_delta(_LITERAL))
    for each in _constants(spark, node):
        types = jvm.nodes_within(each).filter(is_constant).map(data_type)
        if "DecimalType(" in str(types.mkString(" ")):
            return True
    return False


def _has_subquery(spark: SparkSession, node: JavaObject) -> bool:
    subquery = Jvm.of(spark).catalyst.trees.TreePattern.PLAN_EXPRESSION()
    return bool(node.containsPattern(subquery) or node.source().containsPattern(subquery))


def _constants(spark: SparkSession, node: JavaObject) -> Iterator[JavaObject]:
    """Yield Scala Seqs of the expressions with constants, computed as far as they can be."""
    jvm = Jvm.of(spark)
    fold = Jvm.singleton(jvm.catalyst.optimizer, "ConstantFolding")
    yield jvm.nodes_within(fold.apply(node).expressions())
    source = fold.apply(node.source())
    nodes = jvm.nodes_within(jvm.seq([source]))
    yield nodes.flatMap(jvm.function(_PLAN, "expressions"))
    # A checkpoint does not show its query, but what holds of its rows.
    yield source.collectLeaves().flatMap(jvm.function(_LOGICAL_PLAN, "constraints"))


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


Node = dict[str, Any]

_TREE = "org.apache.spark.sql.catalyst.trees.TreeNode"


@dataclass(frozen=True, order=True)
class Origin:
    """A column as it is stored.

    Attributes:
        location: Path of the table or directory, e.g. `file:/lake/orders`.
        column: Name of the column there.
    """

    location: str
    column: str


def origins(merge: ResolvedMerge) -> dict[str, frozenset[Origin]]:
    """Return the origins of the values of each column of the target after the merge.

    These are the values that any UPDATE or INSERT assigns; values that the target already has do
    not count.
    """
    plan = merge.source_plan
    assigning = [each.node for each in merge.clauses if each.action != "delete"]
    of_plan, *of_clauses = Jvm.of(merge.spark).json_of(_TREE, "toJSON", [plan, *assigning])
    made_of = _made_of(of_plan)
    for union, children in _unions(plan):
        for child in children:
            for attribute, of_child in zip(union, child, strict=True):
                made_of[attribute].add(of_child)
    read = _read_by_relations(plan)
    found: dict[str, set[Origin]] = {name: set() for name in merge.evolved_schema.names}
    for nodes in of_clauses:
        for name, used in zip(found, _attributes_by_action(nodes), strict=True):
            found[name] |= {read[each] for each in _sources(used, made_of) if each in read}
    return {name: frozenset(columns) for name, columns in found.items()}


def _sources(attributes: set[int], made_of: dict[int, set[int]]) -> set[int]:
    """Return the attributes and all attributes from which they are made, directly or not."""
    seen: set[int] = set()
    left = set(attributes)
    while left:
        attribute = left.pop()
        if attribute not in seen:
            seen.add(attribute)
            left |= made_of.get(attribute, set())
    return seen


def _attributes_by_action(nodes: list[Node]) -> Iterator[set[int]]:
    """Yield the attributes that each assignment of a clause reads, in the target's column order.

    Delta's analyzer gives a clause one assignment for each column of the target.
    """
    for at, node in enumerate(nodes):
        if _class(node) == "DeltaMergeAction":
            yield _attributes(nodes, at)


def _made_of(plan: list[Node]) -> dict[int, set[int]]:
    """Map each attribute that an expression of the plan makes to the attributes it reads."""
    made_of: dict[int, set[int]] = defaultdict(set)
    for nodes in _expressions(plan):
        for at, node in enumerate(nodes):
            if _class(node) == "Alias":
                made_of[_id(node)] |= _attributes(nodes, at)
    for node in plan:
        if _class(node) == "Generate":
            read = _attributes(node["generator"], 0)
            for [made] in node["generatorOutput"]:
                made_of[_id(made)] |= read
    return made_of


def _expressions(value: object) -> Iterator[list[Node]]:
    """Yield the expression trees within a plan, each as the list of its nodes, parents first."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _expressions(each)
    elif isinstance(value, list):
        if value and isinstance(value[0], dict) and ".expressions." in value[0].get("class", ""):
            yield value
        for each in value:
            yield from _expressions(each)


def _attributes(nodes: list[Node], root: int) -> set[int]:
    """Return the attributes below a node, whose `num-children` says how many subtrees follow it."""
    read, at, left = set(), root, 1
    while left:
        node = nodes[at]
        if _class(node) == "AttributeReference":
            read.add(_id(node))
        left += node["num-children"] - 1
        at += 1
    return read


def _class(node: Node) -> str:
    return str(node.get("class", "")).rsplit(".", 1)[-1]


def _id(node: Node) -> int:
    return int(node["exprId"]["id"])


def _unions(plan: Plan) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Yield the attributes of each union in the plan, and those of each of its children."""
    children = list(Jvm.iterate(plan.children()))
    if plan.nodeName() == "Union":
        yield _output(plan), [_output(child) for child in children]
    for child in children:
        yield from _unions(child)


def _read_by_relations(plan: Plan) -> dict[int, Origin]:
    """Return the attributes that relations read from files."""
    read = {}
    for leaf in Jvm.iterate(plan.collectLeaves()):
        location = _location(leaf)
        if location is not None:
            for attribute in Jvm.iterate(leaf.output()):
                read[int(attribute.exprId().id())] = Origin(location, attribute.name())
    return read


def _location(leaf: Plan) -> str | None:
    """Return the one location from which a leaf of the plan reads files, or None."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return None
    of_relation = leaf.relation().getClass()
    # Delta's relation is a nameless subclass.
    kinds = {each.getSimpleName() for each in (of_relation, of_relation.getSuperclass())}
    if "HadoopFsRelation" not in kinds:
        return None
    paths = [path.toString() for path in Jvm.iterate(leaf.relation().location().rootPaths())]
    return paths[0] if len(paths) == 1 else None


def _output(plan: Plan) -> list[int]:
    return [int(attribute.exprId().id()) for attribute in Jvm.iterate(plan.output())]
