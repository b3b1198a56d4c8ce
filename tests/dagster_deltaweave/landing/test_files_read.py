"""Which files of a source partition are read, whatever their names are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dagster_deltaweave import partition_path, read_source_partition

FORMATS = ["parquet", "csv", "json"]


def land(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv":
        file.write_text(f"id,s\n{number},x\n")
    elif file.suffix == ".json":
        file.write_text(f'{{"id":{number},"s":"x"}}\n')
    else:
        pq.write_table(pa.table({"id": pa.array([number], pa.int32()), "s": ["x"]}), file)


def read(spark: SparkSession, path: str, format: Any) -> list[tuple[Any, ...]]:
    rows = read_source_partition(spark, path, schema="id INT, s STRING", table="t", format=format)
    assert rows.columns == ["id", "s"]
    return sorted(map(tuple, rows.collect()))


@pytest.mark.minutes
@pytest.mark.parametrize("format", FORMATS)
def test_files_in_directories_below_are_read_with_their_own_values(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    for number, place in enumerate(
        # names of directories are no values, neither of a column nor of another one
        ("a", "sub/a", "sub/b/a", "s=01/a", "ID=7/a", "region=eu/a", "region=eu/s=2/a"),
        1,
    ):
        land(tmp_path / "all" / f"{place}.{format}", number)
    for hidden in ("_a", ".a", "_x/a", ".x/a", "sub/_a"):
        land(tmp_path / "all" / f"{hidden}.{format}", 0)
    land(tmp_path / "below" / "sub" / f"a.{format}", 1)

    assert read(spark, str(tmp_path / "all"), format) == [(n, "x") for n in range(1, 8)]
    assert read(spark, str(tmp_path / "below"), format) == [(1, "x")]


@pytest.mark.minutes
@pytest.mark.parametrize("format", FORMATS)
def test_no_name_of_a_file_or_directory_is_a_pattern(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    root = tmp_path / "a,b [z]{}*?\\ 100%20"
    for hour in ("2024-01-01-00:00", "2024-01-01-01:00"):
        for name in ("a,b", "a[1]", "{x}", "*", "a?", "\\x", "50%", "a%20b", "a#b"):
            land(root / hour / f"{name}.{format}", 1)

    path = partition_path(root, "2024-01-01-00:00")
    assert read(spark, path, format) == [(1, "x")] * 9
    for name in ("a,b", "*", "\\x"):
        assert read(spark, f"{path}/{name}.{format}", format) == [(1, "x")]
