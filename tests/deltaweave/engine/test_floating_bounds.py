"""Files of earlier releases, by whose footers Spark may miss rows with NaN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, IntegerType, StructType

from deltaweave import Table
from deltaweave.engine import file_upkeep
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.maintenance import OPERATIONS, UpkeepPolicy
from tests.builders import frame, write_table
from tests.support.oracles import actions, newest_version
from tests.support.readers import give_floating_bounds
from tests.support.settings import configured


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("writer", "properties"),
    [
        ({ON_DRIVER: "true"}, {}),
        ({ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}, {"delta.enableRowTracking": "true"}),
    ],
    ids=["driver", "tasks-tracked"],
)
def test_upkeep_rewrites_files_with_bounds_of_floating_values(
    spark: SparkSession, tmp_path: Path, writer: Mapping[str, str], properties: Mapping[str, str]
) -> None:
    """The footer is that of the release before; a file's name and its other keys stay."""
    path = str(tmp_path / "table")
    write_table(
        spark,
        path,
        [(k, float(k)) for k in range(8)],
        "k INT, d DOUBLE",
        files=2,
        properties=properties,
    )
    table = Table(spark, path)
    with configured(spark, writer):
        source = frame(spark, [(2, float("nan")), (9, 9.0)], "k INT, d DOUBLE")
        merge = table.merge(source, on="t.k = s.k")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert table.count_floating_bounds() == 0
    added = [a["add"]["path"] for a in actions(path, newest_version(path)) if "add" in a]
    added = [file for file in added if is_of_the_engine(Path(path, file))]
    assert added
    for file in added:
        give_floating_bounds(Path(path, file))
    before = row_ids(table) if properties else []
    above = F.col("d") > 100
    assert table.read().where(above).count() == 0  # the row with NaN is missed
    assert table.count_floating_bounds() == len(added)
    done = OPERATIONS["floating_bounds"](table, UpkeepPolicy())
    assert done.numbers["files_removed"] == len(added)
    assert [row.k for row in table.read().where(above).collect()] == [2]
    assert table.count_floating_bounds() == 0
    changed = actions(path, newest_version(path))
    assert not any(
        a[kind]["dataChange"] for a in changed for kind in ("add", "remove") if kind in a
    )
    assert (row_ids(table) if properties else []) == before
    assert sorted(row.k for row in table.read().collect()) == [*range(8), 9]
    version = newest_version(path)
    assert table.rewrite_floating_bounds() == 0
    assert newest_version(path) == version


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DoubleType(), None),
        (ArrayType(FloatType()), None),
        (IntegerType(), 0),  # by the schema, there can be none
    ],
    ids=["double", "floats", "integer"],
)
def test_without_footers_bounds_are_not_known(
    monkeypatch: pytest.MonkeyPatch, kind: DataType, expected: int | None
) -> None:
    monkeypatch.setattr(file_upkeep, "storage_of", lambda table: None)
    metadata = SimpleNamespace(schema=StructType().add("d", kind))
    table: Any = SimpleNamespace(metadata=metadata)
    assert file_upkeep.count_floating_bounds(table) == expected
    assert file_upkeep.rewrite_floating_bounds(table, table) == expected


def is_of_the_engine(file: Path) -> bool:
    return "parquet-cpp" in pq.ParquetFile(file).metadata.created_by


def row_ids(table: Table) -> list[tuple[int, int, int]]:
    columns = table.read().select("k", "_metadata.row_id", "_metadata.row_commit_version")
    return sorted((row[0], row[1], row[2]) for row in columns.collect())
