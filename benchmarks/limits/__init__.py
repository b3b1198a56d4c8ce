"""The largest merges that the engine must complete or refuse, and the memory that they take.

- `limit`: defines a limit: a table and a merge, of any size.
- `catalog`: the limits.
- `wide_statements`: many clauses, many columns.
- `many_files`: a log of many files, many partitions.
- `many_rows`: a large source, many pairs, a large target.
- `decoded_bytes`: text that repeats, long keys, files whose first rows are small.
- `measure`: writes a limit's table and starts its merge.
- `measured_merge`: the program that merges in a separate process.
- `memory`: memory of processes, from /proc and from logs of garbage collections.
- `report`: the results on the screen and as JSON.
"""

from __future__ import annotations

from benchmarks.limits.catalog import LIMITS, UnknownLimitError, chosen_limits
from benchmarks.limits.measure import Measured, measured_limit
from benchmarks.limits.report import as_table, outcome, write_json

__all__ = [
    "LIMITS",
    "Measured",
    "UnknownLimitError",
    "as_table",
    "chosen_limits",
    "measured_limit",
    "outcome",
    "write_json",
]
