"""Commits of others between a merge's read and its commit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import deltalake
import pyarrow
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Lease, MergeResult, Table, errors, merge
from deltaweave.delta.commit.commit_call import replacement_shown
from deltaweave.delta.commit.written_files import OwnFiles
from deltaweave.delta.statement import analyzer
from deltaweave.engine import run
from deltaweave.engine.merge_run import MAX_COMMIT_ATTEMPTS
from tests.builders import frame, write_table
from tests.support.oracles import newest_version, rows_as_text
from tests.support.settings import configured

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


# What another writer does, and the value of the row that the merge updates or inserts afterwards.
OTHERS = {
    "an_update_of_the_same_rows": "UPDATE {target} SET v = 11 WHERE k = 1",
    "a_delete_of_the_same_rows": "DELETE FROM {target} WHERE p = 'a'",
}


@pytest.mark.minutes
@pytest.mark.parametrize("other", OTHERS)
def test_a_merge_that_lost_reruns_after_the_winner(
    table: Table, overtaken: Callable[..., None], other: str
) -> None:
    target = f"delta.`{table.path_or_name}`"
    overtaken(lambda: table.spark.sql(OTHERS[other].format(target=target)))
    source = frame(table.spark, [(1, 100, "a")], PARTITIONED)
    merge = table.merge(source, on="t.k = s.k AND t.p = 'a'").when_matched_update({"v": "t.v + 1"})
    result = merge.when_not_matched_insert_all().execute()
    inserts = other == "a_delete_of_the_same_rows"
    assert (result.version, result.commit_attempts, result.files_redone) == (2, 2, 1)
    assert result.metrics.num_target_rows_inserted == int(inserts)
    value = 100 if inserts else 12
    assert rows_as_text(table.read().collect()) == [f"(1, {value}, 'a')", "(2, 20, 'b')"]


def test_a_merge_does_not_rerun_on_another_schema(
    table: Table, overtaken: Callable[..., None]
) -> None:
    target = f"delta.`{table.path_or_name}`"
    overtaken(lambda: table.spark.sql(f"ALTER TABLE {target} ADD COLUMNS (w INT)"))
    with pytest.raises(errors.CommitConflictError) as raised:
        upsert(table, (1, 100, "a"))
    assert isinstance(raised.value, errors.Transient)
    assert (raised.value.table, raised.value.version) == (table.path_or_name, 0)
    assert raised.value.hint
    assert newest_version(table.path_or_name) == 1  # the other's commit alone
    assert table.read().where("v = 100").isEmpty()


@pytest.mark.minutes
def test_a_merge_for_one_version_or_one_attempt_is_not_rerun(
    table: Table, overtaken: Callable[..., None]
) -> None:
    spark = table.spark
    merge = table.merge(frame(spark, [(1, 100, "a")], PARTITIONED), on="t.k = s.k")
    merge = merge.when_matched_update_all()
    overtaken(lambda: upsert(table, (1, 11, "a")))
    with pytest.raises(errors.CommitConflictError):
        merge.execute(computed_from=0)
    overtaken(lambda: upsert(table, (1, 12, "a")))
    with configured(spark, {MAX_COMMIT_ATTEMPTS: "1"}), pytest.raises(errors.CommitConflictError):
        merge.execute()
    assert rows_as_text(table.read().where("k = 1").collect()) == ["(1, 12, 'a')"]


@pytest.mark.minutes
@pytest.mark.parametrize("is_cached", [False, True])
def test_a_source_that_reads_the_target_reads_the_winner_too(
    table: Table, overtaken: Callable[..., None], is_cached: bool
) -> None:
    """Rows that the caller cached before are of the version that lost: they are not merged."""
    source = table.read().selectExpr("k", "v + 1 AS v", "p")
    if is_cached:
        source.persist().count()
    overtaken(lambda: upsert(table, (1, 50, "a")))
    merge = table.merge(source, on="t.k = s.k").when_matched_update_all()
    try:
        if is_cached:
            with pytest.raises(errors.CommitConflictError):
                merge.execute()
        else:
            merge.execute()
    finally:
        source.unpersist()
    expected = ["(1, 50, 'a')", "(2, 20, 'b')"] if is_cached else ["(1, 51, 'a')", "(2, 21, 'b')"]
    assert rows_as_text(table.read().collect()) == expected


@pytest.mark.minutes
@pytest.mark.parametrize("cached", ["the source", "the target"])
def test_a_clauses_subquery_reads_the_winner_unless_the_target_is_cached(
    table: Table, overtaken: Callable[..., None], cached: str
) -> None:
    spark, target = table.spark, f"delta.`{table.path_or_name}`"
    source = spark.range(1, 2).selectExpr("CAST(id AS INT) AS k", "1 AS v")
    source.createOrReplaceTempView("with_subquery")
    kept = source if cached == "the source" else spark.table(target)
    kept.persist().count()
    overtaken(lambda: upsert(table, (2, 50, "b")))
    update = f"UPDATE SET v = s.v + (SELECT max(v) FROM {target})"
    statement = (
        f"MERGE INTO {target} t USING with_subquery s ON t.k = s.k WHEN MATCHED THEN {update}"
    )
    try:
        if cached == "the source":
            deltaweave.merge(spark, statement)
        else:
            with pytest.raises(errors.CommitConflictError):
                deltaweave.merge(spark, statement)
    finally:
        kept.unpersist()
    one = "(1, 51, 'a')" if cached == "the source" else "(1, 10, 'a')"
    assert rows_as_text(table.read().collect()) == [one, "(2, 50, 'b')"]


def test_two_upserts_cannot_both_insert_a_key(table: Table, overtaken: Callable[..., None]) -> None:
    overtaken(lambda: upsert(table, (7, 70, "a")))
    result = upsert(table, (7, 71, "a"))
    assert result.metrics.num_target_rows_updated == 1  # it sees the other's row
    assert rows_as_text(table.read().where("k = 7").collect()) == ["(7, 71, 'a')"]


@pytest.mark.minutes
def test_two_insert_only_merges_cannot_both_insert_a_key(
    table: Table, overtaken: Callable[..., None]
) -> None:
    def insert(value: int) -> MergeResult:
        source = frame(table.spark, [(7, value, "a")], PARTITIONED)
        return table.merge(source, on="t.k = s.k").when_not_matched_insert_all().execute()

    overtaken(lambda: insert(70))
    assert insert(71).version is None
    assert rows_as_text(table.read().where("k = 7").collect()) == ["(7, 70, 'a')"]


@pytest.mark.minutes
def test_commits_to_other_partitions_do_not_conflict(
    table: Table, overtaken: Callable[..., None]
) -> None:
    overtaken(lambda: upsert(table, (2, 200, "b")))
    assert upsert(table, (1, 100, "a")).version == 2
    assert rows_as_text(table.read().collect()) == ["(1, 100, 'a')", "(2, 200, 'b')"]


@pytest.mark.minutes
@pytest.mark.parametrize("other_writes", [False, True], ids=["merge", "append"])
def test_of_two_commits_of_one_application_id_one_is_applied(
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
    assert merge((1, 100, "a")).strategy == "already-applied"
    assert newest_version(table.path_or_name) == 1


@pytest.mark.minutes
def test_a_merge_conflicts_with_a_commit_that_takes_its_lease(
    table: Table, overtaken: Callable[..., None]
) -> None:
    """It does not matter which files that commit touches."""
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


@pytest.mark.minutes
def test_a_merge_that_continues_a_version_of_its_id_is_not_rerun(
    table: Table, overtaken: Callable[..., None]
) -> None:
    """Its rows were computed from what the id had applied before."""

    def merge(to: int) -> MergeResult:
        source = frame(table.spark, [(1, to, "a")], PARTITIONED)
        merge = table.merge(source, on="t.k = s.k", idempotency=("orders#mon", to))
        return merge.when_matched_update_all().execute(applied_before=-1)

    overtaken(lambda: merge(1))
    with pytest.raises(errors.CommitConflictError, match="up to version 1 meanwhile"):
        merge(2)
    assert rows_as_text(table.read().where("k = 1").collect()) == ["(1, 1, 'a')"]


@pytest.mark.minutes
def test_no_update_is_lost_between_threads(table: Table) -> None:
    def add_one(_: int) -> int | None:
        source = frame(table.spark, [(1,)], "k INT")
        merge = table.merge(source, on="t.k = s.k").when_matched_update({"v": "t.v + 1"})
        return merge.execute().version

    with ThreadPoolExecutor(2) as threads:
        versions = list(threads.map(add_one, range(6)))
    assert sorted(map(str, versions)) == ["1", "2", "3", "4", "5", "6"]
    assert rows_as_text(table.read().where("k = 1").collect()) == ["(1, 16, 'a')"]


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


@pytest.mark.minutes
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


def widened(spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN a TYPE BIGINT")
    # By the type at analysis, it would be written as 705,032,704.
    spark.sql(f"UPDATE delta.`{path}` SET a = 5000000000 WHERE k = 2")


def in_another_order(spark: SparkSession, path: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN b AFTER k")


def recreated(spark: SparkSession, path: str) -> None:
    shutil.rmtree(path)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    write_table(spark, path, [(1, 7, 8), (2, 7, 8)], "k INT, a INT, b INT")


@pytest.mark.minutes
@pytest.mark.parametrize("change", [widened, in_another_order, recreated])
def test_a_statement_runs_only_on_the_columns_and_table_of_its_analysis(
    change: Callable[[SparkSession, str], None], spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "changed")
    properties = {"delta.enableTypeWidening": "true"}
    rows = [(1, 10, 20), (2, 11, 21)]
    write_table(spark, path, rows, "k INT, a INT, b INT", properties=properties)
    text = (
        f"MERGE INTO delta.`{path}` t USING (SELECT 1 AS k, 100 AS a, 200 AS b) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET *"
    )
    resolved = analyzer.resolve(analyzer.parse_statement(spark, text))
    change(spark, path)
    before = rows_as_text(Table(spark, path).read().collect())
    with pytest.raises(errors.SchemaChangedError):
        run.run(resolved)
    assert rows_as_text(Table(spark, path).read().collect()) == before
    again = run.run(analyzer.resolve(analyzer.parse_statement(spark, text)))
    assert again.metrics.num_target_rows_updated == 1
    assert [row.asDict() for row in Table(spark, path).read().where("k = 1").collect()] == [
        {"k": 1, "a": 100, "b": 200}
    ]


def created_again(path: str, versions: int) -> None:
    """Delete a table's directory, and let another process create a table there."""
    shutil.rmtree(path)
    for version in range(versions):
        rows = pyarrow.table({"k": pyarrow.array([100 + version], "int32")})
        deltalake.write_deltalake(path, rows, mode="append")
        (Path(path) / "_delta_log" / "_staged_commits").mkdir(exist_ok=True)  # as Delta does


