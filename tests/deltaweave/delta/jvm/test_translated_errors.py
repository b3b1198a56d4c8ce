"""Errors of the JVM in the words of deltaweave."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deltaweave.delta.jvm import translated
from deltaweave.errors import AccessDeniedError, MergeFailedError, TableNotFoundError


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("java.nio.file.AccessDeniedException", "/lake/orders", AccessDeniedError),
        ("java.io.FileNotFoundException", "/lake/x (Permission denied)", AccessDeniedError),
        ("java.io.IOException", "Mkdirs failed to create file:/lake/x", AccessDeniedError),
        ("java.io.IOException", "the connection was reset", MergeFailedError),
        ("java.lang.RuntimeException", "a row says (Permission denied)", MergeFailedError),
    ],
)
def test_storage_that_refuses_access_is_reported_as_such(
    spark: SparkSession, name: str, said: str, expected: type[Exception]
) -> None:
    java: Any = spark.sparkContext._jvm
    thrown = java
    for part in name.split("."):
        thrown = getattr(thrown, part)
    error = PySparkException("…")
    error._origin = java.org.apache.spark.SparkException("Job aborted.", thrown(said))  # type: ignore[attr-defined]
    with pytest.raises(expected) as raised, translated("orders"):
        raise error
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        ("'Project [a]\n+- LocalRelation [a]\n", ""),
        ("'Project [a]\n+- *(1) Project [a]\n   +- == Final Plan ==", ""),  # Spark compiled a part
        (f"'Project [{'cast(Name AS Int), ' * 5_000}]\n+- *(1) Project", ""),
        ("select 1;\n'Project [a]", ";\nselect 1"),  # a statement's own lines stay
        ("say 2", ";\nsay 2"),
    ],
    ids=["a plan", "a physical plan", "thousands of names", "after a statement", "no plan"],
)
def test_a_plan_is_cut_from_a_message(spark: SparkSession, plan: str, kept: str) -> None:
    java: Any = spark.sparkContext._jvm
    error = PySparkException("…")
    error._origin = java.java.lang.IllegalStateException(f"[X] no such name;\n{plan}")  # type: ignore[attr-defined]
    with pytest.raises(MergeFailedError) as raised, translated("orders"):
        raise error
    assert raised.value.problem == f"[X] no such name{kept}"


def test_a_missing_table_is_three_sentences(spark: SparkSession) -> None:
    with pytest.raises(TableNotFoundError) as raised, translated("orders", operation="opening"):
        spark.table("no_such_table").count()
    # Neither Spark's plan, nor its advice on names and on DROP, nor a table that "is as it was".
    what, state, hint = str(raised.value).splitlines()
    assert re.fullmatch(r"opening of orders failed: \[TABLE_OR_VIEW_NOT_FOUND\] .*", what)
    assert re.search(r"`no_such_table` cannot be found\. SQLSTATE: 42P01$", what)
    assert state == "Nothing was read or written."
    assert hint.endswith("A path has a slash: ./orders.")
