"""Keys of years that Python's dates do not have, which end with 9999, as Spark's do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave.errors import AmbiguousMatchError

FAR = "DATE'+10000-01-01'"


def test_a_merge_finds_them_and_an_error_names_them(spark: SparkSession, tmp_path: Path) -> None:
    target = f"delta.`{tmp_path / 'table'}`"
    for row in (f"{FAR} AS k, 1 AS v", "DATE'2024-01-01' AS k, 2 AS v"):
        spark.sql(f"SELECT {row}").write.format("delta").mode("append").save(
            str(tmp_path / "table")
        )
    merge = f"MERGE INTO {target} t USING (SELECT explode(array({{}})) AS v, {FAR} AS k) s "
    merge += "ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v"

    deltaweave.merge(spark, merge.format("10"))
    rows = spark.sql(f"SELECT CAST(k AS STRING), v FROM {target}").collect()
    assert {tuple(row) for row in rows} == {("+10000-01-01", 10), ("2024-01-01", 2)}

    with pytest.raises(AmbiguousMatchError) as raised:
        deltaweave.merge(spark, merge.format("20, 30"))
    assert raised.value.keys == ({"k": "+10000-01-01", "matches": 2},)
