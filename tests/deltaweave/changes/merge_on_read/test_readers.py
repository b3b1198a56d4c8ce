"""Readers of a merge-on-read table beside its writers: they see whole batches, in their order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaweave import MergeOnReadTable
from deltaweave.changes.merge_on_read.changeset import Changeset
from deltaweave.changes.side_tables import tombstones
from deltaweave.changes.side_tables.tombstones import Tombstones
from deltaweave.delta.jvm import IGNORING_FILES
from tests.deltaweave.changes.merge_on_read.test_table import frame, rows
from tests.support.drawn_events import WHOLE, Event, delete
from tests.support.settings import configured


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> MergeOnReadTable:
    return opened(spark, tmp_path)


def opened(spark: SparkSession, tmp_path: Path, **arguments: Any) -> MergeOnReadTable:
    return MergeOnReadTable(
        spark,
        str(tmp_path / "base"),
        keys=["k"],
        sequence_by="seq",
        apply_as_deletes="op = 'delete'",
        **{"keep_merged_for": timedelta(minutes=10), **WHOLE, **arguments},
    )


def append(table: MergeOnReadTable, number: int) -> None:
    """Append a batch after which the table has one row, that of its number."""
    events = [delete(number - 1, number), Event(number, number, number)]
    table.append(frame(table.spark, events))


def write(table: MergeOnReadTable, batches: range) -> None:
    for number in batches:
        append(table, number)
        if number % 2:
            table.rematerialize("overwrite" if number % 4 == 1 else "merge")
        if number % 3 == 0:
            table.base.compact()
            table.changes.compact()


@pytest.mark.minutes
def test_readers_see_whole_batches_beside_writers(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    batches = 12  # after which `write` has done each of its steps beside each other one
    append(table, 0)
    table.create_view("readers_now")
    seen = [0]
    with ThreadPoolExecutor(1) as thread:
        writer = thread.submit(write, table, range(1, batches + 1))
        while not writer.done():
            for read in (table.read(), spark.table("readers_now")):
                [(k, v, w)] = rows(read)
                assert (k, w) == (v, None)
                seen.append(k)
        writer.result()
    assert seen == sorted(seen)
    assert rows(table.read()) == rows(spark.table("readers_now")) == {(batches, batches, None)}


@pytest.mark.minutes
def test_a_view_counts_no_delete_that_is_remembered_while_it_is_planned(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    append(table, 1)
    table.create_view("readers_planned")
    kept_in = Tombstones.of(table.base).kept_in
    noted = F.current_timestamp() + F.expr("INTERVAL 1 HOUR")  # after its query has begun
    deleted = spark.range(1).select(
        F.lit(1).alias("k"),
        F.lit(False).alias("_cdc_of_all_keys"),
        F.expr("named_struct('at', 9, 'tie', 0L)").alias("_cdc_sequence"),
        noted.alias("_cdc_noted_at"),
    )
    kept_in.write(deleted, "append")
    assert rows(spark.table("readers_planned")) == {(1, 1, None)}


@pytest.mark.minutes
def test_a_view_shows_no_row_that_somebody_deleted_from_the_base(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    append(table, 1)
    table.rematerialize()
    table.base.delete("k = 1")
    table.append(frame(spark, [Event(2, 2, 2)]))
    table.create_view("readers_deleted")
    assert rows(spark.table("readers_deleted")) == rows(table.read()) == {(2, 2, None)}


@pytest.mark.minutes
def test_a_view_shows_no_late_event_whose_delete_expired_since_its_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "TIDIED_EVERY", 1)
    table = opened(spark, tmp_path, late_by=timedelta(0))
    append(table, 1)
    append(table, 2)  # deletes what was appended before
    table.rematerialize()
    table.append(frame(spark, [Event(1, 1, 1)]))
    table.create_view("readers_expired")
    table.rematerialize()
    append(table, 3)
    table.rematerialize()
    # As once only the delete was merged at least `keep_merged_for` ago.
    Changeset(table.changes, table._sides.shape()).purge(2)
    assert rows(spark.table("readers_expired")) == rows(table.read()) == {(3, 3, None)}


@pytest.mark.minutes
def test_what_is_merged_may_be_kept_forever(spark: SparkSession, tmp_path: Path) -> None:
    table = opened(spark, tmp_path, late_by=timedelta.max, keep_merged_for=timedelta.max)
    append(table, 1)
    append(table, 2)
    table.rematerialize()
    assert table.purge() == 0
    table.append(frame(spark, [Event(1, 1, 1)]))
    assert rows(table.read()) == {(2, 2, None)}


@pytest.mark.minutes
def test_a_batch_takes_the_sessions_transaction_id_and_the_base_does_not(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    """A pair in the base would make the caller's own write to it seem done."""
    pair = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
    with configured(spark, dict(zip(pair, ("nightly", "1"), strict=True))):
        append(table, 1)
        append(table, 2)  # the same batch, by its pair
        table.rematerialize("overwrite")
        table.purge()
    assert rows(table.read()) == {(1, 1, None)}
    assert table.base.last_applied("nightly") is None
    assert table.changes.last_applied("nightly") == 1


@pytest.mark.minutes
def test_a_view_reads_strictly_whatever_is_set_later(
    spark: SparkSession, table: MergeOnReadTable
) -> None:
    append(table, 1)
    table.create_view("readers_strict")
    for file in Path(table.changes.location().removeprefix("file:")).glob("**/*.parquet"):
        if "_delta_log" not in file.parts:
            file.unlink()
    with (
        configured(spark, dict.fromkeys(IGNORING_FILES, "true")),
        pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"),
    ):
        rows(spark.table("readers_strict"))
