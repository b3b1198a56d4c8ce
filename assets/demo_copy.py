"""A copy of web_returns, into which Delta's own MERGE merges what the demo's runs merged.

The copy begins as the table was before the first of these runs. Each partition is merged into it
right after its run, so that both sides find the same warm JVM.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F

import deltaweave
from assets.demo_runs import Merged
from assets.landing import landing_directory
from assets.web_returns import read_returns, web_returns
from dagster_deltaweave import partition_path
from dagster_deltaweave.tables import TableLocator, merge_declaration_in
from deltaweave.delta.jvm import Jvm
from deltaweave.identifiers import quoted, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The metrics that are added up: metadata key of our merges to Delta's name.
TOTALS: Mapping[str, str] = {
    "merge/files_after_skipping": "numTargetFilesAfterSkipping",
    "merge/bytes_after_skipping": "numTargetBytesAfterSkipping",
    "merge/rows_copied": "numTargetRowsCopied",
    "merge/bytes_added": "numTargetBytesAdded",
}
SECONDS = "merge/seconds"


class RowsDifferError(RuntimeError):
    """The table and the copy hold different rows."""


@dataclass(frozen=True)
class Compared:
    """What both sides did in all, and what they hold now.

    Attributes:
        ours: Sums of the runs' metadata, by key.
        built_in: The same of Delta's own MERGE.
        num_rows: How many rows each of the tables holds.
    """

    ours: Mapping[str, float]
    built_in: Mapping[str, float]
    num_rows: int


class BuiltInCopy:
    """The copy, beside the IO manager's tables.

    Args:
        tables: Where the tables are, and the session that merges.
    """

    def __init__(self, tables: TableLocator) -> None:
        self._table = tables.table(web_returns.key)
        # Delta clones into new places only.
        place = f"{str(tables.root).rstrip('/')}_by_built_in/web_returns_{uuid4().hex[:8]}"
        self._copy = deltaweave.Table(tables.session, place)
        self._is_cloned = False
        self._totals: Counter[str] = Counter()
        self._seconds = 0.0

    def merge(self, merged: Merged) -> None:
        """Merge a partition that a run has merged."""
        spark = self._copy.spark
        if not self._is_cloned:
            self._clone(merged)
            self._is_cloned = True
        declaration = merge_declaration_in(web_returns.metadata_by_key[web_returns.key])
        assert declaration is not None
        path = partition_path(landing_directory(), merged.partition)
        read_returns(spark, path).createOrReplaceTempView("returns_for_built_in")
        statement = declaration.statement(
            table_name(self._copy.path_or_name), "returns_for_built_in"
        )
        # The session's MERGE statements may run on the engine (DELTAWEAVE_SPARK_CONF), and each run
        # may have turned that on again.
        deltaweave.disable(spark)
        began = time.perf_counter()
        metrics = _built_in_merge(spark, statement)
        self._seconds += time.perf_counter() - began
        self._totals.update({key: metrics[name] for key, name in TOTALS.items()})

    def compared(self, merged: Sequence[Merged]) -> Compared:
        """Compare both tables; return both sides' totals.

        Raises:
            RowsDifferError: The tables' rows are not equal.
        """
        ours = {
            key: sum(float(str(run.metadata.get(key, 0))) for run in merged)
            for key in (*TOTALS, SECONDS)
        }
        built_in = {**self._totals, SECONDS: self._seconds}
        return Compared(ours, built_in, self._equal_rows())

    def _clone(self, merged: Merged) -> None:
        """Make the copy of the version before a merge."""
        version = merged.metadata.get("merge/version")
        before = self._table.version() if version is None else int(str(version)) - 1
        names = (table_name(each.path_or_name) for each in (self._copy, self._table))
        copy, table = names
        self._copy.spark.sql(f"CREATE TABLE {copy} SHALLOW CLONE {table} VERSION AS OF {before}")

    def _equal_rows(self) -> int:
        """Return how many rows both tables hold."""
        rows = _signed(self._table.read(), 1).unionByName(_signed(self._copy.read(), -1))
        columns = [F.col(quoted(name)) for name in rows.columns[:-1]]
        same = rows.groupBy(*columns).agg(
            F.sum("sign").alias("more"), F.count_if(F.col("sign") > 0).alias("ours")
        )
        [found] = same.agg(F.sum(F.abs("more")), F.sum("ours")).collect()
        differing, num_rows = (int(count or 0) for count in found)
        if differing:
            raise RowsDifferError(
                f"{differing:,} rows are in the table {self._table.path_or_name} or in the copy "
                f"{self._copy.path_or_name}, but not in both."
            )
        return num_rows


def _built_in_merge(spark: SparkSession, statement: str) -> Mapping[str, int]:
    """Run a MERGE statement as Spark runs it, and return all of Delta's metrics of it.

    The table's history has fewer: it does not say how many files were scanned.
    """
    executed = spark.sql(statement)._jdf.queryExecution().commandExecuted()
    metrics = executed.commandPhysicalPlan().cmd().metrics()
    return {each._1(): int(each._2().value()) for each in Jvm.iterate(metrics)}


def _signed(rows: DataFrame, sign: int) -> DataFrame:
    return rows.withColumn("sign", F.lit(sign))
