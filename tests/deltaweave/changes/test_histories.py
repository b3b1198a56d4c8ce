"""`apply_changes` to a table of histories: late events split versions, whatever the order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.changes.events import read_events
from deltaweave.changes.history import END, START
from deltaweave.errors import StatementError
from deltaweave.identifiers import column
from tests.support.drawn_events import (
    DELETES,
    DRAWN,
    NAMES,
    PARTIAL,
    PARTIAL_UPSERTS,
    PLAIN,
    SCHEMA,
    UPSERTS,
    WHOLE,
    Event,
    Names,
    Row,
    batches_of,
    delete,
)

pytestmark = pytest.mark.minutes

# A version is (k, v, w, start, end).
Apply = Callable[..., set[Row]]


def frame(spark: SparkSession, batch: Sequence[Event], names: Names = PLAIN) -> DataFrame:
    rows = [event.row(names) for event in batch]
    return spark.createDataFrame(rows, SCHEMA).toDF(
        names.k, names.v, names.w, "seq", "op", "present"
    )


@pytest.fixture
def apply(spark: SparkSession, tmp_path: Path) -> Apply:
    """Applies batches to a table of its own; returns its versions."""
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
                stored_as_scd_type=2,
                **{**WHOLE, **arguments},
            )
        columns = [names.k, names.v, names.w, "__START_AT", "__END_AT"]
        found = Table(spark, target).read().select(*map(column, columns))
        rows = [tuple(row) for row in found.collect()]
        assert len(rows) == len(set(rows))
        return set(rows)

    return applied


def versions(events: Sequence[Event], tracked: Sequence[str] = ("v", "w")) -> set[Row]:
    """The histories that the events make, applied once each in the order of their sequences."""
    found: set[Row] = set()
    for k in {event.k for event in events}:
        of_key = {(e.seq, e.op): e for e in events if e.k == k}
        deletes = {seq for seq, op in of_key if op == "delete"}
        current: dict[str, Any] | None = None
        for (seq, op), event in sorted(of_key.items()):
            if op == "delete":
                if current is not None:
                    found.add((k, current["v"], current["w"], current["start"], seq))
                current = None
            elif seq not in deletes:  # of the same sequence, the delete is the later
                spoken = ("v", "w") if event.present is None else event.present
                before = current or {"v": None, "w": None}
                values = {**before, **{name: getattr(event, name) for name in spoken}}
                if current is None or any(values[c] != current[c] for c in tracked):
                    if current is not None:
                        found.add((k, current["v"], current["w"], current["start"], seq))
                    values["start"] = seq
                current = values
        if current is not None:
            found.add((k, current["v"], current["w"], current["start"], None))
    return found


def flat(batches: Sequence[Sequence[Event]]) -> list[Event]:
    return [event for batch in batches for event in batch]


@DRAWN
@given(batches=batches_of(UPSERTS, UPSERTS, DELETES), names=NAMES)
def test_any_order_batches_and_repeats_give_the_same_versions(
    apply: Apply, batches: list[list[Event]], names: Names
) -> None:
    assert apply(*batches, names=names) == versions(flat(batches))


@DRAWN
@given(batches=batches_of(PARTIAL_UPSERTS, PARTIAL_UPSERTS, DELETES), names=NAMES)
def test_events_of_some_columns_do_so_too(
    apply: Apply, batches: list[list[Event]], names: Names
) -> None:
    assert apply(*batches, names=names, **PARTIAL) == versions(flat(batches))


@DRAWN
@given(batches=batches_of(UPSERTS, UPSERTS, DELETES), names=NAMES)
def test_so_do_versions_that_begin_with_some_columns_alone(
    apply: Apply, batches: list[list[Event]], names: Names
) -> None:
    found = apply(*batches, names=names, track_history_column_list=[names.v])
    assert found == versions(flat(batches), tracked=["v"])


def test_an_equal_value_that_is_not_the_same_begins_a_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = spark.sql(
        "SELECT 1 AS k, at, double(v) AS v, array(double(v)) AS l "
        "FROM VALUES (1, '0.0'), (2, '-0.0'), (3, '-0.0'), (4, 'NaN'), (5, 'NaN') AS t(at, v)"
    )
    deltaweave.apply_changes(
        spark,
        str(tmp_path / "t"),
        events,
        keys=["k"],
        sequence_by="at",
        except_column_list=["at"],
        stored_as_scd_type=2,
    )
    found = Table(spark, str(tmp_path / "t")).read()
    shown = found.selectExpr("string(v)", "string(l[0])", "__START_AT", "__END_AT")
    assert {tuple(row) for row in shown.collect()} == {
        ("0.0", "0.0", 1, 2),
        ("-0.0", "-0.0", 2, 4),
        ("NaN", "NaN", 4, None),
    }


def test_late_events_split_and_end_versions(apply: Apply) -> None:
    """Each key tells of one thing; the first batch is in order, the second late."""
    in_order = [
        *(Event(1, 1, 10), Event(1, 5, 50)),
        *(Event(2, 1, 10), Event(2, 5, 50)),
        *(Event(3, 1, 10), delete(3, 2), Event(3, 5, 50)),
        delete(4, 5),
        *(Event(5, 1, 10), Event(5, 5, 10)),
    ]
    late = [Event(1, 3, 30), delete(2, 3), Event(3, 3, 30), Event(4, 3, 30), delete(5, 3)]

    assert apply(in_order, late) == {
        # A late event splits the version in which it falls.
        *{(1, 10, None, 1, 3), (1, 30, None, 3, 5), (1, 50, None, 5, None)},
        # A late delete ends it, and leaves a gap.
        *{(2, 10, None, 1, 3), (2, 50, None, 5, None)},
        # A late event in a gap fills it up to the next version.
        *{(3, 10, None, 1, 2), (3, 30, None, 3, 5), (3, 50, None, 5, None)},
        # A delete before all else ends the version that comes after it and is older.
        *{(4, 30, None, 3, 5)},
        # At 5 nothing changed, and so nothing began, until a delete came between.
        *{(5, 10, None, 1, 3), (5, 10, None, 5, None)},
    }


def test_batches_applied_at_once_are_all_in_the_histories(apply: Apply, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    apply([Event(1, 1, 10), Event(2, 1, 10)], table=path)
    batches = [[Event(1, 3, 30), Event(2, 5, 10)], [Event(1, 2, 20), delete(2, 4)]]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda batch: apply(batch, table=path), batches))
    assert apply(table=path) == {
        *{(1, 10, None, 1, 2), (1, 20, None, 2, 3), (1, 30, None, 3, None)},
        # At 5 nothing changes, but that there was nothing any more.
        *{(2, 10, None, 1, 4), (2, 10, None, 5, None)},
    }


def test_columns_that_are_not_tracked_change_the_version_that_there_is(apply: Apply) -> None:
    batches = [[Event(1, 1, 10, "a")], [Event(1, 2, 10, "b")], [Event(1, 3, 11, "c")]]
    assert apply(*batches, track_history_except_column_list=["w"]) == {
        (1, 10, "b", 1, 3),
        (1, 11, "c", 3, None),
    }


def test_what_is_remembered_is_forgotten_when_no_older_event_can_come(
    apply: Apply, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    apply([delete(1, 5)], [delete(2, 5)], table=path, late_by=timedelta(0))
    remembered = Table(spark, f"{path}/_deltaweave_events")
    assert [row.k for row in remembered.read().collect()] == [2]
    # Also by a batch that leaves nothing to remember, once it is time.
    version = remembered.version()
    apply([Event(3, 1, 10)], table=path)
    assert remembered.version() == version
    apply([Event(4, 1, 10)], table=path, late_by=timedelta(0))
    assert remembered.read().isEmpty()


def test_a_batch_that_changes_nothing_commits_nothing(
    apply: Apply, spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    batch = [Event(1, 1, 10), Event(1, 2, 10), delete(1, 4), delete(1, 5)]
    apply(batch, table=path)
    version = Table(spark, path).version()
    apply(batch, batch[1:3], table=path)
    assert Table(spark, path).version() == version


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"apply_as_truncates": "true"}, "an event empties the table"),
        ({"track_history_column_list": ["nope"]}, "history cannot be tracked on nope"),
        (
            {"track_history_column_list": ["v"], "track_history_except_column_list": ["w"]},
            "exclude each other",
        ),
    ],
    ids=["truncate", "unknown", "both"],
)
def test_arguments_that_do_not_fit_are_refused(
    apply: Apply, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(StatementError, match=problem):
        apply([Event(1, 1)], **arguments)


@pytest.mark.parametrize("exists", [True, False])
def test_columns_that_come_while_a_batch_is_read_begin_versions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    path, schema = str(tmp_path / "t"), "k INT, at INT, a INT, b INT"

    def applied(row: tuple[int, ...], columns: str = schema) -> None:
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame([row], columns),
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=2,
        )

    def after_another(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        if exists:
            spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (c INT)")
        applied((1, 3, 1, 1, 5), f"{schema}, c INT")
        return read_events(*arguments, **named)

    if exists:
        applied((1, 1, 1, 1))
    monkeypatch.setattr("deltaweave.changes.apply.read_events", after_another)
    applied((1, 2, 1, 1))
    found = Table(spark, path).read().select("a", "b", "c", START, END).collect()
    began = 1 if exists else 2
    assert {tuple(row) for row in found} == {(1, 1, None, began, 3), (1, 1, 5, 3, None)}


# By job: the tracked columns (None for all), and events by case: (at, a, b), or a delete's at.
JOBS: list[tuple[Sequence[str] | None, dict[str, list[tuple[int, ...]]]]] = [
    (
        None,
        {
            "fewer": [(1, 1, 9)],
            "fewer, and more": [(1, 1, 9)],
            "fewer, late delete": [(1, 1, 1), (3, 1, 3)],
        },
    ),
    (
        ["a"],
        {
            "more": [(1, 1, 1), (5, 1, 9)],
            "more in later batches": [(1, 1, 1)],
            "fewer": [(5, 1, 7)],
            "fewer, and more": [(5, 1, 7)],
            "fewer, late delete": [(5, 2, 5)],
        },
    ),
    (
        ["a"],
        {"more in later batches": [(5, 1, 9)], "fewer": [(3, 2, 0)], "fewer, late delete": [(2,)]},
    ),
    (
        None,
        {"more": [(3, 1, 1)], "more in later batches": [(7, 1, 9)], "fewer, and more": [(3, 1, 0)]},
    ),
    (None, {"more in later batches": [(3, 1, 1)]}),
]
# The versions (a, b, start, end).
VERSIONS: dict[str, set[tuple[int | None, ...]]] = {
    # b = 9 came at 5, and the version from 1 had it, too, as long as b was not tracked.
    "more": {(1, 1, 1, 5), (1, 9, 5, None)},
    "more in later batches": {(1, 1, 1, 5), (1, 9, 5, None)},
    # The first event of the version from 1 was nowhere but in it when it got b = 7.
    "fewer": {(1, 9, 1, 3), (2, 0, 3, 5), (1, 7, 5, None)},
    "fewer, and more": {(1, 9, 1, 3), (1, 0, 3, 5), (1, 7, 5, None)},
    # What began a version at 3 began none while b was not tracked, until a delete came between.
    "fewer, late delete": {(1, 1, 1, 2), (1, 3, 3, 5), (2, 5, 5, None)},
}


def test_versions_are_of_their_events_whichever_columns_were_tracked(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of several keys, because the digest of a key's values decides between equal sequences."""
    path, numbers = str(tmp_path / "t"), range(4)
    for tracked, batch in JOBS:
        rows = [
            (case, n, at, *([10 * n + value for value in values] or [None, None]), not values)
            for case, events in batch.items()
            for n in numbers
            for at, *values in events
        ]
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame(rows, "c STRING, n INT, at INT, a INT, b INT, gone BOOLEAN"),
            keys=["c", "n"],
            sequence_by="at",
            apply_as_deletes="gone",
            except_column_list=["at", "gone"],
            stored_as_scd_type=2,
            track_history_column_list=tracked,
        )
    found: dict[tuple[str, int], set[tuple[int | None, ...]]] = defaultdict(set)
    for case, n, a, b, *times in Table(spark, path).read().collect():
        found[case, n].add((a - 10 * n, b - 10 * n, *times))
    assert found == {(case, n): VERSIONS[case] for case in VERSIONS for n in numbers}
