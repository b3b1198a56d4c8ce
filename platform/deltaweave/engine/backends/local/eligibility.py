"""The merges that the local backend may do, and its bounds of bytes, rows and threads.

Only merges qualify for which Arrow certainly gives what Spark gives. What the choice depends on is
known before the source is evaluated. The size of the candidate files is known only after that.
`explain` asks for the choice, too.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyspark.sql import Column
from pyspark.sql.types import StructField

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    ONLY_DELTA_CHECKS,
    PartitioningColumn,
    PassableColumn,
    Reading,
    WritableColumn,
    conditions_of_rows,
    partitioning,
    passable,
    reading_of,
    table_columns,
    vectors_writable,
    written_columns,
)
from deltaweave.delta.log import FileList, may_merge_locally
from deltaweave.delta.scan import estimated_bytes
from deltaweave.delta.statement import ResolvedMerge, TargetReads, equalities_alone, target_reads
from deltaweave.engine import limits
from deltaweave.engine.attempts import SPARK_DOES_THE_MERGE, attempted
from deltaweave.engine.backends.base import DeclinedError, allowed, require
from deltaweave.engine.backends.local.keys import Compared, compared
from deltaweave.engine.backends.local.partitions import is_plain
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.tasks import NotRewritableError

_LOCAL = re.compile(r"local(?:\[(?P<cores>\d+|\*)(?:,\s*\d+)?\])?")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def most_local(limit: int, master: str) -> int:
    """Scale a limit of rows or bytes of target files by Spark's master URL.

    Executors in processes of their own, mostly on other machines, bring cores and disks, so that
    the driver leaves them more than those of a local master. The same holds for a
    local master with more cores than the driver has threads.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return limit
    cores = local["cores"] or "1"
    number = (os.cpu_count() or 1) if cores == "*" else int(cores)
    threads = limits.MAX_LOCAL_THREADS
    return limit * max(1, limits.LOCAL_MASTER_FACTOR * threads // max(number, threads))


class ByteBudget:
    """The budget of bytes that several threads share.

    Args:
        what: What the bytes are of, for messages.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._lock, self._number = threading.Lock(), 0

    def add(self, number: int) -> None:
        """Count bytes; raises NotRewritableError if there are too many."""
        with self._lock:
            self._number += number
            if self._number > self._most:
                raise NotRewritableError(f"{self._what} have more than {self._most:,} bytes")


def in_threads(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    """Map a function over large items in order, a few at a time."""
    at_once = limits.MAX_LOCAL_THREADS
    with ThreadPoolExecutor(max_workers=at_once) as threads:
        for start in range(0, len(items), at_once):
            yield from threads.map(function, items[start : start + at_once])


@dataclass(frozen=True)
class Eligible:
    """The facts of a merge that the local backend may do.

    Attributes:
        written: The columns in the table's files.
        conditions: What new rows must satisfy, over the table's columns by name.
        reads: What WHEN MATCHED clauses read of the target.
        passed: The target's columns that they read, in the order of `reads.target`.
    """

    conjuncts: Sequence[Compared]
    written: Sequence[WritableColumn]
    partitioned_by: Sequence[PartitioningColumn]
    conditions: Sequence[Column]
    reads: TargetReads
    passed: Sequence[PassableColumn]


def local_eligibility(run: MergeRun) -> Eligible:
    """Return what the local backend needs to know. No job runs.

    Raises:
        DeclinedError: It leaves the merge to Spark.
    """
    attempt = partial(_eligible, run)
    eligible = attempted(run.table, SPARK_DOES_THE_MERGE, attempt, passing=DeclinedError)
    if eligible is None:
        raise DeclinedError("it is not known whether Arrow gives what Spark gives")
    return eligible


def file_eligibility(candidates: FileList) -> Verdict:
    """Return whether the local backend may read these candidate files."""
    master = str(candidates.spark.sparkContext.master)
    if candidates.size_in_bytes > most_local(limits.MAX_LOCAL_BYTES, master):
        return no(f"the candidate files have {candidates.size_in_bytes:,} bytes")
    return YES


def _eligible(run: MergeRun) -> Eligible:
    """Return what the local backend needs to know; raise DeclinedError if Spark does the merge."""
    require(*run.settings.local.verdict)
    merge, transaction = run.statement, run.transaction
    require(*_statement_eligibility(merge, run.source))
    beyond_source = [
        i for i, each in enumerate(merge.clauses) if not merge.is_of_source_alone(each)
    ]
    require(*_clause_eligibility(merge, beyond_source))
    require(*_source_eligibility(run.source, only_if_estimated=run.settings.local.is_auto))
    partitioned_by = _partitions(transaction)
    conditions = conditions_of_rows(transaction)
    require(*_table_eligibility(run))
    if conditions is None:
        raise DeclinedError(ONLY_DELTA_CHECKS)
    written = allowed(written_columns(transaction))
    equalities = equalities_alone(merge)
    if equalities is None:
        raise DeclinedError("ON has more than equalities of target columns and source values")
    conjuncts = compared(transaction, equalities)
    reads = target_reads(merge, checks_rows=bool(conditions)) if beyond_source else TargetReads()
    passed = _passed(transaction, reads)
    return Eligible(conjuncts, written, partitioned_by, conditions, reads, passed)


def _statement_eligibility(merge: ResolvedMerge, source: PreparedSource) -> Verdict:
    if not source.gives_same_rows:
        return no("the source may give other rows when it is read again")
    if merge.skips_unchanged:
        return no("updates that change nothing are skipped")
    if merge.of_kind("not_matched_by_source"):
        return no("a clause is WHEN NOT MATCHED BY SOURCE")
    return YES


def _clause_eligibility(merge: ResolvedMerge, beyond_source: Sequence[int]) -> Verdict:
    for i in beyond_source:
        if not merge.clauses[i].node.deterministic():
            return no(f"clause {i + 1} is not deterministic")
        if len(merge.evolved_schema) > limits.MAX_LOCAL_COLUMNS:
            return no(f"clause {i + 1} reads a target of {len(merge.evolved_schema):,} columns")
    return YES


def _passed(transaction: Transaction, reads: TargetReads) -> list[PassableColumn]:
    """Return the target's columns that clauses read, if Arrow may read them."""
    if not reads.takes_query:
        return []
    columns = {each.name: each for each in table_columns(transaction)}
    reading = reading_of(transaction)
    passed = [
        allowed(
            passable(columns[attribute.name], reading),
            "clauses or constraints read the target, and",
        )
        for attribute in reads.target
    ]
    for attribute in reads.source:
        of_source = StructField(attribute.name, attribute.data_type)
        allowed(passable(of_source, Reading()), "clauses read the source, and")
    # The values of inserts and those of updates then come from a query each.
    require(
        not any(clause.has_subquery() for clause in transaction.merge.clauses),
        "a clause reads the target and one has a subquery",
    )
    return passed


def _source_eligibility(source: PreparedSource, *, only_if_estimated: bool) -> Verdict:
    size = source.decoded_bytes
    if size is not None and size > limits.MAX_LOCAL_BYTES:
        return no(f"the source has {size:,} bytes")
    if size is None and only_if_estimated:
        estimated = estimated_bytes(source.rows)
        if estimated > limits.MAX_LOCAL_ESTIMATED_BYTES:
            return no(f"the source is estimated to have {estimated:,} bytes")
    if source.is_counted and source.num_rows > limits.MAX_LOCAL_ROWS:
        return no(f"the source has {source.num_rows:,} rows")
    return YES


def _table_eligibility(run: MergeRun) -> Verdict:
    transaction = run.transaction
    of_features = may_merge_locally(transaction.table)
    if not of_features.ok:
        return of_features
    in_place = run.settings.in_place.verdict
    return in_place if not in_place.ok and not vectors_writable(transaction) else YES


def _partitions(transaction: Transaction) -> list[PartitioningColumn]:
    """Return the table's partition columns, if the local backend may name partitions by them."""
    columns, partitions = {each.name: each for each in table_columns(transaction)}, []
    for name in transaction.partition_columns:
        column = partitioning(columns[name], reading_of(transaction))
        partitions.append(allowed(column, "it is partitioned, and"))
        require(
            transaction.metadata.has_random_directories or is_plain(name),
            f"it is partitioned by {name!r}, whose name is escaped in the names of directories",
        )
    return partitions
