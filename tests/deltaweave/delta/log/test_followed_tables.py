"""Followed tables: files and application ids of later versions are those that Delta says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import Table
from deltaweave.delta.log import TableSnapshot, actions, followed_tables
from deltaweave.delta.log import snapshot as snapshots
from deltaweave.delta.log.checksum import Checksum, applied
from deltaweave.delta.log.followed_tables import all_files
from deltaweave.engine.write.driver_choice import ON_DRIVER
from tests.builders import frame, write_table
from tests.oracles import configured
from tests.spark_jobs import jobs_of

VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture(autouse=True)
def nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums list neither files nor application ids, as in tables that have many."""
    monkeypatch.setattr(Checksum, "files", None)
    monkeypatch.setattr(Checksum, "transactions", None)


def files_of(snapshot: TableSnapshot) -> dict[str, dict[str, Any]]:
    """The AddFiles of a version by their paths, as Delta's job gives them."""
    listed = actions.to_json(snapshot.spark, all_files(snapshot.spark, snapshot.snapshot))
    return by_path(listed)


def by_path(adds: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By path, without empty tags, which Spark reads as none."""
    return {add["path"]: {k: v for k, v in add.items() if (k, v) != ("tags", {})} for add in adds}


def is_known(snapshot: TableSnapshot) -> bool:
    """Whether the newest version is known without a job; what is known must be what Delta says."""
    spark, known = snapshot.spark, snapshot.listed_files()
    if known is None:
        return False
    assert known.adds is not None
    assert by_path(known.adds) == files_of(snapshot)
    by_delta = applied(spark, snapshot.snapshot.setTransactions())
    assert snapshot.applied_versions() == by_delta
    return True


def followed(spark: SparkSession, path: str, **options: Any) -> Table:
    """A table of eight rows in four files, which is followed from its first version on."""
    write_table(spark, path, [(k, 0) for k in range(8)], "k INT, v INT", files=4, **options)
    table = Table(spark, path)
    assert not is_known(table.snapshot())
    assert len(table.snapshot().file_list()) == 4
    assert is_known(table.snapshot())
    return table


COMMITS = {
    "append": "INSERT INTO {t} VALUES (9, 9), (10, NULL)",
    "delete": "DELETE FROM {t} WHERE k IN (1, 2, 6)",
    "delete of whole files": "DELETE FROM {t} WHERE k < 4",
    "update": "UPDATE {t} SET v = 1 WHERE k % 2 = 0",
    "compaction": "OPTIMIZE {t}",
    "overwrite": "INSERT OVERWRITE {t} VALUES (1, 1)",
    "nothing is left": "DELETE FROM {t}",
    "a new column": "ALTER TABLE {t} ADD COLUMN w INT",
    "restore": "RESTORE TABLE {t} TO VERSION AS OF 0",
    "a property": "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')",
}


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy", "vectors"])
def test_what_is_known_after_each_commit_is_what_delta_says(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    path = str(tmp_path / "a b%20ü")
    table = followed(spark, path, properties=properties)
    for name, commit in COMMITS.items():
        spark.sql(commit.format(t=f"delta.`{path}`"))
        # RESTORE writes no checksum; the commit after it is read together with its own.
        assert is_known(table.snapshot()) == (name != "restore"), name


def test_several_commits_are_read_at_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path, partition_by=["v"])
    for commit in ("append", "delete", "update", "compaction", "restore", "delete"):
        spark.sql(COMMITS[commit].format(t=f"delta.`{path}`"))
    assert is_known(table.snapshot())


def test_a_version_before_the_known_one_is_asked_of_delta(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    assert is_known(table.snapshot())
    assert not is_known(table.snapshot(0))
    assert len(table.snapshot(0).file_list()) == 4
    assert is_known(table.snapshot())  # by the commit that came since


def test_a_table_that_was_made_anew_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    path, kept = tmp_path / "table", tmp_path / "kept"
    table = followed(spark, str(path))
    spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    assert is_known(table.snapshot())
    shutil.copytree(path, kept)
    for version in range(3):
        shutil.rmtree(path)
        # As many files of the same rows: only the commits tell the tables apart.
        write_table(spark, str(path), [(k, 0) for k in range(8)], "k INT, v INT", files=4)
        for _ in range(version):
            spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
        assert not is_known(Table(spark, str(path)).snapshot()), version
        assert Table(spark, str(path)).snapshot().file_list()
        assert is_known(Table(spark, str(path)).snapshot()), version
    # A backup of the first table has its id and its versions.
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    spark.sql(COMMITS["delete"].format(t=f"delta.`{path}`"))
    assert not is_known(Table(spark, str(path)).snapshot())


def test_a_backup_of_an_earlier_version_that_went_another_way_is_told_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, kept = tmp_path / "table", tmp_path / "kept"
    table = followed(spark, str(path))
    shutil.copytree(path, kept)
    for _ in range(2):
        spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
        assert is_known(table.snapshot())
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    for _ in range(4):
        spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    assert not is_known(Table(spark, str(path)).snapshot())


def lose_the_commit(log: Path) -> None:
    (log / f"{1:020}.json").unlink()


def lose_the_checksum_of_the_known_version(log: Path) -> None:
    (log / f"{0:020}.crc").unlink()


def say_other_bytes(log: Path) -> None:
    commit = log / f"{1:020}.json"
    commit.write_text(commit.read_text().replace('"size":', '"size":1'))


def say_another_commit(log: Path) -> None:
    commit = log / f"{2:020}.json"
    commit.write_text(commit.read_text().replace('"txnId":"', '"txnId":"1'))


def break_the_commit(log: Path) -> None:
    commit = log / f"{1:020}.json"
    commit.write_text(commit.read_text()[:-20])


@pytest.mark.parametrize(
    "damage",
    [
        lose_the_commit,
        lose_the_checksum_of_the_known_version,
        say_other_bytes,
        say_another_commit,
        break_the_commit,
    ],
)
def test_what_does_not_fit_is_not_known(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    for _ in range(2):
        spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    snapshot = table.snapshot()
    damage(Path(path, "_delta_log"))
    assert snapshot.listed_files() is None


@pytest.mark.parametrize("limit", ["MAX_FILES", "_MAX_COMMITS", "_MAX_BYTES"])
def test_too_much_is_asked_of_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    monkeypatch.setattr(followed_tables, limit, 0)
    snapshot = table.snapshot()
    assert not is_known(snapshot)
    assert set(snapshot.file_list().paths) == set(files_of(snapshot))


def test_a_long_replay_begins_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_tables, "_MAX_REPLAYED", 1)
    path = str(tmp_path / "table")
    table = followed(spark, path)
    for commit in ("update", "delete", "append", "compaction", "update"):
        spark.sql(COMMITS[commit].format(t=f"delta.`{path}`"))
        assert is_known(table.snapshot()), commit


def test_tables_that_were_not_asked_for_are_forgotten(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_tables, "_MAX_FILES_OF_ALL", 8)
    first, second = (followed(spark, str(tmp_path / name)) for name in ("first", "second"))
    assert is_known(first.snapshot())
    third = followed(spark, str(tmp_path / "third"))
    assert [is_known(each.snapshot()) for each in (first, second, third)] == [True, False, True]


def test_threads_that_ask_for_several_versions_get_each_what_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path, properties=VECTORS)
    snapshots = [table.snapshot()]
    for commit in ("append", "delete", "update", "compaction", "append"):
        spark.sql(COMMITS[commit].format(t=f"delta.`{path}`"))
        snapshots.append(table.snapshot())
    wanted = [set(files_of(snapshot)) for snapshot in snapshots]

    def asked(number: int) -> None:
        place = number * 5 % 6
        old = snapshots[place]
        new = TableSnapshot(spark, old.log, old.snapshot)
        assert set(new.file_list().paths) == wanted[place]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(asked, range(48)))


@pytest.mark.parametrize("with_pair", [True, False])
def test_a_merge_into_a_followed_table_runs_no_job_over_its_log(
    spark: SparkSession, tmp_path: Path, with_pair: bool
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    source = frame(spark, [(1, 1), (9, 1)], "k INT, v INT")

    def merge(version: int) -> Any:
        pair = ("loads", version) if with_pair else None
        statement = table.merge(source, on="t.k = s.k", idempotency=pair)
        return statement.when_matched_update_all().when_not_matched_insert_all().execute()

    with configured(spark, {ON_DRIVER: "true"}):
        for version in (1, 2):  # what is asked of the JVM once, is asked by then
            merge(version)
        jobs = jobs_of(spark, f"followed {with_pair}", lambda: merge(3))
    assert jobs == 2  # the source is materialized, and its rows come to the driver
    assert is_known(table.snapshot())
    if with_pair:
        assert merge(3).strategy == "already-applied"
        assert table.last_applied("loads") == 3


def test_partitions_are_chosen_among_known_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k % 4) for k in range(8)]
    write_table(spark, path, rows, "k INT, p INT", partition_by=["p"])
    table = Table(spark, path)
    source = frame(spark, [(1, 1), (9, 1)], "k INT, p INT")
    jobs = []

    def merge() -> None:
        statement = table.merge(source, on="t.k = s.k AND t.p = 1").when_matched_delete()
        metrics = statement.when_not_matched_insert_all().execute().metrics
        assert metrics["numTargetFilesAfterSkipping"] == 1

    for most in (followed_tables.MAX_FILES, 0):
        monkeypatch.setattr(snapshots, "MAX_FILES", most)
        merge()
        jobs.append(jobs_of(spark, f"partitions, {most}", merge))
    assert jobs[0] < jobs[1]
    # (1, 1) is deleted and inserted in turn, and so is (9, 1)
    assert sorted(map(tuple, table.read().collect())) == sorted(rows)
