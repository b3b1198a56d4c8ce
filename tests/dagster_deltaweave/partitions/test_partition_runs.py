"""Whether a run is under way, as a sensor and the runs of newer partitions ask."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    RunRecord,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    materialize,
)
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test

from dagster_deltaweave.partitions import (
    DELIVERY_TAG,
    IDENTITY_TAG,
    RECORDED_TAG,
    WAITED_TAG,
    is_under_way,
    partitions_of_run,
    tags_of_run,
    unmerged_attempts,
    wrote,
)

STARTED, FAILURE = DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE
WILL_RETRY, OF_BACKFILL = {"dagster/will_retry": "true"}, {"dagster/backfill": "nightly"}
LAUNCHED = {"dagster/auto_retry_run_id": "another"}
NOW, LONG_AGO = timedelta(seconds=5), timedelta(minutes=11)
GOES_ON, ENDED = BulkActionStatus.REQUESTED, BulkActionStatus.COMPLETED_FAILED


def record(
    status: DagsterRunStatus, tags: dict[str, str], ago: timedelta, *, has_end: bool
) -> RunRecord:
    run = DagsterRun("write", "one", status=status, tags=tags)
    at = datetime.now(timezone.utc) - ago
    changed = datetime.now(timezone.utc) if has_end else at
    return RunRecord(1, run, at, changed, end_time=at.timestamp() if has_end else None)


@pytest.mark.parametrize(
    ("status", "tags", "ago", "backfill", "expected"),
    [
        (STARTED, {}, LONG_AGO, None, True),
        (STARTED, OF_BACKFILL, LONG_AGO, ENDED, True),  # it runs, whatever became of the backfill
        (FAILURE, {}, NOW, None, False),
        (FAILURE, WILL_RETRY, NOW, None, True),
        (FAILURE, WILL_RETRY | LAUNCHED, NOW, None, False),  # now the retry is under way
        (FAILURE, WILL_RETRY, LONG_AGO, None, False),  # no daemon, or no such job any more
        (FAILURE, WILL_RETRY | OF_BACKFILL, NOW, GOES_ON, True),
        (FAILURE, WILL_RETRY | OF_BACKFILL, LONG_AGO, GOES_ON, False),
        (FAILURE, WILL_RETRY | OF_BACKFILL, NOW, BulkActionStatus.CANCELED, False),
        (FAILURE, WILL_RETRY | OF_BACKFILL, NOW, ENDED, False),
        (FAILURE, WILL_RETRY | OF_BACKFILL, NOW, None, False),  # it was deleted
    ],
)
def test_a_failed_run_is_under_way_as_long_as_dagster_may_launch_its_retry(
    status: DagsterRunStatus,
    tags: dict[str, str],
    ago: timedelta,
    backfill: BulkActionStatus | None,
    expected: bool,
) -> None:
    with DagsterInstance.ephemeral() as instance:
        if backfill is not None:
            instance.add_backfill(PartitionBackfill("nightly", backfill, False, {}, 0.0))
        for has_end in (True, False):
            assert is_under_way(record(status, tags, ago, has_end=has_end), instance) is expected


@pytest.mark.parametrize(
    ("value", "parent", "expected"),
    [
        ("day-1 (run one)", None, True),
        ("day-1 (run other)", "other", False),  # Dagster copied it from the run before
        ("day-1", None, True),  # an earlier release did not name the run
        ("day-1", "other", False),
        (None, None, False),
    ],
)
def test_a_tag_counts_for_the_run_that_wrote_it(
    value: str | None, parent: str | None, expected: bool
) -> None:
    tags = {} if value is None else {WAITED_TAG: value}
    run = DagsterRun("write", "one", tags=tags, parent_run_id=parent, root_run_id=parent)
    assert wrote(run, WAITED_TAG) is expected


LETTERS, DAYS = StaticPartitionsDefinition([*"abc"]), DailyPartitionsDefinition("2026-01-01")


@pytest.mark.parametrize(
    ("definition", "first", "last", "expected"),
    [
        (LETTERS, "a", "b", ["a", "b"]),
        (LETTERS, "a", "gone", []),
        (DAYS, "2026-01-01", "2026-01-02", ["2026-01-01", "2026-01-02"]),
        (DAYS, "2025-12-31", "2026-01-02", []),
        (DAYS, "a", "2026-01-02", []),
        (DynamicPartitionsDefinition(name="landed"), "one", "two", ["one", "two"]),
        (DynamicPartitionsDefinition(name="landed"), "one", "gone", []),
        (
            MultiPartitionsDefinition({"day": DAYS, "letter": LETTERS}),
            "2026-01-01|b",
            "2026-01-02|b",
            ["2026-01-01|b", "2026-01-02|b"],
        ),
        (MultiPartitionsDefinition({"day": DAYS, "letter": LETTERS}), "b", "2026-01-02|b", []),
    ],
)
def test_partitions_of_a_run_of_a_range_are_those_that_dagster_gives_it(
    definition: PartitionsDefinition[str], first: str, last: str, expected: list[str]
) -> None:
    named = {"start": first, "end": last}
    tags = {f"dagster/asset_partition_range_{which}": key for which, key in named.items()}
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("landed", ["one", "two"])
        assert partitions_of_run(DagsterRun("shop", tags=tags), definition, instance) == expected


def test_a_run_of_selected_steps_has_the_tags_of_its_delivery() -> None:
    """Dagster's pages copy no hidden tags to it."""
    hidden = {DELIVERY_TAG: "7", IDENTITY_TAG: "7@9"}
    day = {"dagster/partition": "a"}
    with DagsterInstance.ephemeral() as instance:

        def again(tags: dict[str, str], parent: DagsterRun | None = None) -> DagsterRun:
            of = None if parent is None else parent.run_id
            return create_run_for_test(instance, tags=tags, parent_run_id=of, root_run_id=of)

        first = again({**day, **hidden})
        second = again(day, first)
        third = again({**day, RECORDED_TAG: "(run third)"}, second)
        assert tags_of_run(third, instance) == {**day, **hidden, RECORDED_TAG: "(run third)"}
        for tags in (
            {"dagster/partition": "b"},  # of another partition
            {**day, "deltaweave/delivery": "8"},  # of another delivery, by hand
        ):
            run = again(tags, first)
            assert tags_of_run(run, instance) == tags
        assert tags_of_run(again(day), instance) == day


