"""Which touched files are worth rewriting in place: those in which few rows change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta.commit import Transaction
from deltaweave.delta.log import FileList
from deltaweave.engine import limits
from deltaweave.engine.find import TouchedFilesScan
from deltaweave.engine.write.strategy import setting_in_place

if TYPE_CHECKING:
    import numpy


def most_rows_change(transaction: Transaction, scan: TouchedFilesScan) -> bool:
    """Return whether too many rows of every touched file change to rewrite any in place."""
    is_big = scan.touched.size_in_bytes >= limits.MIN_BYTES_IN_PLACE
    return setting_in_place(transaction) != "true" and is_big and not _few_rows_change(scan).any()


def worth_rewriting_in_place(transaction: Transaction, scan: TouchedFilesScan) -> FileList:
    """Return the touched files to rewrite in place: all of them if the setting is `true`."""
    if setting_in_place(transaction) == "true":
        return scan.touched
    files = scan.touched.where(_few_rows_change(scan))
    return files if files.size_in_bytes >= limits.MIN_BYTES_IN_PLACE else scan.touched.none()


def _few_rows_change(scan: TouchedFilesScan) -> numpy.ndarray:
    """Return for each touched file whether few of its rows change; false if that is not known."""
    import numpy as np

    at_most = limits.MAX_CHANGED_FRACTION_IN_PLACE * scan.touched.row_counts
    few: numpy.ndarray = np.array(scan.changed_by_file) <= at_most
    return few
