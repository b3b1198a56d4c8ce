"""After a lost commit: the same output is committed again only where doing it again would give it.

Each case commits before the merge does, and compares the rows with those of one after the other.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.delta.commit import transaction as transaction_module
from deltaweave.delta.commit.commit_call import committed
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.engine import limits, run
from deltaweave.engine.commit import loop, rebase
from deltaweave.engine.merge_run import MAX_COMMIT_ATTEMPTS, REWRITE_IN_PLACE, MergeRun
from tests.builders import Rows, frame, write_table
from tests.support.locks import is_free, waits_for_locks
from tests.support.oracles import actions, all_files, newest_version, rows_as_text
from tests.support.settings import configured

SCHEMA = "k INT, v INT"
VECTORS = {"delta.enableDeletionVectors": "true"}
NOT_MATERIALIZED = {"spark.databricks.delta.merge.materializeSource": "none"}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The version that each run of a merge read; a merge that reruns has two."""
    versions: list[int] = []
    write_changes = run.write_changes

    def noted(merge: MergeRun) -> Any:
        versions.append(merge.transaction.version)
        return write_changes(merge)

    monkeypatch.setattr(run, "write_changes", noted)
    return versions


def upsert(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def upsert_greater(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    merge = merge.when_matched_update_all(condition="s.v > t.v")
    return merge.when_not_matched_insert_all().execute()


def add(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    return merge.when_matched_update({"v": "t.v + s.v"}).when_not_matched_insert_all().execute()


def delete(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    return merge.when_matched_delete().when_not_matched_insert_all().execute()


def insert(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    return merge.when_not_matched_insert_all().execute()


def synchronize(table: Table, rows: Rows) -> MergeResult:
    merge = table.merge(frame(table.spark, rows, SCHEMA), on="t.k = s.k")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    return merge.when_not_matched_by_source_delete().execute()


def raise_above_all(table: Table, rows: Rows) -> MergeResult:
    frame(table.spark, rows, SCHEMA).createOrReplaceTempView("raised")
    target = f"delta.`{table.path_or_name}`"
    merge = f"MERGE INTO {target} t USING raised s ON t.k = s.k WHEN MATCHED THEN "
    update = f"UPDATE SET v = s.v + (SELECT max(v) FROM {target})"
    return deltaweave.merge(table.spark, merge + update)


def insert_what_is_less_than_all(table: Table, rows: Rows) -> MergeResult:
    frame(table.spark, rows, SCHEMA).createOrReplaceTempView("inserted")
    target = f"delta.`{table.path_or_name}`"
    source = f"(SELECT * FROM inserted WHERE v < (SELECT max(v) FROM {target}))"
    merge = f"MERGE INTO {target} t USING {source} s ON t.k = s.k "
    return deltaweave.merge(table.spark, f"{merge} WHEN NOT MATCHED THEN INSERT *")


@dataclass(frozen=True)
class Case:
    """Another writer's statements that come before the commit of a merge.

    Attributes:
        others: The statements.
        rows: The merge's source.
        left: The rows afterwards.
        again: Whether the merge has to rerun.
        merge: The merge.
        files: How many files the rows 1, 2, 3, 4 and 11, 12, 13, 14 are in; v is k * 10.
        properties: Of the table.
        settings: Of the session.
        before: Statements that come before the merge.
        redone: How many files are changed again, if the merge does not rerun.
    """

    others: tuple[str, ...]
    rows: Rows
    left: Rows
    again: bool
    merge: Callable[[Table, Rows], MergeResult] = upsert
    files: int = 2
    properties: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    redone: int = 0


UPDATE_14 = ("UPDATE {t} SET v = 141 WHERE k = 14",)
FIRST = [(1, 10), (2, 20), (3, 30), (4, 40)]
LAST = [(11, 110), (12, 120), (13, 130), (14, 140)]
NEW = [(1, 100), (5, 50)]
AFTER_UPDATE = [(1, 100), *FIRST[1:], (5, 50), *LAST[:-1], (14, 141)]

CASES = {
    # Other files.
    "other_files_copied": Case(
        UPDATE_14, NEW, AFTER_UPDATE, False, settings={REWRITE_IN_PLACE: "false"}
    ),
    "other_files_copied_in_place": Case(
        UPDATE_14, NEW, AFTER_UPDATE, False, settings={REWRITE_IN_PLACE: "true"}
    ),
    "other_files_marked": Case(UPDATE_14, NEW, AFTER_UPDATE, False, properties=VECTORS),
    "other_files_of_an_insert": Case(
        UPDATE_14, [(1, 0), (5, 50)], [*FIRST, (5, 50), *LAST[:-1], (14, 141)], False, insert
    ),
    "other_files_of_a_serializable_table": Case(
        UPDATE_14, NEW, AFTER_UPDATE, True, properties={"delta.isolationLevel": "Serializable"}
    ),
    "other_files_with_a_source_that_may_differ": Case(
        UPDATE_14, NEW, AFTER_UPDATE, True, settings=NOT_MATERIALIZED
    ),
    "other_files_with_rows_not_in_the_source": Case(UPDATE_14, NEW, NEW, True, synchronize),
    "other_files_that_a_subquery_reads": Case(
        UPDATE_14, [(1, 1)], [(1, 142), *FIRST[1:], *LAST[:-1], (14, 141)], True, raise_above_all
    ),
    "other_files_that_a_subquery_of_the_source_reads": Case(
        ("UPDATE {t} SET v = 4 WHERE k > 1",),
        [(5, 9), (6, 10)],
        [(1, 10), *[(k, 4) for k, _ in (*FIRST[1:], *LAST)], (5, 9)],
        True,
        insert_what_is_less_than_all,
    ),
    "a_compaction": Case(("OPTIMIZE {t}",), NEW, [(1, 100), *FIRST[1:], (5, 50), *LAST], True),
    # Keys that come.
    "a_key_that_moved_to_ours": Case(
        ("UPDATE {t} SET k = 5 WHERE k = 14",),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST[:-1]],
        True,
    ),
    "an_inserted_key_that_left": Case(
        ("DELETE FROM {t} WHERE k = 1",), NEW, [(1, 100), *FIRST[1:], (5, 50), *LAST], True, insert
    ),
    # The new file's statistics allow for both keys.
    "keys_around_ours": Case(
        ("INSERT INTO {t} VALUES (0, 0), (9, 90)",),
        NEW,
        [(0, 0), (1, 100), *FIRST[1:], (5, 50), (9, 90), *LAST],
        False,
    ),
    "our_key_among_others": Case(
        ("INSERT INTO {t} VALUES (0, 0), (5, 5), (9, 90)",),
        NEW,
        [(0, 0), (1, 100), *FIRST[1:], (5, 50), (9, 90), *LAST],
        True,
    ),
    "keys_around_those_of_an_insert": Case(
        ("INSERT INTO {t} VALUES (0, 0), (9, 90)",),
        [(1, 0), (5, 50)],
        [(0, 0), *FIRST, (5, 50), (9, 90), *LAST],
        False,
        insert,
    ),
    # Rows of the same file.
    "other_rows_of_a_file_copied": Case(UPDATE_14, NEW, AFTER_UPDATE, True, files=1),
    "other_rows_of_a_file_marked": Case(
        UPDATE_14, NEW, AFTER_UPDATE, False, files=1, properties=VECTORS
    ),
    "other_rows_of_a_marked_file_marked": Case(
        (*UPDATE_14, "DELETE FROM {t} WHERE k = 13"),
        NEW,
        [(1, 100), (3, 30), (4, 40), (5, 50), *LAST[:2], (14, 141)],
        False,
        files=1,
        properties=VECTORS,
        before=("DELETE FROM {t} WHERE k = 2",),
    ),
    "other_rows_of_a_file_without_matches_marked": Case(
        UPDATE_14,
        [(5, 50)],
        [*FIRST, (5, 50), *LAST[:-1], (14, 141)],
        False,
        files=1,
        properties=VECTORS,
    ),
    "the_same_row_marked": Case(
        ("UPDATE {t} SET v = 11 WHERE k = 1",),
        [(1, 100), (5, 50)],
        [(1, 111), *FIRST[1:], (5, 50), *LAST],
        True,
        add,
        files=1,
        properties=VECTORS,
    ),
    "a_row_that_matched_in_vain_marked": Case(
        ("DELETE FROM {t} WHERE k = 1",),
        [(1, 0), (2, 200)],
        [(1, 0), (2, 200), *FIRST[2:], *LAST],
        True,
        upsert_greater,
        files=1,
        properties=VECTORS,
    ),
    # Rows of our files that moved to others.
    "a_compaction_of_marked_files": Case(
        ("OPTIMIZE {t}",),
        [(1, 100), (11, 0), (5, 50)],
        [(1, 100), *FIRST[1:], (5, 50), (11, 0), *LAST[1:]],
        False,
        properties=VECTORS,
        redone=1,
    ),
    "a_compaction_of_copied_files_that_wrote_the_change_feed": Case(
        ("OPTIMIZE {t}",),
        [(1, 100), (11, 0), (5, 50)],
        [(1, 100), *FIRST[1:], (5, 50), (11, 0), *LAST[1:]],
        True,
        settings={REWRITE_IN_PLACE: "true"},
        properties={"delta.enableChangeDataFeed": "true"},
    ),
    "a_compaction_of_copied_files": Case(
        ("OPTIMIZE {t}",),
        [(1, 100), (11, 0), (5, 50)],
        [(1, 100), *FIRST[1:], (5, 50), (11, 0), *LAST[1:]],
        False,
        settings={REWRITE_IN_PLACE: "true"},
        redone=1,
    ),
    "one_of_our_files_copied_for_another_row": Case(
        UPDATE_14,
        [(1, 100), (11, 0), (5, 50)],
        [(1, 100), *FIRST[1:], (5, 50), (11, 0), *LAST[1:-1], (14, 141)],
        False,
        settings={REWRITE_IN_PLACE: "true"},
        redone=1,
    ),
    "our_file_copied_by_another_merge_in_place": Case(
        UPDATE_14,
        [(1, 1), (5, 50)],
        [(1, 11), *FIRST[1:], (5, 50), *LAST[:-1], (14, 141)],
        False,
        add,  # of the values in the file that came
        files=1,
        settings={REWRITE_IN_PLACE: "true"},
        redone=1,
    ),
    "a_compaction_of_a_marked_file_after_another_row_was_marked": Case(
        ("DELETE FROM {t} WHERE k = 14", "REORG TABLE {t} APPLY (PURGE)"),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST[:-1]],
        False,
        files=1,
        properties=VECTORS,
        redone=1,
    ),
    "a_compaction_of_one_of_two_files_and_rows_of_the_other_marked": Case(
        ("DELETE FROM {t} WHERE k = 4", "REORG TABLE {t} APPLY (PURGE)", *UPDATE_14),
        [(1, 100), (11, 0), (5, 50)],
        [(1, 100), *FIRST[1:3], (5, 50), (11, 0), *LAST[1:-1], (14, 141)],
        False,
        properties=VECTORS,
        redone=1,
    ),
    "whole_files_deleted_from_after_a_compaction": Case(
        ("OPTIMIZE {t}",),
        [*FIRST, *LAST, (5, 50)],
        [(5, 50)],
        False,
        delete,
        properties=VECTORS,
        redone=1,
    ),
    "our_row_set_and_compacted": Case(
        ("UPDATE {t} SET v = 11 WHERE k = 1", "OPTIMIZE {t}"),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST],
        False,
        properties=VECTORS,
        redone=1,
    ),
    "our_row_set_and_compacted_where_its_value_counts": Case(
        ("UPDATE {t} SET v = 11 WHERE k = 1", "OPTIMIZE {t}"),
        [(1, 100), (5, 50)],
        [(1, 111), *FIRST[1:], (5, 50), *LAST],
        True,
        add,
        properties=VECTORS,
    ),
    "our_row_set_and_compacted_so_that_no_clause_takes_it": Case(
        ("UPDATE {t} SET v = 1000 WHERE k = 1", "OPTIMIZE {t}"),
        NEW,
        [(1, 1000), *FIRST[1:], (5, 50), *LAST],
        True,
        upsert_greater,
        properties=VECTORS,
    ),
    "our_row_deleted_and_compacted": Case(
        ("DELETE FROM {t} WHERE k = 1", "OPTIMIZE {t}"),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST],
        True,
        properties=VECTORS,
    ),
    "our_new_key_compacted_with_our_file": Case(
        ("INSERT INTO {t} VALUES (5, 5)", "OPTIMIZE {t}"),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST],
        True,
        properties=VECTORS,
    ),
    "our_row_doubled_and_compacted_in_place": Case(
        ("INSERT INTO {t} VALUES (1, 7)", "OPTIMIZE {t}"),
        NEW,
        [(1, 100), (1, 100), *FIRST[1:], (5, 50), *LAST],
        True,
        settings={REWRITE_IN_PLACE: "true"},
    ),
    "our_row_moved_to_another_key_and_back_to_it_from_another": Case(
        ("UPDATE {t} SET k = 100 - k WHERE k = 1", "UPDATE {t} SET k = 1 WHERE k = 14"),
        [(1, 100), (5, 50)],
        [(1, 100), *FIRST[1:], (5, 50), *LAST[:-1], (99, 10)],
        False,
        settings={REWRITE_IN_PLACE: "true"},
        redone=1,
    ),
    "a_compaction_of_a_table_with_a_change_feed": Case(
        ("OPTIMIZE {t}",),
        NEW,
        [(1, 100), *FIRST[1:], (5, 50), *LAST],
        True,
        properties=VECTORS | {"delta.enableChangeDataFeed": "true"},
    ),
    "a_marked_row_restored": Case(
        ("RESTORE {t} TO VERSION AS OF 0",),
        [(1, 100), (4, 400)],
        [(1, 100), *FIRST[1:3], (4, 400), *LAST],
        True,
        files=1,
        properties=VECTORS,
        before=("DELETE FROM {t} WHERE k = 4",),
    ),
}


