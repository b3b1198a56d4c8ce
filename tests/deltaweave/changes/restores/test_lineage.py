"""Which noted events a version has, by the commits that it consists of."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from deltaweave.changes.restores import lineage
from deltaweave.changes.restores.commit_lines import CLONED, RESTORED
from deltaweave.changes.restores.lineage import REMEMBERED, Lineage, LineageLease
from deltaweave.delta.log import Commit
from deltaweave.errors import CommitConflictError

# Version 4 restored version 1. The commits of 1, 2 and 5 name what they applied.
APPLIED = {1: 900_000, 2: 1_900_000, 5: 4_900_000}
COMMITS = {
    version: Commit(
        version,
        version * 1000,
        RESTORED if version == 4 else "MERGE",
        {},
        {REMEMBERED: APPLIED[version]} if version in APPLIED else {},
    )
    for version in range(6)
}
LINEAGE = Lineage(COMMITS, frozenset({0, 1, 4, 5}), None)


@pytest.mark.parametrize(
    ("noted", "counts"),
    [
        (900_000, True),  # a kept commit names it
        (1_900_000, False),  # a commit that was restored away names it
        (4_900_000, True),
        # No commit names these: they changed nothing, or their run died.
        (-1, True),  # before all that the log holds
        (500_000, True),
        (1_500_000, False),  # after the restored version
        (3_500_000, False),
        (4_500_000, True),  # after the RESTORE
        (5_500_000, True),  # perhaps in flight
    ],
)
def test_what_was_noted_counts_by_its_commit_or_by_its_time(noted: int, counts: bool) -> None:
    assert LINEAGE.holds(noted) == counts


def test_what_was_applied_again_after_a_restore_counts() -> None:
    again = {**COMMITS, 5: replace(COMMITS[5], applied={REMEMBERED: 1_900_000})}
    assert Lineage(again, LINEAGE.kept, None).holds(1_900_000)


def test_a_clone_counts_what_it_took_over_and_nothing_before_it() -> None:
    clone = replace(COMMITS[4], operation=CLONED)
    cloned = Lineage({**COMMITS, 4: clone}, frozenset({4, 5}), clone)
    assert [cloned.holds(each) for each in (-1, 900_000, 4_000_000, 4_900_000)] == [
        False,
        False,
        True,
        True,
    ]


def test_a_commit_is_read_once_unless_another_log_took_the_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = {version: replace(each, operation="MERGE") for version, each in COMMITS.items()}
    read: list[int] = []

    def commit_of(_: object, version: int) -> Commit | None:
        read.append(version)
        return log.get(version)

    def lineage_of(newest: int, since_ms: int) -> tuple[set[int], list[int]]:
        read.clear()
        table: Any = SimpleNamespace(data_path="memory", id="of one test", version=newest)
        found = Lineage.of(table, since_ms + 60_000)  # by a clock that may be ahead
        assert all(log[version] == commit for version, commit in found.commits.items())
        return set(found.commits), list(read)

    monkeypatch.setattr(lineage, "commit_of", commit_of)
    assert lineage_of(3, 2_500) == ({2, 3}, [3, 2])
    assert lineage_of(5, 1_500) == ({1, 2, 3, 4, 5}, [5, 4, 3, 1])
    for version in (3, 4, 5):
        log[version] = replace(log[version], at_ms=9_000 + version)
    assert lineage_of(5, 0) == ({0, 1, 2, 3, 4, 5}, [5, 4, 3, 2, 0])


def test_commits_count_whose_clock_is_behind_that_of_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver's clock says when a batch was noted, and the storage's when it was applied."""
    noted_ms, applied = 100_000, {REMEMBERED: 100_000_000}
    commits = {
        1: Commit(1, 20_000, "MERGE", {}, {}),
        2: Commit(2, 91_000, "MERGE", {}, applied),
        3: Commit(3, 92_000, RESTORED, {"version": 2}, {}),
        4: Commit(4, 93_000, "MERGE", {}, {}),
        5: Commit(5, 200_000, RESTORED, {"version": 3}, {}),
    }
    monkeypatch.setattr(lineage, "commit_of", lambda _, version: commits.get(version))
    newest: Any = SimpleNamespace(version=5, data_path="/lake/t", id="of another test")
    found = Lineage.of(newest, noted_ms)
    assert (min(found.commits), found.holds(noted_ms * 1000)) == (1, True)
    monkeypatch.delitem(commits, 5)
    newest.version = 4
    assert lineage.was_restored_or_replaced(newest, 2, noted_ms)


@pytest.mark.parametrize(
    ("operation", "metadata_of", "stops_first", "stops_further"),
    [
        ("MERGE", None, False, False),
        # Columns are added: rows may be combined otherwise, and deletes are of whole rows.
        ("ADD COLUMNS", 1_000, True, False),
        ("WRITE", 1_000, True, False),
        (RESTORED, None, True, True),
    ],
)
def test_a_merge_after_the_first_one_is_stopped_by_a_restore_alone(
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    metadata_of: int | None,
    stops_first: bool,
    stops_further: bool,
) -> None:
    commit = Commit(1, 1_000, operation, {}, {}, metadata_of)
    monkeypatch.setattr(lineage, "commit_of", lambda _, version: {1: commit}.get(version))
    newest: Any = SimpleNamespace(version=1, data_path="/lake/t", id="of a third test")
    first = LineageLease("batch", 3, {}, since=0, newest=newest)
    for lease, held, stops in [
        (first, 3, stops_first),
        (first.for_later_merges, -1, stops_further),
    ]:
        with pytest.raises(CommitConflictError) if stops else nullcontext():
            lease.check(held, table="/lake/t", version=1)
