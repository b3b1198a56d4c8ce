"""MERGE as SQL text: `merge` runs a statement, `explain` says what it would do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, get_args

from deltaweave.choices import check_choice
from deltaweave.delta import analyzer
from deltaweave.delta.builtin import run_builtin_merge
from deltaweave.delta.failures import translated
from deltaweave.delta.jvm import JavaObject
from deltaweave.engine import command
from deltaweave.engine import explain as explaining
from deltaweave.engine.explain import MergePlan
from deltaweave.engine.outcome import MergeMetrics, MergeResult, TouchedFiles
from deltaweave.errors import StatementError, UnsupportedFeatureError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

Fallback = Literal["builtin"]


def merge(
    spark: SparkSession,
    statement: str,
    *,
    idempotency: tuple[str, int] | None = None,
    applied_before: int | None = None,
    computed_from: int | None = None,
    fallback: Fallback | None = None,
    skip_unchanged_updates: bool = False,
) -> MergeResult:
    """Run a MERGE statement on deltaweave's engine.

    Args:
        spark: A Delta-enabled session.
        statement: Any `MERGE [WITH SCHEMA EVOLUTION] INTO … USING … ON … WHEN …` that Spark SQL
            accepts for a Delta table, by path or by name.
        idempotency: An (application id, version) pair put into the same commit. If the table
            already holds that version or a later one of that id, nothing is done and the result's
            strategy is `"already-applied"`.
        applied_before: The version of the pair's id that the table must hold until this merge
            commits, -1 for none: what the source was computed from. Holds it another one below
            the pair's, nothing is done and the error is a `CommitConflictError`.
        computed_from: The version of the target from which the source was computed. If the target
            has another one by now, nothing is done and the error is a `CommitConflictError`.
        fallback: `"builtin"` runs Delta's own MERGE, with a warning in the log, where the table
            uses a feature that the engine refuses. Not with any of the other options, which
            Delta's MERGE does not know: then the refusal stands, and names them.
        skip_unchanged_updates: Whether updates that give a row the values it has (compared
            null-safe; -0.0 equals 0.0) leave it alone: the row is not counted as updated, not in
            the change data feed, and its file is not rewritten for it. Finding them reads all of
            the target's columns in the candidate files.

    Returns:
        What was committed; an error after the commit is in its `warnings`.

    Raises:
        StatementError: `applied_before` is given without `idempotency`, or the statement is wrong.
        CommitStateUnknownError: The commit failed, and it cannot be told whether it landed.
        DeltaweaveError: Another subclass that says what happened; nothing was committed.
    """
    plan, table = analyzer.parse_statement(spark, statement)
    return run(
        spark,
        plan,
        table,
        idempotency=idempotency,
        applied_before=applied_before,
        computed_from=computed_from,
        fallback=fallback,
        skip_unchanged_updates=skip_unchanged_updates,
    )


def explain(spark: SparkSession, statement: str) -> MergePlan:
    """What a MERGE statement would do to its target as it is now; nothing is written.

    The source is read (and kept for the time of the call, where a merge would), the target's file
    list and statistics are; no row of the target is.

    Raises:
        DeltaweaveError: As `merge` would.
    """
    plan, table = analyzer.parse_statement(spark, statement)
    return explaining.explain(analyzer.resolve(spark, plan, table))


def run(
    spark: SparkSession,
    plan: JavaObject,
    table: str,
    *,
    idempotency: tuple[str, int] | None,
    applied_before: int | None,
    computed_from: int | None,
    fallback: Fallback | None,
    skip_unchanged_updates: bool,
) -> MergeResult:
    """Run an unresolved MERGE plan on the engine or, where allowed and needed, on Delta's own."""
    check_choice("fallback", fallback, (None, *get_args(Fallback)), table=table, operation="MERGE")
    if applied_before is not None and idempotency is None:
        raise StatementError(
            "applied_before is the version of an idempotency pair's id, and no pair is given.",
            table=table,
            hint="Give idempotency, too.",
        )
    resolved = analyzer.resolve(spark, plan, table, skip_unchanged_updates=skip_unchanged_updates)
    try:
        with translated(table):
            return command.run(resolved, idempotency, applied_before, computed_from)
    except UnsupportedFeatureError as refused:
        if fallback != "builtin":
            raise
        not_in_builtin = {
            "idempotency": idempotency is not None,
            "applied_before": applied_before is not None,
            "computed_from": computed_from is not None,
            "skip_unchanged_updates": skip_unchanged_updates,
        }
        given = [name for name, is_given in not_in_builtin.items() if is_given]
        if given:
            raise UnsupportedFeatureError(
                refused.features, table=table, version=refused.version, not_in_builtin=given
            ) from refused
        features = ", ".join(refused.features)
        logger.warning("%s uses %s: Delta's own MERGE runs instead", table, features)
    done = run_builtin_merge(spark, plan, resolved.location, table)
    metrics, warnings = MergeMetrics(done.metrics), done.warnings
    return MergeResult(done.version, metrics, TouchedFiles(), "builtin", warnings=warnings)
