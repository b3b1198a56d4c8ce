"""The works that killed processes do, and what their tables hold after each; no Spark.

All is drawn from a seed, so a process knows what another one had begun, and a reader knows every
state that a table may be in.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]

# What happens to each table: a kind of work is `table` or `table/how`.
COUNTED = ("vectors", "copied", "in_place", "executors", "stream_of_counts")
MERGED_ON_READ = {"on_read": "changes of", "stream_of_events": "stream of"}
TABLES = (*COUNTED, "inserted", "current", "history", *MERGED_ON_READ)
KINDS = (
    *("vectors", "copied", "in_place", "executors", "inserted", "current", "history"),
    *("on_read/append", "on_read/merge", "on_read/overwrite", "on_read/replace_where"),
    *("stream_of_counts", "stream_of_events", "upkeep", "upkeep"),
)
_KEYS = 12
_EVENT_KEYS = 8


@dataclass(frozen=True)
class Work:
    """One of the works on a lake.

    Attributes:
        number: Its place among all of them.
        kind: One of `KINDS`.
        table: The table that it changes, or keeps (upkeep).
        step: How many works before it changed the table.
    """

    number: int
    kind: str
    table: str
    step: int

    @property
    def changes_rows(self) -> bool:
        """Whether the table's rows are others after it."""
        return self.kind != "upkeep"

    @property
    def changes_base(self) -> bool:
        """Whether the base of a merge-on-read table has its events after it."""
        return self.changes_rows and self.kind != "on_read/append"


@dataclass(frozen=True)
class Event:
    """A change of a key."""

    k: int
    v: int | None
    seq: int

    @property
    def deletes(self) -> bool:
        """Whether it deletes the row."""
        return self.v is None

    def row(self) -> tuple[Any, ...]:
        """As a row of `EVENT_SCHEMA`."""
        return (self.k, self.k % 2, self.v, self.seq, "d" if self.deletes else "u")


EVENT_SCHEMA = "k INT, p INT, v INT, seq INT, op STRING"
COUNT_SCHEMA = "k INT, n INT, gone BOOLEAN"


@dataclass(frozen=True)
class Model:
    """All works of a lake, and the rows of its tables after them."""

    seed: str

    def works(self) -> Iterator[Work]:
        """All works: round after round, each kind in each of them."""
        steps = dict.fromkeys(TABLES, 0)
        number = 0
        while True:
            drawn = random.Random(f"{self.seed}/{number}")
            for kind in drawn.sample(KINDS, len(KINDS)):
                table = drawn.choice(TABLES) if kind == "upkeep" else kind.partition("/")[0]
                work = Work(number, kind, table, steps[table])
                steps[table] += work.changes_rows
                number += 1
                yield work

    def first(self, count: int) -> list[Work]:
        """The first works."""
        return list(islice(self.works(), count))

    def steps(self, table: str, count: int, *, of_base: bool = False) -> int:
        """How many steps a table, or the base of it, is on after so many works."""
        return _steps(self, table, count, of_base)

    def rows(self, table: str, steps: int) -> Rows:
        """The rows of a table after its first steps, ordered as text."""
        return _rows(self, table, steps)

    def events(self, table: str, step: int) -> list[Event]:
        """Three upserts and a delete that are newer than all before, and a late upsert."""
        drawn = random.Random(f"{self.seed}/{table}/{step}")
        *upserted, deleted = drawn.sample(range(_EVENT_KEYS), 4)
        late = Event(drawn.randrange(_EVENT_KEYS), 100 * step + 50, 10 * (step - 2) + 5)
        return [
            *(Event(k, 100 * step + k, 10 * step + 1) for k in upserted),
            Event(deleted, None, 10 * step + 2),
            *([late] if step >= 2 else []),
        ]


@cache
def _steps(model: Model, table: str, count: int, of_base: bool) -> int:
    taken = [
        work.step + 1
        for work in model.first(count)
        if work.table == table and (work.changes_base if of_base else work.changes_rows)
    ]
    return max(taken, default=0)


