"""A column named `_metadata` does not shadow Spark's own, which knows of each row's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table
from tests.builders import frame, write_table
from tests.support.oracles import rows_as_text
from tests.support.settings import configured

SCHEMA = "k INT, _metadata INT"
ROWS = [(1, 10), (2, 20), (3, 30), (4, 40)]
VECTORS = {"delta.enableDeletionVectors": "true"}
TRACKED = {"delta.enableRowTracking": "true"}


def upsert(table: Table, schema: str = SCHEMA) -> str:
    """Merge a changed and a new row; return how it was written."""
    merge = table.merge(frame(table.spark, [(2, 200), (5, 500)], schema), on="t.k = s.k")
    result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert result.strategy is not None
    return result.strategy


def rows_of(table: Table) -> list[str]:
    return rows_as_text(table.spark.read.format("delta").load(table.path_or_name).collect())


UPSERTED = rows_as_text([(1, 10), (2, 200), (3, 30), (4, 40), (5, 500)])


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("schema", "properties"),
    [(SCHEMA, VECTORS), (SCHEMA, VECTORS | TRACKED), ("k INT, _METADATA INT", VECTORS)],
    ids=["vectors", "tracked", "capitals"],
)
def test_files_are_rewritten_if_marked_rows_made_the_table_unreadable(
    spark: SparkSession, tmp_path: Path, schema: str, properties: dict[str, str]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, schema, files=2, properties=properties)
    table = Table(spark, path)
    assert upsert(table, schema).startswith("copy")
    assert rows_of(table) == UPSERTED


@pytest.mark.minutes
def test_rows_that_move_keep_their_ids(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, SCHEMA, properties=TRACKED)
    table = Table(spark, path)

    def ids() -> dict[int, int]:
        rows = spark.read.format("delta").load(path)
        row_id = rows.metadataColumn("_metadata").getField("row_id")
        return {row[0]: row[1] for row in rows.select("k", row_id).collect()}

    before = ids()
    upsert(table)
    after = ids()
    assert {k: after[k] for k in before} == before
    assert after[5] not in before.values()


@pytest.mark.minutes
def test_files_get_statistics_and_filters_of_their_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    rows = [(1, 10), (9, 90), (2, 20), (8, 80)]  # each file's range holds all keys between
    with configured(spark, {"spark.databricks.delta.stats.collect": "false"}):
        write_table(spark, path, rows, SCHEMA, files=2)
    table = Table(spark, path)
    assert table.compute_missing_statistics() == 2
    assert {json.loads(row.stats)["numRecords"] for row in table.files().collect()} == {2}
    assert table.index_keys("k") == 2
    merge = table.merge(frame(spark, [(2, 200)], SCHEMA), on="t.k = s.k")
    result = merge.when_matched_update_all().execute()
    assert result.metrics["numTargetFilesAfterSkipping"] == 1
    assert rows_of(table) == rows_as_text([(1, 10), (9, 90), (2, 200), (8, 80)])
