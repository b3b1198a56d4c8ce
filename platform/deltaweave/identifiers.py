"""Names of columns and tables, and strings, as SQL spells them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import Column

# Prefix of columns that the engine adds; no table or source may have a column with it.
RESERVED_PREFIX = "__deltaweave_"


# What Spark takes for the name of a setting or, after `env:`, of an environment variable.
_SETTING = re.compile(r"\$\{\S+?\}")
# Characters that a string token of SQL cannot hold as they are, in every session.
_CODED = re.compile(r"(['\\]|\$(?=\{))")


def quoted(name: str) -> str:
    """Put one name in back quotes for SQL text, whatever else it holds.

    >>> quoted("a.b")
    '`a.b`'

    Raises:
        StatementError: It holds `${…}`. Before Spark parses any text, it replaces that by the value
            of a setting or, as in `${env:…}`, of an environment variable, also between back quotes:
            the statement would use another name, and its errors would show the value.
    """
    if is_replaced(name):
        raise StatementError(
            f"SQL text cannot hold the name {name!r}: Spark puts in place of ${{…}} in it the "
            "value of a setting or of an environment variable.",
            operation="naming a column or table",
            hint="Rename it, or leave the column out.",
        )
    return back_quoted(name)


def is_replaced(name: str) -> bool:
    """Return whether Spark replaces part of a name in SQL text (see `quoted`)."""
    return _SETTING.search(name) is not None


def back_quoted(name: str) -> str:
    """Put one name in back quotes for functions of DataFrames, which replace nothing in it."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """Strip a name's back quotes, if it has any.

    >>> unquoted("`a``b`"), unquoted("a")
    ('a`b', 'a')
    """
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def column(*path: str) -> Column:
    """Build a column, or a field by the path to it; the names are taken literally.

    `F.col` and `select` read names as SQL: a dot means a field, and a back quote is an error.

    >>> column("a.b")  # the column `a.b`
    >>> column("t", "a.b")  # of the table `t`, or of the struct `t`
    """
    from pyspark.sql import functions as F  # definitions that only spell names load without it

    return F.col(".".join(map(back_quoted, path)))


def spelled_as(columns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Spell names of columns as these columns do; a name of none of them stays as it is.

    Names that differ in case alone are the same, as everywhere in SQL.

    >>> spelled_as(["ID", "Name"], ["id", "Name", "other"])
    ['ID', 'Name', 'other']
    """
    exact = dict.fromkeys(columns)  # only with spark.sql.caseSensitive, two may differ in case
    known = {name.lower(): name for name in exact}
    return [name if name in exact else known.get(name.lower(), name) for name in names]


def literal(text: str) -> str:
    """Write a string as SQL that means it whatever the session sets.

    What `spark.sql.parser.escapedStringLiterals` reads in two ways is named by its code point, and
    so is the dollar sign of `${…}`, which Spark replaces by a setting's value before it parses any
    text.

    >>> print(literal("it is"), literal("it's"), literal("${x}"))
    'it is' concat('it', chr(39), 's') concat(chr(36), '{x}')
    """
    parts = _CODED.split(text)  # those at odd indexes are coded
    if len(parts) == 1:
        return f"'{text}'"
    written = [
        f"chr({ord(part)})" if index % 2 else f"'{part}'"
        for index, part in enumerate(parts)
        if part
    ]
    return f"concat({', '.join(written)})"


def string_token(text: str) -> str:
    r"""Write a string as a token of SQL, for a place in a statement that takes no expression.

    Spark reads escapes in such places (properties, locations) whatever the session sets.

    >>> print(string_token("it's"))
    'it\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + escaped.replace("${", "\\u0024{") + "'"


def is_path(path_or_name: str) -> bool:
    """Return whether a table is given by its path, and not by a catalog's name as SQL spells it.

    >>> is_path("/lake/orders"), is_path("sales.orders"), is_path("delta.`/lake/orders`")
    (True, False, False)
    """
    return "/" in path_or_name and "`" not in path_or_name


def table_name(path_or_name: str) -> str:
    """Return the SQL name of a table given by path or name: a path becomes `` delta.`path` ``.

    Raises:
        StatementError: The path holds `${…}` (`quoted`).
    """
    return f"delta.{quoted(path_or_name)}" if is_path(path_or_name) else path_or_name
