"""Long lines of a MERGE, which the UI would cut off."""

from __future__ import annotations

import pytest

from dagster_deltaweave.metadata.metadata_entries import statement_metadata, wrapped


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("MERGE INTO orders AS t", ["MERGE INTO orders AS t"]),
        (
            "WHEN NOT MATCHED AND (s.state <> 'cancelled') THEN INSERT *",
            ["WHEN NOT MATCHED AND (s.state <> 'cancelled')", "  THEN INSERT *"],
        ),
        (
            "WHEN MATCHED AND s.reason = 'a reason of  several words, and it\\'s long' THEN DELETE",
            [
                "WHEN MATCHED",
                "  AND s.reason =",
                "  'a reason of  several words, and it\\'s long'",
                "  THEN DELETE",
            ],
        ),
        (
            "WHEN MATCHED THEN UPDATE SET total = t.total + s.total, number = t.number + s.number",
            [
                "WHEN MATCHED THEN UPDATE SET",
                "  total = t.total + s.total,",
                "  number = t.number + s.number",
            ],
        ),
        (
            f"ON {'x' * 60} = {'y' * 60}",
            ["ON", f"  {'x' * 60}", "  =", f"  {'y' * 60}"],
        ),
        ("-- a comment that is longer than the page of an asset has room for", None),
        ("WHEN MATCHED /* a comment in a line that is long enough */ THEN DELETE", None),
        ("WHEN MATCHED AND s.reason = 'a text that goes on in the next line of it", None),
        ("WHEN MATCHED  AND  two = spaces  between  the  words  of  a  line  THEN DELETE", None),
    ],
)
def test_long_lines_are_broken_where_that_leaves_the_sql_as_it_is(
    line: str, lines: list[str] | None
) -> None:
    assert wrapped(line).split("\n") == (lines or [line])
    assert wrapped(f"{line}\n{line}") == f"{wrapped(line)}\n{wrapped(line)}"


def test_a_text_of_several_lines_is_left_as_it_is() -> None:
    line = "words without quotes that are in the middle of a text of several lines"
    statement = f"ON t.id = '\n{line}\n'"
    assert wrapped(statement) == statement


def test_a_statement_is_shown_as_sql() -> None:
    shown = statement_metadata("MERGE INTO t")["merge/statement"].value
    assert shown == "```sql\nMERGE INTO t\n```"
