"""A MERGE statement before analysis, made of Python clauses or read from Delta's own builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Column, DataFrame

from deltaweave._validation import refuse_credentials
from deltaweave.delta.jvm import JavaObject, Jvm, Plan, own_session, translated
from deltaweave.delta.releases import update_action

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ParsedMerge:
    """A MERGE that was parsed or built, and not analyzed yet.

    Attributes:
        spark: The session that it is for.
        plan: Spark's unresolved plan of it.
        table: What messages call the target.
        is_of_delta_builder: Whether Delta's own builder made it, which resolves the names in each
            clause by the tables that it may read. The analyzer takes those of both.
    """

    spark: SparkSession
    plan: Plan
    table: str
    is_of_delta_builder: bool = False


class ClauseLike(Protocol):
    """The interface of a clause in this module (see deltaweave.clauses.Clause)."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def action(self) -> str: ...  # noqa: D102
    @property
    def condition(self) -> str | Column | None: ...  # noqa: D102
    @property
    def assignments(self) -> Mapping[str, str | Column] | None: ...  # noqa: D102


@dataclass(frozen=True)
class MergeParts:
    """A merge without its clauses.

    Attributes:
        table: What messages call the target.
        target_parts: The parts of its name in SQL.
        on: The match condition, SQL text or a Column.
        with_schema_evolution: Whether new source columns are added to the target.
    """

    table: str
    target_parts: Sequence[str]
    target_alias: str
    source: DataFrame
    source_alias: str
    on: str | Column
    with_schema_evolution: bool


def merge_plan(
    spark: SparkSession, parts: MergeParts, clauses: Sequence[ClauseLike]
) -> ParsedMerge:
    """Build the plan of `MERGE INTO target_parts AS target_alias USING source AS source_alias …`.

    Raises:
        StatementError: A condition, value or column name does not parse.
    """
    jvm = Jvm.of(spark)
    plans = jvm.catalyst.plans.logical
    target = plans.SubqueryAlias(
        jvm.catalyst.AliasIdentifier(parts.target_alias),
        _relation(jvm, parts.target_parts),
    )
    # Raises if the source fails its own analysis. Spark keeps the analyzed plan, so nothing runs
    # twice.
    source_plan = plans.SubqueryAlias(
        jvm.catalyst.AliasIdentifier(parts.source_alias),
        parts.source._jdf.queryExecution().analyzed(),
    )
    # Built by back quotes that enclose names, as the text of a statement is.
    with translated(parts.table), own_session(spark) as own:
        actions: dict[str, list[JavaObject]] = {
            "matched": [],
            "not_matched": [],
            "not_matched_by_source": [],
        }
        for clause in clauses:
            actions[clause.kind].append(_action(own, clause))
        condition = _expression(own, parts.on)
    plan = plans.MergeIntoTable(
        target,
        source_plan,
        condition,
        jvm.seq(actions["matched"]),
        jvm.seq(actions["not_matched"]),
        jvm.seq(actions["not_matched_by_source"]),
        parts.with_schema_evolution,
    )
    return ParsedMerge(spark, plan, parts.table)


def name_parts(spark: SparkSession, name: str) -> list[str]:
    """Split a table name as SQL spells it into its parts, without back quotes."""
    with translated(name, operation="naming a table"):
        parser = spark._jsparkSession.sessionState().sqlParser()
        return list(Jvm.iterate(parser.parseMultipartIdentifier(name)))


def _relation(jvm: Jvm, parts: Sequence[str]) -> JavaObject:
    unresolved = Jvm.singleton(jvm.catalyst.analysis, "UnresolvedRelation")
    options = jvm.sql.util.CaseInsensitiveStringMap.empty()
    return unresolved.apply(jvm.seq(parts), options, False)


def _action(spark: SparkSession, clause: ClauseLike) -> JavaObject:
    jvm = Jvm.of(spark)
    plans = jvm.catalyst.plans.logical
    condition = None if clause.condition is None else _expression(spark, clause.condition)
    wanted = jvm.option(condition)
    if clause.action == "delete":
        return plans.DeleteAction(wanted)
    if clause.action == "update_all":
        return plans.UpdateStarAction(wanted)
    if clause.action == "insert_all":
        return plans.InsertStarAction(wanted)
    assignments = jvm.seq(
        [
            plans.Assignment(_attribute(spark, name), _expression(spark, value))
            for name, value in (clause.assignments or {}).items()
        ],
    )
    if clause.action == "insert":
        return plans.InsertAction(wanted, assignments)
    return update_action(spark, wanted, assignments)


def _attribute(spark: SparkSession, name: str) -> JavaObject:
    jvm = Jvm.of(spark)
    parser = spark._jsparkSession.sessionState().sqlParser()
    analysis = jvm.catalyst.analysis
    return Jvm.singleton(analysis, "UnresolvedAttribute").apply(
        parser.parseMultipartIdentifier(name)
    )


def _expression(spark: SparkSession, value: str | Column) -> JavaObject:
    if isinstance(value, Column):
        return Jvm.of(spark).expression_of(value)
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(str(value))


def parse_builder(builder: DeltaMergeBuilder) -> ParsedMerge:
    """Return the unresolved plan that the builder would resolve and run.

    Delta keeps it private: its method is called by reflection.

    Raises:
        StatementError: The location holds credentials.
        Py4JJavaError: Delta cannot make a plan of its clauses.
    """
    spark, merge = builder._spark, builder._jbuilder
    # What `DeltaTable.forName` or `forPath` found.
    table = _private(spark, merge, "targetTable").deltaLog().dataPath().toString()
    refuse_credentials(table, operation="MERGE")
    plan = _private(spark, merge, "mergePlan")
    return ParsedMerge(spark, plan, table, is_of_delta_builder=True)


def _private(spark: Any, owner: JavaObject, name: str) -> JavaObject:
    """Call a private method without arguments, and return its result."""
    java, gateway = Jvm.of(spark).java, spark.sparkContext._gateway
    method = owner.getClass().getDeclaredMethod(name, gateway.new_array(java.lang.Class, 0))
    method.setAccessible(True)
    return method.invoke(owner, gateway.new_array(java.lang.Object, 0))
