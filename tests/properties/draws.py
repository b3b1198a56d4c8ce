"""Draws merges: tables, sources and statements of every kind, each as a `MergeCase`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import assume
from hypothesis import strategies as st

from deltaweave.clauses import Clause, Kind
from deltaweave.identifiers import quoted
from tests.merge_cases.case import MergeCase, Rows
from tests.properties import column_types as types
from tests.properties.column_types import Type

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
CONFIGURATIONS = (
    {"spark.databricks.delta.merge.materializeSource": "none"},
    {"spark.databricks.delta.merge.materializeSource": "all"},
    {"spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled": "false"},
    {"spark.databricks.delta.schema.autoMerge.enabled": "true"},
    {"spark.sql.session.timeZone": "America/New_York"},
)
HOSTILE_NAMES = (
    "größe",
    "V",
    "_x",
    "a.b",
    "a`b",
    "it's",
    'say_"no"',
    "50%",
    "\\n",
    "select",
    "列\u2028",
    "_metadata",
    "delete",
)
# Names that need column mapping: files know the column by another name.
NAMES_TO_MAP = ("a b;c", "line\nbreak", "(k = 1)", "tab\t", " ")
FOLDERS = ("a b", "it's", "50%", "%20", "größe", "k=1", "a.b", "a`b", "select", "+&#?", "\\")
# Conditions that the analyzer refuses in some or all clauses. Not one that is no boolean: built-in
# MERGE notices it only where it comes to rewrite a file, the engine always.
MISTAKES = ("t.nope = 1", "s.nope IS NULL", "t.k = s.k", "k = 1", "rand() < 2")


@dataclass(frozen=True)
class Column:
    """A column of the target or the source.

    Attributes:
        plain: Its name.
        type: Its type.
        side: `t` or `s`.
        is_key: Whether ON conditions may set it equal to its like on the other side.
    """

    plain: str
    type: Type
    side: str = "t"
    is_key: bool = False

    @property
    def name(self) -> str:
        """Its name as SQL text spells it."""
        return self.plain if re.fullmatch(r"\w{1,2}", self.plain, re.ASCII) else quoted(self.plain)

    @property
    def ref(self) -> str:
        return f"{self.side}.{self.name}"


Columns = Sequence[Column]


def one_in(n: int) -> st.SearchStrategy[bool]:
    """True once in n draws; false where the example is shrunk."""
    return st.sampled_from([False] * (n - 1) + [True])


def some(
    items: st.SearchStrategy[tuple[object, ...]], *, usually: int, at_most: int
) -> st.SearchStrategy[Rows]:
    """Lists that usually have so many items or more; shrunk ones have fewer."""
    at_least = st.sampled_from([0] + [usually] * 5)
    return at_least.flatmap(lambda n: st.lists(items, min_size=n, max_size=at_most))


def ddl(columns: Columns) -> str:
    return ", ".join(f"{column.name} {column.type.sql}" for column in columns)


@st.composite
def merges(draw: st.DrawFn) -> MergeCase:
    """A merge of up to 8 source rows into up to 12 target rows."""
    mapped = draw(one_in(8))
    target = draw(target_columns(mapped=mapped))
    source = draw(source_columns(target))
    properties = draw(st.sampled_from([{}, VECTORS, FEED, VECTORS | FEED]))
    if any(column.plain == "_metadata" for column in target):
        # Delta 4.4 cannot read marked rows then: see
        # tests/deltaweave/engine/test_column_named_metadata.py.
        properties = {k: v for k, v in properties.items() if k not in VECTORS}
    rows = list(draw(some(row(target), usually=4, at_most=12)))
    if draw(st.booleans()):  # by the first key, so that a file's bounds tell it from others
        rows.sort(key=lambda values: (values[0] is not None, values[0]))
    setup: tuple[str, ...] = ()
    if rows and properties.items() >= VECTORS.items() and draw(st.booleans()):
        setup = (f"DELETE FROM {{target}} AS t WHERE {draw(tests_of(target))}",)
    if draw(one_in(8)):
        setup += ("OPTIMIZE {target}",)  # files with statistics of this writer
    evolution = draw(one_in(3))
    return MergeCase(
        name="drawn",
        target=rows,
        source=draw(source_rows(source)),
        clauses=draw(clauses(target, source, evolution=evolution)),
        expected=(),  # what built-in MERGE makes of it
        on=draw(on_conditions(target, source)),
        target_schema=ddl(target),
        source_schema=ddl(source),
        # A first write to a path cannot switch on column mapping beside a change feed.
        target_ddl=ddl(target) if mapped else None,
        files=draw(st.integers(1, 5)),
        partition_by=draw(partitions(target)),
        properties=properties | (COLUMN_MAPPING if mapped else {}),
        setup=setup,
        conf=draw(st.sampled_from(CONFIGURATIONS)) if draw(one_in(6)) else {},
        with_schema_evolution=evolution,
        folder=draw(st.sampled_from(FOLDERS)) if draw(one_in(8)) else "table",
    )


@st.composite
def merges_of_exact_keys(draw: st.DrawFn) -> MergeCase:
    """A merge of exact keys without clauses for rows that are not in the source, as on the driver.

    In half of them, the source row alone says what happens.
    """
    mapped = draw(one_in(8))
    target = draw(target_columns(mapped=mapped))
    exact = [column for column in target if column.is_key and column.type in types.EXACT]
    assume(exact and all(column.plain != "_metadata" for column in target))
    source = [draw(wider_key(replace(column, side="s"))) for column in target]
    of_source_alone = draw(st.booleans())
    kinds: list[Kind] = draw(st.sampled_from([["matched"], ["not_matched"], [], []])) + draw(
        st.sampled_from([["matched", "not_matched"], ["matched"], ["not_matched"]])
    )
    kinds.sort()
    drawn = [
        draw(
            clause(
                kind,
                target,
                (source,) if of_source_alone or kind == "not_matched" else (target, source),
                is_last=place + 1 == len(kinds) or kinds[place + 1] != kind,
                evolution=False,
            )
        )
        for place, kind in enumerate(kinds)
    ]
    equals = draw(st.sampled_from(["=", "=", "<=>"]))
    rows = list(draw(some(row(target), usually=4, at_most=12)))
    vectors = draw(st.booleans())
    deletes = rows and vectors and draw(st.booleans())
    partitioned_by = draw(partitions(target))
    return MergeCase(
        name="drawn",
        target=rows,
        source=draw(source_rows(source)),
        # An update of some columns would keep what the target has in the others.
        clauses=tuple(
            Clause(each.kind, "update_all", each.condition)
            if of_source_alone and each.action == "update"
            else each
            for each in drawn
        ),
        expected=(),
        on=" AND ".join(f"t.{column.name} {equals} s.{column.name}" for column in exact),
        target_schema=ddl(target),
        source_schema=ddl(source),
        target_ddl=ddl(target) if mapped else None,
        files=draw(st.integers(1, 5)),
        properties=(VECTORS if vectors else {})
        | (COLUMN_MAPPING if mapped else {})
        | (FEED if draw(st.booleans()) else {}),
        setup=(f"DELETE FROM {{target}} AS t WHERE {draw(tests_of(target))}",) if deletes else (),
        partition_by=partitioned_by,
        conf=draw(st.sampled_from(CONFIGURATIONS)) if draw(one_in(6)) else {},
        folder=draw(st.sampled_from(FOLDERS)) if draw(one_in(8)) else "table",
    )


@st.composite
def wider_key(draw: st.DrawFn, column: Column) -> Column:
    """The column; a key of whole numbers is sometimes of a wider type."""
    wider = types.WIDER.get(column.type, ()) if column.is_key else ()
    return (
        replace(column, type=draw(st.sampled_from(wider))) if wider and draw(one_in(3)) else column
    )


@st.composite
def target_columns(draw: st.DrawFn, *, mapped: bool) -> list[Column]:
    """One or two keys and one to five values."""
    keys = draw(st.lists(st.sampled_from(types.KEYS), min_size=1, max_size=2))
    values = draw(st.lists(st.sampled_from(types.ALL), min_size=1, max_size=5))
    columns = [Column(name, of, is_key=True) for name, of in zip("kj", keys, strict=False)]
    columns += [Column(f"v{i}", of) for i, of in enumerate(values)]
    if draw(one_in(3)):
        names = HOSTILE_NAMES + NAMES_TO_MAP if mapped else HOSTILE_NAMES
        hostile = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        places = draw(st.permutations(range(len(columns))))
        for place, name in zip(places, hostile, strict=False):
            columns[place] = replace(columns[place], plain=name)
    return columns


@st.composite
def source_columns(draw: st.DrawFn, target: Columns) -> list[Column]:
    """The target's columns; some may be missing, new, of another type or place or case."""
    columns = [replace(column, side="s") for column in target]
    if draw(one_in(6)):
        place = draw(st.integers(0, len(columns) - 1))
        others = types.STORED_AS.get(columns[place].type)
        if others:
            columns[place] = replace(columns[place], type=draw(st.sampled_from(others)))
    values = [column for column in columns if not column.is_key]
    if draw(one_in(6)):
        columns.remove(draw(st.sampled_from(values)))
    if draw(one_in(3)):
        columns.append(Column("x", draw(st.sampled_from(types.ALL)), "s"))
    if draw(one_in(6)):
        columns = draw(st.permutations(columns))
    if draw(one_in(8)):
        columns = [replace(column, plain=column.plain.upper()) for column in columns]
    return list(columns)


