"""The commits that a version consists of, where logs name RESTOREs by number and by time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from deltaweave.changes.restores.commit_lines import applied_in_line, line_of_commits, was_undone
from deltaweave.delta.log import Commit, FileChanges, commit_from, file_changes_from

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
_places = itertools.count()


@dataclass(frozen=True)
class Written:
    """A commit as a test writes it: its files are a sign and a name.

    `+` adds the file, `-` removes it, and `=` says more of it. Its writer read the version `read`.
    """

    files: str = ""
    applied: int | None = None
    operation: str = "MERGE"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    read: int | None = None


@dataclass(frozen=True)
class LogOfTest:
    """A log whose commits are some time apart; None for one that log cleanup deleted."""

    commits: Sequence[Written | None]
    apart: timedelta = HOUR
    location: str = field(default_factory=lambda: f"log {next(_places)}")

    def commit(self, version: int) -> Commit | None:
        written = self._written(version)
        if written is None:
            return None
        at = int((BEGIN + version * self.apart).timestamp() * 1000)
        info = {
            "timestamp": at,
            "operation": written.operation,
            "operationParameters": written.parameters,
            "readVersion": written.read,
        }
        actions: list[dict[str, Any]] = [{"commitInfo": info}]
        if written.applied is not None:
            actions.append({"txn": {"appId": "app", "version": written.applied}})
        return commit_from(version, actions)

    def files(self, version: int) -> FileChanges | None:
        written = self._written(version)
        if written is None:
            return None
        kinds = {"+": "add", "-": "remove", "=": "add"}
        return file_changes_from(
            {kinds[each[0]]: {"path": each[1:], "dataChange": each[0] != "="}}
            for each in written.files.split()
        )

    def _written(self, version: int) -> Written | None:
        return self.commits[version] if 0 <= version < len(self.commits) else None


def by_time(files: str, **after: float) -> Written:
    """A RESTORE to a time after the begin, as Delta writes it."""
    time = (BEGIN + timedelta(**after)).replace(tzinfo=None)
    text = time.isoformat(sep=" ", timespec="milliseconds")
    return Written(files, operation="RESTORE", parameters={"version": None, "timestamp": text})


CREATED, A, B, C = Written(), Written("+a"), Written("+b"), Written("+c")
NOTHING, ANALYZED = Written(), Written("=a")  # whose statistics were computed
GONE_A = Written("-a")
# Back to the versions with the files a, and none.
TO_A, TO_NONE = "-b -c", "-a -b -c"


@pytest.mark.parametrize(
    ("commits", "line"),
    [
        # Times of versions 1 and 0 where the session's clock is ahead or behind.
        ([CREATED, A, B, C, by_time(TO_A, hours=1)], [4, 1, 0]),
        ([CREATED, A, B, C, by_time(TO_A, hours=1 + 9)], [4, 1, 0]),
        ([CREATED, A, B, C, by_time(TO_A, hours=1 - 8)], [4, 1, 0]),
        ([CREATED, A, B, C, by_time(TO_NONE, hours=5.75)], [4, 0]),
        # To a RESTORE, and to before one.
        ([CREATED, A, B, by_time("-b", hours=1), C, by_time("-c", hours=3)], [5, 3, 1, 0]),
        ([CREATED, A, GONE_A, B, by_time("+a -b", hours=1)], [4, 1, 0]),
        # Commits without files: the newest of those that have the same.
        ([CREATED, A, NOTHING, B, by_time("-b", hours=1)], [4, 2, 1, 0]),
        # Empty before and after: the time tells, if it can be of one zone only.
        ([CREATED, A, GONE_A, B, by_time("-b", hours=-12, minutes=10)], [4, 0]),
        # Nothing is where it was added a second time.
        ([CREATED, A, B, ANALYZED, C, by_time("-c -b", hours=1)], [5, 1, 0]),
        # The commit that added that file was cleaned up.
        ([None, None, B, ANALYZED, C, by_time("-c", hours=3)], [5, 3, 2]),
        # Log cleanup deleted that version, and the next.
        ([None, None, B, C, by_time(TO_A, hours=1)], [4]),
        ([None, None, None, C, by_time(TO_A, hours=1)], [4]),
        # By number, as Delta and delta-rs write it, and by time as delta-rs does.
        ([CREATED, A, B, Written("-b", None, "RESTORE", {"version": "1"})], [3, 1, 0]),
        ([CREATED, A, B, Written("-b", None, "RESTORE", {"version": 1})], [3, 1, 0]),
        ([CREATED, A, B, Written("-b", None, "RESTORE", {"datetime": 1772370000000})], [3, 1, 0]),
        ([CREATED, A, B, Written("-b", None, "RESTORE", {"datetime": "1772370000000"})], [3, 1, 0]),
        ([A, Written("+b", None, "CLONE"), C], [2, 1]),
    ],
)
def test_a_version_consists_of_the_commits_whose_files_it_has(
    commits: Sequence[Written | None], line: Sequence[int]
) -> None:
    log = LogOfTest(commits)
    assert [each.version for each in line_of_commits(log, len(commits) - 1)] == line


@pytest.mark.parametrize("text", ["2026-03-04 00:00:00.0", "2026-03-04 00:00:00.12", "2026-03-04"])
def test_files_whose_statistics_a_commit_computes_are_not_new(text: str) -> None:
    """Their own commits are more than a day older than the RESTORE's time, and not read."""
    to_five = Written("-d", None, "RESTORE", {"timestamp": text})
    commits = [CREATED, A, B, NOTHING, NOTHING, C, Written("+d"), ANALYZED, to_five]
    log = LogOfTest(commits, apart=timedelta(hours=12))
    assert [each.version for each in line_of_commits(log, 8)] == [8, 5, 4, 3, 2, 1, 0]


