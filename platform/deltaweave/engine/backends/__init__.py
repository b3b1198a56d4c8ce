"""Find and write the changes of a merge: on the driver alone (`local`), or by Spark's executors.

- `base`: how a backend declines a merge, and the phase of the scan.
- `spark`: the scan for matches, and the strategy's own writing.
- `local`: small merges, without jobs except those that evaluate source and clauses.
"""

from __future__ import annotations

from deltaweave.engine.backends.base import DeclinedError, allowed, require
from deltaweave.engine.backends.local import (
    file_eligibility,
    local_eligibility,
    may_find_by_keys,
    write_locally,
)
from deltaweave.engine.backends.spark import find_touched_files, write_by_spark

__all__ = [
    "DeclinedError",
    "allowed",
    "file_eligibility",
    "find_touched_files",
    "local_eligibility",
    "may_find_by_keys",
    "require",
    "write_by_spark",
    "write_locally",
]
