"""A process that does the works of a lake until it is killed, and begins where another one ended.

Arguments: what to do, a seed, and folders of lakes. `work` works on one lake without end; `finish`
does the work that another process had begun once more, and vacuums all tables; `read` reads the
merge-on-read tables by the library's own view until it is killed, and prints a line for each read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table, apply_changes
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.maintenance import UpkeepPolicy, optimize, purge, statistics, vacuum
from tests.builders import frame, write_table
from tests.conftest import TINY_DATA
from tests.support.big_source import keep_pairs_on_executors
from tests.support.settings import configured
from tests.torture.killed_model import (
    COUNT_SCHEMA,
    COUNTED,
    EVENT_SCHEMA,
    MERGED_ON_READ,
    Lake,
    Work,
    counts,
    initial_rows,
    inserts,
)

# Beyond the time of a read, and soon enough for VACUUM to delete files between the kills.
_KEPT = {"delta.deletedFileRetentionDuration": "interval 3 minutes"}
_VECTORS = {"delta.enableDeletionVectors": "true"}
PROPERTIES: dict[str, dict[str, str]] = {
    "vectors": _VECTORS,
    "copied": {},
    "in_place": {},
    "inserted": {},
    "executors": {**_VECTORS, "delta.enableChangeDataFeed": "true"},
    "stream_of_counts": _VECTORS,
}
_REWRITTEN = {"copied": "false", "in_place": "true"}
_POLICY = UpkeepPolicy(
    small_files=2,
    deleted_row_fraction=0.01,
    time_between_vacuums=timedelta(0),
    least_retention=timedelta(0),
)
_EVENTS: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["seq", "op"],
}


def session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djdk.lang.Process.launchMechanism=VFORK"
    memory = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": java}
    place = {
        "spark.local.dir": os.environ["TMPDIR"],
        "spark.sql.warehouse.dir": os.environ["TMPDIR"],
        ON_DRIVER: "auto",
    }
    return deltaweave.local_session(**{**TINY_DATA, **memory, **place})


class Worker:
    """Does works on a lake."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake

    def prepare(self) -> None:
        """Write the tables that are there before the first work, if they are not yet."""
        if self.lake.journal():
            return
        for name, properties in PROPERTIES.items():
            path = str(self.lake.table(name))
            write_table(
                self.spark,
                path,
                initial_rows(),
                "k INT, n INT",
                files=3,
                properties={**properties, **_KEPT},
            )
        Table(self.spark, str(self.lake.table("copied"))).index_keys("k")
        for landing in ("stream_of_counts", "stream_of_events"):
            (self.lake.folder / "landing" / landing).mkdir(parents=True)

    def do(self, work: Work) -> None:
        """Do a work, whatever of it was done before a kill."""
        self.lake.note("begun", work)
        if work.kind == "upkeep":
            self._keep(work.table)
        elif work.table == "stream_of_counts":
            self._count_from_stream(work)
        elif work.table in COUNTED:
            self._count(work)
        elif work.table == "inserted":
            self._insert(work)
        elif work.table in ("current", "history"):
            kind = 2 if work.table == "history" else 1
            path = str(self.lake.table(work.table))
            options = {**_EVENTS, "stored_as_scd_type": kind, "idempotency": self._pair(work)}
            options["except_column_list"] = ["p", "seq", "op"]
            apply_changes(self.spark, path, self._events(work), **options)
        else:
            self._merge_on_read(work)
        self.lake.note("done", work)

    def _count(self, work: Work) -> None:
        settings = {REWRITE_IN_PLACE: _REWRITTEN.get(work.table, "auto")}
        with configured(self.spark, settings), self._limits(work.table):
            source = frame(self.spark, counts(work.step), COUNT_SCHEMA)
            _count(self._table(work.table), source, self._pair(work))

    def _insert(self, work: Work) -> None:
        rows = frame(self.spark, inserts(work.step), "k INT, n INT")
        table, pair = self._table(work.table), self._pair(work)
        # Nothing matches, so that a second application would insert again.
        merge = table.merge(rows, on="t.k = s.k AND t.n < s.n", idempotency=pair)
        merge.when_not_matched_insert_all().execute()

    def _count_from_stream(self, work: Work) -> None:
        names = [field.split()[0] for field in COUNT_SCHEMA.split(", ")]
        landing = self._land(work, names, counts(work.step))

        def count(batch: DataFrame, number: int) -> None:
            table = Table(batch.sparkSession, str(self.lake.table(work.table)))
            _count(table, batch, ("stream", number))

        stream = self.spark.readStream.schema(COUNT_SCHEMA).json(landing)
        writer = stream.writeStream.queryName(f"{work.table}-{work.number}")
        writer = writer.option("checkpointLocation", self._checkpoint(work.table))
        writer.trigger(availableNow=True).foreachBatch(count).start().awaitTermination()

    def _merge_on_read(self, work: Work) -> None:
        table = merge_on_read(self.spark, self.lake, work.table)
        if work.table == "on_read":
            how = work.kind.partition("/")[2]
            table.append(self._events(work), applied=self._pair(work))
        else:
            how = "auto"
            names = [field.split()[0] for field in EVENT_SCHEMA.split(", ")]
            rows = [event.row() for event in self.lake.model.events(work.table, work.step)]
            stream = self.spark.readStream.schema(EVENT_SCHEMA).json(self._land(work, names, rows))
            checkpoint = self._checkpoint(work.table)
            name = f"{work.table}-{work.number}"
            table.ingest(stream, name=name, checkpoint=checkpoint).awaitTermination()
        if how != "append":
            table.rematerialize(how)  # type: ignore[arg-type]
            table.purge()

    def _keep(self, name: str) -> None:
        beside = self.lake.table(f"{name}_changes")
        for path in (self.lake.table(name), beside):
            table = Table(self.spark, str(path))
            if table.exists():
                for operation in (optimize, purge, statistics, vacuum):
                    operation(table, _POLICY)

    def _table(self, name: str) -> Table:
        return Table(self.spark, str(self.lake.table(name)))

    def _pair(self, work: Work) -> tuple[str, int]:
        return ("works", work.number)

    def _events(self, work: Work) -> DataFrame:
        rows = [event.row() for event in self.lake.model.events(work.table, work.step)]
        return frame(self.spark, rows, EVENT_SCHEMA)

    def _land(self, work: Work, names: list[str], rows: list[tuple[Any, ...]]) -> str:
        """Let a file with rows land, unless it has landed; return the landing directory."""
        landing = self.lake.folder / "landing" / work.table
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        if not (landing / f"{work.step}.json").exists():
            (landing / f".{work.step}").write_text("\n".join(lines))
            (landing / f".{work.step}").rename(landing / f"{work.step}.json")
        return str(landing)

    def _checkpoint(self, name: str) -> str:
        return str(self.lake.folder / "checkpoints" / name)

    @contextmanager
    def _limits(self, table: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if table == "executors":
                keep_pairs_on_executors(patch)
            yield


def _count(table: Table, source: DataFrame, pair: tuple[str, int]) -> None:
    """Merge counts, which a second application would double."""
    merge = table.merge(source, on="t.k = s.k", idempotency=pair)
    merge = merge.when_matched_delete("s.gone").when_matched_update({"n": "t.n + s.n"})
    merge.when_not_matched_insert({"k": "s.k", "n": "s.n"}).execute()


def merge_on_read(spark: SparkSession, lake: Lake, name: str) -> MergeOnReadTable:
    """A merge-on-read table of a lake."""
    base = str(lake.table(name))
    return MergeOnReadTable(
        spark, base, **_EVENTS, partition_by=["p"], keep_merged_for=timedelta(0)
    )


def work(spark: SparkSession, lake: Lake) -> None:
    """Do works without end; say when it begins."""
    worker = Worker(spark, lake)
    worker.prepare()
    print("working", flush=True)
    done = lake.done()
    for each in lake.model.works():
        if each.number >= done:
            worker.do(each)


def finish(spark: SparkSession, lake: Lake) -> None:
    """Do once more what was begun, and delete the files that the newest versions do not need.

    Readers of bases then find what the last works appended to merge-on-read tables.
    """
    worker = Worker(spark, lake)
    for each in lake.model.first(lake.begun())[lake.done() :]:
        worker.do(each)
    for name in MERGED_ON_READ:
        table = merge_on_read(spark, lake, name)
        if table.changes.exists():
            table.rematerialize()
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for log in lake.logs():
        spark.sql(f"VACUUM delta.`{log.parent}` RETAIN 0 HOURS").collect()
    print("finished", flush=True)


def read(spark: SparkSession, lakes: list[Lake], names: list[str]) -> None:
    """Read without end, a third of the time, and print what is wrong with what was read."""
    while True:
        for lake in lakes:
            for name in names:
                table = merge_on_read(spark, lake, name)
                began, done = time.monotonic(), lake.done()
                if table.changes.exists() and table.base.exists():
                    rows = [(row.k, row.v) for row in table.read().collect()]
                    print(json.dumps(lake.place(name, rows, done)), flush=True)
                time.sleep(2 * (time.monotonic() - began) + 0.2)


def main(what: str, seed: str, *folders: str) -> None:
    lakes = [Lake(Path(folder), f"{seed}/{Path(folder).name}") for folder in folders]
    if what == "read":
        os.nice(5)
        read(session(), lakes, ["on_read", "stream_of_events"])
    elif what == "work":
        work(session(), lakes[0])
    else:
        finish(session(), lakes[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
