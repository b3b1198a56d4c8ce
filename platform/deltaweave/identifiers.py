"""Names of columns and tables, and strings, as SQL spells them."""

from __future__ import annotations

# Columns that the engine adds while it works; no table or source may have one of such a name.
RESERVED_PREFIX = "__deltaweave_"


def quoted(name: str) -> str:
    """One name in back quotes, whatever characters it holds.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    r"""A string as a constant.

    >>> print(literal("it's"))
    'it\'s'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
