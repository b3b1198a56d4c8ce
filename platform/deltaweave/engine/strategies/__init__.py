"""Write changes as files: a strategy for each way, and the choice of the one that fits.

A strategy is a module with a `Strategy` and a line in `STRATEGIES`. None imports another. The
choice comes before the scan for matches, whose result may change the outcome: a merge that touches
no file inserts at most, and files in which most rows change are left to Spark.

- `base`: what every strategy answers and does; the format of files that Python writes.
- `insert_only`, `deletion_vectors`, `copy_in_place`, `copy_on_write`: the strategies.
- `rows`: the rows that strategies write, as Spark queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.report import StrategyName
from deltaweave.engine.strategies.base import SparkScan, Strategy, table_format
from deltaweave.engine.strategies.copy_in_place import CopyInPlace
from deltaweave.engine.strategies.copy_on_write import CopyOnWrite
from deltaweave.engine.strategies.deletion_vectors import DeletionVectors
from deltaweave.engine.strategies.insert_only import InsertOnly, insert_phase, insert_unmatched

__all__ = [
    "STRATEGIES",
    "SparkScan",
    "Strategy",
    "choose_strategy",
    "insert_phase",
    "insert_unmatched",
    "table_format",
]


STRATEGIES: tuple[Strategy, ...] = (InsertOnly(), DeletionVectors(), CopyInPlace(), CopyOnWrite())
"""The first that applies writes the merge; the last always applies."""


@dataclass(frozen=True)
class Choice:
    """The strategy that a merge starts with.

    Attributes:
        reason: Why, as `explain` shows it.
    """

    strategy: Strategy
    reason: str


def choose_strategy(run: MergeRun) -> Choice:
    """Choose how the changes are to be written. Nothing is written and no job runs."""
    instead_of: dict[StrategyName, str] = {}
    for strategy in STRATEGIES:
        verdict = strategy.applies(run)
        if verdict.ok:
            return Choice(strategy, strategy.explain(run, instead_of))
        instead_of[strategy.name] = verdict.reason
    raise AssertionError("the last strategy always applies")
