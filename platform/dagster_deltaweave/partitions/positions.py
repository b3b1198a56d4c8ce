"""The order of partitions: the position of each, the newer the greater.

Dagster gives a window of its own to each key, except to keys of times that a clock or a calendar
skipped: those are looked up among the keys that it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any
from zoneinfo import ZoneInfo

from dagster import (
    DagsterInstance,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    TimeWindow,
    TimeWindowPartitionsDefinition,
)

from dagster_deltaweave.dagster_private import CheckError

Positions = Callable[[str], Any]
"""Gives a partition's position, which is greater for a newer one; None if the asset lacks it."""

_ASKED_ONE_BY_ONE = 16  # dynamic partitions; most runs ask for one or two


def partition_positions(
    definition: PartitionsDefinition[str] | None, instance: DagsterInstance
) -> Positions | None:
    """Return a function from partition to position; None if the partitions have no order.

    `definition` is that of the asset's partitions; None if it has none.
    """
    if definition is None:
        return None
    if isinstance(definition, MultiPartitionsDefinition):
        return _by_time_dimension(definition, instance)
    if isinstance(definition, TimeWindowPartitionsDefinition):
        return lambda key: _window_start(definition, key)
    if isinstance(definition, DynamicPartitionsDefinition):
        exists = _existence(definition, instance)
        return lambda key: key if exists(key) else None
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    return {key: number for number, key in enumerate(keys)}.get


def newest_first(merged: Mapping[str, int], positions: Positions) -> Iterator[str]:
    """Yield the merged partitions that count, newest first.

    Partitions do not count if the asset no longer has them, or if the order went back to an
    older partition since.
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
        at = {name: order and order(parts[name]) for name, order in within.items()}
        return None if None in at.values() else at[times]

    return position


def _window_start(definition: TimeWindowPartitionsDefinition, key: str) -> float | None:
    """Return when the window begins, in s since 1970; None for a key of no window."""
    start = _start_by_dagster(definition, key)
    if start is None or start.strftime(definition.fmt) == key:
        return None if start is None else start.timestamp()
    # The window does not begin where the key says: Dagster gives the next month for a day within a
    # month, the key of an hour that comes twice has an offset, and for the key of a time that no
    # clock showed, Dagster gives the window of the next key.
    at = start.timestamp()
    if is_skipped(definition, key):
        # Just before the next key, and after the one before.
        before = start.replace(tzinfo=None) - datetime.strptime(key, definition.fmt)
        return at - before.total_seconds() * 1e-6
    is_listed = definition.get_partition_key_for_timestamp(at) == key
    return at if is_listed or key in keys_of_windows(definition) else None


@lru_cache(maxsize=2**17)  # Dagster computes a window in 0.2 ms, and ticks of a sensor ask again
def _start_by_dagster(definition: TimeWindowPartitionsDefinition, key: str) -> datetime | None:
    """Return when Dagster's window of a key begins; None for a key in another format."""
    try:
        return definition.time_window_for_partition_key(key).start
    except (ValueError, StopIteration):
        return None
    except CheckError:  # the calendar of the zone skipped its day
        zone = ZoneInfo(definition.timezone)
        return datetime.strptime(key, definition.fmt).replace(tzinfo=zone)


def is_skipped(definition: TimeWindowPartitionsDefinition, key: str) -> bool:
    """Return whether a key that Dagster lists is of a time that the time zone skipped.

    Dagster gives it the window of the next key.
    """
    start = _start_by_dagster(definition, key)
    following = key if start is None else start.strftime(definition.fmt)
    if start is None or following == key or not {key, following} <= keys_of_windows(definition):
        return False
    # The hour that is repeated after a clock change has an instant of its own.
    other = _start_by_dagster(definition, following)
    return other is not None and other.timestamp() == start.timestamp()


def keys_of_windows(definition: TimeWindowPartitionsDefinition) -> frozenset[str]:
    """Return the keys that a definition has now."""
    return _keys_up_to(definition, definition.get_last_partition_window())


@lru_cache(maxsize=16)  # Dagster computes 100,000 keys in 4 s, for each tick
def _keys_up_to(
    definition: TimeWindowPartitionsDefinition,
    last: TimeWindow | None,  # noqa: ARG001 - a key of the cache
) -> frozenset[str]:
    """Return the keys of a definition whose last window by now is this one."""
    return frozenset(definition.get_partition_keys())
