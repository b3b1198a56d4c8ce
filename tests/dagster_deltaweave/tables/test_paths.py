"""Where tables may lie: under the root, none in another, none in another's place."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, AssetsDefinition, DagsterInvalidDefinitionError, asset
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import cdc_asset, merge_asset, merge_on_read_asset
from deltaweave import Table
from deltaweave.errors import StatementError
from tests.dagster_deltaweave.conftest import Run, rows

AssetTable = Callable[[str], Table]

APPEND = {"deltaweave/write": "append"}


def numbers(spark: SparkSession, *key: str, **arguments: Any) -> AssetsDefinition:
    @merge_asset(keys=["id"], key_prefix=list(key[:-1]) or None, name=key[-1], **arguments)
    def of_key() -> DataFrame:
        return spark.createDataFrame([(1,)], "id INT")

    return of_key


@pytest.mark.parametrize("prefix", ["..", ".", "", "a/../..", "/etc", "a`b", "sales/_delta_log"])
def test_a_key_that_leaves_its_place_under_the_root_is_refused_at_load(prefix: str) -> None:
    decorators: list[Any] = [
        merge_asset(keys=["id"], key_prefix=prefix),
        cdc_asset(keys=["id"], sequence_by="v", key_prefix=prefix),
        merge_on_read_asset(keys=["id"], sequence_by="v", key_prefix=prefix),
    ]
    for decorate in decorators:

        def orders() -> None: ...

        with pytest.raises(DagsterInvalidDefinitionError, match="in its key"):
            decorate(orders)


def test_a_key_that_leaves_the_root_is_refused_before_anything_is_written(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    @asset(key=AssetKey(["..", "x"]), metadata=APPEND)
    def outside() -> DataFrame:
        return spark.createDataFrame([(1,)], "id INT")

    with pytest.raises(StatementError, match=r"'\.\.' in its key leads out"):
        run(outside)
    assert not (tmp_path / "x").exists()


@pytest.mark.minutes
def test_a_table_is_not_made_in_another_assets_or_around_it(
    spark: SparkSession, run: Run, table: AssetTable, tmp_path: Path
) -> None:
    outer, inner = numbers(spark, "sales"), numbers(spark, "sales", "orders")
    elsewhere = numbers(spark, "other", table=str(tmp_path / "tables" / "sales" / "deep" / "x"))

    with pytest.raises(StatementError, match=r"would (be inside|contain) the table of sales"):
        run(outer, inner)
    with pytest.raises(
        StatementError, match=r"would (be inside|contain) the table of (sales|other)"
    ):
        run(outer, elsewhere)
    assert not (tmp_path / "tables").exists()

    run(outer, numbers(spark, "sales2"), numbers(spark, "sale", "s"))  # names that only begin so
    assert rows(table("sales")) == [(1,)]
    with pytest.raises(StatementError, match="its table would be inside the one at"):
        run(inner)  # of another code location, say, where nothing is known of the outer one


@pytest.mark.minutes
def test_an_asset_that_declares_nothing_writes_no_other_assets_table(
    spark: SparkSession, run: Run, table: AssetTable, tmp_path: Path
) -> None:
    def plain(*path: str) -> AssetsDefinition:
        @asset(key=list(path))
        def of_path() -> DataFrame:
            return spark.createDataFrame([(2,)], "id INT")

        return of_path

    merged = [
        numbers(spark, "sales", "orders"),
        numbers(spark, "elsewhere", table=str(tmp_path / "tables" / "customers")),
    ]
    run(*merged)
    for key, where in (("sales", "contain"), ("customers", "have the path of")):
        other = plain(key)
        with pytest.raises(StatementError, match=f"would {where} the table of"):
            run(other, *merged)
    assert rows(table("customers")) == rows(table("sales/orders")) == [(1,)]

    outer, inner = plain("lake"), plain("lake", "b")
    run(inner)  # the outer one may never have a table
    with pytest.raises(StatementError, match="would contain the table of lake/b"):
        run(outer, inner)


@pytest.mark.minutes
def test_tables_that_lie_in_one_another_already_are_written_with_a_warning(
    spark: SparkSession, run: Run, table: AssetTable, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sales", "sales/orders"):
        table(name).create_if_missing("id INT")

    run(numbers(spark, "sales"), numbers(spark, "sales", "orders"))

    assert rows(table("sales")) == rows(table("sales/orders")) == [(1,)]
    said = capsys.readouterr().err
    assert "its table would be inside the table of sales" in said
    assert "Its table is there already, so it is written." in said


def test_side_tables_are_no_other_assets_tables(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    @merge_on_read_asset(keys=["id"], sequence_by="v", table=str(tmp_path / "mor" / "orders"))
    def orders():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, 1)], "id INT, v INT")

    for name in ("orders_changes", "orders_changes_checkpoint"):
        other = numbers(spark, "other", table=str(tmp_path / "mor" / name))
        with pytest.raises(StatementError, match="would have the path of the table of"):
            run(other, orders.changes)
    assert not (tmp_path / "mor").exists()


@pytest.mark.minutes
def test_names_differing_in_case_alone_are_refused_in_one_directory(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upper, lower = numbers(spark, "Orders"), numbers(spark, "orders")
    run(upper, lower)  # two directories here
    assert rows(table("orders")) == rows(table("Orders")) == [(1,)]

    merged = numbers(spark, "Merged")
    run(merged)
    # As on such a disk, where no link shows that they are one.
    (tmp_path / "tables" / "merged").symlink_to(tmp_path / "tables" / "Merged")
    monkeypatch.setattr("dagster_deltaweave.tables.locator.normalized_location", str)
    with pytest.raises(StatementError, match="which ignores case"):
        run(merged, numbers(spark, "merged"))


def test_a_run_of_changes_creates_no_base_in_another_assets_table(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    outer = numbers(spark, "outer", table=str(lake / "outer"))
    run(outer)

    @merge_on_read_asset(
        keys=["id"],
        sequence_by="v",
        table=str(lake / "outer" / "base"),
        changes_table=str(lake / "elsewhere"),
    )
    def orders():  # type: ignore[no-untyped-def]
        return spark.createDataFrame([(1, 1)], "id INT, v INT")

    with pytest.raises(StatementError, match="its table would be inside the table of outer"):
        run(outer, orders.changes)
    assert not (lake / "outer" / "base").exists()
    assert not (lake / "elsewhere").exists()


@pytest.mark.minutes
def test_two_assets_that_write_one_existing_table_go_on_with_a_warning(
    spark: SparkSession,
    run: Run,
    table: AssetTable,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    spelled = (
        tmp_path / "tables" / "shared",
        f"{tmp_path}/tables//shared/",
        f"file:{tmp_path}/tables/../tables/shared",
        tmp_path / "link" / "tables" / "shared",
    )
    own = numbers(spark, "shared")
    others = [numbers(spark, "other", table=str(each)) for each in spelled]
    for other in others:
        with pytest.raises(StatementError, match="would have the path of the table of"):
            run(own, other)

    table("shared").create_if_missing("id INT")
    run(own, others[-1])

    assert rows(table("shared")) == [(1,)]
    assert "Its table is there already, so it is written." in capsys.readouterr().err