# The other cases are much like one of these.
TELLING = {
    "other_files_copied_in_place",
    "other_files_with_a_source_that_may_differ",
    "other_files_that_a_subquery_of_the_source_reads",
    "an_inserted_key_that_left",
    "keys_around_ours",
    "our_key_among_others",
    "other_rows_of_a_marked_file_marked",
    "the_same_row_marked",
    "a_row_that_matched_in_vain_marked",
    "a_marked_row_restored",
    "a_compaction_of_marked_files",
    "one_of_our_files_copied_for_another_row",
    "a_compaction_of_one_of_two_files_and_rows_of_the_other_marked",
    "our_row_set_and_compacted_where_its_value_counts",
    "our_row_set_and_compacted_so_that_no_clause_takes_it",
    "our_row_deleted_and_compacted",
    "our_new_key_compacted_with_our_file",
}


def files_of_versions(path: str) -> set[str]:
    """The files that commits added, of data and of the change feed, and the checkpoints."""
    adds = [
        action[kind]["path"]
        for version in range(newest_version(path) + 1)
        for action in actions(path, version)
        for kind in ("add", "cdc")
        if kind in action
    ]
    logs = {name for name in all_files(path) if name.startswith("_delta_log/")}
    return logs | {unquote(name) for name in adds}


@pytest.mark.minutes
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in TELLING else pytest.mark.full_matrix)
        for name in CASES
    ],
)
def test_a_merge_rebases_on_unrelated_commits_and_reruns_after_others(
    spark: SparkSession,
    tmp_path: Path,
    runs: list[int],
    overtaken: Callable[..., None],
    name: str,
) -> None:
    case, path = CASES[name], str(tmp_path / "table %41")  # no escape: its name
    setup = [statement.replace("{t}", "{target}") for statement in case.before]
    write_table(
        spark,
        path,
        [*FIRST, *LAST],
        SCHEMA,
        files=case.files,
        properties=case.properties,
        setup=setup,
    )
    table = Table(spark, path)

    def others() -> None:
        for statement in case.others:
            spark.sql(statement.format(t=f"delta.`{path}`"))

    overtaken(others)
    with configured(spark, case.settings):
        result = case.merge(table, case.rows)
    assert rows_as_text(table.read().collect()) == rows_as_text(case.left)
    read = len(case.before)
    assert runs == ([read, read + len(case.others)] if case.again else [read])
    assert result.commit_attempts == 2
    assert result.version == read + len(case.others) + 1
    if not case.again:
        assert result.files_redone == case.redone
    # Files that were written again are gone; what a version needs is there.
    known = files_of_versions(path)
    assert {name for name in all_files(path) if name.endswith(".parquet")} <= known


