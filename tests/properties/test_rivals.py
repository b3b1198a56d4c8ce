"""Whatever others commit before a merge does: it equals a merge that runs after them, or fails.

Each example draws a table, a merge, a kind of source and what others commit just before the merge's
own commit. Built-in MERGE runs on a copy of the table after the same commits, with a source that is
evaluated then. The merge must leave the same rows and changes, or fail with a conflict and leave
what the others left. It may fail only if its source may hold rows of an older version, or if the
others changed the table's metadata.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pyarrow
import pyarrow.parquet
import pytest
from delta.tables import DeltaTable
from hypothesis import given, note, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave import MergeResult, Table
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.errors import CommitConflictError, DeltaweaveError
from tests.builders import Rows, frame, write_table
from tests.properties.test_merge_equals_built_in import EXAMPLES, SEEDS, in_this_number
from tests.support.oracles import change_feed, newest_version, rows_as_text
from tests.support.rivals import overtake
from tests.support.settings import configured

pytestmark = pytest.mark.minutes

SCHEMA = "k INT, v INT, p STRING"
ROWS = [(k, k * 10, "ab"[k % 2]) for k in range(1, 9)]
FEED = "delta.enableChangeDataFeed"
# Only a few where the tests of every day run; the conflicts are the dear part.
EXAMPLES_HERE = max(1, min(EXAMPLES, 25) // (1 if EXAMPLES > 25 else 3))

LAYOUTS: dict[str, dict[str, str]] = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "row tracking": {"delta.enableRowTracking": "true"},
    "vectors and row tracking": {
        "delta.enableDeletionVectors": "true",
        "delta.enableRowTracking": "true",
    },
    "mapping": {"delta.columnMapping.mode": "name"},
    "constraint": {},
    "vectors of a serializable table": {
        "delta.enableDeletionVectors": "true",
        "delta.isolationLevel": "Serializable",
    },
}
STRATEGIES: dict[str, dict[str, str]] = {
    "as chosen": {},
    "on the driver": {ON_DRIVER: "true"},
    "by Spark": {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"},
    "in place": {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"},
}

Clauses = Callable[[Any], Any]


def _update(builder: Any) -> Any:
    return builder.whenMatchedUpdateAll()


def _add(builder: Any) -> Any:
    return builder.whenMatchedUpdate(set={"v": "t.v + s.v"}).whenNotMatchedInsertAll()


MERGES: dict[str, Clauses] = {
    "upsert": lambda b: _update(b).whenNotMatchedInsertAll(),
    "update": _update,
    "add": _add,
    "update greater": lambda b: b.whenMatchedUpdateAll("s.v > t.v").whenNotMatchedInsertAll(),
    "insert": lambda b: b.whenNotMatchedInsertAll(),
    "delete and insert": lambda b: b.whenMatchedDelete("t.v < 50").whenNotMatchedInsertAll(),
    "delete": lambda b: b.whenMatchedDelete(),
    "synchronize": lambda b: _update(b).whenNotMatchedInsertAll().whenNotMatchedBySourceDelete(),
}
METADATA = {"a new column", "a property", "another table"}
RIVALS: dict[str, tuple[str, ...]] = {
    "a new key": ("INSERT INTO {t} VALUES (9, 95, 'a')",),
    "new keys around": ("INSERT INTO {t} VALUES (0, 0, 'a'), (20, 200, 'a')",),
    "a key twice": ("INSERT INTO {t} VALUES (1, 15, 'b')",),
    "an update of row 1": ("UPDATE {t} SET v = v + 1000 WHERE k = 1",),
    "an update of row 8": ("UPDATE {t} SET v = v + 1000 WHERE k = 8",),
    "an update of all": ("UPDATE {t} SET v = v + 1",),
    "a moved key": ("UPDATE {t} SET k = 9 WHERE k = 8",),
    "a delete of row 2": ("DELETE FROM {t} WHERE k = 2",),
    "a delete of a partition": ("DELETE FROM {t} WHERE p = 'a'",),
    "a delete of all": ("DELETE FROM {t}",),
    "a compaction": ("OPTIMIZE {t}",),
    "a delete and a compaction": ("DELETE FROM {t} WHERE k = 3", "OPTIMIZE {t}"),
    "an older version": ("RESTORE {t} TO VERSION AS OF {before}",),
    "other rows": ("INSERT OVERWRITE {t} VALUES (1, 11, 'a'), (9, 99, 'b')",),
    "a merge": (
        "MERGE INTO {t} t USING (SELECT 1 AS k, 17 AS v, 'b' AS p UNION ALL SELECT 10, 7, 'a') s "
        "ON t.k = s.k WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    ),
    "a new column": ("ALTER TABLE {t} ADD COLUMNS (w INT)",),
    "a property": ("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '77')",),
    "another table": (
        "CREATE OR REPLACE TABLE {t} USING delta AS SELECT 1 AS k, 11 AS v, 'a' AS p",
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a source is made, and the target that it may read."""

    spark: SparkSession
    folder: Path
    target: str
    rows: Rows

    def target_rows(self) -> DataFrame:
        keys = ", ".join(str(row[0]) for row in self.rows)
        rows = self.spark.read.format("delta").load(self.target).where(f"k IN ({keys})")
        return rows.selectExpr("k", "v + 1 AS v", "p")

    def delta(self) -> DataFrame:
        path = f"{self.target}_source"
        deltalake.write_deltalake(path, self.arrow())
        return self.spark.read.format("delta").load(path)

    def files(self) -> str:
        path = self.folder / "files"
        path.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(self.arrow(), path / "part.parquet")
        return str(path)

    def arrow(self) -> pyarrow.Table:
        columns = list(zip(*self.rows, strict=True))
        types = [pyarrow.int32(), pyarrow.int32(), pyarrow.string()]
        arrays = [pyarrow.array(c, t) for c, t in zip(columns, types, strict=True)]
        return pyarrow.table(arrays, names=["k", "v", "p"])

    def named(self, rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rivals_source")
        return self.spark.table("rivals_source")

    def cached(self, rows: DataFrame) -> DataFrame:
        rows.persist().count()
        return rows


Source = Callable[[Place], DataFrame]
KNOWN: dict[str, Source] = {
    "a list": lambda at: frame(at.spark, at.rows, SCHEMA),
    "an Arrow table": lambda at: at.spark.createDataFrame(at.arrow()),
    "an RDD of a list": lambda at: at.spark.sparkContext.parallelize(at.rows).toDF(SCHEMA),
    "a Delta table": Place.delta,
    "a view": lambda at: at.named(at.delta()),
    "files": lambda at: at.spark.read.parquet(at.files()),
    "cached rows": lambda at: at.cached(frame(at.spark, at.rows, SCHEMA)),
    "a Python function": lambda at: frame(at.spark, at.rows, SCHEMA).withColumn(
        "v", F.udf(lambda v: v, "int")("v")
    ),
    "the target": Place.target_rows,
    "a view of the target": lambda at: at.named(at.target_rows()),
}
STALE: dict[str, Source] = {
    "an RDD of the target": lambda at: at.spark.createDataFrame(
        at.target_rows().rdd.map(tuple), SCHEMA
    ),
    "a checkpoint of the target": lambda at: at.target_rows().localCheckpoint(),
    "cached rows of the target": lambda at: at.cached(at.target_rows()),
}
STREAM = "a stream's batch"


@dataclass(frozen=True)
class Case:
    """What an example draws; the fields name entries of the tables above."""

    layout: str
    with_feed: bool
    partitioned: bool
    files: int
    strategy: str
    merge: str
    source: str
    rivals: tuple[str, ...]
    rows: Rows

    @property
    def may_conflict(self) -> bool:
        return self.source in STALE or bool(METADATA & set(self.rivals))

    @property
    def properties(self) -> dict[str, str]:
        return LAYOUTS[self.layout] | ({FEED: "true"} if self.with_feed else {})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keys = draw(st.sets(st.integers(1, 12), min_size=1, max_size=4).map(sorted))
    rows = [(k, draw(st.integers(0, 90)), draw(st.sampled_from("ab"))) for k in keys]
    rivals = draw(st.lists(st.sampled_from(list(RIVALS)), min_size=1, max_size=2, unique=True))
    return Case(
        layout=draw(st.sampled_from(list(LAYOUTS))),
        with_feed=draw(st.booleans()),
        partitioned=draw(st.sampled_from([False, False, True])),
        files=draw(st.sampled_from([1, 2, 4])),
        strategy=draw(st.sampled_from(list(STRATEGIES))),
        merge=draw(st.sampled_from(list(MERGES))),
        source=draw(st.sampled_from([*KNOWN, *STALE, STREAM])),
        # What changes the metadata comes last: the other statements fit the table as it was.
        rivals=tuple(sorted(rivals, key=lambda name: name in METADATA)),
        rows=rows,
    )


@pytest.fixture(scope="module")
def stage(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(spark, tmp_path_factory.mktemp("rivals"))


class Stage:
    """Tables of each layout, written once and copied for each example."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self._folder, self._numbers = spark, folder, count()

    def folder(self) -> Path:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def table(self, case: Case, path: Path) -> str:
        name = f"{case.layout}-{case.with_feed}-{case.partitioned}-{case.files}".replace(" ", "_")
        template = self._folder / name
        if not template.exists():
            setup = ["UPDATE {target} SET v = v + 1 WHERE k IN (4, 5)"]
            if case.layout == "constraint":
                setup.insert(0, "ALTER TABLE {target} ADD CONSTRAINT small CHECK (v < 1000000)")
            made = self.folder() / "table"
            write_table(
                self.spark,
                str(made),
                ROWS,
                SCHEMA,
                ddl=SCHEMA,
                files=case.files,
                partition_by=["p"] if case.partitioned else [],
                properties=case.properties,
                setup=setup,
            )
            shutil.copytree(made, template)
        shutil.copytree(template, path)
        return str(path)


@pytest.mark.parametrize("seed_of_draws", SEEDS)
def test_a_merge_after_rivals_equals_one_that_runs_after_them_or_fails(
    stage: Stage, seed_of_draws: int
) -> None:
    ran: list[bool] = []

    @seed(seed_of_draws)
    @settings(in_this_number, max_examples=EXAMPLES_HERE)
    @given(case=cases())
    def compared(case: Case) -> None:
        note(str(case))
        ran.append(compare(stage, case))

    compared()
    assert any(ran), "every merge failed"


def compare(stage: Stage, case: Case) -> bool:
    """Compare both merges; whether ours committed."""
    folder = stage.folder()
    try:
        return _compare(stage.spark, case, folder, stage)
    finally:
        stage.spark.catalog.clearCache()
        shutil.rmtree(folder)


def _compare(spark: SparkSession, case: Case, folder: Path, stage: Stage) -> bool:
    target, copy = stage.table(case, folder / "target"), stage.table(case, folder / "copy")
    act(spark, copy, case.rivals)
    left_by_rivals, newest = rows_of(spark, copy), newest_version(copy)
    theirs = by_built_in(spark, case, Place(spark, folder, copy, case.rows))
    read: list[int] = []
    ours = by_us(spark, case, Place(spark, folder, target, case.rows), read)
    note(f"ours: {ours!r}, theirs: {theirs!r}, transactions read {read}")
    if isinstance(ours, CommitConflictError):
        assert case.may_conflict
        assert rows_of(spark, target) == left_by_rivals
        assert newest_version(target) == newest
        return False
    if not read:  # It changed nothing and committed nothing: the others came afterwards.
        assert rows_of(spark, target) == left_by_rivals
        return True
    assert isinstance(ours, Exception) == isinstance(theirs, Exception), ours
    assert rows_of(spark, target) == rows_of(spark, copy)
    if isinstance(ours, MergeResult) and ours.version is not None and case.with_feed:
        version = newest_version(copy)
        assert ours.version == version
        assert change_feed(spark, target, version) == change_feed(spark, copy, version)
    return True


def act(spark: SparkSession, path: str, rivals: tuple[str, ...]) -> None:
    before = newest_version(path) - 1
    for name in rivals:
        for statement in RIVALS[name]:
            spark.sql(statement.format(t=f"delta.`{path}`", before=before))


def rows_of(spark: SparkSession, path: str) -> list[str]:
    return rows_as_text(Table(spark, path).read().collect())


def by_built_in(spark: SparkSession, case: Case, place: Place) -> Exception | None:
    source = (KNOWN | STALE).get(case.source, KNOWN["a list"])(place)
    table = DeltaTable.forPath(spark, place.target).alias("t")
    try:
        MERGES[case.merge](table.merge(source.alias("s"), "t.k = s.k")).execute()
    except Exception as error:
        return error
    finally:
        spark.catalog.clearCache()
    return None


def by_us(
    spark: SparkSession, case: Case, place: Place, read: list[int]
) -> MergeResult | DeltaweaveError:
    def rival() -> None:
        act(spark, place.target, case.rivals)

    with pytest.MonkeyPatch.context() as patch, configured(spark, STRATEGIES[case.strategy]):
        seen = overtake(patch, rival)
        if case.source == STREAM:
            outcome = in_a_stream(spark, case, place)
        else:
            source = (KNOWN | STALE)[case.source](place)
            outcome = merged(case, place, source)
        read.extend(seen)
    if not read:
        rival()
    return outcome


def merged(case: Case, place: Place, source: DataFrame) -> MergeResult | DeltaweaveError:
    builder = Table(source.sparkSession, place.target).merge(source, on="t.k = s.k")
    try:
        return MERGES[case.merge](_Camel(builder)).execute()  # type: ignore[no-any-return]
    except DeltaweaveError as error:
        return error


class _Camel:
    """Our builder by the names of Delta's."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
        found = getattr(self._builder, snake)
        if name == "execute":
            return found

        def call(condition: str | None = None, **given: Any) -> _Camel:
            arguments = [given["set"]] if "set" in given else []
            named = {} if condition is None else {"condition": condition}
            return _Camel(found(*arguments, **named))

        return call


def in_a_stream(spark: SparkSession, case: Case, place: Place) -> Any:
    outcomes: list[Any] = []
    rows = spark.readStream.schema(SCHEMA).parquet(place.files())
    progress = str(place.folder / "progress")
    query = (
        rows.writeStream.option("checkpointLocation", progress)
        .foreachBatch(lambda batch, _: outcomes.append(merged(case, place, batch)))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    query.stop()
    return outcomes[0]
