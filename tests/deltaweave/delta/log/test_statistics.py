"""What statistics say of a file holds for every value in it, whoever wrote them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import deltaweave
from deltaweave import Table
from deltaweave.delta.log import actions, statistic_bounds, statistics
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.log.statistics import Bounds, bounds, sorted_values
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from deltaweave.engine.tasks.file_statistics import FileStatistics
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

HIGHEST = "\U0010ffff"
EMOJI = "\U0001f600"  # two characters to Java; writers may cut off one


def decimals(*digits: str) -> list[Decimal]:
    return [Decimal(each) for each in digits]


# Column: its types in Arrow and Spark, and values at the ends of what the type, a writer or Python
# can hold.
EXTREMES: dict[str, tuple[pa.DataType, DataType, list[Any]]] = {
    "tiny": (pa.int8(), ByteType(), [-128, 127, 0]),
    "small": (pa.int16(), ShortType(), [-(2**15), 2**15 - 1]),
    "whole": (pa.int32(), IntegerType(), [-(2**31), 2**31 - 1, 16777217]),
    "big": (pa.int64(), LongType(), [-(2**63), 2**63 - 1, 2**53 + 1, 2**53, 0]),
    "decimal": (
        pa.decimal128(38, 10),
        DecimalType(38, 10),
        decimals(
            "20240101000000001",
            "-9999999999999999999999999999.9999999999",
            "9999999999999999999999999999.9999999999",
            "0.0000000001",
            "12345678901234567.8",
            "0",
        ),
    ),
    "fraction": (
        pa.decimal128(38, 38),
        DecimalType(38, 38),
        decimals("0." + "123456789" * 4 + "12", "-0." + "9" * 38, "0.1"),
    ),
    "cents": (pa.decimal128(15, 2), DecimalType(15, 2), decimals("9999999999999.99", "-0.01")),
    "single": (
        pa.float32(),
        FloatType(),
        [0.1, -0.0, 0.0, float("nan"), float("inf"), float("-inf"), 3.4028235e38, 1e-45, 7.1],
    ),
    "double": (
        pa.float64(),
        DoubleType(),
        [0.1, -0.0, 2.0**53 + 2, float("nan"), float("inf"), float("-inf"), 1.8e308, 5e-324],
    ),
    "day": (
        pa.date32(),
        DateType(),
        [date.max, date.min, date(1582, 10, 4), date(1582, 10, 10), date(2024, 1, 1)],
    ),
    "at": (
        pa.timestamp("us", "UTC"),
        TimestampType(),
        [
            datetime(9999, 12, 31, 23, 59, 59, 999999, timezone.utc),
            datetime(1, 1, 1, 0, 0, 0, 1, timezone.utc),
            datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc),
            datetime(1850, 6, 1, 0, 0, 0, 500, timezone.utc),
            datetime(1582, 10, 10, 12, tzinfo=timezone.utc),
            datetime(2024, 1, 1, 0, 0, 0, 123456, timezone.utc),
        ],
    ),
    "local": (
        pa.timestamp("us"),
        TimestampNTZType(),
        [datetime.max, datetime.min, datetime(1969, 12, 31, 23, 59, 59, 999999)],
    ),
    "text": (
        pa.string(),
        StringType(),
        [
            "a" * 40,
            HIGHEST * 20,  # 40 characters to Java
            HIGHEST * 40,
            "b" * 31 + HIGHEST * 2,
            "c" * 31 + EMOJI + "d",
            "e" * 30 + EMOJI * 3,
            "\ue000" * 33,
            "f" * 100 + "g",
            "",
        ],
    ),
}
COLUMNS = [((name,), spark_type) for name, (_, spark_type, _) in EXTREMES.items()]
ROW = StructType(
    [
        StructField("row", IntegerType()),
        StructField("v", LongType()),
        *[StructField(name, spark_type) for name, (_, spark_type, _) in EXTREMES.items()],
    ]
)
NUM_ROWS = max(len(values) for _, _, values in EXTREMES.values()) + 1  # the last one: nulls


def extreme_rows() -> pa.Table:
    columns = {"row": pa.array(range(NUM_ROWS), pa.int32()), "v": pa.array([0] * NUM_ROWS)}
    for name, (kind, _, values) in EXTREMES.items():
        columns[name] = pa.array([*values, *[None] * (NUM_ROWS - len(values))], kind)
    return pa.table(columns)


def write_by_spark(spark: SparkSession, path: str) -> None:
    """A file for each row, and one for all."""
    # Where clocks were once some minutes and seconds from UTC.
    with configured(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        rows = spark.createDataFrame(extreme_rows(), schema=ROW).coalesce(1)
        writer = rows.write.format("delta").option("delta.enableDeletionVectors", "false")
        writer.option("maxRecordsPerFile", 1).save(path)
        rows.write.format("delta").mode("append").save(path)


def write_as_spark_2(spark: SparkSession, path: str) -> None:
    """Before 1900, times have the zone's present offset, by a clock that was set otherwise."""
    with configured(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        write_by_spark(spark, path)


def optimize(spark: SparkSession, path: str) -> None:
    write_by_spark(spark, path)
    spark.sql(f"OPTIMIZE delta.`{path}`")


def write_by_delta_rs(spark: SparkSession, path: str) -> None:
    rows = extreme_rows()
    for place in range(NUM_ROWS):
        deltalake.write_deltalake(path, rows.slice(place, 1), mode="append")
    deltalake.write_deltalake(path, rows, mode="append")


def rewrite_in_place(spark: SparkSession, path: str) -> None:
    write_by_spark(spark, path)
    source = spark.range(NUM_ROWS).selectExpr("CAST(id AS INT) AS row")
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        merge = Table(spark, path).merge(source, on="t.row = s.row")
        assert merge.when_matched_update({"v": "1"}).execute().strategy == "copy-in-place"


def compute_later(spark: SparkSession, path: str) -> None:
    indexed = "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols"
    with configured(spark, {"spark.databricks.delta.stats.collect": "false", indexed: "32"}):
        write_by_spark(spark, path)
    assert Table(spark, path).compute_missing_statistics() > NUM_ROWS


WRITERS: dict[str, Callable[[SparkSession, str], None]] = {
    "spark": write_by_spark,
    "as_spark_2": write_as_spark_2,
    "optimize": optimize,
    "delta_rs": write_by_delta_rs,
    "in_place": rewrite_in_place,
    "computed_later": compute_later,
}


@pytest.fixture(scope="module", params=WRITERS)
def extremes(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Table]]:
    path = str(tmp_path_factory.mktemp("extremes") / "table")
    WRITERS[request.param](spark, path)
    yield request.param, Table(spark, path)
    shutil.rmtree(path)