def row(columns: Columns) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(*[st.sampled_from(column.type.values) for column in columns])


@st.composite
def source_rows(draw: st.DrawFn, columns: Columns) -> Rows:
    """Rows with a key each, mostly: a repeated key is an error in most statements."""
    rows = draw(some(row(columns), usually=3, at_most=8))
    if draw(one_in(4)):
        return rows
    keys = [place for place, column in enumerate(columns) if column.is_key]
    by_key = {str([row[place] for place in keys[:1]]): row for row in rows}
    return list(by_key.values())


@st.composite
def partitions(draw: st.DrawFn, target: Columns) -> tuple[str, ...]:
    fit = [column for column in target if column.type.partitions]
    if not fit or draw(st.sampled_from([True, True, False])):
        return ()
    return (draw(st.sampled_from(fit)).plain,)


@st.composite
def on_conditions(draw: st.DrawFn, target: Columns, source: Columns) -> str:
    """A match condition: equal keys, and sometimes more, or something else."""
    names = [column.name for column in target if column.is_key]
    keys = names if draw(st.booleans()) else names[:1]
    equal = draw(st.sampled_from(["=", "=", "<=>"]))
    by_key = " AND ".join(f"t.{key} {equal} s.{key}" for key in keys)
    shape = draw(
        st.sampled_from(["equal", "equal", "equal", "equal", "more", "more", "range", "or", "none"])
    )
    if shape == "more":
        columns = [*target] if draw(st.booleans()) else [*source]
        return f"{by_key} AND ({draw(tests_of(columns))})"
    if shape == "range":
        key = keys[0]
        low = draw(st.sampled_from([f"t.{key} < s.{key}", f"s.{key} <= t.{key}"]))
        return f"{low} AND ({draw(tests_of([*target, *source]))})"
    if shape == "or":
        return f"({by_key}) OR ({draw(conditions(target, source))})"
    if shape == "none":
        constants = ["false", "true", "CAST(NULL AS BOOLEAN)", "NULL"]
        nulls = [f"t.{names[0]} IS NULL", f"s.{names[0]} IS NULL"]
        return draw(st.sampled_from([*constants, *nulls]))
    return by_key


