"""Small merges run as those of a big source are, of which little is brought to the driver."""

from __future__ import annotations

import pytest


def keep_pairs_on_executors(patch: pytest.MonkeyPatch) -> None:
    """Pairs as if they were too many for the driver, and to be broadcast."""
    patch.setattr("deltaweave.engine.touched_files.MAX_ON_DRIVER", -1)
    patch.setattr("deltaweave.engine.touched_files._BROADCAST_LIMIT_PAIRS", -1)


def collect_no_keys(patch: pytest.MonkeyPatch) -> None:
    """Keys as if they were too many: only ranges of them are known."""
    for limit in ("MAX_COLLECTED_ROWS", "MAX_COLLECTED_NUMBERS"):
        patch.setattr(f"deltaweave.engine.source_keys.{limit}", -1)
