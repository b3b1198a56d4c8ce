"""Events as the tests write and draw them."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, replace
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


# The jobs that may write to one table of histories, and their tracked columns.
JOBS: dict[str, tuple[str, ...]] = {"whole": ("v", "w"), "tracks v": ("v",), "partial": ("v", "w")}
NUM_HISTORIES = 12  # in an example
NUM_REPLICAS = 4  # of each history: keys whose events come in other batches


@dataclass(frozen=True)
class Replicas:
    """Histories with ties, each of several keys: the same events in other batches and orders.

    Attributes:
        histories: The events of each history; its replicas are the keys from `NUM_REPLICAS` times
            its index on.
        batches: The job and the events of each batch. Each key has an event in the last one.
    """

    histories: list[list[Event]]
    batches: list[tuple[str, list[Event]]]


@st.composite
def replicas(draw: st.DrawFn) -> Replicas:
    chance = random.Random(draw(st.integers(0, 2**32)))
    jobs = chance.choices(list(JOBS), k=chance.randint(2, 4))
    histories = [_tied_events(chance, "partial" in jobs) for _ in range(NUM_HISTORIES)]
    batches: list[tuple[str, list[Event]]] = [(job, []) for job in jobs]
    takes_all = [events for job, events in batches if job == "partial"] or [batches[0][1]]
    for number, history in enumerate(histories):
        for replica in range(NUM_REPLICAS):
            for event in history:
                keyed = replace(event, k=number * NUM_REPLICAS + replica)
                possible = [of for job, of in batches if job == "partial" or event.present is None]
                times = 1 if chance.random() < 0.8 else 2
                for batch in chance.choices(possible if replica else takes_all[:1], k=times):
                    batch.insert(chance.randint(0, len(batch)), keyed)
            # Versions are recomputed, by the last job's columns, when an event comes again.
            again = chance.choice([e for e in history if e.present is None])
            batches[-1][1].append(replace(again, k=number * NUM_REPLICAS + replica))
    return Replicas(histories, [batch for batch in batches if batch[1]])


def _tied_events(chance: random.Random, are_partial: bool) -> list[Event]:
    """Draw a key's events, at least one of which is whole, few of whose sequences differ."""
    presents = [None, ("v",), ("w",), ("v", "w"), ()] if are_partial else [None]

    def event(present: tuple[str, ...] | None, op: str = "upsert") -> Event:
        v, w = chance.choice([None, 1, 2]), chance.choice([None, "a", "b"])
        return Event(0, chance.randint(1, 4), v, w, op, None if op == "delete" else present)

    ops = ["upsert"] * 5 + ["delete"]
    events = [
        event(chance.choice(presents), chance.choice(ops)) for _ in range(chance.randint(1, 5))
    ]
    return [event(None), *events]


DRAWN = settings(
    max_examples=int(os.environ.get("DELTAWEAVE_FUZZ_EXAMPLES", "2")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
