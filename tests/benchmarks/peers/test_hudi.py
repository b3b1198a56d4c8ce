from __future__ import annotations

from benchmarks.peers import hudi


def test_an_upsert_is_by_key_into_an_uncompacted_merge_on_read_table() -> None:
    sql = hudi.upsert(["id", "part", "state"], ["id", "part"])

    *_, create, operation = sql.make
    assert "'type' = 'mor', 'primaryKey' = 'id,part', 'hoodie.compact.inline' = 'false'" in create
    assert operation == "SET hoodie.spark.sql.insert.into.operation = upsert"
    assert sql.statement == "INSERT INTO upserted SELECT id, part, state FROM changes"
