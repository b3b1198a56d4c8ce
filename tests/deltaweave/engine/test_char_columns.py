"""Statements that read CHAR columns, which Spark pads where it reads them.

Delta's MERGE as SQL fails with them, and its builder works.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import Table, errors
from deltaweave.engine.merge_run import ON_DRIVER
from tests.builders import frame, write_table
from tests.support.oracles import rows_as_text
from tests.support.settings import configured

COLUMNS = "c CHAR(3), v INT"
NOT_PADDED = {"spark.sql.legacy.charVarcharAsString": "true"}
ON = "t.c = s.c"
DELETED = "s.v = 0 AND t.c = 'b'"  # to which Spark adds the blanks


def by_text(spark: SparkSession, path: str, source: DataFrame) -> None:
    source.createOrReplaceTempView("char_source")
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t USING char_source s ON {ON} "
        f"WHEN MATCHED AND {DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT *",
    )


def by_clauses(spark: SparkSession, path: str, source: DataFrame) -> None:
    merge = Table(spark, path).merge(source, on=ON).when_matched_delete(DELETED)
    merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all().execute()


def by_builder_of_delta(spark: SparkSession, path: str, source: DataFrame) -> None:
    merge = DeltaTable.forPath(spark, path).alias("t").merge(source.alias("s"), ON)
    merge = merge.whenMatchedDelete(DELETED).whenMatchedUpdate(set={"v": "s.v"})
    merge.whenNotMatchedInsertAll().execute()


def by_builder_on_the_engine(spark: SparkSession, path: str, source: DataFrame) -> None:
    deltaweave.enable(spark)
    try:
        by_builder_of_delta(spark, path, source)
    finally:
        deltaweave.disable(spark)


WAYS: list[Callable[[SparkSession, str, DataFrame], None]] = [
    by_builder_of_delta,
    by_builder_on_the_engine,
    by_text,
    by_clauses,
]


@pytest.mark.minutes
@pytest.mark.parametrize("stored", [{}, NOT_PADDED], ids=["padded", "as another writer left it"])
@pytest.mark.parametrize("way", WAYS)
def test_char_columns_are_compared_as_spark_reads_them(
    spark: SparkSession, tmp_path: Path, way: Any, stored: dict[str, str]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [], "c STRING, v INT", ddl=COLUMNS)
    for key, value in (("a", 10), ("b", 20), ("xyz", 30)):  # a file for each
        with configured(spark, stored):
            spark.sql(f"INSERT INTO delta.`{path}` VALUES ('{key}', {value})")
    rows = [("a  ", 100), ("b  ", 0), ("new", 40)]
    with configured(spark, {ON_DRIVER: "auto"}):
        way(spark, path, frame(spark, rows, "c STRING, v INT"))
    found = Table(spark, path).read().collect()
    assert rows_as_text(found) == ["('a  ', 100)", "('new', 40)", "('xyz', 30)"]


@pytest.mark.minutes
def test_a_clause_reads_no_columns_of_the_other_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [("a", 10)], "c STRING, v INT", ddl=COLUMNS)
    frame(spark, [("b", 1)], "c STRING, w INT").createOrReplaceTempView("char_source")
    statement = (
        f"MERGE INTO delta.`{path}` t USING char_source s ON {ON} "
        "WHEN NOT MATCHED THEN INSERT (c, v) VALUES (s.c, {})"
    )
    with pytest.raises(errors.StatementError):
        deltaweave.merge(spark, statement.format("t.v"))
    deltaweave.merge(spark, statement.format("s.w"))
    assert Table(spark, path).read().count() == 2
