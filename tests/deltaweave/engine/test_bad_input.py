"""Bad input gives one clear error of ours, and leaves the table as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import Table, errors
from tests.builders import frame, write_table
from tests.support.oracles import all_files, newest_version, rows_as_text

ROWS = [(1, 10), (2, 20)]
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
INSERT = "WHEN NOT MATCHED THEN INSERT *"


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of (1, 10) and (2, 20), which no test of this module may change."""
    path = str(tmp_path_factory.mktemp("bad_input") / "table")
    write_table(spark, path, ROWS, "k INT, v INT")
    frame(spark, [(1, 100), (3, 300)], "k INT, v INT").createOrReplaceTempView("good_source")
    frame(spark, [(1, 100), (1, 101), (2, 200)], "k INT, v INT").createOrReplaceTempView("twice")
    return path


def failure(merge: Callable[[], object], path: str) -> errors.DeltaweaveError:
    """The error of a merge that must leave the table at `path` as it is."""
    version, files = newest_version(path), all_files(path)
    with pytest.raises(errors.DeltaweaveError) as raised:
        merge()
    assert newest_version(path) == version
    assert all_files(path) == files
    return raised.value


def assert_tells(
    error: errors.DeltaweaveError, kind: type[errors.DeltaweaveError], table: str
) -> None:
    """It is of the kind, and says what happened to which table in which operation, and what now."""
    assert type(error) is kind
    assert isinstance(error, errors.Terminal)
    assert (error.table, error.operation) == (table, "MERGE")
    message = str(error)
    assert message.startswith(f"MERGE into {table}")
    assert error.problem.rstrip() in message
    assert errors.NOTHING_COMMITTED in message
    assert error.hint
    assert error.hint in message


STATEMENTS = {
    "unknown_column_in_a_value": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.nonesuch",
    "unknown_column_that_is_set": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET nonesuch = s.v",
    "unknown_column_that_is_inserted": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN NOT MATCHED THEN INSERT (k, nonesuch) VALUES (s.k, s.v)",
    "unknown_column_in_a_clause_condition": "MERGE INTO {target} t USING good_source s "
    "ON t.k = s.k WHEN MATCHED AND s.nonesuch > 1 THEN DELETE",
    "unknown_column_in_on": "MERGE INTO {target} t USING good_source s ON t.k = s.nonesuch "
    + UPSERT,
    "ambiguous_column_in_on": "MERGE INTO {target} t USING good_source s ON k = s.k " + UPSERT,
    "target_column_in_an_insert": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN NOT MATCHED AND t.v > 1 THEN INSERT *",
    "source_column_in_a_by_source_clause": "MERGE INTO {target} t USING good_source s "
    "ON t.k = s.k WHEN NOT MATCHED BY SOURCE AND s.v > 1 THEN DELETE",
    "aggregate_in_a_condition": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED AND max(s.v) > 1 THEN DELETE",
    # No file can hold a row that the clause takes, so none is scanned.
    "condition_without_a_type_that_no_scan_meets": "MERGE INTO {target} t USING good_source s "
    "ON NULL WHEN MATCHED AND t.k IS NULL THEN DELETE",
    "condition_that_is_no_boolean": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED AND t.k THEN DELETE",
    "column_set_twice": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET v = s.v, v = s.k",
    "clause_after_an_unconditional_one": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET * WHEN MATCHED THEN DELETE",
    "type_that_cannot_be_stored": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, DATE'2024-01-01')",
    "text_that_ends_too_soon": "MERGE INTO {target} t USING",
    "text_with_a_wrong_word": "MERGE INTO {target} t USING good_source s ON t.k = s.k "
    "WHEN MATCHED THEN UPDAET SET *",
    "text_without_a_clause": "MERGE INTO {target} t USING good_source s ON t.k = s.k",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_that_does_not_fit(spark: SparkSession, path: str, name: str) -> None:
    target = f"delta.`{path}`"
    text = STATEMENTS[name].format(target=target)
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.StatementError, target)
    assert error.error_class


@pytest.mark.parametrize(
    "text", ["SELECT 1", "DELETE FROM {target}", "DROP TABLE {target}", "not SQL", ""]
)
def test_a_text_that_is_no_merge_is_refused_and_not_run(
    spark: SparkSession, path: str, text: str
) -> None:
    statement = text.format(target=f"delta.`{path}`")
    error = failure(lambda: deltaweave.merge(spark, statement), path)
    assert type(error) is errors.StatementError
    assert error.operation == "MERGE"
    assert error.hint