@pytest.mark.minutes
def test_united_vectors_keep_row_ids_and_the_change_feed(
    spark: SparkSession, tmp_path: Path, runs: list[int], overtaken: Callable[..., None]
) -> None:
    path = str(tmp_path / "table")
    properties = {
        **VECTORS,
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
    }
    write_table(spark, path, [*FIRST, *LAST], SCHEMA, properties=properties)
    table = Table(spark, path)
    ids = {
        row.k: row.id for row in table.read().selectExpr("k", "_metadata.row_id AS id").collect()
    }

    def other() -> None:
        upsert(Table(spark, path), [(4, 400), (15, 150)])

    overtaken(other)
    result = upsert(table, NEW)
    assert (runs, result.commit_attempts, result.files_redone) == ([0, 0], 2, 0)  # the other's, too
    metrics = result.metrics
    assert metrics.num_target_deletion_vectors_updated == 1
    assert metrics.num_target_deletion_vectors_added == 0
    changed = table.read().selectExpr("k", "v", "_metadata.row_id AS id").collect()
    assert {row.k: row.v for row in changed} == {**dict([*FIRST, *LAST, *NEW]), 4: 400, 15: 150}
    assert len({row.id for row in changed}) == len(changed)
    assert {row.k: row.id for row in changed if row.k in ids} == ids
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", 2)
    feed = feed.format("delta").load(path).select("k", "v", "_change_type")
    assert rows_as_text(feed.collect()) == [
        "(1, 10, 'update_preimage')",
        "(1, 100, 'update_postimage')",
        "(5, 50, 'insert')",
    ]


