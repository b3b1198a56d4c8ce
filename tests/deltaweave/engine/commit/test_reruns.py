"""A merge whose commit lost is run again only if its source does not hold rows of the version lost.

The rival sets v = 1000 where k = 1. Every source has a row for k = 1, with v = 11 or, if it is
computed from the target, with v + 1. So 11 and 1001 are right, and 11 where the source read the
target is a lost update.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.delta.scan import checkpointed, from_cache
from tests.builders import frame, write_table
from tests.support.oracles import newest_version
from tests.support.rivals import overtake
from tests.support.settings import configured

SCHEMA = "k INT, v INT"
ROWS = [(1, 10), (2, 20)]
ONE = [(1, 11)]


@dataclass(frozen=True)
class Place:
    """Where a case's tables are."""

    spark: SparkSession
    folder: Path

    @property
    def target(self) -> str:
        return str(self.folder / "target")

    def rows_of_target(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.target)

    def next_of_target(self) -> DataFrame:
        return self.rows_of_target().where("k = 1").selectExpr("k", "v + 1 AS v")

    def other_table(self) -> str:
        path = str(self.folder / "other")
        properties = {"delta.enableChangeDataFeed": "true"}
        write_table(self.spark, path, ONE, SCHEMA, properties=properties)
        return path

    def files(self) -> str:
        path = str(self.folder / "files")
        frame(self.spark, ONE, SCHEMA).write.parquet(path)
        return path

    def named(self, rows: DataFrame) -> DataFrame:
        """The rows by a temporary view."""
        rows.createOrReplaceTempView("a_view")
        return self.spark.table("a_view")

    def partitioned(self) -> DataFrame:
        """A table whose partition's directory is another one than the table's."""
        name = f"partitioned_{self.folder.name}".replace("-", "_")
        self.spark.sql(f"CREATE TABLE {name} (k INT, v INT) USING parquet PARTITIONED BY (v)")
        self.spark.sql(f"INSERT INTO {name} VALUES (1, 11)")
        return self.spark.table(name)


class Asked(DataSource):
    """A data source in Python, which can read anything."""

    @classmethod
    def name(cls) -> str:
        return "asked"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            def read(self, partition: Any) -> Iterator[tuple[int, int]]:
                yield (1, 11)

        return Reader()


def of_python_source(place: Place) -> DataFrame:
    place.spark.dataSource.register(Asked)
    return place.spark.read.format("asked").load()


def of_table_function(place: Place) -> DataFrame:
    class OneRow:
        def eval(self) -> Iterator[tuple[int, int]]:
            yield (1, 11)

    return F.udtf(OneRow, returnType=SCHEMA)()


def by_another_path(place: Place) -> DataFrame:
    link = place.folder / "link"
    os.symlink(place.target, link)
    rows = place.spark.read.format("delta").load(str(link))
    return rows.where("k = 1").selectExpr("k", "v + 1 AS v")


def files_by_a_link(name: str) -> Source:
    def source(place: Place) -> DataFrame:
        link = place.folder / name
        os.symlink(place.target, link)
        return place.spark.read.parquet(str(link)).where("k = 1").selectExpr("k", "v + 1 AS v")

    return source


def files_by_a_link_below(at: Place) -> DataFrame:
    """A directory whose only file is a link to one of the target's."""
    [file] = Path(at.target).glob("*.parquet")
    (at.folder / "source").mkdir()
    os.symlink(file, at.folder / "source" / "part.parquet")
    rows = at.spark.read.parquet(str(at.folder / "source"))
    return rows.where("k = 1").selectExpr("k", "v + 1 AS v")


def big_arrow_table(place: Place) -> DataFrame:
    """Rows that Spark keeps in an RDD instead of a plan."""
    with configured(place.spark, {"spark.sql.execution.arrow.localRelationThreshold": "0"}):
        return place.spark.createDataFrame(pyarrow.table({"k": [1], "v": [11]}))


def of_rdd_of_jvm(place: Place) -> DataFrame:
    """An RDD of the JVM over local rows: a function of a JVM program may read files by them."""
    spark, rows = place.spark, place.next_of_target()._jdf
    local = spark.sparkContext._jsc.parallelize(rows.collectAsList(), 1)  # type: ignore[attr-defined]
    return DataFrame(spark._jsparkSession.createDataFrame(local, rows.schema()), spark)