@cache
def _rows(model: Model, table: str, steps: int) -> Rows:
    if table == "inserted":
        inserted = [row for step in range(steps) for row in inserts(step)]
        return sorted([*initial_rows(), *inserted], key=str)
    if table in COUNTED:
        return _counted(steps)
    events = [event for step in range(steps) for event in model.events(table, step)]
    return _histories(events) if table == "history" else _current(events)


def initial_rows() -> Rows:
    """The rows of tables that are written before the first work."""
    return [(k, 0) for k in range(_KEYS)]


def counts(step: int) -> Rows:
    """The source of a step: it counts in a third of the rows, deletes one and inserts one."""
    changed = [(k, 1, False) for k in range(step + 1, step + _KEYS) if k % 3 == step % 3]
    return [*changed, (step, 0, True), (step + _KEYS, 1, False)]


def inserts(step: int) -> Rows:
    """The rows that a step inserts."""
    return [(1000 + 2 * step, step), (1001 + 2 * step, step)]


def _counted(steps: int) -> Rows:
    rows: dict[int, int] = dict(initial_rows())
    for step in range(steps):
        for k, n, gone in counts(step):
            if gone:
                del rows[k]
            else:
                rows[k] = rows.get(k, 0) + n
    return sorted(rows.items(), key=str)


def _current(events: list[Event]) -> Rows:
    newest = {event.k: event for event in sorted(events, key=lambda event: event.seq)}
    rows = [(event.k, event.v) for event in newest.values() if not event.deletes]
    return sorted(rows, key=str)


def _histories(events: list[Event]) -> Rows:
    rows = []
    for k in range(_EVENT_KEYS):
        of_key = sorted((event for event in events if event.k == k), key=lambda event: event.seq)
        ends = [*(event.seq for event in of_key[1:]), None]
        rows += [
            (k, event.v, event.seq, end)
            for event, end in zip(of_key, ends, strict=False)
            if not event.deletes
        ]
    return sorted(rows, key=str)


@dataclass(frozen=True)
class Lake:
    """A directory with tables, and the journal of the works on them."""

    folder: Path
    seed: str

    @property
    def model(self) -> Model:
        """Its works."""
        return Model(self.seed)

    def table(self, name: str) -> Path:
        """The directory of a table."""
        return self.folder / "tables" / name

    def logs(self) -> list[Path]:
        """The logs of all its Delta tables: the side tables', too."""
        return sorted((self.folder / "tables").rglob("_delta_log"))

    def num_commits(self) -> int:
        """How many versions all its tables have together."""
        return sum(1 for log in self.logs() for _ in log.glob("*.json"))

    def note(self, what: str, work: Work) -> None:
        """Write a line to the journal, in one call: a kill leaves all of it or nothing."""
        line = [what, work.number, work.kind, self.num_commits(), time.time()]
        descriptor = os.open(
            self.folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode=0o644
        )
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def journal(self) -> list[tuple[str, int, str, int, float]]:
        """What was begun and done: the word, the work, its kind, all commits by then, the time."""
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def durations(self) -> list[float]:
        """How many seconds each work took that was not interrupted."""
        return [
            later - earlier
            for (what, number, *_, earlier), (_, same, *_, later) in pairwise(self.journal())
            if what == "begun" and number == same
        ]

    def done(self) -> int:
        """How many works are done."""
        return sum(what == "done" for what, *_ in self.journal())

    def begun(self) -> int:
        """How many works were begun."""
        return len({number for what, number, *_ in self.journal() if what == "begun"})

    def place(self, table: str, rows: Rows, after: int, *, of_base: bool = False) -> str | None:
        """What is wrong with rows that were read; None if works may have left them so.

        Args:
            table: The table.
            rows: Its rows.
            after: How many works were done before they were read.
            of_base: Whether they are those of the base of a merge-on-read table.
        """
        until = self.begun()
        low = self.model.steps(table, after, of_base=of_base)
        high = self.model.steps(table, until)
        found = sorted(rows, key=str)
        steps = [step for step in range(high + 1) if self.model.rows(table, step) == found]
        if not steps:
            return f"torn: {found} is no state of {table} up to step {high}"
        if max(steps) < low:
            return f"lost: {table} is at step {steps}, and {low} were done"
        return None
