"""A write that fails before its commit takes its files with it, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table, errors
from deltaweave import table as table_module
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.engine.merge_run import MAX_COMMIT_ATTEMPTS, REWRITE_IN_PLACE
from tests.builders import frame, write_table
from tests.support.oracles import newest_version
from tests.support.settings import configured

SCHEMA = "k INT, v INT, p STRING"
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"partition_by": ["p"]},
    "column_mapping": {"properties": {"delta.columnMapping.mode": "name"}},
    "change_feed": {
        "properties": {"delta.enableChangeDataFeed": "true"},
        "partition_by": ["p"],
    },
    "directory_of_data": {
        "properties": {"delta.enableChangeDataFeed": "true"},
        "partition_by": ["p"],
    },
    "former_directory_of_data": {"partition_by": ["p"]},
}
IN_A_DIRECTORY = {"spark.databricks.delta.write.dataFilesToSubdir": "true"}


def data_files(path: Path) -> set[str]:
    """All Parquet files of a table's directory, whether a version has them or not."""
    return {
        str(file.relative_to(path))
        for file in path.rglob("*.parquet")
        if "_delta_log" not in file.parts
    }


@pytest.fixture(params=LAYOUTS)
def path(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    # A directory whose name means others to a glob.
    path = tmp_path / "a{b,c}[d]*"
    rows = [(1, 10, "a"), (2, 20, "b")]
    with configured(spark, IN_A_DIRECTORY if "directory" in request.param else {}):
        write_table(spark, str(path), rows, SCHEMA, **LAYOUTS[request.param])
    with configured(spark, IN_A_DIRECTORY if request.param == "directory_of_data" else {}):
        yield path


def failing_late(spark: SparkSession) -> Any:
    """Rows of two tasks: the first writes its file, the second fails."""
    rows = frame(spark, [(5, 1, "a"), (6, 0, "a")], SCHEMA, files=2)
    return rows.selectExpr("k", "CAST(100 / v AS INT) AS v", "p")


def insert_only(spark: SparkSession, table: Table) -> object:
    merge = table.merge(failing_late(spark), on="t.k = s.k")
    return merge.when_not_matched_insert_all().execute()


def append(spark: SparkSession, table: Table) -> object:
    return table.write(failing_late(spark), "append")


def overwrite(spark: SparkSession, table: Table) -> object:
    return table.write(failing_late(spark), "overwrite")


def rewrite_in_place(spark: SparkSession, table: Table) -> object:
    """Rewrites a file while its insert fails."""
    rows = frame(spark, [(1, 11, "a"), (6, 0, "a")], SCHEMA)
    merge = table.merge(rows, on="t.k = s.k").when_matched_update({"v": "s.v"})
    merge.when_not_matched_insert({"k": "s.k", "v": "CAST(100 / s.v AS INT)", "p": "s.p"})
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        return merge.execute()


def writes() -> Iterator[Any]:
    """Each write into each layout; in `make test-slow` into three of them by turns."""
    for place, write in enumerate((insert_only, rewrite_in_place, append, overwrite)):
        for number, layout in enumerate(LAYOUTS):
            mark = pytest.mark.minutes if place % 2 == number % 2 else pytest.mark.full_matrix
            yield pytest.param(layout, write, id=f"{layout}-{write.__name__}", marks=mark)


@pytest.mark.parametrize(("path", "write"), list(writes()), indirect=["path"])
def test_a_write_that_fails_leaves_no_file(
    spark: SparkSession, path: Path, write: Callable[[SparkSession, Table], object]
) -> None:
    before = data_files(path)
    (path / "part-00000-of-another-writer.parquet").touch()
    with pytest.raises(errors.DeltaweaveError) as raised:
        write(spark, Table(spark, str(path)))
    assert raised.value.error_class == "DIVIDE_BY_ZERO"
    assert newest_version(str(path)) == 0
    assert data_files(path) == before | {"part-00000-of-another-writer.parquet"}


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Callable[[Path], None]:
    """Lets another writer delete all rows just before the next merge commits."""
    commit = Transaction.commit

    def overtake(path: Path) -> None:
        def commit_after_the_other(transaction: Transaction, **arguments: Any) -> Any:
            monkeypatch.setattr(Transaction, "commit", commit)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(Table(spark, str(path)).delete, "true").result()
            return commit(transaction, **arguments)

        monkeypatch.setattr(Transaction, "commit", commit_after_the_other)

    return overtake


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("path", "in_place"),
    [
        ("plain", "true"),
        ("partitioned", "false"),
        ("column_mapping", "false"),
        ("change_feed", "true"),
    ],
    indirect=["path"],
)
def test_a_merge_that_lost_to_another_commit_leaves_no_file(
    spark: SparkSession, path: Path, overtaken: Callable[[Path], None], in_place: str
) -> None:
    before = data_files(path)
    overtaken(path)
    merge = Table(spark, str(path)).merge(
        frame(spark, [(1, 11, "a"), (7, 70, "b")], SCHEMA), on="t.k = s.k"
    )
    merge = merge.when_matched_update({"v": "s.v"}).when_not_matched_insert_all()
    settings = {REWRITE_IN_PLACE: in_place, MAX_COMMIT_ATTEMPTS: "1"}
    with configured(spark, settings), pytest.raises(errors.CommitConflictError):
        merge.execute()
    own = data_files(path) - before
    # The other writer's change feed alone.
    assert all(file.startswith("_change_data") for file in own)
    assert newest_version(str(path)) == 1


