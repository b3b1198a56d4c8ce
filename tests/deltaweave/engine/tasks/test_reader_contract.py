"""What files of the engine promise to their readers (`engine/tasks/reader_contract`)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from polars.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, BooleanType, DateType, DoubleType, IntegralType

import deltaweave
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.engine.tasks import reader_contract
from tests.support import other_readers
from tests.support.oracles import change_feed, rows_as_text
from tests.support.readers import (
    ROW_READER,
    VECTORIZED,
    assert_reads_alike_through_filters,
    drawn_filters,
    rows_through,
    rows_where,
)
from tests.support.settings import configured

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
DRIVER = {ON_DRIVER: "true", REWRITE_IN_PLACE: "auto"}
TASKS = {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}
SPARK = {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"}
FLOATING = ("'NaN'", "'Infinity'", "'-Infinity'", "0", "-0.0", "100", "-7.5", "'1e-40'")
# Beside each type, values at its ends and some whose order readers might get wrong.
VALUES: Mapping[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "127", "0", "1"),
    "SMALLINT": ("-32768", "32767", "0", "1"),
    "INT": ("-2147483648", "2147483647", "0", "1"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807", "0", "9007199254740993"),
    "FLOAT": (*FLOATING, "'3.4028235e38'", "'1.4e-45'"),
    "DOUBLE": (*FLOATING, "'1.7976931348623157e308'", "'4.9e-324'", "9007199254740993"),
    "DECIMAL(9, 2)": ("9999999.99", "-9999999.99", "0", "0.01"),  # INT32 in files
    "DECIMAL(18, 0)": ("999999999999999999", "-999999999999999999", "0"),  # INT64
    "DECIMAL(38, 10)": ("9999999999999999999999999999", "-0.0000000001", "0", "-1e27"),  # bytes
    "STRING": (
        "''",
        "'a'",
        "'\x7f'",
        "'\uff5e'",  # above the next one by UTF-16, below it by UTF-8
        "'\U0001f600'",
        "concat(repeat('x', 31), '\U0001f600', 'tail')",  # statistics keep 32 characters
        "repeat('y', 5000)",  # parquet-cpp writes no bounds of more than 4,096 bytes
        "repeat('\U0010ffff', 70)",
    ),
    "BINARY": ("X''", "X'00'", "X'7F'", "X'80'", "X'FFFF'"),
    "BOOLEAN": ("true", "false"),
    "DATE": ("'0001-01-01'", "'9999-12-31'", "'1582-10-04'", "'1969-12-31'"),
    "TIMESTAMP": (
        "'0001-01-03 00:00:00Z'",
        "'9999-12-30 23:59:59.999999Z'",
        "'1969-12-31 23:59:59.999999Z'",
        "'2024-01-01 00:00:00.000001Z'",  # statistics keep milliseconds
    ),
    "TIMESTAMP_NTZ": (
        "'0001-01-01 00:00:00'",
        "'9999-12-31 23:59:59.999999'",
        "'2024-03-10 02:30:00.000999'",
    ),
}
NAMES = {kind: f"c{n}" for n, kind in enumerate(VALUES)}
# Few rows in a row group and in a page, as files of millions of rows have several of both.
SMALL_GROUPS = {
    "parquet.block.row.count.limit": "3",
    "parquet.page.row.count.limit": "2",
    # Before Spark 4.1, Parquet has no limit of a group's rows: a group ends at the first look.
    "parquet.block.size": "1",
    "parquet.page.size.row.check.min": "3",
}
# Spark reads Parquet files without Delta so that it may take aggregates from their footers.
FROM_FOOTERS = {
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.parquet.aggregatePushdown": "true",
}
FEW = ("INT", "DOUBLE", "DECIMAL(38, 10)", "STRING", "TIMESTAMP")
ROWS, FILES = 48, 6
OF_VARIANTS = {
    "INT": "{k}",  # none: the same merge on the driver or by tasks
    "VARIANT": "parse_json('{k}')",
    "STRUCT<v: VARIANT>": "named_struct('v', parse_json('{k}'))",
    "ARRAY<VARIANT>": "array(parse_json('{k}'))",
    "MAP<STRING, VARIANT>": "map('k', parse_json('{k}'))",
}
OF_NAN = ("> 100", "= double('NaN')", ">= double('NaN')")
OF_REPEATED = ("a[0] > 1", "array_contains(a, double('NaN'))", "m['k'] > 1", "a IS NULL")


class WriterOfSmallParts(pq.ParquetWriter):
    """Writes what the engine writes on the driver in several row groups of several pages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, write_batch_size=1, max_rows_per_page=2)

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        super().write_table(table, row_group_size=3)


