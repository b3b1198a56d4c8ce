"""A scan of a few known files gives what Delta's own gives, and leaves to Delta what it must."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from deltaweave import Table
from deltaweave.delta.log import file_list
from tests.builders import write_table
from tests.support.settings import configured

VECTORS = {"delta.enableDeletionVectors": "true"}
SCHEMA = "k INT, p INT"
ROWS = [(k, k % 2) for k in range(70)]
PLACES = ("k", "p", "_metadata.file_path", "_metadata.row_index")


def index_of(rows: DataFrame) -> str:
    """The class that lists the files of a scan."""
    scan = rows._jdf.queryExecution().analyzed()
    return str(scan.relation().location().getClass().getSimpleName())


def known(spark: SparkSession, path: str) -> DataFrame:
    """A scan of all of a table's files."""
    table = Table(spark, path).snapshot()
    return table.read_files(table.file_list())


def rows_at_their_places(rows: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, rows.select(*PLACES).collect()))


@pytest.mark.parametrize("folder", ["table", "a b=ü", "50% + 1#2"])
def test_a_scan_of_a_few_files_has_them_at_hand(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    path = str(tmp_path / folder)
    write_table(spark, path, ROWS, SCHEMA, files=3, properties=VECTORS)
    rows = known(spark, path)
    assert index_of(rows) == "InMemoryFileIndex"
    assert rows_at_their_places(rows) == rows_at_their_places(spark.read.format("delta").load(path))


def test_a_scan_keeps_to_its_files(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS[:10], SCHEMA)
    before = known(spark, path)
    write_table(spark, str(tmp_path / "other"), ROWS[10:], SCHEMA)
    spark.read.format("delta").load(str(tmp_path / "other")).write.format("delta").mode(
        "append"
    ).save(path)
    assert before.count() == 10
    assert known(spark, path).count() == len(ROWS)


@pytest.mark.parametrize(
    ("write", "marked"),
    [
        ({"partition_by": ["p"]}, 0),
        ({"properties": VECTORS, "setup": ["DELETE FROM {target} WHERE k = 3"]}, 1),
        ({"properties": {**VECTORS, "delta.enableRowTracking": "true"}}, 0),
    ],
    ids=["partitions", "vectors", "row tracking"],
)
def test_delta_lists_files_with_further_fields(
    spark: SparkSession, tmp_path: Path, write: dict[str, object], marked: int
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, SCHEMA, **write)  # type: ignore[arg-type]
    rows = known(spark, path)
    assert index_of(rows) == "TahoeBatchFileIndex"
    assert rows.count() == len(ROWS) - marked


def test_delta_lists_many_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, SCHEMA, files=3)
    monkeypatch.setattr(file_list, "FEW_FILES", 2)
    assert index_of(known(spark, path)) == "TahoeBatchFileIndex"
    assert known(spark, path).count() == len(ROWS)


def test_without_spark_s_cache_of_listings_a_lost_file_is_still_missed(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, SCHEMA, files=2)
    with configured(spark, {"spark.sql.hive.manageFilesourcePartitions": "false"}):
        assert known(spark, path).count() == len(ROWS)
        table = Table(spark, path).snapshot()
        lost = table.file_list().paths[0]
        (tmp_path / "table" / lost).unlink()
        rows = table.read_files(table.file_list())
        assert index_of(rows) == "TahoeBatchFileIndex"
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
            rows.count()