# A table of three versions is read. Then, how many versions the new table has.
@pytest.mark.parametrize("versions", [0, 1, 5, pytest.param(3, marks=pytest.mark.minutes)])
@pytest.mark.parametrize(
    "when", ["before_the_commit", pytest.param("before_rows_are_found", marks=pytest.mark.minutes)]
)
def test_nothing_is_committed_to_a_table_deleted_or_recreated_meanwhile(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overtaken: Callable[..., None],
    versions: int,
    when: str,
) -> None:
    path = str(tmp_path / "replaced")
    more = [f"INSERT INTO {{target}} VALUES ({k})" for k in (3, 4)]
    write_table(spark, path, [(1,), (2,)], "k INT", setup=more)
    if when == "before_the_commit":
        overtaken(lambda: created_again(path, versions))
    else:
        write = run.write_changes

        def write_later(*arguments: Any) -> Any:
            created_again(path, versions)
            return write(*arguments)

        monkeypatch.setattr(run, "write_changes", write_later)
    merge = Table(spark, path).merge(frame(spark, [(1,), (9,)], "k INT"), on="t.k = s.k")
    with pytest.raises(errors.TableReplacedError) as raised:
        merge.when_matched_delete().when_not_matched_insert_all().execute()
    assert (raised.value.table, raised.value.version) == (path, 2)
    if versions:
        of_new_table = deltalake.DeltaTable(path)
        assert of_new_table.version() == versions - 1
        left = sorted(of_new_table.to_pyarrow_table()["k"].to_pylist())
        assert left == list(range(100, 100 + versions))
    else:
        assert not list(Path(path).glob("_delta_log/*.json"))


