"""Base and changeset read as one: every event once, whatever was merged, purged or repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from deltaweave import MergeOnReadTable
from deltaweave.changes.merge_on_read.changeset import Changeset
from deltaweave.delta.jvm.errors import translated
from deltaweave.errors import CommitConflictError, SourceError, StatementError
from tests.deltaweave.changes.test_current_rows import current_rows
from tests.support.drawn_events import (
    DELETES,
    DRAWN,
    PARTIAL,
    PARTIAL_UPSERTS,
    SCHEMA,
    TRUNCATES,
    UPSERTS,
    WHOLE,
    Event,
    Row,
    batches_of,
    delete,
    truncate,
)

Make = Callable[..., MergeOnReadTable]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Make:
    numbers = itertools.count()

    def made(**arguments: Any) -> MergeOnReadTable:
        return MergeOnReadTable(
            spark,
            str(tmp_path / f"base-{next(numbers)}"),
            keys=["k"],
            sequence_by="seq",
            apply_as_deletes="op = 'delete'",
            **{"apply_as_truncates": "op = 'truncate'", **WHOLE, **arguments},
        )

    return made


def frame(spark: SparkSession, events: Sequence[Event]) -> DataFrame:
    return spark.createDataFrame([event.row() for event in events], SCHEMA)


def rows(read: DataFrame) -> set[Row]:
    found = [tuple(row) for row in read.collect()]
    assert len(found) == len(set(found))
    return set(found)


def scans_of_base(read: DataFrame) -> int:
    """How often the base is scanned when the rows are read."""
    execution = read._jdf.queryExecution()
    execution.executedPlan().executeCollect()
    plan = execution.executedPlan().finalPhysicalPlan().toString()
    scans = [line for line in plan.splitlines() if "FileScan" in line]
    return sum("_cdc_operation" not in line for line in scans)


STEPS = st.sampled_from([None, None, "merge", "overwrite"])


@pytest.mark.minutes
@DRAWN
@given(
    batches=batches_of(UPSERTS, UPSERTS, DELETES, TRUNCATES),
    steps=st.lists(STEPS, min_size=3, max_size=3),
)
def test_every_method_reads_the_same_rows_around_each_rematerialization(
    spark: SparkSession, make: Make, batches: list[list[Event]], steps: list[Any]
) -> None:
    table = make()
    seen: list[Event] = []
    for batch, step in zip(batches, steps, strict=False):
        table.append(frame(spark, batch))
        seen += batch
        if step is not None:
            table.rematerialize(step)
        for method in ("auto", "double_rank", "full_outer_join", "left_join_anti_join"):
            assert rows(table.read(method)) == current_rows(seen), method
    table.rematerialize()
    assert rows(table.read_optimized()) == current_rows(seen)


@pytest.mark.minutes
@DRAWN
@given(
    batches=batches_of(PARTIAL_UPSERTS, PARTIAL_UPSERTS, DELETES, TRUNCATES),
    steps=st.lists(STEPS, min_size=3, max_size=3),
)
def test_events_of_some_columns_do_so_too(
    spark: SparkSession, make: Make, batches: list[list[Event]], steps: list[Any]
) -> None:
    table = make(**PARTIAL)
    seen: list[Event] = []
    for batch, step in zip(batches, steps, strict=False):
        table.append(frame(spark, batch))
        seen += batch
        if step is not None:
            table.rematerialize(step)
        for method in ("full_outer_join", "left_join_anti_join"):
            assert rows(table.read(method)) == current_rows(seen), method


@pytest.mark.minutes
def test_inserts_that_say_so_are_read_without_a_look_into_the_base(
    spark: SparkSession, make: Make
) -> None:
    table = make(inserts="op = 'insert'")
    table.append(frame(spark, [Event(1, 1, 10, op="insert"), Event(2, 1, 20, op="insert")]))
    table.rematerialize()
    table.append(
        frame(spark, [Event(3, 2, 30, op="insert"), Event(1, 3, 11), delete(2, 3), Event(3, 4, 31)])
    )
    read = table.read("left_join_inserts")
    assert rows(read) == rows(table.read()) == {(1, 11, None), (3, 31, None)}
    assert [scans_of_base(each) for each in (read, table.read("left_join_anti_join"))] == [1, 2]


@pytest.mark.minutes
def test_an_event_empties_the_table_until_newer_ones_fill_it(
    spark: SparkSession, make: Make
) -> None:
    table = make(inserts="op = 'insert'", partition_by=["w"])
    table.append(frame(spark, [Event(1, 1, 10, op="insert"), Event(2, 1, 20, op="insert")]))
    table.append(frame(spark, [Event(3, 5, 30, op="insert")]))
    table.rematerialize()
    table.append(frame(spark, [truncate(3), Event(1, 2, 11), Event(2, 4, 21)]))
    # 1 is older, 2 came again after it, though not as an insert, 3 is newer.
    expected = {(2, 21, None), (3, 30, None)}
    for method in (None, "left_join_inserts", "left_join_anti_join", "full_outer_join"):
        assert rows(table.read(method or "auto")) == expected, method
    table.rematerialize("replace_where")
    assert rows(table.read_optimized()) == expected
    table.append(frame(spark, [Event(4, 2, 40), Event(5, 4, 50)]))  # 4 is older than the truncate
    assert rows(table.read("full_outer_join")) == expected | {(5, 50, None)}


def test_a_view_by_name_is_refused_where_events_can_empty_the_table(
    spark: SparkSession, make: Make
) -> None:
    table = make()
    table.append(frame(spark, [Event(1, 1, 10)]))
    with pytest.raises(StatementError, match="cannot know of events that empty the table"):
        table.create_view("orders_now")


@pytest.mark.minutes
def test_a_view_by_name_is_refused_where_an_event_emptied_the_table(make: Make) -> None:
    """The reader needs no option for such events, and a late event may be older than one."""
    writer = make()
    spark, path = writer.spark, writer.base.path_or_name
    reader = MergeOnReadTable(spark, path, keys=["k"], sequence_by="seq")
    writer.append(frame(spark, [Event(1, 1, 10)]))
    reader.create_view("emptied_now")
    writer.append(frame(spark, [truncate(5)]))
    for late in (False, True):
        assert rows(reader.read()) == set()
        with pytest.raises(StatementError, match="events that empty the table"):
            reader.create_view("emptied_now")
        if not late:
            writer.rematerialize()
            writer.append(frame(spark, [Event(1, 3, 30)]))


def test_inserts_are_not_read_as_such_where_no_event_says_so(
    spark: SparkSession, make: Make
) -> None:
    table = make()
    table.append(frame(spark, [Event(1, 1, 10)]))
    with pytest.raises(StatementError, match="needs `inserts`, which says which events insert"):
        table.read("left_join_inserts")


@pytest.mark.minutes
def test_a_name_for_sql_shows_the_newest_whatever_is_merged_and_purged(
    spark: SparkSession, make: Make
) -> None:
    table = make(keep_merged_for=timedelta(0), apply_as_truncates=None)
    table.append(frame(spark, [Event(1, 1, 10), Event(2, 1, 20)]))
    table.create_view("orders_now")
    found = [rows(spark.table("orders_now"))]
    table.append(frame(spark, [Event(1, 2, 11), delete(2, 2)]))
    found.append(rows(spark.table("orders_now")))
    table.rematerialize()
    found.append(rows(spark.table("orders_now")))
    assert table.purge() == 2
    found.append(rows(spark.table("orders_now")))
    table.append(frame(spark, [Event(3, 3, 30), Event(2, 1, 20)]))  # the second is late
    found.append(rows(spark.table("orders_now")))
    after = {(1, 11, None)}
    assert found == [{(1, 10, None), (2, 20, None)}, after, after, after, {*after, (3, 30, None)}]


@pytest.mark.minutes
def test_batches_are_purged_by_the_log_alone_some_time_after_their_merge(
    spark: SparkSession, make: Make
) -> None:
    patient = make(keep_merged_for=timedelta(hours=1))
    patient.append(frame(spark, [Event(1, 1, 10)]))
    patient.rematerialize()
    assert patient.purge() == 0

    table = make(keep_merged_for=timedelta(0))
    table.append(frame(spark, [Event(1, 1, 10)]))
    table.append(frame(spark, [Event(1, 2, 20)]))
    table.rematerialize()
    table.append(frame(spark, [Event(1, 3, 30)]))
    assert table.purge() == 2
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table.changes.path_or_name}`")
    purge = history.where("operationParameters.predicate IS NOT NULL")
    [purged] = purge.select("operationMetrics").collect()
    assert purged.operationMetrics["numRemovedFiles"] == "2"
    assert purged.operationMetrics["numFiles"] == "0"
    assert (table.pending().batches, rows(table.read())) == (1, {(1, 30, None)})


@pytest.mark.minutes
def test_what_is_pending_is_read_from_the_log(spark: SparkSession, make: Make) -> None:
    table = make()
    for number in range(3):
        table.append(frame(spark, [Event(1, number, 10), Event(2, number, 20)]))
    pending = table.pending()
    assert (pending.batches, pending.rows) == (3, 6)
    assert pending.size_in_bytes > 0
    assert timedelta(0) < pending.age < timedelta(hours=1)
    table.rematerialize()
    assert (table.pending().batches, table.pending().rows, table.pending().oldest) == (0, 0, None)


@pytest.mark.parametrize("columns", [1, pytest.param(40, marks=pytest.mark.minutes)])
def test_changes_become_no_younger_when_their_files_are_rewritten(
    spark: SparkSession, tmp_path: Path, columns: int
) -> None:
    table = MergeOnReadTable(spark, str(tmp_path / "base"), keys=["k"], sequence_by="c0")
    made = spark.range(100).selectExpr("id AS k", *[f"id AS c{n}" for n in range(columns)])
    table.append(made.repartition(2))
    oldest = table.pending().oldest
    table.changes.compact()
    newest = table.changes.history().first()
    assert newest is not None
    assert newest.operation == "OPTIMIZE"
    assert table.pending().oldest == oldest


@pytest.mark.minutes
def test_conditions_of_keys_reach_both_sides_and_no_others_do(
    spark: SparkSession, make: Make
) -> None:
    table = make()
    table.append(frame(spark, [Event(k, 1, k) for k in range(1, 5)]))
    table.rematerialize()
    table.append(frame(spark, [Event(1, 2, 9), Event(2, 2, 2, "x"), Event(7, 2, 9)]))
    assert rows(table.read(where="k IN (1, 3, 7)")) == {(1, 9, None), (3, 3, None), (7, 9, None)}
    # A condition on what changes: the old row of 1 has v = 1, and must not come back.
    assert rows(table.read().where("v = 1")) == set()
    assert rows(table.read().where("v = 9")) == {(1, 9, None), (7, 9, None)}
    with pytest.raises(StatementError, match="v"):
        table.read(where="v = 1")


@pytest.mark.minutes
def test_a_stream_is_appended_exactly_once_also_after_a_restart(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    table = make()
    landing = tmp_path / "landing"
    checkpoint = str(tmp_path / "checkpoint")

    def run() -> None:
        stream = spark.readStream.schema(SCHEMA).json(str(landing))
        table.ingest(stream, name="orders", checkpoint=checkpoint).awaitTermination()

    frame(spark, [Event(1, 1, 10)]).coalesce(1).write.json(str(landing))
    run()
    # As after a crash between the append and the stream's own record of the batch.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    run()
    frame(spark, [Event(1, 2, 20)]).coalesce(1).write.mode("append").json(str(landing))
    run()
    assert (table.pending().batches, table.pending().rows) == (2, 2)
    assert rows(table.read()) == {(1, 20, None)}


@pytest.mark.minutes
def test_a_stream_that_met_another_writer_may_be_tried_again(
    spark: SparkSession, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflicting(*_: Any) -> None:
        raise CommitConflictError("another one was first.", table="t", operation="append")

    table = make()
    landing = str(tmp_path / "landing")
    frame(spark, [Event(1, 1, 10)]).write.json(landing)
    monkeypatch.setattr(Changeset, "append", conflicting)
    stream = spark.readStream.schema(SCHEMA).json(landing)
    query = table.ingest(stream, name="s", checkpoint=str(tmp_path / "checkpoint"))
    with (
        pytest.raises(CommitConflictError, match="another one was first"),
        translated("t", operation="ingesting"),
    ):
        query.awaitTermination()


@pytest.mark.minutes
def test_partitions_in_which_nothing_changes_are_not_written(
    spark: SparkSession, make: Make
) -> None:
    table = make(partition_by=["w"])
    table.append(frame(spark, [Event(k, 1, k, w) for k, w in enumerate("aabbcc")]))
    table.rematerialize()
    before = {row.path for row in table.base.files().where("partitionValues.w = 'c'").collect()}
    table.append(frame(spark, [Event(0, 2, 100, "a"), Event(9, 2, 9, "b"), delete(1, 2)]))
    done = table.rematerialize("replace_where")
    assert done is not None
    after = {row.path for row in table.base.files().where("partitionValues.w = 'c'").collect()}
    assert before == after
    assert rows(table.read_optimized()) == {
        *{(0, 100, "a"), (9, 9, "b")},
        *{(k, k, w) for k, w in enumerate("aabbcc") if k not in (0, 1)},
    }


@pytest.mark.minutes
def test_the_strategy_is_chosen_by_how_much_changes(spark: SparkSession, make: Make) -> None:
    table = make()
    table.append(frame(spark, [Event(k, 1, k) for k in range(100)]))
    chosen = [table.rematerialize()]  # into an empty base
    table.append(frame(spark, [Event(1, 2, 0)]))
    chosen.append(table.rematerialize())
    table.append(frame(spark, [Event(k, 3, 0) for k in range(90)]))
    chosen.append(table.rematerialize())
    assert [each.strategy if each else None for each in chosen] == [
        "overwrite",
        "merge",
        "overwrite",
    ]
    assert table.rematerialize() is None


@pytest.mark.minutes
def test_changes_too_big_for_a_broadcast_are_joined_with_a_shuffle(
    spark: SparkSession, make: Make
) -> None:
    small, big = make(), make(broadcast_limit_bytes=1_000)
    for table in (small, big):
        events = spark.range(20_000).selectExpr(
            "CAST(id AS INT) AS k",
            "1 AS v",
            "'a' AS w",
            "1 AS seq",
            "'upsert' AS op",
            "CAST(NULL AS ARRAY<STRING>) AS present",
        )
        table.append(events)
        table.rematerialize()
        table.append(events)  # again: not newer than what is in the base
        assert table.read().count() == 20_000
    plans = [t.read()._jdf.queryExecution().toString() for t in (small, big)]
    assert ["Join FullOuter" in plan for plan in plans] == [False, True]


def test_events_without_key_or_sequence_append_nothing(spark: SparkSession, make: Make) -> None:
    table = make()
    with pytest.raises(SourceError, match="no sequence"):
        table.append(frame(spark, [Event(1, None, 10)]))
    assert not table.changes.exists()
