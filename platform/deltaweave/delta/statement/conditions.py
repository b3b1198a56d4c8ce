"""What a statement's conditions say about target rows before any row is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import are_bounded
from deltaweave.delta.statement.resolved import ResolvedClause, ResolvedMerge, conjuncts
from deltaweave.delta.statement.spark_types import is_padded, spark_type
from deltaweave.identifiers import column

_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
# Rules of Spark's optimizer that keep a condition's value.
_SIMPLIFYING = (
    "ReplaceExpressions",
    "RewriteWithExpression",
    "ConstantFolding",
    "UnwrapCastInBinaryComparison",
    "LikeSimplification",
)


@dataclass(frozen=True)
class Equality:
    """A conjunct of the ON condition that compares a target column with a value of the source.

    Attributes:
        path: The path of the target column or nested field.
        data_type: Its type, which has an order.
        compared_as: The type in which it is compared: its own, or one to which the statement or
            Spark's analysis casts it without changing the order of values.
        source: What it must equal: a Column over source attributes alone, in the type
            `compared_as`.
        null_safe: Whether null equals null (`<=>`).
    """

    path: tuple[str, ...]
    data_type: DataType
    compared_as: DataType
    source: Column
    null_safe: bool

    @property
    def target(self) -> Column:
        """The column or nested field, by the names of the target's columns."""
        return column(*self.path)


def skipping_predicates(merge: ResolvedMerge) -> list[JavaObject]:
    """Return expressions over target attributes that hold for every matched row that may change.

    Files in which no row satisfies them need not be read for matches.
    """
    predicates = _conjuncts_over_target(merge, merge.condition_conjuncts)
    if merge.is_matched_only:
        clause_predicate = _any_of(merge, merge.clauses)
        if clause_predicate is not None:
            predicates.append(clause_predicate)
    return predicates


def by_source_predicate(merge: ResolvedMerge) -> JavaObject | None:
    """Return a predicate of the rows of WHEN NOT MATCHED BY SOURCE; None if it may take any."""
    return _any_of(merge, merge.of_kind("not_matched_by_source"))


def _any_of(merge: ResolvedMerge, clauses: Sequence[ResolvedClause]) -> JavaObject | None:
    """Join the target-only parts of the clauses' conditions by OR; None if a clause has none."""
    expressions = jvm_.jvm(merge.spark).org.apache.spark.sql.catalyst.expressions
    parts = []
    for clause in clauses:
        condition = clause.node.condition()
        all_of_it = conjuncts(condition.get()) if condition.isDefined() else []
        over_target = _conjuncts_over_target(merge, all_of_it)
        if not over_target:
            return None
        parts.append(reduce(expressions.And, over_target))
    return reduce(expressions.Or, parts)


def equalities(merge: ResolvedMerge) -> list[Equality]:
    """Return the conjuncts of ON that set a target column equal to a value of the source."""
    known = (_equality(merge, conjunct) for conjunct in merge.condition_conjuncts)
    return [equality for equality in known if equality is not None]


def equalities_alone(merge: ResolvedMerge) -> list[Equality] | None:
    """Return the equalities of ON if it has no other conjuncts; else None."""
    known = [_equality(merge, conjunct) for conjunct in merge.condition_conjuncts]
    found = [equality for equality in known if equality is not None]
    return found if len(found) == len(known) else None


def _equality(merge: ResolvedMerge, conjunct: JavaObject) -> Equality | None:
    name = conjunct.getClass().getSimpleName()
    if name not in ("EqualTo", "EqualNullSafe"):
        return None
    left, right = conjunct.left(), conjunct.right()
    for here, there in ((left, right), (right, left)):
        column = _ordered_column(merge, here)
        if column is not None and _is_of_source(merge, there):
            value = jvm_.column_of(merge.spark, there)
            return Equality(*column, value, null_safe=name == "EqualNullSafe")
    return None


@dataclass(frozen=True)
class Assignment:
    """What an update gives a column of the evolved target schema.

    Attributes:
        value: The value.
        is_column_itself: Whether that is the column as it is.
        is_deterministic: Whether computing it again gives the same.
    """

    value: Column
    is_column_itself: bool
    is_deterministic: bool


def assignments(merge: ResolvedMerge, clause: ResolvedClause) -> list[Assignment]:
    """Return the value that an update assigns to each column of the evolved schema, in order."""
    return [
        Assignment(value, is_itself, bool(expression.deterministic()))
        for value, (expression, is_itself) in zip(
            clause.values, _values_and_columns(merge, clause), strict=True
        )
    ]


def columns_kept(merge: ResolvedMerge, clause: ResolvedClause) -> list[bool]:
    """Return for each column of the evolved schema whether an update leaves it as it is."""
    return [is_itself for _, is_itself in _values_and_columns(merge, clause)]


def _values_and_columns(
    merge: ResolvedMerge, clause: ResolvedClause
) -> Iterator[tuple[JavaObject, bool]]:
    """Yield each column's value in an update, and whether it is the column itself."""
    output = jvm_.iterate(merge.target_plan.output())
    attributes = dict(zip(merge.target_schema.names, output, strict=True))
    values = jvm_.iterate(clause.value_expressions())
    for name, value in zip(merge.evolved_schema.names, values, strict=True):
        yield value, name in attributes and bool(value.semanticEquals(attributes[name]))


