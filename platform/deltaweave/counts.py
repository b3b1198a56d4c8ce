"""Counts with their noun, in messages."""

from __future__ import annotations


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count and its noun.

    >>> counted(1, "row"), counted(1897, "row"), counted(0, "batch is", "batches are")
    ('1 row', '1,897 rows', '0 batches are')

    Args:
        count: The count.
        one: The noun of one thing, and perhaps a verb.
        many: The same of several; by default with an s at the end.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
