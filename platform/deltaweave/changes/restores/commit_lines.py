"""The line of commits that a version of a table consists of, by its log alone.

RESTORE makes a version with the rows of an earlier one, and the commits between the two are in the
log. The log records which version that was by its number, or by a time as text without its time
zone. For a time, the files decide: after the RESTORE, the table has those of the restored version.

Nothing here needs Spark: a `Log` reads commits by their version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from deltaweave.delta.log import Commit, FileChanges

RESTORED, CLONED = "RESTORE", "CLONE"


_MINUTE_MS = 60_000
# Offsets of time zones: multiples of a quarter of an hour, from -12:00 to +14:00.
_ZONES_MS = [quarter * 15 * _MINUTE_MS for quarter in range(-48, 57)]
_A_DAY_MS = 24 * 60 * _MINUTE_MS

_FRACTION = re.compile(r"\.\d+")

_MAX_KEPT = 1_000
MAX_LOOKED = 500  # commits that are searched for one that may not exist


class Log(Protocol):
    """The log of a table."""

    @property
    def location(self) -> str:
        """Where the table is."""

    def commit(self, version: int) -> Commit | None:
        """Return the commit of a version; None if the log does not hold it any more."""

    def files(self, version: int) -> FileChanges | None:
        """Return the files that a commit added and removed; None if the log lacks it."""


@dataclass(frozen=True)
class Applied:
    """The version of an application id in the line of a table's version.

    Attributes:
        version: The id's newest version in the line; None if no commit of the line holds it.
        unknown_since: The newest RESTORE, if that leaves the id unknown: the log lacks commits from
            before it, and it may have undone commits with the id.
    """

    version: int | None
    unknown_since: Commit | None = None


class _Look(NamedTuple):
    """The batches that commits name, as far as the commits were read.

    Attributes:
        there: Batches of the line.
        left: Batches of commits that are not in it.
        looked: The commits read since the last one that undid others.
        below: The version whose commit is the next of the line; -1 for none.
    """

    there: set[int]
    left: set[int]
    looked: int
    below: int


restored_versions: dict[tuple[str, int, int], int | None] = {}
applied_ids: dict[tuple[str, str, bool, int, int], Applied] = {}
looks_at_batches: dict[tuple[str | int, ...], _Look] = {}


def line_of_commits(log: Log, version: int) -> Iterator[Commit]:
    """Yield the commits that a version consists of, the newest first, as far as the log has them.

    The last one may be a clone or a new table, whose rows are not from commits before it.
    """
    at: int | None = version
    while at is not None and at >= 0:
        commit = log.commit(at)
        if commit is None:
            return
        yield commit
        at = None if begins_history(commit) else version_before(log, commit)


def begins_history(commit: Commit) -> bool:
    """Return whether nothing before a commit counts, since it made a clone or a new table.

    Delta logs an overwrite by `saveAsTable` as a new table, too; Delta 4.3 marks it, and it is
    none.
    """
    if "REPLACE TABLE" in commit.operation:
        return str(commit.parameters.get("isV1SaveAsTableOverwrite")).lower() != "true"
    return commit.operation == CLONED


def version_before(log: Log, commit: Commit) -> int | None:
    """Return the version that a commit continues; None if the log does not show it.

    It is None if a RESTORE by time went to a version before all that the log still holds.
    """
    if commit.operation != RESTORED:
        return commit.version - 1
    version = commit.parameters.get("version")
    if version is not None:
        return int(version)
    key = (log.location, commit.version, commit.at_ms)
    if key in restored_versions:
        return restored_versions[key]
    found = _restored_by_files(log, commit)
    keep(restored_versions, key, found)
    return found


def applied_in_line(
    log: Log, version: int, application_id: str, held: int | None, *, is_alone: bool = False
) -> Applied:
    """Return what the line of a version holds of an application id.

    RESTORE keeps a table's application ids, also those of commits that it undoes. A version of an
    id stands for all lower versions, too. So an id does not count if a RESTORE came between the
    version that its writer read and its commit: lower batches may be undone.

    Args:
        log: The log of the table.
        version: The version.
        application_id: The application id.
        held: The version of the id in the snapshot, which counts if the log was cleaned up and no
            commit with the id was undone.
        is_alone: Whether a version of the id stands for its own commit only.
    """
    found, keys, line = None, [], list[Commit]()
    for commit in line_of_commits(log, version):
        keys.append((log.location, application_id, is_alone, commit.version, commit.at_ms))
        if keys[-1] in applied_ids:
            found = applied_ids[keys[-1]]
        elif application_id in commit.applied and (
            is_alone or _went_on_from_what_it_read(log, commit)
        ):
            found = Applied(commit.applied[application_id])
        if found is not None:
            break
        line.append(commit)
    if found is None:
        found = _applied_before(log, line, application_id, held)
    if keys and found.unknown_since is None:
        keep(applied_ids, keys[0], found)
    return found


def was_undone(log: Log, version: int, batch: int, application_ids: Sequence[str]) -> bool:
    """Return whether a batch is named only by commits that are not in the line of a version.

    The newest commit that names it decides: one of the line, or one that a RESTORE undid or a new
    table replaced. `MAX_LOOKED` commits are searched, beginning again at each commit that undid
    others.

    `batch` is the version under which commits name it, with one of the application ids.
    """

    def named(commit: Commit) -> set[int]:
        return {commit.applied[name] for name in application_ids if name in commit.applied}

    keys = list[tuple[str | int, ...]]()
    there, left, looked, below = set[int](), set[int](), 0, version
    while below >= 0 and looked < MAX_LOOKED and batch not in there and batch not in left:
        commit = log.commit(below)
        if commit is None:
            break
        keys.append((log.location, *application_ids, commit.version, commit.at_ms))
        if (kept := looks_at_batches.pop(keys[-1], None)) is not None:
            left |= kept.left - there
            there |= kept.there - left
            looked, below = kept.looked, kept.below
            continue
        if (named_here := named(commit)) and _went_on_from_what_it_read(log, commit):
            there |= named_here - left
        before = None if begins_history(commit) else version_before(log, commit)
        below = -1 if before is None else before
        undone = range(below + 1, commit.version)
        looked = 0 if undone else looked + 1
        for each in map(log.commit, reversed(undone)):
            if each is None:
                break
            left |= named(each) - there
    if keys:
        keep(looks_at_batches, keys[0], _Look(there, left, looked, below))
    return batch in left


def _went_on_from_what_it_read(log: Log, commit: Commit) -> bool:
    """Return whether no RESTORE came between the version that a writer read and its commit.

    A writer does not conflict with a RESTORE of files that it did not read.
    """
    first = commit.version if commit.read is None else commit.read + 1
    between = [log.commit(version) for version in range(first, commit.version)]
    return not any(
        each and (each.operation == RESTORED or begins_history(each)) for each in between
    )


def _applied_before(log: Log, line: list[Commit], application_id: str, held: int | None) -> Applied:
    """Return the version of an application id in a line none of whose known commits names it."""
    if line and (line[-1].version == 0 or begins_history(line[-1])):
        return Applied(None)
    restored = [commit for commit in line if commit.operation == RESTORED]
    if not restored:
        return Applied(held)
    before = version_before(log, line[-1])
    if before is None or log.commit(before + 1) is None:
        return Applied(None, unknown_since=restored[0])
    in_line = {commit.version for commit in line}
    for version in range(before + 1, line[0].version):
        undone = None if version in in_line else log.commit(version)
        if undone is not None and application_id in undone.applied:
            return Applied(None, unknown_since=restored[0])
    return Applied(held)


def _restored_by_files(log: Log, restore: Commit) -> int | None:
    """Return the version to which a RESTORE went, by its files and its time."""
    after, text = log.files(restore.version), _time_of(restore.parameters)
    if after is None:
        return None
    made: dict[int, int] = {}
    changes: dict[int, FileChanges] = {}
    for version in range(restore.version - 1, -1, -1):
        commit, files = log.commit(version), log.files(version)
        if commit is None or files is None:
            break
        made[version], changes[version] = commit.at_ms, files
        if text is not None and commit.at_ms < text[0] - _A_DAY_MS:
            break  # in every time zone, it is before the RESTORE's time
    same = _with_files_of(after, changes, restore.version)
    # Versions with the same files have the same rows. The newest holds the most batches.
    return min(same, key=lambda each: (_distance(text, made, each), -each), default=None)


def _with_files_of(
    after: FileChanges, changes: Mapping[int, FileChanges], restored: int
) -> set[int]:
    """Return the versions with the files that a table has after a RESTORE."""
    first = min(changes, default=restored)
    # By file, the versions of commits that name it, and whether it is in the table after each.
    named_in: dict[str, list[tuple[int, bool]]] = {}
    for version in sorted(changes):
        for file in changes[version].removed - changes[version].added:
            named_in.setdefault(file, []).append((version, False))
        for file in changes[version].added:
            named_in.setdefault(file, []).append((version, True))
    candidates = set(range(max(first - 1, 0), restored - 1))
    if not (after.added | after.removed) <= named_in.keys():
        return set()  # a file of the RESTORE is named only before the commits that were read
    for file, named in named_in.items():
        is_there = file in after.added or (file not in after.removed and named[-1][1])
        ends = [(first - 1, not named[0][1]), *named, (restored, is_there)]
        for (begin, before), (end, _) in pairwise(ends):
            if before != is_there:
                candidates.difference_update(range(begin, end))
    return candidates


class _RestoreTime(NamedTuple):
    """The time of a RESTORE, in ms since 1970, and whether its zone is known."""

    at_ms: int
    has_zone: bool


def _time_of(parameters: Mapping[str, Any]) -> _RestoreTime | None:
    """Return the time of a RESTORE, or None."""
    moment = parameters.get("datetime")  # as delta-rs writes it
    if isinstance(moment, int) or str(moment).isdecimal():
        return _RestoreTime(int(str(moment)), True)
    text = str(parameters.get("timestamp") or moment)
    try:
        # Python 3.10 reads only fractions of three or six digits, and no Z.
        text = _FRACTION.sub(lambda found: f"{found[0]:0<7}"[:7], text).replace("Z", "+00:00")
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    is_known = time.tzinfo is not None
    utc = time if is_known else time.replace(tzinfo=timezone.utc)
    return _RestoreTime(int(utc.timestamp() * 1000), is_known)


def _distance(text: _RestoreTime | None, made: Mapping[int, int], version: int) -> int:
    """Return how far, in ms, a RESTORE's time is from that at which a version was the newest."""
    if text is None:
        return 0
    time, is_known = text
    begin, end = made.get(version, 0), made.get(version + 1, time + 2 * _A_DAY_MS)
    times = [time] if is_known else [time - ahead for ahead in _ZONES_MS]
    return min(max(begin - each, each - end + 1, 0) for each in times)


def keep(kept: dict[Any, Any], key: tuple[Any, ...], value: Any, at_most: int = _MAX_KEPT) -> None:
    """Keep a finding on a commit; the commit's time, last in the key, identifies its table."""
    if not key[-1]:
        return
    kept.pop(key, None)  # so that it becomes the newest entry
    kept[key] = value
    for oldest in list(kept)[:-at_most]:  # a copy, because other threads may add entries
        kept.pop(oldest, None)
