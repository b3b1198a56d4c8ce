"""When the base of a merge-on-read table is due, and what then requests it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetSelection,
    DagsterInstance,
    Definitions,
    build_schedule_context,
    build_sensor_context,
    define_asset_job,
    with_resources,
)
from dagster._core.definitions.schedule_definition import ScheduleExecutionData
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.test_utils import create_run_for_test
from pyspark.sql import SparkSession

from dagster_deltaweave import (
    MergeOnReadAssets,
    RematerializationPolicy,
    SparkDeltaIOManager,
    SparkResource,
    build_pending_changes_check,
    build_rematerialization_schedule,
    build_rematerialization_sensor,
    merge_on_read_asset,
)
from dagster_deltaweave.checks import delivered_changes
from dagster_deltaweave.logs.changeset_log import PendingChanges, batches_after, pending_changes
from dagster_deltaweave.sensors import rematerialization
from dagster_deltaweave.tables.locator import MergeOnReadLocations
from deltaweave import MergeOnReadTable
from deltaweave.errors import SourceError
from tests.deltaweave.changes.merge_on_read.test_other_writers import replace_by_an_empty_one
from tests.support.sensor_ticks import run_keys

SCHEMA = "id INT, pieces INT, version INT"
CANCELED, FAILURE = DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE
SUCCESS = DagsterRunStatus.SUCCESS
NOTHING = {"batches": None, "age": None, "fraction_of_base": None, "broadcast_limit_bytes": None}


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> MergeOnReadTable:
    return MergeOnReadTable(
        spark,
        str(tmp_path / "tables" / "orders_base"),
        changes=str(tmp_path / "tables" / "orders_changes"),
        keys=["id"],
        sequence_by="version",
        except_column_list=["version"],
        keep_merged_for=timedelta(0),
    )


def append(orders: MergeOnReadTable, *events: tuple[int, int, int]) -> None:
    orders.append(orders.spark.createDataFrame(events, SCHEMA))


@pytest.mark.minutes
def test_what_is_pending_is_read_without_spark_as_spark_reads_it(orders: MergeOnReadTable) -> None:
    at = MergeOnReadLocations(orders.base.path_or_name, orders.changes.path_or_name, "")

    def same() -> PendingChanges:
        found, expected = pending_changes(at), orders.pending()
        assert found is not None
        for name in ("batches", "rows", "size_in_bytes", "oldest"):
            assert getattr(found, name) == getattr(expected, name), name
        assert found.base_bytes == sum(each["size"] for each in orders.base.files().collect())
        assert (found.merged_batch, found.newest_batch) == (
            orders.merged_batch(),
            orders.newest_batch(),
        )
        return found

    assert pending_changes(at) is None
    assert not Path(at.base).exists()
    append(orders, (1, 10, 1), (2, 20, 1))
    append(orders, (1, 11, 2))
    first = same()
    assert (first.rows, first.batches, first.read_amplification) == (3, 2, None)  # an empty base
    orders.changes.compact()
    assert (same().oldest, same().newest) == (first.oldest, first.newest)
    orders.rematerialize()
    append(orders, (3, 30, 3))
    later = same()
    assert (later.rows, later.merged_batch, later.newest_batch) == (1, 2, 3)
    base, merged_at = f"delta.`{orders.base.path_or_name}`", orders.base.version()
    for version, merged in ((0, 0), (merged_at, 2)):
        orders.spark.sql(f"RESTORE TABLE {base} TO VERSION AS OF {version}")
        assert same().merged_batch == merged
    replace_by_an_empty_one(orders.base)
    assert same().merged_batch == 0
    assert later.read_amplification == 1 + later.size_in_bytes / later.base_bytes
    orders.rematerialize()
    orders.purge()
    assert (same().newest, same().newest_batch) == (None, 3)


@pytest.mark.parametrize(
    ("allowed", "reason"),
    [
        ({}, None),
        ({"rows": 51}, None),
        ({"rows": 50}, "50 rows are pending, the limit is 50."),
        ({"size_in_bytes": 900}, "1,000 bytes are pending, the limit is 900."),
        ({"batches": 5}, "5 batches are pending, the limit is 5."),
        (
            {"age": timedelta(hours=1)},
            "a batch has been pending for 2:00:00, the limit is 1:00:00.",
        ),
        ({"fraction_of_base": 0.5}, "50.0% of the base are pending, the limit is 50.0%."),
        (
            {"broadcast_limit_bytes": 3_999},
            "some 4,000 bytes in memory are too many to be sent to every task (3,999).",
        ),
        (
            {"rows": 1, "batches": 1},
            "50 rows are pending, the limit is 1; 5 batches are pending, the limit is 1.",
        ),
    ],
)
def test_a_policy_says_why(allowed: dict[str, Any], reason: str | None) -> None:
    two_hours_ago = datetime.now(timezone.utc) - timedelta(hours=2)
    pending = PendingChanges(5, 50, 1_000, two_hours_ago, two_hours_ago, 2_000, "id", 3, 8)
    assert RematerializationPolicy(**{**NOTHING, **allowed}).reason(pending) == reason


def test_nothing_pending_is_no_reason_and_anything_is_for_an_empty_base() -> None:
    now = datetime.now(timezone.utc)
    policy = RematerializationPolicy(age=timedelta(0))
    assert policy.reason(PendingChanges(0, 0, 0, None, now, 0, "id", 3, 3)) is None
    empty = PendingChanges(1, 1, 10, now, now, 0, "id", 0, 1)
    assert RematerializationPolicy().reason(empty) == "the base is empty."


def declared() -> MergeOnReadAssets:
    return merge_on_read_asset(name="orders", keys=["id"], sequence_by="version")(lambda: None)


def tick(
    instance: DagsterInstance,
    resources: dict[str, Any],
    policy: RematerializationPolicy,
    retry_after_seconds: float = 3600,
) -> SensorExecutionData:
    """A tick as the daemon evaluates it: with the definitions' own resources."""
    assets = declared()
    sensor = build_rematerialization_sensor(
        name="due", tables=[assets], policy=policy, retry_after_seconds=retry_after_seconds
    )
    defs = Definitions(assets=[*assets], sensors=[sensor], resources=resources)
    repository = defs.get_repository_def()
    with build_sensor_context(
        instance=instance,
        instance_ref=instance.get_ref(),
        repository_def=repository,
        resources=repository.get_top_level_resources(),
    ) as context:
        return repository.get_sensor_def("due").evaluate_tick(context)


