"""Write changes as files: a strategy for each way, and the choice of the one that fits.

A strategy is a module with a `Strategy` and a line in `STRATEGIES`. None imports another.

- `base`: what every strategy answers and does.
- `choice`: `STRATEGIES`; the first that applies is taken.
- `insert_only`, `deletion_vectors`, `copy_in_place`, `copy_on_write`: the strategies.
- `file_copies`: the tasks that copy files in place.
- `rows`, `source_rows`: the rows that strategies write, as Spark queries.
"""

from __future__ import annotations

from deltaweave.engine.strategies.base import LocalForm, Strategy
from deltaweave.engine.strategies.choice import STRATEGIES, Choice, choose_strategy
from deltaweave.engine.strategies.copy_in_place import ONLY_DELTA_CHECKS, CopyInPlace
from deltaweave.engine.strategies.deletion_vectors import FilePlan, plan_files
from deltaweave.engine.strategies.insert_only import insert_phase, insert_unmatched

__all__ = [
    "ONLY_DELTA_CHECKS",
    "STRATEGIES",
    "Choice",
    "CopyInPlace",
    "FilePlan",
    "LocalForm",
    "Strategy",
    "choose_strategy",
    "insert_phase",
    "insert_unmatched",
    "plan_files",
]
