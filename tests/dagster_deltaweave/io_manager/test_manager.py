# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    StaticPartitionsDefinition,
    asset,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import Changes, build_merge_checks, merge_asset
from deltaweave import Table, clauses
from deltaweave.delta.commit.transaction_ids import APPLICATION_ID, VERSION
from deltaweave.errors import AmbiguousMatchError, CommitConflictError, SourceError
from tests.dagster_deltaweave.conftest import Run, failure_messages, rows
from tests.support.settings import configured

AssetTable = Callable[[str], Table]
TOUCHED = {"deltaweave/read": "touched"}


@pytest.fixture
def batches() -> list[Any]:
    """The changes of successive runs: the asset function of a test returns the first of them."""
    return []


def customers_of(batches: list[Any], **arguments: Any) -> Any:
    @merge_asset(keys=["id"], **arguments)
    def customers():  # type: ignore[no-untyped-def]
        return batches.pop(0)

    return customers


def views(spark: SparkSession) -> set[str]:
    """The session's views; other tests of the process may have left some."""
    return {row.viewName for row in spark.sql("SHOW VIEWS").collect()}


def test_the_first_run_creates_the_table_and_the_next_ones_merge(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(batches)
    batches += [
        spark.createDataFrame([(1, "a"), (2, "b")], "id INT NOT NULL, name STRING"),
        spark.createDataFrame([(2, "B"), (3, "c")], "id INT NOT NULL, name STRING"),
    ]

    run(customers)
    assert rows(table("customers")) == [(1, "a"), (2, "b")]
    # No nulls in these changes is no promise about later ones.
    assert table("customers").read().schema["id"].nullable
    run(customers)
    assert rows(table("customers")) == [(1, "a"), (2, "B"), (3, "c")]


@pytest.mark.minutes
def test_a_transaction_id_left_in_the_session_skips_no_output(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    @asset(name="prices")
    def overwritten():  # type: ignore[no-untyped-def]
        return batches.pop(0)

    customers = customers_of(batches)
    batches += [spark.createDataFrame([(1, name)], "id INT, name STRING") for name in "abcd"]
    with configured(spark, {APPLICATION_ID: "of its own write", VERSION: "1"}):
        for of_asset, name in ((overwritten, "prices"), (customers, "customers")):
            run(of_asset)
            run(of_asset)
            [row] = rows(table(name))
            assert row == (1, {"prices": "b", "customers": "d"}[name])


@pytest.mark.minutes
def test_updates_that_change_nothing_are_skipped_where_the_asset_says_so(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(batches, skip_unchanged_updates=True)
    checks = build_merge_checks(customers, source_rows=True)
    schema = "id INT, name STRING"
    batches += [
        spark.createDataFrame([(1, "a"), (2, "b")], schema),
        spark.createDataFrame([(1, "a"), (2, "B")], schema),  # the first row is as it was
        spark.createDataFrame([(1, "a"), (2, "B")], schema),  # both are: nothing to commit
    ]

    results = [run(customers, checks) for _ in range(3)]

    updated = []
    for result in results:
        [event] = result.get_asset_materialization_events()
        updated.append(event.materialization.metadata["merge/rows_updated"].value)
    assert updated == [0, 1, 0]
    assert rows(table("customers")) == [(1, "a"), (2, "B")]
    assert table("customers").version() == 2  # created, inserted into, updated
    # A skipped row is one that was left alone, not one that was lost.
    left_alone = [
        check.metadata["check/rows_left_alone"].value
        for result in results
        for check in result.get_asset_check_evaluations()
        if check.passed
    ]
    assert left_alone == [0, 1, 2]  # also: each check passed


@pytest.mark.minutes
def test_a_declared_schema_partitioning_and_properties_make_the_table(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(
        batches,
        schema="id BIGINT, land STRING, note STRING",
        partition_by=["land"],
        properties={"delta.logRetentionDuration": "interval 9 days"},
    )
    batches.append(spark.createDataFrame([(1, "nl", None)], "id INT, land STRING, note STRING"))

    run(customers)

    target = table("customers")
    assert target.read().schema.simpleString() == "struct<id:bigint,land:string,note:string>"
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{target.path_or_name}`").first()
    assert detail is not None
    assert detail.partitionColumns == ["land"]
    assert detail.properties["delta.logRetentionDuration"] == "interval 9 days"


@pytest.mark.minutes
def test_columns_that_only_clauses_use_do_not_reach_the_table(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(
        batches,
        clauses=[
            clauses.when_matched_delete(condition="s.op = 'delete'"),
            clauses.when_matched_update_all(),
            clauses.when_not_matched_insert_all(condition="s.op <> 'delete'"),
        ],
        except_column_list=["op"],
    )
    schema = "id INT, v STRING, op STRING"
    batches += [
        spark.createDataFrame([(1, "a", "upsert"), (2, "b", "upsert")], schema),
        spark.createDataFrame([(1, "x", "delete"), (2, "B", "upsert"), (9, "y", "delete")], schema),
    ]

    run(customers)
    run(customers)

    assert table("customers").read().columns == ["id", "v"]
    assert rows(table("customers")) == [(2, "B")]


@pytest.mark.minutes
def test_merge_text_runs_over_a_view_that_is_dropped_afterwards(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(
        merge_text="""
            MERGE INTO {target} AS t USING (SELECT id, sum(n) AS n FROM {source} GROUP BY id) AS s
            ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET n = t.n + s.n
            WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)
        """,
        schema="id INT, n BIGINT",
    )
    def counts() -> DataFrame:
        return spark.createDataFrame([(1, 2), (1, 3), (2, 1)], "id INT, n INT")

    before = views(spark)
    run(counts)
    run(counts)

    assert rows(table("counts")) == [(1, 10), (2, 2)]
    assert views(spark) == before


@pytest.mark.minutes
def test_a_table_can_lie_elsewhere(
    spark: SparkSession, run: Run, tmp_path: Any, batches: list[Any]
) -> None:
    elsewhere = str(tmp_path / "elsewhere" / "c")
    customers = customers_of(batches, table=elsewhere)
    batches.append(spark.createDataFrame([(1,)], "id INT"))

    @asset
    def reader(customers: DataFrame) -> None:
        assert customers.count() == 1

    run(customers, reader)

    assert rows(Table(spark, elsewhere)) == [(1,)]


def test_none_merges_nothing_and_creates_no_table(
    run: Run, table: AssetTable, batches: list[Any]
) -> None:
    batches.append(None)

    assert run(customers_of(batches)).success

    assert not table("customers").exists()


def test_an_output_that_is_no_dataframe_fails_and_says_what_it_was(
    run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(batches)
    batches += [[1, 2], [1, 2]]

    with pytest.raises(SourceError, match="returned list, which is not a table"):
        run(customers)
    result = run(customers, raise_on_error=False)

    assert "storing of customers failed" in failure_messages(result)
    assert not table("customers").exists()


@pytest.mark.minutes
def test_a_failed_merge_leaves_the_table_and_the_session_as_they_were(
    spark: SparkSession, run: Run, table: AssetTable, batches: list[Any]
) -> None:
    customers = customers_of(batches)
    batches += [
        spark.createDataFrame([(1, "a")], "id INT, v STRING"),
        spark.createDataFrame([(1, "b"), (1, "c")], "id INT, v STRING"),
    ]
    run(customers)
    before, views_before = table("customers").version(), views(spark)

    with pytest.raises(AmbiguousMatchError):
        run(customers)

    assert table("customers").version() == before
    assert rows(table("customers")) == [(1, "a")]
    assert views(spark) == views_before


@pytest.mark.minutes
def test_partitions_are_those_of_the_changes_not_of_the_table(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    days = StaticPartitionsDefinition(["mon", "tue"])
    seen = []

    @merge_asset(keys=["id"], partitions_def=days)
    def customers(context):  # type: ignore[no-untyped-def]
        return spark.createDataFrame([({"mon": 1, "tue": 2}[context.partition_key],)], "id INT")

    @asset(partitions_def=days)
    def reader(context, customers) -> None:  # type: ignore[no-untyped-def]
        seen.append((context.partition_key, customers.count()))

    run(customers, reader, partition="mon")
    run(customers, reader, partition="tue")

    assert seen == [("mon", 1), ("tue", 2)]


def test_an_unknown_way_to_read_is_refused(
    spark: SparkSession, run: Run, batches: list[Any]
) -> None:
    batches.append(spark.createDataFrame([(1,)], "id INT"))

    @asset(ins={"customers": AssetIn(metadata={"deltaweave/read": "newest"})})
    def reader(customers) -> None: ...  # type: ignore[no-untyped-def]

    result = run(customers_of(batches), reader, raise_on_error=False)

    assert "asks for deltaweave/read='newest'" in failure_messages(result)


class Counts:
    """An upstream table and a downstream count of its rows by group, from touched rows only."""

    def __init__(self, spark: SparkSession, run: Run) -> None:
        self.spark = spark
        self.run = run
        self.batches: list[Any] = []
        self.touched: list[Any] = []
        self.fail_after_merge = False
        batches, touched = self.batches, self.touched

        @merge_asset(keys=["id"], schema="id INT, grp STRING", partition_by=["grp"])
        def customers():  # type: ignore[no-untyped-def]
            return spark.createDataFrame(batches.pop(0), "id INT, grp STRING")

        @merge_asset(
            on="t.grp = s.grp",
            clauses=[
                clauses.when_matched_update(set={"n": "t.n + s.n"}),
                clauses.when_not_matched_insert_all(),
            ],
            ins={"customers": AssetIn(metadata=TOUCHED)},
        )
        def counts(customers):  # type: ignore[no-untyped-def]
            touched.append(customers)
            return Changes(count_changes(customers), applied=customers)

        self.customers, self.counts = customers, counts

    def count(self) -> Any:
        return self.run(self.customers, self.counts, selection=[self.counts])

    def change(self, *changed: tuple[int, str]) -> Any:
        self.batches.append(list(changed))
        return self.run(self.customers)


def count_changes(touched: Any) -> DataFrame:
    added = touched.added.selectExpr("grp", "1 AS sign")
    removed = touched.removed.selectExpr("grp", "-1 AS sign")
    change: DataFrame = added.union(removed).groupBy("grp").agg({"sign": "sum"})
    return change.toDF("grp", "n").where("n <> 0")


@pytest.fixture
def counted(spark: SparkSession, run: Run) -> Counts:
    return Counts(spark, run)


@pytest.mark.minutes
def test_touched_rows_are_those_of_files_the_upstream_merges_touched(
    counted: Counts, table: AssetTable
) -> None:
    counted.change((1, "a"), (2, "a"), (3, "b"))
    counted.count()
    assert rows(table("counts")) == [("a", 2), ("b", 1)]

    counted.change((4, "c"), (5, "c"))
    result = counted.count()

    assert rows(table("counts")) == [("a", 2), ("b", 1), ("c", 2)]
    # Only the new group's files were read, of four groups.
    assert counted.touched[-1].added.select("grp").distinct().collect() == [("c",)]
    assert counted.touched[-1].removed_files == 0
    [materialization] = result.asset_materializations_for_node("counts")
    touched = {k: v.value for k, v in materialization.metadata.items() if k.startswith("touched/")}
    assert touched == {
        "touched/after": 1,
        "touched/until": table("customers").version(),
        "touched/added_files": 1,
        "touched/removed_files": 0,
    }


@pytest.mark.minutes
def test_several_upstream_merges_are_applied_together(counted: Counts, table: AssetTable) -> None:
    counted.change((1, "a"), (2, "a"))
    counted.count()
    counted.change((1, "b"))
    counted.change((3, "a"))
    counted.change((2, "b"))
    counted.count()

    expected = dict(table("customers").read().groupBy("grp").count().collect())
    assert {grp: n for grp, n in rows(table("counts")) if n} == expected


@pytest.mark.minutes
def test_a_run_executed_again_applies_nothing_twice(counted: Counts, table: AssetTable) -> None:
    counted.change((1, "a"), (2, "b"))
    counted.count()
    version = table("counts").version()

    counted.count()
    counted.count()

    assert rows(table("counts")) == [("a", 1), ("b", 1)]
    assert table("counts").version() == version


@pytest.mark.minutes
def test_late_touched_rows_are_not_applied_over_a_newer_application(
    counted: Counts, run: Run, table: AssetTable
) -> None:
    """Two runs read the same touched rows; the one that merges last must not count them again."""
    counted.change((1, "a"))
    counted.count()
    [early] = counted.touched
    counted.change((2, "a"))
    stale = table("customers").touched_rows(after=None)

    @merge_asset(
        on="t.grp = s.grp",
        clauses=[clauses.when_matched_update(set={"n": "t.n + s.n"})],
        ins={"customers": AssetIn(metadata=TOUCHED)},
        retries=0,
    )
    def counts(customers):  # type: ignore[no-untyped-def]
        return Changes(count_changes(stale), applied=stale)

    assert early.after is None
    with pytest.raises(CommitConflictError, match="customers→counts"):
        run(counted.customers, counts, selection=[counts])
    assert rows(table("counts")) == [("a", 1)]
    counted.count()
    assert rows(table("counts")) == [("a", 2)]


@pytest.mark.minutes
def test_touched_rows_must_be_handed_back(counted: Counts, run: Run) -> None:
    counted.change((1, "a"))

    @merge_asset(keys=["grp"], ins={"customers": AssetIn(metadata=TOUCHED)})
    def counts(customers):  # type: ignore[no-untyped-def]
        return count_changes(customers)

    with pytest.raises(SourceError, match="did not hand back which"):
        run(counted.customers, counts, selection=[counts])


@pytest.mark.minutes
def test_an_error_that_may_pass_is_tried_again_and_others_are_not(
    run: Run, monkeypatch: pytest.MonkeyPatch, counted: Counts, table: AssetTable
) -> None:
    monkeypatch.setattr("dagster_deltaweave.io_manager.step_attempts.SECONDS_BEFORE_RETRY", 0)
    attempts: list[int] = []
    counted.change((1, "a"))
    counted.count()
    counted.change((2, "a"))
    stale = table("customers").touched_rows(after=None)

    @merge_asset(
        on="t.grp = s.grp",
        clauses=[clauses.when_matched_update(set={"n": "t.n + s.n"})],
        ins={"customers": AssetIn(metadata=TOUCHED)},
    )
    def counts(context: AssetExecutionContext, customers):  # type: ignore[no-untyped-def]
        attempts.append(context.retry_number)
        if context.retry_number == 0:
            customers = stale
        return Changes(count_changes(customers), applied=customers)

    result = run(counted.customers, counts, selection=[counts])

    assert result.success
    assert attempts == [0, 1]
    assert rows(table("counts")) == [("a", 2)]
