"""The resources of each environment; `DELTAWEAVE_ENV` chooses one, `local` by default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dagster_deltaweave import SparkDeltaIOManager, SparkResource

_REPOSITORY = Path(__file__).resolve().parent.parent


def lake() -> Path:
    """The root of the demo lake: `DELTAWEAVE_LAKE`, by default `.lake` in the repository."""
    return Path(os.environ.get("DELTAWEAVE_LAKE") or _REPOSITORY / ".lake").absolute()


def resources() -> dict[str, Any]:
    """The resources of the chosen environment, by the keys that assets ask for."""
    environment = os.environ.get("DELTAWEAVE_ENV") or "local"
    if environment not in _ENVIRONMENTS:
        raise ValueError(
            f"DELTAWEAVE_ENV is {environment!r}; known are {', '.join(sorted(_ENVIRONMENTS))}."
        )
    return _ENVIRONMENTS[environment]()


def _local() -> dict[str, Any]:
    """Spark in the run's own process, tables on this machine's disk."""
    spark = SparkResource()
    return {
        "spark": spark,
        "io_manager": SparkDeltaIOManager(root=str(lake() / "tables"), spark=spark),
    }


_ENVIRONMENTS = {"local": _local}
