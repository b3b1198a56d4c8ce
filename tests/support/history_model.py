"""What a table of histories must be, in plain Python: all events at once, in their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.drawn_events import Event, Row

COLUMNS = ("v", "w")


def versions(events: Sequence[Event], tracked: Sequence[str] = COLUMNS) -> set[Row]:
    """Return the versions (k, v, w, start, end) that events make, in any batches and order.

    For tied upserts that set one column to different values, use `possible_versions`.
    """
    found: set[Row] = set()
    for k in {event.k for event in events}:
        [of_key] = possible_versions([e for e in events if e.k == k], tracked)
        found |= {(k, *version) for version in of_key}
    return found


def possible_versions(
    events: Sequence[Event], tracked: Sequence[str] = COLUMNS
) -> list[frozenset[Row]]:
    """Return the versions (v, w, start, end) of a key, for each order of its tied upserts."""
    return list(
        dict.fromkeys(_versions(sequences, tracked) for sequences in _sequences_in_orders(events))
    )


def _sequences_in_orders(events: Sequence[Event]) -> Iterator[dict[int, Row | None]]:
    """Yield what happens at each sequence: a delete (None), or assignments to columns.

    A delete is later than upserts with its sequence. Tied upserts count one after the other, in
    one of all orders.
    """
    tied: dict[int, list[tuple[Row, ...] | None]] = {}
    for seq in sorted({e.seq for e in events if e.seq is not None}):
        at = [e for e in events if e.seq == seq]
        orders = itertools.permutations(dict.fromkeys(_set_by(e) for e in at))
        tied[seq] = [None] if any(e.op == "delete" for e in at) else list(orders)
    for chosen in itertools.product(*tied.values()):
        yield {
            seq: None if order is None else tuple(itertools.chain(*order))
            for seq, order in zip(tied, chosen, strict=True)
        }


def _set_by(event: Event) -> Row:
    names = COLUMNS if event.present is None else event.present
    return tuple((name, getattr(event, name)) for name in names)


def _versions(sequences: dict[int, Row | None], tracked: Sequence[str]) -> frozenset[Row]:
    """Return the versions (v, w, start, end) that assignments and deletes make, in order."""
    ended: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    for seq, assignments in sequences.items():
        if assignments is None:
            after = None
        else:
            values = {c: None if current is None else current[c] for c in COLUMNS}
            after = {**values, **dict(assignments), "start": seq}
        if current is not None:
            if after is not None and all(after[c] == current[c] for c in tracked):
                after["start"] = current["start"]
            else:
                ended.append({**current, "end": seq})
        current = after
    last = [] if current is None else [{**current, "end": None}]
    return frozenset((r["v"], r["w"], r["start"], r["end"]) for r in [*ended, *last])
