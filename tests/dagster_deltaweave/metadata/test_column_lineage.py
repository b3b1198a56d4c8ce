from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetIn, AssetKey, AssetSpec, TableColumnLineage
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dagster_deltaweave import Changes, cdc_asset, merge_asset
from dagster_deltaweave.metadata.materialization import table_lineage
from deltaweave import Table, clauses
from deltaweave.delta.statement.analyzer import parse_statement, resolve
from deltaweave.delta.statement.column_origins import Origin, origins
from tests.dagster_deltaweave.conftest import Run

A, B, C = AssetKey("a"), AssetKey("b"), AssetKey("c")

Frames = dict[str, DataFrame]


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """A Delta table `orders`, a directory of Parquet `lands`, and a Delta target `totals`."""
    root = tmp_path_factory.mktemp("lineage")
    orders = Table(spark, str(root / "orders"))
    orders.create_if_missing("id INT, price INT, pieces INT, tags ARRAY<STRING>")
    Table(spark, str(root / "totals")).create_if_missing("id INT, total BIGINT, note STRING")
    spark.createDataFrame([(1, "nl")], "id INT, land STRING").write.parquet(str(root / "lands"))
    return {
        "orders": orders.read(),
        "lands": spark.read.parquet(str(root / "lands")),
        "totals": Table(spark, str(root / "totals")).read(),
    }


UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def renamed(of: Frames) -> DataFrame:
    return of["orders"].selectExpr("id", "price * pieces AS total", "'x' AS note")


def aggregated(of: Frames) -> DataFrame:
    joined = of["orders"].join(of["lands"], "id").where("pieces > 3")
    return joined.groupBy("id").agg(F.sum("price").alias("total"), F.max("land").alias("note"))


def united(of: Frames) -> DataFrame:
    spark = of["orders"].sparkSession
    made = spark.createDataFrame([(7, 8, "y")], "id INT, total INT, note STRING")
    other = of["lands"].selectExpr("id", "0", "land")
    return (
        of["orders"].selectExpr("id", "price", "'x'").union(other).union(made).toDF(*made.columns)
    )


def exploded(of: Frames) -> DataFrame:
    rank = F.row_number().over(Window.orderBy("price"))
    return of["orders"].select("id", rank.alias("total"), F.explode("tags").alias("note"))


def in_python(of: Frames) -> DataFrame:
    rows = of["orders"].select("id", "price").mapInArrow(lambda each: each, "id INT, total INT")
    return rows.join(of["lands"], "id").select("id", "total", F.col("land").alias("note"))


@pytest.mark.parametrize(
    ("source", "merged", "expected"),
    [
        (
            renamed,
            f"USING {{source}} AS s ON t.id = s.id {UPSERT}",
            {"id": {"orders.id"}, "total": {"orders.price", "orders.pieces"}, "note": set()},
        ),
        (
            aggregated,  # the filter's pieces decide which rows, and flow nowhere
            f"USING {{source}} AS s ON t.id = s.id {UPSERT}",
            {"id": {"orders.id"}, "total": {"orders.price"}, "note": {"lands.land"}},
        ),
        (
            united,  # rows made by the driver have no origin
            f"USING {{source}} AS s ON t.id = s.id {UPSERT}",
            {"id": {"orders.id", "lands.id"}, "total": {"orders.price"}, "note": {"lands.land"}},
        ),
        (
            exploded,
            f"USING {{source}} AS s ON t.id = s.id {UPSERT}",
            {"id": {"orders.id"}, "total": {"orders.price"}, "note": {"orders.tags"}},
        ),
        (
            in_python,  # what Python makes of rows is not followed
            f"USING {{source}} AS s ON t.id = s.id {UPSERT}",
            {"id": set(), "total": set(), "note": {"lands.land"}},
        ),
        (
            renamed,  # the statement's own query, an expression over both sides, a delete
            """USING (SELECT id, total + 1 AS more, upper(note) AS note FROM {source}) AS s
            ON t.id = s.id
            WHEN MATCHED AND s.more < 0 THEN DELETE
            WHEN MATCHED THEN UPDATE SET total = t.total + s.more
            WHEN NOT MATCHED AND s.note = 'a' THEN INSERT (id, note) VALUES (s.id, s.note)""",
            {"id": {"orders.id"}, "total": {"orders.price", "orders.pieces"}, "note": set()},
        ),
        (
            renamed,  # a condition gives no values
            "USING {source} AS s ON t.id = s.id WHEN MATCHED AND s.total > 3 THEN DELETE",
            {"id": set(), "total": set(), "note": set()},
        ),
    ],
)
def test_values_are_followed_to_the_columns_they_were_read_from(
    spark: SparkSession,
    stored: Frames,
    source: Callable[[Frames], DataFrame],
    merged: str,
    expected: dict[str, set[str]],
) -> None:
    [target] = {path.rsplit("/", 1)[0] for path in stored["lands"].inputFiles()}
    target = target.rsplit("/", 1)[0].removeprefix("file://") + "/totals"
    source(stored).createOrReplaceTempView("lineage_source")
    text = f"MERGE INTO delta.`{target}` AS t " + merged.format(source="lineage_source")

    found = origins(resolve(parse_statement(spark, text)))

    named = {
        column: {f"{each.location.rsplit('/', 1)[1]}.{each.column}" for each in of_column}
        for column, of_column in found.items()
    }
    assert named == expected