def test_a_time_of_minutes_is_of_one_version_among_commits_of_seconds() -> None:
    for zone in (0, 9, -8, 5.75):
        commits = [CREATED, A, GONE_A, B, by_time("-b", hours=zone, milliseconds=500)]
        log = LogOfTest(commits, apart=timedelta(seconds=1))
        assert [each.version for each in line_of_commits(log, 4)] == [4, 0], zone


def applied(files: str, version: int) -> Written:
    return Written(files, version)


def restored(version: int) -> Written:
    return Written("", None, "RESTORE", {"version": version})


def later(read: int) -> Written:
    return Written("+c", 3, read=read)


# As `saveAsTable` writes it, of a table that stays the same.
OVERWRITTEN = Written(
    "-a +b", None, "CREATE OR REPLACE TABLE AS SELECT", {"isV1SaveAsTableOverwrite": "true"}
)


@pytest.mark.parametrize(
    ("commits", "found"),
    [
        ([CREATED, applied("+a", 1), applied("+b", 2), NOTHING], 2),
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(1)], 1),
        ([CREATED, applied("+a", 1), applied("+b", 2), by_time("-b", hours=1 + 9)], 1),
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(0)], None),
        ([CREATED, applied("+a", 1), restored(0), applied("+b", 7)], 7),
        ([CREATED, applied("+a", 1), Written("+b", None, "CLONE")], None),
        ([CREATED, applied("+a", 1), Written("-a", None, "CREATE OR REPLACE TABLE")], None),
        ([CREATED, applied("+a", 1), OVERWRITTEN], 1),
        # Whose writer read what the RESTORE undid, and the RESTORE.
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(1), later(2)], 1),
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(1), later(3)], 3),
        ([None, NOTHING, NOTHING], 9),  # the version's own counts
        # What was undone does not hold the id, so RESTORE left it as it is.
        ([None, NOTHING, NOTHING, restored(1)], 9),
        ([None, None, NOTHING, restored(1)], 9),
        # What was undone holds it, or may hold it.
        ([None, NOTHING, applied("+a", 9), restored(1)], "unknown"),
        ([None, None, applied("+a", 9), restored(1)], "unknown"),
        ([None, None, None, restored(1)], "unknown"),
        ([None, None, None, B, by_time("-b -c", hours=1)], "unknown"),
    ],
)
def test_an_application_id_has_the_version_of_commits_that_still_count(
    commits: Sequence[Written | None], found: int | str | None
) -> None:
    log = LogOfTest(commits)
    for _ in range(2):  # also of what is known already
        held = applied_in_line(log, len(commits) - 1, "app", 9)
        assert ("unknown" if held.unknown_since else held.version) == found


def test_a_restore_is_found_behind_thousands_of_commits() -> None:
    commits = [CREATED, applied("+a", 1), applied("+b", 2), restored(1), *[NOTHING] * 2_000]
    assert applied_in_line(LogOfTest(commits), len(commits) - 1, "app", 2).version == 1


FOUR = applied("+d", 4)
REPLACED = Written("-a -b", None, "CREATE OR REPLACE TABLE")


@pytest.mark.parametrize(
    ("commits", "left"),
    [
        ([CREATED, applied("+a", 1), applied("+b", 2), FOUR], False),
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(1), FOUR], True),
        ([CREATED, applied("+a", 1), applied("+b", 2), restored(2), FOUR], False),
        # It came again, and was taken back again.
        ([CREATED, applied("+b", 2), restored(0), applied("+b", 2), FOUR], False),
        ([CREATED, applied("+b", 2), restored(0), FOUR, applied("+b", 2), restored(3)], True),
        # A RESTORE of a RESTORE brings it back.
        ([CREATED, applied("+b", 2), restored(0), FOUR, restored(1), FOUR], False),
        ([CREATED, applied("+b", 2), REPLACED, FOUR], True),
        ([CREATED, applied("+b", 2), REPLACED, FOUR, applied("+b", 2)], False),
        ([CREATED, applied("+b", 2), OVERWRITTEN, FOUR], False),
        # No commit that the log has names it.
        ([CREATED, applied("+a", 1), FOUR], False),
        ([None, None, applied("+a", 3), restored(1), FOUR], False),
        # Log cleanup deleted the version to which the RESTORE went, by number and by time.
        ([None, None, applied("+b", 2), restored(1), FOUR], True),
        ([None, None, applied("+b", 2), by_time("-b -c", hours=1), FOUR], True),
    ],
)
def test_an_id_was_left_if_its_newest_commit_is_in_no_line(
    commits: Sequence[Written | None], left: bool
) -> None:
    newest = len(commits) - 1
    assert was_undone(LogOfTest(commits), newest, 2, ["app"]) == left
    log = LogOfTest(commits)
    for version in range(len(commits)):  # also by what is known of earlier versions
        for batch in (4, 2, 9):
            was_undone(log, version, batch, ["app"])
    assert was_undone(log, newest, 2, ["app"]) == left


def test_a_log_is_read_once_for_all_batches_that_come_again() -> None:
    """It is read no further back than its last commits, if these undid nothing."""
    commits = [CREATED, *[applied("", n) for n in range(1_000)]]
    log, read = LogOfTest(commits), list[int]()

    @dataclass(frozen=True)
    class Counted(LogOfTest):
        def commit(self, version: int) -> Commit | None:
            read.append(version)
            return log.commit(version)

    counted = Counted(commits, location=log.location)
    for n in (998, 0, 7, 500):
        assert not was_undone(counted, 1_000, n, ["app"])
    assert len(read) <= 600
