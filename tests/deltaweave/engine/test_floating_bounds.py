"""Files of earlier releases, by whose footers Spark may miss rows with NaN."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from deltaweave import Table
from deltaweave.engine.write.driver_choice import ON_DRIVER
from deltaweave.maintenance import OPERATIONS, UpkeepPolicy
from tests.builders import frame, write_table
from tests.oracles import actions, configured, newest_version


def test_upkeep_rewrites_files_with_bounds_of_floating_values(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The footer is that of the release before; a file's name and its other keys stay."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, float(k)) for k in range(8)], "k INT, d DOUBLE", files=2)
    table = Table(spark, path)
    with configured(spark, {ON_DRIVER: "true"}):
        source = frame(spark, [(2, float("nan")), (9, 9.0)], "k INT, d DOUBLE")
        merge = table.merge(source, on="t.k = s.k")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert table.count_floating_bounds() == 0
    added = [a["add"]["path"] for a in actions(path, newest_version(path)) if "add" in a]
    for file in added:
        give_floating_bounds(Path(path, file))
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
    assert sorted(row.k for row in table.read().collect()) == [*range(8), 9]
    version = newest_version(path)
    assert table.rewrite_floating_bounds() == 0
    assert newest_version(path) == version


def give_floating_bounds(file: Path) -> None:
    """Write a file as releases did that gave all columns statistics."""
    stored = pq.read_table(file)
    metadata = pq.ParquetFile(file).metadata.metadata or {}
    keys = {key: value for key, value in metadata.items() if key.startswith(b"org.apache.spark.v")}
    with pq.ParquetWriter(file, stored.schema, store_schema=False, write_page_index=True) as writer:
        writer.write_table(stored)
        writer.add_key_value_metadata(keys)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
