"""A file as the TPC-DS generator makes it: fields closed by `|`, nothing between two for a null."""

from __future__ import annotations

from pathlib import Path

ITEMS = 7  # of each order


def write_returns(path: Path, rows: int) -> Path:
    """Write returns whose keys are all different: order 1 with items 1 to 7, order 2, and so on."""
    lines = (
        f"2452641|1|{row % ITEMS + 1}|" + "|" * 10 + f"{row // ITEMS + 1}|5|10.00|" + "1.25|" * 8
        for row in range(rows)
    )
    path.write_text("\n".join(lines) + "\n")
    return path
