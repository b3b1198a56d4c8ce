from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    DagsterInvalidDefinitionError,
    FreshnessPolicy,
    StaticPartitionsDefinition,
)
from pyspark.sql.types import LongType, StructField, StructType

from dagster_deltaweave import MergeDeclaration, cdc_asset, merge_asset
from dagster_deltaweave.tables.metadata_declarations import merge_declaration_in
from deltaweave import clauses

FRESHNESS = FreshnessPolicy.time_window(fail_window=timedelta(hours=6))
TOUCHED = {"deltaweave/read": "touched"}
SCHEMA = StructType([StructField("id", LongType()), StructField("n", LongType())])


def declared(definition: AssetsDefinition) -> MergeDeclaration:
    declaration = merge_declaration_in(definition.metadata_by_key[definition.key])
    assert declaration is not None
    return declaration


def test_keys_become_equalities_and_the_default_is_an_upsert() -> None:
    @merge_asset(keys=["id", "a b"])
    def customers() -> None: ...

    assert declared(customers).statement("c", "x") == (
        "MERGE INTO c AS t\n"
        "USING x AS s\n"
        "ON t.`id` = s.`id` AND t.`a b` = s.`a b`\n"
        "WHEN MATCHED THEN UPDATE SET *\n"
        "WHEN NOT MATCHED THEN INSERT *"
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"keys": ["id", "day"]}, "merged by id, day"),
        ({"on": "t.id <=> s.id"}, "merged by a condition"),
    ],
)
def test_the_definition_says_in_words_how_the_table_is_written(
    arguments: dict[str, Any], shown: str
) -> None:
    @merge_asset(**arguments)
    def customers() -> None: ...

    entry = customers.metadata_by_key[customers.key]["deltaweave/merge"]
    assert entry.value == shown


@pytest.mark.parametrize(("scd_type", "kept"), [(1, "rows"), (2, "histories")])
def test_the_definition_says_in_words_how_events_are_applied(
    scd_type: Literal[1, 2], kept: str
) -> None:
    @cdc_asset(keys=["id"], sequence_by="ts", stored_as_scd_type=scd_type)
    def customers() -> None: ...

    entry = customers.metadata_by_key[customers.key]["deltaweave/merge"]
    assert entry.value == f"{kept} by id, from change events in the order of ts"


def test_clauses_keep_their_order_and_their_kinds() -> None:
    @merge_asset(
        on="t.id <=> s.id",
        clauses=[
            clauses.when_matched_delete(condition="s.gone OR s.void"),
            clauses.when_matched_update(set={"v": "s.v", "n": "t.n + 1"}),
            clauses.when_not_matched_insert({"id": "s.id", "v": "s.v"}, condition="NOT s.gone"),
            clauses.when_not_matched_by_source_update(set={"v": "NULL"}, condition="t.n > 3"),
            clauses.when_not_matched_by_source_delete(),
        ],
        schema_policy="add",
    )
    def customers() -> None: ...

    assert declared(customers).statement("c", "x") == (
        "MERGE WITH SCHEMA EVOLUTION INTO c AS t\n"
        "USING x AS s\n"
        "ON t.id <=> s.id\n"
        "WHEN MATCHED AND (s.gone OR s.void) THEN DELETE\n"
        "WHEN MATCHED THEN UPDATE SET v = s.v, n = t.n + 1\n"
        "WHEN NOT MATCHED AND (NOT s.gone) THEN INSERT (id, v) VALUES (s.id, s.v)\n"
        "WHEN NOT MATCHED BY SOURCE AND (t.n > 3) THEN UPDATE SET v = NULL\n"
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )


