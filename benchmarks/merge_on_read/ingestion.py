"""Measures how many changes a minute a merge-on-read table can take, and how fresh it stays."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.data.tables import sql_name
from benchmarks.merge_on_read.tables import UPDATED, UseCase
from benchmarks.report import Report, environment_of, screen_table
from deltaweave.changes.events import SEQUENCE
from deltaweave.changes.merge_on_read import BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.table import Table

FRESH_SECONDS = 60.0
WARM_UP_SECONDS = 10


@dataclass(frozen=True)
class Ingested:
    """The results for changes that arrived at one rate.

    Attributes:
        rate: Arriving changes a minute.
        changes: How many changes were appended.
        staleness: For each batch after the warm-up, the seconds from its oldest change to the
            commit that makes the batch visible to readers.
        behind: Seconds from the newest change in the table to the end.
        rows_equal: Whether each change was appended once, and the view shows the newest change of
            each row.
    """

    rate: int
    changes: int
    staleness: Sequence[float]
    behind: float
    rows_equal: bool

    @property
    def holds(self) -> bool:
        """Whether the table was never more than a minute behind."""
        return max([self.behind, *self.staleness]) < FRESH_SECONDS


class IngestionReport(Report[Ingested]):
    """The results of the rates, rising."""

    benchmark = "ingest"

    def table(self) -> Table:
        """Return a row for each rate."""
        table = screen_table(
            (),
            ("changes a minute", "appended", "stale, median s", "most s", "holds", "rows equal"),
            f"Partial updates over all of {self.settings['rows']:,} rows; stale: from a change to "
            "its commit",
        )
        for each in self.results:
            table.add_row(
                f"{each.rate:,}",
                f"{each.changes:,}",
                f"{median(each.staleness):.1f}" if each.staleness else "",
                f"{max([each.behind, *each.staleness]):.1f}",
                "yes" if each.holds else "no",
                "yes" if each.rows_equal else "NO",
            )
        return table

    def content(self) -> Mapping[str, object]:
        """Return the rates, and the highest that holds."""
        held = [each.rate for each in self.results if each.holds]
        return {
            "highest_rate_that_holds": max(held, default=None),
            "rates": [
                {
                    "changes_a_minute": each.rate,
                    "appended": each.changes,
                    "staleness_seconds": list(each.staleness),
                    "behind_seconds": each.behind,
                    "holds": each.holds,
                    "rows_equal": each.rows_equal,
                }
                for each in self.results
            ],
        }

    def problem(self) -> str | None:
        """Return whether a table is wrong."""
        right = all(each.rows_equal for each in self.results)
        return None if right else "Changes were lost, or appended twice."


def measure_ingestion(
    spark: SparkSession,
    directory: Path,
    *,
    rows: int,
    rates: Sequence[int],
    seconds: int,
    every: str,
) -> IngestionReport:
    """Append changes at each rate in turn, each to its own table, until a rate does not hold.

    Args:
        spark: The session.
        directory: Where the tables are kept while it runs.
        rows: Rows of the base.
        rates: Changes a minute, rising.
        seconds: How long each rate lasts.
        every: How often a batch is appended, e.g. `5 seconds`.
    """
    settings = {"rows": rows, "seconds": seconds, "every": every}
    report = IngestionReport(settings, environment_of(spark))
    with tempfile.TemporaryDirectory(dir=directory, prefix=".ingestion-") as home:
        made = UseCase.at(spark, Path(home) / "made", rows)
        made.make()
        for rate in rates:
            place = Path(home) / str(rate)
            shutil.copytree(Path(home) / "made", place)
            ingested = _ingested(UseCase.at(spark, place, rows), place, rate, seconds, every)
            report = report.with_result(ingested)
            if not ingested.holds:
                break
    return report


def _ingested(use_case: UseCase, place: Path, rate: int, seconds: int, every: str) -> Ingested:
    table, spark = use_case.table, use_case.table.spark
    coming = spark.readStream.format("rate").options(
        rowsPerSecond=max(1, rate // 60), numPartitions=spark.sparkContext.defaultParallelism
    )
    query = table.ingest(
        use_case.updates(coming.load()),
        name="bench",
        checkpoint=str(place / "checkpoint"),
        every=every,
    )
    began = time.time()
    _wait(query, WARM_UP_SECONDS + seconds)
    ended = time.time()
    query.stop()
    # The batch of the base precedes those of the stream.
    batches = _batches(spark, use_case)
    counted = [row for row in batches if row["committed"] > began + WARM_UP_SECONDS]
    return Ingested(
        rate,
        sum(int(row["changes"]) for row in batches),
        [row["committed"] - row["oldest"] for row in counted],
        ended - max((row["newest"] for row in batches), default=began),
        _is_right(use_case),
    )


def _wait(query: StreamingQuery, seconds: float) -> None:
    """Wait; raise the stream's error if it fails meanwhile."""
    query.awaitTermination(int(seconds))
    error = query.exception()
    if error is not None:
        raise error


def _batches(spark: SparkSession, use_case: UseCase) -> list[Mapping[str, float]]:
    """Return the number of changes, the oldest and newest, and the commit time of each batch."""
    changes = use_case.table.changes.path_or_name
    history = spark.sql(f"DESCRIBE HISTORY {sql_name(Path(changes))}")
    # The first version created the changeset; each later version appended the batch of its number.
    committed = history.select(
        F.col("version").alias(BATCH), F.unix_millis("timestamp").alias("committed")
    )
    time_of = F.unix_millis(F.col(SEQUENCE)["at"]["time"])
    batches = (
        use_case.table.changes.read()
        .where(F.col(BATCH) > 1)  # the first batch fills the base
        .groupBy(BATCH)
        .agg(
            F.count("*").alias("changes"),
            F.min(time_of).alias("oldest"),
            F.max(time_of).alias("newest"),
        )
        .join(committed, BATCH)
        .select("changes", *[(F.col(c) / 1000).alias(c) for c in ("oldest", "newest", "committed")])
    )
    return [row.asDict() for row in batches.collect()]


def _is_right(use_case: UseCase) -> bool:
    """Return whether changes are numbered from 0 without gaps, and the view shows the newest."""
    number = F.col(SEQUENCE)["at"]["number"]
    changes = use_case.table.changes.read().where(F.col(BATCH) > 1)
    found = changes.agg(
        F.count("*").alias("changes"),
        F.count_distinct(number).alias("numbers"),
        F.max(number).alias("last"),
    ).first()
    assert found is not None
    newest = changes.groupBy("id").agg(F.max_by(number, SEQUENCE).alias("newest"))
    shown = use_case.table.read().join(newest, "id", "full")
    wrong = shown.where(
        F.when(F.col("newest").isNull(), F.col(UPDATED[0]) != 0).otherwise(
            ~F.col(UPDATED[0]).eqNullSafe(F.col("newest"))
        )
    )
    numbered = found["changes"] == found["numbers"] == (found["last"] or -1) + 1
    return bool(numbered and wrong.isEmpty() and use_case.table.read().count() == use_case.rows)
