"""What is current, such as the time of day, is so once for a whole merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.delta.jvm import Jvm
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.builders import write_table
from tests.support.settings import configured

FEED = {"delta.enableChangeDataFeed": "true"}
NOW = "string(current_time(6))"
# Where the time is asked for: by the clauses, or by the source, which several queries read.
STATEMENTS = {
    "clauses": (
        "delta.`{other}`",
        f"WHEN MATCHED THEN UPDATE SET v = {NOW} "
        f"WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, {NOW})",
    ),
    "source": (
        f"(SELECT k, {NOW} AS v FROM delta.`{{other}}`)",
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED AND s.k > 2 THEN INSERT *",
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("asked_by", STATEMENTS)
def test_the_time_of_day_is_one_in_rows_and_feed(
    spark: SparkSession, tmp_path: Path, asked_by: str
) -> None:
    if Jvm.of(spark).spark_line < (4, 1):
        pytest.skip("Spark has no current_time()")
    path, other = str(tmp_path / "table"), str(tmp_path / "other")
    write_table(spark, path, [(1, "")], "k INT, v STRING", properties=FEED)
    write_table(spark, other, [(1,), (3,)], "k INT")
    source, clauses = STATEMENTS[asked_by]
    statement = (
        f"MERGE INTO delta.`{path}` t USING {source.format(other=other)} s ON t.k = s.k {clauses}"
    )
    with configured(spark, {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"}):
        deltaweave.merge(spark, statement)
    feed = Table(spark, path).snapshot().read_change_feed(1)
    after = feed.where("_change_type <> 'update_preimage'").select("k", "v").collect()
    assert sorted(map(tuple, after)) == sorted(map(tuple, Table(spark, path).read().collect()))
    assert len({row.v for row in after}) == 1
