"""Which touched files leave a table that takes deletion vectors, rather than stay with marked rows.

Marking writes changed rows alone, but every later scan reads the marked rows for nothing, until the
table is purged. A file of which few rows would be left is rewritten: copying these few costs less
than reading the others again and again. A file without any row left goes without being marked.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaweave.delta.file_list import FileList
from deltaweave.delta.transaction import Transaction
from deltaweave.engine.touched_files import TouchedFilesScan

MAX_MARKED_FRACTION = "spark.deltaweave.merge.maxMarkedFraction"
"""A file is rewritten where more than this fraction of its rows would be marked; 1 marks always."""

# Copying the rest then writes at most a quarter of the rows that are written anyway, where the file
# had no vector, and saves each later scan four fifths of the file.
DEFAULT_MAX_MARKED_FRACTION = 0.8


def max_marked_fraction(transaction: Transaction) -> float:
    """The setting, or its default."""
    setting = transaction.merge.spark.conf.get(MAX_MARKED_FRACTION, None)
    return DEFAULT_MAX_MARKED_FRACTION if setting is None else float(setting)


@dataclass(frozen=True)
class FilesLeft:
    """What becomes of the touched files.

    Attributes:
        stay: Those to mark rows in.
        removed: Those that leave the table.
        copied: Those of the removed that have rows left, which are written anew.
        num_copied: How many rows that are.
    """

    stay: FileList
    removed: FileList
    copied: FileList
    num_copied: int


def mark_or_remove(transaction: Transaction, scan: TouchedFilesScan) -> FilesLeft:
    """Choose for each touched file, by the fraction of its rows that would be marked.

    Rows that earlier merges marked count as marked. A file whose number of rows is not known stays.
    """
    import numpy as np

    limit = max_marked_fraction(transaction)
    rows, num_marked = scan.touched.row_counts, scan.touched.rows["num_marked"].to_numpy()
    left = rows - np.array(scan.changed_by_file, dtype=float)
    leaves = (left == 0) | (1 - left / (rows + num_marked) > limit)
    return FilesLeft(
        scan.touched.where(~leaves),
        scan.touched.where(leaves),
        scan.touched.where(leaves & (left > 0)),
        int(left[leaves].sum()),
    )
