"""Cached rows: queries over them plan nothing of what they are computed from."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.changes.events import EventShape, read_events
from deltaweave.delta.scan import cached


def above_the_cache(rows: DataFrame) -> set[str]:
    """Return the operators over the cache, as Spark has analyzed the query."""
    tree = str(rows._jdf.queryExecution().analyzed().treeString())
    operators = [line.strip(" +-:").split()[0] for line in tree.splitlines()]
    return set(operators[: operators.index("InMemoryRelation")])


def test_a_query_over_a_cache_plans_the_cache_alone(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("id", "id * 10 AS tens").where("id > 0")
    with cached(rows, "rows") as kept:
        assert above_the_cache(kept) == set()
        assert kept.columns == ["id", "tens"]
        joined = kept.join(kept.where("id > 1").withColumnRenamed("tens", "other"), "id", "left")
        assert {tuple(row) for row in joined.collect()} == {(1, 10, None), (2, 20, 20)}
        assert rows.storageLevel.useMemory
    assert not rows.storageLevel.useMemory


def test_events_are_read_from_their_cache_alone(spark: SparkSession) -> None:
    source = spark.createDataFrame([(1, 2, 3), (1, None, 4)], "k INT, v INT, at INT")
    shape = EventShape(
        keys=("k",), sequence_by=F.col("at"), deletes=None, truncates=None, columns=("v",)
    )
    events = read_events(source, shape, table="t")
    assert above_the_cache(events.rows) == {"Project"}
    assert events.rows.count() == events.count == 2
    events.release()
