"""Tables as any type in and out, partitions of them, write modes and schema policies."""

# No `from __future__ import annotations`: Dagster takes annotations as classes.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    StaticPartitionsDefinition,
    asset,
    graph_asset,
    multi_asset,
    op,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import merge_asset, partition_tags
from dagster_deltaweave.io_manager.frames import to_spark
from deltaweave import Table, clauses
from deltaweave.errors import DeltaweaveError, SourceError, StatementError
from tests.dagster_deltaweave.conftest import Run, rows

AssetTable = Callable[[str], Table]

DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-05")
OVERWRITE = {"deltaweave/write": "overwrite"}
APPEND = {"deltaweave/write": "append"}
MERGE = {"deltaweave/write": "merge", "deltaweave/keys": "letter", "deltaweave/order": "any"}


@pytest.mark.minutes
def test_tables_go_in_and_out_as_the_annotated_type(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    kinds: dict[str, type] = {}

    @asset(metadata=OVERWRITE)
    def numbers() -> DataFrame:
        return spark.createDataFrame([(1, "é"), (2, None)], "id INT, name STRING")

    @asset(metadata=OVERWRITE)
    def as_pandas(numbers: pd.DataFrame) -> pd.DataFrame:
        kinds["pandas"] = type(numbers)
        return numbers

    @asset(metadata=OVERWRITE)
    def as_arrow(numbers: pa.Table) -> pa.Table:
        kinds["arrow"] = type(numbers)
        return numbers

    @asset(metadata=OVERWRITE)
    def as_batches(numbers: pa.RecordBatchReader) -> pa.RecordBatchReader:
        return numbers

    @asset(metadata=OVERWRITE)
    def as_polars(numbers: pl.DataFrame) -> pl.DataFrame:
        kinds["polars"] = type(numbers)
        return numbers

    @asset(metadata=OVERWRITE)
    def as_lazy(numbers: pl.LazyFrame) -> pl.LazyFrame:
        kinds["lazy"] = type(numbers)
        return numbers.with_columns(id=pl.col("id") * 10)

    downstream = (as_pandas, as_arrow, as_batches, as_polars, as_lazy)
    run(numbers, *downstream)

    assert kinds == {
        "pandas": pd.DataFrame,
        "arrow": pa.Table,
        "polars": pl.DataFrame,
        "lazy": pl.LazyFrame,
    }
    for name in ("numbers", "as_pandas", "as_arrow", "as_batches", "as_polars"):
        assert rows(table(name)) == [(1, "é"), (2, None)], name
        assert table(name).read().schema["id"].dataType.simpleString() == "int", name
    assert rows(table("as_lazy")) == [(10, "é"), (20, None)]

    @asset
    def strange(numbers: int) -> None: ...

    with pytest.raises(SourceError, match="annotated int, which no table is loaded as"):
        run(numbers, strange, selection=[strange])


@pytest.mark.parametrize(
    ("index", "columns"),
    [
        (lambda sales: sales, ["id", "day", "n"]),
        (lambda sales: sales.sort_values("n"), ["id", "day", "n"]),  # row numbers
        (lambda sales: sales.set_index("id"), ["id", "day", "n"]),
        (lambda sales: sales.set_index("id", drop=False), ["id", "day", "n"]),
        (lambda sales: sales.groupby("day").sum(), ["day", "id", "n"]),
        (lambda sales: sales.groupby(["day", "id"]).sum(), ["day", "id", "n"]),
    ],
)
def test_an_index_of_pandas_that_has_a_name_is_a_column(
    spark: SparkSession, index: Callable[[pd.DataFrame], pd.DataFrame], columns: list[str]
) -> None:
    sales = pd.DataFrame({"id": [1, 1, 2], "day": ["a", "b", "a"], "n": [3, 2, 1]})
    found = to_spark(spark, index(sales))
    assert found is not None
    assert found.columns == columns
    assert found.agg({"n": "sum"}).first() == (6,)


@pytest.mark.minutes
def test_partitions_of_a_table_are_loaded_and_overwritten_by_themselves(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    resources: dict[str, Any],
    instance: DagsterInstance,
) -> None:
    read: list[Any] = []
    days_of = {"wanted": 1}

    @asset(partitions_def=DAYS, metadata={**OVERWRITE, "partition_expr": "day"})
    def sales(context: AssetExecutionContext) -> DataFrame:
        n = days_of["wanted"]
        return spark.sql(f"SELECT DATE'{context.partition_key}' AS day, {n} AS n")

    @asset(partitions_def=DAYS)
    def of_day(sales: DataFrame) -> None:
        read.append(sorted(str(row.day) for row in sales.collect()))

    @asset
    def of_all(sales: DataFrame) -> None:
        read.append(sales.count())

    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        run(sales, partition=day)
    days_of["wanted"] = 7
    run(sales, of_day, partition="2026-01-02")
    run(sales, of_all, selection=[of_all])

    assert [(str(day), n) for day, n in rows(table("sales"))] == [
        ("2026-01-01", 1),
        ("2026-01-02", 7),  # written again, alone
        ("2026-01-03", 1),
    ]
    assert read == [["2026-01-02"], 3]
    # Outside of a run, as in a notebook.
    defs = Definitions([sales], resources=resources)
    with defs.get_asset_value_loader(instance) as loader:
        assert loader.load_asset_value("sales").count() == 3
        [row] = loader.load_asset_value("sales", partition_key="2026-01-02").collect()
    assert (str(row.day), row.n) == ("2026-01-02", 7)


LETTERS = StaticPartitionsDefinition(["a", "b", "c"])


def asset_of(shape: str, metadata: dict[str, Any], give: Callable[[], Any]) -> AssetsDefinition:
    """The asset `sales` of a shape, which returns what is given."""

    @op
    def read() -> Any:
        return give()

    if shape == "graph":
        return graph_asset(name="sales", partitions_def=LETTERS, metadata=metadata)(lambda: read())
    if shape == "multi":
        outs = {"sales": AssetOut(metadata=metadata)}
        return multi_asset(name="sales_and_others", outs=outs, partitions_def=LETTERS)(give)
    return asset(name="sales", partitions_def=LETTERS, metadata=metadata)(give)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("shape", "write"),
    [
        ("asset", {}),
        ("multi", OVERWRITE),
        ("graph", {"deltaweave/write": "replace_where"}),
        ("multi", MERGE),
        ("graph", APPEND),
    ],
    ids=["plain", "overwrite", "replace_where", "merge", "append"],
)
def test_partitions_for_which_a_run_has_no_rows_keep_theirs(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    instance: DagsterInstance,
    shape: str,
    write: dict[str, str],
) -> None:
    """As one by one; a full refresh names them and is refused, as that of None is."""

    def of(letter: str, n: int) -> DataFrame:
        return spark.createDataFrame([(letter, n)], "letter STRING, n INT").where("n > 0")

    returned: list[Any] = []
    metadata = {**write, "partition_expr": "letter"}
    sales = asset_of(shape, metadata, lambda: returned.pop(0))

    def run_of(letters: str, output: Any, **tags: str) -> list[tuple[Any, ...]]:
        returned.append(output)
        run(sales, tags={**partition_tags(letters), **tags})
        return rows(table("sales"))

    first = run_of("abc", {letter: of(letter, 1) for letter in "abc"})
    assert first == [("a", 1), ("b", 1), ("c", 1)]
    run_of("ab", {"a": of("a", 2), "b": None})
    found = run_of("ab", {"a": of("a", 3)})
    earlier = [("a", 1), ("a", 2)] if write == APPEND else []
    assert found == [*earlier, ("a", 3), ("b", 1), ("c", 1)]
    assert instance.get_materialized_partitions(sales.key) == {*"abc"}

    refresh = {"deltaweave/full_refresh": "true"}
    for letters, output in [("ab", {"a": of("a", 4), "b": None}), ("abc", {"a": of("a", 4)})]:
        with pytest.raises(StatementError, match=f"no rows of {', '.join(letters[1:])}"):
            run_of(letters, output, **refresh)
    assert rows(table("sales")) == found
    replaced = run_of("ab", {"a": of("a", 4), "b": of("b", 0)}, **refresh)
    assert replaced == [("a", 4), ("c", 1)]


