"""The transaction that takes the place of one whose commit lost: it reads a newer version."""

from __future__ import annotations

from deltaweave.delta.log import TableSnapshot


def is_same_table(then: TableSnapshot, now: TableSnapshot) -> bool:
    """Whether a newer version has the same id, schema, properties and protocol.

    A statement that was resolved against the one then means the same for the other.
    """
    return (
        now.version >= then.version
        and bool(now.snapshot.metadata().equals(then.snapshot.metadata()))
        and bool(now.snapshot.protocol().equals(then.snapshot.protocol()))
    )
