"""The results of limits, for the screen and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.limits.measure import Measured

_MEMORY = {
    "heap, MiB": "heap_peak_mib",
    "after GC": "heap_after_gc_mib",
    "driver, MiB": "driver_mib",
    "executors": "executors_mib",
    "Python": "python_mib",
}


def as_table(results: Sequence[Measured]) -> Table:
    """Lay out the results of the limits for the screen."""
    table = Table(
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        caption="heap: peaks in the driver's JVM before and after a garbage collection; "
        "driver, executors, Python: peaks of resident memory",
        caption_justify="left",
    )
    table.add_column("limit")
    for name in ("of", "writing, s", "merge, s", *_MEMORY):
        table.add_column(name, justify="right")
    table.add_column("result")
    for each in results:
        memory = [f"{each.found.get(name, 0):,}" for name in _MEMORY.values()]
        seconds = [f"{each.write_seconds:.1f}", f"{each.found.get('merge_seconds', 0):.1f}"]
        table.add_row(each.limit.name, f"{each.size:,}", *seconds, *memory, outcome(each))
    return table


def outcome(result: Measured) -> str:
    """Describe the outcome of a merge in a few words."""
    if result.error is not None:
        written = "wrote a version" if result.wrote else "wrote nothing"
        return f"refused, {written}" if result.is_refused else f"FAILED, {written}"
    return f"WRONG: {', '.join(result.wrong)}" if result.wrong else _rows(result)


def _rows(result: Measured) -> str:
    metrics = result.found["metrics"]
    counts = {
        "updated": metrics.get("numTargetRowsUpdated"),
        "deleted": metrics.get("numTargetRowsDeleted"),
        "inserted": metrics.get("numTargetRowsInserted"),
    }
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def write_json(results: Sequence[Measured], settings: Mapping[str, object], path: Path) -> None:
    """Write all that was measured."""
    content = {
        "benchmark": "limits",
        **settings,
        "limits": [
            {
                "name": each.limit.name,
                "of": each.limit.title,
                "size": each.size,
                "write_seconds": each.write_seconds,
                "wrote": each.wrote,
                "wrong": each.wrong,
                **each.found,
            }
            for each in results
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
