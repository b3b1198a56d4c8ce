"""A program that runs one merge in its own Spark, and prints its time and memory as a JSON line.

It is started as a module and reads the merge as JSON from the standard input: `statement`, `conf`,
and `gc_log`, the file to which the conf makes the driver's JVM log garbage collections. Spark's
output goes to the standard error. Resident memory is that of /proc.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_INTERVAL_SECONDS = 0.2
_PAUSE = re.compile(r"Pause (?:Young|Full).* (\d+)M->(\d+)M\(\d+M\)")


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Run the merge, and return what was measured."""
    import deltaweave

    spark = deltaweave.local_session(**job["conf"])
    measured: dict[str, Any] = {}
    started = time.perf_counter()
    with sampled_memory() as memory:
        try:
            result = deltaweave.merge(spark, job["statement"])
        except Exception as error:
            measured = {"error": str(error), "error_class": type(error).__name__}
        else:
            measured = {"metrics": dict(result.metrics), "strategy": result.strategy}
        measured["merge_seconds"] = round(time.perf_counter() - started, 1)
    before, after = heap_peaks_mib(Path(job["gc_log"]))
    return {
        **measured,
        "heap_peak_mib": before,
        "heap_after_gc_mib": after,
        "driver_mib": memory.driver_mib,
        "executors_mib": memory.executors_mib,
        "python_mib": memory.python_mib,
    }


@dataclass
class PeakMemory:
    """The peaks of resident memory over all samples, in MiB.

    Attributes:
        driver_mib: The driver's JVM.
        executors_mib: The executors' JVMs together; 0 if the driver is the executor.
        python_mib: This process and the Python workers together. Pages that processes share count
            once for each of them.
    """

    driver_mib: int = 0
    executors_mib: int = 0
    python_mib: int = 0

    def look(self) -> None:
        """Take a sample, and raise each peak that it exceeds."""
        driver = executors = 0
        python = _resident_mib(os.getpid())
        for pid, parent in _descendants(os.getpid()):
            # A JVM forks before it starts a process: the fork has the JVM's pages and the name of a
            # thread, so it is not counted.
            name = _name(pid)
            if name.startswith("python"):
                python += _resident_mib(pid)
            elif name == "java" and parent == os.getpid():
                driver += _resident_mib(pid)
            elif name == "java":
                executors += _resident_mib(pid)
        self.driver_mib = max(self.driver_mib, driver)
        self.executors_mib = max(self.executors_mib, executors)
        self.python_mib = max(self.python_mib, python)


@contextmanager
def sampled_memory() -> Iterator[PeakMemory]:
    """Sample the memory five times a second while the block runs."""
    peak = PeakMemory()
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            peak.look()

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
        peak.look()


def heap_peaks_mib(log: Path) -> tuple[int, int]:
    """Return the most heap in use before and after a garbage collection, by `-Xlog:gc`.

    After a collection, the heap holds what the program needs, and garbage that only a later
    collection finds.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    pauses = [(int(before), int(after)) for before, after in _PAUSE.findall(text)]
    return max((each for each, _ in pauses), default=0), max(
        (each for _, each in pauses), default=0
    )


def _descendants(root: int) -> Iterator[tuple[int, int]]:
    """Yield the processes that a process started, or that those did, each with its parent."""
    parents = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (found := _parent(int(entry.name))) is not None:
            parents[int(entry.name)] = found
    for pid, parent in parents.items():
        above = parent
        while above in parents and above != root:
            above = parents[above]
        if above == root:
            yield pid, parent


def _parent(pid: int) -> int | None:
    # The name is in parentheses and may hold any character.
    stat = _read(pid, "stat").rpartition(")")[2].split()
    return int(stat[1]) if len(stat) > 1 else None


def _name(pid: int) -> str:
    return _read(pid, "comm").strip()


def _resident_mib(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", _read(pid, "status"), re.M)
    return int(found[1]) // 1024 if found else 0


def _read(pid: int, file: str) -> str:
    """Return a file of a process; empty if the process has ended."""
    try:
        return (_PROC / str(pid) / file).read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    answers = os.dup(1)
    os.dup2(2, 1)  # the JVM's output goes to the standard error
    answer = main(json.load(sys.stdin))
    with os.fdopen(answers, "w", encoding="utf-8") as output:
        output.write(json.dumps(answer) + "\n")
