"""Asset checks of what a run merged: they read the metadata that it recorded and need no Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    multi_asset_check,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    CheckFinding,
    JudgedRun,
    check_op_name,
    check_results,
    check_specs,
    checked_asset,
    for_each_asset,
    judged_run,
    newest_runs,
)
from dagster_deltaweave.metadata import TABLE_ID, TABLE_VERSION
from dagster_deltaweave.tables import (
    AssetOrKey,
    MergeDeclaration,
    NamedAsset,
    merge_declaration_in,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

SOURCE_ROWS = "source_rows_accounted_for"
ROW_COUNT = "row_count_change"
CHECKS_OF_MERGES = (SOURCE_ROWS, ROW_COUNT)

ROW_COUNT_KEY = "dagster/row_count"

_RUNS_LOOKED_AT = 100
"""How many earlier runs are searched for the previous one."""

_MATERIALIZATIONS_COMPARED = 5
"""How many runs may record their results in another order than they commit."""


@for_each_asset
def build_merge_checks(
    asset: AssetOrKey,
    *,
    source_rows: bool = False,
    every_row: bool | None = None,
    row_count_change: tuple[float | None, float | None] | None = None,
    blocking: bool | Iterable[str] = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
    **arguments: "Unpack[CheckArguments]",
) -> AssetChecksDefinition:
    """Build checks of what the check's own run merged. The requested checks run together.

    A check that runs alone judges the newest run that materialized the asset, and names it.

    - `source_rows_accounted_for`: rows inserted + updated + deleted + left alone = rows of the
      source. Updates and deletes are those of WHEN MATCHED clauses. Rows left alone are those that
      no clause takes, because of its condition or because there is no clause for them. The merge
      counts these apart from the rows that it writes, so the check fails if a row was lost. It also
      fails if a source row matched several rows of the table, so use it only if ON compares a key.
      If the clauses take every row, none may be left alone; with `sequence_by`, they leave older
      rows alone. A merge that only inserts does not count matched rows: then the check fails only
      if more rows were inserted than the source has, and says so. A merge that was skipped passes.
    - `row_count_change`: the change of the table's row count since the previous run, as a fraction
      of the previous count: `(-0.1, 0.5)` allows 10% fewer to 50% more rows. For fixed bounds, use
      Dagster's own `build_metadata_bounds_checks(metadata_key="dagster/row_count", …)`.

    >>> customers_checks = build_merge_checks(customers, source_rows=True, blocking=True)

    Args:
        asset: The merge asset, as its definition or key; or a list of such, which gives a list of
            checks.
        source_rows: Whether to check `source_rows_accounted_for`.
        every_row: Whether its clauses take every source row; by default as the declared clauses do,
            and a MERGE text, or a key alone, counts as not taking every row.
        row_count_change: The lowest and highest change; None for no bound.
        blocking: Whether a failure keeps downstream assets of the same run from running: for all
            these checks, or for those named.
        severity: The severity of a failure; a WARN blocks nothing.
        arguments: `automation_condition`, `metadata`, `pool` and `retry_policy`, as in Dagster's
            own `asset_check`.
    """
    checked = NamedAsset.of(asset)
    declaration = merge_declaration_in(checked.metadata or {})
    if source_rows and declaration is None and checked.metadata is not None:
        raise DagsterInvalidDefinitionError(
            f"checks of {checked.key.to_user_string()}: it is not a merge asset, so there are "
            "no source rows to check."
        )
    takes_all = every_row if every_row is not None else takes_every_row(declaration)
    low, high = row_count_change or (None, None)
    descriptions = {
        SOURCE_ROWS: _promise(takes_all) if source_rows else None,
        ROW_COUNT: f"The row count moved by {_bounds(low, high)}." if row_count_change else None,
    }
    specs = check_specs(checked.key, descriptions, blocking, arguments)

    @multi_asset_check(
        specs=specs,
        name=check_op_name(specs),
        can_subset=True,
        pool=arguments.get("pool"),
        retry_policy=arguments.get("retry_policy"),
    )
    def checks(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        key = checked_asset(context)
        checked.check_is_loaded(context.op_execution_context, key, "checking")
        judged = judged_run(context.instance, context.run, key)
        found: dict[str, CheckFinding] = {}
        if SOURCE_ROWS in selected:
            found[SOURCE_ROWS] = source_rows_finding(judged.values if judged else {}, takes_all)
        if ROW_COUNT in selected:
            before = _previous_run(context.instance, key, judged) if judged else None
            found[ROW_COUNT] = _row_count(judged, before, low, high)
        if judged is not None:
            found = {
                name: finding.with_more(judged.metadata, judged.note)
                for name, finding in found.items()
            }
        yield from check_results(context, found, severity)

    return checks


def _promise(takes_all: bool) -> str:
    taken = "taken" if takes_all else "taken, or left alone by the clauses"
    return f"Each source row is {taken}, and no more than once."


def takes_every_row(declaration: MergeDeclaration | None) -> bool:
    """Return whether the declared clauses take every source row, each for one target row."""
    if declaration is None or declaration.skip_unchanged_updates:
        return False
    effective = declaration.effective_clauses
    matched = [clause for clause in effective if clause.kind == "matched"]
    inserts = [clause for clause in effective if clause.kind == "not_matched"]
    may_match_repeatedly = [clause.action for clause in matched] == ["delete"]
    return not may_match_repeatedly and all(
        any(clause.condition is None for clause in clauses) for clauses in (matched, inserts)
    )


def source_rows_finding(values: Mapping[str, Any], takes_all: bool) -> CheckFinding:
    """Judge what a merge recorded of its source's rows."""
    if "merge/source_rows" not in values and "deltaweave/warnings" in values:
        return CheckFinding(
            False, "What the merge did was not recorded: see the warnings of its run.", {}
        )
    if "merge/source_rows" not in values or values["merge/strategy"] == "already-applied":
        return CheckFinding(True, "The materialization merged nothing.", {})
    source = values["merge/source_rows"]
    taken = {
        "inserted": values["merge/rows_inserted"],
        "updated": values["merge/rows_updated"] - values.get("merge/by_source_rows_updated", 0),
        "deleted": values["merge/rows_deleted"] - values.get("merge/by_source_rows_deleted", 0),
    }
    counted = ", ".join(f"{count:,} {what}" for what, count in taken.items())
    others = source - sum(taken.values())
    # Uncounted rows count as left alone, unless the clauses take every row.
    left_alone = values.get("merge/source_rows_unaffected", 0 if takes_all else max(others, 0))
    missing = others - left_alone
    if others < 0 or missing < 0:
        excess = -min(others, missing)
        verdict = f"{excess:,} more than there are, so one matched several rows of the table"
    elif missing:
        why = ", though the clauses take every row" if takes_all else ""
        verdict = f"{missing:,} are missing{why}"
    elif left_alone and takes_all:
        verdict = f"{left_alone:,} left alone, though the clauses take every row"
    elif "merge/source_rows_unaffected" in values or takes_all:
        verdict = f"{left_alone:,} left alone"
    else:
        verdict = f"{left_alone:,} others; the merge does not know whether they matched"
    return CheckFinding(
        others >= 0 and not missing and not (left_alone and takes_all),
        f"Of {source:,} source rows: {counted}; {verdict}.",
        {
            "check/source_rows": source,
            "check/rows_left_alone": left_alone,
            "check/rows_missing": missing,
        },
    )