def test_merge_text_is_filled_and_its_other_braces_are_kept() -> None:
    text = "MERGE INTO {target} t USING {source} s ON t.j = '{\"a\": {}}' WHEN MATCHED THEN DELETE"

    @merge_asset(merge_text=text)
    def customers() -> None: ...

    assert declared(customers).statement("c", "x") == (
        "MERGE INTO c t USING x s ON t.j = '{\"a\": {}}' WHEN MATCHED THEN DELETE"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "exactly one of keys, on and merge_text"),
        ({"keys": ["k"], "on": "t.k = s.k"}, "exactly one of keys, on and merge_text"),
        ({"keys": "id"}, "keys is a list of columns"),
        ({"merge_text": "MERGE INTO c USING {source} …"}, r"must name \{target\} and \{source\}"),
        (
            {"merge_text": "{target} {source}", "clauses": [clauses.when_matched_delete()]},
            "give no clauses",
        ),
        ({"merge_text": "{target} {source}", "schema_policy": "add"}, "no schema_policy"),
        ({"keys": ["k"], "schema_policy": "loose"}, "known are strict, add, widen"),
        ({"keys": ["k"], "partition_by": ["a"], "cluster_by": ["b"]}, "not both"),
        ({"keys": ["op"], "except_column_list": ["OP"]}, "keys names op, which except_column_list"),
        ({"keys": ["idd"], "schema": SCHEMA}, "keys names idd; the columns of schema are id, n"),
        ({"keys": ["ID"], "sequence_by": "m", "schema": SCHEMA}, "sequence_by names m"),
        ({"on": "t.id = s.id", "cluster_by": ["m"], "schema": SCHEMA}, "cluster_by names m"),
        ({"keys": ["k"], "idempotent_by": "run"}, "known are partition, delivery"),
        ({"keys": ["k"], "idempotent_by": "partition"}, "needs a partitions_def"),
        (
            {
                "keys": ["k"],
                "idempotent_by": "delivery",
                "backfill_policy": BackfillPolicy.single_run(),
            },
            "runs have one partition",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_at_load(
    arguments: dict[str, object], problem: str
) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match=f"merge asset customers: .*{problem}"):

        @merge_asset(**arguments)  # type: ignore[arg-type]
        def customers() -> None: ...


def test_two_touched_inputs_are_refused_at_load() -> None:
    ins = {"a": AssetIn(metadata=TOUCHED), "b": AssetIn(metadata=TOUCHED)}
    with pytest.raises(
        DagsterInvalidDefinitionError, match="only one input may read touched or changed"
    ):

        @merge_asset(keys=["k"], ins=ins)
        def counts(a, b) -> None: ...  # type: ignore[no-untyped-def]


def test_the_definition_says_what_dagster_shows() -> None:
    @merge_asset(
        keys=["id"],
        key_prefix=["sales", "eu"],
        group_name="sales",
        owners=["team:sales"],
        tags={"tier": "gold"},
        code_version="3",
        freshness_policy=FRESHNESS,
        backfill_policy=BackfillPolicy.single_run(),
        partitions_def=StaticPartitionsDefinition(["a"]),
        partition_expr="region",
    )
    def customers() -> None:
        """Every customer once."""

    key = AssetKey(["sales", "eu", "customers"])
    spec = customers.specs_by_key[key]
    assert spec.kinds == {"spark", "deltalake", "python"}
    assert (spec.group_name, spec.code_version) == ("sales", "3")
    assert (list(spec.owners), spec.tags["tier"]) == (["team:sales"], "gold")
    assert spec.description == "Every customer once."
    assert customers.op.pool == "merge/sales/eu/customers"
    assert spec.freshness_policy == FRESHNESS
    assert customers.backfill_policy == BackfillPolicy.single_run()
    assert spec.metadata["partition_expr"] == "region"


def test_stars_are_written_out_beside_except_column_list_if_schemas_evolve() -> None:
    @merge_asset(keys=["id"], schema_policy="add", except_column_list=["op"])
    def customers() -> None: ...

    assert declared(customers).statement("c", "x", ["id", "a b", "OP"]).splitlines()[3:] == [
        "WHEN MATCHED THEN UPDATE SET `id` = s.`id`, `a b` = s.`a b`",
        "WHEN NOT MATCHED THEN INSERT (`id`, `a b`) VALUES (s.`id`, s.`a b`)",
    ]


def test_a_pool_can_be_named() -> None:
    @merge_asset(keys=["id"], pool="small_tables")
    def customers() -> None: ...

    assert customers.op.pool == "small_tables"