@pytest.mark.parametrize(
    ("metadata", "day", "problem"),
    [
        (OVERWRITE, "2026-01-01", "nothing says which rows a partition has"),
        ({"deltaweave/write": "replace_where"}, "2026-01-01", "nothing says which rows"),
        ({**OVERWRITE, "partition_expr": "dya"}, "2026-01-01", "dya"),
        ({**OVERWRITE, "partition_expr": "day"}, "2026-01-02", "2026-01-02"),
        ({"deltaweave/write": "replace"}, "2026-01-01", "deltaweave/write is 'replace'"),
        ({**APPEND, "deltaweave/kyes": "id"}, "2026-01-01", "deltaweave/kyes is not a known entry"),
        ({**APPEND, "deltaweave/keys": "id"}, "2026-01-01", "deltaweave/keys goes with"),
    ],
    ids=["no-expression", "no-predicate", "no-column", "other-rows", "mode", "entry", "keys"],
)
def test_a_write_without_a_sound_predicate_changes_nothing(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    metadata: dict[str, str],
    day: str,
    problem: str,
) -> None:
    target = table("sales")
    target.create_if_missing("day DATE, n INT")

    @asset(partitions_def=DAYS, metadata=metadata)
    def sales() -> DataFrame:
        return spark.sql("SELECT DATE'2026-01-01' AS day, 1 AS n")

    with pytest.raises(Exception, match=problem):
        run(sales, partition=day)

    assert target.version() == 0


