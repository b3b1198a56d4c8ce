"""Dagster's own arguments of sensors, which the functions that build them pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class SensorArguments(TypedDict, total=False):
    """Arguments of Dagster's `sensor` that are passed on as they are."""

    metadata: Mapping[str, Any] | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None
