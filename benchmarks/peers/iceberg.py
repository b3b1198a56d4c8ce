"""Apache Iceberg as the engine's peer: its release, its merges and its upserts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from benchmarks.data.tables import MERGE_ON_READ, MODES, TARGET_FILES, Workspace
from benchmarks.merge.case import UPSERT, Merges, Statement
from benchmarks.merge.runner import Clones, Run, Side, TableState, checksums
from benchmarks.peers.peer import RunningPeer
from benchmarks.peers.spark_peer import PeerProcess, SparkPeer, SqlUpsert, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG = "iceberg"
_SOURCE = "source"  # a view in Iceberg's process


class Iceberg(SparkPeer):
    """Iceberg, whose tables hold the engine's rows in as many files."""

    modes = MODES

    def conf(self, tables: Path) -> Mapping[str, str]:
        """Return the catalog of its tables, and its extensions of Spark."""
        catalog = f"spark.sql.catalog.{_CATALOG}"
        return {
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": str(tables),
        }

    @contextmanager
    def started(self, spark: SparkSession, directory: Path) -> Iterator[RunningPeer]:
        """Start its process, which ends with the context."""
        with self.process(session_conf(spark), directory) as process:
            yield RunningIceberg(process)

    def upsert(self, columns: Sequence[str], keys: Sequence[str]) -> SqlUpsert:
        """Return the SQL that creates a merge-on-read table and upserts into it."""
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


# Iceberg's runtime for Spark 4.1 does not run on 4.2. Iceberg 1.11.0 was built with Spark 4.1.1, so
# the benchmark measures these two together.
ICEBERG = Iceberg(
    "iceberg",
    "Iceberg",
    "pyspark==4.1.1",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
)


@dataclass(frozen=True)
class RunningIceberg:
    """Iceberg's process.

    Attributes:
        process: The process.
    """

    process: PeerProcess

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of Iceberg and its Spark, by name."""
        return self.process.versions

    def side(self, clones: Clones) -> Side:
        """Return what merges in the process, in the mode of the engine's tables."""
        return _IcebergSide(self.process, clones.workspace)


@dataclass(frozen=True)
class _IcebergSide:
    process: PeerProcess
    workspace: Workspace

    def run(self, merges: Merges, number: int) -> Run:
        done = self.process.do(merge_job(self.workspace, merges))
        assert done["files_before"] == TARGET_FILES, "a task for each part wrote a file"
        return Run((done["seconds"],))

    def table_after(self, number: int) -> TableState:
        columns = self.workspace.returns().columns
        job = {"kind": "state", "table": _table(self.workspace), "checksums": checksums(columns)}
        done = self.process.do(job)
        return TableState(done["files"], tuple(done["checksums"]))


def merge_job(workspace: Workspace, merges: Merges) -> dict[str, Any]:
    """Return a job for Iceberg's process: one merge of a case, on the same rows as the engine's."""
    (statement,) = merges.statements
    source_files = workspace.spark.sql(f"SELECT * FROM {statement.source}").inputFiles()
    table = _table(workspace)
    return {
        "kind": "merge",
        "catalog": _CATALOG,
        "table": table,
        "properties": _properties(workspace.mode),
        "target_files": [str(file) for file in workspace.parts()],
        "source": _SOURCE,
        "source_files": [unquote(urlparse(file).path) for file in source_files],
        "merge": replace(statement, source=_SOURCE).into_table(table),
    }


def _table(workspace: Workspace) -> str:
    return f"{_CATALOG}.bench.{workspace.mode.replace('-', '_')}"


def _properties(mode: str) -> dict[str, str]:
    return {
        "format-version": "3",  # deletion vectors instead of delete files
        "write.merge.mode": mode,
        "write.update.mode": mode,
        "write.delete.mode": mode,
    }
