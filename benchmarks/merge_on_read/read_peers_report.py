"""The results of `python -m benchmarks read-peers`: a table for the screen, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.merge_on_read.read_peers import Comparison, Side
from benchmarks.peers import OPERATIONS

_HEADINGS = ("the same\nParquet files", "the table", "upsert", "the table\nafter it")


def as_table(comparison: Comparison) -> Table:
    """Lay out the medians, in seconds, of each side that ran."""
    caption = (
        f"Seconds; {comparison.changes:,} changes to {comparison.rows:,} rows; rows equal: "
        f"{'yes' if comparison.rows_equal else 'NO'}"
    )
    table = Table(box=box.SIMPLE, padding=0, caption=caption, caption_justify="left")
    table.add_column("", vertical="bottom")
    for heading in (*_HEADINGS, "times the\nread before"):
        table.add_column(heading, justify="right", vertical="bottom")
    for side in comparison.sides:
        if side.error is None:
            seconds = [f"{side.median(operation):.2f}" for operation in OPERATIONS]
            table.add_row(side.title, *seconds, f"{side.read_ratio:.2f}")
        else:
            table.add_row(side.title, "did not run")
    return table


def write_json(comparison: Comparison, settings: Mapping[str, object], path: Path) -> None:
    """Write all results as JSON."""
    content = {
        "benchmark": "read-peers",
        **settings,
        "changed": comparison.changed,
        "rows": comparison.rows,
        "changes": comparison.changes,
        "rows_equal": comparison.rows_equal,
        "sides": [_as_json(side) for side in comparison.sides],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _as_json(side: Side) -> dict[str, object]:
    named = {"name": side.name, "versions": side.versions}
    if side.error is not None:
        return {**named, "error": side.error}
    return {
        **named,
        "seconds": {operation: side.median(operation) for operation in OPERATIONS},
        "read_ratio": side.read_ratio,
        "run_seconds": {operation: list(side.seconds[operation]) for operation in OPERATIONS},
    }
