"""Appends and overwrites, each in one commit and without a merge.

Delta's own writer writes the files and checks schema, constraints and the predicate. The commit is
made here, so that it can hold any number of transaction identifiers (Delta protocol, "Transaction
Identifiers").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.after_commit import AfterCommit
from deltaweave.delta.commit.assigned_rows import assigned
from deltaweave.delta.commit.commit_call import Committed, committed
from deltaweave.delta.commit.partition_times import check_partition_times, with_true_times
from deltaweave.delta.commit.transaction_ids import (
    OF_A_PART,
    is_applied,
    last_applied,
    reset_session_pair,
    session_pair,
    transaction_id,
)
from deltaweave.delta.commit.uncommitted_files import OwnFiles
from deltaweave.delta.jvm import JavaObject, letting_go, translated
from deltaweave.delta.log import TableSnapshot, at_version
from deltaweave.delta.releases import write_command, write_operation
from deltaweave.errors import StatementError


@dataclass(frozen=True)
class WriteResult:
    """What a write committed.

    Attributes:
        version: The version it made, or None where all of its identifiers were applied before.
        metrics: Delta's metrics of the write by their names, e.g. `numOutputRows`.
        warnings: What failed after the commit, a sentence each. The commit stands.
    """

    version: int | None
    metrics: Mapping[str, int]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Write:
    """How rows are written into an existing table; `Table.write` describes the options.

    Attributes:
        table: What messages call the table.
        overwrite: Whether the rows replace others.
        replace_where: SQL predicate of the rows that are replaced; None for all.
        with_schema_evolution: Whether new columns are added to the table.
        applied: Application ids and versions that go into the same commit.
        once: Whether nothing is done if the table holds all of `applied` already.
        applied_before: The version that the table must hold of the one pair's id.
        recorded: Further pairs for the commit, which do not matter to `once`.
        computed_from: The version of the table that the rows were computed from.
        reads_all: Whether they were computed from all of it.
        check: Called right before the commit, and raises if there is to be none.
    """

    table: str
    overwrite: bool
    replace_where: str | None = None
    with_schema_evolution: bool = False
    applied: Mapping[str, int] = field(default_factory=dict)
    once: bool = False
    applied_before: int | None = None
    recorded: Mapping[str, int] = field(default_factory=dict)
    computed_from: int | None = None
    reads_all: bool = True
    check: Callable[[], None] | None = None

    @property
    def operation(self) -> str:
        """What messages call the write."""
        return "overwriting" if self.overwrite else "append"

    @property
    def options(self) -> dict[str, str]:
        """Delta's options of the write.

        Raises:
            StatementError: The predicate is empty.
        """
        # A session that overwrites partitions dynamically would leave the other partitions' rows.
        options = {
            "mergeSchema": str(self.with_schema_evolution),
            "partitionOverwriteMode": "static",
            **OF_A_PART,
        }
        if self.replace_where is not None:
            options["replaceWhere"] = _condition(self.replace_where, self.table)
        return options


def write_rows(log: JavaObject, rows: DataFrame, write: Write) -> WriteResult:
    """Write rows into an existing table; see `Table.write`."""
    spark = rows.sparkSession
    pair = None if write.applied else session_pair(spark, table=write.table)
    if pair is None:
        return _write(log, rows, write)
    result = _write(log, rows, replace(write, applied=dict([pair]), once=True))
    afterwards = AfterCommit(write.table, result.version, list(result.warnings))
    with afterwards.step("resetting the session's idempotency pair"):
        reset_session_pair(spark)
    return replace(result, warnings=tuple(afterwards.warnings))


def _write(log: JavaObject, rows: DataFrame, write: Write) -> WriteResult:
    spark = rows.sparkSession
    options = write.options
    delta = jvm_.jvm(spark).org.apache.spark.sql.delta
    active = jvm_.singleton(delta, "OptimisticTransaction")
    with translated(write.table, operation=write.operation, version=write.computed_from):
        transaction = _begun(rows, log, write.computed_from, write.reads_all)
        if _is_done(transaction, TableSnapshot(spark, log, transaction.snapshot()), write):
            return WriteResult(None, {})
        if _reads_leniently(rows, transaction, write):
            jvm_.refuse_lenient_reads(spark, write.table, write.operation)
        active.setActive(transaction)
        try:
            done = _written_and_committed(log, transaction, rows, write, options)
        finally:
            with letting_go("the active transaction"):
                active.clearActive()
    metrics: dict[str, int] = {}
    afterwards = AfterCommit(write.table, done.version, list(done.warnings))
    with afterwards.step("reading its metrics"):
        metrics = _metrics(transaction)
    return WriteResult(done.version, metrics, tuple(afterwards.warnings))


def _reads_leniently(rows: DataFrame, transaction: JavaObject, write: Write) -> bool:
    """Return whether Delta would rewrite files, and pass over what it cannot read of them.

    It does not where whole partitions are replaced.
    """
    if write.replace_where is None or not jvm_.reads_leniently(rows.sparkSession):
        return False
    replaced = rows.where(write.replace_where)._jdf.queryExecution().analyzed().condition()
    columns = [each.name() for each in jvm_.iterate(replaced.references().toSeq())]
    partitions = {name.lower() for name in jvm_.iterate(transaction.metadata().partitionColumns())}
    return not {name.lower() for name in columns} <= partitions


def _is_done(transaction: JavaObject, table: TableSnapshot, write: Write) -> bool:
    """Return whether the table holds all pairs already, so that nothing is to be written.

    Raises:
        CommitConflictError: It does not hold the version that the rows were computed from.
    """
    are_applied = [
        is_applied(
            pair,
            last_applied(transaction, table, pair[0]),
            write.applied_before if write.once else None,
            table=write.table,
            version=table.version,
        )
        for pair in write.applied.items()
    ]
    return write.once and bool(are_applied) and all(are_applied)


def _written_and_committed(
    log: JavaObject,
    transaction: JavaObject,
    rows: DataFrame,
    write: Write,
    options: Mapping[str, str],
) -> Committed:
    """Write the rows by Delta's writer, and commit what it wrote together with the pairs."""
    spark = rows.sparkSession
    view, session = jvm_.jvm(spark), spark._jsparkSession
    delta, nothing = view.org.apache.spark.sql.delta, jvm_.option(view, None)
    modes = view.org.apache.spark.sql.SaveMode
    mode = modes.Overwrite if write.overwrite else modes.Append
    metadata = transaction.metadata()
    check_partition_times(spark, metadata, table=write.table, operation=write.operation)
    own_files = OwnFiles(spark, log, transaction)
    with own_files.deleted_unless_committed():
        written = assigned(rows, transaction, may_evolve=write.with_schema_evolution)
        writer = write_command(
            spark,
            log,
            mode,
            delta.DeltaOptions(jvm_.scala_map(view, options), session.sessionState().conf()),
            metadata.partitionColumns(),
            jvm_.scala_map(view, {}),
            written._jdf,
            nothing,
            nothing,
        )
        with own_files.named():
            data = writer.writeAndReturnCommitData(transaction, session, nothing, False)
            of_write = with_true_times(written, own_files, data.actions())
        pair = jvm_.class_of_delta(spark, "org.apache.spark.sql.delta.actions.SetTransaction")
        of_write = of_write.filterNot(jvm_.instances_of(spark, pair))
        actions = view.java.util.ArrayList()
        actions.addAll(jvm_.java_list(view, of_write))
        for name, version in {**write.recorded, **write.applied}.items():
            actions.add(transaction_id(view, name, version))
        predicate = jvm_.option(view, write.replace_where)
        made = write_operation(spark, mode, predicate)
        arguments = (jvm_.seq_of(view, actions), made, data.stringTags())
        if write.check is not None:
            write.check()
        own_files.is_committing = True
        return committed(
            spark,
            log,
            transaction,
            lambda: int(transaction.commit(*arguments)),
            table=write.table,
            operation=write.operation,
        )


