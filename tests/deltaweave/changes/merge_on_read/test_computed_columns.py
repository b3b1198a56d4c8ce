"""Merge-on-read tables whose base gives some columns their values itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import SparkSession

from deltaweave.errors import StatementError
from tests.deltaweave.changes.merge_on_read.test_arguments import opened
from tests.deltaweave.changes.merge_on_read.test_table import frame, rows
from tests.support.drawn_events import Event, delete

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