@pytest.mark.minutes
def test_a_key_added_meanwhile_to_a_file_that_was_ruled_out_is_found(
    spark: SparkSession, tmp_path: Path, overtaken: Callable[..., None]
) -> None:
    path = str(tmp_path / "in_two_files")
    write_table(spark, path, [(1, 10), (4, 40)], "k INT, v INT", files=2)
    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET k = 1 WHERE k = 4"))
    merge = Table(spark, path).merge(frame(spark, [(1,)], "k INT"), on="t.k = s.k")
    assert merge.when_matched_delete().execute().metrics.num_target_rows_deleted == 2
    assert Table(spark, path).read().isEmpty()


@pytest.mark.parametrize(
    ("is_committing", "expected"),
    [(False, errors.TableReplacedError), (True, errors.CommitStateUnknownError)],
)
def test_an_error_of_unknown_outcome_is_not_taken_for_one_before_commit(
    spark: SparkSession, tmp_path: Path, is_committing: bool, expected: type[Exception]
) -> None:
    path = str(tmp_path / "replaced")
    write_table(spark, path, [(1,)], "k INT")
    read = Table(spark, path).snapshot()
    own_files = OwnFiles(spark, None, None, is_committing=is_committing)
    lost = errors.CommitStateUnknownError(
        "no answer", table=path, operation="MERGE", version=0, transaction_id="x"
    )
    created_again(path, 0)
    shown = replacement_shown(read, own_files, table=path, operation="MERGE")
    with pytest.raises(expected), shown:
        raise lost
