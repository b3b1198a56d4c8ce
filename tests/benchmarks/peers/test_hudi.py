from __future__ import annotations

from benchmarks.peers.hudi import HUDI


def test_an_upsert_by_keys_goes_into_a_table_that_is_not_compacted() -> None:
    sql = HUDI.upsert(["id", "part", "state"], ["id", "part"])

    *_, create, operation = sql.make
    assert "'type' = 'mor', 'primaryKey' = 'id,part', 'hoodie.compact.inline' = 'false'" in create
    assert operation == "SET hoodie.spark.sql.insert.into.operation = upsert"
    assert sql.statement == "INSERT INTO upserted SELECT id, part, state FROM changes"
