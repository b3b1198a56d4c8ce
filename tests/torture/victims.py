"""Processes that work on a lake, one after the other, and are killed at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.files_of_versions import Files, files_of, kind_of
from tests.torture.killed_model import Lake

_ROOT = Path(__file__).parents[2]
_SECONDS_TO_START, _SECONDS_TO_FINISH = 300.0, 600.0
# Works that a process finishes before the one in which it is killed. In a new JVM, the first takes
# several times as long as the next: half of the kills are in it.
_WORKS_BEFORE = (0, 0, 1, 2)
# Seconds that a work takes, until the journal knows better.
_LONG_WORK = 5.0
_QUICK_START = "-XX:TieredStopAtLevel=1"


@dataclass
class Lane:
    """One lake, on which one process after the other works.

    Attributes:
        lake: The lake.
        seed: Draws the moments.
        killed: How many processes were killed.
        kinds: What was being done when they were.
        phases: How far the work was on disk.
        orphans: Files that no version named after some kill, with their tables.
    """

    lake: Lake
    seed: int
    killed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    orphans: set[tuple[str, str]] = field(default_factory=set)

    def kill(self, times: int) -> None:
        """Start a process, kill it at a random moment of its works, and so on."""
        for number in range(times):
            drawn = random.Random(f"{self.lake.seed}/kill/{number}")
            process = self.start("work")
            self.expect(process, "working", _SECONDS_TO_START)
            self.let_work(process, drawn)
            kill_session(process.pid)
            process.wait()
            # Spark copied its jars there, 90 MB for each process.
            shutil.rmtree(scratch_of(self.lake, "work"))
            self.killed += 1
            self.look()

    def let_work(self, process: subprocess.Popen[str], drawn: random.Random) -> None:
        """Wait until a drawn moment of one of the process's works."""
        until = self.lake.done() + drawn.choice(_WORKS_BEFORE)
        while self.lake.done() < until and process.poll() is None:
            time.sleep(0.05)
        durations = sorted(self.lake.durations())
        long = durations[len(durations) * 3 // 4] if durations else _LONG_WORK
        time.sleep(drawn.uniform(0, long))
        assert process.poll() is None, self.failure(process)

    def finish(self) -> None:
        """Let the last work run again, and all files be deleted that are not needed."""
        process = self.start("finish")
        self.expect(process, "finished", _SECONDS_TO_FINISH)
        assert process.wait(_SECONDS_TO_START) == 0, self.failure(process)

    def num_repeated(self) -> int:
        """How many works were begun more than once."""
        begun = Counter(number for what, number, *_ in self.lake.journal() if what == "begun")
        return sum(times > 1 for times in begun.values())

    def look(self) -> None:
        """Note what the kill interrupted, and the files that no version names."""
        files = self.files()
        before = self.orphans.copy()
        self.orphans |= {(name, path) for name, each in files.items() for path in each.orphans}
        if not self.lake.journal() or self.lake.journal()[-1][0] == "done":
            self.kinds["between works"] += 1
            self.phases["between works"] += 1
            return
        _, _, kind, commits, _ = self.lake.journal()[-1]
        self.kinds[kind] += 1
        if self.lake.num_commits() > commits:
            self.phases["a commit of it was made"] += 1
        elif self.orphans - before:
            self.phases["files were written, nothing committed"] += 1
        else:
            self.phases["nothing was written"] += 1

    def files(self) -> dict[str, Files]:
        """The files of all Delta tables, by the tables' directories."""
        return {str(log.parent): files_of(log) for log in self.lake.logs()}

    def found(self) -> Counter[str]:
        """How many files no version named after a kill, by kind."""
        return Counter(kind_of(path) for _, path in self.orphans)

    def start(self, what: str) -> subprocess.Popen[str]:
        """Start a process of `killed_work` for the lake."""
        return start(what, self.seed, [self.lake])

    def expect(self, process: subprocess.Popen[str], word: str, seconds: float) -> None:
        """Wait until a process says a word; it is killed if it does not."""
        late = threading.Timer(seconds, kill_session, [process.pid])
        late.start()
        assert process.stdout is not None
        # VACUUM says lines of its own.
        has_said = any(line.strip() == word for line in process.stdout)
        late.cancel()
        assert has_said, self.failure(process)

    def failure(self, process: subprocess.Popen[str]) -> str:
        """What a process said that ended by itself."""
        kill_session(process.pid)
        last = self.lake.journal()[-3:]
        newest = max(self.lake.folder.glob("errors-of-*"), key=lambda path: path.stat().st_mtime)
        errors = newest.read_text()[-4000:]
        return f"seed {self.seed}, {newest}, {last}:\n{errors}"


def scratch_of(lake: Lake, what: str) -> Path:
    """Where a process that was started for a lake keeps what it needs until it ends."""
    return lake.folder / f"scratch-of-{what}"


def start(what: str, seed: int, lakes: Sequence[Lake]) -> subprocess.Popen[str]:
    """Start `killed_work` in a session of its own; its errors go to a file in the first lake."""
    scratch = scratch_of(lakes[0], what)
    scratch.mkdir(exist_ok=True)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    with (lakes[0].folder / f"errors-of-{what}").open("w") as errors:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.torture.killed_work", what, str(seed)),
                *(str(lake.folder) for lake in lakes),
            ],
            cwd=_ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{_ROOT / 'platform'}{os.pathsep}{_ROOT}",
                "SPARK_SUBMIT_OPTS": f"{options} {_QUICK_START}",
                "TMPDIR": str(scratch),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def kill_session(leader: int) -> None:
    """Kill all processes of a session, and see them dead.

    The workers' daemon has a process group of its own, so killing one group would not do.
    """
    while living := _of_session(leader):
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _of_session(leader: int) -> list[int]:
    """The processes of a session that are not dead."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found
