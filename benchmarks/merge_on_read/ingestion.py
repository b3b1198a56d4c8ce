"""Measures how many changes a minute a merge-on-read table can take, and how fresh it stays."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from rich import box
from rich.table import Table

from benchmarks.data import UPDATED, UseCase, sql_name
from deltaweave.changes.events import SEQUENCE
from deltaweave.changes.merge_on_read import BATCH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FRESH_SECONDS = 60.0
_WARM_UP_SECONDS = 10


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
        return max(self.behind, *self.staleness) < FRESH_SECONDS


def measure_ingestion(
    spark: SparkSession,
    directory: Path,
    *,
    rows: int,
    rates: Sequence[int],
    seconds: int,
    every: str,
) -> Iterator[Ingested]:
    """Append changes at each rate in turn, each to its own table, until a rate does not hold.

    Args:
        spark: The session.
        directory: Where the tables are kept while it runs.
        rows: Rows of the base.
        rates: Changes a minute, rising.
        seconds: How long each rate lasts.
        every: How often a batch is appended, e.g. `5 seconds`.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".ingestion-") as home:
        made = UseCase.at(spark, Path(home) / "made", rows)
        made.make()
        for rate in rates:
            place = Path(home) / str(rate)
            shutil.copytree(Path(home) / "made", place)
            ingested = _ingested(UseCase.at(spark, place, rows), place, rate, seconds, every)
            yield ingested
            if not ingested.holds:
                return


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
    _wait(query, _WARM_UP_SECONDS + seconds)
    ended = time.time()
    query.stop()
    # The batch of the base precedes those of the stream.
    batches = _batches(spark, use_case)
    counted = [row for row in batches if row["committed"] > began + _WARM_UP_SECONDS]
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
    """Return each batch's number of changes, oldest and newest change, and commit time."""
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


def as_table(results: Sequence[Ingested], rows: int) -> Table:
    """Lay out the results of ingestion for the screen."""
    table = Table(
        box=box.SIMPLE,
        padding=0,
        caption=f"Partial updates over all of {rows:,} rows; stale: from a change to its commit",
        caption_justify="left",
    )
    for name in (
        "changes a minute",
        "appended",
        "stale, median s",
        "most s",
        "holds",
        "rows equal",
    ):
        table.add_column(name, justify="right")
    for each in results:
        table.add_row(
            f"{each.rate:,}",
            f"{each.changes:,}",
            f"{median(each.staleness):.1f}" if each.staleness else "",
            f"{max(each.behind, *each.staleness):.1f}",
            "yes" if each.holds else "no",
            "yes" if each.rows_equal else "NO",
        )
    return table


def write_json(results: Sequence[Ingested], settings: Mapping[str, object], path: Path) -> None:
    """Write all results as JSON."""
    held = [each.rate for each in results if each.holds]
    content = {
        "benchmark": "ingest",
        **settings,
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
            for each in results
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
