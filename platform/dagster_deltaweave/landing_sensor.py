"""A sensor that finds newly landed source partitions and requests one run for each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    DefaultSensorStatus,
    DynamicPartitionsDefinition,
    JobDefinition,
    MetadataValue,
    PartitionsDefinition,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dagster_deltaweave.landing import Delivery, deliveries
from dagster_deltaweave.run_requests import additions, first_without_a_run
from dagster_deltaweave.storage import local_path
from deltaweave.locations import refuse_credentials

_KEPT_NAMES = 1_000
"""How many names of one kind the cursor holds at most; beyond it, names wait for a later tick."""


@dataclass(frozen=True)
class Watermark:
    """Which deliveries were requested: the sensor's cursor, small however many there were.

    Requested are all deliveries that the storage saw up to the time `through`; of those up to the
    time `until`, the backlog, the ones up to the name `after`; and those in `recent`. Times are in
    ns since 1970.

    Attributes:
        through: Up to this time everything was requested.
        until: The backlog's end. A backlog is worked off by name, so that a table which is filled
            from partitions landed together merges them in order.
        after: The last name of the backlog that was requested.
        recent: Partition to fingerprint of what was requested after `until`, or ahead of it.
        unsettled: Partition to fingerprint of what may still grow, as last seen.
        unknown: Partitions that the partitions definition did not know when they landed.
    """

    through: int = 0
    until: int = 0
    after: str = ""
    recent: Mapping[str, str] = field(default_factory=dict)
    unsettled: Mapping[str, str] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    @classmethod
    def of(cls, cursor: str | None) -> Watermark | None:
        """The watermark that a cursor holds; None where it was reset, or is of another make."""
        try:
            return cls(**json.loads(cursor)) if cursor else None
        except (TypeError, ValueError):
            return None

    def to_cursor(self) -> str:
        """The watermark as a cursor."""
        return json.dumps(asdict(self))

    def covers(self, delivery: Delivery) -> bool:
        """Whether the delivery was requested."""
        return self.recent.get(delivery.partition) == delivery.fingerprint or self._passed(delivery)

    def _passed(self, delivery: Delivery) -> bool:
        return delivery.changed_at <= self.through or (
            delivery.changed_at <= self.until and delivery.partition <= self.after
        )

    def moved_by(
        self, requested: Sequence[Delivery], waiting: Iterable[Delivery], horizon: int
    ) -> Watermark:
        """The watermark after one more tick.

        Args:
            requested: What the tick requested, in the order of `Landed.new`.
            waiting: What is left of it.
            horizon: The time up to which nothing can come into view any more, in ns since 1970.
        """
        recent = {each.partition: each.fingerprint or "" for each in requested}
        if any(each.changed_at <= self.until for each in waiting):
            backlog = [each.partition for each in requested if each.changed_at <= self.until]
            after = max([self.after, *backlog])
            return Watermark(self.through, self.until, after, {**self.recent, **recent})
        return Watermark(self.until, max(horizon, self.until), "", {**self.recent, **recent})

    def keeping(
        self,
        found: Iterable[Delivery],
        unsettled: Mapping[str, str],
        unknown: Sequence[str],
    ) -> Watermark:
        """The watermark without recent deliveries that it covers anyway, or that are gone."""
        recent = {
            each.partition: each.fingerprint
            for each in found
            if each.fingerprint is not None
            and self.recent.get(each.partition) == each.fingerprint
            and not self._passed(each)
        }
        return Watermark(self.through, self.until, self.after, recent, unsettled, unknown)


@dataclass(frozen=True)
class Landed:
    """What one look at a landing directory found, seen from a watermark.

    Attributes:
        new: Complete deliveries that were not requested: the backlog by name, then what came
            after it by name.
        covered: How many were requested before.
        incomplete: Partitions whose delivery goes on.
        unsettled: Of these, without a marker, the fingerprints that may still change.
        unknown: Partitions that a fixed partitions definition does not know.
    """

    new: Sequence[Delivery]
    covered: int
    incomplete: Sequence[str]
    unsettled: Mapping[str, str]
    unknown: Sequence[str]


def build_partition_sensor(
    *,
    name: str,
    target: JobDefinition | UnresolvedAssetJobDefinition | AssetSelection,
    directory: str | Path,
    partitions_def: PartitionsDefinition[str],
    landing_asset: AssetKey | None = None,
    marker: str | None = "_SUCCESS",
    max_requests_per_tick: int = 20,
    max_lateness_seconds: int = 600,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> SensorDefinition:
    """A sensor over a directory in which each source partition lands as a directory.

    A partition is complete when its marker file is there or, without a marker, when names, sizes
    and times of its files are those of the tick before. One that is delivered again is merged
    again: the run key holds the partition and the delivery's fingerprint, which is the marker's
    time of modification or the digest of those names, sizes and times.

    The cursor is a watermark (`Watermark`), not a list of all that was ever requested. Where it is
    lost, the run keys of earlier runs say what was requested, and no run is doubled as long as
    Dagster's run storage still has them. To merge a delivery again, materialize its partition.

    Args:
        name: The sensor's name.
        target: The job, or the assets, to run for a partition.
        directory: The landing directory, a path or the URI of an object store (`s3://…`,
            `gs://…`, `abfss://…`); credentials come from the environment.
        partitions_def: The target's partitions; dynamic ones are added as they land.
        landing_asset: The external asset that the directory is; its arrivals are recorded there.
        marker: Name of the file that is written last and makes a partition complete; None where
            none is written and sizes have to settle.
        max_requests_per_tick: How many runs one tick requests; the rest waits for the next.
        max_lateness_seconds: How much later than the storage's own time of a delivery it may come
            into view: clocks that differ, and stores that keep times when a directory is renamed.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: What the UI says of it.

    Raises:
        StatementError: The directory is a URI that holds credentials.
    """
    refuse_credentials(directory, operation="looking for new partitions")

    @sensor(
        name=name,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each partition landed in {directory}.",
    )
    def partition_sensor(context: SensorEvaluationContext) -> SensorResult:
        found = deliveries(directory, marker)
        if found is None:
            return SensorResult(
                skip_reason=f"The landing directory is missing: {directory}", cursor=context.cursor
            )
        horizon = time.time_ns() - max_lateness_seconds * 1_000_000_000
        watermark = Watermark.of(context.cursor)
        if watermark is None:
            if context.cursor:
                context.log.warning("The cursor cannot be read: the runs say what was requested.")
            watermark = Watermark(until=horizon)
        landed = look(found, watermark, horizon, marker, _known_partitions(partitions_def))
        now, passed = first_without_a_run(
            context, name, landed.new, run_key=_run_key, limit=max_requests_per_tick
        )
        dealt_with = landed.new[: len(now) + len(passed)]
        waiting = landed.new[len(dealt_with) :]
        later = {each.partition for each in waiting}.intersection(watermark.unknown)
        cursor = (
            watermark.moved_by(dealt_with, waiting, horizon)
            .keeping(found, landed.unsettled, [*landed.unknown, *sorted(later)])
            .to_cursor()
        )
        if not now:
            reason = _skip_reason(directory, landed, len(passed), len(waiting))
            return SensorResult(skip_reason=reason, cursor=cursor)
        context.log.info(
            f"Requesting {len(now)} of {len(landed.new) - len(passed)} new partitions in "
            f"{directory}."
        )
        return SensorResult(
            run_requests=[_run_request(each) for each in now],
            dynamic_partitions_requests=additions(
                context, partitions_def, [each.partition for each in now]
            ),
            asset_events=[_arrival(landing_asset, directory, each) for each in now]
            if landing_asset
            else [],
            cursor=cursor,
        )

    return partition_sensor


def look(
    found: Sequence[Delivery],
    watermark: Watermark,
    horizon: int,
    marker: str | None,
    known: frozenset[str] | None,
) -> Landed:
    """What is new, and what is not complete or not known, from where the watermark stands.

    Args:
        found: All that is in the landing directory.
        watermark: Where the last tick left it.
        horizon: Deliveries up to this time have settled, in ns since 1970.
        marker: Name of the marker file, or None where sizes settle.
        known: The partitions there can be, or None when there can be any.
    """
    new, incomplete, unknown = [], [], []
    unsettled: dict[str, str] = {}
    settled_before, once_unknown = max(horizon, watermark.until), frozenset(watermark.unknown)
    for delivery in found:
        partition, fingerprint = delivery.partition, delivery.fingerprint
        if known is not None and partition not in known:
            unknown.append(partition)
        elif fingerprint is None:
            incomplete.append(partition)
        elif watermark.covers(delivery) and partition not in once_unknown:
            continue
        elif (
            marker is None
            and delivery.changed_at > settled_before
            and watermark.unsettled.get(partition) != fingerprint
        ):
            incomplete.append(partition)
            unsettled[partition] = fingerprint
        else:
            new.append(delivery)
    return Landed(
        new=sorted(new, key=lambda each: (each.changed_at > watermark.until, each.partition)),
        covered=len(found) - len(new) - len(incomplete) - len(unknown),
        incomplete=sorted(incomplete),
        # Beyond that number they wait until the horizon has passed them.
        unsettled=dict(sorted(unsettled.items())[:_KEPT_NAMES]),
        unknown=sorted(unknown)[:_KEPT_NAMES],
    )


def _known_partitions(partitions_def: PartitionsDefinition[str]) -> frozenset[str] | None:
    if isinstance(partitions_def, DynamicPartitionsDefinition):
        return None
    return frozenset(partitions_def.get_partition_keys())


def _skip_reason(directory: str | Path, landed: Landed, passed: int, waiting: int) -> str:
    reason = f"No new partition in {directory}: {landed.covered + passed} requested before"
    if passed:
        reason += f" ({passed} by runs that the cursor did not know of)"
    if waiting:
        reason += f", {waiting} to be looked at by later ticks"
    if landed.incomplete:
        reason += f", {len(landed.incomplete)} incomplete ({', '.join(landed.incomplete[:5])})"
    if landed.unknown:
        reason += f", {len(landed.unknown)} unknown ({', '.join(landed.unknown[:5])})"
    return reason + "."


def _run_key(delivery: Delivery) -> str:
    return f"{delivery.partition}@{delivery.fingerprint}"


def _run_request(delivery: Delivery) -> RunRequest:
    return RunRequest(
        run_key=_run_key(delivery),
        partition_key=delivery.partition,
        tags={"deltaweave/delivery": str(delivery.fingerprint)},
    )


def _arrival(
    landing_asset: AssetKey, directory: str | Path, delivery: Delivery
) -> AssetMaterialization:
    path = local_path(directory)
    if path is None:
        uri = f"{str(directory).partition('?')[0].rstrip('/')}/{delivery.partition}"
    else:
        uri = (path / delivery.partition).absolute().as_uri()
    return AssetMaterialization(
        asset_key=landing_asset,
        partition=delivery.partition,
        description="A complete delivery was found.",
        metadata={"dagster/uri": MetadataValue.text(uri)},
        tags={DATA_VERSION_TAG: str(delivery.fingerprint)},
    )