@pytest.mark.minutes
def test_identity_values_are_not_given_out_twice_after_a_lost_commit(
    spark: SparkSession, tmp_path: Path, runs: list[int], overtaken: Callable[..., None]
) -> None:
    path = str(tmp_path / "table")
    ddl = "id BIGINT GENERATED ALWAYS AS IDENTITY, k INT, v INT"
    write_table(spark, path, LAST, SCHEMA, ddl=ddl)
    table = Table(spark, path)

    def insert_one(k: int) -> MergeResult:
        merge = table.merge(frame(spark, [(k, 0)], SCHEMA), on="t.k = s.k")
        return merge.when_not_matched_insert({"k": "s.k", "v": "s.v"}).execute()

    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET v = 141 WHERE k = 14"))
    insert_one(1)
    insert_one(2)
    rows = table.read().collect()
    assert runs == [1, 2, 3]
    assert len({row.id for row in rows}) == len(rows) == 6


@pytest.mark.minutes
def test_a_merge_follows_one_commit_after_another_up_to_the_limit(
    spark: SparkSession, tmp_path: Path, runs: list[int], overtaken: Callable[..., None]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [*FIRST, *LAST], SCHEMA, files=2)
    table = Table(spark, path)

    def other(k: int) -> Callable[[], Any]:
        return lambda: spark.sql(f"UPDATE delta.`{path}` SET v = v + 1 WHERE k = {k}")

    overtaken(other(13), other(14), other(14))
    result = upsert(table, NEW)
    assert (runs, result.commit_attempts, result.version) == ([0], 4, 4)
    overtaken(*[other(14)] * 3)
    limited = {MAX_COMMIT_ATTEMPTS: "3"}
    with configured(spark, limited), pytest.raises(errors.CommitConflictError):
        upsert(table, [(2, 200)])
    assert runs == [0, 4]
    left = [(1, 100), *FIRST[1:], (5, 50), *LAST[:2], (13, 131), (14, 145)]
    assert rows_as_text(table.read().collect()) == rows_as_text(left)


