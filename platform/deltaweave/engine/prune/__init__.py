"""Prune files that hold no row that a merge changes: by conditions, statistics and an index."""

from __future__ import annotations

from deltaweave.engine.prune.candidates import (
    Candidates,
    candidate_files,
    files_by_conditions,
    find_candidates,
    may_hold_match,
)
from deltaweave.engine.prune.key_index import (
    KEY_INDEX_DIRECTORY,
    index_new_files,
    stored_index,
    wanted_index,
)

__all__ = [
    "KEY_INDEX_DIRECTORY",
    "Candidates",
    "candidate_files",
    "files_by_conditions",
    "find_candidates",
    "index_new_files",
    "may_hold_match",
    "stored_index",
    "wanted_index",
]
