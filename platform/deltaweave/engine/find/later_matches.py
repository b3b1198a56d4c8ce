"""Whether files that other commits brought hold a row that the source matches, by reading them."""

from __future__ import annotations

from pyspark.sql import functions as F

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import translated
from deltaweave.delta.log import FileList
from deltaweave.delta.scan import target_plan
from deltaweave.engine import limits
from deltaweave.engine.find.candidates import may_hold_match
from deltaweave.engine.source import PreparedSource, SourceKeys, within


def hold_match(
    transaction: Transaction, source: PreparedSource, keys: SourceKeys, files: FileList
) -> bool:
    """Return whether a row of these files matches; also True if reading them all costs too much.

    Args:
        transaction: A transaction on a version that has the files.
        source: The source, which gives the same rows each time.
        keys: Its keys.
        files: The files.
    """
    merge = transaction.merge
    suspects = files.where(may_hold_match(transaction, source, keys, files))
    if not len(suspects):
        return False
    if suspects.size_in_bytes > limits.MAX_LATER_BYTES:
        return True
    target = target_plan(transaction, suspects, merge.condition_columns())
    possible = within(keys)
    if possible is not None:
        target = target.filter(possible)
    with translated(merge.table, version=transaction.version):
        matches = target.join(source.for_join(), merge.condition, "left_semi")
        return bool(matches.select(F.lit(True)).take(1))