@pytest.mark.minutes
def test_a_merge_does_not_follow_into_a_recreated_table(
    spark: SparkSession, tmp_path: Path, overtaken: Callable[..., None]
) -> None:
    path = tmp_path / "table"
    write_table(spark, str(path), [*FIRST, *LAST], SCHEMA, files=2)
    table = Table(spark, str(path))

    def recreate() -> None:
        shutil.rmtree(path)
        write_table(spark, str(path), [(1, 0)], SCHEMA, setup=["UPDATE {target} SET v = 1"])

    overtaken(recreate)
    with pytest.raises(errors.CommitConflictError):
        upsert(table, NEW)
    assert rows_as_text(table.read().collect()) == ["(1, 1)"]


@pytest.mark.full_matrix
@pytest.mark.parametrize("properties", [VECTORS, {}], ids=["vectors", "copies"])
def test_writers_at_once_lose_nothing_and_insert_no_key_twice(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    """Each counts in a row of its own, and in one that all of them share, beside a compaction."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(4)], SCHEMA, properties=properties)
    table = Table(spark, path)

    def count(writer: int) -> None:
        for turn in range(4):
            add(table, [(writer, 1), (9 + turn % 2, 1)])
            if writer == 0:
                with suppress(errors.CommitConflictError):
                    table.compact()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(count, range(3)))
    expected = [(0, 4), (1, 4), (2, 4), (3, 0), (9, 6), (10, 6)]
    assert rows_as_text(table.read().collect()) == rows_as_text(expected)


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    """A table without deletion vectors, with `FIRST` and `LAST` in a file each."""
    path = tmp_path / "table"
    write_table(spark, str(path), [*FIRST, *LAST], SCHEMA, files=2)
    return path


@pytest.mark.minutes
def test_on_a_local_disk_no_merge_commits_between_a_look_and_the_next_try(
    spark: SparkSession,
    path: Path,
    overtaken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge looks at the commit that won before it tries again."""
    table, versions = Table(spark, str(path)), []
    look = rebase.transaction_after

    with ThreadPoolExecutor(1) as thread:
        others = []

        def looks(lost: Transaction) -> Transaction:
            newer = look(lost)
            # Another merge is ready to commit now, and has to wait.
            others.append(thread.submit(upsert, table, [(14, 0)]))
            while not waits.began.wait(0.1):
                assert not others[0].done()
            versions.append(newest_version(str(path)))
            return newer

        monkeypatch.setattr(rebase, "transaction_after", looks)
        overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET v = v + 1 WHERE k = 13"))
        with waits_for_locks() as waits:
            result = upsert(table, NEW)
            monkeypatch.setattr(rebase, "transaction_after", look)
            assert others[0].result().version == 3
    assert (versions, result.commit_attempts, result.version) == ([1], 2, 2)
    expected = [(1, 100), *FIRST[1:], (5, 50), *LAST[:2], (13, 131), (14, 0)]
    assert rows_as_text(table.read().collect()) == rows_as_text(expected)
    assert is_free(path)


@pytest.mark.minutes
def test_a_look_that_takes_long_does_not_keep_the_lock(
    spark: SparkSession,
    path: Path,
    overtaken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES_UNDER_LOCK", 0)
    free = []
    hold_match = rebase.hold_match

    def reads(*arguments: Any) -> bool:
        free.append(is_free(path))
        return hold_match(*arguments)

    monkeypatch.setattr(rebase, "hold_match", reads)
    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET v = v + 1 WHERE k = 14"))
    assert upsert(Table(spark, str(path)), NEW).commit_attempts == 2
    assert free == [True]
    assert is_free(path)


@pytest.mark.minutes
@pytest.mark.parametrize("where", ["transaction_after", "hold_match", "merge_metrics", "committed"])
def test_what_fails_between_two_commits_releases_the_lock(
    spark: SparkSession,
    path: Path,
    overtaken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    # Both are called before the first commit, too.
    at_first = {"committed": committed, "merge_metrics": loop.merge_metrics}
    rest = [at_first[where]] if where in at_first else []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if rest:
            return rest.pop()(*arguments, **named)
        assert not is_free(path)
        raise KeyboardInterrupt

    homes = {"merge_metrics": loop, "committed": transaction_module}
    monkeypatch.setattr(homes.get(where, rebase), where, interrupted)
    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET v = 141 WHERE k = 14"))
    with pytest.raises(KeyboardInterrupt):
        upsert(Table(spark, str(path)), NEW)
    assert is_free(path)
    assert newest_version(str(path)) == 1


def cancel(*arguments: Any, **named: Any) -> Any:
    raise errors.MergeFailedError("cancelled", error_class="SPARK_JOB_CANCELLED")


def hide_an_interrupt(*arguments: Any, **named: Any) -> Any:
    try:
        raise KeyboardInterrupt
    finally:
        raise errors.SourceLostError("the stream was closed")


def test_a_doubt_about_other_commits_quotes_no_row(caplog: pytest.LogCaptureFixture) -> None:
    class FailingRun(SimpleNamespace):
        @property
        def statement(self) -> None:
            raise errors.MergeFailedError(
                "The value 'Jane Doe' …", error_class="CAST_INVALID_INPUT"
            )

    run = FailingRun(table="t", transaction=SimpleNamespace(version=3))
    lost, lock = SimpleNamespace(run=run), SimpleNamespace(release=lambda: None)
    with caplog.at_level(logging.DEBUG, "deltaweave"):
        assert rebase.rebase(cast(Any, lost), cast(Any, lock)) is None
    [warning] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert warning.getMessage().endswith(": MergeFailedError (CAST_INVALID_INPUT)")
    assert not warning.exc_info
    assert [each.levelname for each in caplog.records if each.exc_info] == ["DEBUG"]


@pytest.mark.parametrize("stop", [cancel, hide_an_interrupt])
@pytest.mark.parametrize(
    ("where", "calls", "key"),
    [
        ((rebase, "hold_match"), 0, 14),
        ((loop, "TableLog"), 0, 1),
        ((loop, "source_dependence"), 0, 1),
        ((loop, "source_dependence"), 1, 1),
    ],
    ids=["rebase", "newest version", "whether to rerun", "whether to keep the source"],
)
def test_a_stop_after_a_lost_commit_ends_the_merge(
    spark: SparkSession,
    path: Path,
    runs: list[int],
    overtaken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[Any, str],
    calls: int,
    key: int,
    stop: Callable[..., Any],
) -> None:
    """A job that somebody cancels, or an interrupt, is no doubt that a rerun settles."""
    called, function = list[str](), getattr(*where)

    def stopped(*arguments: Any, **named: Any) -> Any:
        called.append(where[1])
        return (stop if len(called) > calls else function)(*arguments, **named)

    monkeypatch.setattr(*where, stopped)
    overtaken(lambda: spark.sql(f"UPDATE delta.`{path}` SET v = v + 1 WHERE k = {key}"))
    is_cancelled = stop is cancel
    with pytest.raises(errors.MergeFailedError if is_cancelled else KeyboardInterrupt) as raised:
        upsert(Table(spark, str(path)), NEW)
    assert (len(called), runs) == (calls + 1, [0])
    if is_cancelled:  # after an interrupt, Spark may still write, and VACUUM deletes the files
        assert raised.value.error_class == "SPARK_JOB_CANCELLED"
        left = {name for name in all_files(str(path)) if name.endswith(".parquet")}
        assert left <= files_of_versions(str(path))
    assert is_free(path)
    assert newest_version(str(path)) == 1


@pytest.mark.minutes
def test_a_merge_that_has_to_rerun_does_not_keep_the_lock(
    spark: SparkSession, path: Path, runs: list[int], overtaken: Callable[..., None]
) -> None:
    table = Table(spark, str(path))
    # The other merge takes the lock when this one is about to commit its second run.
    overtaken(
        lambda: spark.sql(f"UPDATE delta.`{path}` SET v = 1000 WHERE k = 1"),
        lambda: upsert(table, [(14, 0)]),
    )
    result = upsert(table, NEW)
    assert (runs[:2], result.version) == ([0, 1], 3)
    expected = [(1, 100), *FIRST[1:], (5, 50), *LAST[:3], (14, 0)]
    assert rows_as_text(table.read().collect()) == rows_as_text(expected)


@pytest.mark.minutes
@pytest.mark.parametrize(("attempts", "times"), [(None, 4), ("3", 3)])
def test_a_merge_that_loses_each_time_is_done_so_often(
    spark: SparkSession,
    tmp_path: Path,
    runs: list[int],
    overtaken: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    attempts: str | None,
    times: int,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, FIRST, SCHEMA)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.setattr(limits, "DEFAULT_RUNS", 4)
    overtaken(*[lambda: spark.sql(f"UPDATE delta.`{path}` SET v = v + 1 WHERE k = 1")] * 6)
    setting = {} if attempts is None else {MAX_COMMIT_ATTEMPTS: attempts}
    with configured(spark, setting), pytest.raises(errors.CommitConflictError):
        upsert(Table(spark, path), NEW)
    assert len(runs) == times
