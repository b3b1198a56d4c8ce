"""Pairs that the driver finds by keys for merges that Spark writes, beside built-in MERGE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.engine import limits
from deltaweave.engine.backends import spark as spark_backend
from deltaweave.engine.backends.local import pairs as local_pairs
from deltaweave.engine.merge_run import MAX_MARKED_FRACTION, ON_DRIVER, REWRITE_IN_PLACE
from tests.builders import frame, write_table
from tests.merge_cases.case import (
    AMBIGUOUS,
    Layout,
    MergeCase,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)
from tests.support.on_driver import rows_of, spied
from tests.support.oracles import Stage, assert_outcome, assert_same_rows
from tests.support.settings import configured

UPSERT = (update_all(), insert_all())
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Keyed:
    """A merge, and whether the driver finds its pairs."""

    case: MergeCase
    here: bool = True


def _keyed(name: str, *, here: bool = True, **of_case: Any) -> Keyed:
    return Keyed(MergeCase(name=name, **{"clauses": UPSERT, **of_case}), here)


CASES = [
    _keyed(
        "upsert",
        target=[(1, 0), (2, 0), (3, 0), (4, 0)],
        source=[(2, 1), (4, 1), (9, 1)],
        files=2,
        # 2 and 4 are updated, 9 is new
        expected=[(1, 0), (2, 1), (3, 0), (4, 1), (9, 1)],
    ),
    _keyed(
        "several_rows_of_the_target_have_one_key",
        target=[(1, 0), (1, 1), (2, 2), (1, 3)],
        source=[(1, 9), (5, 9)],
        files=2,
        expected=[(1, 9), (1, 9), (2, 2), (1, 9), (5, 9)],
    ),
    _keyed(
        "two_keys",
        target=[(1, -7, 0), (1, 7, 0), (2, -7, 0), (2, 7, 0)],
        source=[(1, 7, 1), (2, -7, 1), (-2, 7, 1)],
        on="t.a = s.a AND t.b = s.b",
        target_schema="a INT, b BIGINT, v INT",
        source_schema="a INT, b BIGINT, v INT",
        files=2,
        # (2, 7) and (1, -7) have values that the source has, in other rows
        expected=[(1, -7, 0), (1, 7, 1), (2, -7, 1), (2, 7, 0), (-2, 7, 1)],
    ),
    _keyed(
        "doubles_as_keys",
        target=[(0, 0), (1, 0), (2, 0)],
        source=[(-0.0, 1), (1.5, 1), (2.0, 1)],
        clauses=(update({"v": "s.v"}), insert({"v": "s.v"})),
        target_schema="k BIGINT, v INT",
        source_schema="k DOUBLE, v INT",
        files=2,
        # no whole number equals 1.5
        expected=[(0, 1), (1, 0), (2, 1), (None, 1)],
    ),
    _keyed(
        "nulls_match_nothing",
        target=[(None, 0), (0, 0), (1, 0)],
        source=[(None, 1), (1, 1)],
        files=2,
        expected=[(None, 0), (0, 0), (1, 1), (None, 1)],
    ),
    _keyed(
        "nulls_match_nulls",
        target=[(None, 0), (0, 0), (1, 0)],
        source=[(None, 1), (1, 1)],
        on="t.k <=> s.k",
        files=2,
        # 0 stands for null where rows are compared, and does not equal it
        expected=[(None, 1), (0, 0), (1, 1)],
    ),
    _keyed(
        "days_and_numbers",
        target=[(date(2020, 2, 29), 1, 0), (date(2020, 3, 1), 1, 0), (date(1, 1, 1), 2, 0)],
        source=[(date(2020, 3, 1), 1, 1), (date(1, 1, 1), 2, 1), (date(9999, 12, 31), 1, 1)],
        on="t.d = s.d AND t.k = s.k",
        target_schema="d DATE, k TINYINT, v INT",
        source_schema="d DATE, k TINYINT, v INT",
        files=3,
        expected=[
            (date(2020, 2, 29), 1, 0),
            (date(2020, 3, 1), 1, 1),
            (date(1, 1, 1), 2, 1),
            (date(9999, 12, 31), 1, 1),
        ],
    ),
    _keyed(
        "partitions",
        target=[(1, 1, 0), (1, 2, 0), (2, 1, 0)],
        source=[(1, 2, 1), (2, 1, 1), (2, 2, 1)],
        on="t.p = s.p AND t.k = s.k",
        target_schema="p INT, k INT, v INT",
        source_schema="p INT, k INT, v INT",
        partition_by=("p",),
        expected=[(1, 1, 0), (1, 2, 1), (2, 1, 1), (2, 2, 1)],
    ),
    _keyed(
        "partitions_and_updates_that_read_the_target",
        target=[(1, 1, 5), (1, 2, 6), (2, 1, 7)],
        source=[(1, 2, 1), (2, 1, 1), (2, 2, 1)],
        clauses=(update({"v": "t.v + s.v"}), insert_all()),
        on="t.p = s.p AND t.k = s.k",
        target_schema="p INT, k INT, v INT",
        source_schema="p INT, k INT, v INT",
        partition_by=("p",),
        expected=[(1, 1, 5), (1, 2, 7), (2, 1, 8), (2, 2, 1)],
    ),
    _keyed(
        "a_path_that_is_spelled_in_several_ways",
        target=[(1, 5), (2, 6), (3, 7)],
        source=[(2, 1), (3, 1), (4, 1)],
        clauses=(update({"v": "t.v + s.v"}), insert_all()),
        files=2,
        folder="a b(c)+ü%20",
        expected=[(1, 5), (2, 7), (3, 8), (4, 1)],
        here=False,
    ),
    _keyed(
        "extremes",
        target=[(LOWEST, 0), (0, 0), (HIGHEST, 0)],
        source=[(LOWEST, 1), (HIGHEST, 1), (-1, 1)],
        target_schema="k BIGINT, v INT",
        source_schema="k BIGINT, v INT",
        files=2,
        expected=[(LOWEST, 1), (0, 0), (HIGHEST, 1), (-1, 1)],
        # no number of 64 bits tells a key's place from the lowest
        here=False,
    ),
    _keyed(
        "an_extreme",
        target=[(LOWEST, 0), (0, 0), (HIGHEST, 0), (HIGHEST - 1, 0)],
        source=[(HIGHEST, 1), (HIGHEST - 5, 1)],
        target_schema="k BIGINT, v INT",
        source_schema="k BIGINT, v INT",
        files=2,
        expected=[(LOWEST, 0), (0, 0), (HIGHEST, 1), (HIGHEST - 1, 0), (HIGHEST - 5, 1)],
    ),
    _keyed(
        "rows_that_were_deleted_before_match_nothing",
        target=[(1, 0), (2, 0), (3, 0), (4, 0)],
        source=[(2, 1), (3, 1)],
        setup=("DELETE FROM {target} WHERE k = 2",),
        expected=[(1, 0), (2, 1), (3, 1), (4, 0)],
    ),
    _keyed(
        "a_column_that_files_do_not_have",
        target=[(1, 0), (2, 0)],
        source=[(1, 1, 5), (None, 1, 6)],
        setup=("ALTER TABLE {target} ADD COLUMN w INT", "INSERT INTO {target} VALUES (3, 0, 5)"),
        on="t.w <=> s.w",
        source_schema="k INT, v INT, w INT",
        # rows of the older file have null, which 5 and 6 do not equal
        expected=[(1, 0, None), (2, 0, None), (1, 1, 5), (None, 1, 6)],
    ),
    _keyed(
        "updates_that_read_the_target",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(2, 1), (3, 2), (4, 3)],
        clauses=(update({"v": "t.v + s.v"}), insert_all()),
        files=2,
        expected=[(1, 10), (2, 21), (3, 32), (4, 3)],
    ),
    _keyed(
        "deletes",
        target=[(1, 0), (2, 0), (3, 0)],
        source=[(1, 1), (2, 1), (4, 1)],
        clauses=(delete(), insert_all()),
        files=2,
        expected=[(3, 0), (4, 1)],
    ),
    _keyed(
        "updates_and_inserts_of_other_values",
        target=[(1, 0), (2, 0)],
        source=[(2, 1), (3, 1)],
        clauses=(update({"v": "s.v"}), insert({"k": "s.k", "v": "-s.v"})),
        expected=[(1, 0), (2, 1), (3, -1)],
    ),
    _keyed(
        "every_row_of_a_file",
        target=[(1, 0), (2, 0), (3, 0), (4, 0)],
        source=[(1, 1), (2, 1), (4, 1)],
        files=2,
        expected=[(1, 1), (2, 1), (3, 0), (4, 1)],
    ),
    _keyed(
        "a_condition",
        target=[(1, 0), (2, 0)],
        source=[(1, 1), (2, 2)],
        clauses=(update({"v": "s.v"}, condition="s.v = 2"),),
        expected=[(1, 0), (2, 2)],
        here=False,
    ),
    _keyed(
        "texts",
        target=[("a", 0), ("b", 0)],
        source=[("b", 1)],
        target_schema="k STRING, v INT",
        source_schema="k STRING, v INT",
        expected=[("a", 0), ("b", 1)],
        here=False,
    ),
    _keyed(
        "several_source_rows_for_a_row",
        target=[(1, 0)],
        source=[(1, 1), (1, 2)],
        error=AMBIGUOUS,
        here=False,
    ),
]

LAYOUTS = {
    "copy on write": (Layout(), "false"),
    "in place": (Layout(), "true"),
    "in place with a feed": (Layout(feed=True), "true"),
    "vectors": (Layout(vectors=True), "auto"),
    "vectors and a feed": (Layout(vectors=True, feed=True), "auto"),
}


@pytest.fixture
def pairs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The pairs of merges whose source has more rows than the driver takes."""
    monkeypatch.setattr(limits, "MAX_LOCAL_ROWS", 0)
    with configured(spark, {ON_DRIVER: "true"}):
        yield spied(monkeypatch, spark_backend, "pairs_by_keys")


