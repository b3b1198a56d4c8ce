"""Columns whose metadata gives a default to rows of files that lack them, as Spark reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.support.on_driver import rows_of
from tests.support.settings import configured

WAYS = {
    "driver": {ON_DRIVER: "true"},
    "keys on the driver": {ON_DRIVER: "auto", REWRITE_IN_PLACE: "false"},
    "in place": {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"},
}
# The table has (1, 1, 1) and, in a file without x, (5, 7, 5) and (6, 7, 6).
MERGES = {
    "key": (
        "USING (SELECT 7 AS x, 70 AS v) s ON t.x = s.x AND t.k < 6 "
        "WHEN MATCHED THEN UPDATE SET v = s.v",
        [(1, 1, 1), (5, 7, 70), (6, 7, 6)],
    ),
    "only key": (
        "USING (SELECT 7 AS x, 70 AS v) s ON t.x = s.x WHEN MATCHED THEN UPDATE SET v = s.v",
        [(1, 1, 1), (5, 7, 70), (6, 7, 70)],
    ),
    "null as a key": (
        "USING (SELECT CAST(NULL AS INT) AS x, 70 AS v) s ON t.x <=> s.x "
        "WHEN MATCHED THEN UPDATE SET v = s.v",
        [(1, 1, 1), (5, 7, 5), (6, 7, 6)],
    ),
    "copied": (  # x of the row that changes, and of the one that stays
        "USING (SELECT 5 AS k, 70 AS v) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v",
        [(1, 1, 1), (5, 7, 70), (6, 7, 6)],
    ),
    "read by a clause": (
        "USING (SELECT 5 AS k, 70 AS v) s ON t.k = s.k "
        "WHEN MATCHED AND t.x = 7 THEN UPDATE SET v = s.v + t.x",
        [(1, 1, 1), (5, 7, 77), (6, 7, 6)],
    ),
}


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    path = tmp_path / "table"
    target = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {target} (k INT, x INT DEFAULT 7, v INT) USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    spark.sql(f"INSERT INTO {target} VALUES (1, 1, 1)")
    log = path / "_delta_log"
    default = json.dumps(json.dumps({"CURRENT_DEFAULT": "7"}, separators=(",", ":")))[2:-2]
    existing = json.dumps(json.dumps({"EXISTS_DEFAULT": "7"}, separators=(",", ":")))[2:-2]
    created = (log / f"{0:020}.json").read_text()
    assert default in created
    # As another writer leaves it; Delta writes only the default of new rows.
    (log / f"{0:020}.json").write_text(created.replace(default, f"{default},{existing}"))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    rows = pa.table({"k": pa.array([5, 6], pa.int32()), "v": pa.array([5, 6], pa.int32())})
    pq.write_table(rows, path / "part-x.parquet")
    add = {
        "path": "part-x.parquet",
        "partitionValues": {},
        "size": (path / "part-x.parquet").stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": 2}),
    }
    commit = [{"commitInfo": {"timestamp": 1, "operation": "WRITE"}}, {"add": add}]
    (log / f"{2:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in commit))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    return path


def merges() -> Iterator[Any]:
    """Each merge in each way; in `make test-slow` in one of them by turns, `copied` in all."""
    for number, name in enumerate(MERGES):
        for place, way in enumerate(WAYS):
            is_told = name == "copied" or place == number % len(WAYS)
            mark = pytest.mark.minutes if is_told else pytest.mark.full_matrix
            is_quick = (name, way) == ("copied", "driver")
            yield pytest.param(name, way, marks=[] if is_quick else [mark])


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "way"), list(merges()))
def test_rows_of_files_that_lack_a_column_have_its_default(
    spark: SparkSession, path: Path, name: str, way: str
) -> None:
    merge, expected = MERGES[name]
    with configured(spark, WAYS[way]):
        deltaweave.merge(spark, f"MERGE INTO delta.`{path}` t {merge}")
    assert rows_of(Table(spark, str(path))) == expected
