"""DESCRIBE HISTORY shows of an engine merge what it shows of a built-in one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tests.merge_cases import CASES_BY_NAME
from tests.merge_cases.case import MergeCase
from tests.support.oracles import Outcome, Stage

CASES = [
    "five_clauses_of_all_kinds",
    "insert_star",
    "several_conditional_inserts_that_leave_rows_out",
    "mirror_of_the_source",
    "delete_of_every_row_of_one_file",
    "update_of_a_nested_field",
    "no_match_taken_but_rows_inserted",
    "new_column_by_both_stars",
]

METRICS_OFF = {"spark.databricks.delta.history.metricsEnabled": "false"}


def newest(spark: SparkSession, outcome: Outcome) -> Row:
    [row] = spark.sql(f"DESCRIBE HISTORY delta.`{outcome.path}` LIMIT 1").collect()
    return row


def entries(spark: SparkSession, case: MergeCase, folder: Path) -> tuple[Row, Row]:
    """The newest history entries: the engine's, and built-in MERGE's."""
    stage = Stage(spark, case, folder)
    return newest(spark, stage.by_sql()), newest(spark, stage.by_oracle())


def without_ids(parameters: dict[str, str]) -> dict[str, Any]:
    """The parameters without expression ids: `k#12 = k#34L` is `k# = k#`."""
    return {name: re.sub(r"#\d+L?", "#", value) for name, value in parameters.items()}


@pytest.mark.minutes
@pytest.mark.parametrize("name", CASES)
def test_the_entry_is_that_of_built_in_merge(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    ours, theirs = entries(spark, CASES_BY_NAME[name], tmp_path)
    assert ours.operation == "MERGE"
    assert without_ids(ours.operationParameters) == without_ids(theirs.operationParameters)
    assert set(ours.operationMetrics) == set(theirs.operationMetrics)
    for fact in ("version", "readVersion", "isBlindAppend", "isolationLevel"):
        assert ours[fact] == theirs[fact], fact


@pytest.mark.minutes
def test_the_builder_writes_the_same_parameters_as_sql(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(spark, CASES_BY_NAME["five_clauses_of_all_kinds"], tmp_path)
    by_sql, by_builder = stage.by_sql(), stage.by_builder(columns=False)
    assert without_ids(by_builder.parameters) == without_ids(by_sql.parameters)


@pytest.mark.minutes
def test_without_history_metrics_none_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    case = replace(CASES_BY_NAME["upsert"], conf=METRICS_OFF)
    ours, theirs = entries(spark, case, tmp_path)
    assert not theirs.operationMetrics
    assert not ours.operationMetrics
