"""Names of columns and tables, and strings, as SQL spells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

# Columns that the engine adds while it works; no table or source may have one of such a name.
RESERVED_PREFIX = "__deltaweave_"


def quoted(name: str) -> str:
    """One name in back quotes, whatever characters it holds.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """The name that SQL spells so, with or without back quotes.

    >>> unquoted("`a``b`"), unquoted("a")
    ('a`b', 'a')
    """
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def column(*path: str) -> Column:
    """The column of this name, or a field in it by the names down to it, as they are.

    `F.col` and `select` read a name as SQL: a dot in it asks for a field, a back quote is an error.

    >>> column("a.b")  # the column `a.b`
    >>> column("t", "a.b")  # of the table `t`, or of the struct `t`
    """
    from pyspark.sql import functions as F  # definitions that only spell names load without it

    return F.col(".".join(map(quoted, path)))


def literal(text: str) -> str:
    r"""A string as a constant.

    A dollar sign before a brace is spelt by its number: Spark puts the value of a setting in the
    place of `${…}` before it parses any text.

    >>> print(literal("it's"))
    'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("${", "\\u0024{") + "'"
