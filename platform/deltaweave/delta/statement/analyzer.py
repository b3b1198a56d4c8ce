"""Resolves a MERGE with Delta's analyzer; nothing is executed.

Statement text, clauses, or what Delta's own builder made, become Spark's `MergeIntoTable` plan.
Spark's and Delta's analysis rules turn it into Delta's resolved MERGE node: stars are expanded,
values are cast, generated columns and defaults are filled in, and the evolved schema is known. Case
rules, store assignment and analysis errors are therefore Delta's.

Spark pads CHAR columns where it reads a table: a projection over the scan makes new columns of
them. Delta resolves the names of a MERGE statement over a copy of the scan that is padded by
itself, and then does not find these columns in the plan. Its builder resolves both tables first,
and so does `_over_padded_tables`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave import errors
from deltaweave._validation import refuse_credentials
from deltaweave.delta.jvm import JavaObject, Jvm, Plan, check_is_classic, own_session, translated
from deltaweave.delta.releases import update_action
from deltaweave.delta.statement.resolved import (
    OF_LIMITED_LENGTH,
    ResolvedClause,
    ResolvedMerge,
    asks_for_current,
    schema_json,
    spark_schema,
)
from deltaweave.identifiers import RESERVED_PREFIX

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


_NOT_FOUND = "DELTA_MERGE_RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT"
"""The error class of a plan with such columns."""


def _over_padded_tables(
    parsed: ParsedMerge, analyze: Callable[[JavaObject], JavaObject]
) -> JavaObject | None:
    """Return the plan over tables that are analyzed; None if no column of theirs is padded."""
    merge = parsed.plan
    if merge.getClass().getSimpleName() != "MergeIntoTable":
        return None
    tables = [analyze(table) for table in (merge.targetTable(), merge.sourceTable())]
    if not any(OF_LIMITED_LENGTH in table.schema().json() for table in tables):
        return None
    jvm = Jvm.of(parsed.spark)
    actions = {
        "Matched": merge.matchedActions(),
        "NotMatched": merge.notMatchedActions(),
        "NotMatchedBySource": merge.notMatchedBySourceActions(),
    }
    clauses = [
        _delta_clause(jvm, kind, action)
        for kind, each in actions.items()
        for action in Jvm.iterate(each)
    ]
    plans = jvm.catalyst.plans.logical
    return Jvm.singleton(plans, "DeltaMergeInto").apply(
        *tables, merge.mergeCondition(), jvm.seq(clauses), merge.withSchemaEvolution()
    )


def _delta_clause(jvm: Jvm, kind: str, action: JavaObject) -> JavaObject:
    """Build Delta's clause for an action of Spark's MERGE."""
    plans = jvm.catalyst.plans.logical
    name = str(action.getClass().getSimpleName())
    does = name.removesuffix("Action").removesuffix("Star")
    clause = getattr(plans, f"DeltaMergeInto{kind}{does}Clause")
    if does == "Delete":
        return clause(action.condition())
    # Without assignments, it is that of `*`.
    assignments = jvm.seq([]) if "Star" in name else action.assignments()
    of_delta = Jvm.singleton(plans, "DeltaMergeIntoClause").toActions(assignments)
    return clause(action.condition(), of_delta)


# How schemas spell the type of a column of nulls: the second in logs of old writers.
_OF_NOTHING = ("void", "null")
# Common table expressions and parameters.
_AROUND_A_STATEMENT = {"UnresolvedWith", "NameParameterizedQuery", "PosParameterizedQuery"}


def parse_statement(
    spark: SparkSession, text: str, args: Mapping[str, Any] | Sequence[Any] = ()
) -> ParsedMerge:
    """Parse the text of a MERGE statement.

    Args:
        args: Values of its parameters, `:name` by name or `?` by place: Python values or Columns
            of literals, as `SparkSession.sql` takes them.

    Raises:
        StatementError: The text does not parse, or a URI in it holds credentials.
    """
    check_is_classic(spark)
    refuse_credentials(text, operation="MERGE")
    label = _target_in_text(text)
    with translated(label):
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
        if args:
            plan = _with_parameters(spark, plan, args)
    return ParsedMerge(spark, plan, label or "an unnamed table")


def is_merge(parsed: ParsedMerge) -> bool:
    """Return whether the text is a MERGE, by its plan before analysis."""
    return statement_plan(parsed).getClass().getSimpleName() in ("MergeIntoTable", "DeltaMergeInto")


def statement_plan(parsed: ParsedMerge) -> JavaObject:
    """Return the plan of the statement itself, without what is around it, before analysis."""
    plan = parsed.plan
    while plan.getClass().getSimpleName() in _AROUND_A_STATEMENT:
        plan = plan.child()
    return plan


def _with_parameters(
    spark: SparkSession, plan: Plan, args: Mapping[str, Any] | Sequence[Any]
) -> JavaObject:
    """Bind the parameters of a plan by Spark's analyzer."""
    jvm = Jvm.of(spark)
    analysis = jvm.catalyst.analysis
    values = args.values() if isinstance(args, Mapping) else args
    literals = jvm.seq([jvm.expression_of(F.lit(value)) for value in values])
    if isinstance(args, Mapping):
        return analysis.NameParameterizedQuery(plan, jvm.seq(args), literals)
    return analysis.PosParameterizedQuery(plan, literals)


