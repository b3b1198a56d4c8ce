"""The choice of a strategy, which the write phase and `explain` share.

The choice depends on the statement, on settings, on the table's features and on the source. It
comes before the scan for matches, whose result may change the outcome: a merge that touches no
file inserts at most, and files in which most rows change are left to Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.report import StrategyName
from deltaweave.engine.strategies.base import Strategy
from deltaweave.engine.strategies.copy_in_place import CopyInPlace
from deltaweave.engine.strategies.copy_on_write import CopyOnWrite
from deltaweave.engine.strategies.deletion_vectors import DeletionVectors
from deltaweave.engine.strategies.insert_only import InsertOnly

STRATEGIES: tuple[Strategy, ...] = (InsertOnly(), DeletionVectors(), CopyInPlace(), CopyOnWrite())
"""The first that applies writes the merge; the last always applies."""


@dataclass(frozen=True)
class Choice:
    """The strategy that a merge starts with.

    Attributes:
        strategy: The strategy.
        reason: Why, as `explain` shows it.
    """

    strategy: Strategy
    reason: str


def choose_strategy(run: MergeRun) -> Choice:
    """Choose how the changes are to be written. Nothing is written and no job runs."""
    refusals: dict[StrategyName, str] = {}
    for strategy in STRATEGIES:
        verdict = strategy.applies(run)
        if verdict.ok:
            return Choice(strategy, strategy.reason(run, refusals))
        refusals[strategy.name] = verdict.reason
    raise AssertionError("the last strategy always applies")
