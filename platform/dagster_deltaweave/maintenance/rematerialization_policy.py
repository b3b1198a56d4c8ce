"""When the changes of a merge-on-read table are due to be merged into its base."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dagster_deltaweave.logs import PendingChanges
from deltaweave.counts import counted


@dataclass(frozen=True)
class RematerializationPolicy:
    """How much may be pending before the base is rematerialized; None for any.

    Attributes:
        rows: Events.
        size_in_bytes: Size of their files.
        batches: Batches; every reader reads at least one file for each.
        age: Time since the oldest batch was appended.
        fraction_of_base: Size of the changes as a fraction of the base's.
        broadcast_limit_bytes: Size in memory up to which the changes can be broadcast, as in
            `MergeOnReadTable`. Above it, each read shuffles the base.
        expansion: How many times larger rows are in memory than in their files; it estimates the
            size in memory.
    """

    rows: int | None = None
    size_in_bytes: int | None = None
    batches: int | None = 1_000
    age: timedelta | None = timedelta(days=1)
    fraction_of_base: float | None = 0.25
    broadcast_limit_bytes: int | None = 2**30
    expansion: float = 4

    def reason(self, pending: PendingChanges) -> str | None:
        """Return a sentence on why the base is due to be rematerialized; None if it is not."""
        reasons = self._reasons(pending) if pending.batches else []
        return f"{'; '.join(reasons)}." if reasons else None

    def _reasons(self, pending: PendingChanges) -> list[str]:
        fraction = pending.fraction_of_base
        in_memory = int(pending.size_in_bytes * self.expansion)
        reasons = []
        if self.rows is not None and pending.rows >= self.rows:
            rows = counted(pending.rows, "row is", "rows are")
            reasons.append(f"{rows} pending, the limit is {self.rows:,}")
        if self.size_in_bytes is not None and pending.size_in_bytes >= self.size_in_bytes:
            reasons.append(
                f"{pending.size_in_bytes:,} bytes are pending, the limit is {self.size_in_bytes:,}"
            )
        if self.batches is not None and pending.batches >= self.batches:
            batches = counted(pending.batches, "batch is", "batches are")
            reasons.append(f"{batches} pending, the limit is {self.batches:,}")
        if self.age is not None and pending.age >= self.age:
            seconds = timedelta(seconds=int(pending.age.total_seconds()))
            reasons.append(f"a batch has been pending for {seconds}, the limit is {self.age}")
        if self.fraction_of_base is not None:
            if fraction is None:
                reasons.append("the base is empty")
            elif fraction >= self.fraction_of_base:
                allowed = f"{self.fraction_of_base:.1%}"
                reasons.append(f"{fraction:.1%} of the base are pending, the limit is {allowed}")
        if self.broadcast_limit_bytes is not None and in_memory > self.broadcast_limit_bytes:
            reasons.append(
                f"some {in_memory:,} bytes in memory are too many to be sent to every task "
                f"({self.broadcast_limit_bytes:,})"
            )
        return reasons
