"""Rows of many columns, of many levels, and statements of many clauses."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)

COLUMNS = [f"c{i}" for i in range(300)]
WIDE = "k INT, " + ", ".join(f"{name} INT" for name in COLUMNS)
LEVELS = 10
DEEP = reduce(lambda inner, _: f"STRUCT<b: INT, a: {inner}>", range(LEVELS), "INT")
DEEP_EVOLVED = reduce(lambda inner, _: f"STRUCT<b: INT, a: {inner}>", range(LEVELS - 1), "{}")


def wide(key: int, value: int) -> tuple[int, ...]:
    return (key, *[value] * len(COLUMNS))


def deep(innermost: Any, levels: int = LEVELS) -> Any:
    return reduce(lambda inner, level: (level, inner), range(levels), innermost)


CASES = (
    MergeCase(
        name="three_hundred_columns_by_stars",
        target=[wide(1, 10), wide(2, 20)],
        target_schema=WIDE,
        source=[wide(1, 100), wide(3, 300)],
        source_schema=WIDE,
        clauses=(update_all(), insert_all()),
        expected=[
            wide(1, 100),  # updated
            wide(2, 20),
            wide(3, 300),  # inserted
        ],
    ),
    MergeCase(
        name="two_of_three_hundred_columns",
        target=[wide(1, 10), wide(2, 20)],
        target_schema=WIDE,
        source=[(1, 100), (3, 300)],
        clauses=(update({"c7": "s.v", "c299": "t.c0"}), insert({"k": "s.k", "c299": "s.v"})),
        expected=[
            (1, *[10] * 7, 100, *[10] * 292),  # updated: c7 alone looks changed
            wide(2, 20),
            (3, *[None] * 299, 300),  # inserted
        ],
    ),
    MergeCase(
        name="innermost_field_of_ten_levels",
        target=[(1, deep(10)), (2, deep(20)), (3, None)],
        target_schema=f"k INT, a {DEEP}",
        source=[(1, 100)],
        clauses=(
            update({"a" + ".a" * LEVELS: "s.v"}),
            by_source_update({"a" + ".a" * LEVELS: "t.a" + ".a" * LEVELS + " + 1"}, "t.k = 2"),
        ),
        expected=[
            (1, deep(100)),  # updated
            (2, deep(21)),  # updated, not matched by source
            (3, None),
        ],
    ),
    MergeCase(
        name="new_field_under_ten_levels",
        target=[(1, deep((0, 10), LEVELS - 1)), (2, None)],
        target_schema="k INT, a " + DEEP_EVOLVED.format("STRUCT<b: INT, a: INT>"),
        source=[(1, deep((1, 100, "x"), LEVELS - 1)), (3, deep(None, LEVELS - 1))],
        source_schema="k INT, a " + DEEP_EVOLVED.format("STRUCT<b: INT, a: INT, c: STRING>"),
        with_schema_evolution=True,
        clauses=(update_all(), insert_all()),
        expected=[
            (1, deep((1, 100, "x"), LEVELS - 1)),  # updated
            (2, None),
            (3, deep(None, LEVELS - 1)),  # inserted
        ],
    ),
    MergeCase(
        name="twelve_clauses",
        target=[(i, i) for i in range(10)],
        source=[(i, i) for i in range(2, 13)],
        clauses=(
            *[update({"v": str(100 + i)}, f"t.k = {i}") for i in range(4, 8)],
            delete(),
            *[insert({"k": "s.k", "v": str(200 + i)}, f"s.k = {i}") for i in (10, 11, 12)],
            *[by_source_update({"v": str(300 + i)}, f"t.k = {i}") for i in range(4)],
        ),
        expected=[
            (0, 300),  # updated, not matched by source, by the clause of its key
            (1, 301),  # the same
            *[(i, 100 + i) for i in range(4, 8)],  # updated by the clause of its key
            *[(i, 200 + i) for i in (10, 11, 12)],  # inserted by the clause of its key
        ],  # the rows of 2, 3, 8 and 9 deleted
    ),
    MergeCase(
        name="texts_of_a_hundred_thousand_letters",
        target=[(1, "a" * 100_000), (2, "\u00e9" * 100_000)],
        target_schema="k INT, v STRING",
        source=[(1, "b" * 100_000), (3, "c")],
        source_schema="k INT, v STRING",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, "b" * 100_000),  # updated
            (2, "\u00e9" * 100_000),
            (3, "c"),  # inserted
        ],
    ),
)
