"""Which remembered events a version of a table has, by the commits that it consists of.

RESTORE makes a version with the rows of an earlier one: the commits between the two are in the log,
and their changes are not in the table (`commit_lines`). A clone begins with the rows of another
table.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, combinations, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.changes.restores.commit_lines import (
    CLONED,
    MAX_LOOKED,
    RESTORED,
    Applied,
    applied_in_line,
    begins_history,
    keep,
    line_of_commits,
    version_before,
    was_undone,
)
from deltaweave.delta.commit import Lease, TransactionId
from deltaweave.delta.log import Commit, FileChanges, TableSnapshot, commit_of, file_changes_of
from deltaweave.engine.report import MergeResult
from deltaweave.errors import CommitConflictError, DeltaweaveError, SourceError
from deltaweave.identifiers import quoted
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMEMBERED = "deltaweave/remembered"
"""The application id whose version is the batch of remembered events that a commit applied."""

LOOKED_AT = "deltaweave/looked_at"
"""The application id whose version is that of the table last looked at, for RESTORE and CLONE.

A side table holds it, and the table itself for when it has no side table.
"""

AGAIN = "deltaweave/batch_again"
"""Prefix of the application id of a batch that was undone and is applied after a later one."""

NOTED_EVERY = 32  # versions of the table, after which a commit records that they were checked

_CLOCKS_DIFFER_MS = 60_000  # drivers' clocks, and those that date commits

_BY_PATH = re.compile(r"delta\.`(.*)`", re.DOTALL)

_UNUSED_ID = "deltaweave/none"  # an application id that no commit has

_KEPT_LOGS = 8
known_logs: dict[tuple[str, str], Mapping[int, Commit]] = {}


@dataclass(frozen=True)
class LogOf:
    """The log of a table, as `commit_lines` reads it."""

    table: TableSnapshot

    @property
    def location(self) -> str:
        """Where the table is."""
        return self.table.data_path

    def commit(self, version: int) -> Commit | None:
        """Return the commit of a version, or None."""
        return commit_of(self.table, version)

    def files(self, version: int) -> FileChanges | None:
        """Return the files that a commit changed, or None."""
        return file_changes_of(self.table, version)


@dataclass(frozen=True)
class Lineage:
    """The commits of a table, and which of them a version consists of.

    Attributes:
        commits: Commits in its log, by version, without a gap up to the newest.
        kept: The commits that the version consists of.
        cloned: The commit by which the version's rows were cloned from another table, if it was.
    """

    commits: Mapping[int, Commit]
    kept: frozenset[int]
    cloned: Commit | None

    @classmethod
    def of(cls, newest: TableSnapshot, since_ms: int, version: int | None = None) -> Lineage:
        """Build the lineage of a version, of commits since a time by a driver's clock."""
        commits = _commits_since(newest, since_ms - _CLOCKS_DIFFER_MS)
        kept: set[int] = set()
        at: int | None = newest.version if version is None else version
        while at is not None and at in commits and at not in kept:
            kept.add(at)
            if commits[at].operation == CLONED:
                return cls(commits, frozenset(kept), commits[at])
            at = version_before(LogOf(newest), commits[at])
        return cls(commits, frozenset(kept), None)

    def holds(self, noted_us: int) -> bool:
        """Return whether the version has what was noted at a time, in µs since 1970.

        The commit that applied it names its time. If none does, since nothing changed or the run
        died, it counts if the version that was the newest at that time is still part of the table.
        """
        if noted_us in self._applied:
            return not self.kept.isdisjoint(self._applied[noted_us])
        times, versions = self._newest_at
        before = bisect_right(times, noted_us)
        if not before:
            return self.cloned is None
        at = versions[before - 1]
        return at in self.kept and (at == max(self.commits) or at + 1 in self.kept)

    @cached_property
    def _newest_at(self) -> tuple[list[int], list[int]]:
        """Times in µs since 1970, in order, and the newest version at each."""
        made = sorted((each.at_ms * 1000, version) for version, each in self.commits.items())
        return [time for time, _ in made], list(accumulate((v for _, v in made), max))

    @cached_property
    def _applied(self) -> Mapping[int, set[int]]:
        """The versions of the commits that applied a batch, by the time at which it was noted."""
        found: dict[int, set[int]] = {}
        for version, commit in self.commits.items():
            if REMEMBERED in commit.applied:
                found.setdefault(commit.applied[REMEMBERED], set()).add(version)
        if self.cloned is not None:
            found[noted_by_clone(self.cloned)] = {self.cloned.version}
        return found