def test_an_unknown_column_is_named(spark: SparkSession, path: str) -> None:
    text = STATEMENTS["unknown_column_in_a_value"].format(target=f"delta.`{path}`")
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert "nonesuch" in error.problem
    assert "s.v" in error.problem  # what there is


@pytest.mark.parametrize("target", ["delta.`{folder}/none`", "nonesuch", "no_schema.nonesuch"])
def test_a_missing_target(spark: SparkSession, path: str, tmp_path: Path, target: str) -> None:
    target = target.format(folder=tmp_path)
    text = f"MERGE INTO {target} t USING good_source s ON t.k = s.k {UPSERT}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.TableNotFoundError, target)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source(spark: SparkSession, path: str) -> None:
    text = f"MERGE INTO delta.`{path}` t USING nonesuch s ON t.k = s.k {UPSERT}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.TableNotFoundError, f"delta.`{path}`")
    assert "nonesuch" in error.problem


@pytest.mark.parametrize("target", ["delta.`{folder}`", "parquet.`{folder}`", "a_parquet_table"])
def test_a_target_that_is_no_delta_table(
    spark: SparkSession, path: str, tmp_path: Path, target: str
) -> None:
    folder = tmp_path / "parquet"
    frame(spark, ROWS, "k INT, v INT").write.parquet(str(folder))
    if target == "a_parquet_table":
        spark.sql(f"CREATE TABLE a_parquet_table USING parquet LOCATION '{folder}'")
    files = all_files(str(folder))
    target = target.format(folder=folder)
    text = f"MERGE INTO {target} t USING good_source s ON t.k = s.k {UPSERT}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.NotADeltaTableError, target)
    assert all_files(str(folder)) == files


def test_an_ambiguous_match_names_the_keys(spark: SparkSession, path: str) -> None:
    target = f"delta.`{path}`"
    text = f"MERGE INTO {target} t USING twice s ON t.k = s.k {UPSERT}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.AmbiguousMatchError, target)
    assert isinstance(error, errors.AmbiguousMatchError)
    assert error.keys == ({"k": 1, "matches": 2},)
    assert "k=1, matches=2" in str(error)


def test_an_ambiguous_match_names_at_most_ten_keys(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(30)], "k INT, v INT")
    twice = frame(spark, [(k % 30, k) for k in range(60)], "k INT, v INT")
    merge = Table(spark, path).merge(twice, on="t.k = s.k").when_matched_update_all()
    error = failure(merge.execute, path)
    assert isinstance(error, errors.AmbiguousMatchError)
    assert len(error.keys) == 10


@pytest.mark.parametrize("clauses", [UPSERT, INSERT], ids=["upsert", "insert_only"])
def test_a_source_file_that_cannot_be_read(
    spark: SparkSession, path: str, tmp_path: Path, clauses: str
) -> None:
    folder = tmp_path / "landed"
    frame(spark, [(1, 100), (3, 300)], "k INT, v INT").write.parquet(str(folder))
    spark.read.parquet(str(folder)).createOrReplaceTempView("garbage")
    for file in folder.glob("*.parquet"):
        file.write_bytes(b"no parquet" * 50)
    for checksum in folder.glob(".*.crc"):
        checksum.unlink()
    target = f"delta.`{path}`"
    text = f"MERGE INTO {target} t USING garbage s ON t.k = s.k {clauses}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.SourceError, target)
    assert "landed" in error.problem  # which file


FAILING = "(SELECT k, CAST(v / (k - 3) AS INT) AS v FROM good_source)"


def test_a_source_query_that_fails_at_run_time(spark: SparkSession, path: str) -> None:
    target = f"delta.`{path}`"
    text = f"MERGE INTO {target} t USING {FAILING} s ON t.k = s.k {UPSERT}"
    error = failure(lambda: deltaweave.merge(spark, text), path)
    assert_tells(error, errors.SourceError, target)
    assert error.error_class == "DIVIDE_BY_ZERO"


