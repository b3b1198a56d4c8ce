"""Sources that are small Delta tables: which of them pyarrow reads, and what it reads."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table, errors
from deltaweave.engine import limits
from deltaweave.engine.merge_run import ON_DRIVER
from deltaweave.engine.source import collected
from tests.builders import Rows, frame, write_table
from tests.support.on_driver import rows_of
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

pytestmark = pytest.mark.usefixtures("switched_on")

SCHEMA = "k INT, v INT"
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
VECTORS = {"delta.enableDeletionVectors": "true"}
BY_NAME = {"delta.columnMapping.mode": "name"}
BY_ID = {"delta.columnMapping.mode": "id"}
VIEW = "CREATE OR REPLACE TEMP VIEW of_other AS SELECT * FROM {other}"
# The checksum of a commit that changes the schema lists no files.
LATER = "INSERT INTO {other} VALUES (3, 33)"
WIDENING = {"delta.enableTypeWidening": "true"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What pyarrow read of each source; None where that was left to Spark."""
    tables: list[Any] = []
    rows_of_table = collected.rows_of_table

    def spy(*arguments: Any) -> Any:
        tables.append(rows_of_table(*arguments))
        return tables[-1]

    monkeypatch.setattr(collected, "rows_of_table", spy)
    return tables


@dataclass(frozen=True)
class Case:
    """A merge of the rows of a table.

    Attributes:
        is_read: Whether pyarrow reads the source.
        clauses: The WHEN clauses.
        on: The condition.
        source: A query of the source, which is called `{other}` there.
        schema: The columns of the source.
        ddl: The same, where that says more.
        rows: Its rows.
        properties: Its properties.
        partition_by: Its partition columns.
        setup: Statements that change the source.
        target: The columns of the target, if they are others.
        settings: Settings of the session.
    """

    is_read: bool = True
    clauses: str = UPSERT
    on: str = "t.k = s.k"
    source: str = "SELECT * FROM {other}"
    schema: str = SCHEMA
    ddl: str | None = None
    rows: Rows = ((1, 11), (2, 12), (None, 13), (9, None))
    properties: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    target: str = SCHEMA
    settings: dict[str, str] = field(default_factory=dict)


