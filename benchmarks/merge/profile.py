"""Where the time of a case's merge goes: jobs, planning, the commit, Python, and what is least.

The parts add up to the whole: a moment in the commit is the commit's; any other in which a job runs
is the jobs'; any other in which Python waits for the JVM is planning; the rest is Python's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group

from benchmarks.data.tables import Workspace
from benchmarks.merge.case import Case, Merges
from benchmarks.merge.parquet_limit import ParquetLimit, parquet_limit
from benchmarks.merge.runner import OnClones, Run, clones_of
from benchmarks.merge.spark_work import Interval, noted_calls, noted_work
from benchmarks.report import Report, screen_table
from deltaweave.engine.report import listening
from deltaweave.statements import merge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITTING = "MERGE operation - committing"
_MIB = 1 << 20


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


class ProfileReport(Report[Profile]):
    """Where the time of the cases' merges went."""

    benchmark = "profile"

    def table(self) -> Group:
        """Return two tables: seconds beside the limit, then what was done."""
        seconds = screen_table(
            ("case",),
            ("vectors", "whole", "jobs", "planning", "commit", "Python", "limit", "times\nlimit"),
            "Seconds; limit: pyarrow reads the keys and writes the changed rows",
        )
        work = screen_table(
            ("case",),
            (
                "vectors",
                "jobs",
                "tasks",
                "tasks,\nseconds",
                "py4j\ncalls",
                "MiB of\ncandidates",
                "MiB\nwritten",
            ),
        )
        for table in (seconds, work):
            table.columns[0].no_wrap = True
        for each in self.results:
            label = (each.case.label, "on" if each.deletion_vectors else "off")
            parts = each.parts
            seconds.add_row(
                *label,
                *(
                    f"{part:.2f}"
                    for part in (parts.whole, parts.jobs, parts.planning, parts.commit)
                ),
                f"{parts.python:.2f}",
                f"{each.limit.seconds:.3f}",
                "-" if each.times_limit is None else f"{each.times_limit:.1f}",
            )
            work.add_row(
                *label,
                f"{each.jobs:,}",
                f"{each.tasks:,}",
                f"{each.task_seconds:.2f}",
                f"{each.calls:,}",
                f"{each.read_bytes / _MIB:.1f}",
                f"{each.written_bytes / _MIB:.1f}",
            )
        return Group(seconds, work)

    def content(self) -> Mapping[str, object]:
        """Return the profiles."""
        return {"cases": [_as_json(each) for each in self.results]}


def measure_profile(case: Case, workspace: Workspace, *, runs: int) -> Profile:
    """Profile the first merge of a case on the engine: the run whose time is the median.

    Args:
        case: The case.
        workspace: Where its tables are kept.
        runs: How many runs there are, each on a fresh clone, after one that does not count.
    """
    found: list[Profile] = []

    def profiled(_: SparkSession, merges: Merges, table: Path) -> Run:
        found.append(_profiled(case, workspace, merges, table))
        return Run((found[-1].parts.whole,))

    with clones_of(case, workspace) as clones:
        side = OnClones("profiled", clones, profiled)
        for number in range(1 + runs):
            clones.clear()
            side.run(clones.first_merge, number)
    counted = sorted(found[1:], key=lambda each: each.parts.whole)
    return counted[(runs - 1) // 2]


def time_parts(
    whole: Interval,
    jobs: Sequence[Interval],
    calls: Sequence[Interval],
    commit: Sequence[Interval],
) -> TimeParts:
    """Return the parts of a time, by when jobs, calls and the commit ran; they may overlap."""
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

    with noted_work(spark) as work, noted_calls(spark) as calls, listening(note):
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


def _as_json(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.case.name,
        "deletion_vectors": profile.deletion_vectors,
        "strategy": profile.strategy,
        "seconds": asdict(profile.parts),
        "jobs": profile.jobs,
        "tasks": profile.tasks,
        "task_seconds": profile.task_seconds,
        "py4j_calls": profile.calls,
        "candidate_bytes": profile.read_bytes,
        "written_bytes": profile.written_bytes,
        "limit_seconds": asdict(profile.limit),
        "times_limit": profile.times_limit,
    }
