"""What spares a merge its jobs: files that the checksum lists, sources whose files are known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import Table, errors
from deltaweave.delta.jvm.sessions import alongside
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.scan import with_files_chosen
from tests.builders import frame, write_table
from tests.support.spark_jobs import jobs_of

SCHEMA = "k INT, v INT"
VECTORS = {"delta.enableDeletionVectors": "true"}


def checksum_of(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020}.crc"


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    """Keys 0 to 7 in four files of two, each with a value of ten times the key."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, k * 10) for k in range(8)], SCHEMA, files=4)
    return path


def test_files_of_the_checksum_are_listed_without_a_job(spark: SparkSession, path: str) -> None:
    snapshot = Table(spark, path).snapshot()
    listed: list[FileList] = []

    def list_files() -> None:
        listed.append(snapshot.file_list())
        assert (len(listed[0].paths), listed[0].num_records) == (4, 8)

    assert jobs_of(spark, "listing", list_files) == 0
    paths = set(listed[0].paths)
    assert len(paths) == 4
    assert paths == {row.path for row in snapshot.files.collect()}


@pytest.mark.minutes
@pytest.mark.parametrize("spoilt", ["a file less", "no list", "no checksum"])
def test_a_checksum_that_does_not_list_all_files_is_not_believed(
    spark: SparkSession, path: str, spoilt: str
) -> None:
    checksum = checksum_of(path, 0)
    content = json.loads(checksum.read_text())
    assert len(content["allFiles"]) == 4
    if spoilt == "a file less":
        content["allFiles"].pop()
    else:
        del content["allFiles"]
    checksum.with_name(f".{checksum.name}.crc").unlink(missing_ok=True)  # Hadoop's sum of it
    checksum.write_text(json.dumps(content))
    if spoilt == "no checksum":
        checksum.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    source = frame(spark, [(k, -k) for k in range(8)], SCHEMA)
    table = Table(spark, path)
    table.merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert {tuple(row) for row in table.read().collect()} == {(k, -k) for k in range(8)}


SOURCES = {
    "a table": "SELECT * FROM {other}",
    "a filtered one": "SELECT * FROM {other} WHERE k > 2",
    "one part of it": "SELECT k, v FROM {other} WHERE p = 1",
    "renamed columns": "SELECT a AS k, b AS v FROM (SELECT k AS a, v AS b FROM {other})",
    "rows of a version": "SELECT * FROM {other} VERSION AS OF 0",
    "its own rows": "SELECT k + 4 AS k, v FROM {target}",
}


def _sources_and_layouts() -> Iterator[Any]:
    """Each source on both layouts; in `make test`, on one of them by turns."""
    for place, (source, query) in enumerate(SOURCES.items()):
        for vectors in (False, True):
            marks = [] if place % 2 == vectors else [pytest.mark.full_matrix]
            layout = "vectors" if vectors else "copy_on_write"
            yield pytest.param(query, vectors, id=f"{source}-{layout}", marks=marks)


@pytest.mark.minutes
@pytest.mark.parametrize(("query", "vectors"), list(_sources_and_layouts()))
def test_tables_as_sources_are_merged_as_built_in_merge_does(
    spark: SparkSession, tmp_path: Path, query: str, vectors: bool
) -> None:
    other = str(tmp_path / "other")
    properties = VECTORS if vectors else {}
    rows = [(k, k, k % 2) for k in range(2, 8)]
    write_table(
        spark,
        other,
        rows,
        "k INT, v INT, p INT",
        partition_by=["p"],
        properties=properties,
        setup=["DELETE FROM {target} WHERE k = 5"],
    )
    paths = [str(tmp_path / name) for name in ("ours", "theirs")]
    target = [(k, k * 10) for k in range(5)]
    write_table(spark, paths[0], target, SCHEMA, files=2, properties=properties)
    shutil.copytree(paths[0], paths[1])
    statements = [
        f"MERGE INTO delta.`{path}` t "
        f"USING ({query.format(other=f'delta.`{other}`', target=f'delta.`{path}`')}) s "
        "ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
        for path in paths
    ]
    result = deltaweave.merge(spark, statements[0])
    spark.sql(statements[1])
    ours, theirs = (spark.read.format("delta").load(path).collect() for path in paths)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))
    assert result.source_materialization == "NOT_MATERIALIZED_AUTO"


