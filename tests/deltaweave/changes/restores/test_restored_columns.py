"""Tables of change events that were restored or cloned, and whose columns changed in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table

EVENTS: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "at",
    "except_column_list": ["at"],
    "stored_as_scd_type": 2,
}


@pytest.mark.minutes
def test_a_restore_brings_back_what_was_remembered_with_fewer_fields(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")

    def apply(*events: tuple[int, int, int], item: str = "named_struct('a', v)") -> None:
        rows = ", ".join(map(str, events))
        source = spark.sql(f"SELECT k, at, array({item}) AS l FROM VALUES {rows} AS t(k, at, v)")
        deltaweave.apply_changes(spark, path, source, **EVENTS)

    def restore(version: int) -> None:
        spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")

    newest: Callable[[], int] = Table(spark, path).version
    apply((1, 10, 1))
    inserted = newest()
    # The second changes nothing that a version shows, so it is remembered beside the table.
    apply((1, 20, 1), (2, 20, 1))
    remembered = newest()
    restore(inserted)
    apply((3, 10, 1))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (l.element.x INT)")
    apply((1, 30, 1), (4, 10, 1), item="named_struct('a', v, 'x', INT(NULL))")
    restore(remembered)
    # A late event between the two: the first of them is a version again after it.
    apply((1, 15, 2))
    versions = Table(spark, path).read().where("k = 1").orderBy("__START_AT").collect()
    assert [(row.l[0].a, row["__START_AT"], row["__END_AT"]) for row in versions] == [
        (1, 10, 15),
        (2, 15, 20),
        (1, 20, None),
    ]
