"""Commits of others between a merge's read and its commit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import Lease, MergeResult, Table, errors, merge
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.statement import analyzer
from deltaweave.engine import run
from tests.builders import frame, write_table
from tests.oracles import newest_version, rows_as_text

PARTITIONED = "k INT, v INT, p STRING"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10, "a"), (2, 20, "b")], PARTITIONED, partition_by=["p"])
    return Table(spark, path)


def upsert(table: Table, row: tuple[int, int, str]) -> MergeResult:
    """Upsert a row by key into partition a, reading that partition alone."""
    source = frame(table.spark, [row], PARTITIONED)
    merge = table.merge(source, on=f"t.k = s.k AND t.p = '{row[2]}'")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Lets another writer, in a thread of its own, commit just before the next merge commits."""
    commit = Transaction.commit

    def overtake(other_writer: Callable[[], Any]) -> None:
        def commit_after_the_other(transaction: Transaction, **arguments: Any) -> int | None:
            monkeypatch.setattr(Transaction, "commit", commit)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(other_writer).result()
            return commit(transaction, **arguments)

        monkeypatch.setattr(Transaction, "commit", commit_after_the_other)

    return overtake


CONFLICTING = {
    "an_update_of_the_same_rows": "UPDATE {target} SET v = 11 WHERE k = 1",
    "a_delete_of_the_same_rows": "DELETE FROM {target} WHERE p = 'a'",
    "a_new_column": "ALTER TABLE {target} ADD COLUMNS (w INT)",
}


@pytest.mark.parametrize("other", CONFLICTING)
def test_a_conflicting_commit_stops_the_merge(
    table: Table, overtaken: Callable[..., None], other: str
) -> None:
    target = f"delta.`{table.path_or_name}`"
    overtaken(lambda: table.spark.sql(CONFLICTING[other].format(target=target)))
    with pytest.raises(errors.CommitConflictError) as raised:
        upsert(table, (1, 100, "a"))
    assert isinstance(raised.value, errors.Transient)
    assert (raised.value.table, raised.value.version) == (table.path_or_name, 0)
    assert raised.value.hint
    assert newest_version(table.path_or_name) == 1  # the other's commit alone
    assert table.read().where("v = 100").isEmpty()


def test_two_upserts_cannot_both_insert_a_key(table: Table, overtaken: Callable[..., None]) -> None:
    overtaken(lambda: upsert(table, (7, 70, "a")))
    with pytest.raises(errors.CommitConflictError):
        upsert(table, (7, 71, "a"))
    assert rows_as_text(table.read().where("k = 7").collect()) == ["(7, 70, 'a')"]
    upsert(table, (7, 71, "a"))  # the same call again sees the other's row
    assert rows_as_text(table.read().where("k = 7").collect()) == ["(7, 71, 'a')"]


def test_two_insert_only_merges_cannot_both_insert_a_key(
    table: Table, overtaken: Callable[..., None]
) -> None:
    def insert(value: int) -> MergeResult:
        source = frame(table.spark, [(7, value, "a")], PARTITIONED)
        return table.merge(source, on="t.k = s.k").when_not_matched_insert_all().execute()

    overtaken(lambda: insert(70))
    with pytest.raises(errors.CommitConflictError):
        insert(71)
    assert rows_as_text(table.read().where("k = 7").collect()) == ["(7, 70, 'a')"]


def test_commits_to_other_partitions_do_not_conflict(
    table: Table, overtaken: Callable[..., None]
) -> None:
    overtaken(lambda: upsert(table, (2, 200, "b")))
    assert upsert(table, (1, 100, "a")).version == 2
    assert rows_as_text(table.read().collect()) == ["(1, 100, 'a')", "(2, 200, 'b')"]


@pytest.mark.parametrize("other_writes", [False, True], ids=["merge", "append"])
def test_two_commits_of_one_application_id_conflict_whatever_they_touch(
    table: Table, overtaken: Callable[..., None], other_writes: bool
) -> None:
    """An id is a lease from the read of its version to the commit."""

    def merge(row: tuple[int, int, str]) -> MergeResult:
        source = frame(table.spark, [row], PARTITIONED)
        on = f"t.k = s.k AND t.p = '{row[2]}'"
        merge = table.merge(source, on=on, idempotency=("orders#mon", 1))
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def other() -> Any:
        if not other_writes:
            return merge((2, 200, "b"))
        rows = frame(table.spark, [(3, 30, "b")], PARTITIONED)
        return table.write(rows, "append", applied={"orders#mon": 1}, once=True)

    overtaken(other)
    with pytest.raises(errors.CommitConflictError):
        merge((1, 100, "a"))
    assert merge((1, 100, "a")).strategy == "already-applied"
    assert newest_version(table.path_or_name) == 1