def runs() -> Iterator[Any]:
    """Each case in place and in one of the other ways by turns; in `make test` in one of the two.

    In place, new rows are found by the keys that match nothing.
    """
    others = [layout for layout in LAYOUTS if layout != "in place"]
    for place, each in enumerate(CASES):
        for number, layout in enumerate(("in place", others[place // 2 % len(others)])):
            marks = [] if place % 2 == number else [pytest.mark.full_matrix]
            yield pytest.param(each, layout, id=f"{each.case.name}-{layout}", marks=marks)


@pytest.mark.parametrize(("each", "layout"), list(runs()))
def test_merges_give_what_built_in_merge_gives(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], each: Keyed, layout: str
) -> None:
    kept, in_place = LAYOUTS[layout]
    stage = Stage(spark, each.case, tmp_path, kept)
    with configured(spark, {REWRITE_IN_PLACE: in_place}):
        theirs, ours = stage.by_oracle(), stage.by_sql()
    assert_outcome(each.case, ours, theirs)
    assert [found is not None for found in pairs] == [each.here]


KEYED = MergeCase(
    name="keyed_upsert",
    target=[(k, 0) for k in range(12)],
    source=[(k, 1) for k in range(0, 16, 3)],
    clauses=(update({"v": "s.v"}), insert({"k": "s.k", "v": "-s.v"})),
    files=3,
    expected=[*((k, int(k % 3 == 0)) for k in range(12)), (12, -1), (15, -1)],
)


@pytest.mark.minutes
@pytest.mark.parametrize("in_place", ["false", "true"])
def test_rows_of_a_materialized_source_are_known_by_their_numbers(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], in_place: str
) -> None:
    stage = Stage(spark, KEYED, tmp_path)
    settings = {
        "spark.databricks.delta.merge.materializeSource": "all",
        REWRITE_IN_PLACE: in_place,
    }
    with configured(spark, settings):
        theirs, ours = stage.by_oracle(), stage.by_sql()
    assert_outcome(KEYED, ours, theirs)
    [found] = pairs
    assert found.unmatched.type == pa.int64()  # a number, where keys are of type INT
    assert len(found.unmatched) == 2


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("MAX_PAIRS_BY_KEYS", 3),
        ("MAX_LOCAL_TARGET_ROWS", 0),
        ("MAX_LOCAL_POSSIBLE_BYTES", 9),
    ],
)
def test_spark_finds_the_pairs_above_a_limit(
    spark: SparkSession,
    tmp_path: Path,
    pairs: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    limit: int,
) -> None:
    monkeypatch.setattr(limits, name, limit)
    stage = Stage(spark, KEYED, tmp_path)
    assert_outcome(KEYED, stage.by_sql(), stage.by_oracle())
    assert pairs == [None]


