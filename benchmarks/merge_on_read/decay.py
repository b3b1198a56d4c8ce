"""Measures how reads of a merge-on-read table slow down as changes accumulate."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks.data.tables import compute
from benchmarks.merge_on_read.tables import UseCase
from benchmarks.report import Report, environment_of, screen_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession
    from rich.table import Table


@dataclass(frozen=True)
class Decay:
    """The times of reading one table after each batch.

    Attributes:
        trigger_rows: The number of pending changes at which the base was rematerialized; None for
            never.
        pending: How many changes were pending after each batch.
        read_seconds: The time to read every column of every row after each batch.
        rematerialize_seconds: The time of each rematerialization.
    """

    trigger_rows: int | None
    pending: Sequence[int]
    read_seconds: Sequence[float]
    rematerialize_seconds: Sequence[float]


class DecayReport(Report[Decay]):
    """The times of two tables, the second of them rematerialized."""

    benchmark = "decay"

    def table(self) -> Table:
        """Return a row for each batch, with times and pending changes."""
        left, kept = self.results
        table = screen_table(
            (),
            ("batches", "pending", "read s", "pending, with trigger", "read s, with trigger"),
            f"{self.settings['rows']:,} rows; rematerialized at {kept.trigger_rows:,} pending "
            f"changes, {len(kept.rematerialize_seconds)} times, "
            f"{sum(kept.rematerialize_seconds):.1f} s in all",
        )
        for number in range(len(left.pending)):
            cells = [
                text
                for each in self.results
                for text in (f"{each.pending[number]:,}", f"{each.read_seconds[number]:.2f}")
            ]
            table.add_row(str(number), *cells)
        return table

    def content(self) -> Mapping[str, object]:
        """Return the times of both tables."""
        return {"tables": [asdict(each) for each in self.results]}

    def draw(self, figure: Figure) -> None:
        """Draw the times over the batches."""
        axes = figure.subplots()
        for each in self.results:
            label = (
                "never rematerialized"
                if each.trigger_rows is None
                else f"rematerialized at {each.trigger_rows:,} pending changes"
            )
            axes.plot(each.read_seconds, marker=".", label=label)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batches appended")
        axes.set_ylabel("seconds to read all")
        axes.legend()


def measure_decay(
    spark: SparkSession,
    directory: Path,
    *,
    rows: int,
    batch_rows: int,
    batches: int,
    trigger_rows: int,
    runs: int,
) -> DecayReport:
    """Append batches of changes to two equal tables, and rematerialize only the second one.

    Args:
        spark: The session.
        directory: Where the tables are kept while it runs.
        rows: Rows of the base.
        batch_rows: Changes in a batch, each to a row that is drawn evenly.
        batches: How many batches.
        trigger_rows: The number of pending changes at which the second table is rematerialized.
        runs: How often each state is read; the median counts.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".decay-") as home:
        left, kept = Path(home) / "left", Path(home) / "kept"
        UseCase.at(spark, left, rows).make()
        shutil.copytree(left, kept)
        results = [
            _decay(UseCase.at(spark, place, rows), batch_rows, batches, trigger, runs)
            for place, trigger in ((left, None), (kept, trigger_rows))
        ]
    return DecayReport({"rows": rows, "batch_rows": batch_rows}, environment_of(spark), results)


def _decay(
    use_case: UseCase, batch_rows: int, batches: int, trigger_rows: int | None, runs: int
) -> Decay:
    table, spark = use_case.table, use_case.table.spark
    _read_seconds(use_case)  # the first read compiles code
    pending, read, rematerialized = [], [_median_read(use_case, runs)], []
    pending.append(table.pending().rows)
    for number in range(batches):
        values = spark.range(number * batch_rows, (number + 1) * batch_rows)
        numbered = values.select(
            F.col("id").alias("value"), F.timestamp_seconds(F.lit(1 + number)).alias("timestamp")
        )
        table.append(use_case.updates(numbered))
        if trigger_rows is not None and table.pending().rows >= trigger_rows:
            began = time.perf_counter()
            table.rematerialize()
            rematerialized.append(time.perf_counter() - began)
        pending.append(table.pending().rows)
        read.append(_median_read(use_case, runs))
    return Decay(trigger_rows, pending, read, rematerialized)


def _median_read(use_case: UseCase, runs: int) -> float:
    return median(_read_seconds(use_case) for _ in range(runs))


def _read_seconds(use_case: UseCase) -> float:
    began = time.perf_counter()
    compute(use_case.table.read())
    return time.perf_counter() - began
