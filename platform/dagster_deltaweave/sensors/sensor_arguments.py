"""Arguments of sensors: Dagster's own, which are passed on, and numbers that make sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from dagster import DagsterInvalidDefinitionError


class SensorArguments(TypedDict, total=False):
    """Arguments of Dagster's `sensor` that are passed on as they are."""

    metadata: Mapping[str, Any] | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None


def check_least(sensor: str, least: int, **given: float) -> None:
    """Refuse numbers below the least with which a sensor does anything.

    Args:
        sensor: The sensor's name.
        least: The least that makes sense.
        given: The numbers, by the names of their arguments.

    Raises:
        DagsterInvalidDefinitionError: One is less.
    """
    for name, number in given.items():
        if not number >= least:  # nor may it be NaN
            raise DagsterInvalidDefinitionError(
                f"sensor {sensor}: {name} is {number}, and must be at least {least}."
            )


def check_marker(sensor: str, marker: str | None) -> None:
    """Refuse a marker without a name: each directory has it, also while it is being copied.

    Raises:
        DagsterInvalidDefinitionError: It is empty.
    """
    if marker is not None and not marker.strip():
        raise DagsterInvalidDefinitionError(
            f"sensor {sensor}: marker is empty. Give the name of the file that is written last, or "
            "None if none is."
        )
