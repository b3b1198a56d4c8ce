"""Rows keep their ids when a merge moves them, and get new commit versions when it changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table
from deltaweave.engine import limits
from deltaweave.engine.merge_run import MAX_MARKED_FRACTION, REWRITE_IN_PLACE
from tests.builders import frame
from tests.merge_cases.case import MergeCase, by_source_update, delete, insert_all, update_all
from tests.support.oracles import Outcome, Stage, commit_info, rows_as_text
from tests.support.settings import configured

pytestmark = pytest.mark.minutes

TRACKED = {"delta.enableRowTracking": "true"}
TABLES = {
    "copy_on_write": TRACKED | {"delta.enableDeletionVectors": "false"},
    "vectors": TRACKED | {"delta.enableDeletionVectors": "true"},
    "vectors_but_rewritten": TRACKED | {"delta.enableDeletionVectors": "true"},
    "feed": TRACKED
    | {"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "true"},
    "vectors_and_feed": TRACKED
    | {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
}
IN_PLACE = {"in_place": TABLES["copy_on_write"], "feed_in_place": TABLES["feed"]}


def ids_and_versions(spark: SparkSession, outcome: Outcome) -> dict[int, tuple[int, int]]:
    """Row id and row commit version by key."""
    table = spark.read.format("delta").load(outcome.path)
    rows = table.selectExpr("k", "_metadata.row_id", "_metadata.row_commit_version")
    return {row[0]: (row[1], row[2]) for row in rows.collect()}


def outcomes(spark: SparkSession, case: MergeCase, folder: Path) -> tuple[Outcome, Outcome]:
    """What built-in MERGE and the engine did; both left the rows that the case expects."""
    stage = Stage(spark, case, folder)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    if ours.error is not None:
        raise ours.error
    assert ours.rows == theirs.rows == rows_as_text(case.expected or ())
    return theirs, ours


@pytest.mark.parametrize("kind", TABLES | IN_PLACE)
def test_ids_and_commit_versions_are_those_of_built_in_merge(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    case = MergeCase(
        name="all_kinds_of_changes_of_tracked_rows",
        target=[(1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60)],
        source=[(1, 100), (3, 300), (5, 0), (7, 700), (8, 800)],
        files=2,
        properties=(TABLES | IN_PLACE)[kind],
        conf={
            MAX_MARKED_FRACTION: "0" if kind == "vectors_but_rewritten" else "1",
            REWRITE_IN_PLACE: str(kind in IN_PLACE).lower(),
        },
        # Row 6 is moved by an earlier commit, so that its id is one that the file stores.
        setup=("UPDATE {target} SET v = 61 WHERE k = 6",),
        clauses=(
            delete("s.v = 0"),
            update_all(),
            insert_all(),
            by_source_update({"v": "t.v + 1"}, "t.k = 2"),
        ),
        expected=[
            (1, 100),  # updated
            (2, 21),  # updated, not matched by source
            (3, 300),  # updated
            (4, 40),
            (6, 61),
            (7, 700),  # inserted
            (8, 800),  # inserted
        ],
    )
    theirs, ours = outcomes(spark, case, tmp_path)

    told, by_us = ids_and_versions(spark, theirs), ids_and_versions(spark, ours)
    old = [1, 2, 3, 4, 6]
    assert {k: by_us[k] for k in old} == {k: told[k] for k in old}
    assert {by_us[k][1] for k in (1, 2, 3, 7, 8)} == {ours.version}
    # New rows have new ids; which of them is left to the writer.
    assert len({row_id for row_id, _ in by_us.values()}) == len(by_us)
    assert min(by_us[7][0], by_us[8][0]) > max(by_us[k][0] for k in old)
    assert ours.version is not None
    assert theirs.version is not None
    tags = commit_info(ours.path, ours.version)["tags"]
    assert tags == commit_info(theirs.path, theirs.version)["tags"]
    assert tags["delta.rowTracking.preserved"] == "true"


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_that_stay_beside_many_deleted_ones_keep_their_ids(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """They are written apart from the inserted rows, which have no ids yet."""
    monkeypatch.setattr(limits, "MIN_BYTES_IN_PLACE", 0)
    case = MergeCase(
        name="most_tracked_rows_deleted",
        target=[(k, k * 10) for k in range(1, 7)],
        source=[(1, 0), (2, 0), (3, 0), (9, 90)],
        properties=TABLES["vectors" if vectors else "copy_on_write"],
        conf={MAX_MARKED_FRACTION: "0"},
        clauses=(delete("s.v = 0"), insert_all()),
        expected=[(4, 40), (5, 50), (6, 60), (9, 90)],
    )
    theirs, ours = outcomes(spark, case, tmp_path)
    told, by_us = ids_and_versions(spark, theirs), ids_and_versions(spark, ours)
    assert [by_us[k] for k in (4, 5, 6)] == [told[k] for k in (4, 5, 6)]
    assert by_us[9][0] > max(by_us[k][0] for k in (4, 5, 6))


@pytest.mark.parametrize("in_place", ["false", "true"])
def test_rows_moved_twice_keep_their_ids(
    spark: SparkSession, tmp_path: Path, in_place: str
) -> None:
    case = MergeCase(
        name="tracked_rows_moved_again",
        target=[(1, 10), (2, 20), (3, 30)],
        source=[(1, 100)],
        properties=TABLES["copy_on_write"],
        conf={REWRITE_IN_PLACE: in_place},
        clauses=(update_all(),),
        expected=[(1, 100), (2, 20), (3, 30)],
    )
    stage = Stage(spark, case, tmp_path)
    first = stage.by_sql()
    before = ids_and_versions(spark, first)
    source = frame(spark, [(2, 200)], "k INT, v INT")
    merge = Table(spark, first.path).merge(source, on="t.k = s.k")
    with configured(spark, {REWRITE_IN_PLACE: in_place}):
        result = merge.when_matched_update_all().execute()
    assert result.strategy == ("copy-in-place" if in_place == "true" else "copy-on-write")
    after = ids_and_versions(spark, first)
    assert {k: row_id for k, (row_id, _) in after.items()} == {
        k: row_id for k, (row_id, _) in before.items()
    }
    assert [after[k][1] for k in (1, 2, 3)] == [1, 2, 0]
