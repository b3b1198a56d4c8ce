"""Write all changes: the choice of a strategy, and the strategies side by side."""

from __future__ import annotations

from deltaweave.engine.write.changes import Changes, write_changes
from deltaweave.engine.write.driver_choice import choose_driver, why_not_these_files
from deltaweave.engine.write.moved_rows import change_moved_rows, why_not_moved
from deltaweave.engine.write.strategy import Strategy, choice_on_driver, choose_strategy

__all__ = [
    "Changes",
    "Strategy",
    "change_moved_rows",
    "choice_on_driver",
    "choose_driver",
    "choose_strategy",
    "why_not_moved",
    "why_not_these_files",
    "write_changes",
]
