"""What a tick requests: what has landed, less what tables hold and what is under way, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    DagsterRunStatus,
    DynamicPartitionsDefinition,
    PartitionsDefinition,
    RunRecord,
    RunsFilter,
)

from dagster_deltaweave.landing import Delivery, Landing, LandingCursor, groups
from dagster_deltaweave.partitions import (
    ORDER_TAG,
    partition_positions,
    unmerged_attempts,
)
from dagster_deltaweave.sensors.delivery_runs import (
    RetryPolicy,
    Standing,
    TargetRuns,
    standing_of,
)
from dagster_deltaweave.sensors.target_tables import SensorTarget, TargetAsset

SortKey = Callable[[str], Any]

_PARTITIONS_LOOKED_AT = 1_000
_NOTES_SHOWN = 5
_FAILED_TEXT = "whose run failed"
_ENDED_TEXT = "whose run ended without a merge"
_UNDER_WAY = "which another run or a backfill is to merge"


@dataclass
class DeliveryPlan:
    """What a tick requests, and why it does not request the rest.

    Attributes:
        requests: The deliveries to request, the oldest first, with their attempts.
        merged: The number of merged deliveries.
        under_way: Partitions whose run is under way.
        notes: A clause for each other delivery: why it is not requested.
        waiting: Waiting deliveries, by the partition that they wait for, and why.
        later: The number of deliveries that are left for later ticks.
        done: Digests of groups of deliveries that runs have merged, for the cursor.
        lost: Adds dynamic partitions that tables hold, and that Dagster must have before the rest.
    """

    requests: list[tuple[Delivery, Standing]] = field(default_factory=list)
    merged: int = 0
    under_way: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    later: int = 0
    done: list[str] = field(default_factory=list)
    lost: AddDynamicPartitionsRequest | None = None

    @property
    def reasons(self) -> list[str]:
        """Why deliveries are not requested, a clause for each reason."""
        waits = []
        for partition, those in self.waiting.items():
            more = f" and {len(those) - 1} more wait" if len(those) > 1 else " waits"
            waits.append(f"{those[0]}{more} for {partition}")
        notes = self.notes[:_NOTES_SHOWN]
        if len(self.notes) > _NOTES_SHOWN:
            notes.append(f"and so on for {len(self.notes) - _NOTES_SHOWN} more")
        return [*notes, *waits]


def sort_key_of(partitions_def: PartitionsDefinition[str], instance: DagsterInstance) -> SortKey:
    """Return a function from partition to its position in the order of merges.

    Partitions without an order are ordered by their keys, and so are dynamic ones, because not all
    of them are known yet.
    """
    position = None
    if not isinstance(partitions_def, DynamicPartitionsDefinition):
        position = partition_positions(partitions_def, instance)

    def sort_key(partition: str) -> tuple[Any, ...]:
        at = None if position is None else position(partition)
        return (1, partition) if at is None else (0, at)

    return sort_key


def plan_requests(
    target: SensorTarget,
    deliveries: Sequence[Delivery],
    cursor: LandingCursor,
    policy: RetryPolicy,
    *,
    limit: int,
    margin: int,
) -> DeliveryPlan:
    """Return which of the complete deliveries to request now.

    `margin` says by how much, in ns, a delivery must have changed before a run by hand was created,
    so that the run has read it.
    """
    sort_key = sort_key_of(target.partitions_def, target.context.instance)
    assets = target.assets(margin)
    if lost := _lost_partitions(target, assets):
        return DeliveryPlan(lost=lost)
    missing = {
        each.partition: [asset for asset in assets if not asset.holds(each, target.landing)]
        for each in deliveries
    }
    left = [each for each in deliveries if missing[each.partition]]
    left.sort(key=lambda each: (sort_key(each.partition), each.partition))
    planner = _Planner(target, assets, sort_key, policy, DeliveryPlan(), limit)
    planner.plan.merged = len(deliveries) - len(left)
    planner.take(left, missing, frozenset(cursor.done))
    return planner.plan


def _lost_partitions(
    target: SensorTarget, assets: Sequence[TargetAsset]
) -> AddDynamicPartitionsRequest | None:
    """Return what adds the dynamic partitions that tables hold in order and Dagster never had.

    Its storage is then another one, and in it older partitions would pass for the newest. Of those
    that were deleted, it still has the materializations.
    """
    definition, instance = target.partitions_def, target.context.instance
    if not isinstance(definition, DynamicPartitionsDefinition) or definition.name is None:
        return None
    orders = {each.key: each.held.order for each in assets if each.held and each.held.order}
    if all(instance.has_dynamic_partition(definition.name, max(each)) for each in orders.values()):
        return None
    known, lost = set(instance.get_dynamic_partitions(definition.name)), set[str]()
    for key, order in orders.items():
        if max(order) not in known:
            lost |= order.keys() - known - instance.get_materialized_partitions(key)
    return definition.build_add_request(sorted(lost)) if lost else None


@dataclass
class _Planner:
    target: SensorTarget
    assets: Sequence[TargetAsset]
    sort_key: SortKey
    policy: RetryPolicy
    plan: DeliveryPlan
    limit: int

    def __post_init__(self) -> None:
        self._runs = TargetRuns(self.target)
        # Some partitions have no order.
        self._positions = partition_positions(self.target.partitions_def, self._instance)
        ordered = [each for each in self.assets if each.is_ordered]
        # The newest merged partition of each asset that merges in order: older ones come too late.
        self._newest = {
            each.key: each.newest_merged(self._positions, self._instance)
            for each in ordered
            if self._positions is not None
        }
        self._blocker: str | None = None
        self._num_late = 0
        newest = " ".join(f"{key}:{self._newest[key]}" for key in sorted(self._newest))
        # Ends the digest of deliveries that are all late for these.
        self._past_newest = f">{hashlib.sha256(newest.encode()).hexdigest()[:16]}"

    @property
    def _instance(self) -> DagsterInstance:
        return self.target.context.instance

    def take(
        self,
        left: Sequence[Delivery],
        missing: Mapping[str, Sequence[TargetAsset]],
        done: frozenset[str],
    ) -> None:
        """Decide on the deliveries that assets lack, the oldest first."""
        if not left:
            return
        several = self._runs.of_several()
        awaited = self._failed_without_delivery({each.partition for each in left})
        awaited |= {
            each: _UNDER_WAY
            for each in several
            if any(self._is_awaited_by(key, each) for key in self._newest)
        }
        oldest = sorted(awaited, key=self.sort_key)
        for digest, group in groups(left, lambda each: _keys_text(missing[each.partition])):
            if self._is_as_before(digest, group, missing, done):
                continue
            if len(self.plan.requests) == self.limit:
                self.plan.later += len(group)
                continue
            merged, num_late = self.plan.merged, self._num_late
            those = [asset for each in group for asset in missing[each.partition]]
            runs = self._runs.of([each.partition for each in group], {each.key for each in those})
            for delivery in group:
                partition = delivery.partition
                while oldest and self.sort_key(oldest[0]) < self.sort_key(partition):
                    older = oldest.pop(0)
                    self._blocker = self._blocker or f"{older}, {awaited[older]}"
                if partition in several:
                    self.plan.under_way.append(partition)
                    continue
                self._decide(delivery, runs.get(partition, ()), missing[partition])
            if self.plan.merged - merged == len(group):
                self.plan.done.append(digest)
            elif self._num_late - num_late == len(group) and all(map(self._shows_merges, those)):
                self.plan.done.append(f"{digest}{self._past_newest}")

    def _is_as_before(
        self,
        digest: str,
        group: Sequence[Delivery],
        missing: Mapping[str, Sequence[TargetAsset]],
        done: frozenset[str],
    ) -> bool:
        """Take over what an earlier tick found, if no delivery of a group is to be requested."""
        as_late = f"{digest}{self._past_newest}"
        if digest in done:
            self.plan.merged += len(group)
            self.plan.done.append(digest)
            return True
        if as_late in done:
            for each in group:
                self._note_late(each.partition, {asset.key for asset in missing[each.partition]})
            self.plan.done.append(as_late)
            return True
        return False

    def _decide(
        self, delivery: Delivery, runs: Sequence[RunRecord], missing: Sequence[TargetAsset]
    ) -> None:
        partition = delivery.partition
        # Runs by hand name no directory.
        landings = Landing(), self.target.landing
        own = [run for run in runs if Landing.of_run(run.dagster_run.tags) in landings]
        standing = standing_of(delivery, own, self.policy, missing, self._runs)
        late = {key for key in self._newest if self._is_merged_past(key, partition)}
        if standing.is_done:
            self.plan.merged += 1
        elif standing.run is not None and not standing.problem and standing.attempt is None:
            self.plan.under_way.append(partition)
        elif late >= standing.missing:
            self._note_late(partition, standing.missing)
        elif self._blocker is not None:
            self.plan.waiting.setdefault(self._blocker, []).append(partition)
        elif standing.problem:
            self.plan.notes.append(f"{partition}: {standing.problem}")
            if self._newest.keys() & standing.missing - late:
                is_failed = standing.run is None or standing.run.status != DagsterRunStatus.SUCCESS
                self._blocker = f"{partition}, {_FAILED_TEXT if is_failed else _ENDED_TEXT}"
        elif len(self.plan.requests) == self.limit:
            self.plan.later += 1
        elif self.target.denies(partition):
            self.plan.notes.append(f"{partition} is unknown: Dagster lists it, and refuses its run")
        else:
            # Assets without a log run again: their outputs may not outlive the run that made them.
            held = {each.key for each in self.assets if each.is_read} - standing.missing
            selected = self.target.without(held | late)
            with_rows = {each.key for each in self.assets if each.held is not None} & held
            made = with_rows if selected is None else with_rows.intersection(selected)
            key = standing.run_key or self._runs.unused_key(delivery, runs)
            chosen = replace(standing, run_key=key, selected=selected, held=frozenset(made))
            self.plan.requests.append((delivery, chosen))

    def _shows_merges(self, asset: TargetAsset) -> bool:
        """Return whether a late delivery of an asset stays one until its table's log changes."""
        return asset.is_read and asset.key in self._newest

    def _note_late(self, partition: str, missing: Collection[AssetKey]) -> None:
        self._num_late += 1
        self.plan.notes.append(
            f"{partition} is older than {self._newest[min(missing)]}, which is merged: run it with "
            f"the tag {ORDER_TAG}: any, then the newer ones again"
        )

    def _is_merged_past(self, key: AssetKey, partition: str) -> bool:
        """Return whether a partition is late: a newer one was merged into an asset's table."""
        newest = self._newest.get(key)
        return newest is not None and self.sort_key(partition) < self.sort_key(newest)

    def _is_awaited_by(self, key: AssetKey, partition: str) -> bool:
        """Return whether newer partitions of an asset wait for this one to be merged."""
        newest = self._newest[key]
        # Where there are several dimensions, others may have the newest one's time.
        is_passed = newest is not None and (
            partition == newest or self.sort_key(partition) < self.sort_key(newest)
        )
        if is_passed or self._positions is None:
            return False
        return self._positions(partition) is not None

    def _failed_without_delivery(self, landed: set[str]) -> dict[str, str]:
        """Return partitions without a complete delivery for which newer partitions wait.

        Their runs, e.g. of a backfill, failed, and a run of a newer one would fail because of that.
        """
        found = {
            (partition, key): run_id
            for key in self._newest
            for partition, run_id in unmerged_attempts(self._instance, key)
            if partition not in landed and self._is_awaited_by(key, partition)
        }
        oldest = sorted(found, key=lambda each: self.sort_key(each[0]))[:_PARTITIONS_LOOKED_AT]
        if not oldest:
            return {}
        wanted = RunsFilter(
            run_ids=sorted({found[each] for each in oldest}),
            statuses=[DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED],
        )
        failed = {
            record.dagster_run.run_id: record for record in self._instance.get_run_records(wanted)
        }
        held = {each.key: each.held for each in self.assets}
        unmerged = {
            partition
            for partition, key in oldest
            if (run := failed.get(found[partition, key])) is not None
            and not ((table := held[key]) and table.holds_run(partition, run, self._instance))
        }
        others = self._runs.of(sorted(unmerged)) if unmerged else {}
        return {
            partition: _FAILED_TEXT
            for partition in unmerged
            if not any(map(self._runs.is_under_way, others.get(partition, ())))
        }


def _keys_text(missing: Sequence[TargetAsset]) -> str:
    """Describe which tables are missing, so that a tick's result counts only while that holds."""
    return " ".join(f"{each.key.to_user_string()}:{each.held is None}" for each in missing)