@pytest.fixture(autouse=True)
def _few_rows_in_groups_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "ParquetWriter", WriterOfSmallParts)


@dataclass(frozen=True)
class Layout:
    """How a table is kept, and what writes into it."""

    by: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_by: str = ""

    def __str__(self) -> str:
        writer = {id(DRIVER): "driver", id(TASKS): "tasks", id(SPARK): "spark"}[id(self.by)]
        words = [name.rpartition(".")[2] for name in self.properties]
        return "-".join([writer, *words, *["partitioned"] * bool(self.partition_by)])


SMALL = (Layout(DRIVER, VECTORS | FEED), Layout(TASKS, FEED, "p"))
MORE = [
    Layout(by, properties, partition_by)
    for by in (DRIVER, TASKS)
    for properties in ({}, VECTORS, FEED, MAPPED)
    for partition_by in ("", "p")
    if not (by is TASKS and properties is VECTORS)
] + [Layout(SPARK, VECTORS)]
# Each writer with each property, by turns with partitions; the others are for `make test-all`.
TELLING = [
    layout
    for layout in MORE
    if bool(layout.partition_by) == (layout.properties in (VECTORS, MAPPED)) or layout.by is SPARK
]


def nested_columns(layout: Layout, kinds: Sequence[str]) -> dict[str, str]:
    """Nested columns and their types; Spark writes those of tables with column mapping."""
    if layout.properties == MAPPED:
        return {}
    fields = ", ".join(f"{NAMES[kind]}: {kind}" for kind in kinds)
    return {
        "s": f"STRUCT<{fields}>",
        "a": "ARRAY<DOUBLE>",
        "m": "MAP<STRING, FLOAT>",
        "o": "ARRAY<STRUCT<x: DOUBLE, y: INT>>",
    }


def rows(kinds: Sequence[str], first: int, last: int, step: int, draw: Random) -> str:
    """A query of rows; those of a file share few values, so that its bounds exclude others."""
    few = {
        (number, kind): draw.sample((*VALUES[kind], "NULL"), 2)
        for number in range(FILES + 2)
        for kind in kinds
    }
    found = []
    for i in range(first, last, step):
        number = i * FILES // ROWS
        flat, nested = (
            [f"CAST({draw.choice(few[number, kind])} AS {kind})" for kind in kinds]
            for _ in range(2)
        )
        names = [NAMES[kind] for kind in kinds]
        named = ", ".join(f"'{n}', {v}" for n, v in zip(names, nested, strict=True))
        floating = f"CAST({draw.choice(few[number, 'DOUBLE'])} AS DOUBLE)"
        found.append(
            f"({i}, {number}, {', '.join(flat)}, named_struct({named}), array({floating}), "
            f"map('k', CAST({floating} AS FLOAT)), array(named_struct('x', {floating}, 'y', {i})))"
        )
    names = ", ".join(NAMES[kind] for kind in kinds)
    return f"SELECT * FROM VALUES {', '.join(found)} AS rows(i, p, {names}, s, a, m, o)"


