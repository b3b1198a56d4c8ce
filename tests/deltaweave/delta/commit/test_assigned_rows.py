"""Rows that are written come to columns by name, at every depth, and to the table's types."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors

IN_ORDER = "named_struct('a', 1, 'b', 2)"
TURNED = "named_struct('b', 2, 'A', 1)"


@pytest.mark.minutes
def test_fields_of_structs_come_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """A cast takes them by position, and would exchange their values."""
    kind = "STRUCT<a: BIGINT, b: INT>"
    table = Table(spark, str(tmp_path / "table"))
    table.create_if_missing(
        f"s {kind}, l ARRAY<{kind}>, m MAP<STRING, {kind}>, o STRUCT<s: {kind}>"
    )
    for struct in (IN_ORDER, TURNED):
        query = f"array({struct}) AS l, {struct} AS s, map('m', {struct}) AS m"
        table.write(spark.sql(f"SELECT named_struct('s', {struct}) AS o, {query}"), "append")
    first, second = table.read().collect()
    assert first == second
    assert first.s.asDict() == {"a": 1, "b": 2}


def test_structs_with_other_fields_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(spark, str(tmp_path / "table"))
    table.create_if_missing("s STRUCT<a: BIGINT, b: INT>")
    with pytest.raises(errors.DeltaweaveError, match="chema"):
        table.write(spark.sql("SELECT named_struct('x', 1, 'y', 2) AS s"), "append")
    assert table.version() == 0
