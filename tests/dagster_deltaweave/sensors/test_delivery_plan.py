"""The landing sensor of a table: it requests what has landed and is not in the table."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetOut,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    DynamicPartitionsDefinition,
    EnvVar,
    MaterializeResult,
    MonthlyPartitionsDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    RunRequest,
    RunsFilter,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    instance_for_test,
    multi_asset,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemotePartitionSetOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_deltaweave import (
    SparkDeltaIOManager,
    SparkResource,
    build_partition_sensor,
    merge_asset,
)
from dagster_deltaweave.io_manager.transaction_ids import first_attempt
from dagster_deltaweave.landing import Delivery, Landing
from dagster_deltaweave.landing.source_partition import LANDING
from dagster_deltaweave.logs import (
    merged_partitions,
    record_of,
    recorded_name,
    records_id,
    records_of_merge,
)
from dagster_deltaweave.logs.delta_log import LogAt
from dagster_deltaweave.partitions import (
    ATTEMPT_TAG,
    HIDDEN,
    IDENTITY_TAG,
    NO_TABLE,
    RECORDED_TAG,
    by_run,
    held_assets,
    newest_first,
    partitions_of_run,
    recorded_tag,
    shown_name,
    unmerged_attempts,
    written_tag,
)
from dagster_deltaweave.storage import file_system
from tests.support.sensor_ticks import requested, tick

DAYS = ["day-1", "day-2", "day-3", "day-4"]
ORDERS, ORDER = AssetKey("orders"), "deltaweave/order/orders"
START_AND_END = (("start", "day-1"), ("end", "day-2"))
APPEND = {"metadata": {"deltaweave/write": "append"}}
SUCCESS, FAILURE = DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE


class Shop:
    """Days that land, a sensor, and runs that merge them into tables, which are logs alone.

    Runs are made as Dagster makes them, and keep the order of partitions as real ones do.
    """

    def __init__(
        self, instance: DagsterInstance, place: Path, landing: str = "landing", **declared: Any
    ) -> None:
        self.instance, self.landing, self.declared = instance, place / landing, declared
        self.landing.mkdir(parents=True, exist_ok=True)
        self.suffix = ""  # of the files that are days
        self.root = place / "tables"
        self.delivered: dict[str, int] = {}
        self.bad: set[str] = set()
        self.days = list(DAYS)
        self.partitions: PartitionsDefinition[str] | None = None  # of all, if others than days
        self.landed: PartitionsDefinition[str] | None = None  # the sensor's, if others than days
        self.number = 0
        self.merged: list[tuple[str, int]] = []
        self.arguments: dict[str, Any] = {"retry_after_seconds": 0}
        self.name = "orders_landed"
        self.others: dict[str, Any] = {}  # assets beside the orders, and their declarations
        self.broken: set[str] = set()  # assets whose steps fail
        self.is_of_job = False  # whether the target is a job
        self.target_of: Callable[[AssetsDefinition], Any] | None = None
        self.is_empty = False  # whether assets return None
        self.empty: set[str] = set()  # assets whose functions return None
        self.is_one_step = False  # whether one function makes all assets, which are appended to

    @property
    def log(self) -> Path:
        return self.log_of("orders")

    def log_of(self, name: str) -> Path:
        return self.root / name / "_delta_log"

    def land(self, *days: str, bad: bool = False) -> None:
        for day in days:
            self.number += 1
            self.delivered[day] = self.number
            (self.bad.add if bad else self.bad.discard)(day)
            marker = self.landing / day / "_SUCCESS"
            if self.suffix:
                (self.landing / f"{day}{self.suffix}").touch()
                marker = self.landing / f"{day}{self.suffix}_SUCCESS"
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
            os.utime(marker, ns=(0, self.number * 10**9))
        time.sleep(0.06)  # a run that begins now has read them

    def tick(self, cursor: str | None = None) -> SensorExecutionData:
        return tick(self.definitions(), self.instance, cursor)

    def definitions(self) -> Definitions:
        days = self.partitions or StaticPartitionsDefinition(self.days)

        @merge_asset(keys=["id"], partitions_def=days, **self.declared)
        def orders(context: AssetExecutionContext) -> None: ...

        assets = [orders]
        for name, declared in self.others.items():

            @asset(name=name, partitions_def=days, **declared)
            def other() -> None: ...

            assets.append(other)
        if self.is_one_step:
            outs = {name: AssetOut(**APPEND) for name in ("orders", *self.others)}

            @multi_asset(outs=outs, partitions_def=days)
            def step() -> MaterializeResult: ...  # type: ignore[empty-body]

            orders, assets = step, [step]
        selection = AssetSelection.assets(*assets)
        job = define_asset_job("shop", selection)
        target = job if self.is_of_job else selection
        sensor = build_partition_sensor(
            name=self.name,
            target=self.target_of(orders) if self.target_of else target,
            directory=self.landing,
            partitions_def=self.landed or days,
            suffix=self.suffix,
            **self.arguments,
        )
        spark = SparkResource()
        manager = SparkDeltaIOManager(root=str(self.root), spark=spark)
        jobs = [job] if self.is_of_job else []
        return Definitions(assets, jobs=jobs, sensors=[sensor], resources={"io_manager": manager})

    def said(self) -> str:
        data = self.tick()
        assert requested(data) == []
        return data.skip_message or ""

    def run(
        self, day: str, tags: dict[str, str] | None = None, assets: Sequence[str] | None = None
    ) -> bool:
        """A run of a day: of the sensor by the tags of its request, or by hand."""
        tags = {"dagster/partition": day, **(tags or {})}
        names = assets or ["orders", *self.others]
        order = self.order()
        newest = max(order, default="")
        older = [
            each
            for each, _ in unmerged_attempts(self.instance, ORDERS)
            if each < day and each not in order and each > newest
        ]
        is_late = "deltaweave/order" not in tags and newest > day
        refused = "orders" in names and "order" not in self.declared and (older or is_late)
        own = {"deltaweave/waited_for": older[0]} if refused and older else {}
        failed = [n for n in names if n in self.broken or (n == "orders" and day in self.bad)]
        done = [] if refused else [each for each in names if each not in failed]
        for name in filter(self.has_log, done):
            value = "" if self.is_recorded(name) else NO_TABLE
            own[shown_name(recorded_tag(AssetKey(name)))] = value
        run_id = self.create(day, tags, assets, FAILURE if refused or failed else SUCCESS)
        self.wrote(run_id, own)
        held = {key.to_user_string() for key in held_assets(tags)}
        for name in done:
            if self.has_log(name) and self.is_recorded(name) and name not in held:
                self.merge(day, tags, name)
            event = AssetMaterialization(AssetKey(name), partition=day)
            self.instance.report_runless_asset_event(event)
        return not (refused or failed)

    def wrote(self, run_id: str, own: Mapping[str, str]) -> dict[str, str]:
        """The tags that a run writes of itself."""
        tags = {name: by_run(run_id, value) for name, value in own.items()}
        self.instance.add_run_tags(run_id, tags)
        return tags

    def create(
        self,
        day: str,
        tags: dict[str, str],
        assets: Sequence[str] | None = None,
        status: DagsterRunStatus = DagsterRunStatus.STARTED,
        parent: str | None = None,
    ) -> str:
        """A run of the sensor, or by hand."""
        is_of_sensor = "dagster/run_key" in tags
        repository = self.definitions().get_repository_def()
        name = f"__anonymous_asset_job_{self.name}" if is_of_sensor else "__ASSET_JOB"
        chosen = assets or (None if is_of_sensor else ["orders", *self.others])
        selection = None if chosen is None else {AssetKey(each) for each in chosen}
        job = repository.get_job(name)
        tags = {"dagster/partition": day, **tags} if day else tags
        return self.instance.create_run_for_job(
            job,
            tags=tags,
            status=status,
            asset_selection=selection,
            parent_run_id=parent,
            root_run_id=parent,
        ).run_id

    def materialized(self, day: str, run_id: str, name: str = "orders") -> None:
        data = StepMaterializationData(AssetMaterialization(AssetKey(name), partition=day))
        event = DagsterEvent("ASSET_MATERIALIZATION", "shop", event_specific_data=data)
        self.instance.report_dagster_event(event, run_id)

    def has_log(self, name: str) -> bool:
        if name == "orders":
            return "table" not in self.declared
        return "deltaweave/write" in self.others[name].get("metadata", {})

    def is_recorded(self, name: str) -> bool:
        """Whether there is a table in which the run can record what it merged."""
        is_empty = self.is_empty or name in self.empty
        return not is_empty or self.log_of(name).exists()

    def merge(self, day: str, tags: Mapping[str, str] | None = None, name: str = "orders") -> None:
        log, tags = self.log_of(name), tags or {}
        log.mkdir(parents=True, exist_ok=True)
        version = len(list(log.iterdir()))
        if not version:
            self.commit(0, {"metaData": {"id": "11111111"}}, name=name)
            version = 1
        identity = written_tag(tags, IDENTITY_TAG)
        record = {recorded_name(day, Landing.of_run(tags)): record_of(identity, time.time_ns())}
        records = records_id("11111111", AssetKey(name))
        order_of = f"deltaweave/order/{name}"
        before = LogAt(str(log.parent))
        ids = records_of_merge(before, version - 1, records, record, order=order_of)
        if name == "orders" and "order" not in self.declared:
            order = self.order()
            # The first of several dimensions is the time.
            newest = max(order, default="").split("|")[0]
            if day.split("|")[0] > newest or "deltaweave/order" in tags:
                ids |= {"deltaweave/order/orders": version}
                ids |= {f"deltaweave/order/orders#{day}": version}
        if self.declared.get("idempotent_by") == "partition" and not self.is_empty:
            ids |= {f"{name}#{day}": 0}
        actions = ({"txn": {"appId": n, "version": v}} for n, v in ids.items())
        self.commit(version, *actions, name=name)
        if name == "orders":
            self.merged.append((day, self.delivered.get(day, 0)))

    def commit(self, version: int, *actions: object, name: str = "orders") -> None:
        self.log_of(name).mkdir(parents=True, exist_ok=True)
        lines = [{"commitInfo": {"operation": "MERGE", "operationParameters": {}}}, *actions]
        path = self.log_of(name) / f"{version:020}.json"
        path.write_text("\n".join(map(json.dumps, lines)))

    def restore(self, to: int) -> None:
        info = {"operation": "RESTORE", "operationParameters": {"version": to}}
        version = len(list(self.log.iterdir()))
        (self.log / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}))

    def drop(self) -> None:
        for file in self.log.iterdir():
            file.unlink()
        self.log.rmdir()

    def held(self, name: str = "orders") -> Sequence[str]:
        found = merged_partitions(str(self.log_of(name).parent), AssetKey(name))
        names = found.records if found else ()
        return sorted({each.partition("\t")[0] for each in names})

    def order(self) -> Sequence[str]:
        """The merged days that keep the order, oldest first."""
        if self.partitions is not None:
            found = merged_partitions(str(self.log.parent), ORDERS)
            return sorted(found.order) if found else []
        found = merged_partitions(str(self.log.parent), ORDERS)
        positions = {day: number for number, day in enumerate(self.days)}.get
        return sorted(newest_first(found.order, positions)) if found else []

    def launched(self, data: SensorExecutionData) -> list[RunRequest]:
        """The requests that become runs: the daemon drops those whose run key a run has."""
        return [
            each
            for each in data.run_requests or []
            if not self.instance.get_runs(RunsFilter(tags={"dagster/run_key": str(each.run_key)}))
        ]

    def run_all(self, data: SensorExecutionData) -> list[str]:
        """Run what a tick requested; return what was merged."""
        return [
            str(request.partition_key)
            for request in self.launched(data)
            if self.run(str(request.partition_key), *self.of_request(request))
        ]

    def of_request(self, request: RunRequest) -> tuple[dict[str, str], list[str] | None]:
        """The tags and the assets of a requested run."""
        chosen = request.asset_selection
        names = None if chosen is None else [key.to_user_string() for key in chosen]
        return {**request.tags, "dagster/run_key": str(request.run_key)}, names


def selections(data: SensorExecutionData) -> dict[str, list[str] | None]:
    """The assets of the requested runs."""
    return {
        str(each.partition_key): None
        if each.asset_selection is None
        else [key.to_user_string() for key in each.asset_selection]
        for each in data.run_requests or []
    }


@pytest.fixture
def shop(instance: DagsterInstance, tmp_path: Path) -> Shop:
    return Shop(instance, tmp_path)


def test_what_is_in_the_table_is_requested_no_more_whoever_merged_it(shop: Shop) -> None:
    shop.land(*DAYS)
    shop.run("day-1")  # by hand
    shop.merge("day-2")  # by a run of an instance that is no more
    data = shop.tick()
    assert requested(data) == ["day-3", "day-4"]
    assert shop.run_all(data) == ["day-3", "day-4"]
    # A lost cursor, another name of the sensor, and of the code location, which no run knows.
    shop.name = "renamed"
    assert shop.said() == f"No new partition in {shop.landing}: 4 merged."
    with instance_for_test() as other:
        shop.instance = other
        assert "4 merged" in shop.said()


@pytest.mark.parametrize(
    ("declared", "change", "again"),
    [
        # The new asset has no table.
        ({}, "asset", ["day-1", "day-2"]),
        # Nothing of another directory is merged; where order matters, older days are late.
        ({"order": "any"}, "directory", ["day-1", "day-2"]),
        ({}, "directory", ["day-2", "day-3"]),
        ({"order": "any"}, "both", ["day-1", "day-2"]),
    ],
)
def test_deliveries_requested_for_another_asset_or_directory_are_launched(
    instance: DagsterInstance,
    tmp_path: Path,
    declared: dict[str, Any],
    change: str,
    again: list[str],
) -> None:
    shop = Shop(instance, tmp_path, **declared)
    shop.arguments = {"max_requests_per_tick": 2}
    shop.land("day-1", "day-2")
    shop.run_all(shop.tick())
    shop.land("day-3")
    if change != "directory":
        shop.declared = {**declared, "name": "orders_v2"}
    if change != "asset":
        shop.landing = shop.landing.rename(tmp_path / "moved")  # the times of markers stay
    data = shop.tick()
    assert requested(data) == again
    assert [each.partition_key for each in shop.launched(data)] == again


@pytest.mark.parametrize(
    "target_of",
    [
        lambda orders: orders,
        lambda orders: [orders],
        lambda orders: [orders.key],
        lambda orders: "orders",
        lambda orders: ["orders"],
        lambda orders: define_asset_job("shop", [orders]),
    ],
)
def test_a_target_is_whatever_dagster_takes_as_one(
    shop: Shop, target_of: Callable[[AssetsDefinition], Any]
) -> None:
    shop.target_of = target_of
    shop.land("day-1", "day-2")
    shop.run("day-1")
    assert requested(shop.tick()) == ["day-2"]


@pytest.mark.minutes
def test_the_sensors_further_partitions_hide_none_of_the_assets(shop: Shop) -> None:
    shop.landed = StaticPartitionsDefinition(["day-0", *shop.days])
    shop.land("day-1")
    assert shop.run_all(shop.tick()) == ["day-1"]
    assert "1 merged" in shop.said()


DAILY, MONTHLY = DailyPartitionsDefinition, MonthlyPartitionsDefinition
COUNTRIES = DynamicPartitionsDefinition(name="countries")


@pytest.mark.parametrize(
    ("of_assets", "of_sensor", "landed", "asked", "unknown"),
    [
        (
            StaticPartitionsDefinition(DAYS[1:]),
            StaticPartitionsDefinition(DAYS),
            DAYS[:2],
            "day-2",
            "1 unknown (day-1)",
        ),
        (
            DAILY("2024-01-02", end_date="2024-02-01"),
            DAILY("2024-01-01", end_date="2024-02-01"),
            ["2024-01-01", "date=2024-01-01", "2024-01-02"],
            "2024-01-02",
            "2 unknown (2024-01-01, date=2024-01-01)",
        ),
        # an asset of partitions that the sensor does not add, and a sensor that could
        (StaticPartitionsDefinition(["nl"]), COUNTRIES, ["de", "nl"], "nl", "1 unknown (de)"),
        (COUNTRIES, StaticPartitionsDefinition(["de", "nl"]), ["de", "nl"], "nl", "unknown (de)"),
        # Dagster lists the month that begins after the end, and has no such key
        (
            MONTHLY("2018-10-20", end_date="2018-11-20", day_offset=3),
            None,
            ["2018-11-03"],
            None,
            "2018-11-03 is unknown: Dagster lists it, and refuses its run",
        ),
        (
            MultiPartitionsDefinition(
                {
                    "month": MONTHLY("2018-10-20", end_date="2018-11-20", day_offset=3),
                    "land": StaticPartitionsDefinition(["de"]),
                }
            ),
            None,
            ["de|2018-11-03"],
            None,
            "de|2018-11-03 is unknown",
        ),
    ],
)
def test_what_the_targets_partitions_lack_is_unknown_and_stops_no_other(
    shop: Shop,
    of_assets: PartitionsDefinition[str],
    of_sensor: PartitionsDefinition[str] | None,
    landed: list[str],
    asked: str | None,
    unknown: str,
) -> None:
    shop.instance.add_dynamic_partitions("countries", ["nl"])
    shop.partitions, shop.landed = of_assets, of_sensor
    shop.land(*landed)
    data = shop.tick()
    assert requested(data) == ([asked] if asked else [])
    if asked:
        shop.merge(asked, shop.of_request((data.run_requests or [])[0])[0])
    assert unknown in shop.said()


@pytest.mark.minutes
def test_a_tick_reads_no_more_of_100_000_partitions_than_of_three(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    class Store:
        """A store that says what is read of it."""

        def __init__(self, store: Any) -> None:
            self.store = store

        def __getattr__(self, name: str) -> Any:
            read.append(name)
            return getattr(self.store, name)

    def counted(place: str) -> tuple[Any, str]:
        store, base = file_system(place)
        return Store(store), base

    for module in ("delta_log", "held_partitions"):
        monkeypatch.setattr(f"dagster_deltaweave.logs.{module}.file_system", counted)
    records, reads = records_id("11111111", ORDERS), []
    for number in (3, 100_000):
        days = [f"day-{each:06}" for each in range(number)]
        shop.days, read[:] = days, []
        found = [Delivery(day, str(at), at, at) for at, day in enumerate(days, 1)]
        held = {
            f"{records}#{recorded_name(each.partition, Landing())}": record_of(
                str(each.identity), 1
            )
            for each in found[:-1]
        }
        ids = {**held, records: 1, f"{ORDER}#{days[-2]}": 1, ORDER: 1}
        shop.commit(0, {"metaData": {"id": "11111111"}})
        shop.commit(1, *({"txn": {"appId": n, "version": v}} for n, v in ids.items()))
        listed = patch("dagster_deltaweave.sensors.landing.list_deliveries", return_value=found)
        records_of_runs = shop.instance.get_run_records
        of_runs = patch.object(DagsterInstance, "get_run_records", side_effect=records_of_runs)
        with listed, of_runs as runs:
            assert requested(shop.tick()) == [days[-1]]
        reads.append((read.copy(), runs.call_count))
    assert reads[0] == reads[1]
    assert len(read) < 10


@pytest.mark.minutes
def test_a_tick_asks_no_more_of_3_000_late_deliveries_than_of_three(shop: Shop) -> None:
    """After the first tick, until a newer partition is merged or one of them is."""
    records, asked = records_id("11111111", ORDERS), []
    for number in (3, 3_000):
        shop.days = days = [f"day-{each:06}" for each in range(number + 2)]
        found = [Delivery(day, str(at), at, at) for at, day in enumerate(days[:-2], 1)]
        listed = patch("dagster_deltaweave.sensors.landing.list_deliveries", return_value=found)
        records_of_runs = shop.instance.get_run_records
        of_runs = patch.object(DagsterInstance, "get_run_records", side_effect=records_of_runs)
        ticks = []
        with listed, of_runs as runs:
            cursor = None
            for newest, merged in (
                (days[-2], None),
                (days[-2], None),  # nothing changed
                (days[-1], None),  # a newer one was merged
                (days[-1], found[1]),  # a late one was merged by hand
            ):
                ids = {records: 1, f"{ORDER}#{newest}": 1, ORDER: 1}
                if merged is not None:
                    name = recorded_name(merged.partition, Landing())
                    ids[f"{records}#{name}"] = record_of(str(merged.identity), 1)
                shop.commit(0, {"metaData": {"id": "11111111"}})
                shop.commit(1, *({"txn": {"appId": n, "version": v}} for n, v in ids.items()))
                runs.reset_mock()
                data = shop.tick(cursor)
                cursor = data.cursor
                ticks.append((requested(data), runs.call_count))
                assert f"{days[0]} is older than {newest}, which is merged" in str(
                    data.skip_message
                )
        assert [keys for keys, _ in ticks] == [[]] * 4
        asked.append([calls for _, calls in ticks])
    assert asked[0][1] == asked[1][1] < min(asked[0][0], asked[0][2], asked[0][3])


def test_a_dagster_retry_is_judged_by_itself_not_by_the_last_runs_tags(
    shop: Shop,
) -> None:
    shop.arguments = {}
    shop.land("day-1", "day-2")
    first, second = shop.tick().run_requests or []
    for request, status, own in (
        (first, SUCCESS, {"deltaweave/recorded": ""}),  # of None, while there is no table
        (second, FAILURE, {"deltaweave/waited_for": "day-1"}),
    ):
        day, (tags, _) = str(request.partition_key), shop.of_request(request)
        copied = shop.wrote(shop.create(day, tags, status=FAILURE), own)
        shop.create(day, {**tags, **copied}, status=status)
    said = shop.said()
    assert "1 merged" in said
    assert "attempt 1 of 3" in said


@pytest.mark.parametrize("own", [{}, {"deltaweave/waited_for": "day-0"}])
def test_retries_of_a_run_use_up_no_attempt_of_the_sensor(shop: Shop, own: dict[str, str]) -> None:
    shop.arguments = {"attempts": 2, "retry_after_seconds": 0 if not own else 60}
    shop.land("day-1", bad=True)
    for number in (1, 2):
        [request] = shop.tick().run_requests or []
        assert written_tag(request.tags, ATTEMPT_TAG) == ("1" if own else str(number))
        tags, _ = shop.of_request(request)
        runs = [shop.create("day-1", tags, status=FAILURE)]
        # Dagster copies the tags, to its own retries and to what a person executes again.
        runs += [shop.create("day-1", tags, status=FAILURE, parent=runs[0]) for _ in range(2)]
        for run_id in runs:
            shop.wrote(run_id, own)
    said = "it is tried again in" if own else "attempt 2 of 2: deliver it again"
    assert said in shop.said()


@pytest.mark.parametrize("status", [FAILURE, SUCCESS])
def test_a_run_that_never_started_is_not_launched_after_a_newer_one(
    shop: Shop, status: DagsterRunStatus
) -> None:
    """The sensor was renamed in between, so Dagster made a new run with the run key."""
    shop.declared = {"table": "orders"}
    shop.land("day-1")
    [request] = shop.tick().run_requests or []
    tags, _ = shop.of_request(request)
    shop.create("day-1", tags, status=DagsterRunStatus.NOT_STARTED)
    again = shop.tick()
    assert [each.run_key for each in again.run_requests or []] == [request.run_key]
    shop.create("day-1", tags, status=status)
    if status == SUCCESS:
        assert "1 merged" in shop.said()
    else:
        [retry] = shop.tick().run_requests or []
        assert retry.run_key != request.run_key
        assert written_tag(retry.tags, ATTEMPT_TAG) == "2"


def backfill_of(shop: Shop, kind: str, days: list[str]) -> PartitionBackfill:
    if kind == "assets":
        return PartitionBackfill.from_asset_partitions(
            backfill_id=kind,
            asset_graph=shop.definitions().resolve_asset_graph(),
            partition_names=days,
            asset_selection=[ORDERS],
            backfill_timestamp=time.time(),
            tags={},
            dynamic_partitions_store=shop.instance,
            all_partitions=False,
            title=None,
            description=None,
            run_config=None,
        )
    location = ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(module_name="shop"))
    origin = RemoteRepositoryOrigin(code_location_origin=location, repository_name="shop")
    job = f"__anonymous_asset_job_{shop.name}" if kind in ("sensor's", "of unordered") else "others"
    return PartitionBackfill(
        backfill_id=kind,
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=time.time(),
        partition_set_origin=RemotePartitionSetOrigin(
            repository_origin=origin, partition_set_name=f"{job}_partition_set"
        ),
        partition_names=["day-1", *days],
        last_submitted_partition_name="day-1",
        asset_selection=[ORDERS] if kind == "selected" else None,
    )


def test_newer_days_wait_for_what_a_backfill_is_to_merge(shop: Shop) -> None:
    shop.land("day-1")
    shop.run_all(shop.tick())
    shop.land("day-2", "day-4")  # and the third day is not there
    for kind in ("assets", "sensor's", "selected"):
        backfill = backfill_of(shop, kind, DAYS[1:3])
        shop.instance.add_backfill(backfill)
        said = shop.said()
        assert "1 merged, 1 under way (day-2); day-4 waits for day-2, which another run" in said
        shop.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
    shop.instance.add_backfill(backfill_of(shop, "others", DAYS[1:3]))
    assert requested(shop.tick()) == ["day-2", "day-4"]
    shop.instance.add_backfill(backfill_of(shop, "of unordered", DAYS[1:3]))
    shop.declared = {"order": "any"}
    assert "day-4" in requested(shop.tick())


def test_what_a_restore_or_a_drop_took_back_is_requested_again(shop: Shop) -> None:
    shop.land("day-1", "day-2")
    shop.run_all(shop.tick())
    shop.restore(to=1)
    assert requested(data := shop.tick()) == ["day-2"]
    assert shop.run_all(data) == ["day-2"]
    shop.drop()
    assert requested(shop.tick()) == ["day-1", "day-2"]


def test_a_run_by_hand_that_was_taken_back_does_not_count(shop: Shop) -> None:
    shop.land("day-1", "day-2")
    shop.run("day-1")
    shop.run("day-2")
    assert "2 merged" in shop.said()
    shop.restore(to=1)
    assert requested(shop.tick()) == ["day-2"]
    shop.drop()
    assert requested(shop.tick()) == ["day-1", "day-2"]


def test_what_landed_shortly_before_a_run_by_hand_is_requested(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path, order="any")
    shop.land("day-1")
    with patch("dagster_deltaweave.sensors.landing.COARSE_CLOCK", 5 * 10**9):
        shop.run("day-1")
        assert requested(shop.tick()) == ["day-1"]
    assert "1 merged" in shop.said()


def test_a_run_counts_only_for_what_it_materialized(shop: Shop) -> None:
    shop.others = {"totals": APPEND, "notes": {}}
    shop.land("day-1")
    shop.run("day-1", assets=["orders"])
    assert selections(data := shop.tick()) == {"day-1": ["notes", "totals"]}
    # What failed is run again, and what was appended is not.
    shop.broken = {"notes"}
    assert shop.run_all(data) == []
    assert selections(data := shop.tick()) == {"day-1": ["notes"]}
    # A newer day waits for no older one that an asset without an order lacks.
    shop.land("day-2")
    shop.arguments["attempts"] = 1
    assert selections(shop.tick()) == {"day-2": None}
    shop.arguments["attempts"] = 9
    shop.broken.clear()
    assert shop.run_all(data) == ["day-1"]
    assert shop.run_all(shop.tick()) == ["day-2"]
    assert "2 merged" in shop.said()
    assert (shop.held(), shop.held("totals")) == (DAYS[:2], DAYS[:2])


def test_an_asset_that_is_added_gets_all_days_in_order(shop: Shop) -> None:
    shop.land(*DAYS[:3])
    shop.run_all(shop.tick())
    shop.others = {"totals": APPEND}
    for shop.is_of_job in (False, True):
        assert selections(shop.tick()) == {day: ["totals"] for day in DAYS[:3]}


def test_days_that_the_asset_lacks_now_hide_no_others(shop: Shop) -> None:
    shop.days = ["week-9", *DAYS]
    shop.land("week-9")
    shop.days = [*DAYS, "week-9"]
    shop.run("week-9")
    shop.days = DAYS
    shop.land("day-1")
    assert requested(shop.tick()) == ["day-1"]


def test_a_multi_asset_of_several_partitionings_is_looked_at(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    days, weeks = (StaticPartitionsDefinition(keys) for keys in (DAYS, ["week-1"]))

    @multi_asset(
        specs=[AssetSpec("orders", partitions_def=days), AssetSpec("weeks", partitions_def=weeks)],
        can_subset=True,
    )
    def both() -> MaterializeResult: ...  # type: ignore[empty-body]

    (tmp_path / "day-1").mkdir()
    (tmp_path / "day-1" / "_SUCCESS").touch()
    time.sleep(0.06)
    sensor = build_partition_sensor(
        name="landed", target=AssetSelection.assets(ORDERS), directory=tmp_path, partitions_def=days
    )
    definitions = Definitions([both], sensors=[sensor])
    assert requested(tick(definitions, instance)) == ["day-1"]


def test_a_table_in_a_store_that_arrow_lacks_is_not_read(
    shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.root = "tape://lake"  # type: ignore[assignment]
    shop.land("day-1")
    assert requested(shop.tick()) == ["day-1"]
    assert "orders: its log is not read" in capfd.readouterr().err
    shop.create("day-1", {}, status=SUCCESS)
    assert "1 merged" in shop.said()


@pytest.mark.parametrize("root", [None, EnvVar("NOT_SET")])
def test_a_table_whose_place_only_runs_know_is_not_read(
    shop: Shop, capfd: pytest.CaptureFixture[str], root: str | None
) -> None:
    given = shop.definitions()
    tables: Any = SparkDeltaIOManager.configure_at_launch(spark=SparkResource())
    if root is not None:
        tables = SparkDeltaIOManager(root=root, spark=SparkResource())
    defs = Definitions(given.assets, sensors=given.sensors, resources={"io_manager": tables})
    shop.land("day-1")
    assert requested(tick(defs, shop.instance)) == ["day-1"]
    assert "orders: its log is not read" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "partitions"),
    [("2024", ["2024"]), ("a, c", ["a", "c"]), ('["a,b", "c"]', ["a,b", "c"]), ("[", []), ("", [])],
)
def test_the_partitions_of_a_run_are_those_of_its_tag(text: str, partitions: list[str]) -> None:
    run = DagsterRun("shop", tags={"deltaweave/partitions": text})
    definition = StaticPartitionsDefinition(["a"])
    assert partitions_of_run(run, definition, DagsterInstance.ephemeral()) == partitions


def test_two_landing_directories_of_one_table_are_both_merged_once(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    one, other = (Shop(instance, tmp_path, each, order="any") for each in ("one", "other"))
    other.name = "others_landed"
    for shop in (one, other):
        shop.land("day-1")
    for shop in (one, other):
        assert shop.run_all(shop.tick()) == ["day-1"]
    for shop in (one, other):
        assert "1 merged" in shop.said()
    other.land("day-1")
    assert requested(other.tick()) == ["day-1"]
    assert "1 merged" in one.said()


SUFFIXES = [("-eu.csv", "-us.csv"), (".csv", "-us.csv"), (".csv", ".csv.gz"), ("", ".csv")]


@pytest.mark.parametrize("suffixes", SUFFIXES + [(b, a) for a, b in SUFFIXES])
def test_two_suffixes_in_one_landing_directory_are_both_merged_once(
    instance: DagsterInstance, tmp_path: Path, suffixes: tuple[str, str]
) -> None:
    """Also where one is the tail of the other, and beside directories."""
    one, other = (Shop(instance, tmp_path, order="any") for _ in suffixes)
    one.suffix, other.suffix = suffixes
    other.name = "others_landed"
    for shop in (one, other):
        shop.land("day-1")
    for shop in (one, other):
        assert shop.run_all(shop.tick()) == ["day-1"]
    for shop in 2 * (one, other):
        assert ": 1 merged" in shop.said()
    other.land("day-1")
    assert shop.run_all(other.tick()) == ["day-1"]
    for shop in (one, other):
        assert ": 1 merged" in shop.said()


def test_what_earlier_releases_recorded_without_a_suffix_is_held(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path)
    shop.suffix = "-eu.csv"
    shop.land("day-1", "day-2")
    [request, _] = shop.tick().run_requests or []
    landing = json.loads(request.tags[LANDING])
    assert landing.pop("suffix") == "-eu.csv"
    shop.merge("day-1", {**request.tags, LANDING: json.dumps(landing)})
    assert shop.run_all(shop.tick()) == ["day-2"]
    shop.land("day-2")
    assert shop.run_all(shop.tick()) == ["day-2"]
    assert ": 2 merged" in shop.said()


def test_steps_that_are_executed_again_are_of_the_same_landing_directory(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    """Dagster's pages copy no hidden tags to a run of selected steps."""
    declared = {"order": "any", "table": "lake.orders"}  # Dagster's runs say what is merged
    one, other = (Shop(instance, tmp_path, each, **declared) for each in ("one", "other"))
    other.name = "others_landed"
    for shop in (one, other):
        shop.land("day-1")
    [request] = one.tick().run_requests or []
    tags, _ = one.of_request(request)
    failed = one.create("day-1", tags, status=FAILURE)
    shown = {name: value for name, value in tags.items() if not name.startswith(HIDDEN)}
    one.create("day-1", shown, status=SUCCESS, parent=failed)
    assert "1 merged" in one.said()
    assert requested(other.tick()) == ["day-1"]


