"""Identity columns get values of their own, however many partitions the source's rows are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from tests.builders import frame, write_table
from tests.support.big_source import keep_pairs_on_executors
from tests.support.oracles import change_feed
from tests.support.settings import configured

DDL = "id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), k INT, v INT"
SCHEMA = "id BIGINT, k INT, v INT"
SOURCE = [(k, 100 * k) for k in range(1, 13)]
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
NO_VECTORS = {"delta.enableDeletionVectors": "false"}
TABLES: dict[str, dict[str, Any]] = {
    "copy_on_write": {"properties": NO_VECTORS},
    "one_join_for_updates_and_inserts": {"properties": NO_VECTORS},
    "in_place": {"properties": NO_VECTORS},
    "feed": {"properties": NO_VECTORS | FEED},
    "vectors": {"properties": VECTORS},
    "vectors_feed_and_partitions": {"properties": VECTORS | FEED, "partition_by": ["v"]},
}


def ids(table: Table) -> dict[int, int]:
    """Ids by key; each is of one row."""
    rows = table.read().collect()
    found = {row.k: row.id for row in rows}
    assert len(set(found.values())) == len(found) == len(rows)
    assert all(number >= 10 and number % 5 == 0 for number in found.values())
    return found


@pytest.mark.minutes
@pytest.mark.parametrize(
    "kind",
    [
        # The last one has a feed, and vectors, too.
        pytest.param(kind, marks=pytest.mark.full_matrix if kind in ("feed", "vectors") else ())
        for kind in TABLES
    ],
)
def test_inserted_rows_of_several_partitions_get_ids_of_their_own(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "one_join_for_updates_and_inserts":
        keep_pairs_on_executors(monkeypatch)
    path = str(tmp_path / "table")
    write_table(spark, path, [], SCHEMA, ddl=DDL, **TABLES[kind])
    spark.sql(f"INSERT INTO delta.`{path}` (k, v) VALUES (1, 1), (2, 2), (3, 3)")
    table = Table(spark, path)
    before = ids(table)

    source = frame(spark, SOURCE, "k INT, v INT", files=4)
    merge = table.merge(source, on="t.k = s.k").when_matched_update({"v": "s.v"})
    # Two clauses, of whose rows none may get an id that another gets.
    merge = merge.when_not_matched_insert({"k": "s.k", "v": "s.v"}, condition="s.k % 2 = 0")
    merge = merge.when_not_matched_insert({"k": "s.k", "v": "-s.v"})
    in_place = {REWRITE_IN_PLACE: "true"} if kind == "in_place" else {}
    with configured(spark, in_place):
        result = merge.execute()

    after = ids(table)
    assert {k: after[k] for k in before} == before
    assert after.keys() == {k for k, _ in SOURCE}
    if "feed" in kind:
        assert result.version is not None
        told = [row for row in change_feed(spark, path, result.version) if "'insert'" in row]
        assert told == sorted(
            repr((after[k], k, v if k % 2 == 0 else -v, "insert")) for k, v in SOURCE if k > 3
        )
    # The table knows the highest of them.
    spark.sql(f"INSERT INTO delta.`{path}` (k, v) VALUES (13, 13)")
    assert ids(table)[13] > max(after.values())


@pytest.mark.minutes
def test_rows_of_a_merge_that_only_inserts_get_ids_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [], SCHEMA, ddl=DDL)
    table = Table(spark, path)
    for rows in (SOURCE[:6], SOURCE):
        merge = table.merge(frame(spark, rows, "k INT, v INT", files=3), on="t.k = s.k")
        merge.when_not_matched_insert({"k": "s.k", "v": "s.v"}).execute()
    assert ids(table).keys() == {k for k, _ in SOURCE}
