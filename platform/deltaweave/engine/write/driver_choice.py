"""Which merges the driver may do alone, which the write phase and `explain` share.

Only merges qualify for which Arrow certainly gives what Spark gives. What the choice depends on is
known before the source is evaluated. The size of the candidate files is known only after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import Column
from pyspark.sql.types import StructField

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    PartitioningColumn,
    PassableColumn,
    Reading,
    Verdict,
    WritableColumn,
    conditions_of_rows,
    partitioning,
    passable,
    reading_of,
    table_columns,
    vectors_writable,
    written_columns,
)
from deltaweave.delta.log import FileList
from deltaweave.delta.scan import estimated_bytes, tracked_columns
from deltaweave.delta.statement import (
    ResolvedMerge,
    TargetReads,
    equalities_alone,
    target_reads,
)
from deltaweave.engine import limits
from deltaweave.engine.find import (
    ON_DRIVER,
    Compared,
    compared,
    in_threads,
    most_on_driver,
    own_locations,
    setting_on_driver,
)
from deltaweave.engine.local_attempt import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.tasks import TableFormat, check_copyable
from deltaweave.engine.write.partition_parts import is_plain
from deltaweave.engine.write.strategy import ONLY_DELTA_CHECKS, REWRITE_IN_PLACE, setting_in_place

_IDENTITY = "delta.identity."


@dataclass(frozen=True)
class DriverChoice:
    """Whether the driver may do a merge alone.

    Attributes:
        why_not: Why Spark must do the merge; None if the driver may. The others are set only then.
        conjuncts: The equalities that the ON condition consists of.
        written: The columns in the table's files.
        partitioned_by: The table's partition columns.
        reads: What WHEN MATCHED clauses read of the target.
        passed: The target's columns that they read, in the order of `reads.target`.
        conditions: What new rows must satisfy, over the table's columns by name.
    """

    why_not: str | None
    conjuncts: Sequence[Compared] = ()
    written: Sequence[WritableColumn] = ()
    partitioned_by: Sequence[PartitioningColumn] = ()
    reads: TargetReads = field(default_factory=TargetReads)
    passed: Sequence[PassableColumn] = ()
    conditions: Sequence[Column] = ()


def choose_driver(transaction: Transaction, source: PreparedSource) -> DriverChoice:
    """Choose whether the driver tries the merge. No job runs."""
    attempt = partial(_driver_choice, transaction, source)
    choice = attempted(transaction.merge.table, SPARK_DOES_THE_MERGE, attempt)
    return choice or DriverChoice("it is not known whether Arrow gives what Spark gives")


def _driver_choice(transaction: Transaction, source: PreparedSource) -> DriverChoice:
    setting = setting_on_driver(transaction.merge.spark)
    if setting not in ("auto", "true"):
        return DriverChoice(f"{ON_DRIVER} is {setting}")
    merge = transaction.merge
    if why_not := _of_statement(merge, source):
        return DriverChoice(why_not)
    beyond_source = [
        i for i, each in enumerate(merge.clauses) if not merge.is_of_source_alone(each)
    ]
    why_not = _of_clauses(merge, beyond_source) or _of_source(
        source, only_if_estimated=setting == "auto"
    )
    if why_not is not None:
        return DriverChoice(why_not)
    partitioned_by = _partitions(transaction)
    if isinstance(partitioned_by, Verdict):
        return DriverChoice(partitioned_by.reason)
    conditions = conditions_of_rows(transaction)
    why_not = _of_table(transaction)
    if why_not is not None or conditions is None:
        return DriverChoice(why_not or ONLY_DELTA_CHECKS)
    written = written_columns(transaction)
    if isinstance(written, Verdict):
        return DriverChoice(written.reason)
    equalities = equalities_alone(merge)
    if equalities is None:
        return DriverChoice("ON has more than equalities of target columns and source values")
    conjuncts = compared(transaction, equalities)
    if isinstance(conjuncts, Verdict):
        return DriverChoice(conjuncts.reason)
    choice = DriverChoice(None, conjuncts, written, partitioned_by, conditions=conditions)
    if not beyond_source:
        return choice
    reads = target_reads(merge, checks_rows=bool(conditions))
    passed = _passed(transaction, reads)
    if isinstance(passed, Verdict):
        return DriverChoice(passed.reason)
    return replace(choice, reads=reads, passed=passed)


def why_not_these_files(candidates: FileList) -> str | None:
    """Return why the driver leaves these candidate files to Spark; None if it does not."""
    master = str(candidates.spark.sparkContext.master)
    if candidates.size_in_bytes > most_on_driver(limits.MAX_BYTES_ON_DRIVER, master):
        return f"the candidate files have {candidates.size_in_bytes:,} bytes"
    return None


def check_copies(files: FileList, table: TableFormat) -> None:
    """Raise NotRewritableError if Arrow may not copy one of these files."""

    def check(location: str) -> None:
        with table.storage.opened(location) as file:
            check_copyable(file, table.schema, new_calendar=table.new_calendar)

    for _ in in_threads(check, own_locations(files)):
        pass


def _of_statement(merge: ResolvedMerge, source: PreparedSource) -> str | None:
    if not source.gives_same_rows:
        return "the source may give other rows when it is read again"
    if merge.skips_unchanged:
        return "updates that change nothing are skipped"
    if merge.of_kind("not_matched_by_source"):
        return "a clause is WHEN NOT MATCHED BY SOURCE"
    return None


def _of_clauses(merge: ResolvedMerge, beyond_source: Sequence[int]) -> str | None:
    """Return why a clause rules out the local backend, or None."""
    for i in beyond_source:
        if not merge.clauses[i].node.deterministic():
            return f"clause {i + 1} is not deterministic"
        if len(merge.evolved_schema) > limits.MAX_COLUMNS_ON_DRIVER:
            return f"clause {i + 1} reads a target of {len(merge.evolved_schema):,} columns"
    return None


def _passed(transaction: Transaction, reads: TargetReads) -> list[PassableColumn] | Verdict:
    """Return the target's columns that clauses read, or why only Spark may read them."""
    if not reads.takes_query:
        return []
    columns, reading = (
        {each.name: each for each in table_columns(transaction)},
        reading_of(transaction),
    )
    passed = []
    for attribute in reads.target:
        column = passable(columns[attribute.name], reading)
        if isinstance(column, Verdict):
            return Verdict(False, f"clauses or constraints read the target, and {column.reason}")
        passed.append(column)
    for attribute in reads.source:
        of_source = passable(StructField(attribute.name, attribute.data_type), Reading())
        if isinstance(of_source, Verdict):
            return Verdict(False, f"clauses read the source, and {of_source.reason}")
    # The values of inserts and those of updates then come from a query each.
    for clause in transaction.merge.clauses:
        if clause.has_subquery():
            return Verdict(False, "a clause reads the target and one has a subquery")
    return passed