@pytest.mark.parametrize("is_by_subsets", ["false", "true"])
@pytest.mark.parametrize(
    "days",
    [
        StaticPartitionsDefinition(["2024-01-01", "2024-01-02"]),
        DailyPartitionsDefinition("2024-01-01"),
    ],
)
def test_partitions_are_unmerged_however_dagster_plans_them(
    monkeypatch: pytest.MonkeyPatch, is_by_subsets: str, days: PartitionsDefinition[str]
) -> None:
    monkeypatch.setenv("DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS", is_by_subsets)

    @asset(partitions_def=days)
    def orders() -> None: ...

    both = define_asset_job("both", [orders])
    job = Definitions([orders], jobs=[both]).resolve_job_def("both")
    with DagsterInstance.ephemeral() as instance:
        first, second = (
            instance.create_run_for_job(job, tags={"dagster/partition": each}).run_id
            for each in ("2024-01-01", "2024-01-02")
        )
        found = unmerged_attempts(instance, AssetKey("orders"))
        assert set(found) == {("2024-01-01", first), ("2024-01-02", second)}
        materialize([orders], partition_key="2024-01-01", instance=instance)
        assert unmerged_attempts(instance, AssetKey("orders")) == [("2024-01-02", second)]
        again = instance.create_run_for_job(job, tags={"dagster/partition": "2024-01-01"}).run_id
        assert set(unmerged_attempts(instance, AssetKey("orders"))) == {
            ("2024-01-01", again),
            ("2024-01-02", second),
        }