@pytest.mark.minutes
def test_appends_add_rows_and_a_predicate_names_those_replaced(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    batch: list[Any] = []

    def rows_of(name: str, **metadata: str) -> Any:
        @asset(name=name, metadata={f"deltaweave/{k}": v for k, v in metadata.items()})
        def writes() -> DataFrame:
            return spark.createDataFrame(batch, "id INT, v STRING")

        return writes

    log = rows_of("log", write="append", idempotent_by="delivery")
    merged = rows_of("merged", write="merge", keys="id")
    where = rows_of("where", write="replace_where", replace_where="id > 1")
    batch[:] = [(2, "a")]
    run(log, merged, where, tags={"deltaweave/delivery": "1"})
    spark.sql(f"INSERT INTO delta.`{table('where').path_or_name}` VALUES (1, 'kept')")
    batch[:] = [(2, "b"), (3, "c")]
    for delivery in ("2", "2"):
        run(log, merged, where, tags={"deltaweave/delivery": delivery})

    assert rows(table("log")) == [(2, "a"), (2, "b"), (3, "c")]  # the second delivery once
    assert rows(table("merged")) == [(2, "b"), (3, "c")]
    assert rows(table("where")) == [(1, "kept"), (2, "b"), (3, "c")]


@pytest.mark.minutes
def test_created_tables_have_deletion_vectors_and_clustering_by_default(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(keys=["id"], cluster_by=["id"])
    def clustered():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1,)], "id INT")

    @merge_asset(keys=["id"], properties={"delta.enableDeletionVectors": "false"})
    def without():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1,)], "id INT")

    run(clustered, without)

    detail = {
        name: spark.sql(f"DESCRIBE DETAIL delta.`{table(name).path_or_name}`").collect()[0]
        for name in ("clustered", "without")
    }
    assert detail["clustered"].clusteringColumns == ["id"]
    assert detail["clustered"].properties["delta.enableDeletionVectors"] == "true"
    assert detail["without"].properties["delta.enableDeletionVectors"] == "false"


