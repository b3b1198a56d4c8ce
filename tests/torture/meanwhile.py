"""Readers of lakes on which processes work and are killed meanwhile."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable

from tests.torture.killed_model import MERGED_ON_READ, TABLES, Lake, Rows
from tests.torture.victims import kill_session, start

_SECONDS_BETWEEN_READS = 0.1


def rows_of(lake: Lake, name: str) -> tuple[Rows, int]:
    """The rows of a table and its version, as delta-rs reads them; of a base alone.

    A table that no work has come to has no rows, and version -1.
    """
    if not DeltaTable.is_deltatable(str(lake.table(name))):
        return [], -1
    table = DeltaTable(str(lake.table(name)))
    read = pa.table(table.scan())
    columns = {"history": ["k", "v", "__START_AT", "__END_AT"]}
    names = columns.get(name, ["k", "v"] if "v" in read.column_names else ["k", "n"])
    rows = zip(*(read[column].to_pylist() for column in names), strict=True)
    return [tuple(row) for row in rows], table.version()


@dataclass
class Reader:
    """Reads tables over and over, and compares each with the states that it may be in.

    Attributes:
        lakes: Where the tables are.
        reads: How many tables it has read.
        wrong: What was wrong with what it read.
    """

    lakes: Sequence[Lake]
    reads: int = 0
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read in a thread for as long as the block runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._loop, args=[ended])
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _loop(self, ended: threading.Event) -> None:
        versions: dict[str, int] = {}
        while not ended.is_set():
            for lake in self.lakes:
                for name in TABLES:
                    if ended.wait(_SECONDS_BETWEEN_READS):
                        return
                    try:
                        self._read(lake, name, versions)
                    except Exception as error:
                        self.wrong.append(f"{lake.table(name)} could not be read: {error!r}")

    def _read(self, lake: Lake, name: str, versions: dict[str, int]) -> None:
        done = lake.done()
        rows, version = rows_of(lake, name)
        if version < 0:
            return
        problem = lake.place(name, rows, done, of_base=name in MERGED_ON_READ)
        path = str(lake.table(name))
        if version < versions.get(path, 0):
            problem = f"{path} went back from version {versions[path]} to {version}"
        versions[path] = version
        self.reads += 1
        if problem is not None:
            self.wrong.append(f"{path}, version {version}: {problem}")


@contextmanager
def viewing(seed: int, lakes: Sequence[Lake]) -> Iterator[Callable[[], list[str | None]]]:
    """Let Spark read the views of merge-on-read tables in a process for as long as the block runs.

    Yields:
        A function that ends it, and returns what was wrong with each read, or None.
    """
    process = start("read", seed, lakes)
    seen: list[str | None] = []
    thread = threading.Thread(target=_listen, args=[process, seen])
    thread.start()

    def end() -> list[str | None]:
        if process.returncode is None:  # not ended here before
            if process.poll() is not None:
                errors = (lakes[0].folder / "errors-of-read").read_text()[-6000:]
                seen.append(f"the reader ended by itself: {errors}")
            kill_session(process.pid)
            process.wait()
            thread.join()
        return seen

    try:
        yield end
    finally:
        end()


def _listen(process: subprocess.Popen[str], seen: list[str | None]) -> None:
    assert process.stdout is not None
    # Not what it was saying when it was killed.
    seen.extend(json.loads(line) for line in process.stdout if line.endswith("\n"))
