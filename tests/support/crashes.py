"""Merge-on-read tables that are being worked on when their process is killed.

Run as a program, with a folder and names of points. For each point it makes a table, starts what
comes to that point, and stops there; when it stands at all of them, it kills its process group, the
JVM with it. Files and logs are then as they were at the points: nothing was closed or undone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable
from deltaweave import table as table_module
from deltaweave.changes.merge_on_read.changeset import Changeset
from deltaweave.changes.side_tables import Tombstones
from deltaweave.delta.commit import table_write
from deltaweave.delta.commit.transaction import Transaction
from tests.conftest import TINY_DATA

SCHEMA = "k INT, v INT, seq INT, op STRING"
BATCHES = {
    1: [(1, 10, 1, "c"), (2, 20, 1, "c"), (3, 30, 1, "c")],
    2: [(1, 11, 2, "u"), (2, None, 2, "d"), (4, 40, 2, "c")],
    # 2 is late: it was deleted by an event after this one.
    3: [(3, 31, 3, "u"), (2, 99, 1, "u"), (5, 50, 3, "c")],
}
_SECONDS = 90

Work = Literal["ingest", "merge", "overwrite", "purge"]


@dataclass(frozen=True)
class Point:
    """Where a process dies.

    Attributes:
        work: What it does there.
        owner: Where the function is that it is in.
        function: The function's name.
        after: Whether it has come to its end, or has not begun.
        call: Which call of the function since the work began.
        seen: The newest batch that is then in the table.
    """

    work: Work
    owner: Any
    function: str
    after: bool = False
    call: int = 1
    seen: int = 2


# Delta's writer has written its files when the commit is called.
_WRITTEN = (table_write, "committed")
POINTS = {
    "nothing appended": Point("ingest", Changeset, "append", seen=1),
    "files of an append written": Point("ingest", *_WRITTEN, seen=1),
    "appended, and the stream does not know": Point(
        "ingest", MergeOnReadTable, "append", after=True
    ),
    "files of remembered deletes written": Point("merge", *_WRITTEN),
    "deletes remembered": Point("merge", Tombstones, "remember", after=True),
    "files of a merge written": Point("merge", Transaction, "commit"),
    "merged": Point("merge", Transaction, "commit", after=True),
    # Its first commit is that of the deletes.
    "files of an overwrite written": Point("overwrite", *_WRITTEN, call=2),
    "overwritten": Point("overwrite", table_module, "write_rows", after=True),
    "nothing purged": Point("purge", table_module, "write_rows"),
    "purged": Point("purge", table_module, "write_rows", after=True),
}


def table_at(spark: SparkSession, folder: Path) -> MergeOnReadTable:
    """The table in a folder."""
    return MergeOnReadTable(
        spark,
        str(folder / "base"),
        keys=["k"],
        sequence_by="seq",
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"],
        keep_merged_for=timedelta(0),
    )


def land(folder: Path, number: int) -> None:
    """A batch, as a file in `landing`."""
    names = ["k", "v", "seq", "op"]
    landing = folder / "landing"
    landing.mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(names, event, strict=True))) for event in BATCHES[number]]
    (landing / f".{number}").write_text("\n".join(lines))
    (landing / f".{number}").rename(landing / f"{number}.json")


def ingest(spark: SparkSession, folder: Path, landing: Path) -> None:
    """Append the batches that have landed."""
    stream = spark.readStream.schema(SCHEMA).json(str(landing))
    table = table_at(spark, folder)
    table.ingest(stream, name="orders", checkpoint=str(folder / "checkpoint")).awaitTermination()


def _prepared(spark: SparkSession, folder: Path, works: set[Work]) -> dict[Work, Path]:
    """For each work, a folder with a table for which there is such work to do."""
    landing = folder / "landing"
    table = table_at(spark, folder / "now")
    land(folder, 1)
    ingest(spark, folder / "now", landing)
    table.rematerialize()
    land(folder, 2)
    before = {"ingest": shutil.copytree(folder / "now", folder / "to-ingest")}
    ingest(spark, folder / "now", landing)
    merge = shutil.copytree(folder / "now", folder / "to-merge")
    if "purge" in works:
        table.rematerialize("merge")
    return {**before, "merge": merge, "overwrite": merge, "purge": folder / "now"}


class _Stops:
    """Lets one thread at a time run into a point, and stay there."""

    def __init__(self) -> None:
        self._point: Point | None = None
        self._calls = 0
        self._arrived = threading.Event()
        for owner, function in {(p.owner, p.function) for p in POINTS.values()}:
            self._watch(owner, function)

    def run_into(self, point: Point, work: Callable[[], None]) -> None:
        self._point, self._calls = point, 0
        self._arrived.clear()
        threading.Thread(target=work, daemon=True).start()
        if not self._arrived.wait(_SECONDS):
            raise TimeoutError(f"{point} was not reached")

    def _watch(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            point = self._point
            is_it = point is not None and (point.owner, point.function) == (owner, name)
            if is_it:
                self._calls += 1
            is_it = is_it and point is not None and self._calls == point.call
            if is_it and point is not None and not point.after:
                self._stay()
            result = function(*arguments, **options)
            if is_it:
                self._stay()
            return result

        setattr(owner, name, watched)

    def _stay(self) -> None:
        self._point = None
        self._arrived.set()
        threading.Event().wait()


def main(folder: Path, names: list[str]) -> None:
    """Come to the points, and die."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = deltaweave.local_session(**TINY_DATA)
    prepared = _prepared(spark, folder, {POINTS[name].work for name in names})
    stops = _Stops()
    for number, name in enumerate(names):
        point = POINTS[name]
        place = folder / f"at-{list(POINTS).index(name)}"
        shutil.copytree(prepared[point.work], place)
        # Streams that run at once, as these do when they stop, need names and ids of their own.
        (place / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
        (place / "checkpoint" / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        own = spark.newSession()
        table = table_at(own, place)
        work: dict[Work, Callable[[], Any]] = {
            "ingest": lambda own=own, place=place: ingest(own, place, folder / "landing"),
            "merge": lambda table=table: table.rematerialize("merge"),
            "overwrite": lambda table=table: table.rematerialize("overwrite"),
            "purge": table.purge,
        }
        stops.run_into(point, work[point.work])
        print(number, name, file=sys.stderr, flush=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
