"""A copy holds no -0.0 in a dictionary that was in none before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaweave.engine.tasks import Disk, TableFormat, rewrite_rows

ROWS = 1_000
NUMBERS = ["k"]
FLOATING, LISTS = "d", "l.list.element"
# The old pages name the dictionary's encoding PLAIN_DICTIONARY, as Spark does; the new ones PLAIN.
OLD, NEW = "1.0", "2.6"


@pytest.mark.parametrize(
    ("version", "falls_back", "engine", "bounds", "expected"),
    [
        # Spark's: both row groups have dictionaries alone
        (OLD, False, False, True, [FLOATING, LISTS]),
        # Spark's: the second row group has plain pages, with a -0.0; no reader looks up in lists
        (OLD, True, False, True, [LISTS]),
        # another writer's: PLAIN may be the dictionary or pages
        (NEW, False, False, True, [LISTS]),
        (NEW, False, False, False, [LISTS]),
        # of an earlier release, which wrote -0.0 to any page
        (NEW, False, True, True, [LISTS]),
        # the engine's
        (NEW, False, True, False, [FLOATING, LISTS]),
    ],
)
def test_a_copy_puts_no_plain_values_into_dictionaries(
    tmp_path: Path,
    version: str,
    expected: list[str],
    *,
    falls_back: bool,
    engine: bool,
    bounds: bool,
) -> None:
    numbers = np.arange(2 * ROWS)
    values = np.where(numbers < ROWS, 1.0, numbers if falls_back else 2.0)
    if falls_back:
        values[-1] = -0.0
    lists = pa.ListArray.from_arrays(pa.array(np.arange(2 * ROWS + 1), pa.int32()), values)
    rows = pa.table({"k": numbers % 2, "d": values, "l": lists})
    old = tmp_path / "old.parquet"
    limits = {"dictionary_pagesize_limit": 1_000, "write_batch_size": 100}
    statistics = [*NUMBERS, *([FLOATING] if bounds else [])]
    options = {"version": version, "write_statistics": statistics, "store_schema": False}
    with pq.ParquetWriter(old, rows.schema, **options, **limits) as writer:
        writer.write_table(rows, row_group_size=ROWS)
        if engine:
            writer.add_key_value_metadata({"org.apache.spark.version": "4.2.0"})
    second = pq.read_metadata(old).row_group(1).column(1)
    assert second.has_dictionary_page
    nothing = json.dumps({"type": "struct", "fields": []})
    table = TableFormat(rows.schema, "snappy", ".parquet", nothing, 32, "4.2.0", True, Disk())
    changed, deleted = np.array([3]), np.array([False])
    new = rewrite_rows(f"file:{old}", changed, deleted, rows.slice(0, 1), table).file
    assert new is not None
    group = pq.read_metadata(tmp_path / new[0]).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    found = [c.path_in_schema for c in columns if c.has_dictionary_page]
    assert found == [*NUMBERS, *expected]
