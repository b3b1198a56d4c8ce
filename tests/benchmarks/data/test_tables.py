from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from assets import tpcds
from benchmarks.data.tables import (
    Fractions,
    Workspace,
    clone,
    session_options,
    source_rows,
    split,
    sql_name,
)
from benchmarks.merge import many_files
from benchmarks.merge.runner import fingerprint
from tests.benchmarks.generated import write_returns
from tests.builders import frame

ROWS = 2_810  # in 28 files: 10 rows each more or less than 100


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("parts")
    generated = write_returns(tmp_path_factory.mktemp("generated") / "web_returns.dat", ROWS)
    split(generated, directory, 28)
    return sorted(directory.iterdir())


def _keys(rows: pa.Table) -> list[tuple[float, float]]:
    return list(zip(*(rows[name].to_pylist() for name in tpcds.KEY), strict=True))


def _keys_of_files(parts: list[Path]) -> list[set[tuple[float, float]]]:
    return [set(_keys(pyarrow.parquet.read_table(part))) for part in parts]


def test_the_generated_rows_are_split_in_order_into_files_of_equal_counts(
    parts: list[Path],
) -> None:
    tables = [pyarrow.parquet.read_table(part) for part in parts]

    assert len(tables) == 28
    assert {len(table) for table in tables} == {100, 101}
    keys = _keys(pa.concat_tables(tables))
    assert len(set(keys)) == ROWS
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("fractions", "files", "matched", "not_matched"),
    [
        (Fractions(0.05, 0.0, 0.05), 1, 0, 5),
        (Fractions(0.05, 1.0, 0.0), 1, 100, 0),
        (Fractions(0.5, 0.01, 0.1), 14, 14, 140),
        (Fractions(1.0, 0.1, 0.01), 28, 281, 28),
    ],
    ids=str,
)
@pytest.mark.parametrize("key_type", ["double", "integer"])
def test_a_source_has_the_rows_asked_for(
    parts: list[Path],
    fractions: Fractions,
    files: int,
    matched: int,
    not_matched: int,
    key_type,
) -> None:
    rows = source_rows(parts, fractions, key_type)

    keys = _keys(rows)
    there = _keys_of_files(parts)
    found = [key for key in keys if any(key in file for file in there)]
    new = [key for key in keys if not any(key in file for file in there)]
    assert len(set(keys)) == len(keys)
    assert abs(len(found) - matched) <= 1  # files differ by a row
    assert abs(len(new) - not_matched) <= 1
    assert sum(bool(file & set(keys)) for file in there) <= files
    if matched >= files:
        assert sum(bool(file & set(keys)) for file in there) >= files // 2


def test_new_keys_are_fractions_as_in_deltas_benchmark_or_later_orders(parts: list[Path]) -> None:
    fractions = Fractions(0.05, 0.0, 0.1)

    doubles = source_rows(parts, fractions, "double")
    integers = source_rows(parts, fractions, "integer")

    assert all(0 <= value < 1 for key in _keys(doubles) for value in key)
    assert doubles.schema.field("wr_order_number").type == pa.float64()
    highest = -(-ROWS // 7)
    assert min(integers["wr_order_number"].to_pylist()) == highest + 1
    assert integers.schema.equals(tpcds.schema())


def test_a_source_is_the_same_each_time(parts: list[Path]) -> None:
    fractions = Fractions(0.5, 0.1, 0.1)

    assert source_rows(parts, fractions, "double").equals(source_rows(parts, fractions, "double"))


def test_a_clone_shares_data_files_and_has_a_log_of_its_own(tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "0.json").write_text("{}")
    (table / "day=1").mkdir()
    (table / "day=1" / "part.parquet").write_text("rows")

    clone(table, tmp_path / "copy")

    copy = tmp_path / "copy"
    assert (copy / "day=1" / "part.parquet").samefile(table / "day=1" / "part.parquet")
    assert not (copy / "_delta_log" / "0.json").samefile(table / "_delta_log" / "0.json")
    assert (copy / "_delta_log" / "0.json").read_text() == "{}"


def test_a_fingerprint_depends_on_rows_and_not_on_their_order(spark: SparkSession) -> None:
    first, same, null_elsewhere, other_duplicate = (
        fingerprint(frame(spark, rows, "a INT, b INT"))
        for rows in (
            [(1, None), (2, 3), (2, 3)],
            [(2, 3), (1, None), (2, 3)],
            [(None, 1), (2, 3), (2, 3)],
            [(1, None), (1, None), (2, 3)],
        )
    )

    assert first == same
    assert first[0] == "3"
    assert len({first, null_elsewhere, other_duplicate}) == 3


def test_a_log_names_files_that_are_not_there(spark: SparkSession, tmp_path: Path) -> None:
    workspace = Workspace(spark, tmp_path, 1, deletion_vectors=True, log_files=20)

    merges = many_files.found_by_key(workspace)

    (detail,) = spark.sql(f"DESCRIBE DETAIL {sql_name(merges.target)}").collect()
    assert detail["numFiles"] == 20
    assert detail["properties"]["delta.enableDeletionVectors"] == "true"
    assert len(list(merges.target.glob("*.parquet"))) == 1
    rows = spark.read.format("delta").load(str(merges.target))
    assert rows.where("id BETWEEN 0 AND 4").count() == 5


def test_options_of_a_session_are_put_back(spark: SparkSession) -> None:
    name, unset = "spark.sql.shuffle.partitions", "spark.benchmarks.test"
    before = spark.conf.get(name)

    with session_options(spark, {name: "3", unset: "x"}):
        assert spark.conf.get(name) == "3"
    assert spark.conf.get(name) == before
    assert spark.conf.get(unset, None) is None