def test_a_table_with_a_name_keeps_the_order_by_what_dagster_knows(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path, table="lake.orders")
    shop.land("day-2", bad=True)
    shop.run_all(shop.tick())
    shop.land("day-3")
    shop.arguments = {"attempts": 1}
    assert "day-3 waits for day-2" in shop.said()
    shop.land("day-2")
    assert shop.run_all(shop.tick()) == ["day-2", "day-3"]
    shop.land("day-1")
    assert "day-1 is older than day-3" in shop.said()


def test_what_a_run_merged_before_it_failed_is_not_merged_again(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    """Its check failed, or another asset; of tables with names, Dagster alone knows the merge."""
    shop = Shop(instance, tmp_path, table="lake.orders")
    shop.others, shop.arguments = {"report": {}}, {"attempts": 1}
    shop.land("day-1")

    def failed_after(data: SensorExecutionData, *merged: str) -> None:
        [request] = data.run_requests or []
        day, (tags, assets) = str(request.partition_key), shop.of_request(request)
        run_id = shop.create(day, tags, assets, FAILURE)
        for name in merged:
            shop.materialized(day, run_id, name)

    failed_after(shop.tick(), "orders", "report")
    assert shop.said() == f"No new partition in {shop.landing}: 1 merged."
    shop.land("day-2")
    failed_after(shop.tick(), "orders")
    assert "1 merged; day-2: run " in shop.said()
    # No newer day waits for a report, which has no order.
    shop.land("day-3")
    assert requested(shop.tick()) == ["day-3"]


def test_a_run_that_had_nothing_to_record_is_not_asked_for_again(shop: Shop) -> None:
    shop.is_empty = True
    shop.land("day-1")
    assert shop.run_all(shop.tick()) == ["day-1"]
    assert "1 merged" in shop.said()
    shop.is_empty = False
    shop.land("day-2")
    assert shop.run_all(shop.tick()) == ["day-2"]
    assert "2 merged" in shop.said()


@pytest.mark.parametrize("is_by_hand", [True, False])
@pytest.mark.parametrize(
    ("are_empty", "again"),
    [([True], ["day-2"]), ([True, True], ["day-2"]), ([True, False], []), ([False], [])],
)
def test_a_partition_that_counts_once_is_requested_until_it_has_rows(
    shop: Shop, are_empty: list[bool], again: list[str], is_by_hand: bool
) -> None:
    shop.declared = {"idempotent_by": "partition", "order": "any"}
    shop.land("day-1")
    shop.run_all(shop.tick())
    for shop.is_empty in are_empty:
        shop.land("day-2")
        if is_by_hand:
            assert shop.run("day-2")
        else:
            assert shop.run_all(shop.tick()) == ["day-2"]
        assert ": 2 merged" in shop.said()
    shop.land("day-1", "day-2")
    assert requested(shop.tick()) == again
    shop.restore(to=0)
    assert requested(shop.tick()) == ["day-1", "day-2"]


@pytest.mark.parametrize("is_one_step", [True, False])
@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_table_that_has_no_row_yet_makes_no_other_one_merge_twice(
    shop: Shop, is_one_step: bool, is_by_hand: bool
) -> None:
    """Of a step with several tables, one has no rejected row, so that it is not made."""
    shop.others, shop.empty, shop.is_one_step = {"rejects": APPEND}, {"rejects"}, is_one_step
    shop.land("day-1")
    if is_by_hand:
        shop.run("day-1")
    else:
        shop.run_all(shop.tick())
    assert "1 merged" in shop.said()
    shop.empty.clear()
    shop.land("day-2")
    shop.run_all(shop.tick())
    assert "2 merged" in shop.said()
    assert shop.merged == [("day-1", 1), ("day-2", 2)]
    assert shop.held("rejects") == ["day-2"]
    # What is undone is not what was never there.
    shop.restore(to=1)
    assert requested(shop.tick()) == ["day-2"]


def test_a_run_of_an_earlier_release_counts_by_the_logs_of_its_tables(shop: Shop) -> None:
    """Its tag does not name one of its tables."""
    shop.others = {"rejects": APPEND}
    shop.land("day-1")
    [request] = shop.tick().run_requests or []
    tags, _ = shop.of_request(request)
    shop.wrote(shop.create("day-1", tags, status=SUCCESS), {RECORDED_TAG: ""})
    shop.merge("day-1", tags)
    # Perhaps that table was dropped.
    assert selections(shop.tick()) == {"day-1": ["rejects"]}
    shop.restore(to=0)
    assert selections(shop.tick()) == {"day-1": None}


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_table_that_a_step_gets_makes_its_others_merge_nothing_again(
    shop: Shop, is_by_hand: bool
) -> None:
    shop.is_one_step, shop.declared = True, {"order": "any"}
    shop.land("day-1", "day-2")
    if is_by_hand:
        shop.run("day-1")
    shop.run_all(shop.tick())
    shop.others = {"rejects": APPEND}
    data = shop.tick()
    assert selections(data) == dict.fromkeys(["day-1", "day-2"])
    assert [held_assets(each.tags) for each in data.run_requests or []] == [{ORDERS}] * 2
    assert shop.run_all(data) == ["day-1", "day-2"]
    assert "2 merged" in shop.said()
    assert shop.merged == [("day-1", 1), ("day-2", 2)]
    shop.drop()
    data = shop.tick()
    assert selections(data) == dict.fromkeys(["day-1", "day-2"])
    assert held_assets((data.run_requests or [])[0].tags) == {AssetKey("rejects")}


@pytest.mark.parametrize("status", [FAILURE, SUCCESS])
def test_a_further_attempt_of_a_delivery_repeats_its_first_run(
    shop: Shop, status: DagsterRunStatus
) -> None:
    """An append of an earlier attempt stands; what a RESTORE took back does not."""
    shop.others, shop.is_one_step = {"rejects": APPEND}, True
    shop.arguments["attempts"] = 9
    shop.land("day-1")
    runs = []
    for _ in range(3):
        [request] = shop.tick().run_requests or []
        tags, names = shop.of_request(request)
        assert names is None
        runs.append(shop.create("day-1", tags, names, status))
        shop.wrote(runs[-1], dict.fromkeys(map(recorded_tag, (ORDERS, AssetKey("rejects"))), ""))
        shop.merge("day-1", tags)
    found = [shop.instance.get_run_by_id(each) for each in runs]
    assert [first_attempt(shop.instance, each) for each in found if each] == [runs[0]] * 3


def test_what_needed_its_last_attempt_is_requested_again_after_a_restore(shop: Shop) -> None:
    shop.arguments["attempts"] = 2
    shop.land("day-1")
    shop.run_all(shop.tick())
    shop.land("day-2", bad=True)
    shop.run_all(shop.tick())
    shop.bad.clear()
    shop.run_all(shop.tick())
    shop.restore(to=1)
    # Its run key is new, also if the first run was deleted.
    first = shop.instance.get_runs(RunsFilter(tags={ATTEMPT_TAG: "1"}), limit=1)
    shop.instance.delete_run(first[0].run_id)
    [request] = shop.tick().run_requests or []
    assert request.partition_key == "day-2"
    assert str(request.run_key).endswith("#3")
    # It holds up others no longer than its pause, whatever keeps it from being recorded.
    shop.land("day-3")
    assert requested(shop.tick()) == ["day-2", "day-3"]
    shop.arguments["retry_after_seconds"] = 60
    said = shop.said()
    assert "ended without a merge; it is tried again in" in said
    assert "day-3 waits for day-2, whose run ended" in said


def test_a_run_under_way_counts_under_whatever_name(shop: Shop) -> None:
    shop.land("day-1")
    [request] = shop.tick().run_requests or []
    tags, _ = shop.of_request(request)
    shop.create("day-1", tags)
    shop.name = "renamed"
    assert "1 under way (day-1)" in shop.said()


def test_a_failed_run_is_under_way_only_while_dagster_will_try_it_again(shop: Shop) -> None:
    shop.land("day-1")
    tags = {"dagster/will_retry": "true", "dagster/backfill": "deleted"}
    shop.create("day-1", {"dagster/will_retry": "true"}, status=FAILURE)
    assert "1 under way (day-1)" in shop.said()
    shop.create("day-1", tags, status=FAILURE)
    shop.instance.delete_run(shop.instance.get_runs()[1].run_id)
    assert requested(shop.tick()) == ["day-1"]


def test_what_earlier_releases_merged_counts_by_dagsters_runs(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path, order="any")
    shop.land(*DAYS[:3])
    shop.commit(0, {"metaData": {"id": "11111111"}})
    ranges = {f"dagster/asset_partition_range_{which}": day for which, day in START_AND_END}
    run_id = shop.create("", ranges, status=SUCCESS)
    for day in DAYS[:2]:
        shop.materialized(day, run_id)
    shop.create("day-3", {}, status=FAILURE)
    assert requested(shop.tick()) == ["day-3"]
    shop.run("day-3")
    assert "3 merged" in shop.said()
    shop.land("day-1")
    assert requested(shop.tick()) == ["day-1"]


def test_the_order_of_an_earlier_release_goes_on(shop: Shop) -> None:
    shop.land("day-2", bad=True)
    shop.run("day-2", {"deltaweave/attempt": "3"})
    order = {"deltaweave/order/orders": 1, "deltaweave/order/orders#day-3": 1}
    actions = ({"txn": {"appId": name, "version": at}} for name, at in order.items())
    shop.commit(0, {"metaData": {"id": "11111111"}}, *actions)
    shop.land("day-4")
    assert requested(shop.tick()) == ["day-4"]
    # Nor is it waited for if it is there no more.
    shutil.rmtree(shop.landing / "day-2")
    assert requested(shop.tick()) == ["day-4"]


def test_newer_days_wait_for_one_that_failed_and_come_once_it_is_merged(shop: Shop) -> None:
    shop.arguments = {"retry_after_seconds": 60, "attempts": 2}
    shop.land("day-1")
    shop.land("day-2", bad=True)
    assert shop.run_all(shop.tick()) == ["day-1"]
    shop.land("day-3", "day-4")
    said = shop.said()
    assert "1 merged; day-2: run" in said
    assert "failed, attempt 1 of 2; it is tried again in" in said
    assert "day-3 and 1 more wait for day-2, whose run failed." in said
    shop.arguments["retry_after_seconds"] = 0
    # Those that are requested beside the failed one do not fail by themselves.
    data = shop.tick()
    assert requested(data) == ["day-2", "day-3", "day-4"]
    assert shop.run_all(data) == []
    assert "attempt 2 of 2: deliver it again, or run it yourself" in shop.said()
    shop.land("day-2")  # repaired
    assert requested(data := shop.tick()) == ["day-2", "day-3", "day-4"]
    assert [r.tags[ATTEMPT_TAG] for r in data.run_requests or []] == ["1", "1", "1"]
    assert shop.run_all(data) == ["day-2", "day-3", "day-4"]
    assert "4 merged." in shop.said()


def test_a_day_that_failed_in_a_backfill_and_has_not_landed_is_waited_for(shop: Shop) -> None:
    shop.land("day-2")
    shop.bad.add("day-1")
    assert not shop.run("day-1")
    assert "0 merged; day-2 waits for day-1, whose run failed." in shop.said()
    shop.delivered["day-1"] = 0
    shop.bad.clear()
    shop.run("day-1")
    assert requested(shop.tick()) == ["day-2"]


@pytest.mark.parametrize("is_merged", [False, True])
def test_newer_days_wait_for_a_failed_region_of_the_newest_merged_day(
    shop: Shop, is_merged: bool
) -> None:
    """Unless its run was killed after its commit, which the table's records say."""
    days = DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
    regions = StaticPartitionsDefinition(["DE", "FR"])
    shop.partitions = MultiPartitionsDefinition({"day": days, "region": regions})
    shop.land("2024-01-01|DE", "2024-01-02|DE")
    shop.merge("2024-01-01|DE")
    shop.create("2024-01-01|FR", {}, None, FAILURE)  # nothing has landed of it
    if is_merged:
        shop.merge("2024-01-01|FR")
        assert requested(shop.tick()) == ["2024-01-02|DE"]
    else:
        assert "2024-01-02|DE waits for 2024-01-01|FR, whose run failed" in shop.said()


def test_a_new_storage_of_dagster_gets_the_partitions_of_tables_first(
    shop: Shop,
) -> None:
    """Else an older one that is delivered again would pass for the newest there."""
    shop.partitions = DynamicPartitionsDefinition(name="days")
    shop.instance.add_dynamic_partitions("days", DAYS[:3])
    for day in DAYS[:3]:
        shop.land(day)
        shop.merge(day)
    shop.land("day-2")
    late = "day-2 is older than day-3, which is merged"
    assert late in shop.said()
    with instance_for_test() as other:
        shop.instance = other
        data = shop.tick()
        assert "hold 3 partitions that Dagster has never had" in (data.skip_message or "")
        [added] = data.dynamic_partitions_requests or []
        other.add_dynamic_partitions("days", added.partition_keys or [])
        assert late in shop.said()
        # One that another sensor's tick has not added, beside those that it has.
        other.delete_dynamic_partition("days", "day-3")
        assert "hold 1 partition that" in (shop.tick().skip_message or "")
        # A partition that is deleted on purpose was materialized here.
        other.report_runless_asset_event(AssetMaterialization(ORDERS, partition="day-3"))
        assert requested(shop.tick()) == ["day-2"]


def test_runs_that_only_wait_are_requested_with_pauses_between_them(shop: Shop) -> None:
    shop.arguments = {"retry_after_seconds": 60}
    shop.land("day-2")
    for _ in range(2):  # the first is followed at once: the older day was merged meanwhile
        [request] = shop.tick().run_requests or []
        run_id = shop.create("day-2", *shop.of_request(request), FAILURE)
        shop.wrote(run_id, {"deltaweave/waited_for": "day-1"})
    assert "waited for an older partition that was not merged; it is tried again in" in shop.said()


def test_a_day_that_comes_after_newer_ones_is_not_launched_to_fail(shop: Shop) -> None:
    shop.land("day-1", "day-3")
    shop.run_all(shop.tick())
    shop.land("day-2", "day-1")
    said = shop.said()
    for day in ("day-1", "day-2"):
        assert f"{day} is older than day-3, which is merged: run it with the tag" in said
    shop.land("day-4")
    assert requested(shop.tick()) == ["day-4"]
    shop.run("day-2", {"deltaweave/order": "any"})
    assert "day-2 is older" not in (shop.tick().skip_message or "")
    shop.land("day-3")  # the newest one again
    assert requested(shop.tick()) == ["day-3", "day-4"]


def test_without_an_order_a_day_that_failed_holds_up_no_other(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    shop = Shop(instance, tmp_path, order="any")
    shop.arguments = {"retry_after_seconds": 60}
    shop.land("day-2", bad=True)
    shop.run_all(shop.tick())
    shop.land("day-1", "day-3")
    assert requested(shop.tick()) == ["day-1", "day-3"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["land", "land_bad", "tick", "die", "lose", "rename", "by_hand", "again", "restore"]
        ),
        st.sampled_from(DAYS),
    ),
    max_size=14,
)


