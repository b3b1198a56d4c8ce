from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from benchmarks.merge.runner import fingerprint
from benchmarks.merge_on_read.read_peers import OPERATIONS, upsert_job
from benchmarks.peers.peer_program import do_steps
from benchmarks.peers.spark_peer import SqlUpsert


@pytest.mark.minutes
def test_the_program_makes_the_table_for_each_run_and_times_each_operation(
    spark: SparkSession, tmp_path: Path
) -> None:
    base, changes = tmp_path / "base.parquet", tmp_path / "changes.parquet"
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "state": ["old", "old"]}), base)
    pyarrow.parquet.write_table(pa.table({"id": [3], "state": ["new"], "op": ["insert"]}), changes)
    # A format of the session's own, in which an append stands for the upsert.
    table = f"parquet.`{tmp_path / 'table'}`"
    sql = SqlUpsert(
        table,
        (f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'table'}' USING parquet SELECT * FROM base",),
        f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'table'}' USING parquet "
        "SELECT * FROM base UNION ALL SELECT id, state FROM changes",
    )

    done = do_steps(spark, upsert_job(sql, ["id", "state"], [base], [changes], runs=2))

    assert list(done["run_seconds"]) == list(OPERATIONS)
    assert all(len(seconds) == 2 for seconds in done["run_seconds"].values())
    rows = spark.createDataFrame([(1, "old"), (2, "old"), (3, "new")], "id BIGINT, state STRING")
    assert tuple(done["checksums"]) == fingerprint(rows)