def _of_source(source: PreparedSource, *, only_if_estimated: bool) -> str | None:
    size = source.decoded_bytes
    if size is not None and size > limits.MAX_BYTES_ON_DRIVER:
        return f"the source has {size:,} bytes"
    if size is None and only_if_estimated:
        estimated = estimated_bytes(source.rows)
        if estimated > limits.MAX_ESTIMATED_BYTES_ON_DRIVER:
            return f"the source is estimated to have {estimated:,} bytes"
    if source.is_counted and source.num_rows > limits.MAX_ROWS_ON_DRIVER:
        return f"the source has {source.num_rows:,} rows"
    return None


def _of_table(transaction: Transaction) -> str | None:
    if tracked_columns(transaction) is not None:
        return "the table tracks its rows"
    if any(key.startswith(_IDENTITY) for c in table_columns(transaction) for key in c.metadata):
        return "the table has identity columns"
    setting = setting_in_place(transaction)
    if setting not in ("auto", "true") and not vectors_writable(transaction):
        return f"{REWRITE_IN_PLACE} is {setting}"
    return None


def _partitions(transaction: Transaction) -> list[PartitioningColumn] | Verdict:
    """Return the table's partition columns, or why only Spark may name a partition by one."""
    columns, partitions = {each.name: each for each in table_columns(transaction)}, []
    for name in transaction.partition_columns:
        column = partitioning(columns[name], reading_of(transaction))
        if isinstance(column, Verdict):
            return Verdict(False, f"it is partitioned, and {column.reason}")
        if not (transaction.metadata.has_random_directories or is_plain(name)):
            reason = "whose name is escaped in the names of directories"
            return Verdict(False, f"it is partitioned by {name!r}, {reason}")
        partitions.append(column)
    return partitions
