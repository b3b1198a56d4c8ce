"""Tables of keys alone, as those that link two others: events say that a key is there, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table

ARGUMENTS: dict[str, Any] = {
    "keys": ["a", "b"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["at", "op"],
}
BATCHES = [
    [(1, 1, 1, ""), (1, 2, 1, ""), (1, 3, 5, "d")],
    [(1, 1, 2, ""), (1, 2, 2, "d"), (1, 3, 4, "")],
]
SCHEMA = "a INT, b INT, at INT, op STRING"


@pytest.mark.minutes
def test_tables_of_keys_alone_have_histories(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for batch in BATCHES:
        source = spark.createDataFrame(batch, SCHEMA)
        deltaweave.apply_changes(spark, path, source, **ARGUMENTS, stored_as_scd_type=2)
    assert {tuple(row) for row in Table(spark, path).read().collect()} == {
        (1, 1, 1, None),  # at 2 nothing changed
        (1, 2, 1, 2),
        (1, 3, 4, 5),
    }


@pytest.mark.minutes
def test_tables_of_keys_alone_are_merged_on_read(spark: SparkSession, tmp_path: Path) -> None:
    links = MergeOnReadTable(spark, str(tmp_path / "base"), **ARGUMENTS)
    for batch in BATCHES:
        links.append(spark.createDataFrame(batch, SCHEMA))
        read = {tuple(row) for row in links.read().collect()}
        links.rematerialize()
        assert {tuple(row) for row in links.read_optimized().collect()} == read
    assert read == {(1, 1)}