def merged_both_ways(
    spark: SparkSession, folder: Path, layout: Layout, kinds: Sequence[str], seed: int
) -> tuple[str, str]:
    """The folders of equal tables, merged by the engine and by Delta."""
    draw, ours, theirs = Random(seed), str(folder / "ours"), str(folder / "theirs")
    nested = nested_columns(layout, kinds)
    columns = {NAMES[kind]: kind for kind in kinds} | nested
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in layout.properties.items())
    spark.sql(
        f"CREATE TABLE delta.`{ours}` (i INT, p INT, {ddl}) USING delta"
        + (f" PARTITIONED BY ({layout.partition_by})" if layout.partition_by else "")
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    names = ["i", "p", *columns]
    target = spark.sql(rows(kinds, 0, ROWS, 1, draw)).select(names).repartitionByRange(FILES, "p")
    with configured(spark, SMALL_GROUPS):
        target.write.format("delta").mode("append").save(ours)
    shutil.copytree(ours, theirs)
    # One row of eight: more of a file's, and Spark rewrites it.
    source = spark.sql(rows(kinds, 1, ROWS + 9, 8, draw)).select(names).localCheckpoint()
    source.createOrReplaceTempView("contract_source")
    merge = (
        "MERGE INTO delta.`{}` AS t USING contract_source AS s ON t.i = s.i "
        "WHEN MATCHED AND s.i = 9 THEN DELETE WHEN MATCHED THEN UPDATE SET "
        f"{', '.join(f'{n} = s.{n}' for n in columns)} WHEN NOT MATCHED THEN INSERT *"
    ).format
    with configured(spark, layout.by):
        result = deltaweave.merge(spark, merge(ours))
    spark.sql(merge(theirs))
    if layout.by is TASKS:
        assert result.strategy == "copy-in-place", deltaweave.explain(spark, merge(theirs))
    files = files_of_ours(ours)
    assert bool(files) == (layout.by is not SPARK)
    is_a_row_a_file = layout.properties is VECTORS and layout.partition_by
    if files and not is_a_row_a_file:
        assert max(pq.ParquetFile(file).num_row_groups for file in files) > 1
    return ours, theirs


def files_of_ours(path: str, *, of_feed: bool = False) -> list[str]:
    """The files in a table's folder that the engine wrote without Spark."""
    files = [str(file) for file in Path(path).rglob("*.parquet") if "_delta_log" not in str(file)]
    written = [f for f in files if "parquet-cpp" in pq.ParquetFile(f).metadata.created_by]
    return [file for file in written if ("_change_data" in file) == of_feed]


@pytest.mark.minutes
@pytest.mark.parametrize("layout", SMALL, ids=str)
def test_filters_find_in_files_of_the_engine_what_scans_find(
    spark: SparkSession, tmp_path: Path, layout: Layout
) -> None:
    ours, theirs = merged_both_ways(spark, tmp_path, layout, FEW, seed=0)
    assert_read_alike(spark, ours, theirs, layout, of_files=12, of_table=1)


@pytest.mark.minutes
def test_rows_and_changes_are_the_same_with_large_types_of_arrow(
    spark: SparkSession, tmp_path: Path
) -> None:
    kinds = ("STRING", "BINARY", "DECIMAL(38, 10)", "DOUBLE")
    for number, layout in enumerate(SMALL):
        with configured(spark, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}):
            ours, theirs = merged_both_ways(spark, tmp_path / str(number), layout, kinds, seed=2)
        found, right = (
            [
                rows_where(spark.read.format("delta").load(path), ["true"]),
                change_feed(spark, path, 2),
            ]
            for path in (ours, theirs)
        )
        assert found == right


@pytest.mark.minutes
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(each, id=str(each), marks=() if each in TELLING else pytest.mark.full_matrix)
        for each in MORE
    ],
)
def test_filters_of_all_types_find_in_all_layouts_what_scans_find(
    spark: SparkSession, tmp_path: Path, layout: Layout
) -> None:
    seed = MORE.index(layout)
    kinds = {*Random(seed).sample(list(VALUES), 6), "DOUBLE"}
    ours, theirs = merged_both_ways(spark, tmp_path, layout, sorted(kinds), seed)
    assert_read_alike(spark, ours, theirs, layout, of_files=16, of_table=2)


def assert_read_alike(
    spark: SparkSession, ours: str, theirs: str, layout: Layout, *, of_files: int, of_table: int
) -> None:
    """Filters and aggregates of a table, and filters of each of its files, are right."""
    assert_other_readers_lose_no_rows(ours, theirs, layout)
    for of_feed in (False, True):
        if files := files_of_ours(ours, of_feed=of_feed):
            # Not through Delta, which may skip a file before Parquet's reader is asked.
            files_alone = spark.read.parquet(*files)
            assert_found_in_files(spark, files_alone, drawn_filters(files_alone, of_files, ours))
            if not of_feed:
                assert_aggregates_of_footers_are_right(spark, files)
    table = spark.read.format("delta").load(ours)
    filters = [*drawn_filters(table, of_table, seed=theirs), f"{NAMES['DOUBLE']} > 100"]
    assert_reads_alike_through_filters(spark, ours, theirs, filters)
    assert_aggregates_alike(spark, ours, theirs)
    is_update = bool(layout.partition_by)
    assert_changes_alike(spark, ours, theirs, filters[-1], is_update=is_update)


