"""Of clauses, only expressions that are known to be functions of their rows let output stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave.delta.scan import dependence, unknown_in_clauses
from deltaweave.delta.statement import ResolvedMerge, parse_statement, resolve
from tests.builders import write_table

# By expression, the class that is not known; none where all are.
CLAUSES = {
    "s.v + t.v": [],
    "coalesce(nullif(s.v, 1), length(upper(concat(s.k, 'a'))))": [],
    "CASE WHEN s.v > 1 AND t.v IS NOT NULL THEN 1 ELSE element_at(array(s.v), 1) END": [],
    "aggregate(array(s.v, t.v), 0, (a, b) -> a + b)": [],
    "int(date_format(date_add(DATE'2020-01-01', s.v), 'yyyy'))": [],
    # Constants since the statement was resolved.
    "current_date() - DATE'2020-01-01' > INTERVAL '1' DAY": [],
    "int(rand() * 10)": ["Rand"],
    "reflect('java.lang.Math', 'abs', s.v)": ["CallMethodViaReflection"],
    "of_a_user(s.v)": ["PythonUDF"],
    "(SELECT 1)": ["ScalarSubquery"],
    "length(current_user() || current_catalog() || current_schema())": [],
}


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    write_table(spark, path, [], "k INT, v INT, b BOOLEAN")
    spark.udf.register("of_a_user", lambda v: v, "int")
    return f"delta.`{path}`"


def merge_of(spark: SparkSession, target: str, value: str) -> ResolvedMerge:
    column = "b" if ">" in value and "->" not in value and "CASE" not in value else "v"
    text = (
        f"MERGE INTO {target} t USING (SELECT 1 AS k, 2 AS v) s ON t.k = s.k AND t.v <> s.k "
        f"WHEN MATCHED AND s.v > 0 THEN UPDATE SET {column} = {value} WHEN NOT MATCHED THEN "
        "INSERT (k, v) VALUES (s.k, s.v)"
    )
    return resolve(parse_statement(spark, text))


def test_expressions_of_their_rows_alone_are_recognized(spark: SparkSession, target: str) -> None:
    found = {value: unknown_in_clauses(merge_of(spark, target, value)) for value in CLAUSES}
    assert found == CLAUSES


def test_an_expression_that_nobody_wrote_down_is_not_known(
    spark: SparkSession, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = merge_of(spark, target, "abs(s.v)")
    assert unknown_in_clauses(merge) == []
    name = "org.apache.spark.sql.catalyst.expressions.Abs"
    known = dependence.CLAUSE_NODES - {name}
    monkeypatch.setattr("deltaweave.delta.scan.dependence.CLAUSE_NODES", known)
    assert unknown_in_clauses(merge) == ["Abs"]