OF_THREE = ((1, 11, 0), (2, 12, 1), (9, 19, 0))
TIMES = "k INT, at TIMESTAMP, plain TIMESTAMP_NTZ, day DATE"
CASES = {
    "an upsert": Case(),
    "deletes": Case(clauses="WHEN MATCHED THEN DELETE"),
    "inserts": Case(clauses="WHEN NOT MATCHED THEN INSERT *"),
    "some columns": Case(clauses="WHEN NOT MATCHED THEN INSERT (v, k) VALUES (s.k, s.v)"),
    "columns in another order": Case(source="SELECT v, k FROM {other}"),
    "an update that reads the target": Case(
        clauses="WHEN MATCHED AND t.v > 0 THEN UPDATE SET v = t.v + s.v "
        "WHEN NOT MATCHED THEN INSERT *"
    ),
    "an update that keeps columns": Case(
        clauses="WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    ),
    "null-safe keys": Case(on="t.k <=> s.k"),
    "the second of two clauses": Case(
        clauses="WHEN MATCHED AND t.v > 20 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v"
    ),
    "a table without rows": Case(rows=()),
    "columns by name": Case(properties=BY_NAME),
    "a column that was renamed": Case(
        schema="k INT, w INT",
        properties=BY_NAME,
        setup=("ALTER TABLE {other} RENAME COLUMN w TO v", LATER),
    ),
    "a column that its files lack": Case(
        schema="k INT", rows=((1,), (9,)), setup=("ALTER TABLE {other} ADD COLUMN v INT", LATER)
    ),
    "a version": Case(
        source="SELECT * FROM {other} VERSION AS OF 0", setup=("INSERT INTO {other} VALUES (3, 4)",)
    ),
    "a name with a dot beside a struct": Case(
        schema="k INT, `a.b` INT, a STRUCT<b: INT>",
        rows=((1, 11, (5,)), (9, 19, (6,))),
        clauses="WHEN MATCHED THEN UPDATE SET v = s.`a.b`",
    ),
    "two files": Case(setup=(LATER,)),
    "other columns than those of its partitions": Case(
        schema="k INT, v INT, p INT", rows=OF_THREE, partition_by=("p",)
    ),
    "times": Case(
        schema=TIMES,
        rows=(),
        target=TIMES,
        setup=(
            "INSERT INTO {other} VALUES "
            "(1, '0001-01-03 00:00:00', '0001-01-01 00:00:00', '0001-01-01'), "
            "(2, '2024-03-10 07:30:00', '2024-03-10 02:30:00.123456', '9999-12-31'), "
            "(9, '1582-10-10 12:00:00.000001', '9999-12-31 23:59:59.999999', '1582-10-10')",
        ),
        settings={"spark.sql.session.timeZone": "America/New_York"},
    ),
    # What Spark must evaluate:
    # A view by SQL casts each of its columns, to the type that it has.
    "a view": Case(False, setup=(VIEW,), source="SELECT * FROM of_other"),
    "a view that computes": Case(
        False,
        setup=("CREATE OR REPLACE TEMP VIEW of_other AS SELECT k, v + 1 AS v FROM {other}",),
        source="SELECT * FROM of_other WHERE v > 12",
    ),
    "a computed key": Case(False, on="t.k = s.k + 1"),
    "a key that is cast": Case(False, schema="k TINYINT, v INT"),
    "a value that is cast": Case(False, schema="k INT, v SMALLINT"),
    "a computed value": Case(False, clauses="WHEN MATCHED THEN UPDATE SET v = s.v + 1"),
    "a constant that looks like a column": Case(
        False,
        schema="k STRING, v STRING",
        rows=(("1", "11"),),
        target="k STRING, v STRING",
        clauses="WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, 'v#1')",
    ),
    "a condition": Case(False, clauses=f"WHEN MATCHED AND s.v > 11 THEN DELETE {UPSERT}"),
    "a condition of inserts": Case(False, clauses="WHEN NOT MATCHED AND s.v > 0 THEN INSERT *"),
    "a column by another name": Case(False, source="SELECT k, v AS v FROM {other}"),
    "some rows": Case(False, source="SELECT * FROM {other} WHERE v > 11"),
    # What Spark must read:
    "a partition column": Case(
        False, schema="v INT, k INT", rows=((11, 1), (19, 9)), partition_by=("k",)
    ),
    "marked rows": Case(False, properties=VECTORS, setup=("DELETE FROM {other} WHERE k = 2",)),
    "columns by id": Case(False, properties=BY_ID),
    "columns by ID": Case(False, properties={"delta.columnMapping.mode": "ID"}),
    "a column that was widened": Case(
        False,
        schema="k INT, v SMALLINT",
        properties=WIDENING,
        setup=("ALTER TABLE {other} ALTER COLUMN v TYPE INT", LATER),
    ),
    "texts of limited length": Case(
        False, schema="k INT, v STRING",
        ddl="k INT, v VARCHAR(3)", rows=(), target="k INT, v STRING",
        setup=("INSERT INTO {other} VALUES (1, 'a'), (9, 'b')",),
    ),
    "structs": Case(
        False, schema="k INT, v STRUCT<x: INT>", rows=((1, (1,)),), target="k INT, v STRUCT<x: INT>"
    ),
    "days of the old calendar": Case(
        False,
        schema="k INT, v DATE",
        rows=(),
        target="k INT, v DATE",
        setup=(
            "SET spark.sql.parquet.datetimeRebaseModeInWrite = LEGACY",
            "INSERT INTO {other} VALUES (1, '1500-01-01')",
            "SET spark.sql.parquet.datetimeRebaseModeInWrite = CORRECTED",
        ),
    ),
    "times that Spark may shift": Case(
        False,
        schema="k INT, v TIMESTAMP",
        rows=(),
        target="k INT, v TIMESTAMP",
        setup=("INSERT INTO {other} VALUES (1, '2024-03-10 07:30:00')",),
        settings={"spark.sql.parquet.int96TimestampConversion": "true"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target_of(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A target with these columns, which is written once and copied."""

    @functools.cache
    def written(schema: str) -> Path:
        path = tmp_path_factory.mktemp("written") / "target"
        rows = [(1, 10), (2, 20), (3, 30)] if schema == SCHEMA else []
        write_table(spark, str(path), rows, schema)
        return path

    return written


@pytest.mark.parametrize("name", CASES)
def test_which_tables_are_read_and_that_the_merge_is_that_of_built_in(
    spark: SparkSession,
    tmp_path: Path,
    target_of: Callable[[str], Path],
    read: list[Any],
    on_driver: list[Any],
    name: str,
) -> None:
    case, other = CASES[name], str(tmp_path / "other")
    write_table(
        spark,
        other,
        case.rows,
        case.schema,
        ddl=case.ddl,
        partition_by=case.partition_by,
        properties=case.properties,
        setup=[each.replace("{other}", "{target}") for each in case.setup],
    )
    paths = [str(tmp_path / each) for each in ("ours", "theirs")]
    for path in paths:
        shutil.copytree(target_of(case.target), path)
    query = case.source.format(other=f"delta.`{other}`")
    ours, theirs = (
        f"MERGE INTO delta.`{path}` t USING ({query}) s ON {case.on} {case.clauses}"
        for path in paths
    )
    with configured(spark, case.settings):
        deltaweave.merge(spark, ours)
        spark.sql(theirs)
        found, expected = (rows_of(Table(spark, path)) for path in paths)
    assert found == expected
    assert any(each is not None for each in read) == case.is_read
    assert len(on_driver) == 1


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("MAX_LOCAL_ESTIMATED_BYTES", 100),
        ("MAX_LOCAL_ROWS", 3),
        ("MAX_LOCAL_BYTES", 20),  # of one file 16
    ],
)
@pytest.mark.parametrize("statistics", [True, pytest.param(False, marks=pytest.mark.full_matrix)])
def test_a_table_that_is_too_big_is_not_read(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: list[Any],
    limit: str,
    most: int,
    statistics: bool,
) -> None:
    path, other = str(tmp_path / "target"), str(tmp_path / "other")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    with configured(spark, {"spark.databricks.delta.stats.collect": str(statistics).lower()}):
        write_table(spark, other, [(k, 1) for k in (2, 3, 4, 5)], SCHEMA, files=2)
    monkeypatch.setattr(limits, limit, most)
    deltaweave.merge(
        spark, f"MERGE INTO delta.`{path}` t USING delta.`{other}` s ON t.k = s.k {UPSERT}"
    )
    assert read in ([], [None])  # the driver may not even have tried
    assert rows_of(Table(spark, path)) == [(1, 10), *[(k, 1) for k in (2, 3, 4, 5)]]


@pytest.mark.minutes
def test_spark_reads_what_arrow_fails_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Any]
) -> None:
    path, other = str(tmp_path / "target"), str(tmp_path / "other")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    write_table(spark, other, [(2, 21), (3, 31)], SCHEMA)

    def fails(*arguments: Any) -> Any:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(collected, "collected_rows", fails)
    deltaweave.merge(
        spark, f"MERGE INTO delta.`{path}` t USING delta.`{other}` s ON t.k = s.k {UPSERT}"
    )
    assert read == [None]
    assert rows_of(Table(spark, path)) == [(1, 10), (2, 21), (3, 31)]


NOT_CHECKED = {"spark.databricks.delta.checkLatestSchemaOnRead": "false"}


@pytest.mark.minutes
@pytest.mark.parametrize("renamed", [True, False])
def test_columns_are_those_that_the_statement_knows(
    spark: SparkSession, tmp_path: Path, read: list[Any], renamed: bool
) -> None:
    """A DataFrame that was read before the schema changed, where Delta is not to look."""
    paths = [str(tmp_path / name) for name in ("ours", "theirs")]
    other = str(tmp_path / "other")
    for path in paths:
        write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    write_table(spark, other, [(2, 21), (3, 31)], SCHEMA, properties=BY_NAME)
    rows = spark.read.format("delta").load(other)
    if renamed:
        for change in ("RENAME COLUMN v TO w", "ADD COLUMN v INT"):
            spark.sql(f"ALTER TABLE delta.`{other}` {change}")
    else:
        spark.sql(f"ALTER TABLE delta.`{other}` RENAME COLUMN v TO w")
    spark.sql(f"DELETE FROM delta.`{other}` WHERE k = 7")
    frame(spark, [(4, 41)], "k INT, w INT").write.format("delta").mode("append").save(other)
    with configured(spark, NOT_CHECKED):
        merge = Table(spark, paths[0]).merge(rows, on="t.k = s.k")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        theirs = DeltaTable.forPath(spark, paths[1]).alias("t").merge(rows.alias("s"), "t.k = s.k")
        theirs.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert rows_of(Table(spark, paths[0])) == rows_of(Table(spark, paths[1]))
    assert read == [None]


def leave_names(path: Path) -> None:
    """Give the columns of a table without column mapping names for files."""
    log = path / "_delta_log"
    commit = log / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            for column in schema["fields"]:
                column["metadata"] = {"delta.columnMapping.physicalName": f"col-{column['name']}"}
            line["metaData"]["schemaString"] = json.dumps(schema)
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    for checksum in log.glob(".*.crc"):
        checksum.unlink()


@pytest.mark.minutes
@pytest.mark.parametrize("which", ["target", "other"])
def test_names_for_files_that_a_table_does_not_use_are_not_used(
    spark: SparkSession, tmp_path: Path, read: list[Any], on_driver: list[Any], which: str
) -> None:
    for name, rows in (("target", [(1, 10), (2, 20)]), ("other", [(2, 21), (3, 31)])):
        write_table(spark, str(tmp_path / name), rows, SCHEMA)
    leave_names(tmp_path / which)
    # A commit with a checksum, which lists the files.
    spark.sql(f"INSERT INTO delta.`{tmp_path / which}` VALUES (5, 50)")
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{tmp_path / 'target'}` t USING delta.`{tmp_path / 'other'}` s "
        f"ON t.k = s.k {UPSERT}",
    )
    merged = [(1, 10), (2, 21), (3, 31), (5, 50)]
    assert rows_of(Table(spark, str(tmp_path / "target"))) == merged
    assert not any(each is not None for each in read)
    assert bool(on_driver) == (which == "other")


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("is_cached", "materialized"), [(False, "true"), (True, "true"), (True, "false")]
)
def test_a_view_of_a_table_is_read_from_its_files_unless_it_is_cached(
    spark: SparkSession, tmp_path: Path, read: list[Any], is_cached: bool, materialized: str
) -> None:
    paths, other = [str(tmp_path / name) for name in ("ours", "theirs")], str(tmp_path / "other")
    for path in paths:
        write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    write_table(spark, other, [(2, 21), (3, 31)], SCHEMA)
    spark.read.format("delta").load(other).createOrReplaceTempView("of_other")
    if is_cached:
        spark.sql("CACHE TABLE of_other")
        # By another writer, so that Spark does not drop what it has cached.
        rows = pa.table({"k": pa.array([4], pa.int32()), "v": pa.array([41], pa.int32())})
        deltalake.write_deltalake(other, rows, mode="append")
    ours, theirs = (
        f"MERGE INTO delta.`{path}` t USING of_other s ON t.k = s.k {UPSERT}" for path in paths
    )
    with configured(spark, {"spark.databricks.delta.merge.materializeCachedSource": materialized}):
        result = deltaweave.merge(spark, ours)
        spark.sql(theirs)
    found, expected = (rows_of(Table(spark, path)) for path in paths)
    spark.sql("UNCACHE TABLE IF EXISTS of_other")
    assert found == expected
    assert (result.source_materialization == "NOT_MATERIALIZED_AUTO") != is_cached
    assert [each is not None for each in read] == ([] if is_cached else [True])


# Queries of views, and whether what they read is pinned to files.
OF_VIEWS = {
    "SELECT * FROM {other}": True,
    "SELECT k, v + 1 AS v FROM {other}": True,
    "SELECT * FROM (SELECT k AS k, v FROM of_others)": True,
    "SELECT k, (SELECT max(v) FROM {other}) AS v FROM {other}": False,
    "SELECT * FROM {other} WHERE v > 0": False,
    "SELECT DISTINCT * FROM {other}": False,
    "SELECT * FROM {other} UNION ALL SELECT * FROM {other} WHERE false": False,
    "SELECT k, CAST(v + rand() AS INT) AS v FROM {other}": False,
    "SELECT k + 4 AS k, v FROM {target}": False,
}


@pytest.fixture(scope="module")
def target_and_other(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A target, which is copied, and another table, which is read alone."""
    folder = tmp_path_factory.mktemp("of_views")
    target, other = folder / "target", folder / "other"
    write_table(spark, str(target), [(1, 10), (2, 20)], SCHEMA, files=2)
    write_table(spark, str(other), [(2, 21), (3, 31)], SCHEMA)
    return target, other


@pytest.mark.minutes
@pytest.mark.parametrize("query", OF_VIEWS)
def test_a_view_is_materialized_unless_its_files_are_known(
    spark: SparkSession, tmp_path: Path, target_and_other: tuple[Path, Path], query: str
) -> None:
    paths = [str(tmp_path / name) for name in ("ours", "theirs")]
    target, other = target_and_other
    for path in paths:
        shutil.copytree(target, path)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW of_others AS SELECT * FROM delta.`{other}`")
    results = []
    for path in paths:
        text = query.format(other=f"delta.`{other}`", target=f"delta.`{path}`")
        spark.sql(f"CREATE OR REPLACE TEMP VIEW of_other AS {text}")
        statement = f"MERGE INTO delta.`{path}` t USING of_other s ON t.k = s.k {UPSERT}"
        if path == paths[0]:
            with configured(spark, {ON_DRIVER: "false"}):
                results.append(deltaweave.merge(spark, statement).source_materialization)
        else:
            spark.sql(statement)
    assert rows_of(Table(spark, paths[0])) == rows_of(Table(spark, paths[1]))
    assert (results == ["NOT_MATERIALIZED_AUTO"]) == OF_VIEWS[query]


def _without(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.minutes
@pytest.mark.parametrize("spoiled", [_without, _cut], ids=["missing", "cut"])
def test_a_file_that_cannot_be_read_fails_the_merge_with_sparks_error(
    spark: SparkSession, tmp_path: Path, read: list[Any], spoiled: Callable[[Path], None]
) -> None:
    path, other = str(tmp_path / "target"), str(tmp_path / "other")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    write_table(spark, other, [(2, 21), (3, 31)], SCHEMA)
    for each in Path(other).glob("*.parquet"):
        spoiled(each)
    with pytest.raises(errors.SourceError, match="target"):
        deltaweave.merge(
            spark, f"MERGE INTO delta.`{path}` t USING delta.`{other}` s ON t.k = s.k {UPSERT}"
        )
    assert not any(each is not None for each in read)
    assert rows_of(Table(spark, path)) == [(1, 10), (2, 20)]


@pytest.mark.minutes
def test_files_of_another_table_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, read: list[Any]
) -> None:
    """A shallow clone names files by absolute paths, which may be anywhere."""
    path, other, clone = (str(tmp_path / name) for name in ("target", "other", "clone"))
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    write_table(spark, other, [(2, 21), (3, 31)], SCHEMA)
    spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{other}`")
    deltaweave.merge(
        spark, f"MERGE INTO delta.`{path}` t USING delta.`{clone}` s ON t.k = s.k {UPSERT}"
    )
    assert not any(each is not None for each in read)
    assert rows_of(Table(spark, path)) == [(1, 10), (2, 21), (3, 31)]


@pytest.mark.minutes
def test_a_table_whose_rows_are_taken_as_they_are_is_merged_without_a_job(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path, other = str(tmp_path / "a table %20 'x'"), str(tmp_path / "its source #1 %41")
    write_table(spark, path, [(k, 0) for k in range(8)], SCHEMA, files=4)
    write_table(spark, other, [(k, 1) for k in range(6, 10)], SCHEMA, files=2)
    statement = f"MERGE INTO delta.`{path}` t USING delta.`{other}` s ON t.k = s.k {UPSERT}"
    deltaweave.merge(spark, statement)  # Delta reads the state of a table once
    assert jobs_of(spark, "no job", lambda: deltaweave.merge(spark, statement)) == 0
    assert len(on_driver) == 2
    assert rows_of(Table(spark, path)) == [
        *[(k, 0) for k in range(6)],
        *[(k, 1) for k in range(6, 10)],
    ]
