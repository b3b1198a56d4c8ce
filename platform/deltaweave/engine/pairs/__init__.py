"""Keep pairs of a target row and its source row, and find the files that they touch."""

from __future__ import annotations

from deltaweave.engine.pairs.pairs import (
    MatchedRows,
    Pairs,
    brought_to_driver,
    places_of_files,
    with_numbers,
)
from deltaweave.engine.pairs.touched import (
    TouchedFilesScan,
    nothing_touched,
    touched_files_of_pairs,
)

__all__ = [
    "MatchedRows",
    "Pairs",
    "TouchedFilesScan",
    "brought_to_driver",
    "nothing_touched",
    "places_of_files",
    "touched_files_of_pairs",
    "with_numbers",
]
