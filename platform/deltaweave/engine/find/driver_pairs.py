"""Pairs of a merge that the driver does: its source's rows are there, with their clauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    INSERTABLE,
    NEW_ROW,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)
from deltaweave.engine.find.driver_keys import Compared
from deltaweave.engine.find.driver_matches import matches_on_driver, name_of
from deltaweave.engine.find.driver_partitions import PartitionColumns, PartitionValues
from deltaweave.engine.find.pairs import Pairs
from deltaweave.engine.source import CollectedSource
from deltaweave.engine.tasks import Storage

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class DriverPairs:
    """What the driver found.

    Attributes:
        pairs: The pairs, in the order of files and rows. `SOURCE_ROW` is the number of the row in
            the `CollectedSource`, and so is `NEW_ROW`; `TARGET_ROW_ID` is the row's index in its
            file.
        is_matched: For each source row, whether it is in a pair.
        row_counts: For each file with pairs, as `FILE` names it, the number of its rows that are
            not marked as deleted, as the file itself says.
        marked: For each file with pairs, as `FILE` names it, the indexes of the rows that were
            marked as deleted before; files without such rows are missing.
        partitioned_by: The table's partition columns.
        partitions: The partition of each candidate file, as `FILE` names it.
    """

    pairs: Pairs
    is_matched: numpy.ndarray
    row_counts: Mapping[str, int]
    marked: Mapping[str, numpy.ndarray]
    partitioned_by: PartitionColumns
    partitions: Mapping[str, PartitionValues]

    def row_counts_in(self, touched: FileList) -> numpy.ndarray:
        """Return the number of rows in files with pairs, in their order, as the files record it."""
        import numpy as np

        names = [name_of(location) for location in touched.rows["location"].to_pylist()]
        return np.array([self.row_counts[name] for name in names], dtype=np.int64)


def pairs_on_driver(
    transaction: Transaction,
    candidates: FileList,
    source: CollectedSource,
    conjuncts: Sequence[Compared],
    partitioned_by: PartitionColumns,
    *,
    with_insertable: bool,
    storage: Storage,
    new_calendar: bool,
) -> DriverPairs:
    """Find the pairs in the candidate files.

    Args:
        transaction: The merge's transaction.
        candidates: The files.
        source: The source's rows.
        conjuncts: The equalities that the ON condition consists of.
        partitioned_by: The table's partition columns.
        with_insertable: Whether the pairs have `INSERTABLE`.
        storage: Where the files lie.
        new_calendar: As `assumes_new_calendar` says.

    Raises:
        NotRewritableError: Spark must find the pairs.
        OSError: A file could not be read; so with Arrow's errors.
    """
    import numpy as np
    import pyarrow as pa

    matches = matches_on_driver(
        transaction,
        candidates,
        source.keys,
        conjuncts,
        partitioned_by,
        storage=storage,
        new_calendar=new_calendar,
        at_most=limits.MAX_PAIRS_ON_DRIVER,
    )
    names = [name_of(location) for location in matches.locations]
    numbers, source_rows = matches.files, matches.source_rows
    of_pairs = {
        FILE: pa.array(names, pa.string()).take(pa.array(numbers)),
        TARGET_ROW_ID: pa.array(matches.rows),
        SOURCE_ROW: pa.array(source_rows),
        NEW_ROW: pa.array(source_rows),
        CLAUSE: pa.array(source.clauses[source_rows], pa.int32()),
    }
    if with_insertable:
        of_pairs[INSERTABLE] = pa.array(source.insert_clauses[source_rows] != NO_CLAUSE)
    is_matched = np.zeros(source.rows.num_rows, dtype=bool)
    is_matched[source_rows] = True
    pairs = Pairs(None, pa.table(of_pairs), transaction.merge.spark)
    marked = matches.marked
    row_counts = {
        names[i]: matches.row_counts[i] - len(marked.get(i, ())) for i in np.unique(numbers)
    }
    of_files = {names[i]: places for i, places in marked.items()}
    of_names = dict(zip(names, matches.partitions, strict=True))
    return DriverPairs(pairs, is_matched, row_counts, of_files, partitioned_by, of_names)


def by_file(changes: pyarrow.Table) -> dict[str, pyarrow.Table]:
    """Split the pairs by file, as `FILE` names it; those of a file are one after the other."""
    import numpy as np

    files = changes[FILE].combine_chunks().dictionary_encode()
    assert (np.diff(files.indices.to_numpy()) >= 0).all(), "pairs are in the order of files"
    bounds = np.searchsorted(files.indices.to_numpy(), np.arange(len(files.dictionary) + 1))
    return {
        name: changes.slice(bounds[i], bounds[i + 1] - bounds[i])
        for i, name in enumerate(files.dictionary.to_pylist())
    }
