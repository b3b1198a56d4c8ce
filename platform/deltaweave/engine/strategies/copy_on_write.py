"""Copy on write: Spark rewrites touched files, with changed, unmodified and inserted rows."""

from __future__ import annotations

from collections.abc import Mapping

from deltaweave._validation import YES, Verdict
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import SparkScan, Strategy
from deltaweave.engine.strategies.rows import copy_phase, copy_touched_files


class CopyOnWrite(Strategy):
    """Join the touched files with the source and write all their rows."""

    name = StrategyName.COPY_ON_WRITE
    local_name = StrategyName.COPY_IN_PLACE

    def applies(self, run: MergeRun) -> Verdict:
        return YES

    def explain(self, run: MergeRun, instead_of: Mapping[StrategyName, str]) -> str:
        return f"Spark rewrites the touched files, since {instead_of[StrategyName.COPY_IN_PLACE]}"

    def write(self, run: MergeRun, found: SparkScan) -> Staged:
        with copy_phase(run, found.matches):
            written = copy_touched_files(run, found.matches, without_join=False)
        return Staged.copied(run, self.name, found.matches, written)
