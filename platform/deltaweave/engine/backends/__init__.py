"""Find and write the changes of a merge: on the driver alone (`local`), or by Spark's executors.

- `base`: what a backend does, and how it declines a merge.
- `spark`: the scan for matches, and the strategy's own writing.
- `local`: small merges, without jobs except those that evaluate source and clauses.
"""

from __future__ import annotations

from deltaweave.engine.backends.base import DeclinedError, allowed, require
from deltaweave.engine.backends.local import (
    LocalBackend,
    file_eligibility,
    local_eligibility,
    may_find_by_keys,
)
from deltaweave.engine.backends.spark import SparkBackend, find_touched_files

__all__ = [
    "DeclinedError",
    "LocalBackend",
    "SparkBackend",
    "allowed",
    "file_eligibility",
    "find_touched_files",
    "local_eligibility",
    "may_find_by_keys",
    "require",
]
