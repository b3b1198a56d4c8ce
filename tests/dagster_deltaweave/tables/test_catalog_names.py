"""Tables named by schema and catalog: by metadata, by the IO manager, by the key's prefix."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetIn,
    AssetKey,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    ExecuteInProcessResult,
    MetadataValue,
    TableColumn,
    TableSchema,
    asset,
    materialize,
    multi_asset,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import (
    DeltaTableResource,
    SparkDeltaIOManager,
    cdc_asset,
    merge_asset,
    merge_on_read_asset,
)
from deltaweave import Table
from deltaweave.errors import DeltaweaveError, NotADeltaTableError, StatementError
from tests.dagster_deltaweave.conftest import rows
from tests.deltaweave.delta.log.test_table_log import second_catalog

Materialize = Callable[..., ExecuteInProcessResult]

COLUMNS = "id INT, v STRING"


@pytest.fixture
def schemas(spark: SparkSession) -> Iterator[list[str]]:
    names = [f"{word}_{uuid.uuid4().hex[:8]}" for word in ("sales", "stock")]
    for name in names:
        spark.sql(f"CREATE SCHEMA {name}")
    yield names
    for name in names:
        spark.sql(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def run(instance: DagsterInstance, resources: dict[str, Any], tmp_path: Path) -> Materialize:
    """Materializes assets with an IO manager of these arguments."""

    def materialized(*assets: Any, of: dict[str, Any], **arguments: Any) -> Any:
        manager = SparkDeltaIOManager(root=str(tmp_path / "tables"), spark=resources["spark"], **of)
        given = {**resources, "io_manager": manager}
        return materialize(assets, resources=given, instance=instance, **arguments)

    return materialized


def one_row(
    spark: SparkSession, *key: str, value: str = "new", **arguments: Any
) -> AssetsDefinition:
    @merge_asset(keys=["id"], key_prefix=list(key[:-1]) or None, name=key[-1], **arguments)
    def of_key() -> DataFrame:
        return spark.createDataFrame([(1, value)], COLUMNS)

    return of_key


def tables_in(spark: SparkSession, schema: str) -> list[str]:
    listed = spark.sql(f"SHOW TABLES IN {schema}").collect()
    return sorted(row.tableName for row in listed if not row.isTemporary)


@pytest.mark.minutes
def test_the_metadata_decides_before_the_io_managers_schema(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    sales, stock = schemas
    of_sales = one_row(spark, "raw", "orders", value="sales")
    of_stock = one_row(spark, "orders", value="stock", metadata={"schema": stock})
    full = {"schema": stock, "catalog": MetadataValue.text("spark_catalog")}
    qualified = one_row(spark, "returns", metadata=full)
    seen: dict[str, Any] = {}

    @asset
    def report(orders: DataFrame, returns: DataFrame) -> None:
        seen.update(orders=orders.collect(), returns=returns.collect())

    for _ in range(2):  # the tables are created, then merged into
        result = run(of_sales, of_stock, qualified, report, of={"schema": sales})
    assert rows(Table(spark, f"{sales}.orders")) == [(1, "sales")]
    assert rows(Table(spark, f"{stock}.orders")) == [(1, "stock")]
    assert Table(spark, f"{stock}.orders").version() == 2
    assert [tables_in(spark, name) for name in schemas] == [["orders"], ["orders", "returns"]]
    assert seen == {"orders": [(1, "stock")], "returns": [(1, "new")]}
    assert not (tmp_path / "tables").exists()
    names = {
        event.asset_key.to_user_string(): event.materialization.metadata["dagster/table_name"].value
        for event in result.get_asset_materialization_events()
        if event.asset_key.path != ["report"]
    }
    assert names == {
        "raw/orders": f"{sales}.orders",
        "orders": f"{stock}.orders",
        "returns": f"spark_catalog.{stock}.returns",
    }


@pytest.mark.minutes
def test_with_a_catalog_alone_the_prefix_of_the_key_is_the_schema(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    sales, stock = schemas
    of = {"catalog": "spark_catalog"}
    run(one_row(spark, "any", sales, "orders"), one_row(spark, stock, "orders"), of=of)
    assert [tables_in(spark, name) for name in schemas] == [["orders"], ["orders"]]
    with pytest.raises(StatementError, match="nothing names the schema") as refused:
        run(one_row(spark, "orders"), of=of)
    assert "metadata schema" in str(refused.value.hint)

    @asset
    def writes_nothing_here() -> None: ...

    assert run(writes_nothing_here, of=of).success


def test_a_schema_that_is_missing_is_refused_and_nothing_is_made(
    spark: SparkSession, run: Materialize, tmp_path: Path
) -> None:
    missing = f"missing_{uuid.uuid4().hex[:8]}"
    for of, metadata in (({"schema": missing}, None), ({}, {"schema": missing})):
        with pytest.raises(DeltaweaveError, match="SCHEMA_NOT_FOUND") as refused:
            run(one_row(spark, "orders", metadata=metadata), of=of)
        assert "Create the schema first" in str(refused.value.hint)
    assert not (tmp_path / "tables").exists()
    assert not spark.catalog.databaseExists(missing)


# Names of tables that are more than a name, and what is said of each.
HOSTILE = {
    "a b": "not a valid name",
    "a.b": "not a valid name",
    "t; DROP TABLE x --": "not a valid name",
    "${spark.app.name}": "cannot hold the name",
    "a`b": "back ?tick",
    "..": "is not a name in a catalog",
    "../../x": "is not a name in a catalog",
}


@pytest.mark.minutes
def test_a_name_that_is_more_than_a_name_is_refused(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    for name, problem in HOSTILE.items():
        metadata = {"deltaweave/write": "append"}

        @multi_asset(outs={"rows": AssetOut(key=AssetKey(["raw", name]), metadata=metadata)})
        def hostile() -> DataFrame:
            return spark.createDataFrame([(1, "new")], COLUMNS)

        with pytest.raises(StatementError, match=problem):
            run(hostile, of={"schema": schemas[0]})
        assert tables_in(spark, schemas[0]) == [], name


def test_a_schema_that_is_more_than_a_name_names_no_other_schema(
    spark: SparkSession, run: Materialize
) -> None:
    refused = r"SCHEMA_NOT_FOUND|not a name in a catalog|backtick"
    for schema in ("sales`.`orders", "a.b", "x; DROP SCHEMA y", "/etc"):
        with pytest.raises(DeltaweaveError, match=refused):
            run(one_row(spark, "orders"), of={"schema": schema})


def test_a_schema_called_delta_needs_its_catalog(spark: SparkSession, run: Materialize) -> None:
    """`delta.orders` is a path for Delta's readers."""
    with pytest.raises(StatementError, match="may mean a path"):
        run(one_row(spark, "orders"), of={"schema": "delta"})


