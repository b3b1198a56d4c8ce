"""Asset checks of what the last merge did, by the metadata it recorded: they need no Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    multi_asset_check,
)

from dagster_deltaweave.checks import Finding, check_op_name, check_results, check_specs
from dagster_deltaweave.declaration import MergeDeclaration, declaration_in

SOURCE_ROWS = "source_rows_accounted_for"
ROW_COUNT = "row_count_change"

_RECORDS = 200  # a run of many partitions records as many materializations


def build_merge_checks(
    asset: AssetsDefinition,
    *,
    source_rows: bool = False,
    every_row: bool | None = None,
    row_count_change: tuple[float | None, float | None] | None = None,
    blocking: bool | Iterable[str] = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
) -> AssetChecksDefinition:
    """Checks of a merge asset's last merge, run together: those that are asked for.

    - `source_rows_accounted_for`: rows inserted + updated + deleted + left alone = rows of the
      source, where updates and deletes are those of WHEN MATCHED clauses. More than that means
      that a source row matched several rows of the table, so it is asked for where ON gives a key.
      Fewer (left alone above 0) means that clauses took no notice of some rows. That is an error
      only where the clauses take every row: one WHEN MATCHED and one WHEN NOT MATCHED clause
      without a condition. They do not where one clause alone deletes what matches, since then
      several source rows may go with one deleted row. A merge that was skipped passes.
    - `row_count_change`: how much the table's row count moved since the run before, as a share of
      what it was: `(-0.1, 0.5)` allows a tenth fewer and half as many more. Fixed bounds are
      Dagster's own: `build_metadata_bounds_checks(metadata_key="dagster/row_count", …)`.

    >>> customers_checks = build_merge_checks(customers, source_rows=True, blocking=True)

    Args:
        asset: The merge asset.
        source_rows: Whether to check `source_rows_accounted_for`.
        every_row: Whether its clauses take every source row; by default what they say, and that
            they do not where MERGE text says it.
        row_count_change: Lowest and highest change; None is no bound.
        blocking: Whether a failure keeps downstream assets of the same run from running: of all
            these checks, or of those named.
        severity: Of a failure; a WARN blocks nothing.
    """
    declaration = declaration_in(asset.metadata_by_key[asset.key])
    if source_rows and declaration is None:
        raise DagsterInvalidDefinitionError(
            f"checks of {asset.key.to_user_string()}: it is no merge asset, so that no merge has "
            "source rows."
        )
    takes_all = every_row if every_row is not None else takes_every_row(declaration)
    all_taken = " and all of them are taken" if takes_all else ""
    low, high = row_count_change or (None, None)
    descriptions = {
        SOURCE_ROWS: f"Each source row is taken once at most{all_taken}." if source_rows else None,
        ROW_COUNT: f"The row count moved by {_bounds(low, high)}." if row_count_change else None,
    }
    specs = check_specs(asset, descriptions, blocking)

    @multi_asset_check(specs=specs, name=check_op_name(specs), can_subset=True)
    def checks(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        runs = [values_of(run) for run in runs_of(context.instance, asset.key)]
        found: dict[str, Finding] = {}
        if SOURCE_ROWS in selected:
            found[SOURCE_ROWS] = _source_rows(runs[0] if runs else {}, takes_all)
        if ROW_COUNT in selected:
            counts = [run["dagster/row_count"] for run in runs if "dagster/row_count" in run]
            found[ROW_COUNT] = _row_count(counts, low, high)
        yield from check_results(asset, found, severity)

    return checks


def takes_every_row(declaration: MergeDeclaration | None) -> bool:
    """Whether the declared clauses take every source row, one target row for each."""
    if declaration is None:
        return False
    matched = [clause for clause in declaration.clauses if clause.kind == "matched"]
    inserts = [clause for clause in declaration.clauses if clause.kind == "not_matched"]
    may_match_repeatedly = [clause.action for clause in matched] == ["delete"]
    return not may_match_repeatedly and all(
        any(clause.condition is None for clause in clauses) for clauses in (matched, inserts)
    )


def runs_of(instance: DagsterInstance, key: AssetKey) -> list[list[AssetMaterialization]]:
    """The asset's last materializations, those of a run together, the newest run first."""
    runs: dict[str, list[AssetMaterialization]] = {}
    for record in instance.fetch_materializations(key, limit=_RECORDS).records:
        if record.asset_materialization is not None:
            # What sensors report is of no run, and so each by itself.
            run = record.run_id or str(record.storage_id)
            runs.setdefault(run, []).append(record.asset_materialization)
    return list(runs.values())


def values_of(run: list[AssetMaterialization]) -> Mapping[str, Any]:
    """The metadata of a run's newest materialization, as plain values."""
    return {key: entry.value for key, entry in run[0].metadata.items()}


def _source_rows(values: Mapping[str, Any], takes_all: bool) -> Finding:
    if "merge/source_rows" not in values or values["merge/strategy"] == "already-applied":
        return True, "The last materialization merged nothing.", {}
    source = values["merge/source_rows"]
    taken = {
        "inserted": values["merge/rows_inserted"],
        "updated": values["merge/rows_updated"] - values["merge/by_source_rows_updated"],
        "deleted": values["merge/rows_deleted"] - values["merge/by_source_rows_deleted"],
    }
    left_alone = source - sum(taken.values())
    counted = ", ".join(f"{count:,} {what}" for what, count in taken.items())
    if left_alone < 0:
        verdict = f"{-left_alone:,} more than there are, so one matched several rows of the table"
    elif left_alone and takes_all:
        verdict = f"{left_alone:,} are missing, though the clauses take every row"
    else:
        verdict = f"{left_alone:,} left alone"
    return (
        left_alone >= 0 and not (left_alone and takes_all),
        f"Of {source:,} source rows: {counted}; {verdict}.",
        {"check/source_rows": source, "check/rows_left_alone": left_alone},
    )


def _row_count(counts: Sequence[int], low: float | None, high: float | None) -> Finding:
    if len(counts) < 2:
        return True, "Fewer than two runs recorded a row count.", {}
    now, was, *_ = counts
    metadata = {"check/rows": now, "check/rows_before": was}
    if not was:
        return True, f"The table had no rows, and now has {now:,}.", metadata
    change = (now - was) / was
    return (
        (low is None or change >= low) and (high is None or change <= high),
        f"{now:,} rows, {was:,} before: {change:+.1%}; allowed is {_bounds(low, high)}.",
        {**metadata, "check/row_count_change": change},
    )


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{low:+.1%} or more" if low is not None else f"{high or 0:+.1%} or less"
    return f"{low:+.1%} to {high:+.1%}"
