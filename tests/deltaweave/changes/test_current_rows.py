"""`apply_changes` to a table of current rows: the same whatever the order, batches and repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.changes.side_tables import SideTable, tombstones
from deltaweave.errors import SourceError, StatementError
from deltaweave.identifiers import column
from tests.support.drawn_events import (
    DELETES,
    DRAWN,
    NAMES,
    PARTIAL,
    PARTIAL_UPSERTS,
    PLAIN,
    SCHEMA,
    TRUNCATES,
    UPSERTS,
    WHOLE,
    Event,
    Names,
    Row,
    batches_of,
    delete,
    truncate,
)


def frame(spark: SparkSession, batch: Sequence[Event], names: Names = PLAIN) -> DataFrame:
    rows = [event.row(names) for event in batch]
    return spark.createDataFrame(rows, SCHEMA).toDF(
        names.k, names.v, names.w, "seq", "op", "present"
    )


@pytest.fixture
def apply(spark: SparkSession, tmp_path: Path) -> Callable[..., set[Row]]:
    """Applies batches to a table of its own; returns its rows (k, v, w)."""
    numbers = itertools.count()

    def applied(
        *batches: Sequence[Event], table: str | None = None, names: Names = PLAIN, **arguments: Any
    ) -> set[Row]:
        target = table or str(tmp_path / f"table-{next(numbers)}")
        for batch in batches:
            deltaweave.apply_changes(
                spark,
                target,
                frame(spark, batch, names),
                keys=[names.k],
                sequence_by="seq",
                apply_as_deletes="op = 'delete'",
                apply_as_truncates="op = 'truncate'",
                **{**WHOLE, **arguments},
            )
        found = Table(spark, target).read().select(*map(column, (names.k, names.v, names.w)))
        rows = [tuple(row) for row in found.collect()]
        assert len(rows) == len(set(rows))
        return set(rows)

    return applied


def current_rows(events: Sequence[Event]) -> set[Row]:
    """What the events make of a table: each column of a key by its newest event that is no delete.

    Where an upsert and a delete have the same sequence, the delete is the later.
    """
    truncated = max((e.seq or 0 for e in events if e.op == "truncate"), default=-1)
    rows = set()
    for k in {event.k for event in events if event.op != "truncate"}:
        of_key = [event for event in events if event.k == k]
        deleted = max((e.seq or 0 for e in of_key if e.op == "delete"), default=-1)
        gone = max(deleted, truncated)
        alive = sorted(
            (e for e in of_key if e.op == "upsert" and (e.seq or 0) > gone),
            key=lambda e: e.seq or 0,
        )
        if alive:
            values: dict[str, Any] = {"v": None, "w": None}
            for event in alive:
                spoken = ("v", "w") if event.present is None else event.present
                values |= {name: getattr(event, name) for name in spoken}
            rows.add((k, values["v"], values["w"]))
    return rows


@pytest.mark.minutes
@DRAWN
@given(batches=batches_of(UPSERTS, UPSERTS, DELETES, TRUNCATES), names=NAMES)
def test_any_order_batches_and_repeats_give_the_same_rows(
    apply: Callable[..., set[Row]], batches: list[list[Event]], names: Names
) -> None:
    assert apply(*batches, names=names) == current_rows(
        [event for batch in batches for event in batch]
    )


@pytest.mark.minutes
@DRAWN
@given(batches=batches_of(PARTIAL_UPSERTS, PARTIAL_UPSERTS, DELETES, TRUNCATES), names=NAMES)
def test_events_of_some_columns_do_so_too(
    apply: Callable[..., set[Row]], batches: list[list[Event]], names: Names
) -> None:
    rows = apply(*batches, names=names, **PARTIAL)
    assert rows == current_rows([event for batch in batches for event in batch])


def test_late_events_and_deletes(apply: Callable[..., set[Row]]) -> None:
    """Each key tells of one thing."""
    rows = apply(
        [Event(1, 2, 20), Event(2, 1, 10), delete(3, 3), Event(4, 3, 30), delete(5, 3)],
        [Event(1, 1, 10), delete(2, 3), Event(3, 2, 20), delete(4, 3), Event(5, 3, 30)],
        [Event(1, 2, 20), Event(2, 2, 20), Event(3, 4, 40)],
    )
    assert rows == {
        # A late event changes nothing, nor does one that comes again.
        (1, 20, None),
        # 2: An upsert that is older than the delete, and comes after it, brings nothing back.
        # 3: Nor where the delete came before any event of its key; a newer one does.
        (3, 40, None),
        # 4 and 5: Of the same sequence, the delete is the later, whichever came first.
    }


@pytest.mark.minutes
def test_an_emptied_table_loses_what_is_older_also_where_it_comes_later(
    apply: Callable[..., set[Row]],
) -> None:
    rows = apply(
        [Event(1, 1, 10), Event(2, 5, 50)], [truncate(3)], [Event(3, 2, 20), Event(1, 4, 40)]
    )
    assert rows == {(1, 40, None), (2, 50, None)}


@pytest.mark.minutes
def test_a_tie_of_upserts_falls_the_same_way_in_any_order(apply: Callable[..., set[Row]]) -> None:
    one, two, three = ((1, "a"), (2, "b"), (None, None))
    orders = {1: (one, two, three), 2: (three, two, one), 3: (two, three, one)}
    batches = [[Event(k, 5, *order[n]) for k, order in orders.items()] for n in range(3)]
    together = [Event(4, 5, *values) for values in (one, two, three)]
    found = apply(*batches, together)
    assert {k for k, *_ in found} == {1, 2, 3, 4}
    assert len({(v, w) for _, v, w in found}) == 1


@pytest.mark.minutes
def test_a_null_that_is_meant_differs_from_a_column_that_is_missing(
    apply: Callable[..., set[Row]],
) -> None:
    rows = apply(
        [Event(1, 1, 10, "a"), Event(2, 1, 10, "a"), Event(3, 1, 10, "a")],
        [Event(1, 2, None, "b", present=("w",)), Event(2, 2, None, "b", present=("v",))],
        [Event(3, 2, None, "b")],  # sets all
        **PARTIAL,
    )
    assert rows == {(1, 10, "b"), (2, None, "a"), (3, None, "b")}


@pytest.mark.minutes
def test_two_streams_fill_a_row_each_by_a_sequence_of_its_own(
    apply: Callable[..., set[Row]],
) -> None:
    def of_v(seq: int, v: int) -> Event:
        return Event(1, seq, v, present=("v",))

    def of_w(seq: int, w: str) -> Event:  # whose sequences are always above those of v
        return Event(1, seq, None, w, present=("w",))

    rows = apply(
        [of_w(1000, "x")],
        [of_v(5, 50)],
        [of_v(3, 30), of_w(900, "old")],
        [of_w(1001, "y")],
        **PARTIAL,
    )
    assert rows == {(1, 50, "y")}


@pytest.mark.minutes
def test_batches_applied_at_once_are_all_applied(
    apply: Callable[..., set[Row]], tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    apply([Event(k, 1, 1) for k in range(4)], table=path)
    batches = [
        [Event(0, 2, 20), Event(1, 5, 50), delete(2, 3), Event(5, 1, 1)],
        [Event(0, 4, 40), Event(1, 3, 30), Event(2, 2, 20), delete(3, 2), delete(5, 2)],
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda batch: apply(batch, table=path), batches))
    assert apply(table=path) == {(0, 40, None), (1, 50, None)}


@pytest.mark.minutes
def test_nulls_of_updates_can_be_ignored(apply: Callable[..., set[Row]]) -> None:
    batches = [[Event(1, 1, 10, None)], [Event(1, 3, 30, None)], [Event(1, 2, 20, "b")]]
    # At 3 nothing was said of w, so that of 2 holds, though it came last.
    assert apply(*batches, ignore_null_updates=True) == {(1, 30, "b")}


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Event(1, None, 10), "1 of 2 events cannot be applied: k=1 at None has no sequence"),
        (
            Event(None, 7, 10),
            "1 of 2 events cannot be applied: k=None at 7 has a null in its key k",
        ),
    ],
    ids=["sequence", "key"],
)
def test_an_event_without_key_or_sequence_is_refused_before_any_write(
    apply: Callable[..., set[Row]],
    spark: SparkSession,
    tmp_path: Path,
    event: Event,
    problem: str,
) -> None:
    with pytest.raises(SourceError, match=problem):
        apply([Event(2, 1, 20), event], table=str(tmp_path / "t"))
    assert not Table(spark, str(tmp_path / "t")).exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"keys": []}, "keys is a list of one or more columns"),
        ({"keys": ["nope"]}, "the source has no column nope"),
        ({"sequence_by": "sq"}, "sq"),
        ({"sequence_by": "map(1, 2)"}, "values of the type map<int,int> have no order"),
        ({"column_list": ["k"], "except_column_list": ["v"]}, "exclude each other"),
        ({"stored_as_scd_type": 3}, "stored_as_scd_type is '3'; known are 1, 2"),
    ],
    ids=["no-keys", "unknown-key", "unknown-sequence", "unordered", "both-lists", "type"],
)
def test_arguments_that_do_not_fit_are_refused(
    spark: SparkSession, tmp_path: Path, arguments: Mapping[str, Any], problem: str
) -> None:
    source = spark.createDataFrame([Event(1, 1).row()], SCHEMA)
    wanted: dict[str, Any] = {"keys": ["k"], "sequence_by": "seq", **arguments}
    with pytest.raises((StatementError, SourceError), match=problem):
        deltaweave.apply_changes(spark, str(tmp_path / "t"), source, **wanted)
    assert not Table(spark, str(tmp_path / "t")).exists()


@pytest.mark.minutes
def test_columns_that_the_table_lacks_are_refused_by_name(
    apply: Callable[..., set[Row]], tmp_path: Path
) -> None:
    table = str(tmp_path / "t")
    apply([Event(1, 1, 10)], table=table)
    with pytest.raises(StatementError, match="the table has no column op") as failed:
        apply([Event(1, 2, 20)], table=table, except_column_list=["seq", "present"])
    assert "ADD COLUMNS (op string)" in str(failed.value)


@pytest.mark.minutes
def test_a_table_that_was_there_before_takes_events_over_its_rows(
    apply: Callable[..., set[Row]], spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    Table(spark, path).create_if_missing("k INT, v INT, w STRING")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 0, 'a'), (2, 0, 'a'), (3, 0, 'a')")
    spark.sql(
        f"ALTER TABLE delta.`{path}` ADD COLUMNS (_cdc_sequence STRUCT<at: INT, tie: BIGINT>)"
    )
    assert apply([Event(1, 1, 10), delete(2, 1)], table=path) == {(1, 10, None), (3, 0, "a")}


@pytest.mark.minutes
@pytest.mark.minutes
def test_a_delete_removes_older_values_of_columns_that_come_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, columns = str(tmp_path / "t"), "k INT, at INT, op STRING, v INT"

    def applied(*rows: tuple[object, ...], columns: str = columns) -> None:
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame(list(rows), columns),
            keys=["k"],
            sequence_by="at",
            apply_as_deletes="op = 'delete'",
            ignore_null_updates=True,
            except_column_list=["at", "op"],
        )

    applied((1, 1, "upsert", 1))
    settle = SideTable.settle

    def after_another(side_table: SideTable) -> Any:
        monkeypatch.undo()
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (x INT)")
        events = [(1, 10, "upsert", None, 7), (1, 15, "upsert", 2, None)]
        applied(*events, columns=f"{columns}, x INT")
        return settle(side_table)

    monkeypatch.setattr(SideTable, "settle", after_another)
    applied((1, 12, "delete", None))
    assert [tuple(row) for row in Table(spark, path).read().select("v", "x").collect()] == [
        (2, None)
    ]


def test_deletes_are_forgotten_when_no_older_event_can_come(
    apply: Callable[..., set[Row]],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tombstones, "TIDIED_EVERY", 1)
    path = str(tmp_path / "t")
    soon = {"table": path, "late_by": timedelta(0)}
    apply([delete(1, 5), delete(2, 5)], **soon)
    apply([delete(3, 5)], **soon)  # which forgets the others
    remembered = spark.read.format("delta").load(f"{path}/_deltaweave_tombstones")
    assert [row.k for row in remembered.collect()] == [3]
    assert apply([Event(1, 4, 40), Event(3, 4, 40)], **soon) == {(1, 40, None)}
    # A setting under which they cannot be forgotten leaves the batch as it is.
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        assert apply([delete(1, 6)], **soon) == set()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


@pytest.mark.minutes
def test_a_batch_that_changes_nothing_commits_nothing(
    apply: Callable[..., set[Row]], spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    batch = [Event(1, 2, 20), delete(2, 2)]
    apply(batch, table=path)
    version = Table(spark, path).version()
    apply(batch, [Event(1, 1, 10)], [delete(2, 1)], table=path)
    assert Table(spark, path).version() == version
