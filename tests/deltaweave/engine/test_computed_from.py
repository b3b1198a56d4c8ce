"""Writes of rows that were computed from a version of the table undo no commit after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from tests.builders import frame, write_table
from tests.support.oracles import newest_version, rows_as_text

SCHEMA = "k INT, v INT, p STRING"

Mode = Literal["append", "overwrite"]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10, "a"), (2, 20, "b")], SCHEMA, partition_by=["p"])
    properties = "'delta.enableDeletionVectors' = 'true'"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({properties})")
    return Table(spark, path)


def merge(table: Table) -> None:
    source = frame(table.spark, [(3, 30, "c")], SCHEMA)
    table.merge(source, on="t.k = s.k").when_not_matched_insert_all().execute()


def statement(text: str) -> Callable[[Table], Any]:
    return lambda table: table.spark.sql(text.format(table=f"delta.`{table.path_or_name}`"))


BETWEEN = {
    "a delete": statement("DELETE FROM {table} WHERE k = 2"),
    "an update": statement("UPDATE {table} SET v = 21 WHERE k = 2"),
    "an append": lambda table: table.write(frame(table.spark, [(3, 30, "c")], SCHEMA), "append"),
    "a merge": merge,
    "an overwrite": lambda table: table.write(
        frame(table.spark, [(4, 40, "d")], SCHEMA), "overwrite"
    ),
    "a rewrite of files": statement("OPTIMIZE {table}"),
    "a new column": statement("ALTER TABLE {table} ADD COLUMNS (w INT)"),
}
WRITES: dict[str, tuple[Mode, str | None]] = {
    "all rows": ("overwrite", None),
    "a partition": ("overwrite", "p = 'a'"),
    "some rows": ("overwrite", "k = 1"),
    "an append": ("append", None),
}


# Each commit meets a write of all rows, each other write a commit that its own files do not meet.
MET = [
    *[(between, "all rows") for between in BETWEEN],
    ("an append", "some rows"),
    ("a delete", "a partition"),
    ("a delete", "an append"),
]


@pytest.mark.minutes
@pytest.mark.parametrize(("between", "write"), MET)
def test_a_write_undoes_no_commit_after_the_version_it_was_computed_from(
    spark: SparkSession, table: Table, between: str, write: str
) -> None:
    if between == "a rewrite of files":
        table.write(frame(spark, [(5, 50, "b")], SCHEMA), "append")  # a second file of b
    version = table.version()
    computed = table.read(version).where("k = 1").selectExpr("k", "v + 1 AS v", "p")
    BETWEEN[between](table)
    after, expected = newest_version(table.path_or_name), rows_as_text(table.read().collect())
    assert after > version

    mode, replace_where = WRITES[write]
    with pytest.raises(errors.CommitConflictError) as raised:
        table.write(computed, mode, replace_where=replace_where, computed_from=version)
    assert (raised.value.table, raised.value.version) == (table.path_or_name, version)

    assert newest_version(table.path_or_name) == after
    assert rows_as_text(table.read().collect()) == expected


@pytest.mark.minutes
def test_a_write_that_was_computed_from_the_newest_version_is_made(table: Table) -> None:
    expected = {
        "an append": ["(1, 10, 'a')", "(1, 110, 'a')", "(2, 20, 'b')"],
        "some rows": ["(1, 110, 'a')", "(1, 210, 'a')", "(2, 20, 'b')"],
        "a partition": ["(1, 210, 'a')", "(1, 310, 'a')", "(2, 20, 'b')"],
        "all rows": ["(1, 310, 'a')", "(1, 410, 'a')"],
    }
    for write, rows in expected.items():
        mode, replace_where = WRITES[write]
        version = table.version()
        computed = table.read(version).where("k = 1").selectExpr("k", "v + 100 AS v", "p")
        written = table.write(computed, mode, replace_where=replace_where, computed_from=version)
        assert written.version == version + 1, write
        assert rows_as_text(table.read().collect()) == rows, write


@pytest.mark.minutes
def test_a_commit_that_changes_no_file_stops_no_write(spark: SparkSession, table: Table) -> None:
    version = table.version()
    computed = table.read(version).selectExpr("k", "v + 1 AS v", "p")
    table.write(frame(spark, [], SCHEMA), "append", applied={"orders": 1})
    written = table.write(computed, "overwrite", computed_from=version)
    assert written.version == version + 2
    assert rows_as_text(table.read().collect()) == ["(1, 11, 'a')", "(2, 21, 'b')"]


def test_what_was_applied_after_the_version_is_not_applied_again(
    spark: SparkSession, table: Table
) -> None:
    version = table.version()
    rows = frame(spark, [], SCHEMA)
    table.write(rows, "append", applied={"orders": 1}, once=True)
    with pytest.raises(errors.CommitConflictError):
        table.write(rows, "append", applied={"orders": 1}, once=True, computed_from=version)


def test_a_version_that_the_log_does_not_hold_is_refused(spark: SparkSession, table: Table) -> None:
    with pytest.raises(errors.TableNotFoundError, match="no version 99"):
        table.write(frame(spark, [], SCHEMA), "overwrite", computed_from=99)
    assert newest_version(table.path_or_name) == 1
