"""Rows written without a merge: appended, or put in the place of others, in one commit.

Delta's own writer makes the files and checks schema, constraints and the predicate; the commit is
made here, so that any number of transaction identifiers can go with it (Delta protocol,
"Transaction Identifiers").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.after_commit import AfterCommit
from deltaweave.delta.committing import committed
from deltaweave.delta.failures import letting_go, translated
from deltaweave.delta.idempotency import is_applied
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.own_files import OwnFiles
from deltaweave.delta.snapshot import at_version
from deltaweave.errors import StatementError
from deltaweave.identifiers import column


@dataclass(frozen=True)
class WriteResult:
    """What a write committed.

    Attributes:
        version: The version it made, or None where all of its identifiers were applied before.
        metrics: Delta's metrics of the write by their names, e.g. `numOutputRows`.
        warnings: What failed after the commit, a sentence each; the commit stands. Empty as a rule.
    """

    version: int | None
    metrics: Mapping[str, int]
    warnings: tuple[str, ...] = ()


def write(
    log: JavaObject,
    rows: DataFrame,
    *,
    table: str,
    overwrite: bool,
    replace_where: str | None,
    with_schema_evolution: bool,
    applied: Mapping[str, int],
    once: bool,
    applied_before: int | None,
    computed_from: int | None,
    reads_all: bool,
) -> WriteResult:
    """Write rows into an existing table; see `Table.write`."""
    spark = rows.sparkSession
    view = jvm_.jvm(spark)
    session = spark._jsparkSession
    nothing = jvm_.option(view, None)
    delta = view.org.apache.spark.sql.delta
    active = jvm_.singleton(delta, "OptimisticTransaction")
    operation = "overwriting" if overwrite else "append"
    mode = view.org.apache.spark.sql.SaveMode
    mode = mode.Overwrite if overwrite else mode.Append
    # A session that overwrites partitions dynamically would leave the other partitions' rows.
    options = {"mergeSchema": str(with_schema_evolution), "partitionOverwriteMode": "static"}
    if replace_where is not None:
        options["replaceWhere"] = _condition(replace_where, table)
    with translated(table, operation=operation, version=computed_from):
        transaction = _begun(rows, log, computed_from, reads_all)
        read = int(transaction.snapshot().version())
        is_known = [
            is_applied(
                pair,
                int(transaction.txnVersion(pair[0])),
                applied_before if once else None,
                table=table,
                version=read,
            )
            for pair in applied.items()
        ]
        if once and applied and all(is_known):
            return WriteResult(None, {})
        active.setActive(transaction)
        own_files = OwnFiles(spark, log, transaction)
        try:
            with own_files.deleted_unless_committed():
                assigned = _assigned(rows, transaction, with_schema_evolution)
                writer = delta.commands.WriteIntoDelta(
                    log,
                    mode,
                    delta.DeltaOptions(
                        jvm_.scala_map(view, options), session.sessionState().conf()
                    ),
                    transaction.metadata().partitionColumns(),
                    jvm_.scala_map(view, {}),
                    assigned._jdf,
                    nothing,
                    nothing,
                    False,
                )
                with own_files.named():
                    data = writer.writeAndReturnCommitData(transaction, session, nothing, False)
                actions = view.java.util.ArrayList()
                actions.addAll(jvm_.java_list(view, data.actions()))
                now = jvm_.option(view, view.java.lang.System.currentTimeMillis())
                for name, version in applied.items():
                    actions.add(delta.actions.SetTransaction(name, version, now))
                predicate = jvm_.option(view, replace_where)
                made = delta.DeltaOperations.Write(
                    mode, nothing, predicate, nothing, nothing, nothing, nothing, nothing, nothing
                )
                arguments = (jvm_.seq_of(view, actions), made, data.stringTags())
                own_files.is_committing = True
                done = committed(
                    spark,
                    log,
                    transaction,
                    lambda: int(transaction.commit(*arguments)),
                    table=table,
                    operation=operation,
                )
        finally:
            with letting_go("the active transaction"):
                active.clearActive()
    metrics: dict[str, int] = {}
    afterwards = AfterCommit(table, done.version, list(done.warnings))
    with afterwards.step("reading its metrics"):
        metrics = _metrics(transaction)
    return WriteResult(done.version, metrics, tuple(afterwards.warnings))


def _begun(
    rows: DataFrame, log: JavaObject, computed_from: int | None, reads_all: bool
) -> JavaObject:
    """A transaction at the newest version, or at the version that the rows were computed from."""
    nothing = jvm_.option(jvm_.jvm(rows.sparkSession), None)
    if computed_from is None:
        return log.startTransaction(nothing, nothing)
    snapshot = at_version(rows.sparkSession, log, computed_from).snapshot
    transaction = log.startTransaction(nothing, jvm_.option(jvm_.jvm(rows.sparkSession), snapshot))
    if reads_all:
        # Without this, Delta takes appends for blind, and replacing some rows for reading these.
        transaction.readWholeTable()
    return transaction


def _assigned(rows: DataFrame, transaction: JavaObject, with_schema_evolution: bool) -> DataFrame:
    """The rows with the table's types, cast as an INSERT casts them: what does not fit fails.

    Left as they are: columns that the table lacks, types that cannot be assigned (Delta's writer
    refuses them by name), and types that the table may widen to.
    """
    spark = rows.sparkSession
    view = jvm_.jvm(spark)
    expressions = view.org.apache.spark.sql.catalyst.expressions
    cast = jvm_.singleton(expressions, "Cast")
    ansi = jvm_.singleton(expressions, "EvalMode").ANSI()
    metadata = transaction.metadata()
    widening = metadata.configuration().get("delta.enableTypeWidening")
    may_widen = with_schema_evolution and widening.isDefined() and widening.get() == "true"
    wanted = {field.name().lower(): field.dataType() for field in metadata.schema().fields()}

    def assigned(field: JavaObject) -> Column:
        own, name = column(field.name()), field.name()
        given, target = field.dataType(), wanted.get(name.lower())
        if (
            target is None
            or given.equals(target)
            or (may_widen and cast.canUpCast(target, given))
            or not cast.canANSIStoreAssign(given, target)
        ):
            return own
        nothing = jvm_.option(view, None)
        value = expressions.Cast(jvm_.expression_of(spark, own), target, nothing, ansi)
        return jvm_.column_of(spark, value).alias(name)

    return rows.select([assigned(field) for field in rows._jdf.schema().fields()])


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
