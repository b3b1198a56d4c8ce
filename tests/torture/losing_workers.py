"""Merges on a standalone cluster of two workers, one of which is killed during each; prints JSON.

Run as a program, since each pytest process has one Spark session, which has no workers to lose. The
arguments are a folder for the tables, how many workers to kill, and the seed that draws the merge,
the phase, the time in that phase, and which of the two workers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from assets.standalone_cluster import StandaloneCluster, standalone_cluster
from deltaweave import MergeBuilder, Table
from deltaweave.engine.report import Phases
from tests.builders import frame, write_table
from tests.conftest import TINY_DATA
from tests.end_to_end.failing_merges import FAST_FAILURES
from tests.support.big_source import keep_pairs_on_executors

SCHEMA = "k INT, v INT"
TARGET = [(k, k) for k in range(4_000)]
# An eighth of each file's rows: half of them are deleted, half updated; 100 rows are inserted.
SOURCE = [(k, -k) for k in range(0, 4_800, 8)]
UPSERTED = sorted(
    [(k, v) for k, v in TARGET if k % 8] + [(k, v) for k, v in SOURCE if k % 16 or k >= 4_000]
)
INSERTED = sorted(TARGET + [(k, v) for k, v in SOURCE if k >= 4_000])

VECTORS = {"delta.enableDeletionVectors": "true"}
STRATEGIES: dict[str, dict[str, str]] = {  # name to the table's properties
    "deletion-vectors": VECTORS,
    "copy-on-write": {},
    "copy-in-place": {},
    "insert-only": {},
    "pairs on executors": {},
}
# When a worker is killed; at "source lost", before the scan the one that holds rows of the source.
MOMENTS = ("materialize", "find", "write", "source lost")
_PHASES = {
    "materialize source": "materialize",
    "scanning files": "find",
    "Rewriting": "write",
    "writing new files": "write",
}


def session(cluster: StandaloneCluster) -> SparkSession:
    os.environ.update(cluster.environment)
    conf = {
        **TINY_DATA,
        **FAST_FAILURES,
        "spark.master": cluster.master,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "700m",
        "spark.executor.extraJavaOptions": TINY_DATA["spark.driver.extraJavaOptions"],
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    return deltaweave.local_session(**conf)


@dataclass
class Watched:
    """The phase that the merge is in, by the descriptions that it gives its Spark jobs.

    Attributes:
        under_way: The phases that have begun and not ended; a phase may work in two threads.
        begun: Of each phase, the time when it was entered first.
        seconds: Of each phase, how long it took.
        on_entering: Called with a phase before it begins.
    """

    under_way: list[str] = field(default_factory=list)
    begun: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    entered: threading.Condition = field(default_factory=threading.Condition)
    on_entering: Callable[[str], None] = lambda _: None

    def wait_for(self, phase: str) -> None:
        with self.entered:
            assert self.entered.wait_for(lambda: phase in self.begun, timeout=120), phase


@contextmanager
def watched() -> Iterator[Watched]:
    """Tell the phases of merges in the block."""
    watch, described = Watched(), Phases.described

    @contextmanager
    def telling(self: Phases, status: str) -> Iterator[None]:
        [phase] = {name for words, name in _PHASES.items() if words in status}
        watch.on_entering(phase)
        started = time.monotonic()
        with watch.entered:
            watch.under_way.append(phase)
            watch.begun.setdefault(phase, started)
            watch.entered.notify_all()
        try:
            with described(self, status):
                yield
        finally:
            watch.under_way.remove(phase)
            watch.seconds[phase] = time.monotonic() - watch.begun[phase]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phases, "described", telling)
        yield watch


@dataclass
class Case:
    """One merge, and the worker that it loses.

    Attributes:
        strategy: One of STRATEGIES.
        moment: One of MOMENTS, or None where no worker is killed.
        after: When in the phase, as a share of the time that it takes undisturbed.
        worker: Which of the two workers.
        is_kept: Whether the source is materialized, rather than files that are read again.
    """

    strategy: str
    moment: str | None = None
    after: float = 0.0
    worker: int = 0
    is_kept: bool = True


def drawn(count: int, seed: int) -> list[Case]:
    """As many cases, each strategy with each moment before one comes again."""
    draw = random.Random(seed)
    every: list[tuple[str, str]] = []
    while len(every) < count:
        round_ = list(product(STRATEGIES, MOMENTS))
        draw.shuffle(round_)
        every += round_
    return [
        Case(
            strategy,
            # An insert-only merge has no phase that finds files.
            "write" if (strategy, moment) == ("insert-only", "find") else moment,
            draw.uniform(0, 0.7),  # a merge is quicker each time: later, the phase may be over
            draw.randrange(2),
            moment in ("materialize", "source lost") or draw.random() < 0.5,
        )
        for strategy, moment in every[:count]
    ]


class Cluster:
    """Two workers and a driver; a merge may lose one of the workers, and another is started."""

    def __init__(self, cluster: StandaloneCluster, spark: SparkSession, folder: Path) -> None:
        self.workers = cluster.workers
        self.cluster = cluster
        self.spark = spark
        self.folder = folder
        self.undisturbed_seconds: dict[str, dict[str, float]] = {}
        self._number = 0

    def run(self, case: Case) -> dict[str, Any]:
        """Merge as the case says; what it came to."""
        self._number += 1
        table = Table(self.spark, str(self.folder / f"table-{self._number}"))
        properties = STRATEGIES[case.strategy]
        write_table(self.spark, table.path_or_name, TARGET, SCHEMA, files=8, properties=properties)
        source = self._source(case)
        self._until_both_work()
        killed: list[str] = []
        started = time.monotonic()
        with settings_of(self.spark, case), watched() as watch, ExitStack() as stack:
            stack.enter_context(self._killing(case, watch, killed))
            result = upsert(table, source, case.strategy).execute()
        outcome = {
            **vars(case),
            "seconds": round(time.monotonic() - started, 1),
            "killed_in": killed[0] if killed else None,
            "version": table.version(),
            "attempts": result.attempts,
            "written_by": result.strategy,
            "warnings": list(result.warnings),
            "metrics": {k: v for k, v in result.metrics.items() if "Rows" in k},
            "is_right": sorted(map(tuple, table.read().collect()))
            == (INSERTED if case.strategy == "insert-only" else UPSERTED),
        }
        if case.moment is None:
            self.undisturbed_seconds[case.strategy] = watch.seconds
        print(json.dumps(outcome), file=sys.stderr, flush=True)
        return outcome

    def _source(self, case: Case) -> DataFrame:
        rows = frame(self.spark, SOURCE, SCHEMA, files=4)
        if case.is_kept:
            return rows
        path = str(self.folder / "source")
        rows.write.format("delta").mode("ignore").save(path)
        return self.spark.read.format("delta").load(path)

    @contextmanager
    def _killing(self, case: Case, watch: Watched, killed: list[str]) -> Iterator[None]:
        """Kill a worker when the case says, and start another one."""
        if case.moment is None:
            yield
            return
        if case.moment == "source lost":

            def before_a_phase(phase: str) -> None:
                if phase != "materialize" and not killed:
                    self._kill(self._worker_with_the_source())
                    killed.append("source lost")

            watch.on_entering = before_a_phase
            yield
        else:
            thread = threading.Thread(target=self._kill_within, args=(case, watch, killed))
            thread.start()
            yield
            thread.join()
        self.cluster.add_worker()

    def _kill_within(self, case: Case, watch: Watched, killed: list[str]) -> None:
        assert case.moment is not None
        watch.wait_for(case.moment)
        # The drawn moment of the phase; it may have ended by then, which `killed_in` says.
        time.sleep(case.after * self.undisturbed_seconds[case.strategy][case.moment])
        phase = next(iter(watch.under_way), "between phases")
        self._kill(case.worker)
        killed.append(phase)

    def _kill(self, place: int) -> None:
        """End a worker and its executors by SIGKILL."""
        worker = self._alive()[place]
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def _alive(self) -> list[Any]:
        return [worker for worker in self.workers if worker.poll() is None]

    def _worker_with_the_source(self) -> int:
        """The place of a worker on whose executor a block of the materialized source is."""
        java: Any = self.spark.sparkContext._jvm
        blocks = java.org.apache.spark.SparkEnv.get().blockManager().master()
        kept = java.org.apache.spark.storage.RDDBlockId
        holders = {
            executors.apply(0).executorId()
            for rdd in self.spark.sparkContext._jsc.getPersistentRDDs()
            for executors in [blocks.getLocations(kept(rdd, 0))]
            if executors.size()
        }
        [place] = [
            place
            for place, worker in enumerate(self._alive())
            if executors_of(worker.pid) & holders
        ][:1]
        return place

    def _until_both_work(self) -> None:
        """Wait until the driver has an executor on each of two workers."""
        tracker: Any = self.spark.sparkContext._jsc.sc().statusTracker()
        deadline = time.monotonic() + 120
        while len(tracker.getExecutorInfos()) < 3:  # the driver is one
            assert time.monotonic() < deadline, "an executor does not come"
            time.sleep(0.1)


def executors_of(group: int) -> set[str]:
    """The ids of the executors among the processes of a group."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended since
            if os.getpgid(int(process.name)) == group:
                words = (process / "cmdline").read_text().split("\0")
                found |= {words[n + 1] for n, word in enumerate(words) if word == "--executor-id"}
    return found


