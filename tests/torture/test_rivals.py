"""Writers that count keys up in one table at once, beside Delta's own MERGE in the same harness.

Each merge adds 1 to its keys, and inserts those that are not there. Whatever is lost, applied twice
or inserted twice shows in the counts. What fails for a conflict is tried again by its writer.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from delta import exceptions
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import errors
from deltaweave.engine import run
from deltaweave.engine.merge_run import ON_DRIVER
from tests.torture.sizes import first_seed, size

pytestmark = pytest.mark.torture

WRITERS = size("WRITERS", small=3, full=6)
MERGES = size("MERGES", small=4, full=40)
# More of them would take most of an hour: most start over many times.
MERGES_BY_BUILT_IN = size("MERGES_BY_BUILT_IN", small=2, full=2)
TRIES = 50
# Rows of each file; each writer has a file: no row is counted up twice by
# merges that take one of each file.
ROWS_PER_FILE = WRITERS * max(MERGES, MERGES_BY_BUILT_IN)
# Keys of rivals, which no writer counts.
OF_RIVALS = 1_000_000
NEW = 2_000_000

# What Delta raises for a lost commit; these classes share no parent.
BY_DELTA = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
)

LAYOUTS = {"deletion vectors": "true", "copy on write": "false"}

Keys = Callable[[int, int, random.Random], list[int]]
"""The keys that a writer's merge counts up, by the writer, the merge's number and a draw."""


@dataclass(frozen=True)
class Scenario:
    """What the writers do at once.

    Attributes:
        keys: The keys of each merge.
        inserts_alone: Whether a key that is there stays as it is. Such merges are done on the
            driver, where those that count read what is there.
        with_rivals: Whether others compact, delete, append and merge meanwhile.
        at_least: Of our merges, the fraction that must land without a rerun, by layout.
    """

    keys: Keys
    inserts_alone: bool = False
    with_rivals: bool = False
    at_least: dict[str, float] = field(default_factory=dict)


def rows_of_all_files(writer: int, number: int, draw: random.Random) -> list[int]:
    """A row of each file, which no other merge takes."""
    return [file * ROWS_PER_FILE + number * WRITERS + writer for file in range(WRITERS)]


def rows_of_its_file(writer: int, number: int, draw: random.Random) -> list[int]:
    first = writer * ROWS_PER_FILE
    return draw.sample(range(first, first + ROWS_PER_FILE), 5)


def rows_of_all(writer: int, number: int, draw: random.Random) -> list[int]:
    return draw.sample(range(WRITERS * ROWS_PER_FILE), 5)


def one_new_row(writer: int, number: int, draw: random.Random) -> list[int]:
    """The same for all writers: the first of them inserts it."""
    return [NEW + number]


SCENARIOS = {
    "disjoint rows of the same files": Scenario(
        rows_of_all_files, at_least={"deletion vectors": 0.95}
    ),
    "disjoint files": Scenario(
        rows_of_its_file, at_least={"deletion vectors": 0.99, "copy on write": 0.99}
    ),
    "overlapping keys": Scenario(rows_of_all),
    "upserts of one new key": Scenario(one_new_row),
    "inserts of one new key": Scenario(one_new_row, inserts_alone=True),
    "inserts of one new key, among rivals": Scenario(
        one_new_row, inserts_alone=True, with_rivals=True
    ),
    "disjoint files, among rivals": Scenario(rows_of_its_file, with_rivals=True),
    "overlapping keys, among rivals": Scenario(rows_of_all, with_rivals=True),
}


@dataclass
class Tally:
    """What became of the merges.

    Attributes:
        counted: How often each key was counted up.
        landed: Merges by how they landed: `at once`, `committed again` or `done again`; `never` if
            no try did, which happens to built-in MERGE among rivals.
        given_up: Times that a writer had to start a merge over.
    """

    counted: Counter[int] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    given_up: int = 0

    def __str__(self) -> str:
        ways = ", ".join(f"{self.landed[how]} {how}" for how in WAYS)
        return f"{ways}, {self.given_up} times started over"


WAYS = ("at once", "committed again", "done again", "never")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """How often the merges of this thread were done."""
    counts = threading.local()
    write_changes = run.write_changes

    def counted(*arguments: object) -> object:
        counts.made = getattr(counts, "made", 0) + 1
        return write_changes(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "write_changes", counted)
    return counts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_writers_at_once_lose_nothing_and_apply_nothing_twice(
    spark: SparkSession,
    tmp_path: Path,
    runs: threading.local,
    record_property: Callable[[str, object], None],
    name: str,
    layout: str,
) -> None:
    scenario, seed = SCENARIOS[name], first_seed()
    statement = inserting if scenario.inserts_alone else counting_up

    def ours(session: SparkSession, path: str, keys: list[int]) -> str:
        runs.made = 0
        source = session.createDataFrame([(key,) for key in keys], "k BIGINT")
        source.createOrReplaceTempView("s")
        result = deltaweave.merge(session, statement(path))
        if runs.made > 1:
            return "done again"
        return "at once" if result.commit_attempts == 1 else "committed again"

    def built_in(session: SparkSession, path: str, keys: list[int]) -> str:
        source = session.createDataFrame([(key,) for key in keys], "k BIGINT")
        source.createOrReplaceTempView("s")
        session.sql(statement(path))
        return "at once"

    told = []
    for who, merge, merges in (
        ("ours", ours, MERGES),
        ("built-in", built_in, MERGES_BY_BUILT_IN),
    ):
        path = str(tmp_path / who)
        write_table(spark, path, with_vectors=LAYOUTS[layout])
        began = time.monotonic()
        with rivals(spark, path) if scenario.with_rivals else no_rivals():
            tally = all_merges(spark, path, scenario.keys, merge, merges, seed)
        seconds = time.monotonic() - began
        if scenario.inserts_alone:
            tally.counted = Counter(dict.fromkeys(tally.counted, 1))
        assert differences(spark, path, tally) == [], f"{who}, seed {seed}"
        told.append(f"{who}: {tally}, {seconds / merges / WRITERS:.2f} s each")
        if who == "ours":
            assert not tally.landed["never"], f"{tally}, seed {seed}"
        if who == "ours" and (least := scenario.at_least.get(layout)):
            redone = tally.landed["done again"]
            assert not tally.given_up, f"{tally}, seed {seed}"
            assert redone <= (1 - least) * merges * WRITERS, f"{tally}, seed {seed}"
    record_property(f"{name}, {layout} ({WRITERS} writers, seed {seed})", "; ".join(told))


def counting_up(path: str) -> str:
    return (
        f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET n = t.n + 1 "
        "WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 1)"
    )


def inserting(path: str) -> str:
    return (
        f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k, n) VALUES (s.k, 1)"
    )


def write_table(spark: SparkSession, path: str, *, with_vectors: str) -> None:
    """A table of a file for each writer, with keys of its own."""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k BIGINT, n BIGINT) USING delta "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{with_vectors}')"
    )
    for writer in range(WRITERS):
        first = writer * ROWS_PER_FILE
        rows = spark.range(first, first + ROWS_PER_FILE).selectExpr("id AS k", "0L AS n")
        rows.coalesce(1).write.format("delta").mode("append").save(path)


def all_merges(
    spark: SparkSession,
    path: str,
    keys: Keys,
    merge: Callable[[SparkSession, str, list[int]], str],
    merges: int,
    seed: int,
) -> Tally:
    """Let all writers do their merges at once, each in a session of its own."""
    tally, lock = Tally(), threading.Lock()

    def write(writer: int) -> None:
        session, draw = spark.newSession(), random.Random(f"{seed} {writer}")
        session.conf.set(ON_DRIVER, "auto")
        for number in range(merges):
            of_merge = keys(writer, number, draw)
            how, given_up = landed(partial(merge, session, path, of_merge))
            with lock:
                tally.counted.update(of_merge if how != "never" else [])
                tally.landed[how] += 1
                tally.given_up += given_up

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    return tally


def landed(merge: Callable[[], str]) -> tuple[str, int]:
    """How the merge landed, and how often its writer had to start it over."""
    for given_up in range(TRIES):
        try:
            how = merge()
        except (errors.CommitConflictError, *BY_DELTA):
            continue
        return (how if not given_up else "done again"), given_up
    return "never", TRIES


def differences(spark: SparkSession, path: str, tally: Tally) -> list[str]:
    """Keys that are there twice, or were not counted as often as merges have landed for them."""
    rows = spark.read.format("delta").load(path).where(F.col("k") < OF_RIVALS)
    new = spark.read.format("delta").load(path).where(F.col("k") >= NEW)
    found = [tuple(row) for row in rows.union(new).collect()]
    expected = dict.fromkeys(range(WRITERS * ROWS_PER_FILE), 0) | dict(tally.counted)
    seen = Counter(key for key, _ in found)
    wrong = [f"key {key} is there {times} times" for key, times in seen.items() if times > 1]
    counts = dict(found)
    return wrong + [
        f"key {key}: {counts.get(key)} instead of {number}"
        for key, number in sorted(expected.items())
        if counts.get(key) != number
    ]


@contextmanager
def no_rivals() -> Iterator[None]:
    yield


@contextmanager
def rivals(spark: SparkSession, path: str) -> Iterator[None]:
    """Another writer compacts, deletes, appends and merges by turns until the block ends."""
    ended, session = threading.Event(), spark.newSession()

    def disturb() -> None:
        number = 0
        while not ended.is_set():
            row = session.range(OF_RIVALS + number, OF_RIVALS + number + 1)
            row = row.selectExpr("id AS k", "0L AS n")
            row.createOrReplaceTempView("s")
            turn: Sequence[Callable[[], object]] = (
                lambda row=row: row.write.format("delta").mode("append").save(path),
                lambda: session.sql(counting_up(path)),
                lambda: session.sql(f"OPTIMIZE delta.`{path}`"),
                lambda: session.sql(
                    f"DELETE FROM delta.`{path}` WHERE k >= {OF_RIVALS} AND k < {NEW} AND n > 0"
                ),
            )
            for act in turn:
                with suppress(*BY_DELTA):
                    act()
            number += 1

    with ThreadPoolExecutor(1) as thread:
        disturbing = thread.submit(disturb)
        try:
            yield
        finally:
            ended.set()
        disturbing.result()