@pytest.mark.minutes
def test_the_changes_of_a_table_are_a_source(spark: SparkSession, tmp_path: Path) -> None:
    path, other = str(tmp_path / "target"), str(tmp_path / "other")
    feed = {"delta.enableChangeDataFeed": "true"}
    write_table(spark, other, [(k, -k) for k in range(2, 8)], SCHEMA, properties=feed)
    write_table(spark, path, [(k, k) for k in range(4)], SCHEMA, files=2)
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t "
        f"USING (SELECT k, v FROM table_changes('delta.`{other}`', 0)) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    )
    rows = {tuple(row) for row in Table(spark, path).read().collect()}
    assert rows == {(0, 0), (1, 1), *((k, -k) for k in range(2, 8))}


def test_a_table_as_source_is_listed_without_a_job(spark: SparkSession, path: str) -> None:
    rows = spark.read.format("delta").load(path).select("v", "k")
    log = Table(spark, path).snapshot().log
    other = f"{path} of others"
    spark.range(1).write.format("delta").save(other)
    target = Table(spark, other).snapshot().log
    chosen = []

    def choose() -> None:
        chosen.append(with_files_chosen(rows, target)[0])

    assert jobs_of(spark, "choosing", choose) == 0
    assert file_index_of(chosen[0]) == "InMemoryFileIndex"
    assert chosen[0].columns == ["v", "k"]
    assert {tuple(row) for row in chosen[0].collect()} == {(k * 10, k) for k in range(8)}
    # Delta has to see what a merge reads of its own target.
    index = file_index_of(with_files_chosen(rows, log)[0])
    assert index not in ("InMemoryFileIndex", "TahoeBatchFileIndex")


def file_index_of(rows: DataFrame) -> str:
    """The class that lists the files of a plan's one relation."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    return str(leaves.head().relation().location().getClass().getSimpleName())


def test_work_alongside_is_of_the_same_job_group(spark: SparkSession) -> None:
    def both() -> None:
        with alongside(spark, lambda: spark.range(10).count()) as counting:
            assert spark.range(5).count() == 5
            assert counting.result() == 10

    assert jobs_of(spark, "both", both) >= 2


def test_work_alongside_has_ended_when_its_block_fails(spark: SparkSession) -> None:
    done = []

    def work() -> None:
        done.append(spark.range(1000).count())

    with pytest.raises(ZeroDivisionError), alongside(spark, work):
        raise ZeroDivisionError
    assert done == [1000]


def test_an_error_alongside_is_raised_where_its_result_is_asked_for(spark: SparkSession) -> None:
    def fail() -> int:
        raise errors.SourceError("lost.", table="t")

    with alongside(spark, fail) as failing, pytest.raises(errors.SourceError, match="lost"):
        failing.result()


def test_vectors_that_cannot_be_written_fail_the_merge_and_leave_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, k) for k in range(4)], SCHEMA, properties=VECTORS)

    def fail(*_: object) -> None:
        raise errors.MergeFailedError("no space is left.", table=path)

    for name in ("mark_rows", "mark_on_driver"):
        monkeypatch.setattr(f"deltaweave.engine.strategies.deletion_vectors.{name}", fail)
    table = Table(spark, path)
    merge = table.merge(frame(spark, [(1, 10), (9, 90)], SCHEMA), on="t.k = s.k")
    with pytest.raises(errors.MergeFailedError, match="no space is left"):
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert table.version() == 0
    assert {tuple(row) for row in table.read().collect()} == {(k, k) for k in range(4)}
