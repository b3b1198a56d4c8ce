"""The columns of files from which each value of the target comes.

Spark's analyzed plan has the exact lineage, whatever names columns have on the way. An alias makes
an attribute from other attributes, a union from those in the same position, and a relation reads
it. The plan is read as JSON, that of the source and of all clauses together. Only the flow of
values counts: conditions, join keys and groupings are left out. Rows made in Python or on the
driver, checkpoints, subqueries in expressions and grouping sets have no origin, so the lineage is
correct but may be incomplete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deltaweave.delta.jvm import Jvm, Plan
from deltaweave.delta.statement.resolved import ResolvedMerge

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
