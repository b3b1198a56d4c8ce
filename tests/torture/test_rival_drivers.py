"""Drivers in processes of their own that commit to one table in a store that answers badly.

Each merges keys that no other has, and appends some by Spark's own writer. What it reports as
committed must be in the table, once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.rival_drivers import Trouble, compete
from tests.torture.sizes import first_seed, size

pytestmark = pytest.mark.torture

DRIVERS = 4
COMMITS = size("COMMITS_OF_DRIVERS", small=10, full=400)


def test_what_four_drivers_report_as_committed_is_there_once(
    record_property: Callable[[str, object], None],
) -> None:
    """The store is slow in commits, loses answers, throttles and lists late."""
    trouble = Trouble(commit_seconds=0.2, lost=0.1, throttled=0.02, seed=first_seed())
    found = compete(drivers=DRIVERS, commits=COMMITS, trouble=trouble, listed_after=0.5)
    record_property(
        f"{DRIVERS} drivers, {COMMITS} commits each",
        f"{len(found.reported)} reported, {len(found.lost)} lost, {len(found.doubled)} doubled, "
        f"{len(found.unknown)} of unknown state, {found.conflicts} conflicts; "
        f"{trouble.counts['lost']} answers lost, {trouble.counts['throttled']} throttled",
    )
    assert (found.lost, found.doubled, found.unreported) == ([], [], [])
    assert found.failed == []
    assert len(found.reported) + len(found.unknown) == DRIVERS * COMMITS
