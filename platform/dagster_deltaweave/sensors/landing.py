"""A sensor that finds newly landed source partitions and requests one run for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    DefaultSensorStatus,
    DynamicPartitionsDefinition,
    JobDefinition,
    PartitionsDefinition,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from dagster_deltaweave.dagster_private import (
    UnresolvedAssetJobDefinition,
)
from dagster_deltaweave.landing import (
    SECOND_IN_NS,
    Delivery,
    LandingLook,
    Watermark,
    hive_value,
    is_whole_second,
    landing_tag,
    list_deliveries,
    look_at_landing,
)
from dagster_deltaweave.partitions import partition_positions
from dagster_deltaweave.sensors.delivery_runs import (
    arrival_of_delivery,
    delivery_run_request,
    unused_run_key,
)
from dagster_deltaweave.sensors.run_requests import (
    PastRuns,
    additions,
    first_to_request,
    known_partitions,
)
from dagster_deltaweave.storage import same_place, without_query
from deltaweave.locations import refuse_credentials


@dataclass(frozen=True)
class _Watched:
    """What a landing sensor watches: the arguments of `build_partition_sensor`."""

    name: str
    directory: str | Path
    partitions_def: PartitionsDefinition[str]
    landing_asset: AssetKey | None
    marker: str | None
    suffix: str
    max_requests_per_tick: int
    max_lateness_seconds: int

    @property
    def shown(self) -> str:
        """The directory's name in messages."""
        return without_query(self.directory)

    def tag_of(self, found: Delivery) -> dict[str, str]:
        """The tag of a run for a delivery."""
        return landing_tag(self.directory, self.marker, found, self.suffix)

    @property
    def until_complete(self) -> str:
        """What incomplete partitions wait for."""
        if self.marker is None:
            return "their sizes have to settle"
        return f"their marker is {'<key>' + self.suffix if self.suffix else ''}{self.marker}"