@st.composite
def tests_of(draw: st.DrawFn, columns: Columns) -> str:
    """A condition on one column."""
    column = draw(st.sampled_from(list(columns)))
    return draw(st.sampled_from(column.type.tests)).format(column.ref)


@st.composite
def conditions(draw: st.DrawFn, *sides: Columns) -> str:
    """A condition over the columns that a clause may read, of one or two parts."""
    columns = [column for side in sides for column in side]
    shape = draw(st.sampled_from(["one", "one", "two", "across", "constant", "mistake"]))
    one = draw(tests_of(columns))
    if shape == "two":
        joined = draw(st.sampled_from(["({}) AND ({})", "({}) OR ({})", "NOT ({}) AND ({})"]))
        return joined.format(one, draw(tests_of(columns)))
    if shape == "constant" and draw(st.booleans()):
        return draw(st.sampled_from(["true", "false", "CAST(NULL AS BOOLEAN)"]))
    if shape == "mistake" and draw(one_in(4)):
        return draw(st.sampled_from(MISTAKES))
    if shape == "across" and len(sides) > 1:
        target, source = sides
        alike = [
            (left.ref, right.ref)
            for left in target
            for right in source
            if left.type == right.type and left.type.ordered
        ]
        if alike:
            left, right = draw(st.sampled_from(alike))
            operator = draw(st.sampled_from(["=", "<>", "<", ">=", "<=>"]))
            return f"{left} {operator} {right}"
    return one


