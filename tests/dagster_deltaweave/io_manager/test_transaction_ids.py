"""Transaction ids: recreated upstreams, ids of earlier releases, and replaced deliveries."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    DagsterInstance,
    Definitions,
    DynamicPartitionsDefinition,
    RunsFilter,
    asset,
    define_asset_job,
)
from dagster._core.test_utils import create_run_for_test
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dagster_deltaweave import (
    Changes,
    SparkDeltaIOManager,
    build_partition_sensor,
    merge_asset,
)
from dagster_deltaweave.io_manager import stores
from dagster_deltaweave.io_manager.merge_order import MergedPartitions
from dagster_deltaweave.io_manager.transaction_ids import ids_of_run
from dagster_deltaweave.landing.source_partition import LANDING
from dagster_deltaweave.partitions import DELIVERY_TAG
from dagster_deltaweave.tables import TableDeclaration, WriteDeclaration
from dagster_deltaweave.tables.declaration import MergeDeclaration
from deltaweave import Table, clauses
from deltaweave.errors import SourceError
from tests.dagster_deltaweave.conftest import Run, rows
from tests.support.sensor_ticks import tick

AssetTable = Callable[[str], Table]
APPEND = {"deltaweave/write": "append"}
REFRESH = {"deltaweave/full_refresh": "true"}
ADD_UP = [
    clauses.when_matched_update(set={"n": "t.n + s.n"}),
    clauses.when_not_matched_insert_all(),
]


class Upstream:
    """A table of (id, grp), and a count by grp that reads only the rows touched since."""

    def __init__(
        self, spark: SparkSession, run: Run, table: Table, io_manager_key: str | None = None
    ) -> None:
        self.spark, self.run, self.table = spark, run, table
        self.meanwhile: Callable[[], None] = lambda: None  # while rows are counted
        batch: list[Any] = []

        @merge_asset(keys=["id"], schema="id INT, grp STRING")
        def customers():  # type: ignore[no-untyped-def]
            return spark.createDataFrame(batch, "id INT, grp STRING")

        @merge_asset(
            keys=["grp"],
            clauses=ADD_UP,
            schema="grp STRING, n BIGINT",
            ins={"customers": AssetIn(metadata={"deltaweave/read": "touched"})},
            io_manager_key=io_manager_key,
        )
        def counts(customers):  # type: ignore[no-untyped-def]
            self.meanwhile()
            signed = customers.added.selectExpr("grp", "1 AS n").union(
                customers.removed.selectExpr("grp", "-1 AS n")
            )
            rows = signed.groupBy("grp").agg(F.sum("n").alias("n")).where("n <> 0")
            return Changes(rows, applied=customers)

        self.batch, self.customers, self.counts = batch, customers, counts

    def change(self, *lines: tuple[int, str]) -> None:
        self.batch[:] = lines
        self.run(self.customers)

    def count(self, **arguments: Any) -> None:
        self.run(self.customers, self.counts, selection=[self.counts], **arguments)

    def recreate(self, *lines: tuple[int, str]) -> None:
        shutil.rmtree(self.table.path_or_name)
        self.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        self.change(*lines)


@pytest.fixture
def upstream(spark: SparkSession, run: Run, table: AssetTable) -> Upstream:
    return Upstream(spark, run, table("customers"))


@pytest.mark.minutes
def test_rows_of_a_recreated_upstream_are_not_skipped_nor_mixed_with_old(
    upstream: Upstream, table: AssetTable
) -> None:
    upstream.change((1, "a"), (2, "a"))
    upstream.change((3, "b"))
    upstream.count()
    upstream.recreate((7, "a"), (8, "c"))

    with pytest.raises(SourceError, match="the table of customers was recreated"):
        upstream.count()
    assert rows(table("counts")) == [("a", 2), ("b", 1)]

    upstream.count(tags=REFRESH)
    upstream.change((9, "c"))
    upstream.count()
    assert rows(table("counts")) == [("a", 1), ("c", 2)]


@pytest.mark.minutes
def test_what_was_applied_is_asked_of_the_assets_own_io_manager(
    spark: SparkSession, run: Run, resources: dict[str, Any], table: AssetTable, tmp_path: Path
) -> None:
    of_spark = resources["spark"]
    resources["mart"] = SparkDeltaIOManager(root=str(tmp_path / "mart"), spark=of_spark)
    upstream = Upstream(spark, run, table("customers"), "mart")
    counts = Table(spark, str(tmp_path / "mart" / "counts"))
    # A table of that key under the upstream's root, as of an asset that moved, counts for nothing.
    earlier = table("counts")
    earlier.create_if_missing("grp STRING, n BIGINT")
    upstream.change((1, "a"), (2, "a"))
    name = f"customers→counts@{upstream.table.snapshot().id}"
    none = spark.createDataFrame([], "grp STRING, n BIGINT")
    earlier.write(none, "append", applied={name: upstream.table.version()})
    upstream.count()
    assert rows(counts) == [("a", 2)]
    upstream.change((3, "b"))
    upstream.count()
    upstream.count()
    assert rows(counts) == [("a", 2), ("b", 1)]


@pytest.mark.minutes
def test_rows_since_a_version_do_not_recreate_a_table_deleted_meanwhile(
    spark: SparkSession, upstream: Upstream, table: AssetTable
) -> None:
    upstream.change((1, "a"), (2, "a"))
    upstream.count()
    upstream.change((3, "b"))

    def drop() -> None:
        shutil.rmtree(table("counts").path_or_name)
        spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    upstream.meanwhile = drop
    with pytest.raises(SourceError, match="its table has not applied what was before"):
        upstream.count()
    upstream.meanwhile = lambda: None
    upstream.count()
    assert rows(table("counts")) == [("a", 2), ("b", 1)]


@pytest.mark.minutes
def test_transaction_ids_of_earlier_releases_count_in_older_tables(
    spark: SparkSession, upstream: Upstream, table: AssetTable
) -> None:
    """Only tables that are older than the ids count them."""
    upstream.change((1, "a"), (2, "a"))
    counts = table("counts")
    counts.create_if_missing("grp STRING, n BIGINT")
    earlier = spark.createDataFrame([("a", 2)], "grp STRING, n BIGINT")
    ids = {"customers→counts": upstream.table.version()}
    counts.write(earlier, "append", applied=ids)

    upstream.change((3, "b"))
    upstream.count()
    upstream.count()
    assert rows(counts) == [("a", 2), ("b", 1)]
    assert counts.last_applied("customers→counts") == ids["customers→counts"]


@pytest.mark.minutes
def test_ids_of_earlier_releases_do_not_count_for_a_recreated_table(
    spark: SparkSession, upstream: Upstream, table: AssetTable
) -> None:
    upstream.change((1, "a"), (2, "a"))
    counts = table("counts")
    counts.create_if_missing("grp STRING, n BIGINT")
    earlier = spark.createDataFrame([("a", 2)], "grp STRING, n BIGINT")
    counts.write(earlier, "append", applied={"customers→counts": 1})
    upstream.recreate((7, "c"))
    upstream.change((8, "c"))

    with pytest.raises(SourceError, match="was recreated"):
        upstream.count()
    assert rows(counts) == [("a", 2)]


@pytest.mark.parametrize(
    ("delivery", "own"),
    [
        ("1732312345678901234", ("counts#a", 1732312345678901234)),
        ("100", ("counts#a", 100)),
        ("12345678901234567890", ("counts#a@12345678901234567890", 0)),  # a digest of 20 digits
        ("00345678901234567890", ("counts#a@00345678901234567890", 0)),
        ("9223372036854775808", ("counts#a@9223372036854775808", 0)),  # one above a Long
        ("0123", ("counts#a@0123", 0)),
        ("١٢٣", ("counts#a@١٢٣", 0)),
        ("sha-1", ("counts#a@sha-1", 0)),
    ],
)
def test_a_delivery_is_a_time_only_if_it_is_spelt_as_one(
    table: AssetTable, delivery: str, own: tuple[str, int]
) -> None:
    output: Any = SimpleNamespace(
        context=SimpleNamespace(asset_key=AssetKey("counts")),
        table=table("counts"),
        declaration=MergeDeclaration(idempotent_by="delivery"),
        changes=Changes(None),
        upstreams=[],
        partitions=["a"],
        tags={"deltaweave/delivery": delivery},
    )
    assert ids_of_run(output).single == own


class Landing:
    """A directory in which partition `a` lands, a sensor on it, and an asset that counts it up."""

    def __init__(
        self,
        spark: SparkSession,
        run: Run,
        instance: DagsterInstance,
        directory: Path,
        **declared: Any,
    ) -> None:
        self.spark, self.run, self.instance = spark, run, instance
        self.directory, self.cursor = directory, None
        self.deliveries = 0
        self.while_read: list[Callable[[], None]] = []
        letters = DynamicPartitionsDefinition(name="letters")
        while_read = self.while_read

        declared = declared or {"idempotent_by": "delivery"}
        is_appended = "metadata" in declared
        made = asset if is_appended else partial(merge_asset, keys=["who"], clauses=ADD_UP)

        @made(partitions_def=letters, **declared)
        def counts(context: AssetExecutionContext) -> DataFrame:
            path = str(directory / context.partition_key)
            landed = spark.read.schema("who STRING, n BIGINT").parquet(path)
            while while_read:
                while_read.pop()()
            return landed

        self.counts = counts
        job = define_asset_job("count", selection=[counts])
        sensor = build_partition_sensor(
            name="landed", target=job, directory=directory, partitions_def=letters
        )
        self.defs = Definitions([counts], jobs=[job], sensors=[sensor])

    def land(self, n: int) -> None:
        """Deliver the partition, again with another number, the marker last and later."""
        self.deliveries += 1
        path = self.directory / "a"
        shutil.rmtree(path, ignore_errors=True)
        frame = self.spark.createDataFrame([("x", n)], "who STRING, n BIGINT")
        frame.coalesce(1).write.parquet(str(path))
        os.utime(path / "_SUCCESS", ns=(0, 10**18 + self.deliveries))

    def requested(self) -> dict[str, str]:
        """The tags of the run that the sensor requests now."""
        found = tick(self.defs, self.instance, self.cursor)
        self.cursor = found.cursor  # type: ignore[assignment]
        [request] = found.run_requests or []
        for each in found.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions("letters", each.partition_keys or [])
        return dict(request.tags)

    def merge(self, tags: dict[str, str]) -> None:
        self.run(self.counts, partition="a", tags=tags)


@pytest.fixture
def landing(spark: SparkSession, run: Run, instance: DagsterInstance, tmp_path: Path) -> Landing:
    (tmp_path / "landing").mkdir()
    return Landing(spark, run, instance, tmp_path / "landing")


@pytest.mark.parametrize(
    ("declared", "counted"),
    [
        ({"idempotent_by": "delivery"}, [("x", 11)]),
        ({"order": "any"}, [("x", 11)]),  # the table's records say what was merged
        ({"metadata": {"deltaweave/write": "append"}}, [("x", 1), ("x", 10)]),
        (
            {"metadata": {"deltaweave/write": "append", "deltaweave/idempotent_by": "delivery"}},
            [("x", 1), ("x", 10)],
        ),
    ],
)
def test_deliveries_of_two_directories_are_each_stored_once(
    spark: SparkSession,
    run: Run,
    instance: DagsterInstance,
    tmp_path: Path,
    table: AssetTable,
    declared: dict[str, Any],
    counted: list[tuple[str, int]],
) -> None:
    """Also if the older one comes last, and if a run for it is requested once more."""
    for name in ("eu", "us"):
        (tmp_path / name).mkdir()
    older, newer = (Landing(spark, run, instance, tmp_path / n, **declared) for n in ("us", "eu"))
    older.land(1)
    newer.land(10)
    for landing, tags in 2 * [(newer, newer.requested()), (older, older.requested())]:
        landing.merge(tags)
    assert rows(table("counts")) == counted


@pytest.mark.minutes
def test_a_delivery_replaced_before_its_run_reads_it_is_counted_once(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    first = landing.requested()
    landing.land(10)

    with pytest.raises(SourceError, match="was delivered again since this run was requested"):
        landing.merge(first)
    assert not table("counts").exists()

    for tags in (second := landing.requested(), second):
        landing.merge(tags)
    assert rows(table("counts")) == [("x", 10)]
    shutil.rmtree(landing.directory / "a")
    with pytest.raises(Exception, match=r"is no longer in|PATH_NOT_FOUND"):
        landing.merge(first)


@pytest.mark.parametrize(
    ("declaration", "partitions", "is_in_table", "is_looked_at"),
    [
        (WriteDeclaration(mode="append"), ["a"], False, True),
        (WriteDeclaration(mode="append"), ["a"], True, False),  # a retry after its commit
        (WriteDeclaration(mode="append"), ["a", "b"], False, False),
        (WriteDeclaration(mode="append"), [], False, False),
        (WriteDeclaration(mode="append", idempotent_by="delivery"), ["a"], True, True),
        (WriteDeclaration(mode="append", idempotent_by="partition"), ["a"], False, True),
        (WriteDeclaration(mode="overwrite"), ["a"], False, False),
        (MergeDeclaration(), ["a"], False, False),
        (MergeDeclaration(idempotent_by="delivery"), ["a"], False, True),
    ],
)
def test_rows_that_would_double_are_those_of_the_runs_own_delivery(
    monkeypatch: pytest.MonkeyPatch,
    declaration: TableDeclaration,
    partitions: list[str],
    is_in_table: bool,
    is_looked_at: bool,
) -> None:
    class LookedError(Exception): ...

    class PassedError(Exception): ...

    def end(error: Exception) -> None:
        raise error

    ids = SimpleNamespace(are_in_table=lambda: is_in_table)
    monkeypatch.setattr(stores, "ids_of_run", lambda _: ids)
    monkeypatch.setattr(stores, "rows_of_delivery", lambda *_, **__: end(LookedError()))
    output: Any = SimpleNamespace(
        declaration=declaration,
        partitions=partitions,
        table=SimpleNamespace(path_or_name="counts"),
        target=SimpleNamespace(refuse_missing_columns=lambda _: end(PassedError())),
        rows=None,
        tags={},
    )
    with pytest.raises(LookedError if is_looked_at else PassedError):
        stores.store(output)


@pytest.mark.minutes
@pytest.mark.parametrize(
    "metadata",
    [
        APPEND,
        {**APPEND, "deltaweave/idempotent_by": "delivery"},
        {**APPEND, "deltaweave/idempotent_by": "partition"},
    ],
)
@pytest.mark.parametrize("is_replaced", ["before it is read", "while it is read"])
def test_a_run_appends_no_rows_of_a_delivery_that_replaced_its_own(
    spark: SparkSession,
    run: Run,
    instance: DagsterInstance,
    tmp_path: Path,
    table: AssetTable,
    metadata: dict[str, str],
    is_replaced: str,
) -> None:
    (tmp_path / "landing").mkdir()
    landing = Landing(spark, run, instance, tmp_path / "landing", metadata=metadata)
    landing.land(1)
    first = landing.requested()
    if is_replaced == "before it is read":
        landing.land(10)
    else:
        landing.while_read.append(lambda: landing.land(10))
    with pytest.raises(SourceError, match="was delivered again since this run was requested"):
        landing.merge(first)
    assert not table("counts").exists()

    second = landing.requested()
    merged = landing.run(landing.counts, partition="a", tags=second).run_id
    assert rows(table("counts")) == [("x", 10)]
    # Its retry, as after a kill, succeeds without rows though another delivery is there by now.
    if "deltaweave/idempotent_by" not in metadata:
        landing.land(100)
        again = {"dagster/parent_run_id": merged, "deltaweave/first_attempt": merged}
        landing.merge({**second, **again})
        assert rows(table("counts")) == [("x", 10)]
        landing.merge(landing.requested())
        assert rows(table("counts")) == [("x", 10), ("x", 100)]


def test_a_delivery_replaced_while_its_run_reads_it_is_not_merged(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    tags = landing.requested()
    # A new delivery begins, and its marker is yet to come: that of the first is still there.
    landing.while_read.append(
        lambda: shutil.copy(
            next((landing.directory / "a").glob("*.parquet")), landing.directory / "a/more.parquet"
        )
    )
    with pytest.raises(SourceError, match="has other files than when this run was requested"):
        landing.merge(tags)
    assert not table("counts").exists()


def test_half_a_delivery_beside_the_last_ones_marker_is_not_merged(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    for checksum in (landing.directory / "a").glob(".*.crc"):
        checksum.unlink()  # an object store has none
    first = landing.requested()
    marker = (landing.directory / "a/_SUCCESS").stat()
    [part] = (landing.directory / "a").glob("*.parquet")
    landing.spark.range(1).selectExpr("'x' AS who", "10L AS n").toPandas().to_parquet(part)

    assert (landing.directory / "a/_SUCCESS").stat() == marker
    with pytest.raises(SourceError, match="has other files than when this run was requested"):
        landing.merge(first)
    assert not table("counts").exists()


@pytest.mark.minutes
def test_a_run_that_an_earlier_release_tagged_without_its_files_is_merged(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    tags = landing.requested()
    tag = json.loads(tags[LANDING])
    assert tag.pop("files")
    landing.merge({**tags, LANDING: json.dumps(tag)})
    assert rows(table("counts")) == [("x", 1)]


@pytest.mark.minutes
def test_files_that_change_between_the_looks_at_a_delivery_fail_its_run(
    spark: SparkSession, landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    tags = landing.requested()
    more = str(landing.directory / "a" / "more.parquet")

    @F.udf("string")
    def who_lands_more(who: str) -> str:
        Path(more).write_bytes(b"the beginning of another delivery")
        return who

    @merge_asset(
        keys=["who"],
        name="counts",
        clauses=ADD_UP,
        partitions_def=DynamicPartitionsDefinition(name="letters"),
        idempotent_by="delivery",
    )
    def counts() -> DataFrame:
        landed = spark.read.schema("who STRING, n BIGINT").parquet(str(landing.directory / "a"))
        return landed.withColumn("who", who_lands_more("who"))

    with pytest.raises(SourceError, match="has other files than when this run was requested"):
        landing.run(counts, partition="a", tags=tags)
    assert not table("counts").exists()


@pytest.mark.minutes
def test_a_delivery_tagged_by_hand_is_taken_at_its_word(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    landing.instance.add_dynamic_partitions("letters", ["a"])
    for _ in range(2):
        landing.merge({"deltaweave/delivery": "7"})
    assert rows(table("counts")) == [("x", 1)]


@pytest.mark.minutes
def test_a_delivery_applied_by_hand_is_not_counted_again_by_its_run(
    landing: Landing, table: AssetTable
) -> None:
    landing.land(1)
    tags = landing.requested()
    landing.merge({"deltaweave/delivery": tags[DELIVERY_TAG]})
    landing.merge(tags)
    assert rows(table("counts")) == [("x", 1)]


def test_the_records_of_a_table_say_which_run_merged_a_partition(
    landing: Landing, table: AssetTable
) -> None:
    """Also if Dagster holds it for failed, because it was killed after its commit."""
    landing.land(1)
    landing.merge(landing.requested())
    [merged] = landing.instance.get_run_records(limit=1)
    later = create_run_for_test(landing.instance, tags={"dagster/partition": "a"})
    [failed] = landing.instance.get_run_records(RunsFilter(run_ids=[later.run_id]))
    found = MergedPartitions.of(AssetKey("counts"), table("counts"), lambda key: key)
    held = [found.table.holds_run("a", each, landing.instance) for each in (merged, failed)]
    assert held == [True, False]
