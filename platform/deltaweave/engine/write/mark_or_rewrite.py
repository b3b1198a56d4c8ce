"""Which touched files are marked, and which are rewritten, in a table with deletion vectors.

Marking writes changed rows alone, but every later scan reads the marked rows, too, until the
table is purged. So a file that would keep few rows is rewritten: copying these rows costs
less than to read the others again and again. A file without any row left is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction, WrittenFiles
from deltaweave.delta.files import MarkedRows
from deltaweave.delta.jvm import number_setting
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.find import TouchedFilesScan

if TYPE_CHECKING:
    import numpy

MAX_MARKED_FRACTION = "spark.deltaweave.merge.maxMarkedFraction"
"""A file is rewritten if more than this fraction of its rows would be marked; 1 always marks."""


def max_marked_fraction(transaction: Transaction) -> float:
    """Return the setting of the greatest fraction of marked rows, or its default."""
    spark, default = transaction.merge.spark, limits.DEFAULT_MAX_MARKED_FRACTION
    return number_setting(spark, MAX_MARKED_FRACTION, otherwise=default)


@dataclass(frozen=True)
class TouchedFileFates:
    """What becomes of the touched files.

    Attributes:
        stay: Files in which rows are marked.
        removed: Files that leave the table.
        copied: Removed files that have rows left, which are rewritten.
        num_copied: How many such rows there are.
    """

    stay: FileList
    removed: FileList
    copied: FileList
    num_copied: int


@dataclass(frozen=True)
class MarkedFiles:
    """What marking or rewriting touched files did.

    Attributes:
        fates: Which touched files stay and which leave the table.
        written: The new files, or None.
        marked: The deletion vectors of the files that stay.
    """

    fates: TouchedFileFates
    written: WrittenFiles | None
    marked: MarkedRows


def mark_or_rewrite(
    transaction: Transaction, scan: TouchedFilesScan, row_counts: numpy.ndarray | None = None
) -> TouchedFileFates:
    """Choose for each touched file, by the fraction of its rows that would be marked.

    Rows that earlier merges marked count as marked. A file with an unknown number of rows stays,
    and so does one in which more rows changed than its statistics count. A file whose own row count
    contradicts its statistics is rewritten: Delta would take it for empty by them.

    Args:
        transaction: The merge's transaction.
        scan: The touched files.
        row_counts: How many rows each of them has, as the file itself says, if that is known.
    """
    import numpy as np

    limit = max_marked_fraction(transaction)
    said = scan.touched.row_counts
    rows = said if row_counts is None else row_counts
    num_marked = scan.touched.rows["num_marked"].to_numpy()
    left = rows - np.array(scan.changed_by_file, dtype=float)
    fraction = 1 - left / np.maximum(rows + num_marked, 1)
    is_wrong = (rows != said) & ~np.isnan(said)
    leaves = (left == 0) | ((left > 0) & ((fraction > limit) | is_wrong))
    return TouchedFileFates(
        scan.touched.where(~leaves),
        scan.touched.where(leaves),
        scan.touched.where(leaves & (left > 0)),
        int(left[leaves].sum()),
    )


def all_rewritten(scan: TouchedFilesScan, row_counts: numpy.ndarray) -> TouchedFileFates:
    """Return the plan of files in a table without deletion vectors: all are rewritten.

    Args:
        scan: The touched files.
        row_counts: How many rows each of them has, as the file itself says.
    """
    import numpy as np

    copied = scan.touched.where(row_counts > np.array(scan.changed_by_file))
    return TouchedFileFates(scan.touched.none(), scan.touched, copied, 0)
