"""Makes the unresolved MERGE plan from Python clauses, as the SQL parser does from text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import Column, DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject, translated
from deltaweave.delta.releases import update_action
from deltaweave.delta.statement.parsed import ParsedMerge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ClauseLike(Protocol):
    """What this module needs of a clause (see deltaweave.clauses.Clause)."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def action(self) -> str: ...  # noqa: D102
    @property
    def condition(self) -> str | Column | None: ...  # noqa: D102
    @property
    def assignments(self) -> Mapping[str, str | Column] | None: ...  # noqa: D102


def merge_plan(
    spark: SparkSession,
    *,
    table: str,
    target_parts: Sequence[str],
    target_alias: str,
    source: DataFrame,
    source_alias: str,
    on: str | Column,
    clauses: Sequence[ClauseLike],
    with_schema_evolution: bool,
) -> ParsedMerge:
    """Build the plan of `MERGE INTO target_parts AS target_alias USING source AS source_alias …`.

    Raises:
        StatementError: A condition, value or column name does not parse.
    """
    view = jvm_.jvm(spark)
    plans = view.org.apache.spark.sql.catalyst.plans.logical
    target = plans.SubqueryAlias(
        view.org.apache.spark.sql.catalyst.AliasIdentifier(target_alias),
        _relation(view, target_parts),
    )
    # Raises if the source fails its own analysis. Spark keeps the analyzed plan, so nothing runs
    # twice.
    source_plan = plans.SubqueryAlias(
        view.org.apache.spark.sql.catalyst.AliasIdentifier(source_alias),
        source._jdf.queryExecution().analyzed(),
    )
    with translated(table):
        actions: dict[str, list[JavaObject]] = {
            "matched": [],
            "not_matched": [],
            "not_matched_by_source": [],
        }
        for clause in clauses:
            actions[clause.kind].append(_action(spark, clause))
        condition = _expression(spark, on)
    plan = plans.MergeIntoTable(
        target,
        source_plan,
        condition,
        jvm_.seq(view, actions["matched"]),
        jvm_.seq(view, actions["not_matched"]),
        jvm_.seq(view, actions["not_matched_by_source"]),
        with_schema_evolution,
    )
    return ParsedMerge(spark, plan, table)


def name_parts(spark: SparkSession, name: str) -> list[str]:
    """Split a table name as SQL spells it into its parts, without back quotes."""
    with translated(name, operation="naming a table"):
        parser = spark._jsparkSession.sessionState().sqlParser()
        return list(jvm_.iterate(parser.parseMultipartIdentifier(name)))


def _relation(view: JavaObject, parts: Sequence[str]) -> JavaObject:
    unresolved = jvm_.singleton(view.org.apache.spark.sql.catalyst.analysis, "UnresolvedRelation")
    options = view.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    return unresolved.apply(jvm_.seq(view, parts), options, False)


def _action(spark: SparkSession, clause: ClauseLike) -> JavaObject:
    view = jvm_.jvm(spark)
    plans = view.org.apache.spark.sql.catalyst.plans.logical
    condition = None if clause.condition is None else _expression(spark, clause.condition)
    wanted = jvm_.option(view, condition)
    if clause.action == "delete":
        return plans.DeleteAction(wanted)
    if clause.action == "update_all":
        return plans.UpdateStarAction(wanted)
    if clause.action == "insert_all":
        return plans.InsertStarAction(wanted)
    assignments = jvm_.seq(
        view,
        [
            plans.Assignment(_attribute(spark, name), _expression(spark, value))
            for name, value in (clause.assignments or {}).items()
        ],
    )
    if clause.action == "insert":
        return plans.InsertAction(wanted, assignments)
    return update_action(spark, wanted, assignments)


def _attribute(spark: SparkSession, name: str) -> JavaObject:
    view = jvm_.jvm(spark)
    parser = spark._jsparkSession.sessionState().sqlParser()
    analysis = view.org.apache.spark.sql.catalyst.analysis
    return jvm_.singleton(analysis, "UnresolvedAttribute").apply(
        parser.parseMultipartIdentifier(name)
    )


def _expression(spark: SparkSession, value: str | Column) -> JavaObject:
    if isinstance(value, Column):
        return jvm_.expression_of(spark, value)
    return spark._jsparkSession.sessionState().sqlParser().parseExpression(str(value))
