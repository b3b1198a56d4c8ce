"""The examples of docs/comparison.md and of the reports on Delta's MERGE, run as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import deltaweave
from deltaweave.errors import DeltaweaveError
from tests.support.oracles import error_classes, rows_as_text

DOCS = Path(__file__).parents[2] / "docs"
REPORTS = (DOCS / "explanation" / "delta-merge-defects.md").read_text()
DEFECTS = re.findall(
    r"^```sql (.*?)\n(.*?)^```\n\n```text\nexpected: (.*?)\nactual:   (.*?)\n```$",
    REPORTS,
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture(autouse=True)
def tables_are_dropped(spark: SparkSession) -> Iterator[None]:
    yield
    for table in ("t", "by_delta", "by_deltaweave"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def test_the_example_shows_a_row_that_built_in_merge_loses(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (DOCS / "comparison.md").read_text()
    [code] = re.findall(r"^```python loses a row\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(deltaweave, "local_session", lambda: spark)
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == [
        "[Row(k=2, v=20)]",
        "[Row(k=2, v=20), Row(k=3, v=300)]",
    ]


def test_every_report_has_what_is_expected_and_what_happens() -> None:
    assert len(DEFECTS) == REPORTS.count("```sql ") == 9


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("text", "expected", "actual"),
    [(text, *said) for _, text, *said in DEFECTS],
    ids=[name for name, *_ in DEFECTS],
)
def test_each_reported_defect_is_built_ins_and_the_engine_is_as_expected(
    spark: SparkSession, text: str, expected: str, actual: str
) -> None:
    *setup, merge = [statement.strip() for statement in text.split(";") if statement.strip()]
    theirs = outcome(spark, [*setup, merge])
    if actual == "one row less":  # the order of the join decides which
        assert theirs.count("(") == expected.count("(") - 1
    else:
        assert theirs == actual
    spark.sql("DROP TABLE t")
    assert outcome(spark, setup, merge) == expected


def outcome(spark: SparkSession, statements: list[str], by_engine: str | None = None) -> str:
    """The rows of the table t afterwards, or the class of the error behind all others."""
    try:
        for statement in statements:
            spark.sql(statement)
        if by_engine is not None:
            deltaweave.merge(spark, by_engine)
    except (DeltaweaveError, PySparkException, Py4JJavaError) as error:
        return error_classes(error)[-1]
    text = ", ".join(rows_as_text(spark.table("t").collect())).replace("None", "NULL")
    text = re.sub(r"Decimal\('([\d.]+)'\)", r"\1", text)
    return re.sub(r"datetime\.date\((\d+), (\d+), (\d+)\)", r"\1-\2-\3", text)
