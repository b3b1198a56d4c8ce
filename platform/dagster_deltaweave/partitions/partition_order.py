"""The order of an asset's partitions: which of two is the older one.

| partitions | ordered by |
| --- | --- |
| time windows | the beginnings of the windows |
| fixed | their places in the definition |
| dynamic | their keys as strings, as the landing sensor requests them |
| several dimensions | the one dimension of time windows; without one they have no order |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any

from dagster import (
    DagsterInstance,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    TimeWindowPartitionsDefinition,
)

Positions = Callable[[str], Any]
"""Gives a partition's position, which is greater for a newer one; None if the asset lacks it."""

_ASKED_ONE_BY_ONE = 16  # dynamic partitions; most runs ask for one or two


def partition_positions(
    definition: PartitionsDefinition[str] | None, instance: DagsterInstance
) -> Positions | None:
    """Return a function from partition to position; None if the partitions have no order.

    Args:
        definition: The asset's partitions, None if it has none.
        instance: The instance, which knows dynamic partitions.
    """
    if definition is None:
        return None
    if isinstance(definition, MultiPartitionsDefinition):
        return _by_time_dimension(definition, instance)
    if isinstance(definition, TimeWindowPartitionsDefinition):
        return lambda key: _beginning(definition, key)
    if isinstance(definition, DynamicPartitionsDefinition):
        exists = _existence(definition, instance)
        return lambda key: key if exists(key) else None
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    return {key: number for number, key in enumerate(keys)}.get


def newest_first(merged: Mapping[str, int], positions: Positions) -> Iterator[str]:
    """Yield the merged partitions that count, newest first.

    Partitions do not count if the asset no longer has them, or if the order went back to an
    older partition since.

    Args:
        merged: Partition to the version of its order's application id.
        positions: Gives a partition's position.
    """
    lowest: Any = None
    by_version = sorted(merged.items(), key=lambda each: -each[1])
    for _, group in groupby(by_version, key=lambda each: each[1]):
        known = [(positions(key), key) for key, _ in group]
        known = [
            (position, key)
            for position, key in known
            if position is not None and (lowest is None or position <= lowest)
        ]
        for position, key in sorted(known, reverse=True):
            yield key
            lowest = position


def _existence(
    definition: DynamicPartitionsDefinition, instance: DagsterInstance
) -> Callable[[str], bool]:
    """Return a function that decides whether a partition was added and not deleted since.

    It asks the storage for a few keys one by one, and beyond that for all keys at once.
    """
    name, asked, known = definition.name, set[str](), set[str]()

    def exists(key: str) -> bool:
        if name is None or key in known:
            return True
        if key not in asked and len(asked) == _ASKED_ONE_BY_ONE:
            known.update(instance.get_dynamic_partitions(name))
        asked.add(key)
        return key in known or instance.has_dynamic_partition(name, key)

    return exists


def _by_time_dimension(
    definition: MultiPartitionsDefinition, instance: DagsterInstance
) -> Positions | None:
    kinds = [
        isinstance(each.partitions_def, TimeWindowPartitionsDefinition)
        for each in definition.partitions_defs
    ]
    if kinds.count(True) != 1:
        return None
    times = definition.partitions_defs[kinds.index(True)].name
    within = {
        each.name: partition_positions(each.partitions_def, instance)
        for each in definition.partitions_defs
    }

    def position(key: str) -> float | None:
        try:
            parts = definition.get_partition_key_from_str(key).keys_by_dimension
        except Exception:  # a key with dimensions that the definition had before
            return None
        at = {name: of and of(parts[name]) for name, of in within.items()}
        return None if None in at.values() else at[times]

    return position


@lru_cache(maxsize=2**17)  # Dagster computes a window in 0.2 ms, and ticks of a sensor ask again
def _beginning(definition: TimeWindowPartitionsDefinition, key: str) -> float | None:
    """Return when the window begins, in s since 1970; None for a key of no window."""
    try:
        start = definition.time_window_for_partition_key(key).start
    except (ValueError, StopIteration):  # a key in another format
        return None
    # Of a day that begins no month, Dagster gives the next month. An hour that comes twice has the
    # offset in its key.
    is_its_key = start.strftime(definition.fmt) == key
    at = start.timestamp()
    return at if is_its_key or definition.get_partition_key_for_timestamp(at) == key else None