@pytest.mark.minutes
def test_columns_that_the_table_lacks_are_refused_or_added_by_policy(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """Types are widened by policy, too."""

    def of_policy(policy: str, kind: str) -> Any:
        @merge_asset(
            name=policy,
            keys=["id"],
            clauses=[
                clauses.when_matched_update_all(condition="s.op = 'u'"),
                clauses.when_not_matched_insert_all(),
            ],
            schema_policy=policy,  # type: ignore[arg-type]
            except_column_list=["op"],
        )
        def merged():  # type: ignore[no-untyped-def]
            schema = f"id INT, n {kind}, new STRING, deep STRUCT<a: INT, b: INT>, op STRING"
            return spark.createDataFrame([(1, 7, "x", (1, 2), "u")], schema)

        return merged

    for policy in ("strict", "add", "widen"):
        target = table(policy)
        target.create_if_missing("id INT, n SMALLINT, deep STRUCT<a: INT>")

    with pytest.raises(StatementError, match=r"the table lacks: new, deep\.b\."):
        run(of_policy("strict", "SMALLINT"))
    assert table("strict").version() == 0
    run(of_policy("add", "SMALLINT"))
    run(of_policy("widen", "INT"))

    types = "id:int,n:{},deep:struct<a:int,b:int>,new:string"
    for policy, type_of_n in (("add", "smallint"), ("widen", "int")):
        assert rows(table(policy)) == [(1, 7, (1, 2), "x")]
        schema = table(policy).read().schema.simpleString()
        assert schema == f"struct<{types.format(type_of_n)}>"


# By what has no type: a value whose type is not known, and one that has the column's type.
UNTYPED = {
    "column": ("NULL", "'x'"),
    "field": ("named_struct('a', NULL)", "from_json('{}', 'a INT')"),
    "items": ("array(NULL)", "from_json('[7]', 'ARRAY<INT>')"),
    "values": (
        "map('a', named_struct('b', NULL))",
        "from_json('{}', 'MAP<STRING, STRUCT<b: INT>>')",
    ),
}
STORED: dict[str, dict[str, Any]] = {
    "merge": {**MERGE, "deltaweave/keys": "id"},
    "append": APPEND,
    "overwrite": OVERWRITE,
}


@pytest.mark.minutes
@pytest.mark.parametrize("mode", STORED)
def test_a_first_output_makes_no_column_without_a_type(
    spark: SparkSession, run: Run, table: AssetTable, mode: str
) -> None:
    values: list[str] = []

    def of(name: str, policy: str) -> AssetsDefinition:
        @asset(name=name, metadata={**STORED[mode], "deltaweave/schema_policy": policy})
        def numbers() -> DataFrame:
            return spark.sql(f"SELECT {values[-1]}")

        return numbers

    refused = "of the column v is not known(?s:.*)schema="
    for what, (untyped, typed) in UNTYPED.items():
        first, added = of(what, "strict"), of(f"added_{what}", "add")
        values.append(f"1 AS id, {untyped} AS v")
        with pytest.raises(StatementError, match=refused):
            run(first)
        assert not table(what).exists()
        values.append("1 AS id")
        run(added)
        values.append(f"2 AS id, {untyped} AS v")
        with pytest.raises(StatementError, match=refused):
            run(added)
        for each in (first, added):
            for number, value in ((3, typed), (4, untyped)):  # which now has a type
                values.append(f"{number} AS id, {value} AS v")
                run(each)
            stored = table(each.key.path[-1]).read().where("id = 4").selectExpr("CAST(v AS STRING)")
            assert stored.collect() == spark.sql(f"SELECT CAST({untyped} AS STRING)").collect()


@pytest.mark.minutes
def test_a_declared_type_is_that_of_a_column_of_nulls(run: Run, table: AssetTable) -> None:
    outputs = [pd.DataFrame({"id": [1], "v": [None]}), pd.DataFrame({"id": [2], "v": ["x"]})]

    def of(schema: str) -> AssetsDefinition:
        @merge_asset(keys=["id"], schema=schema)
        def letters() -> pd.DataFrame:
            return outputs[0]

        return letters

    with pytest.raises(StatementError, match="of the column v is not known"):
        run(of("id BIGINT, v VOID"))
    while outputs:
        run(of("id BIGINT, v STRING"))
        outputs.pop(0)
    assert rows(table("letters")) == [(1, None), (2, "x")]


@pytest.mark.minutes
def test_a_table_made_for_a_write_that_failed_hinders_no_corrected_asset(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    table("sales").create_if_missing("dya DATE, n INT", for_a_write=True)

    @asset(
        partitions_def=DAYS,
        metadata={**OVERWRITE, "partition_expr": "day", "deltaweave/retries": 0},
    )
    def sales(context: AssetExecutionContext) -> DataFrame:
        return spark.sql(f"SELECT DATE'{context.partition_key}' AS day, 1 AS n")

    # A table recreated after the function began is not a change that it did not see.
    run(sales, partition="2026-01-01")
    assert [(str(day), n) for day, n in rows(table("sales"))] == [("2026-01-01", 1)]


@pytest.mark.parametrize(
    ("arguments", "said", "is_created"),
    [
        ({"keys": ["idd"]}, "keys= names idd: no such column is in the changes, which have", False),
        ({"keys": ["idd"], "unique_keys": False}, "keys= names idd", False),
        ({"keys": ["id"], "sequence_by": "sq"}, "sequence_by= names sq", False),
        ({"keys": ["id"], "schema": "n INT"}, "id: no such column is in the table", False),
        ({"on": "t.idd = s.id"}, "Correct on=, clauses= or", True),
    ],
    ids=["key", "keys-that-repeat", "sequence", "key-of-schema", "condition"],
)
def test_a_misspelled_column_is_named_in_the_words_of_the_declaration(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    arguments: dict[str, Any],
    said: str,
    is_created: bool,
) -> None:
    @merge_asset(**arguments)
    def orders():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, 2)], "id INT, n INT")

    with pytest.raises(StatementError) as error:
        run(orders)
    assert said in str(error.value)
    assert "Correct the statement" not in str(error.value)
    assert table("orders").exists() == is_created
    state = "The table was created, and is empty" if is_created else "the table is as it was"
    assert state in error.value.state