def keeps_columns(merge: ResolvedMerge, clause: ResolvedClause, names: Sequence[str]) -> bool:
    """Return whether an update certainly leaves these target columns as they are.

    It does if it assigns the column itself, or what the ON condition compares the column with.
    """
    actions = list(jvm_.iterate(clause.node.resolvedActions()))
    output = dict(
        zip(merge.target_schema.names, jvm_.iterate(merge.target_plan.output()), strict=True)
    )
    equal = [
        (conjunct.left(), conjunct.right())
        for conjunct in merge.condition_conjuncts
        if conjunct.getClass().getSimpleName() in ("EqualTo", "EqualNullSafe")
    ]

    def keeps(name: str) -> bool:
        column = output[name]
        value = actions[merge.evolved_schema.names.index(name)].expr()
        if value.semanticEquals(column):
            return True
        if isinstance(merge.target_schema[name].dataType, FloatType | DoubleType):
            return False  # 0.0 equals -0.0 but is a different value
        return clause.kind == "matched" and any(
            (one.semanticEquals(column) and other.semanticEquals(value))
            or (other.semanticEquals(column) and one.semanticEquals(value))
            for one, other in equal
        )

    return all(keeps(name) for name in names)


def _ordered_column(
    merge: ResolvedMerge, expression: JavaObject
) -> tuple[tuple[str, ...], DataType, DataType] | None:
    """Return path, type and compared type of a target column that statistics bound, or None."""
    compared_as = spark_type(expression.dataType())
    kind = _kind(expression)
    if kind == "Cast":
        # Casts of whole numbers to wider ones or to doubles keep their order.
        child, wider = expression.child(), expression.dataType().simpleString()
        own = child.dataType().simpleString()
        if own not in _WHOLE_NUMBERS:
            return None
        if wider not in (*_WHOLE_NUMBERS[_WHOLE_NUMBERS.index(own) :], "double"):
            return None
        expression, kind = child, _kind(child)
    path, data_type = _field(merge, expression, kind)
    if data_type is None or not are_bounded(data_type):
        return None
    return path, data_type, compared_as


def _kind(expression: JavaObject) -> str:
    return str(expression.getClass().getSimpleName())


def _field(
    merge: ResolvedMerge, expression: JavaObject, kind: str
) -> tuple[tuple[str, ...], DataType | None]:
    """Return the path and type of a target column or nested field; None for other expressions."""
    if kind == "GetStructField":
        child = expression.child()
        path, struct = _field(merge, child, _kind(child))
        if not isinstance(struct, StructType):
            return (), None
        field = struct.fields[expression.ordinal()]
        return (*path, field.name), field.dataType
    if kind != "AttributeReference":
        return (), None
    # By id, because the statement may spell the name in another case than the table.
    place = jvm_.place_of(jvm_.jvm(merge.spark), merge.target_plan.output(), expression)
    if place < 0:
        return (), None
    field = merge.target_schema.fields[place]
    if is_padded(field):
        return (), None
    return (field.name,), field.dataType


def _is_of_source(merge: ResolvedMerge, expression: JavaObject) -> bool:
    """Return whether an expression reads the source alone and always has one value for a row."""
    references = expression.references()
    return bool(
        references.nonEmpty()
        and references.subsetOf(merge.source_attributes)
        and expression.deterministic()
    )


def _conjuncts_over_target(
    merge: ResolvedMerge, expressions: Sequence[JavaObject]
) -> list[JavaObject]:
    """Return the AND-ed parts of conditions that read target attributes alone, in simple form.

    An untyped NULL is left out: Spark refuses it when rows are joined. So are columns that Spark
    pads: the log has statistics of what files hold.
    """
    target = merge.target_attributes
    if any(map(is_padded, merge.target_schema.fields)):
        output = zip(jvm_.iterate(merge.target_plan.output()), merge.target_schema, strict=True)
        target = merge.attributes_of([each for each, field in output if not is_padded(field)])
    return [
        part
        for each in expressions
        if each.references().subsetOf(target) and each.dataType().simpleString() == "boolean"
        for part in conjuncts(_simplified(merge, each))
    ]


def _simplified(merge: ResolvedMerge, condition: JavaObject) -> JavaObject:
    """Simplify the condition by rules of Spark's optimizer.

    Delta compares statistics with literals alone. Analysis leaves `day >= '2024-01-01'` with a cast
    of text, `k < 10` over bigint with a cast of 10, and BETWEEN as its own expression.
    """
    catalyst = jvm_.jvm(merge.spark).org.apache.spark.sql.catalyst
    plan = catalyst.plans.logical.Filter(condition, merge.target_plan)
    for rule in _SIMPLIFYING:
        simpler = jvm_.singleton(catalyst.optimizer, rule).apply(plan)
        # The operand of a BETWEEN may become a column of its own below.
        plan = simpler if simpler.getClass().getSimpleName() == "Filter" else plan
    return plan.condition()
