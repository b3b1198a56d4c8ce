"""The sensors on an object store, through Arrow's S3 client and S3's protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    asset,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from deltalake import CommitProperties, Transaction, write_deltalake

from assets.object_store import ObjectStore, object_store
from dagster_deltaweave import build_partition_sensor, build_table_sensor, partition_path
from dagster_deltaweave.landing.listing import delivery, list_deliveries
from dagster_deltaweave.landing.source_partition import LANDING, landing_tag
from dagster_deltaweave.logs.changeset_log import pending_changes
from dagster_deltaweave.logs.delta_log import LogReader
from dagster_deltaweave.tables.locator import MergeOnReadLocations
from deltaweave.errors import SourceError
from tests.support.sensor_ticks import launched_tick as tick
from tests.support.sensor_ticks import requested, run_keys

DYNAMIC = DynamicPartitionsDefinition(name="orders_partitions")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store() as (store, endpoint):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield store


def orders_landed(uri: str = "s3://lake/landing/orders") -> Definitions:
    @asset(partitions_def=DYNAMIC)
    def orders() -> None: ...

    landed = build_partition_sensor(
        name="orders_landed",
        target=AssetSelection.assets(orders),
        directory=uri,
        partitions_def=DYNAMIC,
        landing_asset=AssetKey("orders_landing"),
    )
    return Definitions(assets=[orders], sensors=[landed])


def test_partitions_land_on_an_object_store(store: ObjectStore, instance: DagsterInstance) -> None:
    sensor = orders_landed()
    empty = tick(sensor, instance, None)
    for number in range(1_100):  # more than a page of a listing
        store.put(f"lake/landing/orders/2000-03/part-{number}", b"rows")
    store.put("lake/landing/orders/README")
    store.put("lake/landing/orders/_temporary/0/_SUCCESS")
    store.put("lake/landing/orders/2000-04/nested/_SUCCESS")  # no marker of the partition
    store.put("lake/landing/orders_of_others/2000-03/_SUCCESS")
    growing = tick(sensor, instance, empty.cursor)
    store.put("lake/landing/orders/2000-03/_SUCCESS")
    landed = tick(sensor, instance, growing.cursor)
    quiet = tick(sensor, instance, landed.cursor)
    store.put("lake/landing/orders/2000-03/_SUCCESS")
    again = tick(orders_landed("s3a://lake/landing/orders/"), instance, quiet.cursor)

    assert empty.skip_message == "The landing directory is missing: s3://lake/landing/orders"
    assert growing.skip_message == (
        "No new partition in s3://lake/landing/orders: "
        "0 merged, 2 incomplete (2000-03, 2000-04; their marker is _SUCCESS)."
    )
    ticks = (landed, quiet, again)
    assert [requested(each) for each in ticks] == [["2000-03"], [], ["2000-03"]]
    assert len({key for each in ticks for key in run_keys(each)}) == 2
    [arrival] = landed.asset_events
    assert arrival.metadata["dagster/uri"].value == "s3://lake/landing/orders/2000-03"


def test_a_delta_log_is_read_from_an_object_store_without_listing_it_again(
    store: ObjectStore,
) -> None:
    add = {"add": {"path": "f", "partitionValues": {"day": "1"}, "dataChange": True}}
    for version in range(3):
        info = {"commitInfo": {"timestamp": version, "operation": "WRITE"}}
        text = "\n".join(map(json.dumps, (info, add))).encode()
        store.put(f"lake/orders/_delta_log/{version:020}.json", text)
    log = LogReader("s3a://lake/orders")

    newest = next(log.newest_first())
    listings = store.listings

    assert (newest.version, newest.operation, newest.changes_data) == (2, "WRITE", True)
    assert [each.version for each in log.all()] == [0, 1, 2]
    store.listings = listings
    [oldest, *_] = log.all()
    listings = store.listings
    assert [each.version for each in log.after(oldest.position) or []] == [1, 2]
    assert log.after(newest.position) == []
    assert store.listings == listings


def test_pending_changes_are_read_from_logs_on_an_object_store(
    store: ObjectStore, tmp_path: Path
) -> None:
    def put(name: str, rows: pa.Table, applied: tuple[str, int]) -> None:
        pair = CommitProperties(app_transactions=[Transaction(*applied)])
        by = ["_cdc_batch"] if "_cdc_batch" in rows.column_names else None
        write_deltalake(
            tmp_path / name, rows, mode="append", partition_by=by, commit_properties=pair
        )
        for file in (tmp_path / name / "_delta_log").iterdir():
            store.put(f"lake/{name}/_delta_log/{file.name}", file.read_bytes())

    at = MergeOnReadLocations("s3a://lake/orders_base", "s3a://lake/orders_changes", "")
    assert pending_changes(at) is None
    put("orders_base", pa.table({"id": [1]}), ("deltaweave/merged_batch", 1))
    for number in (1, 2, 3):
        rows = pa.table({"id": [1, 2], "_cdc_batch": [number] * 2})
        put("orders_changes", rows, ("deltaweave/batches", number))
    pending = pending_changes(at)

    assert pending is not None
    assert (pending.batches, pending.rows) == (2, 4)
    assert (pending.merged_batch, pending.newest_batch) == (1, 3)


def test_single_files_land_on_an_object_store(
    store: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = "s3://lake/landing/orders"
    for name in ("1.csv", "2.csv", "2.csv.done", "nested/3.csv", "4.json", ".csv"):
        store.put(f"lake/landing/orders/{name}")
    found = {each.partition: each for each in list_deliveries(root, ".done", ".csv") or []}
    assert {name: each.fingerprint is not None for name, each in found.items()} == {
        "1": False,
        "2": True,
    }
    assert delivery(root, "2", ".done", ".csv") == found["2"]
    assert delivery(root, "3", None, ".csv") is None
    settled = {each.name for each in list_deliveries(root, None, ".csv") or []}
    assert settled == {"1.csv", "2.csv"}
    assert partition_path(root, "2", suffix=".csv") == f"{root}/2.csv"
    store.put("lake/landing/orders/5/part")
    store.put("lake/landing/orders/5/_SUCCESS")
    [directory] = [e for e in list_deliveries(root, "_SUCCESS") or [] if e.partition == "5"]
    looked = [delivery(root, "2", None, ".csv"), delivery(root, "5", None)]
    # The digests for the tags of runs come from the tick's one listing.
    monkeypatch.setattr("dagster_deltaweave.landing.listing.file_system", None)
    tags = [
        landing_tag(root, ".done", found["2"], ".csv"),
        landing_tag(root, "_SUCCESS", directory),
    ]
    assert [json.loads(each[LANDING])["files"] for each in tags] == [
        each.fingerprint for each in looked if each
    ]


def test_a_landing_directory_that_cannot_be_listed_is_named() -> None:
    with pytest.raises(SourceError, match="new partitions of tape://lake/orders failed: it cannot"):
        list_deliveries("tape://lake/orders", "_SUCCESS")


@pytest.mark.parametrize("root", ["with space", "100%", "a%20b", "c#1", "größe", "a+b"])
def test_names_with_anything_in_them_land_on_an_object_store(
    store: ObjectStore, instance: DagsterInstance, root: str
) -> None:
    names = ["with space", "50%", "d%20e", "c#2", "ü", "k=v", "x+y", "2024-01-01T00:00"]
    for name in names:
        store.put(f"lake/{root}/{name}/_SUCCESS")
    store.put(f"lake/{root}/what?/_SUCCESS")
    store.put(f"lake/{root}/many*/_SUCCESS")
    data = tick(orders_landed(f"s3://lake/{root}"), instance)
    quiet = tick(orders_landed(f"s3://lake/{root}/"), instance, data.cursor)

    assert sorted(map(str, requested(data))) == sorted(names)
    assert "skipped 2 ('many*': '*' cannot be in a partition key" in (quiet.skip_message or "")
    [path, hive] = (partition_path(f"s3://lake/{root}", each) for each in ("d%20e", "v"))
    assert path == f"s3://lake/{root}/d%20e"
    assert hive == f"s3://lake/{root}/k=v"


def test_a_delivery_in_the_current_second_waits_if_times_are_in_seconds(
    store: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = orders_landed()
    second = datetime.now(timezone.utc).replace(microsecond=0)
    marker, now = "lake/landing/orders/2000-03/_SUCCESS", int(second.timestamp()) * 10**9

    def ticked(cursor: str | None, at: float) -> SensorExecutionData:
        monkeypatch.setattr(time, "time_ns", lambda: now + int(at * 10**9))
        return tick(sensor, instance, cursor)

    store.objects[marker] = (b"", second)
    within = ticked(None, 0.5)
    store.objects[marker] = (b"", second)  # again, at 0.8, with the same time
    after = ticked(within.cursor, 1.5)

    assert (requested(within), requested(after)) == ([], ["2000-03"])
    assert "1 incomplete (2000-03; their marker is _SUCCESS)" in (within.skip_message or "")


def test_a_partition_landed_again_on_an_object_store_is_requested_again(
    store: ObjectStore, instance: DagsterInstance
) -> None:
    """The partition was deleted there before."""
    sensor, cursor, seen = orders_landed(), None, []
    for there in (True, False, True, True):
        if there:
            store.put("lake/landing/orders/2000-03/_SUCCESS")
        else:
            store.objects.clear()
        time.sleep(0.01)
        data = tick(sensor, instance, cursor)
        cursor = data.cursor
        seen.append(requested(data))

    assert seen == [["2000-03"], [], ["2000-03"], ["2000-03"]]


def test_errors_of_a_store_are_reported_without_its_secrets(
    store: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush/hush/hush")
    store.refusal = "AKIAEXAMPLE with hush/hush/hush may not, nor s3://AKIAEXAMPLE:hush@lake"
    with pytest.raises(SourceError, match="may not, nor") as listing:
        list_deliveries("s3://lake/landing/orders", "_SUCCESS")

    @asset
    def merged() -> None: ...

    changed = build_table_sensor(
        name="changed", target=AssetSelection.assets(merged), table="s3://lake/t"
    )
    with pytest.raises(SourceError, match="its log cannot be read") as log:
        tick(Definitions(assets=[merged], sensors=[changed]), instance)

    for error in (listing.value, log.value):
        assert "hush" not in str(error)
        assert "AKIAEXAMPLE" not in str(error)
        # A causing error would be shown with its own words.
        assert error.__suppress_context__


def test_a_sensor_shows_no_query_of_its_directory(
    store: ObjectStore, instance: DagsterInstance
) -> None:
    sensor = orders_landed("s3://lake/landing/orders?region=us-east-1")
    store.put("lake/landing/orders/2000-03/_SUCCESS")
    data = tick(sensor, instance)
    quiet = tick(sensor, instance, data.cursor)

    [arrival] = data.asset_events
    assert arrival.metadata["dagster/uri"].value == "s3://lake/landing/orders/2000-03"
    assert quiet.skip_message == "No new partition in s3://lake/landing/orders: 1 merged."
    [definition] = sensor.sensors or []
    assert "region" not in str(definition.description)
