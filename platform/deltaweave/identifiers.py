"""Names of columns and tables, and strings, as SQL spells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

# Prefix of columns that the engine adds; no table or source may have a column with it.
RESERVED_PREFIX = "__deltaweave_"


def quoted(name: str) -> str:
    """One name in back quotes, whatever characters it holds.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """A name without its back quotes, if it has any.

    >>> unquoted("`a``b`"), unquoted("a")
    ('a`b', 'a')
    """
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def column(*path: str) -> Column:
    """A column, or a field by the path to it; the names are taken literally.

    `F.col` and `select` read names as SQL: a dot means a field, and a back quote is an error.

    >>> column("a.b")  # the column `a.b`
    >>> column("t", "a.b")  # of the table `t`, or of the struct `t`
    """
    from pyspark.sql import functions as F  # definitions that only spell names load without it

    return F.col(".".join(map(quoted, path)))


def literal(text: str) -> str:
    r"""A string as a constant.

    A dollar sign before a brace is written by its code point, because Spark replaces `${…}` by a
    setting's value before it parses any text.

    >>> print(literal("it's"))
    'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("${", "\\u0024{") + "'"


def table_name(path_or_name: str) -> str:
    """What SQL calls a table given by path or name: a path becomes `` delta.`path` ``."""
    if "/" not in path_or_name or "`" in path_or_name:
        return path_or_name
    return f"delta.`{path_or_name}`"
