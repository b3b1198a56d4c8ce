"""What a statement shows about target rows before any row is read.

Conditions give equalities of keys and predicates that prune files. WHEN MATCHED clauses read
columns of the target's rows, for conditions and values or to keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from deltaweave.delta.jvm import Expression, JavaObject, Jvm
from deltaweave.delta.log import are_bounded, is_collated
from deltaweave.delta.statement.resolved import (
    ResolvedClause,
    ResolvedMerge,
    conjuncts,
    is_padded,
    spark_type,
)
from deltaweave.identifiers import column

if TYPE_CHECKING:
    import numpy

_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
# Rules of Spark's optimizer that keep a condition's value.
_SIMPLIFYING = (
    "ReplaceExpressions",
    "RewriteWithExpression",
    "ConstantFolding",
    "UnwrapCastInBinaryComparison",
    "LikeSimplification",
)
# Those that see that conjuncts contradict each other. What the last ones leave, the first simplify.
_FINDING_CONTRADICTIONS = 2 * (
    "NullPropagation",
    "ConstantFolding",
    "BooleanSimplification",
    "SimplifyConditionals",
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
    expressions = Jvm.of(merge.spark).catalyst.expressions
    parts = []
    for clause in clauses:
        condition = clause.node.condition()
        if condition.isEmpty():
            return None
        whole = _simplified(merge, condition.get(), _FINDING_CONTRADICTIONS)
        over_target = _conjuncts_over_target(merge, conjuncts(whole))
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


def _equality(merge: ResolvedMerge, conjunct: Expression) -> Equality | None:
    name = conjunct.getClass().getSimpleName()
    if name not in ("EqualTo", "EqualNullSafe"):
        return None
    left, right = conjunct.left(), conjunct.right()
    for own, other in ((left, right), (right, left)):
        column = _ordered_column(merge, own)
        if column is not None and _is_of_source(merge, other):
            value = Jvm.of(merge.spark).column_of(other)
            return Equality(*column, value, null_safe=name == "EqualNullSafe")
    return None


@dataclass(frozen=True)
class Assignment:
    """The value that an update assigns to a column of the evolved target schema.

    Attributes:
        is_column_itself: Whether that is the column as it is.
        is_deterministic: Whether computing it again has the same result.
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
    output = Jvm.iterate(merge.target_plan.output())
    attributes = dict(zip(merge.target_schema.names, output, strict=True))
    values = Jvm.iterate(clause.value_expressions())
    for name, value in zip(merge.evolved_schema.names, values, strict=True):
        yield value, name in attributes and bool(value.semanticEquals(attributes[name]))


