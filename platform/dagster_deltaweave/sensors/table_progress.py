"""How far a table sensor has read a source table, and what changed since."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from dagster import (
    PartitionsDefinition,
)

from dagster_deltaweave.logs import Commit, DeltaLog, Position

PartitionKeyOf = Callable[[Mapping[str, str | None]], str]
"""Gives the asset's partition key for a file's partition values by column."""

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Progress:
    """How far a source table was read: the sensor's cursor.

    Attributes:
        seen: The newest version whose changes were all requested.
        until: If more partitions changed than a tick requests: the version up to which these
            partitions are requested.
        after: The last of these partitions that was requested; they are requested by name.
        unknown: Partition to version for partitions that the definition did not know.
        until_timestamp: When the version `until` was committed, in ms since 1970; None or 0 if an
            older release did not keep it.
    """

    seen: Position
    until: int | None = None
    after: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    until_timestamp: int | None = None

    @classmethod
    def of(cls, cursor: str | None) -> Progress | None:
        """Read the progress from a cursor; None if the cursor was reset or cannot be read."""
        try:
            values = json.loads(cursor or "null")
            progress = cls(**{**values, "seen": Position(**values["seen"])})
        except (KeyError, TypeError, ValueError):
            return None
        return progress if progress._is_sound() else None

    def _is_sound(self) -> bool:
        """Return whether the values have the right types; a cursor may have been edited."""
        numbers: list[object] = [self.seen.version, self.seen.timestamp]
        numbers += [each for each in (self.until, self.until_timestamp) if each is not None]
        unknown: object = self.unknown
        return (
            all(isinstance(each, int) for each in numbers)
            and isinstance(unknown, dict)
            and all(isinstance(each, str) for each in [self.after, *unknown.values()])
        )

    def leads_to(self, commits: Sequence[Commit]) -> bool:
        """Return whether these commits after `seen` include the version `until`."""
        if self.until is None or not self.until_timestamp:
            return True
        return Position(self.until, self.until_timestamp) in [each.position for each in commits]

    def to_cursor(self) -> str:
        """Return the progress as a cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Change:
    """A partition that changed, and the last version in which it did.

    Attributes:
        partition: The partition key; empty for the table as a whole.
        version: The version and its time, `<version>@<ms since 1970>`, which a table
            that is recreated at the same place does not repeat.
    """

    partition: str
    version: str

    @property
    def run_key(self) -> str:
        """Identifies the run for this change."""
        return f"{self.partition}@{self.version}" if self.partition else self.version


def look_at_table(
    log: DeltaLog, progress: Progress | None, *, by_partition: bool
) -> tuple[Progress, list[Commit]] | None:
    """Return where the look at the table begins, and its commits from there; None without one."""
    commits = log.after(progress.seen) if progress else None
    if progress is not None and commits is not None and progress.leads_to(commits):
        until = progress.until
        return progress, [each for each in commits if until is None or each.version <= until]
    commits = log.all() if by_partition else _newest_change(log)
    if not commits:
        return None
    begin = Position(commits[0].version - 1, 0)
    # Unknown partitions are remembered as long as the table can be the one in which they changed.
    is_cleaned_up = progress is not None and begin.version >= progress.seen.version
    return Progress(begin, unknown=progress.unknown if progress and is_cleaned_up else {}), commits


def _newest_change(log: DeltaLog) -> list[Commit]:
    """Return the newest commit that changed rows, or the newest of all if none in the log did."""
    newest = None
    for commit in log.newest_first():
        newest = newest or commit
        if commit.changes_data:
            # Later commits are covered by the cursor's version, and no run key contains them.
            return [commit] if commit is newest else [commit, newest]
    return [newest] if newest else []


def changes_to_request(
    commits: Sequence[Commit],
    progress: Progress,
    known: frozenset[str] | None,
    partitions_def: PartitionsDefinition[str] | None,
    partition_key: PartitionKeyOf | None,
) -> tuple[list[Change], dict[str, str]]:
    """Return the changes to request, in order, and those of unknown partitions."""
    changing = [each for each in commits if each.changes_data]
    if partitions_def is None:
        return [Change("", _spelt(each.position)) for each in changing[-1:]], {}
    key_of = partition_key or _joined
    changed: dict[str, str] = {}
    for commit in changing:
        for values in commit.partitions:
            changed[key_of(dict(values))] = _spelt(commit.position)
    changed = {each: changed[each] for each in sorted(changed) if each > progress.after}
    if known is None:
        return [Change(*each) for each in changed.items()], {}
    # Partitions that were unknown come first, because the log may no longer have their versions.
    once_unknown = {**progress.unknown, **changed}
    unknown = {each: version for each, version in once_unknown.items() if each not in known}
    return [Change(*each) for each in once_unknown.items() if each[0] in known], unknown


def _joined(values: Mapping[str, str | None]) -> str:
    return "|".join(
        _NULL_PARTITION if value is None else value for _, value in sorted(values.items())
    )


def _spelt(position: Position) -> str:
    return f"{position.version}@{position.timestamp}"


def progress_after(
    progress: Progress,
    commits: Sequence[Commit],
    changes: Sequence[Change],
    dealt_with: int,
    unknown: Mapping[str, str],
) -> Progress:
    """Return the progress after this many changes were requested or skipped."""
    newest = commits[-1].position if commits else progress.seen
    waiting = changes[dealt_with:]
    if not waiting:
        return Progress(newest, unknown=unknown)
    # Partitions that were unknown and still wait are remembered with their versions.
    remembered = {each.partition: each.version for each in waiting}
    still = {each: remembered[each] for each in progress.unknown if each in remembered}
    after = max(
        [progress.after]
        + [
            each.partition
            for each in changes[:dealt_with]
            if each.partition not in progress.unknown
        ]
    )
    return Progress(
        progress.seen, newest.version, after, {**unknown, **still}, until_timestamp=newest.timestamp
    )