def read_bounds(
    table: Table, columns: list[Any], *, by_query: bool = False
) -> tuple[FileList, list[Bounds]]:
    """The table's files, and the bounds of columns in them."""
    snapshot = table.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        if by_query:
            patch.setattr(actions, "FEW", -1)
        files = snapshot.file_list()
        assert (files.adds is None) == by_query
        return files, bounds(snapshot, files, columns)


def test_bounds_hold_every_value(extremes: tuple[str, Table]) -> None:
    writer, table = extremes
    files, in_text = read_bounds(table, COLUMNS)
    _, queried = read_bounds(table, COLUMNS, by_query=True)
    looked_up = bounds(table.snapshot(), replace(files, have_statistics=False), COLUMNS)
    assert looked_up == queried
    rows = table.read().select("_metadata.file_name", "*").toArrow()
    place = {unquote(path.split("/")[-1]): i for i, path in enumerate(files.paths)}
    held = [rows.filter(pa.compute.equal(rows["file_name"], name)) for name in place]
    for name, of_text, of_query in zip(EXTREMES, in_text, queried, strict=True):
        for i, rows_of_file in enumerate(held):
            values = rows_of_file[name]
            num_nulls = values.null_count
            some = [v for v in sorted_values(values.drop_null()) or () if v == v]
            for found in (of_text, of_query):
                low, high = found.lows[i], found.highs[i]
                for value in some:
                    assert low is None or low <= value, (name, low, value)
                    assert high is None or value <= high, (name, value, high)
                assert found.may_be_null[i] or not num_nulls
                assert not found.are_null[i] or num_nulls == len(values)
        known = sum(None not in each for each in zip(of_text.lows, of_text.highs, strict=True))
        assert known >= (1 if writer == "optimize" else 2) or name in ("single", "double", "text")
        if writer != "delta_rs":  # whose decimals Spark rounds to the scale of the type
            assert of_text == of_query, name


def test_no_file_is_passed_by_that_holds_the_keys(extremes: tuple[str, Table]) -> None:
    _, table = extremes
    table.read().createOrReplaceTempView("extreme_keys")
    on = " AND ".join(f"t.{name} = s.{name}" for name in EXTREMES)
    plan = deltaweave.explain(
        table.spark,
        f"MERGE INTO delta.`{table.path_or_name}` t USING extreme_keys s ON {on} "
        "WHEN MATCHED THEN DELETE",
    )
    assert plan.after_source_keys.files == plan.before_skipping.files


