"""Followed tables: the files of later versions are those that Delta says, and no job lists them."""

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
from deltaweave.delta.log.followed_tables import Checksum
from deltaweave.engine.merge_run import ON_DRIVER
from tests.builders import frame, write_table
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture(autouse=True)
def no_files_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums list no files, as in tables that have many."""
    monkeypatch.setattr(Checksum, "files", None)


def files_of(snapshot: TableSnapshot) -> dict[str, dict[str, Any]]:
    """The AddFiles of a version by their paths, as Delta's job gives them."""
    collected = snapshot.snapshot.allFiles().collectAsList()
    return by_path(actions.to_json(snapshot.spark, collected))


def by_path(adds: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By path, without empty tags, which Spark reads as none."""
    return {add["path"]: {k: v for k, v in add.items() if (k, v) != ("tags", {})} for add in adds}


def is_known(snapshot: TableSnapshot) -> bool:
    """Whether the newest version is known without a job; what is known must be what Delta says."""
    known = snapshot.listed_files()
    if known is None:
        return False
    assert known.adds is not None
    assert by_path(known.adds) == files_of(snapshot)
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


@pytest.mark.minutes
@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="copy", marks=pytest.mark.full_matrix),
        pytest.param(VECTORS, id="vectors"),
    ],
)
def test_what_is_known_after_each_commit_is_what_delta_says(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str]
) -> None:
    path = str(tmp_path / "a b%20ü")
    table = followed(spark, path, properties=properties)
    for name, commit in COMMITS.items():
        spark.sql(commit.format(t=f"delta.`{path}`"))
        # RESTORE writes no checksum; the commit after it is read together with its own.
        assert is_known(table.snapshot()) == (name != "restore"), name


@pytest.mark.minutes
def test_several_commits_are_read_at_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path, partition_by=["v"])
    for commit in ("append", "delete", "update", "compaction", "restore", "delete"):
        spark.sql(COMMITS[commit].format(t=f"delta.`{path}`"))
    assert is_known(table.snapshot())


@pytest.mark.minutes
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


@pytest.mark.minutes
def test_a_recreated_table_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.minutes
def test_a_backup_of_an_earlier_version_that_diverged_is_recognized(
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


@pytest.mark.minutes
@pytest.mark.parametrize("commits_since", [0, 1])
def test_a_replaced_commit_is_not_trusted_by_its_checksum(
    spark: SparkSession, tmp_path: Path, commits_since: int
) -> None:
    path = tmp_path / "table"
    log = path / "_delta_log"
    table = followed(spark, str(path))
    append = "INSERT INTO delta.`{path}` VALUES ({k}, 9)"
    spark.sql(append.format(path=path, k=50))
    assert is_known(table.snapshot())
    checksum = (log / f"{1:020}.crc").read_bytes()
    for name in (f"{1:020}.json", f"{1:020}.crc", f".{1:020}.crc.crc", f".{1:020}.json.crc"):
        (log / name).unlink(missing_ok=True)
    # In another process, which writes a file of as many bytes.
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    spark.sql(append.format(path=copy, k=51))
    if commits_since:
        spark.sql(append.format(path=copy, k=52))
    shutil.copytree(copy, path, dirs_exist_ok=True)
    (log / f"{1:020}.crc").write_bytes(checksum)
    (log / f".{1:020}.crc.crc").unlink(missing_ok=True)
    snapshot = Table(spark, str(path)).snapshot()
    assert snapshot.version == 1 + commits_since
    assert not is_known(snapshot)
    assert set(snapshot.file_list().paths) == set(files_of(snapshot))


def lose_the_commit(log: Path) -> None:
    (log / f"{1:020}.json").unlink()


def lose_the_known_commit(log: Path) -> None:
    (log / f"{0:020}.json").unlink()


def say_other_bytes(log: Path) -> None:
    commit = log / f"{1:020}.json"
    commit.write_text(commit.read_text().replace('"size":', '"size":1'))


def say_another_commit(log: Path) -> None:
    commit = log / f"{2:020}.json"
    commit.write_text(commit.read_text().replace('"txnId":"', '"txnId":"1'))


def break_the_commit(log: Path) -> None:
    commit = log / f"{1:020}.json"
    commit.write_text(commit.read_text()[:-20])


def write_a_path_without_scheme(log: Path) -> None:
    commit = log / f"{2:020}.json"
    commit.write_text(commit.read_text().replace('"path":"', f'"path":"{log.parent}/'))


@pytest.mark.minutes
@pytest.mark.parametrize(
    "damage",
    [
        write_a_path_without_scheme,
        lose_the_commit,
        lose_the_known_commit,
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


@pytest.mark.minutes
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


@pytest.mark.minutes
def test_what_the_jvm_lets_go_is_asked_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    assert is_known(TableSnapshot(spark.newSession(), *of_jvm(table.snapshot())))
    spark.sparkContext._jsc.sc().env().hadoopJobMetadata().clear()
    spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    assert not is_known(table.snapshot())
    assert set(table.snapshot().file_list().paths) == set(files_of(table.snapshot()))
    assert is_known(table.snapshot())


def of_jvm(snapshot: TableSnapshot) -> tuple[Any, Any]:
    """Delta's log and snapshot."""
    return snapshot.log, snapshot.snapshot


def test_a_version_that_is_asked_for_twice_is_listed_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(8)], "k INT, v INT", files=4)
    snapshot = Table(spark, path).snapshot()
    assert len(snapshot.file_list()) == 4
    assert jobs_of(spark, "listed before", snapshot.file_list) == 0
    assert len(snapshot.listed_files() or []) == 4