def assert_found_in_files(spark: SparkSession, table: DataFrame, drawn: Sequence[str]) -> None:
    """Filters find what a scan finds, by both readers of Spark."""
    names = {name for name in table.columns if table.schema[name].dataType == DoubleType()}
    filters = [*drawn, *[f"`{name}` {test}" for name in names for test in OF_NAN]]
    if "a" in table.columns:
        filters += [f"s.{NAMES['DOUBLE']} > 100", *OF_REPEATED]
    right = rows_where(table, filters)
    for number, reader in enumerate((VECTORIZED, ROW_READER)):
        with configured(spark, reader):
            half = filters[number::2]
            assert rows_through(table, half) == {each: right[each] for each in half}


def assert_aggregates_alike(spark: SparkSession, ours: str, theirs: str) -> None:
    """Count, min and max agree, which Delta may take from the log."""
    table = spark.read.format("delta").load(ours)
    names = [f.name for f in table.schema if isinstance(f.dataType, AtomicType)]
    asked = ", ".join(f"count({n}), min({n}), max({n})" for n in names if n != "p")
    query = f"SELECT count(*), {asked} FROM delta.`{{}}`"
    by_log = [rows_as_text(spark.sql(query.format(path)).collect()) for path in (ours, theirs)]
    with configured(spark, {"spark.databricks.delta.optimizeMetadataQuery.enabled": "false"}):
        by_scan = rows_as_text(spark.sql(query.format(ours)).collect())
    assert by_log == [by_scan, by_scan]


def assert_aggregates_of_footers_are_right(spark: SparkSession, files: Sequence[str]) -> None:
    """Spark counts in footers alone, and finds there the ends of columns that have bounds.

    Of its own files, too, it fails for the ends of a column with a row group of nulls.
    """
    kinds = (IntegralType, DateType, BooleanType)
    fields = [f for f in spark.read.parquet(*files).schema if isinstance(f.dataType, kinds)]
    unbounded = columns_with_unbounded_groups(files)
    bounded = [f"`{f.name}`" for f in fields if f.name not in unbounded]
    asked = ["count(*)", *[f"count(`{f.name}`)" for f in fields]]
    asked += [f"{end}({name})" for name in bounded for end in ("min", "max")]
    by_scan = spark.read.parquet(*files).selectExpr(*asked).collect()
    with configured(spark, FROM_FOOTERS):
        from_footers = spark.read.parquet(*files).selectExpr(*asked)
        plan = from_footers._jdf.queryExecution().executedPlan().toString()
        assert "PushedAggregation: [COUNT(*), COUNT(" in plan
        assert from_footers.collect() == by_scan


def columns_with_unbounded_groups(files: Sequence[str]) -> set[str]:
    footers = [pq.ParquetFile(file).metadata for file in files]
    groups = [footer.row_group(n) for footer in footers for n in range(footer.num_row_groups)]
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    return {
        chunk.path_in_schema
        for chunk in chunks
        if chunk.statistics is None or not chunk.statistics.has_min_max
    }


def assert_changes_alike(
    spark: SparkSession, ours: str, theirs: str, test: str, *, is_update: bool
) -> None:
    """An UPDATE or DELETE by a filter changes the rows for which it holds in a scan."""
    right = spark.read.format("delta").load(theirs)
    if is_update:
        statement, left = "UPDATE {} SET i = -i", "true"
        right = right.withColumn("i", F.expr(f"IF({test}, -i, i)"))
    else:
        statement, left = "DELETE FROM {}", f"({test}) IS NOT TRUE"
    spark.sql(f"{statement.format(f'delta.`{ours}`')} WHERE {test}")
    changed = spark.read.format("delta").load(ours)
    assert rows_where(changed, ["true"])["true"] == rows_where(right, [left])[left]


def assert_other_readers_lose_no_rows(ours: str, theirs: str, layout: Layout) -> None:
    """Filters of DuckDB, Polars, Arrow and delta-rs find what their scans find.

    Times in tables are left out: Spark writes INT96, which these readers cannot read of all years.
    So are structs: Polars cannot filter them in Delta tables.
    """
    for of_feed in (False, True):
        if files := files_of_ours(ours, of_feed=of_feed):
            leaves = reader_contract.leaves(pq.read_schema(files[0]))
            paths = [leaf.path for leaf in leaves if not leaf.is_repeated]
            for reader in other_readers.of_files(files):
                assert not other_readers.filters_that_lose_rows(reader, paths, seed=ours)
    if layout.properties in ({}, FEED):
        rows, right = (polars.read_delta(path).sort("i") for path in (ours, theirs))
        names = [n for n in rows.columns if n in ("i", *NAMES.values()) and n != NAMES["TIMESTAMP"]]
        assert_frame_equal(rows.select(names), right.select(names))
        for reader in other_readers.of_table(ours):
            columns = [(name,) for name in names]
            assert not other_readers.filters_that_lose_rows(reader, columns, seed=theirs)