def build_partition_sensor(
    *,
    name: str,
    target: JobDefinition | UnresolvedAssetJobDefinition | AssetSelection,
    directory: str | Path,
    partitions_def: PartitionsDefinition[str],
    landing_asset: AssetKey | None = None,
    marker: str | None = "_SUCCESS",
    suffix: str = "",
    max_requests_per_tick: int = 20,
    max_lateness_seconds: int = 600,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor over a directory in which each source partition lands as a directory.

    A partition is complete when its marker file exists or, without a marker, when names, sizes and
    times of its files are the same as in the previous tick. The marker must be written last: to
    copy a whole directory, copy it under a name that begins with `.` or `_`, then rename it.

    A partition that is delivered again is merged again: the run key holds the partition and the
    delivery's fingerprint, which is the marker's modification time or the digest of those names,
    sizes and times. If a marker keeps its time (`cp -a`), the time at which the disk last saw it
    change reveals the new delivery; so any other change of the marker, such as `chmod`, counts as a
    delivery too. Without a marker, files with the same names, sizes and times as last requested are
    the same delivery.

    A directory's name is its partition key. If fixed partitions do not have that key but have the
    part after `=`, as in Hive's `day=2024-01-01`, that part is the key; `partition_path` finds the
    directory. A directory whose name cannot be a key, or that cannot be read, is skipped with a
    reason; the others are requested.

    Runs are requested in the order of their partitions, oldest first, even over several ticks.

    The cursor is a watermark (`Watermark`), not a list of all requests. If it is lost, the run keys
    of earlier runs say what was requested, and no run is requested twice as long as Dagster's run
    storage still has them. To merge a delivery again, materialize its partition.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run for a partition.
        directory: The landing directory, a path or the URI of an object store (`s3://…`,
            `gs://…`, `abfss://…`); credentials come from the environment.
        partitions_def: The target's partitions; dynamic ones are added as they land.
        landing_asset: The external asset for the directory, in which arrivals are recorded.
        marker: Name of the file that is written last and makes a partition complete; None if none
            is written and sizes have to settle.
        suffix: How the names of files end that are partitions by themselves, such as `.csv`: the
            file `2024-01-01.csv` is the partition `2024-01-01`, and its marker has the marker's
            name appended, `2024-01-01.csv.done` with `marker=".done"`. Directories are then passed
            over. Empty if partitions are directories.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        max_lateness_seconds: How much later than its time in the storage a delivery may become
            visible, because clocks differ and some stores keep times when a directory is renamed.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: The sensor's description in the UI.

    Raises:
        StatementError: The directory is a URI that holds credentials.
    """
    refuse_credentials(directory, operation="looking for new partitions")
    limits = (max_requests_per_tick, max_lateness_seconds)
    watched = _Watched(name, directory, partitions_def, landing_asset, marker, suffix, *limits)
    return SensorDefinition(
        name=name,
        evaluation_fn=lambda context: _tick(context, watched),
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description
        or f"Requests one run for each partition landed in {watched.shown}.",
    )


def _tick(context: SensorEvaluationContext, watched: _Watched) -> SensorResult:
    """Look at the directory once, and request a run for each new delivery."""
    found = list_deliveries(watched.directory, watched.marker, watched.suffix)
    if found is None:
        return SensorResult(
            skip_reason=f"The landing directory is missing: {watched.shown}",
            cursor=context.cursor,
        )
    known = known_partitions(context, watched.partitions_def)
    found = list(_with_keys(found, known))
    now = time.time_ns()
    horizon = _horizon(found, now - watched.max_lateness_seconds * SECOND_IN_NS)
    place = _place_in_order(watched.partitions_def, context.instance)
    watermark = _watermark(context, same_place(watched.directory), horizon)
    landed = look_at_landing(found, watermark, horizon, watched.marker, known, now, place)
    runs = PastRuns(context, watched.name)
    chosen, passed = first_to_request(
        landed.new,
        unused_key=lambda delivery: unused_run_key(runs, delivery),
        limit=watched.max_requests_per_tick,
    )
    dealt_with = landed.new[: len(chosen) + len(passed)]
    waiting = landed.new[len(dealt_with) :]
    later = {each.name for each in waiting}.intersection(watermark.unknown)
    cursor = (
        watermark.moved_by(dealt_with, waiting, horizon)
        .keeping(found, landed.unsettled, sorted({*landed.unknown, *landed.problems, *later}))
        .to_cursor()
    )
    if not chosen:
        reason = _skip_reason(watched, landed, len(passed), len(waiting))
        return SensorResult(skip_reason=reason, cursor=cursor)
    context.log.info(
        f"Requesting {len(chosen)} of {len(landed.new) - len(passed)} new partitions in "
        f"{watched.shown}."
    )
    if landed.problems:
        context.log.warning(f"Skipped in {watched.shown}: {_listed_problems(landed.problems)}.")
    chosen.sort(key=lambda each: place(each[0]))  # also those that came after the backlog
    return _requests(context, watched, chosen, cursor)


def _place_in_order(
    partitions_def: PartitionsDefinition[str], instance: DagsterInstance
) -> Callable[[Delivery], Any]:
    """A function that gives a delivery's place in the order in which partitions must be merged.

    Partitions without an order are ordered by their keys, and so are dynamic ones, because not all
    of them are known yet.
    """
    position = None
    if not isinstance(partitions_def, DynamicPartitionsDefinition):
        position = partition_positions(partitions_def, instance)

    def place(delivery: Delivery) -> tuple[Any, ...]:
        at = None if position is None else position(delivery.partition)
        return (1, delivery.partition) if at is None else (0, at, delivery.partition)

    return place


def _requests(
    context: SensorEvaluationContext,
    watched: _Watched,
    chosen: Sequence[tuple[Delivery, str]],
    cursor: str,
) -> SensorResult:
    """The run requests for the chosen deliveries, each with its run key."""
    return SensorResult(
        run_requests=[
            delivery_run_request(each, run_key, watched.tag_of(each)) for each, run_key in chosen
        ],
        dynamic_partitions_requests=additions(
            context, watched.partitions_def, [each.partition for each, _ in chosen]
        ),
        asset_events=[
            arrival_of_delivery(watched.landing_asset, watched.directory, each)
            for each, _ in chosen
        ]
        if watched.landing_asset
        else [],
        cursor=cursor,
    )


def _watermark(context: SensorEvaluationContext, place: str, horizon: int) -> Watermark:
    """The watermark of the last tick; a new one if that is unknown."""
    watermark = Watermark.of(context.cursor)
    if context.cursor and watermark is None:
        context.log.warning("The cursor cannot be read: the run history says what was requested.")
    elif watermark is not None and watermark.place not in ("", place):
        context.log.info(f"{place} is a new directory: the run history says what was requested.")
        watermark = None
    return replace(watermark or Watermark(until=horizon), place=place)


def _horizon(found: Iterable[Delivery], settled: int) -> int:
    """The time, in ns since 1970, before which no more deliveries can become visible.

    It is never later than the newest time from the storage, because its clock may be behind.
    """
    newest = max((each.changed_at for each in found), default=settled)
    return min(settled, newest - SECOND_IN_NS if is_whole_second(newest) else newest)


def _with_keys(found: Iterable[Delivery], known: frozenset[str] | None) -> Iterable[Delivery]:
    """The deliveries with their partition keys, which differ from the names of Hive directories."""
    if known is None:
        return found
    named = sorted(found, key=lambda each: (each.partition not in known, each.partition))
    taken: set[str] = set()
    return [_with_key(each, known, taken) for each in named]


def _with_key(delivery: Delivery, known: frozenset[str], taken: set[str]) -> Delivery:
    """The delivery with its partition key, which is added to `taken`."""
    name = delivery.partition
    value = hive_value(name)
    if name not in known and value in known and value not in taken:
        delivery = replace(delivery, partition=value, directory=delivery.name)
    taken.add(delivery.partition)
    return delivery


def _skip_reason(watched: _Watched, landed: LandingLook, passed: int, waiting: int) -> str:
    reason = f"No new partition in {watched.shown}: {landed.covered + passed} requested before"
    if passed:
        reason += f" ({passed} by runs that the cursor did not know of)"
    if waiting:
        reason += f", {waiting} left for later ticks"
    if landed.incomplete:
        reason += f", {len(landed.incomplete)} incomplete ({', '.join(landed.incomplete[:5])}; "
        reason += f"{watched.until_complete})"
    if landed.unknown:
        reason += f", {len(landed.unknown)} unknown ({', '.join(landed.unknown[:5])})"
    return f"{reason}{f', skipped {_listed_problems(landed.problems)}' if landed.problems else ''}."


def _listed_problems(problems: Mapping[str, str]) -> str:
    first = "; ".join(f"{name!a}: {problem}" for name, problem in list(problems.items())[:5])
    return f"{len(problems)} ({first})"