def of_broadcast_target(place: Place) -> DataFrame:
    """Rows made in Python joined with the target: no parent of the RDD reads the target."""
    target = F.broadcast(place.rows_of_target())
    joined = frame(place.spark, [(1,)], "k INT").join(target, "k")
    return place.spark.createDataFrame(joined.rdd.map(lambda r: (r.k, r.v + 1)), SCHEMA)


def of_history(place: Place) -> DataFrame:
    history = place.spark.sql(f"DESCRIBE HISTORY delta.`{place.target}`")
    return history.selectExpr("1 AS k", "CAST(version AS INT) + 11 AS v")


def feed_of(place: Place, path: str) -> DataFrame:
    feed = place.spark.read.format("delta").option("readChangeFeed", "true")
    rows = feed.option("startingVersion", 0).load(path).where("k = 1")
    return rows.selectExpr("k", "v + 1 AS v") if path == place.target else rows.select("k", "v")


def mapped(rows: DataFrame, by: int = 0) -> DataFrame:
    def add(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            batch["v"] += by
            yield batch

    return rows.mapInPandas(add, SCHEMA)


Source = Callable[[Place], DataFrame]

# The sources with which the merge is run again, and the value that it then writes.
RUN_AGAIN: dict[str, tuple[Source, int]] = {
    "rows of a list": (lambda at: at.spark.createDataFrame(ONE, SCHEMA), 11),
    "rows of a long list": (
        lambda at: at.spark.createDataFrame([*ONE, *((k, 0) for k in range(10, 3000))], SCHEMA),
        11,
    ),
    "rows of a list in an RDD": (
        lambda at: at.spark.sparkContext.parallelize(ONE).toDF(SCHEMA),
        11,
    ),
    "an Arrow table": (
        lambda at: at.spark.createDataFrame(pyarrow.table({"k": [1], "v": [11]})),
        11,
    ),
    "a big Arrow table": (big_arrow_table, 11),
    # As any rows of Python: they were the target's before the statement began.
    "collected rows of the target": (
        lambda at: at.spark.createDataFrame(at.next_of_target().collect(), SCHEMA),
        11,
    ),
    "a range": (lambda at: at.spark.range(1, 2).selectExpr("int(id) AS k", "11 AS v"), 11),
    "functions of a query": (
        lambda at: (
            frame(at.spark, [(1, 5), (1, 6)], SCHEMA)
            .groupBy("k")
            .agg(F.sum("v").cast("int").alias("v"), F.max_by("v", "k").alias("m"))
            .withColumn("r", F.expr("row_number() OVER (ORDER BY k)"))
            .withColumn("x", F.explode(F.array(F.lit(1))))
            .select("k", "v")
        ),
        11,
    ),
    "cached rows": (lambda at: frame(at.spark, ONE, SCHEMA).persist(), 11),
    "a cache alone": (lambda at: from_cache(frame(at.spark, ONE, SCHEMA).persist()), 11),
    "our checkpoint": (lambda at: checkpointed(frame(at.spark, ONE, SCHEMA)), 11),
    "a Python function": (
        lambda at: frame(at.spark, ONE, SCHEMA).withColumn("v", F.udf(lambda v: v, "int")("v")),
        11,
    ),
    "a Delta table": (lambda at: at.spark.read.format("delta").load(at.other_table()), 11),
    "a view of a Delta table": (
        lambda at: at.named(at.spark.read.format("delta").load(at.other_table())),
        11,
    ),
    "the change feed of a Delta table": (lambda at: feed_of(at, at.other_table()), 11),
    "files": (lambda at: at.spark.read.parquet(at.files()), 11),
    "the target": (Place.next_of_target, 1001),
    "a view of the target": (lambda at: at.named(at.next_of_target()), 1001),
    "the target mapped in Python": (lambda at: mapped(at.rows_of_target().where("k = 1"), 1), 1001),
    "an older version of the target": (
        lambda at: (
            at.spark.read.format("delta")
            .option("versionAsOf", 0)
            .load(at.target)
            .where("k = 1")
            .selectExpr("k", "v + 1 AS v")
        ),
        11,
    ),
    "a subquery of the target": (
        lambda at: at.spark.sql(
            f"SELECT 1 AS k, (SELECT max(v) FROM delta.`{at.target}` WHERE k = 1) + 1 AS v"
        ),
        1001,
    ),
}
# The sources with which it fails: they hold rows of the older version, or may.
CONFLICTS: dict[str, Source] = {
    "an RDD of the target": lambda at: at.spark.createDataFrame(
        at.rows_of_target().where("k = 1").rdd.map(lambda row: (row.k, row.v + 1)), SCHEMA
    ),
    "an RDD of the target's rows": lambda at: at.spark.createDataFrame(
        at.next_of_target().rdd, SCHEMA
    ),
    "an RDD of a join with the target": of_broadcast_target,
    "an RDD of a Python function": lambda at: at.spark.createDataFrame(
        at.spark.sparkContext.parallelize([1]).map(lambda k: (k, 11)), SCHEMA
    ),
    "an RDD of a JVM program": of_rdd_of_jvm,
    "a checkpoint": lambda at: at.next_of_target().localCheckpoint(),
    "a checkpoint to come": lambda at: at.next_of_target().localCheckpoint(eager=False),
    "our checkpoint of the target": lambda at: checkpointed(at.next_of_target()),
    "cached rows of the target": lambda at: at.next_of_target().persist(),
    "cached rows of a view of the target": lambda at: at.named(at.next_of_target()).persist(),
    "a cache of the target alone": lambda at: from_cache(at.next_of_target().persist()),
    "the target by another path": by_another_path,
    "the target's files": lambda at: (
        at.spark.read.parquet(at.target).where("k = 1").selectExpr("k", "v + 1 AS v")
    ),
    "the target's files by a link": files_by_a_link("link"),
    "the target's files by a link with a line break": files_by_a_link("li\nnk"),
    "the target's files by a link below the source": files_by_a_link_below,
    "files around the target": lambda at: (
        at.spark.read.option("recursiveFileLookup", "true")
        .option("pathGlobFilter", "*.parquet")
        .parquet(str(at.folder))
        .where("k = 1")
        .selectExpr("k", "v + 1 AS v")
    ),
    "the target's change feed": lambda at: feed_of(at, at.target),
    "the target's history": of_history,
    "a table whose partitions may lie anywhere": Place.partitioned,
    "a data source in Python": of_python_source,
    "a table function in Python": of_table_function,
}
TELLING = {
    "rows of a list",
    "the target",
    "an RDD of the target",
    "a checkpoint",
    "the target's files by a link",
}
# The other cases are much like one of these.
SLOW = {
    "rows of a list in an RDD",
    "a big Arrow table",
    "the target's files by a link with a line break",
    "a cache of the target alone",
    "our checkpoint",
    "a Python function",
    "an RDD of a join with the target",
    "an RDD of a Python function",
    "the target's change feed",
    "a data source in Python",
}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    """A target with a change feed."""
    place = Place(spark, tmp_path)
    properties = {"delta.enableChangeDataFeed": "true"}
    write_table(spark, place.target, ROWS, SCHEMA, properties=properties)
    yield place
    spark.catalog.clearCache()


def cases(names: Any) -> list[Any]:
    rare = dict.fromkeys(SLOW, pytest.mark.minutes)
    marks = rare | dict.fromkeys(TELLING, ())
    return [pytest.param(name, marks=marks.get(name, pytest.mark.full_matrix)) for name in names]


def merged_after_a_rival(
    place: Place, monkeypatch: pytest.MonkeyPatch, source: DataFrame, target: str | None = None
) -> MergeResult:
    def rival() -> None:
        place.spark.sql(f"UPDATE delta.`{place.target}` SET v = 1000 WHERE k = 1")

    overtake(monkeypatch, rival)
    table = Table(place.spark, target or place.target)
    return table.merge(source, on="t.k = s.k").when_matched_update({"v": "s.v"}).execute()


def value(place: Place) -> int:
    return int(place.rows_of_target().where("k = 1").collect()[0].v)


@pytest.mark.minutes
@pytest.mark.parametrize("name", cases(RUN_AGAIN))
def test_a_merge_reruns_if_its_source_gives_what_a_later_statement_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source, expected = RUN_AGAIN[name]
    result = merged_after_a_rival(place, monkeypatch, source(place))
    assert (value(place), result.commit_attempts) == (expected, 2)


@pytest.mark.minutes
@pytest.mark.parametrize("name", cases(CONFLICTS))
def test_a_merge_fails_if_its_source_may_hold_rows_of_the_losing_version(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(errors.CommitConflictError, match="not run again by itself") as raised:
        merged_after_a_rival(place, monkeypatch, CONFLICTS[name](place))
    assert (value(place), newest_version(place.target)) == (1000, 1)
    assert raised.value.table == place.target
    assert raised.value.version == 0
    assert raised.value.error_class
    assert raised.value.hint


def other_stream(place: Place) -> DataFrame:
    return place.spark.readStream.format("delta").load(place.other_table())


# The streams, and the value that a batch writes; None where the merge fails.
STREAMS: dict[str, tuple[Source, int | None]] = {
    "a Delta table": (other_stream, 11),
    "files": (lambda at: at.spark.readStream.schema(SCHEMA).parquet(at.files()), 11),
    "no table": (
        lambda at: (
            at.spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 1)
            .load()
            .selectExpr("1 AS k", "11 AS v")
        ),
        11,
    ),
    "a table joined with the target": (
        lambda at: (
            other_stream(at)
            .select("k")
            .join(at.rows_of_target(), "k")
            .selectExpr("k", "v + 1 AS v")
        ),
        None,
    ),
    "the target": (
        lambda at: (
            at.spark.readStream.format("delta")
            .option("skipChangeCommits", "true")
            .load(at.target)
            .where("k = 1")
        ),
        None,
    ),
}


# The others are much like the first, whose batch may be read again, and the last.
@pytest.mark.minutes
@pytest.mark.parametrize(
    "name",
    [
        "a Delta table",
        "a table joined with the target",
        *[
            pytest.param(name, marks=pytest.mark.full_matrix)
            for name in ("files", "no table", "the target")
        ],
    ],
)
def test_a_stream_s_batch_is_merged_again_unless_it_may_read_the_target(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source, expected = STREAMS[name]
    outcomes: list[Any] = []

    def merge(batch: DataFrame, number: int) -> None:
        if outcomes:
            return
        try:
            rows = batch.where("k = 1").select("k", "v")
            outcomes.append(merged_after_a_rival(place, monkeypatch, rows).commit_attempts)
        except errors.CommitConflictError as error:
            outcomes.append(error)

    stream = source(place).writeStream.option("checkpointLocation", str(place.folder / "progress"))
    query = stream.foreachBatch(merge).trigger(availableNow=True).start()
    query.awaitTermination(60)
    query.stop()
    if expected is None:
        assert isinstance(outcomes[0], errors.CommitConflictError)
        assert "not run again by itself" in str(outcomes[0])
    else:
        assert outcomes[0] == 2
    assert value(place) == (expected or 1000)


@pytest.mark.minutes
@pytest.mark.parametrize("reads", ["an RDD", "a table"])
def test_a_subquery_of_a_clause_is_evaluated_again_or_the_merge_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    spark = place.spark
    if reads == "an RDD":
        rows = spark.createDataFrame(place.rows_of_target().rdd, SCHEMA)
    else:
        rows = spark.read.format("delta").load(place.other_table())
    rows.createOrReplaceTempView("of_a_clause")
    frame(spark, ONE, SCHEMA).createOrReplaceTempView("beside")
    text = (
        f"MERGE INTO delta.`{place.target}` t USING beside s ON t.k = s.k WHEN MATCHED THEN "
        "UPDATE SET v = s.v + (SELECT max(v) FROM of_a_clause WHERE k = 1)"
    )

    def rival() -> None:
        spark.sql(f"UPDATE delta.`{place.target}` SET v = 1000 WHERE k = 1")

    overtake(monkeypatch, rival)
    if reads == "an RDD":
        with pytest.raises(errors.CommitConflictError, match="a subquery may hold"):
            deltaweave.merge(spark, text)
        assert value(place) == 1000
    else:
        assert deltaweave.merge(spark, text).commit_attempts == 2
        assert value(place) == 22
