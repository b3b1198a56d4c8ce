"""The sensors on an object store, through Arrow's S3 client and S3's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from deltalake import CommitProperties, Transaction, write_deltalake

from dagster_deltaweave import build_partition_sensor
from dagster_deltaweave.delta_log import DeltaLog
from dagster_deltaweave.landing import deliveries
from dagster_deltaweave.merge_on_read import Locations
from dagster_deltaweave.pending_changes import pending_changes
from deltaweave.errors import SourceError
from tests.orchestration.object_store import ObjectStore, object_store
from tests.orchestration.ticks import requested, run_keys, tick

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
        "0 requested before, 2 incomplete (2000-03, 2000-04)."
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
    log = DeltaLog("s3a://lake/orders")

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


def test_pending_changes_are_told_by_logs_on_an_object_store(
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

    at = Locations("s3a://lake/orders_base", "s3a://lake/orders_changes", "")
    assert pending_changes(at) is None
    put("orders_base", pa.table({"id": [1]}), ("deltaweave/merged_batch", 1))
    for number in (1, 2, 3):
        rows = pa.table({"id": [1, 2], "_cdc_batch": [number] * 2})
        put("orders_changes", rows, ("deltaweave/batches", number))
    pending = pending_changes(at)

    assert pending is not None
    assert (pending.batches, pending.rows) == (2, 4)
    assert (pending.merged_batch, pending.newest_batch) == (1, 3)


def test_a_landing_directory_that_cannot_be_listed_is_named() -> None:
    with pytest.raises(SourceError, match="new partitions of tape://lake/orders failed: it cannot"):
        deliveries("tape://lake/orders", "_SUCCESS")
