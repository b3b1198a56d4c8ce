"""Merge on the driver with pyarrow, where Arrow certainly gives what Spark gives.

- `eligibility`: which merges qualify, which `explain` asks, too; how many bytes and threads.
- `merge`: the backend.
- `keys`, `matches`, `pairs`: the source's keys, the rows that have them, and both as pairs.
- `values`: what clauses make of source rows and of pairs.
- `files`: new files, deletion vectors, the change data feed.
- `partitions`: partition values of files and of new rows.
"""

from __future__ import annotations

from deltaweave.engine.backends.local.eligibility import (
    file_eligibility,
    local_eligibility,
)
from deltaweave.engine.backends.local.merge import write_locally
from deltaweave.engine.backends.local.pairs import may_find_by_keys, pairs_by_keys

__all__ = [
    "file_eligibility",
    "local_eligibility",
    "may_find_by_keys",
    "pairs_by_keys",
    "write_locally",
]
