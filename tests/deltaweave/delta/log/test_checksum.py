"""What a checksum lists counts only if it is of the commit of its version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from tests.builders import frame, write_table
from tests.support.spark_jobs import jobs_of

RETENTION = {"delta.setTransactionRetentionDuration": "interval 7 days"}


def loaded(spark: SparkSession, path: str, version: int) -> str:
    """Merge a row with the pair (loads, version), and return the strategy."""
    source = frame(spark, [(version, 1)], "k INT, v INT")
    source.createOrReplaceTempView("loaded_rows")
    merge = f"MERGE INTO delta.`{path}` t USING loaded_rows s ON t.k = s.k"
    statement = f"{merge} WHEN NOT MATCHED THEN INSERT *"
    return deltaweave.merge(spark, statement, idempotency=("loads", version)).strategy


@pytest.mark.minutes
def test_ids_are_read_without_a_job(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 0)], "k INT, v INT")
    loaded(spark, path, 5)
    table = Table(spark, path)
    assert jobs_of(spark, "ids", lambda: table.last_applied("loads")) == 0
    assert table.last_applied("loads") == 5
    assert jobs_of(spark, "applied", lambda: loaded(spark, path, 5)) == 0
    assert loaded(spark, path, 5) == "already-applied"
    assert loaded(spark, path, 6) != "already-applied"


@pytest.mark.minutes
def test_a_checksum_left_over_from_a_deleted_commit_says_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, other = tmp_path / "table", tmp_path / "other"
    write_table(spark, str(path), [(1, 0)], "k INT, v INT", files=1)
    loaded(spark, str(path), 5)
    # Somebody takes the load back by hand, in a copy that no driver has seen.
    shutil.copytree(path, other)
    log = other / "_delta_log"
    (log / f"{1:020}.json").unlink()
    kept = (log / f"{1:020}.crc").read_bytes()
    (log / f"{1:020}.crc").unlink()
    spark.sql(f"INSERT INTO delta.`{other}` VALUES (2, 0)")
    (log / f"{1:020}.crc").write_bytes(kept)
    (log / f".{1:020}.crc.crc").unlink(missing_ok=True)
    copy = tmp_path / "copy"
    shutil.copytree(other, copy)
    table = Table(spark, str(copy))
    assert table.snapshot().files_in_checksum() is None
    assert table.last_applied("loads") is None
    assert loaded(spark, str(copy), 5) != "already-applied"
    rows = sorted(map(tuple, table.read().collect()))
    assert rows == [(1, 0), (2, 0), (5, 1)]  # the load is there again, once


@pytest.mark.minutes
@pytest.mark.parametrize("properties", [{}, RETENTION], ids=["kept", "forgotten"])
def test_ids_that_a_table_forgets_are_asked_of_its_log(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    path, copy = tmp_path / "table", tmp_path / "copy"
    write_table(spark, str(path), [(1, 0)], "k INT, v INT", properties=properties)
    loaded(spark, str(path), 5)
    # Another writer lists ids all the same, and one that the log does not have.
    shutil.copytree(path, copy)
    file = copy / "_delta_log" / f"{1:020}.crc"
    checksum = json.loads(file.read_text())
    checksum["setTransactions"] = [{"appId": "other", "version": 1, "lastUpdated": 1}]
    file.write_text(json.dumps(checksum))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    snapshot = Table(spark, str(copy)).snapshot()
    assert snapshot.applied_versions() == ({"loads": 5} if properties else {"other": 1})
    assert loaded(spark, str(path), 5) == "already-applied"
