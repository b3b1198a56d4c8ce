"""Apache Iceberg as the engine's peer: its release, its merges and its upserts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from benchmarks.merge import UPSERT, Merges, Statement, checksums
from benchmarks.peers.peer_process import Peer, PeerProcess
from benchmarks.peers.upserts import SqlUpsert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG = "iceberg"
_SOURCE = "source"  # a view in Iceberg's process

MERGE_ON_READ, COPY_ON_WRITE = "merge-on-read", "copy-on-write"
MODES = (MERGE_ON_READ, COPY_ON_WRITE)


def _conf(tables: Path) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{_CATALOG}"
    return {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(tables),
    }


# Iceberg's runtime for Spark 4.1 does not run on 4.2. Iceberg 1.11.0 was built with Spark 4.1.1, so
# the benchmark measures these two together.
ICEBERG = Peer(
    "iceberg",
    "Iceberg",
    "pyspark==4.1.1",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    _conf,
)


@dataclass(frozen=True)
class IcebergRuns:
    """The results of Iceberg's timed runs of a case.

    Attributes:
        seconds: How long each merge took, in order.
        files_before: How many files the target had before each merge.
        checksums: The `runner.fingerprint` of the table after the last run, as strings.
    """

    seconds: tuple[float, ...]
    files_before: int
    checksums: tuple[str, ...]


def measure(process: PeerProcess, job: Mapping[str, Any]) -> IcebergRuns:
    """Run a job's merge, once untimed and then as often as the job says.

    Args:
        process: Iceberg's process.
        job: A job from `merge_job`.

    Raises:
        PeerError: The job failed.
    """
    done = process.do(job)
    return IcebergRuns(tuple(done["run_seconds"]), done["files_before"], tuple(done["checksums"]))


def merge_job(
    spark: SparkSession, merges: Merges, target_files: Sequence[Path], mode: str, runs: int
) -> dict[str, Any]:
    """Build a job for Iceberg's process: one merge of a case, on the same rows as the engine's.

    Args:
        spark: Our session, which lists the files of the source table.
        merges: The case's tables and its one statement.
        target_files: The Parquet files that the target's files were written from.
        mode: One of `MODES`.
        runs: How many timed runs.
    """
    (statement,) = merges.statements
    source_files = spark.sql(f"SELECT * FROM {statement.source}").inputFiles()
    files = [str(file) for file in target_files]
    table = f"{_CATALOG}.bench.{mode.replace('-', '_')}"
    return {
        "kind": "merge",
        "catalog": _CATALOG,
        "table": table,
        "properties": _properties(mode),
        "target_files": files,
        "source": _SOURCE,
        "source_files": [unquote(urlparse(file).path) for file in source_files],
        "merge": replace(statement, source=_SOURCE).into_table(table),
        "checksums": checksums(spark.read.parquet(*files).columns),
        "runs": runs,
    }


def upsert(columns: Sequence[str], keys: Sequence[str]) -> SqlUpsert:
    """Build the SQL that creates a merge-on-read table of Iceberg and upserts into it."""
    table = f"{_CATALOG}.bench.upserted"
    properties = ", ".join(
        f"'{name}' = '{value}'" for name, value in _properties(MERGE_ON_READ).items()
    )
    return SqlUpsert(
        table,
        (
            f"DROP TABLE IF EXISTS {table} PURGE",
            f"CREATE TABLE {table} USING iceberg TBLPROPERTIES ({properties}) "
            "AS SELECT * FROM base",
        ),
        Statement(
            f"(SELECT {', '.join(columns)} FROM changes)",
            " AND ".join(f"t.{key} = s.{key}" for key in keys),
            UPSERT,
        ).into_table(table),
    )


def _properties(mode: str) -> dict[str, str]:
    return {
        "format-version": "3",  # deletion vectors instead of delete files
        "write.merge.mode": mode,
        "write.update.mode": mode,
        "write.delete.mode": mode,
    }
