"""Insert only: no file of the target changes, and the source rows without a match are appended."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from deltaweave._validation import YES, Verdict, no
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.report import Phases, StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import SparkScan, Strategy
from deltaweave.engine.strategies.rows import inserts_only, may_insert, rows_after_scan

_STATUS = "MERGE operation - writing new files for only inserts"


class InsertOnly(Strategy):
    """Insert by one anti join, for a statement that has only WHEN NOT MATCHED clauses."""

    name = StrategyName.INSERT_ONLY
    local_name = StrategyName.INSERT_ONLY
    needs_scan = False

    def applies(self, run: MergeRun) -> Verdict:
        insert_only = run.statement.takes_insert_only_path
        return YES if insert_only else no("the statement has other clauses")

    def explain(self, run: MergeRun, instead_of: Mapping[StrategyName, str]) -> str:
        return "the statement has WHEN NOT MATCHED clauses alone"

    def write(self, run: MergeRun, found: SparkScan) -> Staged:
        rows = inserts_only(run, found.candidates)
        return Staged.inserted(run, found.candidates, run.transaction.write(rows))


def insert_phase(phases: Phases) -> AbstractContextManager[None]:
    """Run the one phase of a merge that only inserts."""
    return phases.running("writeInsertsOnlyWhenNoMatchedClauses", _STATUS, "rewriteTimeMs")


def insert_unmatched(run: MergeRun, scan: TouchedFilesScan) -> Staged:
    """Insert after a scan that touched no file; write nothing if there is nothing to insert."""
    if not may_insert(run, scan) or run.source.num_rows == 0:
        return Staged.untouched(run, scan, None)
    with run.phases.running("writeInsertsOnlyWhenNoMatches", _STATUS, "rewriteTimeMs"):
        written = run.transaction.write(rows_after_scan(run, scan))
    return Staged.untouched(run, scan, written)
