"""What comes to the driver is bounded by its decoded bytes, whatever it takes where it lies."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame as SparkDataFrame
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame

from deltaweave import Table
from deltaweave.engine import limits
from deltaweave.engine.merge_run import ON_DRIVER
from deltaweave.engine.source import collected_within
from deltaweave.engine.tasks import TooBigError
from tests.builders import frame, write_table
from tests.support.on_driver import rows_of, written_on_driver
from tests.support.settings import configured

MIB = 1 << 20
ROWS = 400


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each table that is collected."""
    found: list[int] = []
    to_arrow = DataFrame.toArrow

    def counted(rows: DataFrame) -> pa.Table:
        table = to_arrow(rows)
        found.append(table.nbytes)
        return table

    monkeypatch.setattr(DataFrame, "toArrow", counted)
    return found


DECIMALS = ", ".join(f"nullif(CAST(id AS DECIMAL(38)), -1) AS a{n}" for n in range(1_000))


# Values of 20,000 bytes in all but the first rows, or of 16,000 in all: 6 or 8 MB of rows.
@pytest.mark.parametrize(
    "value",
    [
        "repeat('x', 20000)",
        "encode(repeat('x', 20000), 'UTF-8')",
        "struct(nullif(id, -1) AS a, nullif(repeat('x', 20000), '') AS `b.c`)",
        "array_repeat(repeat('x', 100), 200)",
        "array_repeat(1D, 2500)",
        "array(array(named_struct('a', repeat('x', 20000))))",
        "map(repeat('x', 10000), repeat('x', 10000))",
        f"struct({DECIMALS})",
        f"struct({DECIMALS}, nullif('x', '') AS v)",
    ],
)
@pytest.mark.parametrize("max_bytes", [MIB, 64 * MIB])
def test_rows_come_whole_or_not_at_all(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    value: str,
    max_bytes: int,
) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES_SENT", 2 * MIB)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("id", f"IF(id < 20, NULL, {value}) AS `a b`")
    if max_bytes == MIB:
        with pytest.raises(TooBigError):
            collected_within(rows, ROWS, max_bytes)
        assert sum(sizes) < 3 * MIB
    else:
        expected = rows.toArrow()
        assert collected_within(rows, ROWS, max_bytes).equals(expected)


def test_rows_of_a_kilobyte_come_by_one_job(spark: SparkSession, sizes: list[int]) -> None:
    """No more is known than that the rows are few enough for the driver."""
    rows = spark.range(ROWS).selectExpr("id", "repeat('x', 1000) AS v")
    found = collected_within(rows, limits.MAX_LOCAL_ROWS + 1, limits.MAX_LOCAL_BYTES)
    assert pc.all(pc.equal(pc.binary_length(found["v"]), 1_000)).as_py()
    assert (found.num_rows, len(sizes)) == (ROWS, 1)


@pytest.mark.minutes
@pytest.mark.parametrize("is_table", [True, False], ids=["table", "query"])
def test_a_source_that_is_too_big_decoded_is_left_to_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    *,
    is_table: bool,
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_BYTES", MIB)
    monkeypatch.setattr(limits, "MAX_BYTES_SENT", 2 * MIB)
    on_driver = written_on_driver(monkeypatch)
    schema = "k INT, v STRING"
    target, source = str(tmp_path / "target"), str(tmp_path / "source")
    write_table(spark, target, [(1, "old"), (-1, "kept")], schema)
    rows = spark.range(ROWS).selectExpr("CAST(id AS INT) AS k", "repeat('x', 9000) AS v")
    if is_table:
        write_table(spark, source, [], schema)
        rows.write.format("delta").mode("append").save(source)
        rows = Table(spark, source).read()
    merge = Table(spark, target).merge(rows, on="t.k = s.k")
    with configured(spark, {ON_DRIVER: "true"}):
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert not on_driver
    assert max(sizes, default=0) < 2 * MIB
    assert len(rows_of(Table(spark, target))) == ROWS + 1


@pytest.mark.minutes
def test_long_keys_are_known_by_ranges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    monkeypatch.setattr(limits, "MAX_COLLECTED_KEY_BYTES", 64 * 1024)
    monkeypatch.setattr(limits, "MAX_PAIR_BYTES_ON_DRIVER", 64 * 1024)
    monkeypatch.setattr(limits, "MAX_BYTES_SENT", 128 * 1024)
    schema = "k STRING, v INT"
    target = str(tmp_path / "target")
    keys = [str(i).rjust(3_000, "x") for i in range(ROWS)]
    write_table(spark, target, [(key, 0) for key in keys[:200]], schema, files=2)
    changes = frame(spark, [(key, 1) for key in keys[100:]], schema)
    merge = Table(spark, target).merge(changes, on="t.k = s.k")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    values = [v for _, v in rows_of(Table(spark, target))]
    assert (values.count(0), values.count(1)) == (100, 300)
    assert max(sizes, default=0) < 256 * 1024


# Where a source is measured: materialized, with its keys, and on the driver.
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("materialize", "on_driver"), [("all", "false"), ("auto", "false"), ("auto", "true")]
)
def test_a_name_that_spark_replaces_in_texts_hinders_no_merge(
    spark: SparkSession, tmp_path: Path, materialize: str, on_driver: str
) -> None:
    """It would be the value of a variable, which errors and warnings would show."""
    target, name = str(tmp_path / "target"), "${env:HOME}"

    def rows(first: int, value: str) -> SparkDataFrame:
        text = F.lit(value)
        found = spark.range(first, first + 2, 1, 1)
        return found.select("id", text.alias(name), F.struct(text.alias(name)).alias("s"))

    mapped = {"delta.columnMapping.mode": "name"}
    rows(0, "old").write.format("delta").options(**mapped).save(target)
    settings = {"spark.databricks.delta.merge.materializeSource": materialize, ON_DRIVER: on_driver}
    with configured(spark, settings):
        merge = Table(spark, target).merge(rows(1, "new"), on="t.id = s.id")
        result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert not result.warnings
    found = [(row[0], row[1], row[2][0]) for row in Table(spark, target).read().collect()]
    assert sorted(found) == [(0, "old", "old"), (1, "new", "new"), (2, "new", "new")]