@pytest.mark.minutes
def test_assets_whose_keys_give_one_name_are_refused(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    sales = schemas[0]
    assets = [one_row(spark, "raw", "orders"), one_row(spark, "clean", "Orders")]
    with pytest.raises(StatementError, match="have the path of the table of") as refused:
        run(*assets, of={"schema": sales})
    assert "table=…" in str(refused.value.hint)
    assert tables_in(spark, sales) == []
    by_name = one_row(spark, "other", table=f"{sales}.orders")
    spark.sql(f"CREATE TABLE {sales}.orders ({COLUMNS}) USING delta")
    for other in (assets[1], by_name, one_row(spark, "orders", metadata={"schema": sales})):
        with pytest.raises(StatementError, match="have the path of the table of"):
            run(assets[0], other, of={"schema": sales, "catalog": "spark_catalog"})
    assert Table(spark, f"{sales}.orders").version() == 0
    shared = [one_row(spark, name, table=f"{sales}.orders") for name in ("one", "two")]
    assert run(*shared, of={}).success  # on purpose


@pytest.mark.minutes
def test_a_table_in_a_schema_belongs_to_the_asset_that_created_it(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    sales, of = schemas[0], {"schema": schemas[0]}
    run(one_row(spark, "raw", "orders"), of=of)
    other = one_row(spark, "clean", "orders", value="other")  # of another code location, say
    with pytest.raises(StatementError, match="the table of the asset raw/orders") as refused:
        run(other, of=of)
    assert rows(Table(spark, f"{sales}.orders")) == [(1, "new")]
    [statement] = [each for each in str(refused.value.hint).split("so: ") if "ALTER" in each]
    spark.sql(statement.rstrip(".").replace("…", f"{sales}.orders"))
    run(other, of=of)  # it is the same asset, under another key
    with pytest.raises(StatementError, match="the table of the asset clean/orders"):
        run(one_row(spark, "raw", "orders"), of=of)
    assert run(one_row(spark, "any", table=f"{sales}.orders"), of=of).success  # on purpose
    spark.sql(f"CREATE TABLE {sales}.returns ({COLUMNS}) USING delta")  # by nobody's asset
    assert run(one_row(spark, "raw", "returns"), of=of).success


@pytest.mark.minutes
def test_assets_of_two_io_managers_with_one_table_name_are_refused(
    spark: SparkSession, run: Materialize, schemas: list[str], resources: dict[str, Any]
) -> None:
    lake = SparkDeltaIOManager(root="/lake", spark=resources["spark"])
    resources["lake"] = lake

    def both(**metadata: str) -> list[AssetsDefinition]:
        raw = one_row(spark, "raw", "orders", metadata=metadata)
        return [raw, one_row(spark, "c", "orders", metadata=metadata, io_manager_key="lake")]

    with pytest.raises(StatementError, match="have the path of the table of"):
        run(*both(schema=schemas[0], catalog="spark_catalog"), of={})
    assert tables_in(spark, schemas[0]) == []
    # Without a catalog, the other's table may be in another one: the table itself says whose it is.
    with pytest.raises(StatementError, match="the table of the asset"):
        run(*both(schema=schemas[0]), of={})
    assert len(rows(Table(spark, f"{schemas[0]}.orders"))) == 1


@pytest.mark.minutes
def test_an_asset_that_gets_a_schema_does_not_start_empty(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    sales = schemas[0]
    run(one_row(spark, "orders", value="before"), of={})
    moved = one_row(spark, "orders", value="after")
    with pytest.raises(StatementError, match="the asset has one at") as refused:
        run(moved, of={"schema": sales})
    assert tables_in(spark, sales) == []
    hint = str(refused.value.hint)
    spark.sql(hint[hint.index("CREATE") : hint.rindex(". Or")])
    run(moved, of={"schema": sales})
    there = Table(spark, str(tmp_path / "tables" / "orders"))
    assert (rows(there), there.version()) == ([(1, "after")], 2)


@pytest.mark.parametrize("below", ["/orders", "", "/orders/inner"])
def test_a_table_in_a_schema_is_compared_with_tables_at_paths_too(
    spark: SparkSession, run: Materialize, schemas: list[str], below: str
) -> None:
    place = spark.sql(f"DESCRIBE SCHEMA {schemas[0]}").where("info_name = 'Location'").head()[1]
    orders = one_row(spark, "orders")
    at_path = one_row(spark, "at_path", table=f"{place}{below}")
    with pytest.raises(
        StatementError,
        match=r"its table would (be inside|contain|have the path of) the table of at_path",
    ):
        run(orders, at_path, of={"schema": schemas[0]})
    assert tables_in(spark, schemas[0]) == []


@pytest.mark.parametrize(
    ("name", "declared"),
    [("outer", False), ("my outer 100% [a]#1", False), ("my outer 100% [a]#1", True)],
)
def test_a_table_in_a_schema_is_not_created_inside_of_another_table(
    spark: SparkSession, run: Materialize, tmp_path: Path, declared: bool, name: str
) -> None:
    schema, outer = f"inner_{uuid.uuid4().hex[:8]}", tmp_path / name
    Table(spark, str(outer)).create_if_missing(COLUMNS)
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{outer}/deep'")
    try:
        orders = one_row(spark, "orders", **({"table": f"{schema}.orders"} if declared else {}))
        with pytest.raises(StatementError, match="would be inside the one at"):
            run(orders, of={} if declared else {"schema": schema})
        assert tables_in(spark, schema) == []
    finally:
        spark.sql(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.minutes
def test_a_table_at_a_path_is_not_created_inside_of_one_in_a_schema(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    run(one_row(spark, "orders"), of={"schema": schemas[0]})
    inner = Path(Table(spark, f"{schemas[0]}.orders").location().removeprefix("file:")) / "inner"
    with pytest.raises(StatementError, match="would be inside the one at"):
        run(one_row(spark, "at_path", table=str(inner)), of={})
    assert not inner.exists()


@pytest.mark.minutes
def test_another_assets_table_is_no_input_by_the_default_schema(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    of = {"schema": schemas[0]}
    run(one_row(spark, "raw", "orders"), of=of)

    @asset(ins={"orders": AssetIn(key=["crm", "orders"])})
    def report(orders: DataFrame) -> None: ...

    with pytest.raises(StatementError, match="the table of the asset raw/orders"):
        run(AssetSpec(["crm", "orders"]), report, of=of)
    declared = AssetSpec(["crm", "orders"], metadata={"schema": schemas[0]})
    assert run(declared, report, of=of).success  # it says so


@pytest.mark.minutes
def test_an_asset_with_a_declared_write_reads_no_other_assets_table(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    of = {"schema": schemas[0]}
    run(one_row(spark, "raw", "orders"), of=of)
    same_name = one_row(spark, "crm", "orders")
    seen: list[Any] = []

    @asset(ins={"orders": AssetIn(key=["crm", "orders"])})
    def report(orders: DataFrame) -> None:
        seen.extend(orders.collect())

    with pytest.raises(StatementError, match="the table of the asset raw/orders"):
        run(same_name, report, of=of, selection=[report])
    assert seen == []


def test_what_cannot_be_read_is_not_taken_for_no_table(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    """An asset whose table at its key has a feature of a later Delta does not start over."""
    log = tmp_path / "tables" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["ofTomorrow"], "writerFeatures": ["ofTomorrow"]}
    schema = json.dumps({"type": "struct", "fields": []})
    metadata = {"id": "i", "format": {"provider": "parquet", "options": {}}}
    metadata |= {"schemaString": schema, "partitionColumns": [], "configuration": {}}
    lines = [{"protocol": {**protocol, **features}}, {"metaData": metadata}]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DeltaweaveError):
        run(one_row(spark, "orders"), of={"schema": schemas[0]})
    assert tables_in(spark, schemas[0]) == []


@pytest.mark.minutes
def test_an_asset_that_declares_no_table_has_none_of_another_assets(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    of = {"schema": schemas[0]}
    run(one_row(spark, "orders"), of=of)

    @asset(key_prefix="other", name="orders")
    def writes_elsewhere() -> None: ...

    @merge_asset(keys=["id"], deps=[writes_elsewhere])
    def copied() -> DataFrame:
        return spark.table(f"{schemas[0]}.orders").select("id")

    result = run(writes_elsewhere, copied, of=of)
    recorded = {
        event.asset_key.to_user_string(): event.materialization
        for event in result.get_asset_materialization_events()
    }
    assert "dagster/uri" not in recorded["other/orders"].metadata
    assert "dagster/row_count" not in recorded["other/orders"].metadata


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(
    spark: SparkSession, run: Materialize, resources: dict[str, Any], name: str
) -> None:
    for word in ("schema", "catalog"):
        with pytest.raises(StatementError, match=f"the {word} in the asset's metadata is empty"):
            one_row(spark, "orders", metadata={word: name})
        with pytest.raises(Exception, match="A name is empty"):
            run(one_row(spark, "orders"), of={word: name})


@pytest.mark.minutes
def test_a_table_of_another_catalog_is_merged_into_and_none_is_made_there(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    sales = schemas[0]
    tables = second_catalog(spark)
    try:
        spark.sql(f"CREATE NAMESPACE other.{sales} LOCATION '{tmp_path}/namespace'")
        state = spark._jsparkSession.sessionState()
        parsed = state.sqlParser().parseTableIdentifier(f"{sales}.orders")
        spark.sql(f"CREATE TABLE {sales}.orders ({COLUMNS}) USING delta LOCATION '{tmp_path}/o'")
        tables.createTable(state.catalog().getTableMetadata(parsed), False, False)
        spark.sql(f"DROP TABLE {sales}.orders")
        spark.sql(f"CREATE TABLE {sales}.orders ({COLUMNS}) USING delta")
        of = {"schema": sales, "catalog": "other"}
        assert run(one_row(spark, "orders"), of=of).success
        assert rows(Table(spark, str(tmp_path / "o"))) == [(1, "new")]
        assert Table(spark, f"spark_catalog.{sales}.orders").version() == 0
        # The same name in both catalogs is that of two tables.
        both = [
            one_row(spark, "orders"),
            one_row(spark, "x", "orders", metadata={"catalog": "other"}),
        ]
        assert run(*both, of={"schema": sales}).success
        with pytest.raises(StatementError, match="creates no tables in other catalogs"):
            run(one_row(spark, "returns"), of=of)
        with pytest.raises(StatementError, match="no catalog 'nowhere'"):
            run(one_row(spark, "orders", metadata={"catalog": "nowhere"}), of=of)
        assert tables_in(spark, sales) == ["orders"]
    finally:
        spark.conf.unset("spark.sql.catalog.other")


@pytest.mark.minutes
def test_a_table_that_is_no_delta_table_any_more_is_left_as_it_is(
    spark: SparkSession, run: Materialize, schemas: list[str]
) -> None:
    sales = schemas[0]
    orders = one_row(spark, "orders")
    run(orders, of={"schema": sales})
    spark.sql(f"DROP TABLE {sales}.orders")
    spark.sql(f"CREATE TABLE {sales}.orders ({COLUMNS}) USING parquet")
    spark.sql(f"INSERT INTO {sales}.orders VALUES (1, 'theirs')")
    with pytest.raises(NotADeltaTableError):
        run(orders, of={"schema": sales})
    assert [tuple(row) for row in spark.table(f"{sales}.orders").collect()] == [(1, "theirs")]
    spark.sql(f"DROP TABLE {sales}.orders")
    spark.sql(f"CREATE VIEW {sales}.orders AS SELECT 1 AS id, 'view' AS v")
    with pytest.raises(StatementError):
        run(orders, of={"schema": sales})


@pytest.mark.minutes
def test_columns_under_the_key_schema_are_no_name(
    spark: SparkSession, run: Materialize, tmp_path: Path
) -> None:
    columns = TableSchema([TableColumn("id", "int")])
    run(one_row(spark, "orders", schema=COLUMNS, metadata={"schema": columns}), of={})
    assert rows(Table(spark, str(tmp_path / "tables" / "orders"))) == [(1, "new")]


def test_metadata_that_contradicts_the_declaration_is_refused_at_load(
    spark: SparkSession, run: Materialize
) -> None:
    with pytest.raises(StatementError, match=r"declared to be /lake/orders"):
        one_row(spark, "orders", table="/lake/orders", metadata={"schema": "sales"})
    for decorate in (
        cdc_asset(keys=["id"], sequence_by="n", table="a.b", metadata={"catalog": "c"}),
        merge_on_read_asset(keys=["id"], sequence_by="n", metadata={"schema": "sales"}),
    ):

        def orders() -> None: ...

        with pytest.raises(StatementError, match="the asset's metadata names a"):
            decorate(orders)

    @asset(
        metadata={"deltaweave/write": "append", "deltaweave/table": "/lake/x", "schema": "sales"}
    )
    def plain() -> DataFrame:
        return spark.createDataFrame([(1,)], "id INT")

    with pytest.raises(StatementError, match="names a schema"):
        run(plain, of={})


@pytest.mark.minutes
def test_the_tables_of_a_merge_on_read_asset_stay_under_the_root(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    @merge_on_read_asset(keys=["id"], sequence_by="n", except_column_list=["n"])
    def prices() -> DataFrame:
        return spark.createDataFrame([(1, "a", 1)], "id INT, v STRING, n INT")

    run(prices.changes, of={"schema": schemas[0]})
    assert Table(spark, str(tmp_path / "tables" / "prices_changes")).exists()
    assert tables_in(spark, schemas[0]) == []


@pytest.mark.minutes
def test_a_table_that_others_write_is_an_input_by_its_metadata(
    spark: SparkSession, run: Materialize, schemas: list[str], tmp_path: Path
) -> None:
    sales = schemas[0]
    spark.sql(f"CREATE TABLE {sales}.orders ({COLUMNS}) USING delta")
    spark.sql(f"INSERT INTO {sales}.orders VALUES (1, 'theirs')")
    there = str(tmp_path / "elsewhere")
    Table(spark, there).create_if_missing(COLUMNS)
    seen: dict[str, Any] = {}

    @asset
    def report(orders: DataFrame, prices: DataFrame) -> None:
        seen.update(orders=orders.collect(), prices=prices.collect())

    orders = AssetSpec("orders", metadata={"schema": sales})
    prices = AssetSpec("prices", metadata={"deltaweave/table": there})
    assert run(orders, prices, report, of={}).success
    assert seen == {"orders": [(1, "theirs")], "prices": []}


def test_other_code_finds_the_table_by_its_asset(
    spark: SparkSession, resources: dict[str, Any], schemas: list[str]
) -> None:
    sales, stock = schemas
    manager = SparkDeltaIOManager(root="/lake", spark=resources["spark"], schema=sales)
    tables = DeltaTableResource(io_manager=manager)
    assert tables.table("raw/orders").path_or_name == f"{sales}.orders"
    of_stock = one_row(spark, "orders", metadata={"schema": stock})
    assert tables.table(of_stock).path_or_name == f"{stock}.orders"
