"""The sensors on an object store, through Arrow's S3 client and S3's protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    asset,
)

from dagster_deltaweave import build_partition_sensor
from dagster_deltaweave.delta_log import DeltaLog
from dagster_deltaweave.landing import deliveries
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


def test_a_landing_directory_that_cannot_be_listed_is_named() -> None:
    with pytest.raises(SourceError, match="new partitions of tape://lake/orders failed: it cannot"):
        deliveries("tape://lake/orders", "_SUCCESS")