def test_a_run_that_was_never_launched_holds_up_no_base(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's daemon may end between creating a run and launching it."""
    now = datetime.now(timezone.utc)
    pending = PendingChanges(2, 2, 20, now, now, 0, "id", 1, 3)
    monkeypatch.setattr(rematerialization, "pending_changes", lambda _: pending)
    policy = RematerializationPolicy(batches=1)
    resources = {"io_manager": SparkDeltaIOManager(root=str(tmp_path), spark=SparkResource())}
    [request] = tick(instance, resources, policy).run_requests or []
    tags = {**request.tags, RUN_KEY_TAG: str(request.run_key), SENSOR_NAME_TAG: "due"}
    status = DagsterRunStatus.NOT_STARTED
    create_run_for_test(instance, tags=tags, status=status)
    assert "in progress" in str(tick(instance, resources, policy).skip_message)
    monkeypatch.setattr(rematerialization, "LONGEST_LAUNCH_SECONDS", 0)
    # The daemon launches the run that has the requested key.
    [again] = tick(instance, resources, policy).run_requests or []
    assert again.run_key == request.run_key
    started = create_run_for_test(instance, tags=request.tags, status=DagsterRunStatus.STARTED)
    create_run_for_test(instance, tags=request.tags, status=status)
    assert started.run_id[:8] in str(tick(instance, resources, policy).skip_message)


@pytest.mark.minutes
def test_the_sensor_requests_once_and_again_when_more_is_pending(
    orders: MergeOnReadTable, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    policy = RematerializationPolicy(**{**NOTHING, "rows": 2})

    def look(retry_after_seconds: float = 3600) -> SensorExecutionData:
        return tick(instance, resources, policy, retry_after_seconds)

    def launch(data: SensorExecutionData, status: DagsterRunStatus) -> str:
        """Let the run that was requested be in the instance, as the daemon launches it."""
        [request] = data.run_requests or []
        tags = {**request.tags, RUN_KEY_TAG: str(request.run_key), SENSOR_NAME_TAG: "due"}
        return create_run_for_test(instance, tags=tags, status=status).run_id

    empty = look()
    append(orders, (1, 10, 1))
    allowed = look()
    append(orders, (2, 20, 1))
    due = look()
    started = launch(due, DagsterRunStatus.STARTED)
    meanwhile = look()
    instance.delete_run(started)
    first = launch(due, DagsterRunStatus.FAILURE)
    failed = look()
    second_run = look(retry_after_seconds=0)  # its pause is over
    launch(second_run, DagsterRunStatus.CANCELED)
    cancelled = look(retry_after_seconds=0)
    append(orders, (3, 30, 1))
    again = look()
    orders.rematerialize()
    done = look()

    assert empty.skip_message == (
        "Nothing to rematerialize: nothing was ever appended for orders_base."
    )
    assert allowed.skip_message == (
        "Nothing to rematerialize: orders_base lacks 1 row in 1 batch, which its policy allows."
    )
    [request] = due.run_requests or []
    assert [key.to_user_string() for key in request.asset_selection or []] == ["orders_base"]
    assert request.tags["deltaweave/rematerialization_reason"] == (
        "2 rows are pending, the limit is 2."
    )
    assert meanwhile.skip_message == (
        f"Nothing to rematerialize: orders_base is in progress in run {started[:8]}."
    )
    assert re.fullmatch(
        r"Nothing to rematerialize: orders_base is tried again in 3[56]\d\d s, after run "
        rf"{first[:8]} failed, attempt 1: 2 rows are pending, the limit is 2\.",
        failed.skip_message or "",
    )
    assert cancelled.skip_message == (
        "Nothing to rematerialize: orders_base was requested before: "
        "2 rows are pending, the limit is 2."
    )
    assert len({*run_keys(due), *run_keys(second_run), *run_keys(again)}) == 3
    assert done.skip_message == (
        "Nothing to rematerialize: orders_base lacks 0 rows in 0 batches, which its policy allows."
    )


def test_a_state_that_a_restore_brings_back_is_requested_again(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(timezone.utc)
    pending = PendingChanges(5, 50, 1_000, now, now, 0, "id", 0, 5)
    monkeypatch.setattr(rematerialization, "pending_changes", lambda _: pending)
    resources = {"io_manager": SparkDeltaIOManager(root="/lake", spark=SparkResource())}
    keys = ["orders_base@id:0-5", "orders_base@id:0-5#2", "orders_base@id:0-5#3"]

    def after(*ended: DagsterRunStatus) -> list[str | None]:
        """What a tick requests after these runs of the same state have ended."""
        runs = [
            create_run_for_test(
                instance,
                tags={
                    "deltaweave/rematerializes": "orders_base",
                    RUN_KEY_TAG: key,
                    SENSOR_NAME_TAG: "due",
                },
                status=status,
            )
            for key, status in zip(keys, ended, strict=False)
        ]
        found = tick(instance, resources, RematerializationPolicy(), retry_after_seconds=0)
        for run in runs:
            instance.delete_run(run.run_id)
        return run_keys(found)

    assert after() == [keys[0]]
    assert after(FAILURE) == [keys[1]]
    assert after(FAILURE, FAILURE) == [keys[2]]
    assert after(SUCCESS) == [keys[1]]  # what it merged is pending again
    assert after(FAILURE, SUCCESS) == [keys[2]]
    assert after(CANCELED) == after(SUCCESS, CANCELED) == []
    assert after(CANCELED, SUCCESS) == [keys[2]]


def test_a_log_that_cannot_be_read_is_named(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    for name in ("orders_base", "orders_changes"):
        log = tmp_path / "tables" / name / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("no JSON")
    skipped = tick(instance, resources, RematerializationPolicy())
    assert skipped.skip_message
    assert "its log cannot be read" in skipped.skip_message
    assert "orders_base" in skipped.skip_message


def test_an_error_of_a_log_that_cannot_be_read_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hush-hush-hush")
    log = tmp_path / "hush-hush-hush" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("no JSON: hush-hush-hush")

    with pytest.raises(SourceError) as raised:
        pending_changes(MergeOnReadLocations(str(log.parent), str(log.parent), ""))
    assert raised.value.__cause__ is None
    assert "hush" not in raised.value.problem


@pytest.mark.minutes
def test_what_is_pending_is_read_where_columns_are_mapped(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = MergeOnReadTable(
        spark,
        str(tmp_path / "base"),
        changes=str(tmp_path / "changes"),
        keys=["order id"],
        sequence_by="version",
    )
    at = MergeOnReadLocations(table.base.path_or_name, table.changes.path_or_name, "")
    for version in (1, 2):
        table.append(spark.createDataFrame([(1, version)], "`order id` INT, version INT"))
    found = pending_changes(at)

    assert found is not None
    assert (found.batches, found.rows, found.newest_batch) == (2, 2, 2)
    assert batches_after(at, 1).rows == 1
    table.rematerialize()
    merged = pending_changes(at)
    assert merged is not None
    assert (merged.batches, merged.merged_batch) == (0, 2)


@pytest.mark.minutes
def test_the_schedule_requests_what_is_pending(
    orders: MergeOnReadTable, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    assets = declared()
    night = build_rematerialization_schedule(
        name="night", tables=[assets], cron_schedule="0 1 * * *"
    )
    defs = Definitions(assets=[*assets], schedules=[night], resources=resources)
    repository = defs.get_repository_def()
    append(orders, (1, 10, 1))

    def evaluated() -> ScheduleExecutionData:
        with build_schedule_context(
            instance=instance,
            repository_def=repository,
            resources=repository.get_top_level_resources(),
        ) as context:
            return repository.get_schedule_def("night").evaluate_tick(context)

    due = evaluated()
    orders.rematerialize()
    skipped = evaluated()

    [request] = due.run_requests or []
    assert request.asset_selection == [assets.base.key]
    assert "lacks 0 rows" in (skipped.skip_message or "")


@pytest.mark.parametrize("has_others", [False, True])
def test_what_is_pending_is_asked_of_the_tables_own_io_manager(
    tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, has_others: bool
) -> None:
    """A sensor, a schedule and a check of tables to which an IO manager is bound."""
    seen: list[MergeOnReadLocations] = []
    for module in (rematerialization, delivered_changes):
        monkeypatch.setattr(module, "pending_changes", seen.append)
    own, other = (
        SparkDeltaIOManager(root=str(tmp_path / name), spark=SparkResource())
        for name in ("own", "other")
    )
    bound = MergeOnReadAssets(*with_resources([*declared()], {"io_manager": own}))
    due = build_rematerialization_sensor(name="due", tables=bound)
    night = build_rematerialization_schedule(name="night", tables=bound, cron_schedule="0 1 * * *")
    checks = define_asset_job("checks", AssetSelection.checks_for_assets(bound.view))
    repository = Definitions(
        assets=[*bound],
        asset_checks=[build_pending_changes_check(bound)],
        jobs=[checks],
        schedules=[night],
        sensors=[due],
        resources={"io_manager": other} if has_others else {},
    ).get_repository_def()
    given: Any = {
        "instance": instance,
        "repository_def": repository,
        "resources": repository.get_top_level_resources(),
    }
    with build_sensor_context(instance_ref=instance.get_ref(), **given) as context:
        repository.get_sensor_def("due").evaluate_tick(context)
    with build_schedule_context(**given) as context:
        repository.get_schedule_def("night").evaluate_tick(context)
    assert repository.get_job("checks").execute_in_process(instance=instance).success
    assert [each.base for each in seen] == [str(tmp_path / "own" / "orders_base")] * 3
