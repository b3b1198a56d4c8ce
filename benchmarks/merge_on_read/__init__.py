"""Measurements of merge-on-read tables.

- `reads`: times each method to read a table and each strategy to rematerialize it.
- `read_report`: the results of `reads` on the screen, as JSON and as a chart.
- `ingestion`: how many changes a minute a table takes, and how fresh it stays.
- `decay`: how reads slow down as changes accumulate.
- `read_peers`: the same upsert and reads on tables of other formats.
- `read_peers_report`: the results of `read_peers` on the screen and as JSON.
"""

from __future__ import annotations

from benchmarks.merge_on_read.read_peers import compare
from benchmarks.merge_on_read.reads import measure_reads

__all__ = ["compare", "measure_reads"]
