"""What a MERGE says before it is analyzed, when its target need not exist.

Names are compared in lower case. A name without a table is the source's if the source has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.delta.jvm import Expression, JavaObject, Jvm, Plan, translated
from deltaweave.delta.statement.analyzer import ParsedMerge, statement_plan
from deltaweave.delta.statement.resolved import conjuncts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class EqualColumns(NamedTuple):
    """A conjunct of the ON condition: a column of the target equals one of the source.

    Attributes:
        target: The target's column, in lower case.
        source: The source's column, in lower case.
        null_safe: Whether null equals null (`<=>`).
    """

    target: str
    source: str
    null_safe: bool


@dataclass(frozen=True)
class MergeOutline:
    """What a MERGE says before it is analyzed.

    Attributes:
        source: The rows that it derives from the changes in USING; None if it takes these.
        equal: The equalities that hold for each row that it inserts or updates; none in a WITH,
            whose rows are not known.
        acts_by_source: Whether it has WHEN NOT MATCHED BY SOURCE clauses.
        inserts: Whether it has clauses that insert.
        updates: Whether it has clauses that update matched rows.
        changes_matches: Whether an update may change what the ON condition reads.
        never_matches: Whether the ON condition is a constant that is not true.
    """

    source: DataFrame | None
    equal: tuple[EqualColumns, ...]
    acts_by_source: bool
    inserts: bool
    updates: bool
    changes_matches: bool
    never_matches: bool


class _Name(NamedTuple):
    """A column or a field: whose it is, and its path in lower case."""

    is_of_source: bool
    path: tuple[str, ...]


class _Names(NamedTuple):
    """The names by which a MERGE's clauses call its tables, and the source's columns."""

    target: str
    source: str
    columns: frozenset[str]

    def of(self, expression: Expression) -> _Name | None:
        """Return what an expression names; None if it is more than a name."""
        if _kind(expression) != "UnresolvedAttribute":
            return None
        first, *rest = (str(each).lower() for each in Jvm.iterate(expression.nameParts()))
        if rest and first in (self.source, self.target):
            return _Name(first == self.source, tuple(rest))
        return _Name(first in self.columns, (first, *rest))


def outline(parsed: ParsedMerge, changes: str, columns: Sequence[str]) -> MergeOutline | None:
    """Return what a MERGE says before it is analyzed; None for another statement.

    Args:
        parsed: The statement.
        changes: The name of the temporary view of its source rows.
        columns: Their columns.
    """
    merge = statement_plan(parsed)
    if _kind(merge) != "MergeIntoTable":
        return None
    source, is_within = None, merge is not parsed.plan
    if not is_within and _relation(merge.sourceTable()) != [changes]:
        with translated(parsed.table):
            source = Jvm.of(parsed.spark).data_frame_of_plan(merge.sourceTable())
    given = frozenset(map(str.lower, columns if source is None else source.columns))
    names = _Names(_alias(merge.targetTable()), _alias(merge.sourceTable()), given)
    unmatched = [*Jvm.iterate(merge.notMatchedActions())]
    condition = merge.mergeCondition()
    matched = Jvm.iterate(merge.matchedActions())
    updates = [each for each in matched if _kind(each) != "DeleteAction"]
    read = _target_columns(condition, names)
    return MergeOutline(
        source=source,
        equal=tuple(
            each
            for each in _equalities(condition, names)
            if not is_within
            and all(_keeps(action, each, names) for action in (*updates, *unmatched))
        ),
        acts_by_source=not merge.notMatchedBySourceActions().isEmpty(),
        inserts=bool(unmatched),
        updates=bool(updates),
        changes_matches=any(read & _written(action, names) for action in updates),
        never_matches=bool(condition.foldable()) and condition.eval(None) is not True,
    )


def _kind(node: JavaObject) -> str:
    return str(node.getClass().getSimpleName())


def _relation(table: Plan) -> list[str] | None:
    """Return the name of a table or view, in its parts; None for a query."""
    while _kind(table) == "SubqueryAlias":
        table = table.child()
    if _kind(table) != "UnresolvedRelation":
        return None
    return [str(each) for each in Jvm.iterate(table.multipartIdentifier())]


def _alias(table: Plan) -> str:
    """Return the name by which clauses call a table."""
    if _kind(table) == "SubqueryAlias":
        return str(table.alias()).lower()
    return (_relation(table) or [""])[-1].lower()


def _equalities(condition: Expression, names: _Names) -> Iterator[EqualColumns]:
    for conjunct in conjuncts(condition):
        if (kind := _kind(conjunct)) not in ("EqualTo", "EqualNullSafe"):
            continue
        sides = names.of(conjunct.left()), names.of(conjunct.right())
        paths = {each.is_of_source: each.path for each in sides if each and len(each.path) == 1}
        if len(paths) == 2:  # one of each table
            yield EqualColumns(*paths[False], *paths[True], kind == "EqualNullSafe")


def _keeps(action: JavaObject, equal: EqualColumns, names: _Names) -> bool:
    """Return whether an equality holds for the rows that a clause inserts or updates."""
    kind = _kind(action)
    if "Star" in kind:
        return equal.target == equal.source
    own = [_Name(True, (equal.source,))]
    if is_update := kind == "UpdateAction":
        own.append(_Name(False, (equal.target,)))
    given = [
        path == (equal.target,) and names.of(value) in own
        for path, value in _assigned(action, names)
        if path[0] == equal.target
    ]
    return all(given) and (is_update or bool(given))


def _assigned(action: JavaObject, names: _Names) -> Iterator[tuple[tuple[str, ...], Expression]]:
    """Yield the path of each column or field that a clause assigns, and its value."""
    for each in Jvm.iterate(action.assignments()):
        path = [str(part).lower() for part in Jvm.iterate(each.key().nameParts())]
        yield tuple(path[1:] if len(path) > 1 and path[0] == names.target else path), each.value()


def _written(action: JavaObject, names: _Names) -> set[str]:
    """Return the target's columns that an update writes."""
    if "Star" in _kind(action):
        return set(names.columns)
    return {path[0] for path, _ in _assigned(action, names)}


def _target_columns(condition: Expression, names: _Names) -> set[str]:
    """Return the target's columns that a condition reads."""
    read = (names.of(leaf) for leaf in Jvm.iterate(condition.collectLeaves()))
    return {each.path[0] for each in read if each and not each.is_of_source}
