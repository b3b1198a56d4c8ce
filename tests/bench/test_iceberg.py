from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from deltaweave.bench import iceberg, iceberg_peer
from deltaweave.bench.case import UPSERT, Merges, Statement
from deltaweave.bench.runner import fingerprint
from deltaweave.bench.tables import sql_name
from tests.builders import frame


def test_a_job_merges_the_engines_rows_in_either_mode(spark: SparkSession, tmp_path: Path) -> None:
    # A space: Spark names files by URIs, Iceberg's process reads paths.
    source, target = tmp_path / "the source", tmp_path / "target.parquet"
    rows = frame(spark, [(1, "new"), (3, "new")], "id INT, state STRING")
    rows.write.format("delta").save(str(source))
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "state": ["old", "old"]}), target)
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    merges = Merges(tmp_path / "unread", (statement,))

    jobs = [
        iceberg.merge_job(spark, merges, [target], mode, runs=3)
        for mode in ("merge-on-read", "copy-on-write")
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
        assert (job["target_files"], job["runs"]) == ([str(target)], 3)
    modes = [job["properties"]["write.merge.mode"] for job in jobs]
    assert modes == ["merge-on-read", "copy-on-write"]
    read = spark.read.parquet(*jobs[0]["source_files"])
    (checked,) = read.selectExpr(*jobs[0]["checksums"]).collect()
    assert tuple(checked) == fingerprint(rows)


def test_icebergs_session_has_the_engines_settings_and_none_of_deltas(spark: SparkSession) -> None:
    conf = iceberg.session_conf(spark)

    ours = spark.sparkContext.getConf()
    for name in ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions"):
        assert conf[name] == ours.get(name)
    assert "delta" not in str(conf).lower()


def test_only_an_environment_made_with_the_pinned_spark_is_complete(tmp_path: Path) -> None:
    environment = iceberg.environment(tmp_path)
    assert not iceberg.is_made(environment)

    environment.mkdir()
    (environment / "deltaweave-made-it-with").write_text("pyspark==4.1.0")
    assert not iceberg.is_made(environment)

    (environment / "deltaweave-made-it-with").write_text(iceberg.PYSPARK)
    assert iceberg.is_made(environment)


def test_a_process_that_ends_early_is_an_error_that_names_its_log(tmp_path: Path) -> None:
    python = tmp_path / "iceberg-env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no Java >&2\nexit 1\n")
    python.chmod(0o755)
    log = tmp_path / "iceberg.log"

    with (
        pytest.raises(iceberg.IcebergError, match=r"ended early; its output is in .*iceberg\.log"),
        iceberg.started(tmp_path / "iceberg-env", {}, tmp_path, log),
    ):
        pass

    assert log.read_text() == "no Java\n"


def test_the_peers_module_needs_nothing_but_the_standard_library_and_pyspark() -> None:
    # -S: no installed package is found.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", iceberg_peer.__file__, '{"session": {}}'],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stderr.endswith("ModuleNotFoundError: No module named 'pyspark'\n")
