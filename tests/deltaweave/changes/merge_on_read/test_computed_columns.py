"""Merge-on-read tables whose base gives some columns their values itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import DataFrame, SparkSession

from deltaweave.errors import StatementError
from tests.deltaweave.changes.merge_on_read.test_arguments import opened
from tests.deltaweave.changes.merge_on_read.test_table import frame, rows
from tests.support.drawn_events import Event, delete
from tests.support.settings import configured

OPTIONS = {"except_column_list": ["seq", "op", "present", "w"], "apply_as_deletes": "op = 'delete'"}


@pytest.mark.minutes
def test_generated_columns_are_read_and_written_as_the_base_generates_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    new = DeltaTable.create(spark).location(str(tmp_path / "base"))
    new = new.addColumn("w", "INT", generatedAlwaysAs="v + 1").addColumn("k", "INT")
    new = new.addColumn("v", "INT").addColumn("_cdc_sequence", "STRUCT<at: INT, tie: BIGINT>")
    new.partitionedBy("w").execute()
    table = opened(spark, str(tmp_path / "base"), **OPTIONS)
    table.append(frame(spark, [Event(1, 1, 10), Event(2, 1, 20), Event(3, 1, 30)]))
    assert rows(table.read()) == {(11, 1, 10), (21, 2, 20), (31, 3, 30)}
    table.rematerialize("merge")
    table.append(frame(spark, [Event(1, 2, 11), delete(2, 2), Event(4, 2, 40)]))
    expected = {(12, 1, 11), (31, 3, 30), (41, 4, 40)}
    for method in ("double_rank", "full_outer_join", "left_join_anti_join", "anti_join"):
        assert rows(table.read(method)) == expected, method
    table.create_view("of_generated")
    assert rows(spark.table("of_generated")) == expected
    table.rematerialize("replace_where")
    assert rows(table.read_optimized()) == expected
    table.append(frame(spark, [Event(4, 3, 41)]))
    table.rematerialize("overwrite")
    assert rows(table.read_optimized()) == {(12, 1, 11), (31, 3, 30), (42, 4, 41)}


@pytest.mark.minutes
@pytest.mark.parametrize("strategy", ["replace_where", "overwrite", "merge"])
def test_unchanged_rows_keep_what_the_base_generated_in_another_zone(
    spark: SparkSession, tmp_path: Path, strategy: Any
) -> None:
    new = DeltaTable.create(spark).location(str(tmp_path / "base")).addColumn("k", "INT")
    new = new.addColumn("ts", "TIMESTAMP").addColumn("v", "INT")
    new = new.addColumn("day", "DATE", generatedAlwaysAs="CAST(ts AS DATE)")
    new = new.property("delta.enableDeletionVectors", "true")
    new.addColumn("_cdc_sequence", "STRUCT<at: INT, tie: BIGINT>").partitionedBy("day").execute()
    table = opened(spark, str(tmp_path / "base"), except_column_list=["seq"])

    def append(*keys: int, seq: int) -> None:
        rows = spark.createDataFrame([(k, seq, seq) for k in keys], "k INT, v INT, seq INT")
        table.append(rows.selectExpr("*", "TIMESTAMP '2024-01-01 23:30:00Z' AS ts"))

    def found(read: DataFrame) -> set[tuple[int, str, int]]:
        return {tuple(row) for row in read.selectExpr("k", "string(day)", "v").collect()}

    with configured(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        append(1, 2, seq=1)
        table.rematerialize("merge")
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        append(2, 3, seq=2)
        append(1, seq=0)  # late, so it changes nothing
        expected = {(1, "2024-01-02", 1), (2, "2024-01-01", 2), (3, "2024-01-01", 2)}
        for method in ("auto", "full_outer_join", "left_join_anti_join", "double_rank"):
            assert found(table.read(method)) == expected, method
        table.rematerialize(strategy)
        assert found(table.read_optimized()) == expected


def test_a_base_with_identity_columns_is_refused_before_any_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    new = DeltaTable.create(spark).location(str(tmp_path / "base"))
    new = new.addColumn("n", "BIGINT", generatedAlwaysAs=IdentityGenerator())
    new = new.addColumn("k", "INT").addColumn("v", "INT")
    new.addColumn("_cdc_sequence", "STRUCT<at: INT, tie: BIGINT>").execute()
    table = opened(spark, str(tmp_path / "base"), **OPTIONS)
    with pytest.raises(StatementError, match="n is an identity column"):
        table.append(frame(spark, [Event(1, 1, 10)]))
    with pytest.raises(StatementError, match="n is an identity column"):
        table.read()
    assert not table.changes.exists()
