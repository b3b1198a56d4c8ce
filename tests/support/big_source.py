"""Run small merges as those of a big source, which brings little to the driver."""

from __future__ import annotations

import pytest

from deltaweave.engine import limits


def keep_pairs_on_executors(patch: pytest.MonkeyPatch) -> None:
    """Pairs as if they were too many for the driver, and to be broadcast."""
    patch.setattr(limits, "MAX_PAIRS_ON_DRIVER", -1)
    patch.setattr(limits, "MAX_BROADCAST_PAIRS", -1)


def collect_no_keys(patch: pytest.MonkeyPatch) -> None:
    """Keys as if they were too many: only ranges of them are known."""
    patch.setattr(limits, "MAX_COLLECTED_ROWS", -1)
    patch.setattr(limits, "MAX_COLLECTED_NUMBERS", -1)
