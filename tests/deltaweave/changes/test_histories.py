"""`apply_changes` to a table of histories: late events split versions, whatever the order."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.changes.events import read_events
from deltaweave.changes.history import END, START
from deltaweave.changes.side_tables import SideTable
from deltaweave.errors import StatementError
from deltaweave.identifiers import column
from tests.deltaweave.changes.test_current_rows import frame
from tests.support.drawn_events import (
    DELETES,
    DRAWN,
    JOBS,
    NAMES,
    NUM_REPLICAS,
    PARTIAL,
    PARTIAL_UPSERTS,
    PLAIN,
    UPSERTS,
    WHOLE,
    Event,
    Names,
    Replicas,
    Row,
    batches_of,
    delete,
    replicas,
)
from tests.support.history_model import possible_versions, versions

pytestmark = pytest.mark.minutes

# A version is (k, v, w, start, end).
Apply = Callable[..., set[Row]]


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


ARGUMENTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "tracks v": {"track_history_column_list": ["v"]},
    "partial": PARTIAL,
}


@DRAWN
@given(drawn=replicas())
def test_tied_and_partial_events_of_several_jobs_do_so_too(
    apply: Apply, tmp_path: Path, drawn: Replicas
) -> None:
    """Which of tied events wins is arbitrary, and the same for each replica of a history."""
    path = tempfile.mkdtemp(dir=tmp_path)
    for job, batch in drawn.batches:
        rows = apply(batch, table=path, **ARGUMENTS[job])
    found: dict[int, set[Row]] = defaultdict(set)
    for k, *version in rows:
        found[k].add(tuple(version))
    tracked = JOBS[drawn.batches[-1][0]]
    for number, history in enumerate(drawn.histories):
        of_replicas = [found[number * NUM_REPLICAS + n] for n in range(NUM_REPLICAS)]
        assert of_replicas[0] in possible_versions(history, tracked), history
        assert of_replicas == of_replicas[:1] * NUM_REPLICAS, history


OLD = {"late_by": timedelta(0)}
"""Makes all that was remembered before old enough to be forgotten."""
Step = tuple[str, dict[str, Any], dict[str, list[Event]]]

# By table: its batches (the job, further arguments, and the events of each case), and the versions
# (v, w, start, end) of each case.
KEPT: dict[str, tuple[list[Step], dict[str, set[Row]]]] = {
    "a version's row": (
        [
            ("whole", {}, {"nothing": [Event(0, 1, 1, "a")], "in between": [Event(0, 1, 1, "a")]}),
            ("tracks v", {}, {"untracked": [Event(0, 1, 1, "a"), Event(0, 3, 1, "c")]}),
            (
                "partial",
                {},
                {
                    "nothing": [Event(0, 1, present=())],
                    "untracked": [Event(0, 1, present=())],
                    "in between": [Event(0, 1, present=()), Event(0, 5, 5, present=("v",))],
                    "by columns": [Event(0, 2, 2, present=("v",))],
                },
            ),
            (
                "partial",
                {},
                {
                    "in between": [Event(0, 3, w="c", present=("w",))],
                    "by columns": [Event(0, 2, w="b", present=("w",))],
                },
            ),
            ("whole", {}, {"by columns": [Event(0, 1, 1, "a")]}),
        ],
        {
            # An event that sets nothing leaves the version of its sequence as it is.
            "nothing": {(1, "a", 1, None)},
            # The version from 1 had w = c as long as w was not tracked.
            "untracked": {(1, "a", 1, 3), (1, "c", 3, None)},
            # The event at 5 keeps what the one at 3 sets, not what the version from 1 had.
            "in between": {(1, "a", 1, 3), (1, "c", 3, 5), (5, "c", 5, None)},
            # At 2, each event sets one column, and neither sets what the other does.
            "by columns": {(1, "a", 1, 2), (2, "b", 2, None)},
        },
    ),
    "its first event": (
        [
            ("tracks v", {}, {"late": [Event(0, 1, 1, "a")], "idle": [Event(0, 1, 1, "a")]}),
            ("tracks v", OLD, {"late": [Event(0, 5, 1, "e")]}),
            ("tracks v", {}, {"late": [Event(0, 3, 3, "c")]}),
        ],
        {
            # The event at 5 changes w in the version from 1, so the event at 1 is needed for 3.
            "late": {(1, "a", 1, 3), (3, "c", 3, 5), (1, "e", 5, None)},
            "idle": {(1, "a", 1, None)},
        },
    ),
    "the last old event": (
        [
            ("tracks v", {}, {"late": [Event(0, 1, 1, "a")]}),
            ("tracks v", OLD, {"late": [Event(0, 3, 1, "c")]}),
            ("tracks v", OLD, {"late": [Event(0, 7, 1, "g")]}),
            ("tracks v", {}, {"late": [Event(0, 5, 5, "e")]}),
        ],
        # No event is older than the one at 3, which the version from 1 no longer shows.
        {"late": {(1, "c", 1, 5), (5, "e", 5, 7), (1, "g", 7, None)}},
    ),
    "the old events of its sequence": (
        [
            (
                "partial",
                {},
                {
                    "tied": [Event(0, 1, 1, present=("v",))],
                    "columns": [Event(0, 1, 1, present=("v",)), Event(0, 2, w="b", present=("w",))],
                },
            ),
            (
                "partial",
                OLD,
                {
                    "tied": [Event(0, 1, w="a", present=("w",))],
                    "columns": [Event(0, 4, w="d", present=("w",))],
                },
            ),
            (
                "partial",
                {},
                {
                    "tied": [Event(0, 2, 2, present=("v",))],
                    "columns": [Event(0, 3, w="c", present=("w",))],
                },
            ),
        ],
        {
            # Both events at 1 are needed as long as one of them is.
            "tied": {(1, "a", 1, 2), (2, "a", 2, None)},
            "columns": {(1, None, 1, 2), (1, "b", 2, 3), (1, "c", 3, 4), (1, "d", 4, None)},
        },
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_a_version_keeps_what_a_later_batch_does_not_set(
    apply: Apply, tmp_path: Path, what: str
) -> None:
    steps, expected = KEPT[what]
    keys = {case: k for k, case in enumerate(expected)}
    found: dict[str, set[Row]] = {case: set() for case in expected}
    for job, further, cases in steps:
        batch = [replace(event, k=keys[case]) for case in cases for event in cases[case]]
        table = apply(batch, table=str(tmp_path / "t"), **ARGUMENTS[job], **further)
    names = list(keys)
    for k, *version in table:
        found[names[k]].add(tuple(version))
    assert found == expected


# Two tied events and a later one, by job, in each order and in batches of their own or not.
TIED_ORDERS: Sequence[Sequence[tuple[str, Sequence[int]]]] = [
    [("whole", (0, 1)), ("tracks v", (2,))],
    [("whole", (0,)), ("tracks v", (1,)), ("tracks v", (2,))],
    [("whole", (1,)), ("tracks v", (0,)), ("tracks v", (2,))],
    [("whole", (0,)), ("whole", (1,)), ("partial", (2,)), ("whole", (0,))],
    [("partial", (2,)), ("whole", (1,)), ("tracks v", (0,))],
]


def test_the_same_tied_event_wins_whatever_batches_follow(apply: Apply, tmp_path: Path) -> None:
    """Of several pairs, because the digest of values decides."""
    numbers = range(8)
    winners = []
    for number, batches in enumerate(TIED_ORDERS):
        for job, which in batches:
            events = [
                [Event(n, 1, n, "a"), Event(n, 1, n, "b"), Event(n, 3, n + 1, "c")][of]
                for n in numbers
                for of in which
            ]
            rows = apply(events, table=str(tmp_path / str(number)), **ARGUMENTS[job])
        winners.append({k: w for k, _, w, start, _ in rows if start == 1})
    assert winners == winners[:1] * len(TIED_ORDERS)
    assert set(winners[0].values()) == {"a", "b"}


def test_a_version_that_alone_shows_its_event_stays(
    spark: SparkSession, apply: Apply, tmp_path: Path
) -> None:
    path, keys = str(tmp_path / "t"), range(1, 9)
    apply([Event(k, 4, 0, "a") for k in keys], table=path)
    apply([Event(k, 5, 0, "a") for k in keys], table=path)  # begins no version, and is remembered
    before = apply([Event(k, 5, k, "a") for k in keys], table=path)
    began = {row[0] for row in before if row[3] == 5}
    assert 0 < len(began) < len(keys), "both of two tied events win, of other keys each"
    # Earlier releases and a concurrent batch remember only the tied event that lost.
    shown = f"_cdc_values.v <> 0 AND k IN ({', '.join(map(str, began))})"
    spark.sql(f"DELETE FROM delta.`{path}/_deltaweave_events` WHERE {shown}")
    after = apply([Event(k, 9, 99, "a") for k in keys], table=path)
    ended = {(k, v, w, start, 9 if end is None else end) for k, v, w, start, end in before}
    assert after == ended | {(k, 99, "a", 9, None) for k in keys}


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


@pytest.mark.parametrize("differ_in", ["tie", "an untracked column"])
def test_the_same_zero_is_shown_in_any_order(
    spark: SparkSession, tmp_path: Path, differ_in: str
) -> None:
    path, one, other = str(tmp_path / "t"), (1, "0.0"), (1 if differ_in == "tie" else 2, "-0.0")
    # By key: its batches.
    orders = {1: ([one, other], []), 2: ([one], [other]), 3: ([other], [one])}
    for number in range(2):
        events = [(k, *event) for k, batches in orders.items() for event in batches[number]]
        rows = spark.createDataFrame(events, "k INT, at INT, v STRING")
        deltaweave.apply_changes(
            spark,
            path,
            rows.selectExpr("k", "at", "double(v) AS v", "named_struct('f', array(float(v))) AS l"),
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=2,
            track_history_column_list=None if differ_in == "tie" else [],
        )
    found = Table(spark, path).read().selectExpr("k", "string(v)", "string(l.f[0])", START, END)
    shown = sorted(tuple(row) for row in found.collect())
    assert shown == [(k, *shown[0][1:]) for k in orders]
    if differ_in != "tie":
        assert shown[0] == (1, "-0.0", "-0.0", 1, None)


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


@pytest.mark.parametrize("moment", ["settle", "create_with"])
def test_columns_that_come_while_a_batch_is_applied_lose_no_version(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = str(tmp_path / "t")

    def applied(*rows: tuple[int, ...], columns: str = "k INT, at INT, v INT") -> None:
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame(list(rows), columns),
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=2,
        )

    applied((1, 10, 1))
    original = getattr(SideTable, moment)

    def after_another(*arguments: Any) -> Any:
        monkeypatch.undo()
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (x INT)")
        applied((1, 30, 2, 7), (1, 40, 2, 8), columns="k INT, at INT, v INT, x INT")
        return original(*arguments)

    monkeypatch.setattr(SideTable, moment, after_another)
    applied((1, 20, 1))
    found = Table(spark, path).read().select("v", "x", START, END).collect()
    assert {tuple(row) for row in found} == {(1, None, 10, 30), (2, 7, 30, 40), (2, 8, 40, None)}


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


# By step: the tracked columns (None for all), and events by case: (at, a, b), or a delete's at.
STEPS: list[tuple[Sequence[str] | None, dict[str, list[tuple[int, ...]]]]] = [
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
    for tracked, batch in STEPS:
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