def test_bounds_of_a_few_files_take_no_job(
    spark: SparkSession, extremes: tuple[str, Table]
) -> None:
    snapshot = extremes[1].snapshot()
    files = snapshot.file_list()
    assert jobs_of(spark, "bounds", lambda: bounds(snapshot, files, COLUMNS)) == 0


DIGITS_38 = st.integers(1 - 10**38, 10**38 - 1)
DRAWN = {
    "decimal": DIGITS_38.map(lambda digits: Decimal(f"{digits}e-10")),
    "fraction": DIGITS_38.map(lambda digits: Decimal(f"{digits}e-38")),
    "single": st.floats(width=32),
    "double": st.floats(),
    "big": st.integers(-(2**63), 2**63 - 1),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.just(timezone.utc)),
    "local": st.datetimes(),
    "text": st.tuples(
        st.sampled_from(["", "a" * 31, HIGHEST * 16, HIGHEST * 32, "b" * 30 + EMOJI]),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
    ).map("".join),
}


def bounds_by(text: str, data_type: DataType) -> tuple[Any, Any]:
    """The bounds of `k` by the text of its file's statistics."""
    column = statistics.KnownColumn(("k",), data_type, False, False)
    found = statistic_bounds.parsed(text)
    lows, highs = (
        [statistics.value_at(found.get(of), ("k",))] for of in ("minValues", "maxValues")
    )
    known = column.bounds(statistics.RawStatistics(lows, highs, [None], [None]))
    return known.lows[0], known.highs[0]


@pytest.mark.minutes
@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(sorted(DRAWN)), prefix=st.sampled_from([32, 32, 9, 1]))
def test_bounds_of_our_own_writer_hold_whatever_is_written(
    data: st.DataObject, name: str, prefix: int
) -> None:
    kind, spark_type, _ = EXTREMES[name]
    values = pa.chunked_array([pa.array(data.draw(st.lists(DRAWN[name], min_size=1)), kind)])
    schema = StructType([StructField("k", spark_type)])
    ends = StructType([StructField("minValues", schema), StructField("maxValues", schema)])
    written = FileStatistics(json.loads(ends.json()), prefix)
    for part in (values.slice(0, 1), values.slice(1)):
        written.add(pa.table({"k": part}))
    low, high = bounds_by(written.to_json(), spark_type)
    for value in sorted_values(values) or ():
        if value == value:
            assert low is None or low <= value
            assert high is None or value <= high


MICROS = 1_704_067_200_000_000  # 2024-01-01 in UTC
YEAR_1900, YEAR_2 = -2_208_988_800_000_000, -62_104_060_800_000_000
YEAR_44 = (date(44, 3, 15) - date(1970, 1, 1)).days * 86_400_000_000
MINUTE, TWELVE_DAYS = 60_000_000, 12 * 86_400_000_000

