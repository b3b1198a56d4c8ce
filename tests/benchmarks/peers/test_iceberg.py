from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from benchmarks.data.tables import Workspace, sql_name
from benchmarks.merge.case import UPSERT, Merges, Statement
from benchmarks.merge.runner import checksums, fingerprint
from benchmarks.peers.iceberg import ICEBERG, merge_job
from tests.builders import frame


@pytest.mark.minutes
def test_a_job_merges_the_engines_rows_in_either_mode(spark: SparkSession, tmp_path: Path) -> None:
    # A space: Spark names files by URIs, Iceberg's process reads paths.
    source, target = tmp_path / "the source", tmp_path / "scale-1" / "parts" / "0.parquet"
    rows = frame(spark, [(1, "new"), (3, "new")], "id INT, state STRING")
    rows.write.format("delta").save(str(source))
    target.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "state": ["old", "old"]}), target)
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    merges = Merges(tmp_path / "unread", (statement,))

    jobs = [
        merge_job(Workspace(spark, tmp_path, 1, deletion_vectors=vectors), merges)
        for vectors in (True, False)
    ]

    for job, table in zip(jobs, ("merge_on_read", "copy_on_write"), strict=True):
        assert job["merge"].splitlines() == [
            f"MERGE INTO iceberg.bench.{table} t",
            "USING source s",
            "ON t.id = s.id",
            "WHEN MATCHED THEN UPDATE SET *",
            "WHEN NOT MATCHED THEN INSERT *",
        ]
        assert (job["table"], job["source"]) == (f"iceberg.bench.{table}", "source")
        assert job["properties"]["format-version"] == "3"
        assert job["target_files"] == [str(target)]
    modes = [job["properties"]["write.merge.mode"] for job in jobs]
    assert modes == ["merge-on-read", "copy-on-write"]
    read = spark.read.parquet(*jobs[0]["source_files"])
    (checked,) = read.selectExpr(*checksums(read.columns)).collect()
    assert tuple(map(str, checked)) == fingerprint(rows)


def test_an_upsert_changes_whole_rows_of_a_merge_on_read_table() -> None:
    sql = ICEBERG.upsert(["id", "part", "state"], ["id", "part"])

    assert sql.table == "iceberg.bench.upserted"
    _, create = sql.make
    assert "'format-version' = '3'" in create
    assert "'write.merge.mode' = 'merge-on-read'" in create
    assert create.endswith("AS SELECT * FROM base")
    assert sql.statement.splitlines() == [
        "MERGE INTO iceberg.bench.upserted t",
        "USING (SELECT id, part, state FROM changes) s",
        "ON t.id = s.id AND t.part = s.part",
        "WHEN MATCHED THEN UPDATE SET *",
        "WHEN NOT MATCHED THEN INSERT *",
    ]
