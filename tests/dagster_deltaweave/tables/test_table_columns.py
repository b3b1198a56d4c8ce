"""The columns that an asset shows before its table is there."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from dagster_deltaweave import merge_asset
from dagster_deltaweave.tables import declared_column_schema


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ("id INT, name STRING", [("id", "int", None, True), ("name", "string", None, True)]),
        ("id BIGINT NOT NULL COMMENT 'who, and when'", [("id", "bigint", "who, and when", False)]),
        (r"id INT COMMENT 'it\'s'", [("id", "int", "it's", True)]),
        ('id INT COMMENT "a (b"', [("id", "int", "a (b", True)]),
        ("`a, b` decimal(7, 2)", [("a, b", "decimal(7, 2)", None, True)]),
        (
            "s STRUCT<a: INT, b: ARRAY<STRING>> COMMENT 'both', m map<string,int>",
            [
                ("s", "struct<a: int, b: array<string>>", "both", True),
                ("m", "map<string,int>", None, True),
            ],
        ),
        ("id: INT", [("id", "int", None, True)]),
        ("n INT DEFAULT 5 COMMENT 'so many'", [("n", "int", "so many", True)]),
        (
            StructType(
                [
                    StructField("id", IntegerType(), False, {"comment": "who"}),
                    StructField("name", StringType()),
                ]
            ),
            [("id", "int", "who", False), ("name", "string", None, True)],
        ),
        ("what is this, id", None),
        ("id INT,", None),
        ("", None),
        (None, None),
    ],
)
def test_declared_columns_are_shown_without_spark(
    schema: StructType | str | None, columns: list[tuple[object, ...]] | None
) -> None:
    shown = declared_column_schema(schema)
    assert columns == (
        shown and [(c.name, c.type, c.description, c.constraints.nullable) for c in shown.columns]
    )


def test_an_asset_shows_columns_and_merge_before_its_first_run() -> None:
    schema = "id INT COMMENT 'who', name STRING"

    @merge_asset(keys=["id"], schema=schema, key_prefix="sales", table="main.sales.customers")
    def customers() -> None: ...

    @merge_asset(keys=["id"], schema=schema, metadata={"merge/statement": "mine"})
    def others() -> None: ...

    for asset in (customers, others):
        shown = asset.get_asset_spec().metadata["dagster/column_schema"]
        assert [(column.name, column.description) for column in shown.columns] == [
            ("id", "who"),
            ("name", None),
        ]
    statement = customers.get_asset_spec().metadata["merge/statement"].value
    assert "MERGE INTO main.sales.customers AS t" in statement
    assert "ON t.`id` = s.`id`" in statement
    assert others.get_asset_spec().metadata["merge/statement"] == "mine"
