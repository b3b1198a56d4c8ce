"""Keep pairs of a target row and its source row, and find the files that they touch."""

from __future__ import annotations

from deltaweave.engine.pairs.pairs import (
    MatchedRows,
    Pairs,
    brought_to_driver,
    file_indexes,
    with_numbers,
)
from deltaweave.engine.pairs.touched import (
    FilePlan,
    TouchedFilesScan,
    nothing_touched,
    plan_files,
    touched_files_of_pairs,
)

__all__ = [
    "FilePlan",
    "MatchedRows",
    "Pairs",
    "TouchedFilesScan",
    "brought_to_driver",
    "file_indexes",
    "nothing_touched",
    "plan_files",
    "touched_files_of_pairs",
    "with_numbers",
]