@pytest.mark.minutes
@settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(
    steps=[("land", "day-1"), ("tick", ""), ("land", "day-1"), ("land", "day-4"), ("by_hand", "")]
)
def test_whatever_happens_each_delivery_is_merged_once_and_in_order(
    steps: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with instance_for_test() as instance:
        shop = Shop(instance, tmp_path_factory.mktemp("shop"))
        cursor: str | None = None
        for kind, day in steps:
            newest = max(shop.held(), default="")
            if kind in ("land", "land_bad") and day >= newest:
                shop.land(day, bad=kind == "land_bad")
            elif kind == "tick":
                data = shop.tick(cursor)
                cursor = data.cursor
                shop.run_all(data)
            elif kind == "die":
                shop.run_all(shop.tick(cursor))  # the cursor was not saved
            elif kind == "lose":
                cursor = None
            elif kind == "rename":
                shop.name += "_again"
            elif kind == "by_hand":
                left = [each for each in shop.delivered if each not in shop.held()]
                if left:
                    shop.run(min(left))
            elif kind == "restore" and newest:
                shop.restore(to=len(list(shop.log.iterdir())) - 2)
                held = shop.held()
                shop.merged = [each for each in shop.merged if each[0] in held]
            elif kind == "again" and newest and newest in shop.delivered:
                shop.land(newest)
        # Days that landed late are merged by hand, as the tick says; bad ones are delivered again.
        newest = max(shop.held(), default="")
        shop.land(*sorted(shop.bad))
        for day, delivery in sorted(shop.delivered.items()):
            if day < newest and dict(shop.merged).get(day) != delivery:
                shop.run(day, {"deltaweave/order": "any"})
        for _ in range(6):
            shop.run_all(shop.tick())
        assert requested(shop.tick()) == []

        last = dict(shop.merged)
        assert last == shop.delivered
        assert len(shop.merged) == len(set(shop.merged))
        for day in last:
            runs = instance.get_runs(RunsFilter(tags={"dagster/partition": day}), limit=1)
            assert [run.status for run in runs] == [SUCCESS]