@st.composite
def clauses(
    draw: st.DrawFn, target: Columns, source: Columns, *, evolution: bool
) -> tuple[Clause, ...]:
    """One to five clauses, in the order that the grammar asks for."""
    kinds: list[Kind] = ["matched", "not_matched", "not_matched_by_source"]
    drawn = draw(
        st.lists(st.sampled_from([kinds[0], kinds[0], kinds[1], *kinds]), min_size=1, max_size=5)
    )
    drawn.sort(key=kinds.index)
    readable = {
        "matched": (target, source),
        "not_matched": (source,),
        "not_matched_by_source": (target,),
    }
    return tuple(
        draw(
            clause(
                kind,
                target,
                readable[kind],
                is_last=place + 1 == len(drawn) or drawn[place + 1] != kind,
                evolution=evolution,
            )
        )
        for place, kind in enumerate(drawn)
    )


@st.composite
def clause(
    draw: st.DrawFn,
    kind: Kind,
    target: Columns,
    readable: tuple[Columns, ...],
    *,
    is_last: bool,
    evolution: bool,
) -> Clause:
    """A clause; the last of its kind may have no condition, others only by mistake."""
    unconditional = draw(st.booleans()) if is_last else draw(one_in(50))
    condition = None if unconditional else draw(conditions(*readable))
    if kind == "not_matched":
        action = draw(st.sampled_from(["insert_all", "insert"]))
    elif kind == "matched":
        action = draw(st.sampled_from(["update_all", "update", "delete"]))
    else:
        action = draw(st.sampled_from(["update", "delete"]))
    if action not in ("insert", "update"):
        return Clause(kind, action, condition)
    assigned = list(target)
    if evolution and kind != "not_matched_by_source":  # columns that the target is to gain
        known = {column.name.lower() for column in target}
        assigned += [c for c in readable[-1] if c.name.lower() not in known]
    chosen = draw(
        st.lists(st.sampled_from(assigned), min_size=1, unique_by=lambda column: column.name)
    )
    columns = [column for side in readable for column in side]
    assignments = {}
    for column in chosen:
        if action == "update" and column.type in types.FIELDS and draw(st.booleans()):
            field, of = types.FIELDS[column.type]
            assignments[f"{column.name}.{field}"] = draw(values(of, columns))
        else:
            assignments[column.name] = draw(values(column.type, columns))
    return Clause(kind, action, condition, assignments)


@st.composite
def values(draw: st.DrawFn, of: Type, columns: Columns) -> str:
    """An expression of a type, or one that can be stored as it."""
    fit = [c for c in columns if c.type == of or c.type in types.STORED_AS.get(of, ())]
    shape = draw(st.sampled_from(["column", "column", "term", "constant", "special"]))
    if shape == "special":
        return draw(st.sampled_from(["NULL"] * 6 + ["DEFAULT", "s.nope"]))
    if fit and shape == "column":
        return draw(st.sampled_from(fit)).ref
    same = [c for c in fit if c.type == of]
    if same and shape == "term":
        return draw(st.sampled_from(of.terms)).format(draw(st.sampled_from(same)).ref)
    return draw(st.sampled_from(of.constants))
