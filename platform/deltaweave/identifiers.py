"""Names of columns and tables as SQL spells them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """One name in back quotes, whatever characters it holds.

    >>> quoted("a.b")
    '`a.b`'
    """
    return "`" + name.replace("`", "``") + "`"