@pytest.mark.parametrize("path", ["plain", "directory_of_data"], indirect=True)
def test_a_merge_that_commits_keeps_its_files(spark: SparkSession, path: Path) -> None:
    merge = Table(spark, str(path)).merge(frame(spark, [(7, 70, "b")], SCHEMA), on="t.k = s.k")
    result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert result.version == 1
    assert Table(spark, str(path)).read().count() == 3


@pytest.mark.minutes
def test_a_table_made_for_a_write_that_failed_can_be_made_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, str(tmp_path / "made"))
    for schema, partition_by in (("k INT, v INT, p INT", ()), (SCHEMA, ()), (SCHEMA, ("p",))):
        made = table.create_if_missing(schema, partition_by, for_a_write=True)
        assert made is (schema != SCHEMA)  # the first alone
        with pytest.raises(errors.DeltaweaveError):
            insert_only(spark, table)
    assert table.partition_columns() == ["p"]
    before = table.version()
    table.create_if_missing(SCHEMA, ("p",), for_a_write=True)  # as it is
    assert table.version() == before
    table.write(frame(spark, [(1, 10, "a")], SCHEMA), "append")
    table.delete("true")

    table.create_if_missing("other STRING", for_a_write=True)  # it was written to

    assert table.read().schema.names == ["k", "v", "p"]


@pytest.mark.minutes
def test_a_named_table_of_a_failed_write_can_be_created_differently(
    spark: SparkSession,
) -> None:
    table = Table(spark, "made_for_a_write")
    table.create_if_missing("k STRING", for_a_write=True)
    table.create_if_missing(SCHEMA, for_a_write=True)
    table.write(frame(spark, [(1, 10, "a")], SCHEMA), "append")
    assert spark.table("made_for_a_write").count() == 1


@pytest.mark.parametrize("made_for_a_write", [True, False])
def test_a_table_that_was_made_on_purpose_or_written_to_stays(
    spark: SparkSession, tmp_path: Path, made_for_a_write: bool
) -> None:
    table = Table(spark, str(tmp_path / "there"))
    table.create_if_missing(SCHEMA, for_a_write=made_for_a_write)
    if made_for_a_write:
        frame(spark, [(1, 10, "a")], SCHEMA).write.format("delta").mode("append").save(
            table.path_or_name
        )
    assert not table.create_if_missing("other STRING", for_a_write=True)
    assert table.read().schema.names == ["k", "v", "p"]


@pytest.mark.minutes
def test_a_write_under_way_conflicts_if_its_table_gets_other_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be in a table of other columns: it must hear of it, and can try again."""
    table = Table(spark, str(tmp_path / "shared"))
    commit = Transaction.commit

    def commit_after_the_other(transaction: Transaction, **arguments: Any) -> Any:
        monkeypatch.setattr(Transaction, "commit", commit)
        with ThreadPoolExecutor(1) as thread:
            other = Table(spark, table.path_or_name).create_if_missing
            thread.submit(other, "other STRING", for_a_write=True).result()
        return commit(transaction, **arguments)

    table.create_if_missing(SCHEMA, for_a_write=True)
    monkeypatch.setattr(Transaction, "commit", commit_after_the_other)
    merge = table.merge(frame(spark, [(1, 10, "a")], SCHEMA), on="t.k = s.k")
    with pytest.raises(errors.CommitConflictError):
        merge.when_not_matched_insert_all().execute()
    assert table.read().schema.names == ["other"]
    assert table.read().isEmpty()


@pytest.mark.minutes
def test_rows_that_come_just_before_a_table_is_made_otherwise_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the table, which is empty, and its recreation."""
    table = Table(spark, str(tmp_path / "shared"))
    table.create_if_missing(SCHEMA, for_a_write=True)
    recreate_empty = table_module.recreate_empty

    def append_first(*arguments: Any) -> None:
        monkeypatch.setattr(table_module, "recreate_empty", recreate_empty)
        Table(spark, table.path_or_name).write(frame(spark, [(1, 10, "a")], SCHEMA), "append")
        recreate_empty(*arguments)

    monkeypatch.setattr(table_module, "recreate_empty", append_first)
    assert not table.create_if_missing("other STRING", for_a_write=True)
    assert [tuple(row) for row in table.read().collect()] == [(1, 10, "a")]