@pytest.mark.minutes
@pytest.mark.parametrize(("partition_by", "value"), [((), "t.v + s.v"), (("p",), "s.v")])
def test_what_is_left_of_files_is_copied(
    spark: SparkSession,
    tmp_path: Path,
    pairs: list[Any],
    value: str,
    partition_by: tuple[str, ...],
) -> None:
    case = MergeCase(
        name="few_rows_left",
        target=[(k, k // 6, 0) for k in range(12)],
        source=[(k, k // 6, 1) for k in range(12) if k % 6],
        clauses=(update({"v": value}), insert_all()),
        target_schema="k INT, p INT, v INT",
        source_schema="k INT, p INT, v INT",
        files=1 if partition_by else 2,
        partition_by=partition_by,
        # 5 of 6 rows of each file
        expected=[(k, k // 6, int(k % 6 > 0)) for k in range(12)],
    )
    stage = Stage(spark, case, tmp_path, Layout(vectors=True))
    theirs = stage.by_oracle()
    with configured(spark, {MAX_MARKED_FRACTION: "0.8"}):
        ours = stage.by_sql()
    assert_same_rows(case, ours, theirs)
    assert ours.metrics["numTargetRowsCopied"] == 2
    assert [found is not None for found in pairs] == [True]


@pytest.mark.minutes
def test_executors_with_cores_of_their_own_find_the_pairs(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pairs, "has_local_master", lambda spark: False)
    stage = Stage(spark, KEYED, tmp_path)
    assert_outcome(KEYED, stage.by_sql(), stage.by_oracle())
    assert pairs == [None]


@pytest.mark.minutes
def test_new_rows_are_few_or_joined_with_all_pairs(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BROADCAST_PAIRS", 1)
    stage = Stage(spark, KEYED, tmp_path)
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        assert_outcome(KEYED, stage.by_sql(), stage.by_oracle())
    [found] = pairs
    assert found.few_unmatched() is None


@pytest.mark.parametrize("skips", [True, False])
def test_updates_that_change_nothing_are_skipped_where_asked(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], skips: bool
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 5), (2, 6)], "k INT, v INT")
    source = frame(spark, [(1, 5), (2, 7)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all()
    result = merge.execute(skip_unchanged_updates=skips)
    assert result.metrics.num_target_rows_updated == (1 if skips else 2)
    assert [found is not None for found in pairs] == [not skips]


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("on", "on_driver"),
    [
        ("t.k = s.k AND t.k = s.k", "true"),
        ("t.k = s.p.id AND t.v = s.q.id", "true"),
        ("t.k = s.p.id AND t.v = s.q.id", "false"),
        ("t.k <=> s.k AND t.v = s.k", "true"),
    ],
)
def test_keys_of_one_name(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], on: str, on_driver: str
) -> None:
    path, source = str(tmp_path / "table"), str(tmp_path / "source")
    write_table(spark, path, [(1, 1), (2, 2), (3, 0)], "k INT, v INT", files=2)
    schema = "k INT, p STRUCT<id: INT>, q STRUCT<id: INT>"
    write_table(spark, source, [(2, (2,), (2,)), (3, (3,), (3,)), (4, (4,), (4,))], schema)
    with configured(spark, {ON_DRIVER: on_driver, REWRITE_IN_PLACE: "true"}):
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING delta.`{source}` s ON {on} "
            "WHEN MATCHED THEN UPDATE SET v = 9 WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
        )
    # 3 matches by the first condition alone
    third = [(3, 9)] if on.endswith("t.k = s.k") else [(3, 0), (3, None)]
    assert rows_of(Table(spark, path)) == sorted([(1, 1), (2, 9), *third, (4, None)], key=repr)
    assert [found is not None for found in pairs] == [on_driver == "true"]


def test_a_plan_says_that_the_driver_looks_the_keys_up(
    spark: SparkSession, tmp_path: Path, pairs: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0)], "k INT, v INT")
    source = "(SELECT 1 AS k, 2 AS v)"
    text = f"MERGE INTO delta.`{path}` t USING {source} s ON {{}} WHEN MATCHED THEN UPDATE SET *"
    plan = deltaweave.explain(spark, text.format("t.k = s.k"))
    assert plan.join == "none if the driver may read the files: it looks up the source's keys"
    plan = deltaweave.explain(spark, text.format("t.k >= s.k"))
    assert "driver" not in plan.join


@pytest.mark.minutes
@pytest.mark.parametrize(("on_driver", "partitions"), [("true", 1), ("true", 2), ("false", 2)])
def test_updates_that_read_the_target_stay_in_place_in_partitions(
    spark: SparkSession, tmp_path: Path, pairs: list[Any], on_driver: str, partitions: int
) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k % partitions, 0) for k in range(6)]
    write_table(spark, path, rows, "k INT, p INT, v INT", partition_by=("p",))
    source = frame(spark, [(2, 1), (3, 1)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k")
    with configured(spark, {ON_DRIVER: on_driver, REWRITE_IN_PLACE: "true"}):
        result = merge.when_matched_update({"v": "t.v + s.v"}).execute()
    # The log spells a partition's directory as Spark's scan does, "p=1", and Python does not.
    assert result.strategy == "copy-in-place"
    expected = [(k, p, int(k in (2, 3))) for k, p, _ in rows]
    assert rows_of(Table(spark, path)) == expected
    assert [found is not None for found in pairs] == [on_driver == "true"]