@pytest.mark.minutes
def test_more_files_than_are_read_as_text_are_known_without_a_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path)
    spark.sql(COMMITS["append"].format(t=f"delta.`{path}`"))
    monkeypatch.setattr(actions, "FEW", 0)
    snapshot = table.snapshot()
    assert jobs_of(spark, "many files", snapshot.listed_files) == 0
    assert set((snapshot.listed_files() or snapshot.file_list()).paths) == set(files_of(snapshot))


def test_reads_leave_files_out_by_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = followed(spark, str(tmp_path / "table"))
    rows = table.snapshot().read_whole().where("k = 5")
    assert [row.k for row in rows.collect()] == [5]
    scanned = rows._jdf.queryExecution().executedPlan().collectLeaves().head()
    assert scanned.metrics().apply("numFiles").value() == 1


@pytest.mark.minutes
def test_threads_that_ask_for_several_versions_get_each_what_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    table = followed(spark, path, properties=VECTORS)
    snapshots = [table.snapshot()]
    for commit in ("append", "delete", "update", "compaction", "append"):
        spark.sql(COMMITS[commit].format(t=f"delta.`{path}`"))
        snapshots.append(table.snapshot())
    wanted = [files_of(snapshot) for snapshot in snapshots]

    def asked(number: int) -> None:
        place = number * 5 % 6
        old = snapshots[place]
        new = TableSnapshot(spark, old.log, old.snapshot)
        assert by_path(new.file_list().adds or []) == wanted[place]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(asked, range(24)))


@pytest.mark.minutes
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


@pytest.mark.minutes
@pytest.mark.parametrize("is_followed", [True, False])
def test_partitions_are_chosen_among_known_files(
    spark: SparkSession, tmp_path: Path, is_followed: bool
) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k % 4) for k in range(8)]
    write_table(spark, path, rows, "k INT, p INT", partition_by=["p"])
    table = Table(spark, path)
    source = frame(spark, [(1, 1), (9, 1)], "k INT, p INT")
    if is_followed:
        table.snapshot().file_list()

    def merge() -> None:
        statement = table.merge(source, on="t.k = s.k AND t.p = 1").when_matched_delete()
        metrics = statement.when_not_matched_insert_all().execute().metrics
        assert metrics["numTargetFilesAfterSkipping"] == 1

    for _ in range(2):  # (1, 1) and (9, 1) are deleted and inserted in turn
        merge()
        assert is_known(table.snapshot()) == is_followed
    assert sorted(map(tuple, table.read().collect())) == sorted(rows)
