"""The choice of a strategy, which the write phase and `explain` share.

The choice depends on the statement, on settings, on the table's features and on the source. It
comes before the scan for matches, whose result may change the outcome: a merge that touches no
file inserts at most, and files in which most rows change are left to Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    ALLOWED,
    Verdict,
    conditions_of_rows,
    vectors_writable,
    written_columns,
)
from deltaweave.delta.statement import keeps_columns
from deltaweave.engine import limits
from deltaweave.engine.executor_python import WITHOUT_PYARROW, lacks_pyarrow
from deltaweave.engine.local_attempt import attempted
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.mark_or_rewrite import max_marked_fraction

REWRITE_IN_PLACE = "spark.deltaweave.merge.rewriteInPlace"
"""Whether files are rewritten in place: `auto` (if there is enough to copy), `true` or `false`."""

ONLY_DELTA_CHECKS = "only Delta's writer checks some of the table's constraints"


class Strategy(Enum):
    """How the changes of a merge were written; the values are those of `MergeResult.strategy`."""

    INSERT_ONLY = "insert-only"
    DELETION_VECTORS = "deletion-vectors"
    COPY_IN_PLACE = "copy-in-place"
    COPY_ON_WRITE = "copy-on-write"
    NONE = "none"
    ALREADY_APPLIED = "already-applied"
    BUILTIN = "builtin"


@dataclass(frozen=True)
class Choice:
    """The strategy that a merge starts with.

    Attributes:
        strategy: The strategy.
        reason: Why, as `explain` shows it.
    """

    strategy: Strategy
    reason: str


def choose_strategy(transaction: Transaction, source: PreparedSource) -> Choice:
    """Choose how the changes are to be written. Nothing is written and no job runs."""
    if transaction.merge.takes_insert_only_path:
        return Choice(Strategy.INSERT_ONLY, "the statement has WHEN NOT MATCHED clauses alone")
    if vectors_writable(transaction):
        return Choice(
            Strategy.DELETION_VECTORS,
            "the table takes deletion vectors; files in which more than "
            f"{max_marked_fraction(transaction):.0%} of the rows would be marked are rewritten",
        )
    table = transaction.merge.table
    attempt = partial(_in_place, transaction, source)
    unknown = Verdict(False, "it is not known whether Arrow copies its files as Spark does")
    in_place = attempted(table, "Spark rewrites the touched files", attempt) or unknown
    if in_place.ok:
        reason = "the table's files can be copied row by row in their order"
        if may_move_rows(transaction):
            reason += "; changed rows, which may move to other partitions, go to other files"
        return Choice(Strategy.COPY_IN_PLACE, reason)
    return Choice(
        Strategy.COPY_ON_WRITE, f"Spark rewrites the touched files, since {in_place.reason}"
    )


def setting_in_place(transaction: Transaction) -> str:
    """Return the value of `REWRITE_IN_PLACE`; what is none of the three means `false`."""
    given = transaction.merge.spark.conf.get(REWRITE_IN_PLACE, "auto") or "auto"
    return given.strip().lower()


def may_move_rows(transaction: Transaction) -> bool:
    """Return whether an update may move rows to another partition."""
    merge, partitioned_by = transaction.merge, transaction.partition_columns
    updates = [clause for clause in merge.clauses if clause.action == "update"]
    return bool(partitioned_by) and not all(
        keeps_columns(merge, each, partitioned_by) for each in updates
    )


def choice_on_driver(choice: Choice) -> Choice:
    """Return the choice for a merge on the driver: it rewrites files in place, or none."""
    if choice.strategy is not Strategy.COPY_ON_WRITE:
        return choice
    return Choice(Strategy.COPY_IN_PLACE, "the driver copies the files row by row in their order")


def _in_place(transaction: Transaction, source: PreparedSource) -> Verdict:
    """Return whether some touched files may be rewritten in place."""
    why_not = _why_not_in_place(transaction, source)
    if why_not is not None:
        return Verdict(False, why_not)
    columns = written_columns(transaction)
    return columns if isinstance(columns, Verdict) else ALLOWED


def _why_not_in_place(transaction: Transaction, source: PreparedSource) -> str | None:
    """Return why Spark has to rewrite all touched files, whatever their columns; or None."""
    if not source.gives_same_rows:
        # Changed rows are computed after the scan, and must be the rows that the scan saw.
        return "the source may give other rows when it is read again"
    setting = setting_in_place(transaction)
    if setting not in ("auto", "true"):
        return f"{REWRITE_IN_PLACE} is {setting}"
    if lacks_pyarrow(transaction.merge.spark):
        return WITHOUT_PYARROW
    if setting == "auto" and transaction.table.size_in_bytes < limits.MIN_BYTES_IN_PLACE:
        return "the table is small"
    if setting == "auto" and may_move_rows(transaction):
        # Each changed row would leave its file, and each merge add a file to each partition.
        return "an update may move rows to another partition"
    if conditions_of_rows(transaction) is None:
        return ONLY_DELTA_CHECKS
    return None