def test_a_source_that_fails_in_an_insert_only_merge_commits_nothing(
    spark: SparkSession, path: str
) -> None:
    # The source is read once, in the write: tasks that had finished leave files of no version.
    text = f"MERGE INTO delta.`{path}` t USING {FAILING} s ON t.k = s.k {INSERT}"
    version, rows = newest_version(path), rows_as_text(Table(spark, path).read().collect())
    with pytest.raises(errors.DeltaweaveError) as raised:
        deltaweave.merge(spark, text)
    assert raised.value.error_class == "DIVIDE_BY_ZERO"
    assert newest_version(path) == version
    assert rows_as_text(Table(spark, path).read().collect()) == rows


@pytest.mark.parametrize("side", ["target", "source"])
def test_a_column_named_like_those_the_engine_adds(
    spark: SparkSession, tmp_path: Path, side: str
) -> None:
    path, taken = str(tmp_path / "table"), "k INT, `__Deltaweave_clause` INT"
    write_table(spark, path, ROWS, taken if side == "target" else "k INT, v INT")
    source = frame(spark, [(1, 100)], taken if side == "source" else "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_delete()
    error = failure(merge.execute, path)
    assert_tells(error, errors.StatementError, path)
    assert "__Deltaweave_clause" in str(error)


def test_a_constraint_that_a_row_breaks(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "checked")
    check = "ALTER TABLE {target} ADD CONSTRAINT small CHECK (v < 99)"
    write_table(spark, path, ROWS, "k INT, v INT", setup=[check])
    source = frame(spark, [(1, 100)], "k INT, v INT")
    version = newest_version(path)
    with pytest.raises(errors.ConstraintViolationError, match=r"small.*v < 99") as raised:
        Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all().execute()
    assert_tells(raised.value, errors.ConstraintViolationError, path)
    assert newest_version(path) == version


def test_a_builder_without_a_clause(spark: SparkSession, path: str) -> None:
    merge = Table(spark, path).merge(spark.table("good_source"), on="t.k = s.k")
    assert_tells(failure(merge.execute, path), errors.StatementError, path)


@pytest.mark.parametrize(
    "bad", [lambda: "t.k = = s.k", lambda: F.col("s.nonesuch") > 1], ids=["text", "column"]
)
def test_a_builder_with_a_bad_condition(
    spark: SparkSession, path: str, bad: Callable[[], str | Column]
) -> None:
    merge = Table(spark, path).merge(spark.table("good_source"), on="t.k = s.k")
    error = failure(lambda: merge.when_matched_delete(condition=bad()).execute(), path)
    assert_tells(error, errors.StatementError, path)


def test_a_table_that_does_not_exist_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises((errors.TableNotFoundError, errors.NotADeltaTableError)) as raised:
        Table(spark, missing).read()
    assert raised.value.table == missing
    assert not Table(spark, missing).exists()


def test_after_a_failure_the_next_merge_works(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, "k INT, v INT")
    twice = frame(spark, [(1, 100), (1, 101)], "k INT, v INT")
    with pytest.raises(errors.AmbiguousMatchError):
        Table(spark, path).merge(twice, on="t.k = s.k").when_matched_update_all().execute()
    result = Table(spark, path).merge(twice, on="t.k = s.k").when_matched_delete().execute()
    assert result.version == 1


@pytest.mark.minutes
@pytest.mark.parametrize("more", [0, 70])
def test_a_view_is_a_target_if_its_columns_are_those_of_the_table(
    spark: SparkSession, tmp_path: Path, more: int
) -> None:
    path = str(tmp_path / "table")
    wide = [f"c{i}" for i in range(more)]
    columns = ", ".join(f"{name} INT" for name in ("k", "v", *wide))
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
    spark.sql(f"INSERT INTO delta.`{path}` (k, v) VALUES (1, 10), (2, 20)")
    for view, names in (("swapped", ["v", "k"]), ("in_order", ["k", "v"])):
        query = f"SELECT {', '.join([*names, *wide])} FROM delta.`{path}`"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {query}")
    source = "(SELECT 1 AS k, 100 AS v) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v"

    error = failure(lambda: deltaweave.merge(spark, f"MERGE INTO swapped t USING {source}"), path)
    assert "renames or reorders" in error.problem
    deltaweave.merge(spark, f"MERGE INTO in_order t USING {source}")
    rows = spark.read.format("delta").load(path).select("k", "v")
    assert rows_as_text(rows) == rows_as_text(frame(spark, [(1, 100), (2, 20)], "k INT, v INT"))

    # Scans leave void columns out.
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN nothing VOID")
    error = failure(lambda: deltaweave.merge(spark, f"MERGE INTO swapped t USING {source}"), path)
    assert "renames or reorders" in error.problem
