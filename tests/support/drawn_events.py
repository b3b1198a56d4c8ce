"""Events as the tests write and draw them."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SCHEMA = "k INT, v INT, w STRING, seq INT, op STRING, present ARRAY<STRING>"
WHOLE = {"except_column_list": ["seq", "op", "present"]}
PARTIAL = {"present_columns": "present", "except_column_list": ["seq", "op"]}

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Names:
    """What a table calls the columns of an event."""

    k: str = "k"
    v: str = "v"
    w: str = "w"


PLAIN = Names()
# The last needs column mapping.
NAMES = st.sampled_from(
    [
        Names("k.1", "v`.`w", "select"),
        Names("t", "s", "value"),
        PLAIN,
        Names("schlüssel's", 'v "1"', "*"),
        Names("k 1", "new\nline", "w;--"),
    ]
)


@dataclass(frozen=True)
class Event:
    """An event as the tests write it; `present` None sets all columns."""

    k: int | None
    seq: int | None
    v: int | None = None
    w: str | None = None
    op: str = "upsert"
    present: tuple[str, ...] | None = None

    def row(self, names: Names | None = None) -> Row:
        named = [getattr(names or PLAIN, name) for name in self.present or ()]
        present = None if self.present is None else named
        return (self.k, self.v, self.w, self.seq, self.op, present)


def delete(k: int, seq: int) -> Event:
    return Event(k, seq, op="delete")


def truncate(seq: int) -> Event:
    return Event(None, seq, op="truncate")


# Keys know nothing of each other: more of them are as good as more examples, and cheaper.
KEYS = st.integers(1, 6)
SEQUENCES = st.integers(1, 8)
VALUES_OF_V = st.sampled_from([None, 1, 2])
VALUES_OF_W = st.sampled_from([None, "a", "b"])
UPSERTS = st.builds(Event, KEYS, SEQUENCES, VALUES_OF_V, VALUES_OF_W)
PARTIAL_UPSERTS = st.builds(
    Event,
    KEYS,
    SEQUENCES,
    VALUES_OF_V,
    VALUES_OF_W,
    present=st.sampled_from([None, None, ("v",), ("w",), ()]),
)
DELETES = st.builds(delete, KEYS, SEQUENCES)
TRUNCATES = st.builds(truncate, SEQUENCES)


@st.composite
def batches_of(draw: st.DrawFn, *events_of: st.SearchStrategy[Event]) -> list[list[Event]]:
    """Batches of events, in any order, some of them repeated; no two upserts of a key are a tie."""
    drawn = draw(st.lists(st.one_of(*events_of), min_size=1, max_size=24))
    events = list({(e.k, e.seq, e.op): e for e in drawn}.values())
    repeated = draw(st.lists(st.sampled_from(events), max_size=8))
    order = draw(st.permutations(events + repeated))
    borders = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=2)))
    return [order[a:b] for a, b in itertools.pairwise([0, *borders, len(order)]) if order[a:b]]


DRAWN = settings(
    max_examples=int(os.environ.get("DELTAWEAVE_FUZZ_EXAMPLES", "2")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
