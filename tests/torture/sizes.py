"""How much a torture test does, and the seed that draws it."""

from __future__ import annotations

import os


def size(name: str, *, small: int, full: int) -> int:
    """What DELTAWEAVE_TORTURE_<name> says, else `full` in `make torture`, else `small`."""
    is_full = os.environ.get("DELTAWEAVE_TORTURE") == "full"
    return int(os.environ.get(f"DELTAWEAVE_TORTURE_{name}", full if is_full else small))


def first_seed() -> int:
    """The seed of all draws: DELTAWEAVE_TORTURE_SEED, or 18."""
    return int(os.environ.get("DELTAWEAVE_TORTURE_SEED", "18"))