def analyzed(parsed: ParsedMerge) -> JavaObject:
    """Return a parsed statement's plan after Spark's and Delta's analysis; nothing is executed."""
    spark = parsed.spark

    def analyze(plan: Plan) -> JavaObject:
        with translated(parsed.table):
            return Jvm.of(spark).resolved(plan)

    try:
        return analyze(parsed.plan)
    except errors.StatementError as error:
        if error.error_class != _NOT_FOUND:
            raise
        padded = _over_padded_tables(parsed, analyze)
        if padded is None:
            raise
    node = analyze(padded)
    _refuse_columns_of_the_other_table(node, parsed.table)
    return node


def resolve(parsed: ParsedMerge, *, skip_unchanged_updates: bool = False) -> ResolvedMerge:
    """Run Spark's and Delta's analysis over a parsed MERGE.

    Raises:
        TableNotFoundError: The target, or a table that the source reads, does not exist.
        NotADeltaTableError: The target is not a Delta table.
        StatementError: The plan is not a MERGE, or names or types in it do not fit.
    """
    spark, table = parsed.spark, parsed.table
    node = analyzed(parsed)
    name = node.getClass().getSimpleName()
    if name == "MergeIntoTable":
        raise errors.NotADeltaTableError(
            "the target is not a Delta table.",
            table=table,
            hint="Convert the table with CONVERT TO DELTA, or name a Delta table.",
        )
    if name != "MergeIntoCommand":
        raise errors.StatementError(
            f"the statement is not a MERGE (Spark reads it as {name}).",
            table=table,
            hint="Give a statement that starts with MERGE INTO.",
        )
    node = _with_constants(spark, node)
    target = spark_schema(spark, node.target().schema())
    source = spark_schema(spark, node.source().schema(), columns=len(target))
    _refuse_reserved_names([*target.names, *source.names], table)
    _refuse_other_columns(spark, node, target.names, table)
    _refuse_condition_of_another_type(spark, node, table)
    if parsed.is_of_delta_builder:
        _refuse_columns_of_the_other_table(node, table)
    nodes = {
        "matched": node.matchedClauses(),
        "not_matched": node.notMatchedClauses(),
        "not_matched_by_source": node.notMatchedBySourceClauses(),
    }
    clauses = tuple(
        _clause(spark, kind, clause) for kind, each in nodes.items() for clause in Jvm.iterate(each)
    )
    return ResolvedMerge(spark, table, node, target, clauses, skip_unchanged_updates)


