"""The tables of the further cases: small, partitioned, with random keys, and larger ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from assets import tpcds
from benchmarks.data.tables import TARGET_FILES, Workspace, sql_name
from benchmarks.merge.case import UPSERT, Merges, Statement
from deltaweave.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SMALL_ROWS = 100_000
_SMALL_FILES = 10
_MANY_FILES = 500
_MERGES = 100
_ROWS_OF_A_MERGE = 10
_PARTITIONS = 100
_MANY_PARTITIONS = 1_000
_UUID_FILES = 10 * TARGET_FILES
_ACCOUNT_COLUMNS = ("id", "name", "amount", "updated_at")
_ROWS_AT_SCALE_1 = 71_763  # as many as web_returns, so that tables of one scale have one size


def small_into_100k(workspace: Workspace) -> Merges:
    """5 updates in one of 10 files and 5 inserts: the fixed cost of a merge."""
    source = workspace.made_once(
        "small-source",
        lambda path: _write(
            _account_rows(_ids(workspace, 0, 5).union(_ids(workspace, _SMALL_ROWS, 5)), "new"), path
        ),
    )
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    return Merges(_accounts(workspace), (statement,))


def small_into_partitions(workspace: Workspace) -> Merges:
    """5 updates in one of 10 partitions and 5 inserts into another: the fixed cost there."""
    rows_of_each = _SMALL_ROWS // _SMALL_FILES

    def make_source(path: Path) -> None:
        ids = _ids(workspace, 0, 5).union(_ids(workspace, _SMALL_ROWS, 5))
        # New accounts are of the last partition that is there.
        there = F.least(_part(rows_of_each), F.lit(_SMALL_FILES - 1))
        _write(_account_rows(ids, "new").withColumn("part", there), path)

    source = workspace.made_once("small-source-of-partitions", make_source)
    statement = Statement(sql_name(source), "t.part = s.part AND t.id = s.id", UPSERT)
    target = _accounts_by_part(workspace, "small-partitions", _SMALL_FILES, rows_of_each)
    return Merges(target, (statement,))


def hundred_merges(workspace: Workspace) -> Merges:
    """100 merges of 10 rows, one after the other: 5 updates in all files, 5 inserts each."""

    def make(path: Path) -> None:
        # The multiplier shares no factor with the table's size, so updates spread over all of it.
        number = F.col("id")
        merge = F.expr(f"CAST(id DIV {_ROWS_OF_A_MERGE} AS INT)")
        is_update = number % 2 == 0
        account = F.when(is_update, number * 7_919 % _SMALL_ROWS).otherwise(number + _SMALL_ROWS)
        numbers = workspace.spark.range(0, _MERGES * _ROWS_OF_A_MERGE, 1, 1)
        _write(
            _account_rows(numbers.select(account.alias("id"), merge.alias("merge")), "new"), path
        )

    source = workspace.made_once("hundred-source", make)
    columns = ", ".join(_ACCOUNT_COLUMNS)
    statements = (
        Statement(
            f"(SELECT {columns} FROM {sql_name(source)} WHERE merge = {number})",
            "t.id = s.id",
            UPSERT,
        )
        for number in range(_MERGES)
    )
    return Merges(_accounts(workspace), tuple(statements))


def ten_merges_into_500_files(workspace: Workspace) -> Merges:
    """10 merges of 10 rows, one after the other, into so many files that no checksum lists them."""
    rows_of_a_file = _SMALL_ROWS // _MANY_FILES

    def make_source(number: int, path: Path) -> None:
        there = workspace.spark.range(number * 5 * rows_of_a_file, _SMALL_ROWS, rows_of_a_file, 1)
        ids = there.limit(5).union(_ids(workspace, _SMALL_ROWS + 5 * number, 5))
        _write(_account_rows(ids, "new"), path)

    sources = [
        workspace.made_once(f"ten-source-{number}", partial(make_source, number))
        for number in range(10)
    ]
    statements = (Statement(sql_name(source), "t.id = s.id", UPSERT) for source in sources)
    return Merges(_accounts(workspace, "many-accounts", _MANY_FILES), tuple(statements))


def not_matched_by_source_one_partition(workspace: Workspace) -> Merges:
    """Replace one of 100 partitions: update half of it, delete half, and insert a few rows."""
    rows_of_each = max(20, round(_ROWS_AT_SCALE_1 * workspace.scale / _PARTITIONS))
    rows = _PARTITIONS * rows_of_each
    number = _PARTITIONS // 2
    begin = number * rows_of_each

    def make_source(path: Path) -> None:
        there = workspace.spark.range(begin, begin + rows_of_each, 2, 1)
        ids = there.union(_ids(workspace, rows, 100))
        _write(_account_rows(ids, "new").withColumn("part", F.lit(number)), path)

    statement = Statement(
        sql_name(workspace.made_once("partition-source", make_source)),
        "t.part = s.part AND t.id = s.id",
        (*UPSERT, f"WHEN NOT MATCHED BY SOURCE AND t.part = {number} THEN DELETE"),
    )
    target = _accounts_by_part(workspace, "partitions", _PARTITIONS, rows_of_each)
    return Merges(target, (statement,))


def random_uuid_keys(workspace: Workspace) -> Merges:
    """Update 1% of the rows and insert 0.1%; the keys of every file span the whole range."""
    rows = max(TARGET_FILES, round(_ROWS_AT_SCALE_1 * workspace.scale))

    def make_target(path: Path) -> None:
        ids = workspace.spark.range(0, rows, 1, TARGET_FILES)
        workspace.write_delta(_keyed_by_uuid(_account_rows(ids, "old")), path)

    def make_source(path: Path) -> None:
        there = workspace.spark.range(0, rows, 100, 1)
        ids = there.union(_ids(workspace, rows, max(1, rows // 1_000)))
        _write(_keyed_by_uuid(_account_rows(ids, "new")), path)

    source = workspace.made_once("uuid-source", make_source)
    statement = Statement(sql_name(source), "t.key = s.key", UPSERT)
    return Merges(workspace.target("uuid-keys", make_target), (statement,))


def fifth_of_the_rows(workspace: Workspace) -> Merges:
    """Update a fifth of all rows and insert 2% more: at scale 223, 3.5 into 16 million."""
    rows = max(TARGET_FILES, round(_ROWS_AT_SCALE_1 * workspace.scale))

    def make_target(path: Path) -> None:
        ids = workspace.spark.range(0, rows, 1, TARGET_FILES)
        workspace.write_delta(_account_rows(ids, "old"), path)

    def make_source(path: Path) -> None:
        there = workspace.spark.range(0, rows, 5, 4)
        new = workspace.spark.range(rows, rows + max(1, rows // 50), 1, 1)
        _account_rows(there.union(new), "new").write.format("delta").save(str(path))

    source = workspace.made_once("fifth-source", make_source)
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    return Merges(workspace.target("fifth-accounts", make_target), (statement,))


def moves_partitions(workspace: Workspace) -> Merges:
    """Update 1% of the rows of half of the partitions, and insert 0.1% of the table's rows.

    Each updated row goes to the partition after its own; those that are inserted are of one.
    """
    rows_of_each = max(100, round(_ROWS_AT_SCALE_1 * workspace.scale / TARGET_FILES))
    rows = TARGET_FILES * rows_of_each

    def make_source(path: Path) -> None:
        there = workspace.spark.range(0, rows // 2, 100, 1)
        ids = there.union(_ids(workspace, rows, max(1, rows // 1_000)))
        after = F.expr(f"CAST((id DIV {rows_of_each} + 1) % {TARGET_FILES} AS INT)")
        _write(_account_rows(ids, "new").withColumn("part", after), path)

    source = workspace.made_once("moving-source", make_source)
    statement = Statement(sql_name(source), "t.id = s.id", UPSERT)
    target = _accounts_by_part(workspace, "moved-partitions", TARGET_FILES, rows_of_each)
    return Merges(target, (statement,))


def few_uuid_keys(workspace: Workspace, *, indexed: bool) -> Merges:
    """Update 10 rows and insert 10 in ten times as many files, with a key index or without."""
    rows = max(_UUID_FILES, round(_ROWS_AT_SCALE_1 * workspace.scale))

    def make_target(path: Path) -> None:
        ids = workspace.spark.range(0, rows, 1, _UUID_FILES)
        workspace.write_delta(_keyed_by_uuid(_account_rows(ids, "old")), path)
        if indexed:
            Table(workspace.spark, str(path)).index_keys("key")

    def make_source(path: Path) -> None:
        ids = workspace.spark.range(0, rows, -(-rows // 10), 1).union(_ids(workspace, rows, 10))
        _write(_keyed_by_uuid(_account_rows(ids, "new")), path)

    source = workspace.made_once("few-uuid-source", make_source)
    name = "many-uuid-keys-indexed" if indexed else "many-uuid-keys"
    statement = Statement(sql_name(source), "t.key = s.key", UPSERT)
    return Merges(workspace.target(name, make_target), (statement,))


def thousand_partitions(workspace: Workspace) -> Merges:
    """Merge 100 rows into 10 of 1,000 partitions: 90 updates and 10 inserts.

    The ON condition includes the partition. At scale 100 the table has 30 million rows.
    """
    rows_of_each = max(20, round(300 * workspace.scale))
    rows = _MANY_PARTITIONS * rows_of_each

    def make_source(path: Path) -> None:
        # Nine rows of every hundredth partition, and one with a new id for each of these.
        places = F.explode(F.sequence(F.lit(0), F.lit(9))).alias("place")
        hundredths = _ids(workspace, 0, 10).select((F.col("id") * 100).alias("part"), places)
        old = F.col("part") * rows_of_each + F.col("place")
        number = F.when(F.col("place") < 9, old).otherwise(F.lit(rows) + F.col("part"))
        numbered = hundredths.select(number.alias("id"), F.col("part").cast("int").alias("part"))
        _write(_account_rows(numbered, "new").select(*_ACCOUNT_COLUMNS, "part"), path)

    source = workspace.made_once("thousand-partitions-source", make_source)
    statement = Statement(sql_name(source), "t.part = s.part AND t.id = s.id", UPSERT)
    target = _accounts_by_part(workspace, "thousand-partitions", _MANY_PARTITIONS, rows_of_each)
    return Merges(target, (statement,))


def web_returns_times(workspace: Workspace, times: int) -> Path:
    """Return web_returns with copies of its rows under higher order numbers, in as many files."""

    def make(path: Path) -> None:
        returns = workspace.returns()
        order = F.col(tpcds.KEY[0])
        (highest,) = returns.agg(F.max(order)).collect()[0]
        workspace.write_delta(returns, path)
        for number in range(1, times):
            # Twice the highest number, because the source's new orders follow those of web_returns.
            later = returns.withColumn(tpcds.KEY[0], order + 2 * number * highest)
            workspace.write_delta(later, path, mode="append")

    return workspace.target(f"web_returns-x{times}", make)


def _accounts(workspace: Workspace, name: str = "accounts", files: int = _SMALL_FILES) -> Path:
    def make(path: Path) -> None:
        ids = workspace.spark.range(0, _SMALL_ROWS, 1, files)
        workspace.write_delta(_account_rows(ids, "old"), path)

    return workspace.target(name, make)


def _accounts_by_part(workspace: Workspace, name: str, partitions: int, rows_of_each: int) -> Path:
    """Return a table of accounts in partitions of as many rows each."""

    def make(path: Path) -> None:
        # One task for each partition of the table, so that each gets one file.
        ids = workspace.spark.range(0, partitions * rows_of_each, 1, partitions)
        accounts = _account_rows(ids, "old").withColumn("part", _part(rows_of_each))
        workspace.write_delta(accounts, path, partition_by=["part"])

    return workspace.target(name, make)


def _part(rows_of_each: int) -> Column:
    """Return the partition of an account, by its id."""
    return F.expr(f"CAST(id DIV {rows_of_each} AS INT)")


def _account_rows(ids: DataFrame, state: str) -> DataFrame:
    """Return a row with columns of a few types for each id; other columns stay."""
    number = F.col("id")
    return ids.withColumns(
        {
            "name": F.concat(F.lit(f"{state} "), number.cast("string")),
            "amount": (number % 10_000 / 100).cast("decimal(7,2)"),
            "updated_at": F.timestamp_seconds(F.lit(1_600_000_000) + number),
        }
    )


def _keyed_by_uuid(rows: DataFrame) -> DataFrame:
    return rows.withColumn("key", _uuid(F.col("id")))


def _uuid(number: Column) -> Column:
    """Return a UUID from the MD5 of a number: the same on every machine."""
    groups = "(.{8})(.{4})(.{4})(.{4})(.{12})"
    return F.regexp_replace(F.md5(number.cast("string")), groups, "$1-$2-$3-$4-$5")


def _ids(workspace: Workspace, begin: int, count: int) -> DataFrame:
    return workspace.spark.range(begin, begin + count, 1, 1)


def _write(rows: DataFrame, path: Path) -> None:
    rows.coalesce(1).write.format("delta").save(str(path))