# Type, a low or high bound as a writer has it in JSON, and what no value is below or above.
AS_WRITTEN: list[tuple[DataType, str, Any, Any]] = [
    (IntegerType(), "7", 7, 7),
    (IntegerType(), '"7"', 7, 7),
    (IntegerType(), "7.0", None, None),  # not written by any writer
    (IntegerType(), "true", None, None),
    (LongType(), "9223372036854775807", 2**63 - 1, 2**63 - 1),
    (DoubleType(), "9007199254740993", 2.0**53, 2.0**53),
    (DoubleType(), "NaN", None, None),
    (DoubleType(), '"NaN"', None, None),
    (DoubleType(), '"Infinity"', float("inf"), float("inf")),
    (DoubleType(), "1e999", float("inf"), float("inf")),
    # With 17 digits or fewer, it may be a double; with more it cannot.
    (
        DecimalType(38, 10),
        "2.0240101e16",
        Decimal("20240100999999797.59899"),
        Decimal("20240101000000202.40101"),
    ),
    (DecimalType(38, 10), "123456789012345678.1", *[Decimal("123456789012345678.1")] * 2),
    (DecimalType(38, 10), '"123456789012345678.1"', *[Decimal("123456789012345678.1")] * 2),
    (DecimalType(38, 10), "0", Decimal(0), Decimal(0)),
    (StringType(), '"short"', "short", "short"),
    (StringType(), '"exactly8"', "exactly8", "exactm"),
    (StringType(), '"abcdef\\ud83d?"', "abcdef\ud83d?", "abcdeg"),
    (StringType(), '"abcde\\ud7ff??"', "abcde\ud7ff??", "abcde\ue000"),
    (StringType(), json.dumps(HIGHEST * 20), HIGHEST * 20, None),
    (StringType(), '"caf\\ufffdX"', "caf", "cag"),  # of bytes that are no text
    (StringType(), '"12345678\\ufffd"', "12345678", "1234568"),
    (StringType(), "7", None, None),
    (DateType(), '"9999-12-31"', date.max, date.max),
    (DateType(), '"0044-03-15"', date.min, date(44, 3, 27)),  # it may be of 44 BC
    (DateType(), '"1582-10-15"', date(1582, 10, 5), date(1582, 10, 27)),
    (DateType(), '"1583-01-01"', date(1583, 1, 1), date(1583, 1, 1)),
    (DateType(), '"+12024-01-01"', None, None),
    (DateType(), '"-0001-01-01"', None, None),
    (DateType(), '"2024-02-30"', None, None),
    (DateType(), '"20240101"', None, None),
    (TimestampType(), '"2024-01-01T00:00:00.000Z"', MICROS, MICROS + 1000),
    (TimestampType(), '"2024-01-01T01:00:00+01:00"', MICROS, MICROS + 1000),
    (TimestampType(), '"2023-12-31T19:30:00.5-04:30"', MICROS + 500_000, MICROS + 501_000),
    (TimestampType(), '"2024-01-01T00:00:00.123456789Z"', MICROS + 123_456, MICROS + 124_456),
    (TimestampType(), '"1970-01-01T00:17:30.000+00:17:30"', -MINUTE, MINUTE),
    (
        TimestampType(),
        '"1900-01-01T00:00:00.000Z"',
        YEAR_1900 - TWELVE_DAYS,
        YEAR_1900 + TWELVE_DAYS,
    ),
    (
        TimestampType(),
        '"0001-12-31T16:07:02.000-08:00"',
        -(2**63),
        YEAR_2 + 422_000_000 + TWELVE_DAYS,
    ),
    (TimestampNTZType(), '"0044-03-15 00:00:00"', -(2**63), YEAR_44 + TWELVE_DAYS),
    (TimestampType(), '"2024-01-01 00:00:00"', None, None),  # in which zone?
    (TimestampType(), '"+10000-01-01T00:00:00.000Z"', None, None),
    (TimestampType(), "1704067200000", None, None),
    (TimestampNTZType(), '"2024-01-01 00:00:00"', MICROS, MICROS + 1000),
    (TimestampNTZType(), '"2024-01-01"', MICROS, MICROS + 1000),  # a DATE before it was widened
    (TimestampNTZType(), '"2024-01-01T00:00:00Z"', None, None),
]


@pytest.mark.parametrize(("data_type", "written", "low", "high"), AS_WRITTEN)
def test_bounds_are_exact_or_wider_or_not_known(
    data_type: DataType, written: str, low: Any, high: Any
) -> None:
    text = f'{{"minValues": {{"k": {written}}}, "maxValues": {{"k": {written}}}}}'
    assert bounds_by(text, data_type) == (low, high)


def test_days_beside_days_before_christ_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """Java's old classes write 44 BC as the year 44, and Delta takes that for the low bound."""
    path = str(tmp_path / "table")
    with configured(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        for days in ("make_date(-43, 3, 15)), (DATE'0010-01-01'", "DATE'2024-01-01'"):
            rows = spark.sql(f"SELECT * FROM VALUES ({days}) AS rows(k)").coalesce(1)
            rows.write.format("delta").mode("append").save(path)
    key = spark.sql("SELECT DATE'0010-01-01' AS k")
    result = Table(spark, path).merge(key, on="t.k = s.k").when_not_matched_insert_all().execute()
    assert result.metrics.num_target_rows_inserted == 0


@pytest.mark.parametrize(("text", "bytes_"), [(EMOJI, "FF41"), ("\u00e9", "8041")])
def test_texts_beside_bytes_that_are_no_text_are_found(
    spark: SparkSession, tmp_path: Path, text: str, bytes_: str
) -> None:
    """Spark orders the bytes, and the log has a character of another place in their stead."""
    path = str(tmp_path / "table")
    key = spark.createDataFrame([(text,)], "k STRING").coalesce(1)
    other = key.selectExpr(f"CAST(unhex('{bytes_}') AS STRING) AS k")
    key.union(other).coalesce(1).write.format("delta").save(path)
    spark.createDataFrame([("another file",)], "k STRING").write.format("delta").mode(
        "append"
    ).save(path)
    result = Table(spark, path).merge(key, on="t.k = s.k").when_not_matched_insert_all().execute()
    assert result.metrics.num_target_rows_inserted == 0
