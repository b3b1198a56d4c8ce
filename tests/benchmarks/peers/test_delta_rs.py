from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.data.tables import sql_name
from benchmarks.merge.case import INSERT_ALL, UPSERT, Merges, Statement
from benchmarks.peers import delta_rs
from benchmarks.peers.peer import PeerError
from tests.builders import frame, write_table

SCHEMA = "id INT, state STRING"
DELETE = "WHEN MATCHED AND s.state = 'gone' THEN DELETE"
INSERT_SOME = "WHEN NOT MATCHED AND s.id % 2 = 0 THEN INSERT *"


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> str:
    """A source, as SQL; a backtick and a space have to find the way to delta-rs."""
    path = tmp_path / "the `source"
    rows = frame(spark, [(1, "gone"), (2, "new"), (3, "new"), (4, "new")], SCHEMA)
    rows.write.format("delta").save(str(path))
    return sql_name(path)


def merged(
    spark: SparkSession, tmp_path: Path, *statements: Statement
) -> tuple[list[tuple[object, ...]], list[int]]:
    """The rows after the merges into ids 1 and 2; rows updated, deleted and inserted."""
    target = tmp_path / "target"
    write_table(spark, str(target), [(1, "old"), (2, "old")], SCHEMA)
    done = delta_rs.run_merges(spark, Merges(target, statements), target)
    assert len(done.merge_seconds) == len(statements)
    rows = spark.read.format("delta").load(str(target)).orderBy("id").collect()
    return [tuple(row) for row in rows], list(done.metrics.values())


@pytest.mark.minutes
def test_clauses_do_what_they_do_in_spark(spark: SparkSession, tmp_path: Path, source: str) -> None:
    clauses = (DELETE, *UPSERT[:1], INSERT_SOME)

    rows, changed = merged(spark, tmp_path, Statement(source, "t.id = s.id", clauses))

    assert rows == [(2, "new"), (4, "new")]
    assert changed == [1, 1, 1]


def test_a_source_may_be_a_query_and_a_case_may_have_several_statements(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    statements = (
        Statement(f"(SELECT id, state FROM {source} WHERE id = {number})", "t.id = s.id", UPSERT)
        for number in (2, 3)
    )

    rows, changed = merged(spark, tmp_path, *statements)

    assert rows == [(1, "old"), (2, "new"), (3, "new")]
    assert changed == [1, 0, 1]


@pytest.mark.parametrize(
    "clause", ["WHEN NOT MATCHED BY SOURCE THEN DELETE", "WHEN MATCHED THEN UPDATE SET t.id = s.id"]
)
def test_a_clause_of_another_kind_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, source: str, clause: str
) -> None:
    with pytest.raises(PeerError, match=r"does not give delta-rs this clause: WHEN"):
        merged(spark, tmp_path, Statement(source, "t.id = s.id", (clause,)))


def test_an_error_of_delta_rs_is_one_of_a_peer(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    with pytest.raises(PeerError, match=r"^delta-rs failed: .*nothing"):
        merged(spark, tmp_path, Statement(source, "t.nothing = s.id", (INSERT_ALL,)))
