"""A sensor that finds newly landed source partitions and requests one run for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    DefaultSensorStatus,
    PartitionsDefinition,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
)

from dagster_deltaweave.landing import (
    SECOND_IN_NS,
    Delivery,
    LandingCursor,
    LandingLook,
    hive_value,
    is_whole_second,
    landing_tag,
    list_deliveries,
    look_at_landing,
)
from dagster_deltaweave.sensors.delivery_plan import DeliveryPlan, plan_requests
from dagster_deltaweave.sensors.delivery_runs import (
    RetryPolicy,
    Standing,
    arrival_of_delivery,
    delivery_run_request,
)
from dagster_deltaweave.sensors.run_requests import (
    SensorArguments,
    added_partitions,
    check_least,
    check_marker,
)
from dagster_deltaweave.sensors.target_tables import SensorTarget, Target, check_target_partitions
from dagster_deltaweave.storage import local_path, without_query
from dagster_deltaweave.tables import AssetOrKey, NamedAsset
from deltaweave._validation import check_given_location, counted, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

COARSE_CLOCK = SECOND_IN_NS // 20
"""By how much the times that a disk gives files are behind the clock of the runs, at most."""


@dataclass(frozen=True)
class _LandingSensor:
    """A landing sensor: the arguments of `build_partition_sensor`, and its tick."""

    directory: str | Path
    partitions_def: PartitionsDefinition[str]
    landing_asset: AssetKey | None
    marker: str | None
    suffix: str
    max_requests_per_tick: int
    max_lateness_seconds: int
    policy: RetryPolicy
    target: Target
    run_tags: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The directory's name in messages."""
        return without_query(self.directory)

    def tags_of(self, found: Delivery) -> dict[str, str]:
        """Return the tags of a run for a delivery, except those that name the delivery."""
        return {
            **self.run_tags,
            **landing_tag(self.directory, self.marker, found, self.suffix),
        }

    @property
    def until_complete(self) -> str:
        """A clause that says for what incomplete partitions wait."""
        if self.marker is None:
            return "their sizes have to settle"
        return f"their marker is {'<key>' + self.suffix if self.suffix else ''}{self.marker}"

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Look at the directory once, and request a run for each delivery that is left to merge."""
        found = list_deliveries(self.directory, self.marker, self.suffix)
        if found is None:
            return SensorResult(
                skip_reason=f"The landing directory is missing: {self.shown}",
                cursor=context.cursor,
            )
        target = SensorTarget(
            context, self.target, self.partitions_def, self.directory, self.suffix
        )
        found = _with_keys(found, target.known)
        now, lateness = time.time_ns(), self.max_lateness_seconds * SECOND_IN_NS
        cursor = LandingCursor.of(context.cursor)
        landed = look_at_landing(
            found,
            marker=self.marker,
            known=target.known,
            unsettled=cursor.unsettled,
            horizon=_horizon(found, now - lateness),
            now=now,
        )
        plan = plan_requests(
            target,
            landed.complete,
            cursor,
            self.policy,
            limit=self.max_requests_per_tick,
            margin=lateness if local_path(self.directory) is None else COARSE_CLOCK,
        )
        if plan.lost:
            return SensorResult(
                skip_reason="The target's tables hold "
                f"{counted(len(plan.lost.partition_keys), 'partition')} that "
                "Dagster has never had, as after its storage was replaced: they are added first, "
                "because the order of merges is theirs.",
                dynamic_partitions_requests=[plan.lost],
                cursor=context.cursor,
            )
        after = LandingCursor(landed.unsettled, plan.done).to_cursor()
        if not plan.requests:
            return SensorResult(skip_reason=self._skip_reason(landed, plan), cursor=after)
        context.log.info(f"Requesting {counted(len(plan.requests), 'partition')} in {self.shown}.")
        for reason in plan.reasons:
            context.log.warning(f"Not requested: {reason}.")
        if landed.problems:
            context.log.warning(f"Skipped in {self.shown}: {_listed_problems(landed.problems)}.")
        return self._requests(context, plan.requests, after)

    def _requests(
        self,
        context: SensorEvaluationContext,
        chosen: Sequence[tuple[Delivery, Standing]],
        cursor: str,
    ) -> SensorResult:
        """Build the run requests for the chosen deliveries."""
        return SensorResult(
            run_requests=[
                delivery_run_request(each, standing, self.tags_of(each))
                for each, standing in chosen
            ],
            dynamic_partitions_requests=added_partitions(
                context, self.partitions_def, [each.partition for each, _ in chosen]
            ),
            asset_events=[
                arrival_of_delivery(self.landing_asset, self.directory, each)
                for each, standing in chosen
                if self.landing_asset and standing.attempt == 1
            ],
            cursor=cursor,
        )

    def _skip_reason(self, landed: LandingLook, plan: DeliveryPlan) -> str:
        reason = f"No new partition in {self.shown}: {plan.merged} merged"
        missing = f"; {self.until_complete}"
        for what, those, why in (
            ("under way", plan.under_way, ""),
            ("incomplete", landed.incomplete, missing),
            ("unknown", landed.unknown, ""),
        ):
            if those:
                reason += f", {len(those)} {what} ({', '.join(those[:5])}{why})"
        if landed.problems:
            reason += f", skipped {_listed_problems(landed.problems)}"
        return "; ".join([reason, *plan.reasons]) + "."


def build_partition_sensor(  # noqa: PLR0913 - the public options
    *,
    name: str,
    target: Target,
    directory: str | Path,
    partitions_def: PartitionsDefinition[str],
    landing_asset: AssetOrKey | None = None,
    marker: str | None = "_SUCCESS",
    suffix: str = "",
    max_requests_per_tick: int = 20,
    max_lateness_seconds: int = 600,
    attempts: int = 3,
    retry_after_seconds: float = 60,
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    description: str | None = None,
    run_tags: Mapping[str, str] | None = None,
    **arguments: Unpack[SensorArguments],
) -> SensorDefinition:
    """Build a sensor over a directory in which each source partition lands as a directory.

    A partition is complete when its marker file exists or, without a marker, when names, sizes and
    times of its files are the same as in the previous tick. The marker must be written last: to
    copy a whole directory, copy it under a name that begins with `.` or `_`, then rename it.

    A tick requests what has landed, less what the tables of the target hold and what runs under
    way will merge, the oldest first. Each merge records its partition in its own commit, so nothing
    is requested twice or lost if the cursor, Dagster's runs or names of sensors and code locations
    change, and it does not matter who merged a partition: the sensor, a backfill or a run by hand.
    Of targets that are not stored by a merge or by `deltaweave/write`, and of tables that have
    names in a catalog, Dagster's runs say what is done.

    A partition that is delivered again is merged again: a delivery is identified by the marker's
    modification time or by the digest of those names, sizes and times. If a marker keeps its time
    (`cp -a`), the time at which the disk last saw it change reveals the new delivery; so any other
    change of the marker, such as `chmod`, counts as a delivery too.

    If a run fails, it is requested again by `attempts` and `retry_after_seconds`, and each tick
    says when. Where partitions are merged in order, newer ones wait for it, and are requested as
    soon as it is merged, by whatever means. A delivery that is older than what is merged is not
    requested: the tick says what to do.

    A directory's name is its partition key. If fixed partitions do not have that key but have the
    part after `=`, as in Hive's `day=2024-01-01`, that part is the key; `partition_path` finds the
    directory. A directory whose name cannot be a key, or that cannot be read, is skipped with a
    reason; the others are requested.

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
            Without a marker, what is older has settled. In an object store, what changed so shortly
            before a run by hand is requested all the same.
        attempts: How many runs are requested for a delivery, if they fail. Dagster's own retries of
            a run, and what people execute again, do not count.
        retry_after_seconds: How long after a failed run the second is requested, in s; twice as
            long each further time, up to an hour.
        minimum_interval_seconds: Least time between two ticks.
        default_status: Whether the sensor starts by itself.
        description: The sensor's description in the UI.
        run_tags: Tags of the runs that it requests.
        arguments: Dagster's own: `metadata`, `owners` and `tags`.

    Raises:
        StatementError: The directory is empty, or a URI that holds credentials.
        DagsterInvalidDefinitionError: The marker has no name, the target no partitions, or a number
            makes no sense.
    """
    check_given_location(directory, operation="looking for new partitions")
    check_marker(name, marker)
    check_target_partitions(name, target)
    check_least(name, 1, max_requests_per_tick=max_requests_per_tick, attempts=attempts)
    check_least(name, 0, max_lateness_seconds=max_lateness_seconds)
    check_least(name, 0, retry_after_seconds=retry_after_seconds)
    given = {
        **locals(),
        "landing_asset": None if landing_asset is None else NamedAsset.of(landing_asset).key,
        "policy": RetryPolicy(attempts, retry_after_seconds),
        "run_tags": run_tags or {},
    }
    sensor = options_of(_LandingSensor, given)
    return SensorDefinition(
        name=name,
        evaluation_fn=lambda context: sensor.tick(context),
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Requests one run for each partition landed in {sensor.shown}.",
        **arguments,
    )


def _horizon(found: Iterable[Delivery], settled: int) -> int:
    """Return the time, in ns since 1970, before which no more deliveries can become visible.

    It is never later than the newest time from the storage, because its clock may be behind.
    """
    newest = max((each.changed_at for each in found), default=settled)
    return min(settled, newest - SECOND_IN_NS if is_whole_second(newest) else newest)


def _with_keys(found: list[Delivery], known: frozenset[str] | None) -> list[Delivery]:
    """Give the deliveries their partition keys, which differ from the names of Hive directories."""
    if known is None:
        return found
    named: list[Delivery] = []
    taken: set[str] = set()
    for each in sorted(found, key=lambda each: (each.partition not in known, each.partition)):
        value = hive_value(each.partition)
        if each.partition not in known and value in known and value not in taken:
            each = replace(each, partition=value, directory=each.name)
        taken.add(each.partition)
        named.append(each)
    return named


def _listed_problems(problems: Mapping[str, str]) -> str:
    first = "; ".join(f"{name!a}: {problem}" for name, problem in list(problems.items())[:5])
    return f"{len(problems)} ({first})"
