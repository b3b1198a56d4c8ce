"""A table of customers in a simulated PostgreSQL, and Debezium's events of what happens to it.

It happens in rounds. A round's events reach Kafka as events do where things go wrong: in any order
and some of them twice. The same round is always the same.

    round 1: the connector's snapshot of all customers, and the first changes
    round n: further inserts, updates, deletes and changes of keys
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

SCHEMA = "id INT, name STRING, city STRING, spent DECIMAL(10,2), story STRING"
KEYS = ["id"]

NOT_SENT = "__debezium_unavailable_value"

SIZE = 1_000
_CITIES = ("Bergen", "Cork", "Essen", "Graz", "Lille", "Porto", "Turku", "Utrecht")
_SHARE_TWICE = 0.1


@dataclass(frozen=True)
class Customer:
    """A row.

    Attributes:
        id: The key.
        name: Any text.
        city: Any text.
        spent: In cents.
        story: A long text, which PostgreSQL stores apart from the row.
    """

    id: int
    name: str
    city: str
    spent: int
    story: str

    def sent(self, *, story: bool = True) -> dict[str, Any]:
        """Return the row as Debezium sends it; the long text only where PostgreSQL's log has it."""
        spent = f"{self.spent // 100}.{self.spent % 100:02}"
        values = {"id": self.id, "name": self.name, "city": self.city, "spent": spent}
        return {**values, "story": self.story if story else NOT_SENT}


@dataclass
class Shop:
    """The database: its rows as they are after some rounds.

    Attributes:
        size: How many customers it has before the first round; a round changes a third as often.
        rows: By id.
        next_id: The id of the next new customer.
        lsn: Where its log ends.
    """

    size: int = SIZE
    rows: dict[int, Customer] = field(default_factory=dict)
    next_id: int = 1
    lsn: int = 1_000

    def play(self, number: int) -> list[str]:
        """Play a round, the next one, and give its events in the order in which they happened."""
        draw = random.Random(number)
        events: list[str] = []
        if number == 1:
            for _ in range(self.size):
                self._insert(draw)
            # All rows of a snapshot stand at the same place in the log.
            events += [self._event("r", number, after=row.sent()) for row in self.rows.values()]
        for _ in range(self.size // 3):
            events += self._change(draw, number)
        return events

    def _change(self, draw: random.Random, number: int) -> Iterator[str]:
        kinds, weights = ("update", "rewrite", "insert", "delete", "rename"), (60, 12, 13, 10, 5)
        [kind] = draw.choices(kinds, weights)
        self.lsn += draw.randrange(40, 400)
        if kind == "insert":
            yield self._event("c", number, after=self._insert(draw).sent())
            return
        old = self.rows[draw.choice(list(self.rows))]
        before = {"id": old.id, "name": "", "city": None, "spent": None, "story": None}
        if kind in ("delete", "rename"):
            del self.rows[old.id]
            yield self._event("d", number, before=before)
        if kind == "rename":  # a change of key is a delete and an insert, at one place in the log
            new = replace(old, id=self._new_id())
            self.rows[new.id] = new
            yield self._event("c", number, after=new.sent())
        elif kind == "update":
            city = draw.choice(_CITIES) if draw.random() < 0.3 else old.city
            new = replace(old, city=city, spent=old.spent + draw.randrange(100, 20_000))
            self.rows[new.id] = new
            yield self._event("u", number, after=new.sent(story=False))
        elif kind == "rewrite":
            new = replace(old, story=_story(draw))
            self.rows[new.id] = new
            yield self._event("u", number, after=new.sent())

    def _insert(self, draw: random.Random) -> Customer:
        number = self._new_id()
        row = Customer(
            number, f"Customer {number}", draw.choice(_CITIES), draw.randrange(10_000), _story(draw)
        )
        self.rows[number] = row
        return row

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _event(
        self,
        op: str,
        number: int,
        *,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> str:
        # PostgreSQL's transaction id; here the round.
        source = {"connector": "postgresql", "table": "customers", "lsn": self.lsn, "txId": number}
        return json.dumps({"before": before, "after": after, "source": source, "op": op})


def delivered(events: list[str], number: int) -> list[str]:
    """Return a round's events as they arrive: shuffled, every tenth of them twice."""
    draw = random.Random(-number)
    arriving = events + draw.sample(events, int(len(events) * _SHARE_TWICE))
    draw.shuffle(arriving)
    return arriving


def rows_after(rounds: int, size: int = SIZE) -> dict[int, Customer]:
    """Return the rows of a database of this size after this many rounds, by id."""
    shop = Shop(size)
    for number in range(1, rounds + 1):
        shop.play(number)
    return shop.rows


def _story(draw: random.Random) -> str:
    return " ".join(draw.choices(("always", "late", "pays", "asks", "sends", "back"), k=500))


def round_of(event: str) -> int:
    """Return the number of the round that sent an event."""
    number: int = json.loads(event)["source"]["txId"]
    return number
