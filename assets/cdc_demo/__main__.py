"""`make demo-cdc`: change events through Kafka into a merge-on-read table, and out of it.

Each run delivers one more round of changes to a simulated database's customers, out of order and
some of them twice, with deletes and with long texts that were not sent. They are appended, read
together with the table, and merged into it; each time the rows must be those of the database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

import deltaweave
from assets.cdc_demo import pipeline
from assets.cdc_demo.broker import running_broker
from assets.console_command import run_with_console
from assets.java_program import JavaProgramError
from resources.environments import lake

if TYPE_CHECKING:
    from deltaweave import MergeOnReadTable

_SHOWN_OF_EACH = 3


class DifferentRowsError(RuntimeError):
    """A reader of the table sees other rows than the database has."""


def main() -> int:
    """Run the demo; the exit code."""
    here = lake() / "cdc"
    here.mkdir(parents=True, exist_ok=True)
    return run_with_console(
        here / "demo.log",
        lambda console: _demo(console, here),
        JavaProgramError,
        pipeline.LostError,
        DifferentRowsError,
    )


def _demo(console: Console, here: Path) -> None:
    starting = "Starting Kafka, which is downloaded the first time"
    with console.status(starting) as status, running_broker(here / "kafka") as bootstrap:
        status.update("Delivering change events")
        delivered = pipeline.deliver_next_round(bootstrap)
        console.print(
            f"Round {delivered.rounds}: {delivered.events:,} events into the topic "
            f"{pipeline.TOPIC}, {delivered.repeated:,} of them delivered before."
        )
        status.update("Starting Spark")
        spark = deltaweave.local_session()
        try:
            table = pipeline.customers_table(spark, here)
            status.update("Streaming from Kafka into the changeset")
            messages = pipeline.messages_of(spark, bootstrap, pipeline.TOPIC)
            pipeline.ingest(table, pipeline.events_of(messages), here)
            status.update("Reading base and changes together")
            _read_and_merge(console, table, delivered.rounds, status.update)
        finally:
            spark.stop()


def _read_and_merge(
    console: Console, table: MergeOnReadTable, rounds: int, say: Callable[[str], None]
) -> None:
    expected = pipeline.rows_in_the_database(rounds)
    pending = table.pending()
    console.print(
        f"Pending: {pending.rows:,} events in {pending.batches} batches, "
        f"{pending.size_in_bytes / 1e6:.1f} MB."
    )
    base, view = pipeline.rows_of(table.read_optimized()), pipeline.rows_of(table.read())
    console.print("\nSome of the customers that changed", _changes(base, view))
    _compare(console, "The view", view, expected)
    say("Merging the changes into the base")
    done = table.rematerialize()
    if done is not None:
        console.print(f"Batches up to {done.batch} went into the base, by {done.strategy}.")
    _compare(console, "The base", pipeline.rows_of(table.read_optimized()), expected)
    console.print(f"Pending now: {table.pending().rows:,} events.")


def _compare(console: Console, what: str, found: pipeline.Rows, expected: pipeline.Rows) -> None:
    if found != expected:
        raise DifferentRowsError(
            f"{what} differs from the database: {len(expected - found)} rows are missing, "
            f"{len(found - expected)} are not the database's."
        )
    console.print(f"{what} has the database's {len(found):,} customers, each as it is there.")


def _changes(before: pipeline.Rows, after: pipeline.Rows) -> Table:
    """Return a table that shows a few of the changed, new and deleted rows."""
    old, new = ({row[0]: row for row in rows} for rows in (before, after))
    kinds = {
        "changed": sorted(key for key in old.keys() & new.keys() if old[key] != new[key]),
        "new": sorted(new.keys() - old.keys()),
        "deleted": sorted(old.keys() - new.keys()),
    }
    table = Table(box=box.SIMPLE, caption=", ".join(f"{len(v):,} {k}" for k, v in kinds.items()))
    for heading in ("id", "in the base", "with the changes"):
        table.add_column(heading)
    for keys in kinds.values():
        for key in keys[:_SHOWN_OF_EACH]:
            table.add_row(str(key), _cell(old.get(key)), _cell(new.get(key)))
    return table


def _cell(row: pipeline.Row | None) -> str:
    if row is None:
        return "-"
    _, name, city, spent, _ = row
    return f"{name}, {city}, {spent}"


if __name__ == "__main__":
    sys.exit(main())