@pytest.mark.parametrize(
    ("location", "places", "asset"),
    [
        ("file:/lake/a", {A: "file:/lake/a", B: "file:/lake/b"}, A),
        ("file:/lake/a/day=1", {A: "file:///lake/a/", B: None}, A),
        ("file:/lake/ab", {A: "/lake/a", B: "/lake/b"}, None),
        ("file:/landing/x", {A: "/lake/a", B: None}, B),  # the one whose place is not known
        ("file:/landing/x", {A: "/lake/a", B: None, C: None}, None),  # which of the two?
        ("s3://bucket/a", {A: "s3://bucket/a", B: None}, A),
        ("file:/lake/own", {B: None}, None),  # what the table itself holds
    ],
)
def test_files_belong_to_the_asset_that_lies_there(
    location: str, places: dict[AssetKey, str | None], asset: AssetKey | None
) -> None:
    lineage = table_lineage({"v": {Origin(location, "w")}, "x": set()}, places, "/lake/own")

    deps = lineage.deps_by_column if lineage else {}
    found = {column: [(d.asset_key, d.column_name) for d in of] for column, of in deps.items()}
    assert found == ({"v": [(asset, "w")]} if asset else {})


@pytest.mark.minutes
def test_materializations_show_lineage_of_landing_table_and_touched_rows(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    landing = AssetSpec("landing")
    directory = str(tmp_path / "landing")
    rows = spark.createDataFrame([(1, "a", 3, "x")], "nr INT, grp STRING, n INT, op STRING")
    rows.write.parquet(directory)

    @merge_asset(keys=["id"], deps=[landing], except_column_list=["op"])
    def orders():  # type: ignore[no-untyped-def]
        return spark.read.parquet(directory).withColumnRenamed("nr", "id")

    @merge_asset(
        on="t.grp = s.grp",
        clauses=[
            clauses.when_matched_update(set={"n": "t.n + s.n"}),
            clauses.when_not_matched_insert_all(),
        ],
        ins={"orders": AssetIn(metadata={"deltaweave/read": "touched"})},
    )
    def counts(orders):  # type: ignore[no-untyped-def]
        summed = orders.added.groupBy("grp").agg(F.sum("n").alias("n"))
        return Changes(summed, applied=orders)

    @cdc_asset(
        keys=["id"],
        sequence_by="seq",
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"],
        deps=[landing],
    )
    def newest():  # type: ignore[no-untyped-def]
        return spark.read.parquet(directory).selectExpr("nr AS id", "upper(grp) grp", "n seq", "op")

    result = run(landing, orders, counts, newest, selection=[orders, counts, newest])

    def lineage(name: str) -> dict[str, Any]:
        [event] = result.asset_materializations_for_node(name)
        value = event.metadata["dagster/column_lineage"].value
        assert isinstance(value, TableColumnLineage)
        return {
            column: [(d.asset_key.to_user_string(), d.column_name) for d in deps]
            for column, deps in value.deps_by_column.items()
        }

    assert lineage("orders") == {
        "id": [("landing", "nr")],
        "grp": [("landing", "grp")],
        "n": [("landing", "n")],
    }
    assert lineage("newest") == {"id": [("landing", "nr")], "grp": [("landing", "grp")]}
    assert lineage("counts") == {"grp": [("orders", "grp")], "n": [("orders", "n")]}