def keeps_columns(merge: ResolvedMerge, clause: ResolvedClause, names: Sequence[str]) -> bool:
    """Return whether an update certainly leaves these target columns as they are.

    It does if it assigns the column itself, or what the ON condition compares the column with.
    """
    actions = list(Jvm.iterate(clause.node.resolvedActions()))
    output = dict(
        zip(merge.target_schema.names, Jvm.iterate(merge.target_plan.output()), strict=True)
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
        data_type = merge.target_schema[name].dataType
        if isinstance(data_type, FloatType | DoubleType) or is_collated(data_type):
            return False  # 0.0 equals -0.0 but is a different value
        return clause.kind == "matched" and any(
            (one.semanticEquals(column) and other.semanticEquals(value))
            or (other.semanticEquals(column) and one.semanticEquals(value))
            for one, other in equal
        )

    return all(keeps(name) for name in names)


class _BoundedColumn(NamedTuple):
    """A target column that statistics bound, and the type by which it is compared."""

    path: tuple[str, ...]
    data_type: DataType
    compared_as: DataType


def _ordered_column(merge: ResolvedMerge, expression: Expression) -> _BoundedColumn | None:
    """Return the target column of an expression in its order, if statistics bound it."""
    compared_as = spark_type(expression.dataType())
    kind = _class_name(expression)
    if kind == "Cast":
        # Casts of whole numbers to wider ones or to doubles keep their order.
        child, wider = expression.child(), expression.dataType().simpleString()
        own = child.dataType().simpleString()
        if own not in _WHOLE_NUMBERS:
            return None
        if wider not in (*_WHOLE_NUMBERS[_WHOLE_NUMBERS.index(own) :], "double"):
            return None
        expression, kind = child, _class_name(child)
    path, data_type = _field(merge, expression, kind)
    if data_type is None or not are_bounded(data_type):
        return None
    return _BoundedColumn(path, data_type, compared_as)


def _class_name(expression: Expression) -> str:
    return str(expression.getClass().getSimpleName())


class _Field(NamedTuple):
    """The path and type of a target column or nested field; None for other expressions."""

    path: tuple[str, ...] = ()
    data_type: DataType | None = None


def _field(merge: ResolvedMerge, expression: Expression, kind: str) -> _Field:
    if kind == "GetStructField":
        child = expression.child()
        path, struct = _field(merge, child, _class_name(child))
        if not isinstance(struct, StructType):
            return _Field()
        field = struct.fields[expression.ordinal()]
        return _Field((*path, field.name), field.dataType)
    if kind != "AttributeReference":
        return _Field()
    # By id, because the statement may spell the name in another case than the table.
    index = Jvm.of(merge.spark).attribute_index(merge.target_plan.output(), expression)
    if index < 0:
        return _Field()
    field = merge.target_schema.fields[index]
    if is_padded(field):
        return _Field()
    return _Field((field.name,), field.dataType)


def _is_of_source(merge: ResolvedMerge, expression: Expression) -> bool:
    """Return whether an expression reads the source alone and always has one value for a row."""
    references = expression.references()
    return bool(
        references.nonEmpty()
        and references.subsetOf(merge.source_attributes)
        and expression.deterministic()
    )


def _conjuncts_over_target(
    merge: ResolvedMerge, expressions: Sequence[Expression]
) -> list[JavaObject]:
    """Return the AND-ed parts of conditions that read target attributes alone, in simple form.

    An untyped NULL is left out: Spark refuses it when rows are joined. So are columns that Spark
    pads: the log has statistics of what files hold.
    """
    target = merge.target_attributes
    if any(map(is_padded, merge.target_schema.fields)):
        output = zip(Jvm.iterate(merge.target_plan.output()), merge.target_schema, strict=True)
        target = merge.attributes_of([each for each, field in output if not is_padded(field)])
    return [
        part
        for each in expressions
        if each.references().subsetOf(target) and each.dataType().simpleString() == "boolean"
        for part in conjuncts(_simplified(merge, each, _SIMPLIFYING))
    ]


def _simplified(merge: ResolvedMerge, condition: Expression, rules: Sequence[str]) -> JavaObject:
    """Simplify the condition by rules of Spark's optimizer.

    Delta compares statistics with literals alone. Analysis leaves `day >= '2024-01-01'` with a cast
    of text, `k < 10` over bigint with a cast of 10, and BETWEEN as its own expression.
    """
    catalyst = Jvm.of(merge.spark).catalyst
    plan = catalyst.plans.logical.Filter(condition, merge.target_plan)
    for rule in rules:
        simpler = Jvm.singleton(catalyst.optimizer, rule).apply(plan)
        # The operand of a BETWEEN may become a column of its own below.
        plan = simpler if simpler.getClass().getSimpleName() == "Filter" else plan
    return plan.condition()


@dataclass(frozen=True)
class Attribute:
    """A column of the source or the target, as a resolved statement knows it."""

    name: str
    data_type: DataType
    node: JavaObject

    @staticmethod
    def of(node: JavaObject) -> Attribute:
        """Convert Spark's AttributeReference."""
        return Attribute(str(node.name()), spark_type(node.dataType()), node)


@dataclass(frozen=True)
class TargetReads:
    """The columns that WHEN MATCHED clauses read.

    Attributes:
        computed: By the index of an update clause, which columns of the evolved schema it computes;
            the others are those of the target's row. Clauses that compute all are missing.
        target: The target's columns that conditions and computed values read.
        source: The source's columns that they read beside these; none if they read no column of the
            target.
        of_source_alone: The indexes of update clauses whose values read the source alone, while a
            condition or another clause reads the target. Their columns are not among `source`.
    """

    computed: Mapping[int, numpy.ndarray] = field(default_factory=dict)
    target: Sequence[Attribute] = ()
    source: Sequence[Attribute] = ()
    of_source_alone: frozenset[int] = frozenset()

    @property
    def takes_query(self) -> bool:
        """Whether clauses can only be evaluated over pairs of a target row and a source row."""
        return bool(self.target)

    @property
    def takes_old_rows(self) -> bool:
        """Whether new rows need any column of the rows that they replace."""
        return self.takes_query or bool(self.computed)

    def kept(self, clause: int, names: Sequence[str]) -> list[str]:
        """Return the columns of the evolved schema that a clause leaves as they are."""
        computed = self.computed.get(clause)
        if computed is None:
            return []
        return [name for name, is_computed in zip(names, computed, strict=True) if not is_computed]


def target_reads(merge: ResolvedMerge, *, checks_rows: bool) -> TargetReads:
    """Return what the WHEN MATCHED clauses read of the target.

    Args:
        checks_rows: Whether new rows are checked as a whole, so that columns that an update leaves
            as they are count as computed, too.
    """
    import numpy as np

    computed: dict[int, numpy.ndarray] = {}
    read, of_source_alone = [], set()
    of_table = merge.target_attributes
    for i, clause in enumerate(merge.clauses):
        if clause.kind != "matched":
            continue
        if clause.node.condition().isDefined():
            read.append(clause.node.condition().get())
        if clause.action != "update":
            continue
        values, reads_target = clause.value_expressions(), not merge.reads_source_alone(clause)
        if reads_target and not checks_rows:
            mask = ~np.array(columns_kept(merge, clause), dtype=bool)
            # No query gives a struct without fields: what computes nothing counts as computing all.
            if mask.any() and not mask.all():
                computed[i] = mask
                values = Jvm.of(merge.spark).select_where(values, mask)
                read_by_values = merge.attributes_of(list(Jvm.iterate(values)))
                reads_target = not read_by_values.intersect(of_table).isEmpty()
        if reads_target:
            read += list(Jvm.iterate(values))
        else:
            of_source_alone.add(i)
    both = merge.attributes_of(read)
    # The table's own attributes, since the others are spelled as in the statement.
    of_target = of_table.intersect(both)
    if of_target.isEmpty():
        return TargetReads(computed)
    of_source = merge.source_attributes.intersect(both)
    return TargetReads(
        computed,
        [Attribute.of(node) for node in Jvm.iterate(of_target)],
        [Attribute.of(node) for node in Jvm.iterate(of_source)],
        frozenset(of_source_alone),
    )
