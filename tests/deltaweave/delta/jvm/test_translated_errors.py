"""Errors of the JVM in the words of deltaweave."""

from __future__ import annotations

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
def test_storage_that_refuses_access_is_told_as_such(
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


def test_a_missing_table_is_told_without_advice_on_dropping_it(spark: SparkSession) -> None:
    with pytest.raises(TableNotFoundError) as raised, translated("orders", operation="opening"):
        spark.table("no_such_table").count()
    assert "cannot be found" in str(raised.value)
    assert "DROP" not in str(raised.value)
    assert "UnresolvedRelation" not in str(raised.value)  # Spark appends the plan
    assert "A path has a slash: ./orders." in str(raised.value)