def _previous_run(instance: DagsterInstance, key: AssetKey, judged: JudgedRun) -> JudgedRun | None:
    """Return the run that left the previous version, among runs that recorded a row count.

    Concurrent runs do not always record their results in the order in which they commit.
    """
    table = judged.values.get(TABLE_ID)
    earlier = (
        run
        for run in islice(newest_runs(instance, key), _RUNS_LOOKED_AT)
        if ROW_COUNT_KEY in run.values
        and run.values.get(TABLE_ID) == table
        and _order(run) < _order(judged)
    )
    return max(islice(earlier, _MATERIALIZATIONS_COMPARED), key=_order, default=None)


def _order(run: JudgedRun) -> tuple[int, int]:
    return run.values.get(TABLE_VERSION, -1), run.storage_id


def _row_count(
    judged: JudgedRun | None, before: JudgedRun | None, low: float | None, high: float | None
) -> CheckFinding:
    if judged is None or ROW_COUNT_KEY not in judged.values:
        return CheckFinding(True, "The run recorded no row count.", {})
    if before is None:
        return CheckFinding(True, "No run before recorded a row count of this table.", {})
    count, count_before = judged.values[ROW_COUNT_KEY], before.values[ROW_COUNT_KEY]
    metadata = {"check/rows": count, "check/rows_before": count_before}
    if not count_before:
        return CheckFinding(True, f"The table had no rows, and now has {count:,}.", metadata)
    change = (count - count_before) / count_before
    return CheckFinding(
        (low is None or change >= low) and (high is None or change <= high),
        f"{count:,} rows, {count_before:,} before: {change:+.1%}; "
        f"the limit is {_bounds(low, high)}.",
        {**metadata, "check/row_count_change": change},
    )


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{low:+.1%} or more" if low is not None else f"{high or 0:+.1%} or less"
    return f"{low:+.1%} to {high:+.1%}"
