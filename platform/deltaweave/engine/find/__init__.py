"""Find the touched files: candidates by statistics, by keys and by index, then a scan of them."""

from __future__ import annotations

from deltaweave.engine.find.candidates import (
    Candidates,
    candidate_files,
    files_by_conditions,
    find_candidates,
)
from deltaweave.engine.find.driver_keys import Compared, compared
from deltaweave.engine.find.driver_matches import name_of, own_locations
from deltaweave.engine.find.driver_pairs import DriverPairs, by_file, pairs_on_driver
from deltaweave.engine.find.driver_partitions import (
    PartitionColumns,
    PartitionValues,
    with_partition,
)
from deltaweave.engine.find.driver_setting import ON_DRIVER, setting_on_driver
from deltaweave.engine.find.driver_size import Held, in_threads, most_on_driver
from deltaweave.engine.find.file_numbers import places_of_files, with_numbers
from deltaweave.engine.find.key_index import (
    KEY_INDEX_DIRECTORY,
    index_new_files,
    stored_index,
    wanted_index,
)
from deltaweave.engine.find.later_matches import hold_match
from deltaweave.engine.find.matches import (
    TouchedFilesScan,
    find_touched_files,
    touched_files_of_pairs,
)
from deltaweave.engine.find.moved_pairs import moved_matches
from deltaweave.engine.find.pairs import MatchedRows
from deltaweave.engine.find.pairs_by_keys import compared_by_keys

__all__ = [
    "KEY_INDEX_DIRECTORY",
    "ON_DRIVER",
    "Candidates",
    "Compared",
    "DriverPairs",
    "Held",
    "MatchedRows",
    "PartitionColumns",
    "PartitionValues",
    "TouchedFilesScan",
    "by_file",
    "candidate_files",
    "compared",
    "compared_by_keys",
    "files_by_conditions",
    "find_candidates",
    "find_touched_files",
    "hold_match",
    "in_threads",
    "index_new_files",
    "most_on_driver",
    "moved_matches",
    "name_of",
    "own_locations",
    "pairs_on_driver",
    "places_of_files",
    "setting_on_driver",
    "stored_index",
    "touched_files_of_pairs",
    "wanted_index",
    "with_numbers",
    "with_partition",
]
