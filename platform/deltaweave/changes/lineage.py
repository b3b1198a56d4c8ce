"""The commits that a version of a table consists of.

RESTORE makes a version with the rows of an earlier one: the commits between the two are in the log,
and their changes are not in the table. The application ids of these commits stay with the table,
so they do not tell. A clone begins with the rows of another table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from pyspark.sql import functions as F

from deltaweave.delta.commit import Lease
from deltaweave.delta.log import Commit, TableSnapshot, commit_of
from deltaweave.errors import CommitConflictError
from deltaweave.identifiers import quoted

REMEMBERED = "deltaweave/remembered"
"""The application id whose version is the batch of remembered events that a commit applied."""

_NONE = "deltaweave/none"  # an application id that no commit has
RESTORED, CLONED = "RESTORE", "CLONE"


@dataclass(frozen=True)
class Lineage:
    """The commits of a table, and which of them a version consists of.

    Attributes:
        commits: Commits in its log, by version, without a gap up to the newest.
        kept: Those of them that the version consists of.
        cloned: The commit by which the version's rows were cloned from another table, if it was.
    """

    commits: Mapping[int, Commit]
    kept: frozenset[int]
    cloned: Commit | None

    @classmethod
    def of(cls, newest: TableSnapshot, since_ms: int, version: int | None = None) -> Lineage:
        """The lineage of a version.

        Args:
            newest: The newest version of the table.
            since_ms: Earlier commits do not matter.
            version: The version; by default the newest.
        """
        commits: dict[int, Commit] = {}
        for commit in backwards(newest, 0):
            commits[commit.version] = commit
            if commit.at_ms < since_ms:
                break
        kept: set[int] = set()
        at: int | None = newest.version if version is None else version
        while at is not None and at in commits and at not in kept:
            kept.add(at)
            if commits[at].operation == CLONED:
                return cls(commits, frozenset(kept), commits[at])
            at = version_before(newest, commits[at])
        return cls(commits, frozenset(kept), None)

    def holds(self, noted_us: int) -> bool:
        """Whether the version has what was noted at a time, in µs since 1970.

        The commit that applied it says so. If none did, because nothing changed or its run died,
        the version has it if it was the newest then, and was not left since.
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


def noted_by_clone(commit: Commit) -> int:
    """The time, in µs since 1970, at which a clone notes what its source remembers."""
    return commit.at_ms * 1000


def backwards(newest: TableSnapshot, first: int) -> Iterator[Commit]:
    """The commits of a table from the newest to a first version, as far as its log holds them."""
    for version in range(newest.version, first - 1, -1):
        commit = commit_of(newest, version)
        if commit is None:
            return
        yield commit


def line_of_commits(snapshot: TableSnapshot) -> Iterator[Commit]:
    """The commits that a version consists of, the newest first, as far as the log holds them.

    The last one may be that of a clone.
    """
    at: int | None = snapshot.version
    while at is not None and at >= 0:
        commit = commit_of(snapshot, at)
        if commit is None:
            return
        yield commit
        at = None if commit.operation == CLONED else version_before(snapshot, commit)


def has_left(newest: TableSnapshot, since: int, since_ms: int = 0) -> bool:
    """Whether a table has left the line of commits on which it was at a version.

    Args:
        newest: The newest version of the table.
        since: The version.
        since_ms: Earlier commits do not matter, in ms since 1970.
    """
    if newest.version < since:
        # Without that version, an earlier copy of the log has taken the place of the log.
        return commit_of(newest, since) is None
    for commit in backwards(newest, since + 1):
        if commit.at_ms < since_ms:
            return False
        if commit.operation in (RESTORED, CLONED):
            return True
    return False


def version_before(newest: TableSnapshot, commit: Commit) -> int | None:
    """The version from which a commit went on; None if the log does not say."""
    if commit.operation != RESTORED:
        return commit.version - 1
    version, timestamp = (commit.parameters.get(name) for name in ("version", "timestamp"))
    if version is not None:
        return int(version)
    history = newest.spark.sql(f"DESCRIBE HISTORY delta.{quoted(newest.data_path)}")
    until = F.lit(timestamp).cast("timestamp")
    # The text of the time may be of another zone: it never says that a RESTORE follows itself.
    earlier = history.where((F.col("timestamp") <= until) & (F.col("version") < commit.version))
    found = earlier.agg(F.max("version")).first()
    return None if found is None else found[0]


@dataclass(frozen=True)
class OfOneLine(Lease):
    """A lease that holds as long as the table has not left its line of commits.

    Attributes:
        since: The version at which the remembered events were those of the table.
        newest: A version of the table, whose log is looked at.
    """

    since: int = field(default=-1, kw_only=True)
    newest: TableSnapshot | None = field(default=None, kw_only=True)

    def check(self, held: int, *, table: str, version: int) -> None:
        """Fail where the table was restored or cloned over meanwhile, or no longer holds `held`.

        Raises:
            CommitConflictError: It was, or does not.
        """
        super().check(held, table=table, version=version)
        assert self.newest is not None
        for number in range(self.since + 1, version + 1):
            commit = commit_of(self.newest, number)
            if commit is not None and commit.operation in (RESTORED, CLONED):
                raise CommitConflictError(
                    f"{commit.operation} made version {number} of the table meanwhile.",
                    table=table,
                    version=version,
                    hint="Apply the events again, to the table as it is now.",
                )

    @property
    def of_further_merges(self) -> OfOneLine:
        """The lease of merges after the first one, which adds what it adds."""
        return replace(self, application_id=_NONE, held=-1, marks={})


def line_of(newest: TableSnapshot, noted: int | None = None) -> OfOneLine:
    """The lease of a table's line, whose commit names what was noted for it."""
    marks = {} if noted is None else {REMEMBERED: noted}
    return OfOneLine(
        _NONE, -1, marks, are_committed_alone=False, since=newest.version, newest=newest
    )
