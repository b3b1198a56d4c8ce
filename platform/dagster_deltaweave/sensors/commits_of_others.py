"""Finds new commits to a table that were made by other writers than Dagster runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dagster import (
    AssetKey,
    DagsterInstance,
)

from dagster_deltaweave.logs import Commit, DeltaLog, Position
from dagster_deltaweave.run_mark import run_id_in, session_runs_in
from dagster_deltaweave.sensors.recorded_commits import (
    first_run_going_on,
    last_observed,
    materialized_by,
    versions_of_runs,
)
from dagster_deltaweave.storage import same_place


@dataclass(frozen=True)
class Followed:
    """Where a table is, and up to which commit it was read.

    Attributes:
        location: Path or URI of the table.
        seen: The newest commit that was read.
    """

    location: str
    seen: Position


@dataclass(frozen=True)
class TableLook:
    """What one look at a table found.

    Attributes:
        followed: Up to which commit it was read; None if there is no table.
        of_others: The new commits that no run made and that were not observed, oldest first.
        note: A note for the skip reason.
        is_first: Whether there is no record that the table was read before.
    """

    followed: Followed | None
    of_others: Sequence[Commit]
    note: str
    is_first: bool = False


def look_for_commits(
    instance: DagsterInstance, key: AssetKey, location: str, before: Followed | None, limit: int
) -> TableLook:
    """Return the commits since the last look that no run made and no observation has recorded."""
    log = DeltaLog(location)
    observed = None if before else last_observed(instance, key)
    before = Followed(location, observed) if observed else before
    commits = _commits_after(log, location, before, limit) if before else None
    if before is None or commits is None:
        return _first_look(log, location)
    judged, others = _judged(instance, key, log, commits)
    seen = judged[-1].position if judged else before.seen
    if not commits:
        note = f"version {seen.version} of {location} was the newest before"
    elif len(judged) < len(commits):
        note = (
            f"version {commits[len(judged)].version} of {location} waits for the runs in progress"
        )
    else:
        note = f"{len(commits)} new commits of {key.to_user_string()}, all of runs"
    return TableLook(Followed(location, seen), others, note)


def _first_look(log: DeltaLog, location: str) -> TableLook:
    newest = next(log.newest_first(), None)
    if newest is None:
        return TableLook(None, [], f"there is no Delta table at {location} yet")
    note = f"{location} is followed from version {newest.version} on"
    return TableLook(Followed(location, newest.position), [], note, is_first=True)


def _commits_after(
    log: DeltaLog, location: str, before: Followed, limit: int
) -> list[Commit] | None:
    """Return the commits to read, oldest first; None if the location holds another table."""
    # The position shows whether this is the same table, even if the table was moved.
    commits = log.after(before.seen, limit)
    if commits is None and same_place(location) == same_place(before.location):
        # The table was recreated, or its log was cleaned up past the cursor.
        commits = log.all(limit)
    return commits


def _judged(
    instance: DagsterInstance, key: AssetKey, log: DeltaLog, commits: Sequence[Commit]
) -> tuple[Sequence[Commit], list[Commit]]:
    """Return the first commits whose writers are known by now, and those of them to observe."""
    by_session = _of_sessions(instance, key, commits)
    unmarked = [
        each
        for each in commits
        if run_id_in(each.user_metadata) is None and not by_session.get(each.version)
    ]
    if not unmarked:
        return commits, []
    # Query the runs before the versions, so that a run that ends in between has its version there.
    labelled = {e.version for e in unmarked if e.user_metadata and e.version not in by_session}
    began = first_run_going_on(instance, key) if labelled else math.inf
    oldest = min(each.position.timestamp for each in unmarked)
    of_runs = versions_of_runs(instance, key, {each.version for each in unmarked}, oldest)
    others = [each for each in unmarked if each.version not in of_runs]
    unclear = (
        each.version
        for each in others
        if by_session.get(each.version, False) is None
        # A run that began after a commit did not make it.
        or (each.version in labelled and began <= each.position.timestamp)
    )
    first = next(unclear, None)
    if first is not None:
        commits = [each for each in commits if each.version < first]
        others = [each for each in others if each.version < first]
    # A tick that was killed before it saved its cursor may have recorded some.
    observed = last_observed(instance, key) if others else None
    if observed is not None and log.holds(observed):
        others = [each for each in others if each.version > observed.version]
    return commits, others


def _of_sessions(
    instance: DagsterInstance, key: AssetKey, commits: Sequence[Commit]
) -> dict[int, bool | None]:
    """Return by version whether a run that committed it materialized the asset; None: it may yet.

    A run that failed before is another writer for the asset, whose rows it has changed.
    """
    runs = {each.version: session_runs_in(each.user_metadata) for each in commits}
    known = {
        run_id: materialized_by(instance, run_id, key)
        for run_id in {each for of_commit in runs.values() for each in of_commit}
    }
    answers = {version: [known[each] for each in found] for version, found in runs.items() if found}
    return {
        version: True if True in found else None if None in found else False
        for version, found in answers.items()
    }