@pytest.mark.minutes
def test_a_lazy_frame_that_fails_is_reported_without_a_trace_of_java(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(on="t.id = s.id")
    def lazy_of_spark():  # type: ignore[no-untyped-def]
        failing = "CAST(raise_error(CONCAT('no such rate ', id)) AS BIGINT) AS id"
        return spark.range(1).selectExpr(failing, "1 AS n")

    @merge_asset(keys=["id"])
    def lazy_of_polars():  # type: ignore[no-untyped-def]
        return pl.LazyFrame({"id": [1]}).select("idd")

    @asset(metadata=OVERWRITE)
    def upstream() -> DataFrame:
        return spark.range(3).toDF("id")

    @asset
    def of_pandas(upstream: pd.DataFrame) -> None: ...

    for lazy, said in ((lazy_of_spark, "no such rate"), (lazy_of_polars, "idd")):
        with pytest.raises(DeltaweaveError) as raised:
            run(lazy)
        assert said in raised.value.problem
        assert "\tat org.apache" not in str(raised.value)
    run(upstream)
    for file in Path(table("upstream").path_or_name).glob("*.parquet"):
        file.unlink()
    with pytest.raises(SourceError, match="upstream failed") as raised:
        run(upstream, of_pandas, selection=[of_pandas])
    assert "\tat org.apache" not in str(raised.value)
