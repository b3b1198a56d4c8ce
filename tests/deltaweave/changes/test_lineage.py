"""Which noted events a version has, by the commits that it consists of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from deltaweave.changes import lineage
from deltaweave.changes.commit_lines import CLONED, RESTORED
from deltaweave.changes.lineage import REMEMBERED, Lineage
from deltaweave.delta.log import Commit

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
    newest: Any = SimpleNamespace(version=5, data_path="/lake/t")
    found = Lineage.of(newest, noted_ms)
    assert (min(found.commits), found.holds(noted_ms * 1000)) == (1, True)
    monkeypatch.delitem(commits, 5)
    newest.version = 4
    assert lineage.has_left(newest, 2, noted_ms)