def _with_constants(spark: SparkSession, node: JavaObject) -> JavaObject:
    """Put constants in place of the current time, user, catalog and schema in clauses.

    Delta's analysis does so for dates and timestamps alone. Spark does so for the others when it
    plans the command: a merge of several queries would give each of them its own.
    """
    if not asks_for_current(spark, node):
        return node
    catalyst = Jvm.of(spark).catalyst
    node = Jvm.singleton(catalyst.optimizer, "ComputeCurrentTime").apply(node)
    catalogs = spark._jsparkSession.sessionState().catalogManager()
    return catalyst.optimizer.ReplaceCurrentLike(catalogs).apply(node)


def _refuse_reserved_names(names: Sequence[str], table: str) -> None:
    for name in names:
        if name.lower().startswith(RESERVED_PREFIX):
            raise errors.StatementError(
                f"column {name!r} begins with {RESERVED_PREFIX!r}, the names of columns that the "
                "engine adds while it works.",
                table=table,
                hint="Rename the column; in the source, use an alias.",
            )


def _refuse_other_columns(
    spark: SparkSession, analyzed: JavaObject, names: Sequence[str], table: str
) -> None:
    """Refuse a view as target that renames or reorders columns, as Delta does when it runs.

    A view that leaves columns out is refused later, as a schema that changed since analysis.
    """
    # Delta's scans leave void columns out.
    metadata = analyzed.targetFileIndex().metadata()
    schema = schema_json(spark, metadata.schema(), columns=len(names))
    of_table = [f["name"].lower() for f in schema["fields"] if f["type"] not in _OF_NOTHING]
    of_target = [name.lower() for name in names]
    if len(of_target) == len(of_table) and of_target != of_table:
        raise errors.StatementError(
            "the target is a view that renames or reorders the columns of its table.",
            table=table,
            hint="Name the table itself, or a view that selects its columns as they are.",
            error_class="MISSING_ATTRIBUTES.RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT",
        )


def _refuse_columns_of_the_other_table(analyzed: JavaObject, table: str) -> None:
    """Refuse a clause that reads columns of the table without a row for it."""
    lacking = [
        (analyzed.notMatchedBySourceClauses(), analyzed.source(), "NOT MATCHED BY SOURCE"),
        (analyzed.notMatchedClauses(), analyzed.target(), "NOT MATCHED"),
    ]
    for clauses, other, kind in lacking:
        for clause in Jvm.iterate(clauses):
            if not clause.references().intersect(other.outputSet()).isEmpty():
                raise errors.StatementError(
                    f"a clause WHEN {kind} reads columns of the other table.",
                    table=table,
                    hint="Name columns of the table whose rows the clause is about.",
                )


def _refuse_condition_of_another_type(
    spark: SparkSession, analyzed: JavaObject, table: str
) -> None:
    """Refuse an ON condition that is not boolean in Spark's words, even if no file is scanned."""
    condition = analyzed.condition()
    if condition.dataType().simpleString() == "boolean":
        return
    target, source = (
        Jvm.of(spark).data_frame_of_plan(plan) for plan in (analyzed.target(), analyzed.source())
    )
    with translated(table):
        target.join(source, Jvm.of(spark).column_of(condition))


def _clause(spark: SparkSession, kind: str, node: JavaObject) -> ResolvedClause:
    condition = node.condition()
    return ResolvedClause(
        kind=kind,
        action=str(node.clauseType()).lower(),
        condition=Jvm.of(spark).column_of(condition.get()) if condition.isDefined() else None,
        node=node,
        spark=spark,
    )


def _target_in_text(text: str) -> str | None:
    """Return the target as a MERGE statement spells it, so that errors can name it."""
    found = re.search(r"\bINTO\s+((?:`[^`]*`|[^\s`(])+)", text, re.IGNORECASE)
    return found.group(1) if found else None
