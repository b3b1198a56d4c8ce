"""When a merge's source is materialized, and that its rows are the same either way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave.delta.statement import analyzer
from deltaweave.engine.source.prepared import materialization_of
from tests.builders import write_table
from tests.merge_cases import CASES_BY_NAME
from tests.support.oracles import Stage, assert_same_metrics, rows_as_text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("SELECT k, v FROM {target}", "NOT_MATERIALIZED_AUTO"),
        ("VALUES (1, 2) AS s(k, v)", "NON_DETERMINISTIC_SOURCE_NON_DELTA"),
        ("SELECT k, rand() AS v FROM {target}", "NON_DETERMINISTIC_SOURCE_OPERATORS"),
        ("SELECT k, max(v) AS v FROM {target} GROUP BY k", "NON_DETERMINISTIC_SOURCE_OPERATORS"),
    ],
)
def test_the_source_is_materialized_for_the_reasons_of_delta(
    spark: SparkSession, tmp_path: Path, source: str, reason: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    target = f"delta.`{path}`"
    text = (
        f"MERGE INTO {target} t USING ({source.format(target=target)}) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    merge = analyzer.resolve(analyzer.parse_statement(spark, text))
    assert materialization_of(merge) == (reason != "NOT_MATERIALIZED_AUTO", reason)


@pytest.mark.minutes
@pytest.mark.parametrize("mode", ["all", "none"])
def test_a_merge_is_the_same_with_and_without_materialized_source(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    case = CASES_BY_NAME["two_updates_two_deletes_and_two_inserts"]
    conf = {"spark.databricks.delta.merge.materializeSource": mode}
    stage = Stage(spark, replace(case, conf=conf), tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert ours.rows == theirs.rows == rows_as_text(case.expected or ())
    assert_same_metrics(case, ours, theirs)
