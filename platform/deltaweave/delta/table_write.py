"""Rows written without a merge: appended, or put in the place of others, in one commit.

Delta's own writer makes the files and checks schema, constraints and the predicate; the commit is
made here, so that any number of transaction identifiers can go with it (Delta protocol,
"Transaction Identifiers").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.failures import translated
from deltaweave.delta.idempotency import is_applied
from deltaweave.delta.jvm import JavaObject
from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class WriteResult:
    """What a write committed.

    Attributes:
        version: The version it made, or None where all of its identifiers were applied before.
        metrics: Delta's metrics of the write by their names, e.g. `numOutputRows`.
    """

    version: int | None
    metrics: Mapping[str, int]


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
    with translated(table, operation=operation):
        transaction = log.startTransaction(nothing, nothing)
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
        try:
            writer = delta.commands.WriteIntoDelta(
                log,
                mode,
                delta.DeltaOptions(jvm_.scala_map(view, options), session.sessionState().conf()),
                transaction.metadata().partitionColumns(),
                jvm_.scala_map(view, {}),
                rows._jdf,
                nothing,
                nothing,
                False,
            )
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
            version = transaction.commit(jvm_.seq_of(view, actions), made, data.stringTags())
        finally:
            active.clearActive()
        return WriteResult(int(version), _metrics(transaction))


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
