"""Write all changes: the choice of a strategy, and the strategies side by side."""

from __future__ import annotations

from deltaweave.engine.write.changes import Changes, write_changes
from deltaweave.engine.write.strategy import Strategy, choose_strategy

__all__ = ["Changes", "Strategy", "choose_strategy", "write_changes"]
