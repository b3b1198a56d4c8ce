"""What explain says of a merge, and that the merge then does so."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from tests.builders import frame, write_table
from tests.support.settings import configured

VECTORS = {"delta.enableDeletionVectors": "true"}
UPDATE = "WHEN MATCHED THEN UPDATE SET v = s.v"
INSERT = "WHEN NOT MATCHED THEN INSERT *"
MIRROR = "WHEN NOT MATCHED BY SOURCE THEN DELETE"


def table_of_twelve_files(spark: SparkSession, path: str, **properties: str) -> None:
    """Keys 0 to 59, five in each file: file n holds keys 5n to 5n + 4."""
    write_table(
        spark, path, [(k, 0) for k in range(60)], "k INT, v INT", files=12, properties=properties
    )


def merge_of(spark: SparkSession, path: str, keys: list[int], on: str, clauses: str) -> str:
    frame(spark, [(k, 1) for k in keys], "k INT, v INT").createOrReplaceTempView("explained")
    return f"MERGE INTO delta.`{path}` t USING explained s ON {on} {clauses}"


@pytest.mark.minutes
def test_the_plan_has_files_before_and_after_each_step(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table_of_twelve_files(spark, path)
    # The condition leaves files 0 to 3, the keys two of them.
    statement = merge_of(spark, path, [1, 2, 17, 40], "t.k = s.k AND t.k < 20", UPDATE)
    plan = deltaweave.explain(spark, statement)
    files = (plan.before_skipping, plan.after_conditions, plan.after_source_keys)
    assert [step.files for step in files] == [12, 4, 2]
    assert [step.bytes for step in files] == sorted((step.bytes for step in files), reverse=True)
    assert (plan.source_rows, plan.touched_files, plan.version) == (4, 2, 0)
    assert plan.write_amplification == 2.5  # ten rows in two files, for four source rows
    assert plan.join.startswith("broadcast")
    changes = spark.table("explained")
    builder = Table(spark, path).merge(changes, "t.k = s.k AND t.k < 20")
    assert builder.when_matched_update({"v": "s.v"}).explain().after_source_keys == files[-1]
    assert Table(spark, path).version() == 0  # nothing was written
    metrics = deltaweave.merge(spark, statement).metrics
    assert metrics["numTargetFilesAfterSkipping"] == 2


@pytest.mark.parametrize(
    ("properties", "clauses", "strategy"),
    [
        ({}, INSERT, "insert-only"),
        (VECTORS, UPDATE, "deletion-vectors"),
        ({}, UPDATE, "copy-on-write"),
    ],
    ids=["insert_only", "vectors", "copy_on_write"],
)
def test_the_strategy_is_the_one_that_the_merge_takes(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], clauses: str, strategy: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT", properties=properties)
    statement = merge_of(spark, path, [1, 3], "t.k = s.k", clauses)
    assert deltaweave.explain(spark, statement).strategy == strategy
    assert deltaweave.merge(spark, statement).strategy == strategy


@pytest.mark.minutes
def test_files_are_not_rewritten_in_place_for_a_source_that_may_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0), (2, 0)], "k INT, v INT")
    statement = merge_of(spark, path, [1, 3], "t.k = s.k", UPDATE)
    read_again = {"spark.databricks.delta.merge.materializeSource": "none"}
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        assert deltaweave.explain(spark, statement).strategy == "copy-in-place"
        with configured(spark, read_again):
            plan = deltaweave.explain(spark, statement)
            assert deltaweave.merge(spark, statement).strategy == plan.strategy == "copy-on-write"
    assert "may give other rows" in plan.reason


@pytest.mark.parametrize(
    ("on", "clauses", "keys", "advice"),
    [
        ("t.k = s.k", MIRROR, [1], "WHEN NOT MATCHED BY SOURCE looks at every file"),
        ("t.k > s.k", UPDATE, [1], "ON sets no column of the target equal"),
        ("t.k = s.k", UPDATE, [*range(0, 60, 5)], "CLUSTER BY (k)"),
        ("t.k = s.k", UPDATE, [1], ""),
    ],
    ids=["by_source", "no_equality", "spread_keys", "nothing_to_advise"],
)
def test_the_advice_fits_the_reason(
    spark: SparkSession, tmp_path: Path, on: str, clauses: str, keys: list[int], advice: str
) -> None:
    path = str(tmp_path / "table")
    table_of_twelve_files(spark, path)
    plan = deltaweave.explain(spark, merge_of(spark, path, keys, on, clauses))
    assert advice in plan.advice
    assert bool(advice) == bool(plan.advice)
    assert f"advice: {plan.advice or 'none'}" in str(plan)


def test_a_statement_that_cannot_run_is_refused_as_by_a_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0)], "k INT, v INT")
    statement = merge_of(spark, path, [1], "t.nowhere = s.k", UPDATE)
    with pytest.raises(deltaweave.errors.StatementError, match="nowhere"):
        deltaweave.explain(spark, statement)