def _begun(
    rows: DataFrame, log: JavaObject, computed_from: int | None, reads_all: bool
) -> JavaObject:
    """Begin a transaction at the newest version, or at the one that the rows were computed from."""
    nothing = jvm_.option(jvm_.jvm(rows.sparkSession), None)
    if computed_from is None:
        return log.startTransaction(nothing, nothing)
    snapshot = at_version(rows.sparkSession, log, computed_from).snapshot
    transaction = log.startTransaction(nothing, jvm_.option(jvm_.jvm(rows.sparkSession), snapshot))
    if reads_all:
        # Otherwise, Delta treats appends as blind, and assumes that an overwrite read only the rows
        # that it replaces.
        transaction.readWholeTable()
    return transaction


def _condition(replace_where: str, table: str) -> str:
    if not replace_where.strip():
        raise StatementError(
            "the predicate of the rows to replace is empty.",
            table=table,
            operation="overwriting",
            hint="Say which rows are replaced, or overwrite the whole table on purpose.",
        )
    return replace_where


def _metrics(transaction: JavaObject) -> dict[str, int]:
    metrics = transaction.commitInfo().operationMetrics()
    if not metrics.isDefined():
        return {}
    return {str(each._1()): int(each._2()) for each in jvm_.iterate(metrics.get())}
