"""Finds the matches of files that are gone in the files that other commits put in their place.

A compaction, or a commit that rewrote a file to change other rows of it, moves the rows that a
merge matched. If the same source rows then match in the new files, and the same clauses take them,
the merge inserts the same rows, and only the new files have to be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList, decoded_location
from deltaweave.engine import limits
from deltaweave.engine.columns import CLAUSE, FILE, SOURCE_ROW
from deltaweave.engine.find.candidates import Candidates, may_hold_match
from deltaweave.engine.find.matches import TouchedFilesScan, find_touched_files
from deltaweave.engine.source import PreparedSource, SourceKeys

if TYPE_CHECKING:
    import pyarrow


def moved_matches(
    transaction: Transaction,
    source: PreparedSource,
    keys: SourceKeys,
    then: TouchedFilesScan,
    gone: FileList,
    came: FileList,
) -> TouchedFilesScan | None:
    """Scan the files that came, and return the scan if it finds the pairs of the files gone.

    None if they are others, or too many to be compared on the driver.

    Args:
        transaction: A transaction on a version that has the files that came.
        source: The source, which gives the same rows each time.
        keys: Its keys.
        then: What the merge found; its source rows have an identity.
        gone: Files with matches that are no longer in the table.
        came: Files that were not in the table then.

    Raises:
        AmbiguousMatchError: Several source rows match a row of the files that came.
    """
    before = then.pairs.on_driver
    suspects = came.where(may_hold_match(transaction, source, keys, came))
    too_big = suspects.size_in_bytes > limits.MAX_LATER_BYTES
    if before is None or too_big or not len(suspects):
        return None
    candidates = Candidates(suspects, suspects, keys)
    now = find_touched_files(transaction, source, candidates, with_row_index=True)
    after = now.pairs.on_driver
    if after is None:
        now.pairs.unpersist()
        return None
    is_same = _rows_and_clauses(_in_files(before, gone)).equals(_rows_and_clauses(after))
    return now if is_same and not now.num_repeated else None


def _in_files(pairs: pyarrow.Table, files: FileList) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    locations = set(files.rows["location"].to_pylist())
    names = pairs[FILE].unique().to_pylist()
    wanted = [name for name in names if decoded_location(name) in locations]
    return pairs.filter(pc.is_in(pairs[FILE], pa.array(wanted, pa.string())))


def _rows_and_clauses(pairs: pyarrow.Table) -> pyarrow.Table:
    """Count the pairs of each source row and clause, in a fixed order."""
    import pyarrow as pa

    rows = pa.table({"row": pairs[SOURCE_ROW], CLAUSE: pairs[CLAUSE]}).flatten().combine_chunks()
    counted = rows.group_by(rows.column_names).aggregate([([], "count_all")])
    return counted.sort_by([(name, "ascending") for name in counted.column_names])
