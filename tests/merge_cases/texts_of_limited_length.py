"""CHAR(n) and VARCHAR(n): padding, trailing spaces, and texts that are too long."""

from __future__ import annotations

from tests.merge_cases.case import (
    MergeCase,
    by_source_update,
    insert,
    insert_all,
    update,
    update_all,
)

TEXT = "k INT, c STRING"
CHAR = "k INT, c CHAR(3)"
VARCHAR = "k INT, c VARCHAR(3)"
TOO_LONG = "DELTA_EXCEED_CHAR_VARCHAR_LIMIT"

CASES = (
    MergeCase(
        name="char_is_padded_by_every_kind_of_clause",
        target=[(1, "a"), (2, "b"), (3, None)],
        target_schema=TEXT,
        target_ddl=CHAR,
        source=[(1, 0), (4, 0)],
        clauses=(
            update({"c": "'x'"}),
            insert({"k": "s.k", "c": "'\u00fc'"}),
            by_source_update({"c": "'y'"}, "t.k = 2"),
        ),
        expected=[
            (1, "x  "),  # updated
            (2, "y  "),  # updated, not matched by source
            (3, None),
            (4, "\u00fc  "),  # inserted: characters are counted, not bytes
        ],
    ),
    MergeCase(
        name="varchar_key_and_spaces_within_its_length",
        target=[("a", 10), ("a ", 20)],
        target_schema="k STRING, v INT",
        target_ddl="k VARCHAR(3), v INT",
        source=[("a ", 200), ("b  ", 300)],
        source_schema="k STRING, v INT",
        clauses=(update_all("t.k <> 'a'"), insert_all()),
        expected=[
            ("a", 10),
            ("a ", 200),  # updated: a space at the end counts
            ("b  ", 300),  # inserted
        ],
    ),
    MergeCase(
        name="spaces_at_the_end_beyond_varchar_are_an_error",
        target=[(1, "a")],
        target_schema=TEXT,
        target_ddl=VARCHAR,
        source=[(1, "abc   ")],
        source_schema=TEXT,
        clauses=(update_all(),),
        error=TOO_LONG,
        why="standard SQL, and Spark's INSERT, cut them",
    ),
    MergeCase(
        name="inserted_text_longer_than_char_is_an_error",
        target=[(1, "a")],
        target_schema=TEXT,
        target_ddl=CHAR,
        source=[(2, "abcd")],
        source_schema=TEXT,
        clauses=(insert_all(),),
        error=TOO_LONG,
    ),
    MergeCase(
        name="by_source_text_longer_than_varchar_is_an_error",
        target=[(1, "abc")],
        target_schema=TEXT,
        target_ddl=VARCHAR,
        source=[(2, "x")],
        source_schema=TEXT,
        clauses=(by_source_update({"c": "t.c || 'd'"}),),
        error=TOO_LONG,
    ),
    MergeCase(
        name="text_longer_than_varchar_inside_a_struct_is_an_error",
        target=[(1, ("abc",))],
        target_schema="k INT, a STRUCT<c: STRING>",
        target_ddl="k INT, a STRUCT<c: VARCHAR(3)>",
        source=[(1, ("abcd",))],
        source_schema="k INT, a STRUCT<c: STRING>",
        clauses=(update_all(),),
        error=TOO_LONG,
    ),
    MergeCase(
        name="char_inside_an_array_is_padded",
        target=[(1, ["a"])],
        target_schema="k INT, a ARRAY<STRING>",
        target_ddl="k INT, a ARRAY<CHAR(2)>",
        source=[(1, ["b", None, "cd"]), (2, [])],
        source_schema="k INT, a ARRAY<STRING>",
        clauses=(update_all(), insert_all()),
        expected=[
            (1, ["b ", None, "cd"]),  # updated
            (2, []),  # inserted
        ],
    ),
)