@contextmanager
def settings_of(spark: SparkSession, case: Case) -> Iterator[None]:
    """What forces the strategy, and whether the source is materialized, in the block."""
    settings = {
        "spark.databricks.delta.merge.materializeSource": "all" if case.is_kept else "auto",
        "spark.deltaweave.merge.rewriteInPlace": str(case.strategy == "copy-in-place").lower(),
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    with pytest.MonkeyPatch.context() as patch:
        if case.strategy == "pairs on executors":
            keep_pairs_on_executors(patch)
        yield


def upsert(table: Table, source: DataFrame, strategy: str) -> MergeBuilder:
    merge = table.merge(source, on="t.k = s.k")
    if strategy != "insert-only":
        merge = merge.when_matched_delete(condition="s.k % 16 = 0")
        merge = merge.when_matched_update({"v": "s.v"})
    return merge.when_not_matched_insert({"k": "s.k", "v": "s.v"})


def main(folder: Path, count: int, seed: int) -> None:
    cases = drawn(count, seed)
    strategies = [name for name in STRATEGIES if any(name == case.strategy for case in cases)]
    with standalone_cluster(folder / "cluster") as started:
        spark = session(started)
        try:
            cluster = Cluster(started, spark, folder)
            cluster.run(Case(strategies[0]))  # what the first merge takes, no later one does
            undisturbed = {name: cluster.run(Case(name)) for name in strategies}
            disturbed = [cluster.run(case) for case in cases]
        finally:
            spark.stop()
    print(json.dumps({"undisturbed": undisturbed, "disturbed": disturbed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