@pytest.mark.minutes
def test_delta_rs_takes_from_the_log_what_it_takes_from_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its dataset for pyarrow takes bounds that are missing, or NaN, for bounds that exclude rows.

    So filters lose rows of tables that Spark alone wrote, too; no more of ours. It does not read
    `0E-10`, as Spark writes decimals of that many places; the engine writes their digits.
    """
    kinds = [kind for kind in VALUES if kind != "DECIMAL(38, 10)"]
    ours, _ = merged_both_ways(spark, tmp_path, Layout(DRIVER), kinds, seed=1)
    copy = str(tmp_path / "of_spark")
    spark.sql(f"CREATE TABLE delta.`{copy}` LIKE delta.`{ours}`")
    files = spark.read.format("delta").load(ours).withColumn("f", F.input_file_name())
    of_spark = files.repartitionByRange(100, "f").sortWithinPartitions("i").drop("f")
    of_spark.write.format("delta").mode("append").save(copy)
    bounds, of_theirs = (
        sorted(str(f.partition_expression) for f in dataset.get_fragments())
        for dataset in (DeltaTable(path).to_pyarrow_dataset() for path in (ours, copy))
    )
    assert bounds == of_theirs
    # If no longer, it is one more of `other_readers`.
    assert any(f"{NAMES['BOOLEAN']} <= null[bool]" in each for each in bounds)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        *[("INT", by) for by in (DRIVER, TASKS)],
        *zip(list(OF_VARIANTS)[1:], [DRIVER, TASKS] * 2, strict=True),
    ],
)
def test_files_with_variants_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, kind: str, by: Mapping[str, str]
) -> None:
    path, value = str(tmp_path), OF_VARIANTS[kind].format
    rows = [f"({k}, {value(k=k)})" for k in range(5)]
    spark.sql(f"CREATE TABLE delta.`{path}` (k INT, v {kind}) USING delta")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES {', '.join(rows[:3])}")
    spark.sql(f"SELECT * FROM VALUES {', '.join(rows[2:])} AS s(k, v)").createOrReplaceTempView("s")
    merge = f"MERGE INTO delta.`{path}` AS t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET *"
    with configured(spark, by):
        deltaweave.merge(spark, f"{merge} WHEN NOT MATCHED THEN INSERT *")
    assert bool(files_of_ours(path)) == (kind == "INT")
    assert spark.read.format("delta").load(path).where("k > 1").count() == 3


LEAVES = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("d", pa.float64()),
        pa.field("x.y", pa.int32()),
        pa.field("x", pa.struct([pa.field("y", pa.float32()), pa.field("z", pa.string())])),
        pa.field("a", pa.list_(pa.struct([pa.field("f", pa.float64())]))),
        pa.field("m", pa.map_(pa.string(), pa.float64())),
    ]
)


def test_bounds_and_dictionaries_are_of_columns_that_all_readers_read(
    tmp_path: Path,
) -> None:
    rows = pa.table(
        [
            [1, 2],
            [1.0, -0.0],
            [1, 2],
            [{"y": 0.0, "z": "a"}, None],
            [[{"f": -0.0}], []],
            [[("k", -0.0)], None],
        ],
        schema=LEAVES,
    )
    with pq.ParquetWriter(
        tmp_path / "file",
        LEAVES,
        store_schema=False,
        write_page_index=True,
        write_statistics=reader_contract.with_statistics(LEAVES),
        use_dictionary=reader_contract.with_dictionary(LEAVES, rows),
    ) as writer:
        writer.write_table(rows)
    group = pq.ParquetFile(tmp_path / "file").metadata.row_group(0)
    found = [group.column(n) for n in range(group.num_columns)]
    leaves = list(reader_contract.leaves(LEAVES))
    assert [each.path_in_schema for each in found] == [leaf.name for leaf in leaves]
    # Both leaves that are spelled `x.y` go without, since one of them is of floating values.
    assert [each.path_in_schema for each in found if each.is_stats_set] == ["k", "x.z"]
    assert [each.path_in_schema for each in found if each.has_column_index] == ["k", "x.z"]
    without_dictionary = [c.path_in_schema for c in found if not c.has_dictionary_page]
    assert without_dictionary == ["d"]  # it holds -0.0, and a filter may be of it
