"""Cases of the shared list on tables with deletion vectors and with a change data feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from tests.builders import frame, write_table
from tests.merge_cases import CASES_BY_NAME
from tests.merge_cases.case import Layout, MergeCase
from tests.support.oracles import (
    Stage,
    actions,
    assert_outcome,
)

NAMES = [
    "update_from_the_source",
    "first_clause_that_holds_wins_delete_before_update",
    "delete_of_every_row_of_one_file",
    "delete_of_every_row_leaves_an_empty_table",
    "matches_of_which_no_clause_takes_any",
    "two_updates_two_deletes_and_two_inserts",
    "five_clauses_of_all_kinds",
    "upsert_with_nothing_matched",
    "several_inserts_first_that_holds_wins",
    "insert_of_duplicates_in_the_source",
    "by_source_several_clauses_first_that_holds_wins",
    "mirror_of_the_source",
    "several_source_rows_may_delete_one_row",
    "several_source_rows_may_delete_one_row_beside_by_source_deletes",
    "several_source_rows_for_an_updated_row_are_an_error",
    "null_keys_match_under_null_safe_equality",
    "update_of_nested_fields_at_several_levels",
    "new_column_by_explicit_assignment",
    "odd_partition_values",
]
VECTORS = {"delta.enableDeletionVectors": "true"}
LAYOUTS = [Layout(vectors=True), Layout(feed=True)]  # test_merge_cases has the two others


def by_turns() -> Iterator[Any]:
    """Each case on each layout; in `make test-slow` every fourth one on one of them."""
    for i, name in enumerate(NAMES):
        for j, layout in enumerate(LAYOUTS):
            mark = pytest.mark.minutes if i % 8 == 4 * j else pytest.mark.full_matrix
            yield pytest.param(CASES_BY_NAME[name], layout, id=f"{name}-{layout}", marks=mark)


@pytest.mark.parametrize(("case", "layout"), list(by_turns()))
def test_rows_metrics_and_change_feed_are_those_of_built_in_merge(
    spark: SparkSession, tmp_path: Path, case: MergeCase, layout: Layout
) -> None:
    stage = Stage(spark, case, tmp_path, layout)
    assert_outcome(case, stage.by_sql(), stage.by_oracle())


@pytest.mark.minutes
def test_vectors_are_merged_with_those_a_file_has(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k * 10) for k in range(6)]
    write_table(spark, path, rows, "k INT, v INT", properties=VECTORS)
    table = Table(spark, path)
    for key in (1, 3):  # one row of the one file each time
        changes = frame(spark, [(key, -key)], "k INT, v INT")
        result = table.merge(changes, on="t.k = s.k").when_matched_update_all().execute()
        assert result.strategy == "deletion-vectors"
    assert result.metrics["numTargetDeletionVectorsUpdated"] == 1
    assert sorted(map(tuple, table.read().collect())) == [
        (0, 0),
        (1, -1),  # marked in the file by the first merge, rewritten
        (2, 20),
        (3, -3),  # marked by the second
        (4, 40),
        (5, 50),
    ]
    assert table.row_count() == 6  # counts no marked row


def test_a_file_whose_last_row_goes_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(2, 20)], "k INT, v INT", properties=VECTORS)
    changes = frame(spark, [(2, 0)], "k INT, v INT")
    result = Table(spark, path).merge(changes, on="t.k = s.k").when_matched_delete().execute()
    kinds = [next(iter(action)) for action in actions(path, result.version or 0)]
    assert kinds.count("remove") == 1
    assert "add" not in kinds
    assert result.metrics["numTargetFilesRemoved"] == 1


def test_a_second_engine_reads_the_vectors(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k * 10) for k in range(6)]
    write_table(spark, path, rows, "k INT, v INT", properties=VECTORS)
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t USING (VALUES (2, 0), (9, 90) AS s(k, v)) s ON t.k = s.k "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
    )
    by_delta_rs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    read = by_delta_rs.execute("SELECT k FROM t ORDER BY k").read_all()
    assert read["k"].to_pylist() == [0, 1, 3, 4, 5, 9]  # 2 deleted, 9 inserted
