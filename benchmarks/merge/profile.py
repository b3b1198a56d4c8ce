"""Where the time of a case's merge goes: jobs, planning, the commit, Python, and what is least.

The parts add up to the whole: a moment in the commit is the commit's; any other in which a job runs
is the jobs'; any other in which Python waits for the JVM is planning; the rest is Python's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data import Workspace
from benchmarks.merge.case import Case, Merges
from benchmarks.merge.jvm_calls import Interval, noted_calls
from benchmarks.merge.parquet_limit import ParquetLimit, parquet_limit
from benchmarks.merge.runner import Run, clones_of
from benchmarks.merge.spark_work import noted_work
from deltaweave.engine.phases import telling
from deltaweave.statements import merge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITTING = "MERGE operation - committing"


@dataclass(frozen=True)
class TimeParts:
    """The parts of a merge's time, in seconds; they add up to `whole`.

    Attributes:
        whole: All of it.
        jobs: While a Spark job ran.
        planning: While Python waited for the JVM and no job ran: analysis, plans, Delta's log.
        commit: The commit, with its jobs and calls.
        python: While none of these ran: Python and pyarrow on the driver.
    """

    whole: float
    jobs: float
    planning: float
    commit: float
    python: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a merge went.

    Attributes:
        case: The case.
        deletion_vectors: Whether the target has deletion vectors enabled.
        strategy: How the changes were written.
        parts: The parts of its time.
        jobs: How many Spark jobs ran.
        tasks: How many tasks these had.
        task_seconds: The time of the tasks, added up over all cores.
        calls: How many calls of the JVM Python made.
        read_bytes: The size of the candidate files.
        written_bytes: The size of the new files.
        limit: What pyarrow needs to read the keys and to write the changed rows.
    """

    case: Case
    deletion_vectors: bool
    strategy: str
    parts: TimeParts
    jobs: int
    tasks: int
    task_seconds: float
    calls: int
    read_bytes: int
    written_bytes: int
    limit: ParquetLimit

    @property
    def times_limit(self) -> float | None:
        """The merge's time divided by the limit; None if the merge changed nothing."""
        return self.parts.whole / self.limit.seconds if self.limit.seconds else None


def measure_profile(case: Case, workspace: Workspace, *, runs: int) -> Profile:
    """Profile the first merge of a case on the engine: the run whose time is the median.

    Args:
        case: The case.
        workspace: Where its tables are kept.
        runs: How many runs there are, each on a fresh clone, after one that does not count.
    """
    found: list[Profile] = []

    def profiled(spark: SparkSession, merges: Merges, table: Path) -> Run:
        found.append(_profiled(case, workspace, merges, table))
        return Run((found[-1].parts.whole,))

    with clones_of(case, workspace) as clones:
        one = replace(clones.prepared, statements=clones.prepared.statements[:1])
        for number in range(1 + runs):
            clones.clear()
            clones.run(profiled, one, f"profiled-{number}")
    counted = sorted(found[1:], key=lambda each: each.parts.whole)
    return counted[(runs - 1) // 2]


def time_parts(
    whole: Interval,
    jobs: Sequence[Interval],
    calls: Sequence[Interval],
    commit: Sequence[Interval],
) -> TimeParts:
    """Split a time by when jobs, calls of the JVM and the commit ran; they may overlap."""
    in_commit = _length(whole, commit)
    in_jobs = _length(whole, [*commit, *jobs])
    in_calls = _length(whole, [*commit, *jobs, *calls])
    all_of_it = whole[1] - whole[0]
    return TimeParts(
        whole=all_of_it,
        jobs=in_jobs - in_commit,
        planning=in_calls - in_jobs,
        commit=in_commit,
        python=all_of_it - in_calls,
    )


def _length(whole: Interval, intervals: Sequence[Interval]) -> float:
    """Return how much of the whole the intervals cover together."""
    covered, reached = 0.0, whole[0]
    for began, ended in sorted(intervals):
        begin, end = max(began, reached), min(ended, whole[1])
        if end > begin:
            covered += end - begin
            reached = end
    return covered


def _profiled(case: Case, workspace: Workspace, merges: Merges, table: Path) -> Profile:
    spark, (statement,) = workspace.spark, merges.statements
    committing: list[float] = []

    def note(status: str) -> None:
        if status == _COMMITTING:
            committing.append(time.time())

    with noted_work(spark) as work, noted_calls(spark) as calls, telling(note):
        began = time.time()
        result = merge(spark, statement.into(table))
        ended = time.time()
    # The last: a merge that lost to another commit begins a commit for each attempt.
    commit = [(begin, begin + result.commit_time_ms / 1000) for begin in committing[-1:]]
    with tempfile.TemporaryDirectory(dir=workspace.directory, prefix=".limit-") as directory:
        limit = parquet_limit(
            table,
            result.touched_files,
            statement.condition,
            Path(directory),
            spark.sparkContext.defaultParallelism,
        )
    return Profile(
        case,
        workspace.deletion_vectors,
        result.strategy,
        time_parts((began, ended), work.jobs, calls, commit),
        len(work.jobs),
        work.tasks,
        work.task_seconds,
        len(calls),
        result.metrics["numTargetBytesAfterSkipping"],
        result.metrics["numTargetBytesAdded"],
        limit,
    )
