"""Charts of a table: what its merges did, and how large its files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A metric of the history, how the legend calls it, and its color.
_ROWS = (
    ("numTargetRowsUpdated", "updated", "#5b3fd6"),
    ("numTargetRowsInserted", "inserted", "#0e7490"),
    ("numTargetRowsDeleted", "deleted", "#d1495b"),
    ("numTargetRowsCopied", "copied unchanged", "#cfd3dc"),
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plot_merges(merges: Sequence[Mapping[str, Any]], table: str, path: Path) -> None:
    """Draw the rows and the seconds of each merge, the oldest first.

    Args:
        merges: The merges, the newest first, each with its `version` and `metrics`.
        table: The table's path or name, for the title.
        path: The file; its suffix says the format.
    """
    from matplotlib.ticker import MaxNLocator

    oldest_first = list(reversed(merges))
    versions = [str(merge["version"]) for merge in oldest_first]
    figure = _figure(6)
    rows, seconds = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    below = [0] * len(oldest_first)
    for metric, label, color in _ROWS:
        counts = [int(merge["metrics"].get(metric, 0)) for merge in oldest_first]
        rows.bar(versions, counts, bottom=below, label=label, color=color, width=0.6)
        below = [low + count for low, count in zip(below, counts, strict=True)]
    rows.set_ylabel("rows")
    rows.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    rows.yaxis.set_major_formatter("{x:,.0f}")
    rows.set_title(f"Merges into {table}", loc="left", fontweight="bold", pad=28)
    # Above the bars, which it would hide.
    rows.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_ROWS), frameon=False)
    times = [int(merge["metrics"].get("executionTimeMs", 0)) / 1000 for merge in oldest_first]
    seconds.bar(versions, times, color="#8a90a0", width=0.6)
    seconds.set_ylabel("seconds")
    seconds.set_xlabel("version that the merge committed")
    for axes in (rows, seconds):
        _plain(axes)
    if len(versions) > 30:
        seconds.set_xticks(range(0, len(versions), len(versions) // 15))
    figure.savefig(path)


def plot_files(files: Mapping[int, int], small_bytes: int, table: str, path: Path) -> None:
    """Draw how many files there are of each size; those below the limit are small.

    Args:
        files: The number of files by the power of two at which their sizes begin.
        small_bytes: Size below which a file counts as small.
        table: The table's path or name, for the title.
        path: The file; its suffix says the format.
    """
    powers = range(min(files), max(files) + 1) if files else range(0)
    figure = _figure(4)
    axes = figure.subplots()
    bars = axes.bar(
        [_size(2**power) for power in powers],
        [files.get(power, 0) for power in powers],
        color=["#d1495b" if 2**power < small_bytes else "#5b3fd6" for power in powers],
    )
    axes.bar_label(bars, labels=[f"{files[power]:,}" if power in files else "" for power in powers])
    if len(powers) > 8:
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(f"size of the file, at least; files below {_size(small_bytes)} are red")
    axes.set_ylabel("files")
    axes.set_title(f"Files of {table}", loc="left", fontweight="bold")
    _plain(axes)
    figure.savefig(path)


def _figure(height: float) -> Figure:
    # Not by pyplot, which chooses a backend for this machine's screen and keeps each figure.
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height), layout="constrained")


def _plain(axes: Axes) -> None:
    """Draw lines for the values behind the bars, and no box around them."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e3e5ea")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _size(size_in_bytes: int) -> str:
    """Write a size in the largest unit that it fills, as `64 KiB`."""
    power = min(max(size_in_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size_in_bytes / 1024**power:.4g} {_UNITS[power]}"