def _commits_since(newest: TableSnapshot, since_ms: int) -> dict[int, Commit]:
    """Return a table's commits from the newest to one before a time, as far as its log holds them.

    Commits that were read before are reused, from the newest one that is unchanged.
    """
    key, commits = (newest.data_path, newest.id), dict[int, Commit]()
    known, is_same = known_logs.get(key, {}), False
    for version in range(newest.version, -1, -1):
        commit = known.get(version) if is_same else None
        commit = commit or commit_of(newest, version)
        if commit is None:
            break
        is_same = is_same or commit == known.get(version)
        commits[version] = commit
        if commit.at_ms < since_ms:
            break
    keep(known_logs, key, commits, _KEPT_LOGS)
    return commits


def noted_by_clone(commit: Commit) -> int:
    """Return the time, in µs since 1970, at which a clone notes what its source remembers."""
    return commit.at_ms * 1000


def newest_in_line(
    snapshot: TableSnapshot, application_id: str, *, is_alone: bool = False
) -> Applied:
    """Return the version of an application id by the commits that a snapshot consists of.

    For `is_alone`, see `applied_in_line`.
    """
    held = snapshot.last_applied(application_id)
    if held is None:
        return Applied(None)
    log, version = LogOf(snapshot), snapshot.version
    return applied_in_line(log, version, application_id, held, is_alone=is_alone)


def id_to_commit(snapshot: TableSnapshot, given: TransactionId) -> TransactionId | None:
    """Return the transaction id with which a batch is committed; None if a version has the batch.

    It has the batch if its commits hold the application id with this version or a later one. But
    RESTORE leaves the ids of what it undoes, and what came since may hold a later version. Then a
    batch whose own commit was undone is committed with a further id (`AGAIN`), so that the later
    version still counts. If the log no longer shows it, the batch is applied again.
    """
    application_id, version = given
    held = snapshot.last_applied(application_id)
    if held is None or held < version:
        return given
    found = newest_in_line(snapshot, application_id).version
    if found is None or found < version:
        return given
    again, log = TransactionId(f"{AGAIN}/{application_id}", version), LogOf(snapshot)
    if found == version:
        return None
    is_left = was_undone(log, snapshot.version, version, (application_id, again[0]))
    return again if is_left else None


def cloned_by(newest: TableSnapshot, since: int) -> Commit | None:
    """Return the CLONE by which a table got its rows, unless it was checked for one since.

    `since` is the version up to which it was checked; -1 for none.
    """
    for commit in islice(line_of_commits(LogOf(newest), newest.version), MAX_LOOKED):
        if commit.version <= since:
            return None
        if begins_history(commit):
            return commit if commit.operation == CLONED else None
    first = commit_of(newest, 0)
    return first if first is not None and first.operation == CLONED else None


class ClonedSource(NamedTuple):
    """The source of a clone, and the version of it that was cloned."""

    table: Table
    version: TableSnapshot


def source_of(newest: TableSnapshot, clone: Commit) -> ClonedSource:
    """Open the source of a clone, and the version of it that was cloned.

    Raises:
        DeltaweaveError: The source or its version does not exist, or another table took its path.
    """
    name, version = clone.parameters["source"], int(clone.parameters["sourceVersion"])
    source = _opened_source(newest.spark, name)
    cloned = source.snapshot(version)
    if _was_rebuilt(cloned, clone):
        raise SourceError(
            f"{newest.data_path} was cloned from {name}, which was recreated since.",
            table=newest.data_path,
            operation="reading the source of a clone",
        )
    return ClonedSource(source, cloned)


def _was_rebuilt(source: TableSnapshot, clone: Commit) -> bool:
    """Return whether a clone's source was replaced by another table or an earlier copy.

    A clone has its source's creation time, which writers may leave out.
    """
    times = {source.created_at_ms, clone.created_at_ms} - {None}
    if len(times) > 1:
        return True
    made = commit_of(source, source.version)
    made_ms = source.created_at_ms or 0 if made is None else made.at_ms
    return made_ms - clone.at_ms > _CLOCKS_DIFFER_MS