def test_a_merge_conflicts_with_a_commit_that_takes_its_lease_whatever_it_touches(
    table: Table, overtaken: Callable[..., None]
) -> None:
    frame(table.spark, [(1, 11, "a")], PARTITIONED).createOrReplaceTempView("with_lease")
    statement = (
        f"MERGE INTO delta.`{table.path_or_name}` t USING with_lease s "
        "ON t.k = s.k AND t.p = 'a' WHEN MATCHED THEN UPDATE SET *"
    )
    other = frame(table.spark, [(3, 30, "b")], PARTITIONED)
    overtaken(lambda: table.write(other, "append", applied={"order": 4}))

    for held in (-1, 3):  # the first conflicts as it commits, the second is refused before
        with pytest.raises(errors.CommitConflictError):
            merge(table.spark, statement, lease=Lease("order", held, {"order": 5}))
    assert table.read().where("v = 11").isEmpty()

    merge(table.spark, statement, lease=Lease("order", 4, {"order": 5, "order#a": 5}))
    assert (table.last_applied("order"), table.last_applied("order#a")) == (5, 5)


def test_no_update_is_lost_between_threads(table: Table) -> None:
    """Each merge that says it committed added one; each that failed says it was a conflict."""

    def add_one(_: int) -> bool:
        source = frame(table.spark, [(1,)], "k INT")
        merge = table.merge(source, on="t.k = s.k").when_matched_update({"v": "t.v + 1"})
        try:
            return merge.execute().version is not None
        except errors.CommitConflictError:
            return False

    with ThreadPoolExecutor(2) as threads:
        committed = sum(threads.map(add_one, range(6)))
    assert committed >= 1
    assert rows_as_text(table.read().where("k = 1").collect()) == [f"(1, {10 + committed}, 'a')"]
    assert newest_version(table.path_or_name) == committed


def test_callers_at_once_create_one_table(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    together = Barrier(4)

    def create(_: int) -> bool:
        together.wait()
        return Table(spark, path).create_if_missing("k INT, v INT")

    with ThreadPoolExecutor(4) as pool:
        created = list(pool.map(create, range(4)))
    assert any(created)
    assert newest_version(path) == 0


def test_no_table_is_created_among_files_that_are_none_of_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Table.create_if_missing.retry, "sleep", waits.append)
    (tmp_path / "a_file").touch()
    with pytest.raises(errors.NotADeltaTableError, match="is not a Delta table"):
        Table(spark, str(tmp_path)).create_if_missing("k INT")
    # It looks like the log of another creator, who would be done by then.
    assert len(waits) == 4
    assert sum(waits) < 2


def test_identity_values_are_not_generated_from_an_old_mark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A commit after the statement was resolved used values that its plan would give out again."""
    path = str(tmp_path / "identified")
    ddl = "id BIGINT GENERATED ALWAYS AS IDENTITY, k INT"
    write_table(spark, path, [], "k INT", ddl=ddl)
    text = (
        f"MERGE INTO delta.`{path}` t USING (SELECT 2 AS k) s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)"
    )
    resolved = analyzer.resolve(analyzer.parse_statement(spark, text))
    spark.sql(f"INSERT INTO delta.`{path}` (k) VALUES (1)")
    with pytest.raises(errors.SchemaChangedError) as raised:
        run.run(resolved)
    assert isinstance(raised.value, errors.Transient)
    assert run.run(analyzer.resolve(analyzer.parse_statement(spark, text))).version == 2
    rows = Table(spark, path).read().collect()
    assert len({row.id for row in rows}) == 2


def test_a_key_added_meanwhile_to_a_file_that_was_ruled_out_is_a_conflict(
    spark: SparkSession, tmp_path: Path, overtaken: Callable[..., None]
) -> None:
    path = str(tmp_path / "in_two_files")
    write_table(spark, path, [(1, 10), (4, 40)], "k INT, v INT", files=2)
    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET k = 1 WHERE k = 4"))
    merge = Table(spark, path).merge(frame(spark, [(1,)], "k INT"), on="t.k = s.k")
    with pytest.raises(errors.CommitConflictError):
        merge.when_matched_delete().execute()
