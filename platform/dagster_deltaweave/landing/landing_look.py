"""One look at a landing directory: which deliveries are complete; and what the next look recalls.

What a table holds says what is left to merge. The sensor's cursor only saves work: if it is lost,
sizes have to settle again, and runs are looked up again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from dagster_deltaweave.landing.listing import Delivery

SECOND_IN_NS = 1_000_000_000
"""A second, in nanoseconds."""

_KEPT_NAMES = 1_000
_DIGEST_BYTES = 6


@dataclass(frozen=True)
class LandingCursor:
    """What a tick recalls of the one before.

    Attributes:
        unsettled: Without a marker, partition to fingerprint of what may still grow.
        done: Digests of groups of deliveries that are all requested.
    """

    unsettled: Mapping[str, str] = field(default_factory=dict)
    done: Sequence[str] = ()

    @classmethod
    def of(cls, cursor: str | None) -> LandingCursor:
        """Return what a cursor holds; nothing if it was reset, edited or of an earlier release."""
        try:
            found = cls(**json.loads(cursor or "{}"))
        except (TypeError, ValueError):
            return cls()
        is_sound = isinstance(found.unsettled, dict) and isinstance(found.done, list)
        return found if is_sound and all(isinstance(each, str) for each in found.done) else cls()

    def to_cursor(self) -> str:
        """Return it as a cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class LandingLook:
    """What one look at a landing directory found.

    Attributes:
        complete: The deliveries that can be merged.
        incomplete: Partitions whose delivery is not complete.
        unsettled: Without a marker, the fingerprints of incomplete deliveries, which may still
            change.
        unknown: Directories that a fixed partitions definition does not know.
        problems: Why other directories cannot be requested, by directory.
    """

    complete: Sequence[Delivery]
    incomplete: Sequence[str]
    unsettled: Mapping[str, str]
    unknown: Sequence[str]
    problems: Mapping[str, str]


def look_at_landing(
    found: Iterable[Delivery],
    *,
    marker: str | None,
    known: frozenset[str] | None,
    unsettled: Mapping[str, str],
    horizon: int,
    now: int,
) -> LandingLook:
    """Return which deliveries are complete, incomplete or unknown.

    Args:
        found: All deliveries in the landing directory.
        marker: Name of the marker file, or None if sizes have to settle.
        known: The possible partitions, or None if any partition is possible.
        unsettled: What the last look found unsettled.
        horizon: Deliveries up to this time have settled, in ns since 1970.
        now: The time, in ns since 1970.
    """
    complete, incomplete, unknown = [], [], []
    problems: dict[str, str] = {}
    growing: dict[str, str] = {}
    for delivery in found:
        partition, fingerprint = delivery.partition, delivery.fingerprint
        if delivery.problem is not None:
            problems[delivery.name] = delivery.problem
        elif known is not None and partition not in known:
            unknown.append(delivery.name)
        elif fingerprint is None or _may_be_rewritten(delivery, now):
            incomplete.append(partition)
        elif (
            marker is None
            and delivery.changed_at > horizon
            and unsettled.get(partition) != fingerprint
        ):
            incomplete.append(partition)
            growing[partition] = fingerprint
        else:
            complete.append(delivery)
            if marker is None and delivery.changed_at > horizon:
                growing[partition] = fingerprint  # it stays settled, also after this look
    return LandingLook(
        complete=complete,
        incomplete=sorted(incomplete),
        # Deliveries beyond this number wait until the horizon has passed them.
        unsettled=dict(sorted(growing.items())[:_KEPT_NAMES]),
        unknown=sorted(unknown),
        problems=dict(sorted(problems.items())),
    )


def groups(
    deliveries: Iterable[Delivery], described: Callable[[Delivery], str] = lambda _: ""
) -> Iterator[tuple[str, list[Delivery]]]:
    """Divide deliveries into groups of some hundreds, each with a digest of all that it has.

    A delivery that comes or changes makes only its own group another one.

    Args:
        deliveries: The deliveries, in an order that does not change.
        described: Gives what else is known of a delivery and makes its group another one.
    """
    group: list[Delivery] = []
    text = hashlib.sha256()
    for delivery in deliveries:
        group.append(delivery)
        name = delivery.partition.encode()
        text.update(
            b"%b\t%b\t%b\n" % (name, str(delivery.identity).encode(), described(delivery).encode())
        )
        if hashlib.sha256(name).digest()[0] == 0:
            yield text.hexdigest()[: 2 * _DIGEST_BYTES], group
            group, text = [], hashlib.sha256()
    if group:
        yield text.hexdigest()[: 2 * _DIGEST_BYTES], group


def is_whole_second(moment: int) -> bool:
    """Return whether a time, in ns, is a whole second, as some storages keep them."""
    return moment % SECOND_IN_NS == 0


def _may_be_rewritten(delivery: Delivery, now: int) -> bool:
    """Return whether a delivery that replaces this one may get the same time from the storage."""
    return is_whole_second(delivery.changed_at) and 0 <= now - delivery.changed_at < SECOND_IN_NS
