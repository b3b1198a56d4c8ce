"""The results of the benchmark of merge on read: a table for the screen, JSON, and a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.merge_on_read.reads import BUILTIN, PLAIN, READ, Timings

_PEERS = {PLAIN: "a plain scan of the base", BUILTIN: "built-in MERGE"}


def as_table(timings: Timings) -> Table:
    """Lay out the medians, and their ratios to a plain scan or to built-in MERGE."""
    caption = (
        f"{timings.changes:,} changes to {timings.rows:,} rows; rows equal: "
        f"{'yes' if timings.rows_equal else 'NO'}"
    )
    table = Table(box=box.SIMPLE, padding=0, caption=caption, caption_justify="left")
    table.add_column("operation")
    table.add_column("method")
    table.add_column("seconds", justify="right")
    table.add_column("times its peer", justify="right")
    for operation, method in timings.seconds:
        seconds, over = timings.median(operation, method), timings.over(operation, method)
        table.add_row(operation, _PEERS.get(method, method), f"{seconds:.2f}", f"{over:.2f}")
    return table


def write_json(timings: Timings, settings: Mapping[str, object], path: Path) -> None:
    """Write all results as JSON."""
    content = {
        "benchmark": "read",
        **settings,
        "changed": timings.changed,
        "rows": timings.rows,
        "changes": timings.changes,
        "rows_equal": timings.rows_equal,
        "measurements": [
            {
                "operation": operation,
                "method": method,
                "seconds": timings.median(operation, method),
                "over_peer": timings.over(operation, method),
                "run_seconds": list(runs),
            }
            for (operation, method), runs in timings.seconds.items()
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def plot(timings: Timings, path: Path) -> None:
    """Draw the medians as bars, in the format of the file's suffix."""
    import matplotlib

    matplotlib.use("Agg")  # writes files without a screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    labels = [f"{operation}: {_PEERS.get(method, method)}" for operation, method in timings.seconds]
    colors = ["C0" if operation == READ else "C1" for operation, _ in timings.seconds]
    bars = axes.barh(labels, [timings.median(*each) for each in timings.seconds], color=colors)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("seconds")
    axes.set_title(f"Merge on read, {timings.changed:.0%} of {timings.rows:,} rows changed")
    figure.savefig(path)
    pyplot.close(figure)