def _opened_source(spark: SparkSession, name: str) -> Table:
    """Open a table that the commit of a clone names, without quotes.

    Raises:
        DeltaweaveError: The source does not exist.
    """
    path = _BY_PATH.fullmatch(name)
    if path is not None:
        return Table(spark, f"delta.{quoted(path[1])}")
    pieces = name.split(".")
    # A dot may separate the name's parts, at most three, or belong to one of them.
    for number in (3, 2, 1):
        for borders in combinations(range(1, len(pieces)), number - 1):
            parts = [pieces[a:b] for a, b in pairwise((0, *borders, len(pieces)))]
            found = Table(spark, ".".join(quoted(".".join(part)) for part in parts))
            with suppress(DeltaweaveError):
                if found.exists():
                    return found
    return Table(spark, name)


def last_look(newest: TableSnapshot) -> int:
    """Return the version up to which a table without side tables was checked, by its checksum."""
    return (newest.listed_ids or {}).get(LOOKED_AT, -1)


def was_restored_or_replaced(newest: TableSnapshot, since: int, since_ms: int = 0) -> bool:
    """Return whether a RESTORE or CLONE came after a version of a table, or its log was replaced.

    Commits before `since_ms`, in ms since 1970, do not matter.
    """
    if newest.version < since:
        # An earlier copy replaced the log, unless that has this version.
        return commit_of(newest, since) is None
    for version in range(newest.version, since, -1):
        commit = commit_of(newest, version)
        if commit is None or commit.at_ms < since_ms - _CLOCKS_DIFFER_MS:
            return False
        if commit.operation in (RESTORED, CLONED):
            return True
    return False


@dataclass(frozen=True)
class LineageLease(Lease):
    """A lease that holds until a commit breaks the table's lineage.

    Attributes:
        since: The version for which the remembered events are those of the table.
        newest: A version of the table, to read its log.
        metadata_breaks: Whether a commit of metadata, as of other columns, breaks it, too.
    """

    since: int = field(default=-1, kw_only=True)
    newest: TableSnapshot | None = field(default=None, kw_only=True)
    metadata_breaks: bool = field(default=True, kw_only=True)

    def check(self, held: int, *, table: str, version: int) -> None:
        """Fail if the table was restored or replaced, got other metadata, or lost `held`.

        With other columns, events may have to be combined with its rows in another way.

        Raises:
            CommitConflictError: One of these happened.
        """
        super().check(held, table=table, version=version)
        assert self.newest is not None
        for number in range(self.since + 1, version + 1):
            commit = commit_of(self.newest, number)
            # A table that replaces this one has side tables of its own.
            if commit is not None and (
                commit.operation == RESTORED
                or begins_history(commit)
                or (self.metadata_breaks and _changes_metadata(commit))
            ):
                raise CommitConflictError(
                    f"{commit.operation} made version {number} of the table meanwhile.",
                    table=table,
                    version=version,
                    hint="Apply the events again, to the table as it is now.",
                )

    def checked(self, result: MergeResult, table: Table) -> MergeResult:
        """Return a merge's result unless a RESTORE came before its commit without a conflict.

        Raises:
            CommitConflictError: A RESTORE came before the commit.
        """
        if result.version is not None:
            held = self.for_later_merges.held
            self.for_later_merges.check(held, table=table.path_or_name, version=result.version)
        return result

    def with_transaction_id(self, transaction_id: TransactionId, held: int) -> LineageLease:
        """Extend this lease for a merge whose id an undone commit left in the table.

        `held` is the version that this commit left.
        """
        application_id, version = transaction_id
        marks = {application_id: version, **self.marks}
        return replace(
            self, application_id=application_id, held=held, marks=marks, are_committed_alone=True
        )

    @property
    def for_later_merges(self) -> LineageLease:
        """The lease of the merges after the first one, which only delete rows."""
        return replace(self, application_id=_UNUSED_ID, held=-1, marks={}, metadata_breaks=False)


def _changes_metadata(commit: Commit) -> bool:
    # Some writers leave out when the table was created, by which metadata is known here.
    return commit.created_at_ms is not None or commit.operation == "ADD COLUMNS"


def lineage_lease(newest: TableSnapshot, noted: int | None = None) -> LineageLease:
    """Return a lease on a table's lineage, whose commit names the batch that was noted for it."""
    marks = {} if noted is None else {REMEMBERED: noted}
    if newest.version - last_look(newest) >= NOTED_EVERY:
        marks[LOOKED_AT] = newest.version
    return LineageLease(
        _UNUSED_ID, -1, marks, are_committed_alone=False, since=newest.version, newest=newest
    )
