"""The landing sensor's cursor: how far a directory was read, and what is new since."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dagster_deltaweave.landing.delivery import Delivery

SECOND_IN_NS = 1_000_000_000
"""A second, in nanoseconds."""

_KEPT_NAMES = 1_000
"""If there are more names of one kind, the cursor packs them, or leaves them for a later tick."""


@dataclass(frozen=True)
class Watermark:
    """Which deliveries were requested: the sensor's cursor, which stays small.

    These deliveries were requested: all that the storage saw up to the time `through`; of those up
    to the time `until` (the backlog), the ones up to the name `after`; and those in `recent`. Times
    are in ns since 1970.

    Attributes:
        through: Up to this time everything was requested.
        until: The backlog's end. The backlog is requested in the order of names, so that partitions
            which landed together are merged in order.
        after: The last name of the backlog that was requested.
        recent: Partition to identity of what was requested after `until`, or ahead of it.
        unsettled: Partition to fingerprint of what may still grow, as last seen.
        unknown: Directories that could not be requested when they landed: the partitions
            definition did not know them, or they could not be read.
        place: The landing directory, with links followed. If another directory replaces it, that
            one is read from the start.
    """

    through: int = 0
    until: int = 0
    after: str = ""
    recent: Mapping[str, str] = field(default_factory=dict)
    unsettled: Mapping[str, str] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    place: str = ""

    @classmethod
    def of(cls, cursor: str | None) -> Watermark | None:
        """The watermark that a cursor holds; None if the cursor was reset or cannot be read."""
        try:
            values = json.loads(cursor or "null")
            watermark = cls(**{**values, "unknown": _unpacked(values["unknown"])})
        except (KeyError, TypeError, ValueError, zlib.error):
            return None
        return watermark if watermark._is_sound() else None

    def to_cursor(self) -> str:
        """The watermark as a cursor."""
        values = asdict(self)
        return json.dumps({**values, "unknown": _packed(self.unknown)})

    def _is_sound(self) -> bool:
        """Whether the values have the right types; a cursor may have been edited."""
        named: list[object] = [self.recent, self.unsettled]
        if not all(isinstance(each, dict) for each in named):
            return False
        texts: list[object] = [self.after, self.place, *self.unknown]
        texts += [*self.recent.values(), *self.unsettled.values()]
        times: list[object] = [self.through, self.until]
        return all(isinstance(each, int) for each in times) and all(
            isinstance(each, str) for each in texts
        )

    def covers(self, delivery: Delivery) -> bool:
        """Whether the delivery was requested."""
        return self.recent.get(delivery.partition) == delivery.identity or self._passed(delivery)

    def _passed(self, delivery: Delivery) -> bool:
        return delivery.changed_at <= self.through or (
            delivery.changed_at <= self.until and delivery.partition <= self.after
        )

    def moved_by(
        self, requested: Sequence[Delivery], waiting: Iterable[Delivery], horizon: int
    ) -> Watermark:
        """The watermark after one more tick.

        Args:
            requested: What the tick requested of `LandingLook.new`.
            waiting: What is left of it.
            horizon: The time up to which nothing can come into view any more, in ns since 1970.
        """
        recent = {**self.recent, **{each.partition: each.identity or "" for each in requested}}
        left = [each.partition for each in waiting if each.changed_at <= self.until]
        if left:
            # Names up to the first that waits; those behind it that were requested are recent.
            backlog = [each.partition for each in requested if each.changed_at <= self.until]
            after = max([self.after, *(each for each in backlog if each < min(left))])
            return replace(self, after=after, recent=recent)
        until = max(horizon, self.until)
        return replace(self, through=self.until, until=until, after="", recent=recent)

    def keeping(
        self,
        found: Iterable[Delivery],
        unsettled: Mapping[str, str],
        unknown: Sequence[str],
    ) -> Watermark:
        """The watermark without recent deliveries that it covers anyway or that no longer exist."""
        recent = {
            each.partition: each.identity
            for each in found
            if each.identity is not None
            and self.recent.get(each.partition) == each.identity
            and not self._passed(each)
        }
        return replace(self, recent=recent, unsettled=unsettled, unknown=unknown)


@dataclass(frozen=True)
class LandingLook:
    """What one look at a landing directory found, compared with a watermark.

    Attributes:
        new: Complete deliveries that were not requested: the backlog in order, then later ones in
            order.
        covered: How many were requested before.
        incomplete: Partitions whose delivery is not complete.
        unsettled: Without a marker, the fingerprints of incomplete deliveries, which may still
            change.
        unknown: Directories that a fixed partitions definition does not know.
        problems: Why other directories cannot be requested, by directory.
    """

    new: Sequence[Delivery]
    covered: int
    incomplete: Sequence[str]
    unsettled: Mapping[str, str]
    unknown: Sequence[str]
    problems: Mapping[str, str]


def look_at_landing(
    found: Sequence[Delivery],
    watermark: Watermark,
    horizon: int,
    marker: str | None,
    known: frozenset[str] | None,
    now: int | None = None,
    place: Callable[[Delivery], Any] = lambda each: each.partition,
) -> LandingLook:
    """Compare the landing directory with the watermark: what is new, incomplete or unknown.

    Args:
        found: All deliveries in the landing directory.
        watermark: The watermark after the last tick.
        horizon: Deliveries up to this time have settled, in ns since 1970.
        marker: Name of the marker file, or None if sizes have to settle.
        known: The possible partitions, or None if any partition is possible.
        now: The time, in ns since 1970, if deliveries in a second that has not ended must wait.
        place: The sort key of deliveries.
    """
    new, incomplete, unknown = [], [], []
    problems: dict[str, str] = {}
    unsettled: dict[str, str] = {}
    settled_before, once_unknown = max(horizon, watermark.until), frozenset(watermark.unknown)
    for delivery in found:
        partition, fingerprint = delivery.partition, delivery.fingerprint
        if delivery.problem is not None:
            problems[delivery.name] = delivery.problem
        elif known is not None and partition not in known:
            unknown.append(delivery.name)
        elif fingerprint is None:
            incomplete.append(partition)
        elif watermark.covers(delivery) and delivery.name not in once_unknown:
            continue
        elif now is not None and _may_be_rewritten(delivery, now):
            incomplete.append(partition)
        elif (
            marker is None
            and delivery.changed_at > settled_before
            and watermark.unsettled.get(partition) != fingerprint
        ):
            incomplete.append(partition)
            unsettled[partition] = fingerprint
        else:
            new.append(delivery)
    return LandingLook(
        new=sorted(new, key=lambda each: (each.changed_at > watermark.until, place(each))),
        covered=len(found) - len(new) - len(incomplete) - len(unknown) - len(problems),
        incomplete=sorted(incomplete),
        # Deliveries beyond this number wait until the horizon has passed them.
        unsettled=dict(sorted(unsettled.items())[:_KEPT_NAMES]),
        unknown=sorted(unknown),
        problems=dict(sorted(problems.items())),
    )


def is_whole_second(moment: int) -> bool:
    """Whether a time, in ns, is a whole second: some storages keep only whole seconds."""
    return moment % SECOND_IN_NS == 0


def _may_be_rewritten(delivery: Delivery, now: int) -> bool:
    """Whether a delivery that replaces this one may get the same time from the storage."""
    return is_whole_second(delivery.changed_at) and 0 <= now - delivery.changed_at < SECOND_IN_NS


def _packed(names: Sequence[str]) -> Sequence[str] | str:
    """Names for the cursor, which every tick stores: many names become a compressed text."""
    if len(names) <= _KEPT_NAMES:
        return names
    return base64.b85encode(zlib.compress(json.dumps(names).encode())).decode()


def _unpacked(packed: Sequence[str] | str) -> Sequence[str]:
    if not isinstance(packed, str):
        return packed
    names: list[str] = json.loads(zlib.decompress(base64.b85decode(packed)))
    return names
