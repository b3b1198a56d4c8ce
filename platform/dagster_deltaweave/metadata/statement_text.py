"""The text of a MERGE in Dagster's UI, which cuts lines off instead of wrapping them."""

from __future__ import annotations

import re

from dagster import MetadataValue

_WIDTH = 50  # what the page of an asset has room for on a screen of 1,440 pixels
_WORDS = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s'"`])+""")


def statement_metadata(statement: str) -> dict[str, MetadataValue]:
    """Return the MERGE as it runs, for people, in lines that the UI shows as a whole."""
    return {"merge/statement": MetadataValue.md(f"```sql\n{wrapped(statement)}\n```")}


def wrapped(statement: str) -> str:
    """Break long lines at spaces outside of quotes and comments, so that the SQL stays the same."""
    lines = statement.split("\n")
    # A quote or comment that goes on in the next line would be broken inside.
    if "/*" in statement or any(_WORDS.sub("", line).strip() for line in lines):
        return statement
    return "\n".join(_wrapped_line(line) for line in lines)


def _wrapped_line(line: str) -> str:
    words = _WORDS.findall(line)
    if len(line) <= _WIDTH or " ".join(words) != line or "--" in line:
        return line
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)
