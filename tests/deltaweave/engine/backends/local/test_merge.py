"""Merges on the driver: which ones qualify, what they write, and what is left to Spark."""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import GatewayClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave._validation import Verdict
from deltaweave.engine import limits
from deltaweave.engine.backends.local import files as local_files
from deltaweave.engine.backends.local import merge as local_merge
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.builders import Rows, frame, write_table
from tests.support.footers import SPARK_VERSION, rewritten_footer
from tests.support.on_driver import rows_of
from tests.support.oracles import actions, all_files, commit_info, newest_version
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

pytestmark = pytest.mark.usefixtures("switched_on")

SCHEMA = "k INT, v INT"
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
FULL = pytest.mark.full_matrix
LAYOUTS = ["copy_on_write", "vectors"]
# In `make test`, one of the layouts.
ONE_LAYOUT = pytest.mark.parametrize(
    "properties", [pytest.param({}, marks=FULL), VECTORS], ids=LAYOUTS
)


def upsert(table: Table, rows: Rows, schema: str = SCHEMA, on: str = "t.k = s.k") -> MergeResult:
    merge = table.merge(frame(table.spark, rows, schema), on=on)
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
READ_STRUCT = "read the {}, and column 'o' is of type struct<x:int>"

# ON, clauses, settings, and why not.
STATEMENTS: dict[str, tuple[str, str, dict[str, str], str]] = {
    "an upsert": ("t.k = s.k", UPSERT, {}, ""),
    "two keys": ("t.k = s.k AND s.name = t.name", UPSERT, {}, ""),
    "a computed key": ("t.k = s.k + 1", UPSERT, {}, ""),
    "deletes": ("t.k = s.k", "WHEN MATCHED AND s.d > 0 THEN DELETE", {}, ""),
    "inserts": ("t.k = s.k", "WHEN NOT MATCHED AND s.d > 0 THEN INSERT *", {}, ""),
    "automatic": ("t.k = s.k", UPSERT, {ON_DRIVER: "auto"}, ""),
    "off": ("t.k = s.k", UPSERT, {ON_DRIVER: "false"}, f"{ON_DRIVER} is false"),
    "a range": ("t.k = s.k AND t.d < 3", UPSERT, {}, "ON has more than equalities"),
    "a condition of the source": ("t.k = s.k AND s.d < 3", UPSERT, {}, "ON has more"),
    "null-safe": ("t.k <=> s.k", UPSERT, {}, ""),
    "floating": ("t.d = s.d", UPSERT, {}, "column 'd' is of type double"),
    "widened": ("t.k = CAST(s.k AS BIGINT)", UPSERT, {}, ""),
    "as doubles": ("t.k = CAST(s.k AS DOUBLE)", UPSERT, {}, ""),
    "as floats": ("t.k = CAST(s.k AS FLOAT)", UPSERT, {}, ""),
    "nested": ("t.o.x = s.o.x", UPSERT, {}, "'o.x' is not a column"),
    "old values": (
        "t.k = s.k",
        "WHEN MATCHED THEN UPDATE SET d = t.d + s.d",
        {},
        "",
    ),
    "some columns": ("t.k = s.k", "WHEN MATCHED THEN UPDATE SET o = s.o", {}, ""),
    "a condition of both": (
        "t.k = s.k",
        "WHEN MATCHED AND s.d > t.d THEN UPDATE SET name = s.name",
        {},
        "",
    ),
    "a condition of both and a new struct": (
        "t.k = s.k",
        "WHEN MATCHED AND s.d > t.d THEN UPDATE SET *",
        {},
        "",  # the source's query computes it
    ),
    "an old struct": (
        "t.k = s.k",
        "WHEN MATCHED AND t.o.x > 1 THEN DELETE",
        {},
        READ_STRUCT.format("target"),
    ),
    "an old value and a struct": (
        "t.k = s.k",
        "WHEN MATCHED AND t.d > s.o.x THEN DELETE",
        {},
        READ_STRUCT.format("source"),
    ),
    "an old value and the day": (
        "t.k = s.k",
        "WHEN MATCHED AND t.d > 1 THEN UPDATE SET day = current_date()",
        {},
        "",
    ),
    "an old value and the user": (
        "t.k = s.k",
        "WHEN MATCHED AND t.d > 1 THEN UPDATE SET name = current_user()",
        {},
        "",
    ),
    "an old value and a subquery": (
        "t.k = s.k",
        "WHEN MATCHED THEN UPDATE SET d = t.d + (SELECT max(d) FROM qualifying)",
        {},
        "a clause reads the target and one has a subquery",
    ),
    "an old day in another calendar": (
        "t.k = s.k",
        "WHEN MATCHED AND t.day > s.day THEN DELETE",
        {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"},
        "datetimeRebaseModeInRead is LEGACY",
    ),
    "random values": (
        "t.k = s.k",
        "WHEN NOT MATCHED THEN INSERT (k, d) VALUES (s.k, rand())",
        {},
        "clause 1 is not deterministic",
    ),
    "by source": (
        "t.k = s.k",
        f"{UPSERT} WHEN NOT MATCHED BY SOURCE THEN DELETE",
        {},
        "a clause is WHEN NOT MATCHED BY SOURCE",
    ),
    "a source that may change": (
        "t.k = s.k",
        UPSERT,
        {"spark.databricks.delta.merge.materializeSource": "none"},
        "the source may give other rows",
    ),
    "no files by Arrow": (
        "t.k = s.k",
        UPSERT,
        {REWRITE_IN_PLACE: "false"},
        f"{REWRITE_IN_PLACE} is false",
    ),
    "another calendar": (
        "t.day = s.day",
        UPSERT,
        {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY"},
        "datetimeRebaseModeInRead is LEGACY",
    ),
}


SOME = ["an upsert", "automatic", "a range", "old values", "random values"]


@pytest.mark.minutes
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SOME, id="some"),
        pytest.param([name for name in STATEMENTS if name not in SOME], marks=FULL, id="others"),
    ],
)
def test_what_statements_and_settings_qualify(
    spark: SparkSession, tmp_path: Path, names: list[str]
) -> None:
    path = str(tmp_path / "table")
    schema = "k INT, d DOUBLE, name STRING, day DATE, o STRUCT<x: INT>"
    write_table(spark, path, [(1, 1.0, "a", None, (1,))], schema)
    frame(spark, [(1, 2.0, "a", None, (1,))], schema).createOrReplaceTempView("qualifying")
    for name in names:
        on, clauses, settings, why_not = STATEMENTS[name]
        with configured(spark, settings):
            statement = f"MERGE INTO delta.`{path}` t USING qualifying s ON {on} {clauses}"
            plan = deltaweave.explain(spark, statement)
        assert why_not in plan.why_not_on_driver, name
        assert bool(why_not) == bool(plan.why_not_on_driver), (name, plan.why_not_on_driver)
    assert f"on the driver: no, since {plan.why_not_on_driver}" in str(plan)


@pytest.mark.parametrize(
    ("schema", "why_not"),
    [(SCHEMA, ""), (f"{SCHEMA}, x INT", "the merge changes the table's schema")],
)
def test_a_plan_knows_whether_the_schema_evolves(
    spark: SparkSession, tmp_path: Path, schema: str, why_not: str
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 1)], SCHEMA)
    frame(spark, [(1, 2, 3)[: schema.count("INT")]], schema).createOrReplaceTempView("evolving")
    statement = (
        f"MERGE WITH SCHEMA EVOLUTION INTO delta.`{path}` t USING evolving s ON t.k = s.k {UPSERT}"
    )
    assert deltaweave.explain(spark, statement).why_not_on_driver == why_not
    assert newest_version(path) == 0
    assert Table(spark, path).read().columns == ["k", "v"]


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "partitioned by a number that is not whole": (
        {"ddl": "k INT, d DOUBLE, v INT", "partition_by": ["d"]},
        "it is partitioned, and column 'd' is of type double",
    ),
    "row ids": ({"properties": {"delta.enableRowTracking": "true"}}, "tracks its rows"),
    "text of limited length": ({"ddl": "k INT, v INT, w VARCHAR(3)"}, "only Delta's writer checks"),
    "identity": (
        {"ddl": "k INT, v INT, id BIGINT GENERATED ALWAYS AS IDENTITY"},
        "has identity columns",
    ),
    "columns by id": ({"properties": {"delta.columnMapping.mode": "id"}}, "in its files by id"),
}


@pytest.mark.parametrize(
    "name", [name if i == 0 else pytest.param(name, marks=FULL) for i, name in enumerate(TABLES)]
)
def test_what_tables_do_not_qualify(spark: SparkSession, tmp_path: Path, name: str) -> None:
    options, why_not = TABLES[name]
    path = str(tmp_path / "table")
    write_table(spark, path, [], SCHEMA, **{"ddl": SCHEMA, **options})
    frame(spark, [(1, 1)], SCHEMA).createOrReplaceTempView("qualifying")
    clause = "WHEN MATCHED THEN DELETE"
    statement = f"MERGE INTO delta.`{path}` t USING qualifying s ON t.k = s.k {clause}"
    assert why_not in deltaweave.explain(spark, statement).why_not_on_driver


@pytest.mark.minutes
@ONE_LAYOUT
def test_constraints_are_checked_of_new_rows(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    path = str(tmp_path / "table")
    ddl = "k INT NOT NULL, v INT"
    check = "ALTER TABLE {target} ADD CONSTRAINT c CHECK (v > 0)"
    write_table(spark, path, [(1, 10), (2, 20)], ddl, ddl=ddl, properties=properties, setup=[check])
    table, there = Table(spark, path), {1: 10, 2: 20}
    sources: list[tuple[Rows, str | None]] = [
        ([(1, 11), (3, 30)], None),
        ([(1, 0)], "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"),
        ([(1, None)], "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"),  # neither true nor false
        ([(4, -1)], "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"),  # inserted
        ([(None, 5)], "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"),
        ([(2, -7)], None),  # its row is deleted, though it would be inserted if it were not there
    ]
    for source, error in sources:
        merge = table.merge(frame(spark, source, SCHEMA), on="t.k = s.k")
        merge = merge.when_matched_delete(condition="s.v = -7").when_matched_update_all()
        merge = merge.when_not_matched_insert_all()
        on_driver.clear()
        if error is None:
            merge.execute()
            there = {k: v for k, v in (there | dict(source)).items() if v != -7}
        else:
            with pytest.raises(errors.ConstraintViolationError, match=error):
                merge.execute()
        assert bool(on_driver) is (error is None), source
        assert rows_of(table) == sorted(there.items()), source


# Two values of each type, as near to each other as statistics and careless readers confuse.
NEAR = {
    "TINYINT": ("CAST(-128 AS TINYINT)", "CAST(127 AS TINYINT)"),
    "SMALLINT": ("CAST(-32768 AS SMALLINT)", "CAST(-32767 AS SMALLINT)"),
    "INT": ("-2147483648", "2147483647"),
    "BIGINT": ("9007199254740992L", "9007199254740993L"),
    "STRING": ("repeat('x', 31) || '\U0001f600'", "repeat('x', 31) || '\ufb01'"),
    "DATE": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "DECIMAL(38, 0)": (f"{'9' * 37}8", "9" * 38),
    "DECIMAL(38, 10)": ("1234567.0123456788", "1234567.0123456789"),
    "DECIMAL(6, 2)": ("-9999.99", "9999.99"),
    "TIMESTAMP": (
        "TIMESTAMP'0001-01-03 00:00:00.000001Z'",
        "TIMESTAMP'9999-12-30 23:59:59.999999Z'",
    ),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'2024-03-10 02:30:00'",
        "TIMESTAMP_NTZ'2024-03-10 02:30:00.000001'",
    ),
}
VALUES_ALONE = {
    "BINARY": ("X'00FF'", "X''"),
    "BOOLEAN": ("true", "false"),
    "DOUBLE": ("CAST('NaN' AS DOUBLE)", "-0D"),
    "ARRAY<INT>": ("array(1, NULL)", "NULL"),
    "MAP<STRING, INT>": ("map('a', NULL)", "NULL"),
    "STRUCT<x: INT, y: TIMESTAMP>": ("NULL", "named_struct('x', 1, 'y', NULL)"),
}


@pytest.mark.minutes
@ONE_LAYOUT
def test_keys_and_values_of_every_type_at_their_extremes(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], on_driver: list[Any]
) -> None:
    """Rows that differ in one key alone, or have a null key, are told apart."""
    path = str(tmp_path / "table")
    keys, types = [f"k{i}" for i in range(len(NEAR))], [*NEAR, *VALUES_ALONE]
    columns = [*keys, *[f"x{i}" for i in range(len(VALUES_ALONE))]]
    others = [value for value, _ in VALUES_ALONE.values()]
    first = [value for value, _ in NEAR.values()]

    def row(changed: int | None, to: str | None, v: int, others: list[str]) -> str:
        values = [*first, *others]
        if changed is not None:
            values[changed] = to or "NULL"
        typed = zip(values, types, columns, strict=True)
        return ", ".join(f"CAST({e} AS {t}) AS {c}" for e, t, c in typed) + f", {v} AS v"

    neighbours = [row(i, near, 0, others) for i, (_, near) in enumerate(NEAR.values())]
    nulls = [row(i, None, 0, others) for i in range(len(NEAR))]
    target = [row(None, None, 0, others), *neighbours, *nulls]
    union = " UNION ALL ".join(f"SELECT {each}" for each in target)
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        whole = spark.sql(union).coalesce(1)
        whole.write.format("delta").options(**properties).save(path)
        new = [other for _, other in VALUES_ALONE.values()]
        source = [
            row(None, None, 1, new),
            *[row(i, near, 1, new) for i, (_, near) in enumerate(NEAR.values())],
            row(3, None, 2, new),  # a null key matches nothing
        ]
        union = " UNION ALL ".join(f"SELECT {each}" for each in source)
        spark.sql(union).coalesce(1).createOrReplaceTempView("extremes")
        on = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        result = deltaweave.merge(
            spark, f"MERGE INTO delta.`{path}` t USING extremes s ON {on} {UPSERT}"
        )
        assert on_driver
        metrics = result.metrics
        changed = (metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"])
        assert changed == (1 + len(NEAR), 1)
        by_rows = "SELECT to_json(struct(*), map('ignoreNullFields', 'false')) FROM "
        left = f"SELECT * FROM ({' UNION ALL '.join('SELECT ' + each for each in nulls)})"
        expected = sorted(r[0] for r in spark.sql(f"{by_rows}({left} UNION ALL {union})").collect())
        read = Table(spark, path).read()
        read.createOrReplaceTempView("merged")
        assert sorted(r[0] for r in spark.sql(f"{by_rows}merged").collect()) == expected


@pytest.mark.minutes
@pytest.mark.parametrize(
    "clauses",
    [
        "WHEN MATCHED THEN UPDATE SET k = -s.k, at = s.at, price = s.price, name = s.name",
        "WHEN MATCHED THEN UPDATE SET k = -s.k",
        "WHEN MATCHED AND t.at <= s.at AND t.price >= s.price THEN "
        "UPDATE SET k = -t.k, at = t.at, price = t.price, name = concat(t.name)",
    ],
    ids=["new_values", "kept_values", "old_values"],
)
def test_files_of_every_writer_are_read_and_rewritten(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], clauses: str
) -> None:
    path = str(tmp_path / "a table, 50%")

    def rows(*keys: int) -> str:
        return " UNION ALL ".join(
            f"SELECT {k} AS k, TIMESTAMP'2024-01-01 00:00:0{k}.000001Z' AS at, "
            f"CAST({k}.50 AS DECIMAL(10, 2)) AS price, 'n{k}' AS name"
            for k in keys
        )

    for key, kind in enumerate(("INT96", "TIMESTAMP_MICROS"), start=1):
        with configured(spark, {"spark.sql.parquet.outputTimestampType": kind}):
            spark.sql(rows(key)).write.format("delta").mode("append").save(path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    for key, kind in enumerate(("INT96", "TIMESTAMP_MICROS"), start=3):
        with configured(spark, {"spark.sql.parquet.outputTimestampType": kind}):
            spark.sql(rows(key)).write.format("delta").mode("append").save(path)
    others = spark.sql(rows(5, 6)).toArrow()
    deltalake.write_deltalake(path, others, mode="append")
    spark.sql(rows(1, 3, 4, 5, 7)).createOrReplaceTempView("of_writers")
    on = "t.at = s.at AND t.price = s.price"
    result = deltaweave.merge(
        spark, f"MERGE INTO delta.`{path}` t USING of_writers s ON {on} {clauses}"
    )
    assert on_driver
    assert (result.strategy, result.metrics["numTargetRowsUpdated"]) == ("copy-in-place", 4)
    expected = spark.sql(rows(1, 2, 3, 4, 5, 6)).selectExpr(
        "if(k IN (2, 6), k, -k) AS k", "at", "price", "name"
    )
    assert rows_of(Table(spark, path)) == sorted(map(tuple, expected.collect()), key=repr)
    assert deltalake.DeltaTable(path).to_pyarrow_table().num_rows == 6


@pytest.mark.minutes
@ONE_LAYOUT
def test_strings_that_are_no_utf_8_are_kept(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    rows = "SELECT CAST(unhex(x) AS STRING) AS k, CAST(unhex(x) AS STRING) AS v, {} AS n FROM {}"
    target = spark.sql(rows.format(0, "VALUES ('FF'), ('61'), ('62') AS _(x)"))
    target.coalesce(1).write.format("delta").options(**properties).save(path)
    source = spark.sql(rows.format(1, "VALUES ('FF'), ('FE'), ('62') AS _(x)"))
    source.createOrReplaceTempView("not_utf_8")
    on = f"MERGE INTO delta.`{path}` t USING not_utf_8 s ON t.k = s.k"
    deltaweave.merge(spark, f"{on} {UPSERT}")
    same = "t.v = s.v AND encode(t.v || '', 'UTF-8') IS NOT NULL"
    deltaweave.merge(spark, f"{on} WHEN MATCHED AND {same} THEN UPDATE SET v = coalesce(t.v, s.v)")
    assert len(on_driver) == 2
    read = Table(spark, path).read().selectExpr("hex(k)", "hex(v)", "n").collect()
    expected = [("61", "61", 0), ("62", "62", 1), ("FE", "FE", 1), ("FF", "FF", 1)]
    assert sorted(map(tuple, read)) == expected


def test_a_file_that_arrow_may_read_wrongly_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], SCHEMA, properties=VECTORS)
    [file] = deltalake.DeltaTable(path).file_uris()
    stored = pq.read_table(file)
    legacy = {b"org.apache.spark.legacyDateTime": b""}
    pq.write_table(stored.replace_schema_metadata(legacy), file)
    upsert(Table(spark, path), [(1, 11), (2, 20)])
    assert not on_driver
    assert rows_of(Table(spark, path)) == [(1, 11), (2, 20)]


@pytest.mark.parametrize(
    ("metadata", "is_done"), [({SPARK_VERSION: b"2.4.8"}, False), ({SPARK_VERSION: b"4.1.0"}, True)]
)
def test_days_in_another_calendar_are_found(
    spark: SparkSession,
    tmp_path: Path,
    on_driver: list[Any],
    metadata: dict[bytes, bytes],
    is_done: bool,
) -> None:
    path = str(tmp_path / "table")
    days = spark.sql("SELECT DATE'0001-01-01' AS day")
    days.write.format("delta").option("delta.dataSkippingNumIndexedCols", 0).save(path)
    rewritten_footer(path, metadata)
    table = Table(spark, path)
    source = table.read().selectExpr("CAST(CAST(day AS STRING) AS DATE) AS day").collect()
    merge = table.merge(spark.sql(f"SELECT DATE'{source[0].day}' AS day"), on="t.day = s.day")
    merge.when_matched_delete().execute()
    assert bool(on_driver) == is_done
    assert table.read().count() == 0


def test_new_files_name_their_writer(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (4, 40)], SCHEMA)
    upsert(Table(spark, path), [(1, 11), (2, 20)])
    assert on_driver
    footers = [pq.ParquetFile(f).metadata.metadata for f in deltalake.DeltaTable(path).file_uris()]
    assert footers == [{SPARK_VERSION: spark.version.encode()}] * len(footers)


# The setting of Hadoop's file system, and what it gives new files, whatever the umask of Python's
# process is.
@pytest.mark.minutes
@pytest.mark.parametrize(("mask", "mode"), [("022", 0o644), ("077", 0o600)])
def test_new_files_have_the_permissions_that_hadoop_gives(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], mask: str, mode: int
) -> None:
    path = str(tmp_path / "table")
    own_mask = os.umask(0o037)
    disk = (
        Table(spark, path)
        ._log()
        .log.dataPath()
        .getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    )
    disk.getConf().set("fs.permissions.umask-mode", mask)
    try:
        write_table(spark, path, [(k, 0) for k in range(6)], SCHEMA, files=3)
        upsert(Table(spark, path), [(0, 1), (9, 1)])
        with configured(spark, {ON_DRIVER: "false", REWRITE_IN_PLACE: "true"}):
            result = upsert(Table(spark, path), [(2, 1)])
    finally:
        os.umask(own_mask)
        disk.getConf().unset("fs.permissions.umask-mode")
    assert (len(on_driver), result.strategy) == (1, "copy-in-place")
    files = [file.removeprefix("file://") for file in deltalake.DeltaTable(path).file_uris()]
    assert len(files) == 4  # one of them as Spark wrote it
    assert {os.stat(file).st_mode & 0o777 for file in files} == {mode}


# What the source holds (None deletes), how many rows are copied, and how many files are added.
WHOLE_FILES: dict[str, tuple[Rows, int, int]] = {
    "all rows of both are updated": ([(0, 1), (1, 1), (2, 1), (3, 1), (9, 1)], 0, 1),
    "all rows of one are updated": ([(0, 1), (1, 1), (2, 1)], 1, 2),
    "a row is updated and one deleted": ([(0, 1), (1, None)], 0, 1),
    "all rows of one are deleted": ([(0, None), (1, None)], 0, 0),
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_file_that_keeps_no_row_is_not_copied(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], name: str
) -> None:
    """Its new rows go where inserted ones go, to files that several threads write."""
    source, num_copied, num_added = WHOLE_FILES[name]
    path = str(tmp_path / "table")
    rows: Rows = [(k, 0) for k in range(4)]
    write_table(spark, path, rows, SCHEMA, files=2)
    merge = Table(spark, path).merge(frame(spark, source, SCHEMA), on="t.k = s.k")
    merge = merge.when_matched_delete("s.v IS NULL").when_matched_update_all()
    metrics = merge.when_not_matched_insert_all().execute().metrics
    assert on_driver
    new = {**dict(rows), **dict(source)}
    assert rows_of(Table(spark, path)) == [(k, new[k]) for k in sorted(new) if new[k] is not None]
    counts = [metrics[name] for name in ("numTargetRowsCopied", "numTargetFilesAdded")]
    assert counts == [num_copied, num_added]


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("said", "properties"),
    [(None, {}), (1, VECTORS), (2, {}), (4, VECTORS)],
    ids=["nothing", "fewer", "less", "more"],
)
def test_whether_a_row_stays_is_seen_in_the_file_and_not_in_its_statistics(
    spark: SparkSession,
    tmp_path: Path,
    on_driver: list[Any],
    properties: dict[str, str],
    said: int | None,
) -> None:
    """As other writers may leave them."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(3)], SCHEMA, properties=properties)
    log = Path(path, "_delta_log", f"{0:020}.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            stats = json.loads(line["add"].pop("stats"))
            if said is not None:
                said_by_log = {**stats, "numRecords": said}
                line["add"]["stats"] = json.dumps(said_by_log, separators=(",", ":"))
    log.write_text("\n".join(map(json.dumps, lines)))
    for file in (Path(path, "_delta_log", f"{0:020}.crc"), log.with_name(f".{log.name}.crc")):
        file.unlink(missing_ok=True)  # which say what the log was
    upsert(Table(spark, path), [(0, 1), (1, 1)])
    assert on_driver
    assert rows_of(Table(spark, path)) == [(0, 1), (1, 1), (2, 0)]
    upsert(Table(spark, path), [(0, 2), (1, 2), (2, 2)])
    assert rows_of(Table(spark, path)) == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.minutes
@ONE_LAYOUT
def test_rows_that_were_marked_before_stay_away(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], on_driver: list[Any]
) -> None:
    """Also from files that are rewritten, in a table that takes no vectors any more."""
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(6)], SCHEMA, files=1, properties=VECTORS)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k IN (1, 4)")
    if not properties:
        spark.sql(
            f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')"
        )
    result = upsert(Table(spark, path), [(0, 5), (1, 5), (4, 5)])
    assert on_driver
    assert rows_of(Table(spark, path)) == [(0, 5), (1, 5), (2, 0), (3, 0), (4, 5), (5, 0)]
    metrics = result.metrics
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]) == (1, 2)
    assert metrics["numTargetRowsCopied"] == (0 if properties else 3)


@FULL
def test_a_file_that_keeps_few_rows_is_rewritten(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(10)], SCHEMA, properties=VECTORS)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k = 9")
    with configured(spark, {"spark.deltaweave.merge.maxMarkedFraction": "0.8"}):
        result = upsert(Table(spark, path), [(k, 1) for k in range(8)])
    assert on_driver
    assert rows_of(Table(spark, path)) == [*[(k, 1) for k in range(8)], (8, 0)]
    metrics = result.metrics
    counts = ("numTargetRowsCopied", "numTargetFilesRemoved", "numTargetFilesAdded")
    assert [metrics[name] for name in counts] == [1, 1, 2]


@ONE_LAYOUT
def test_new_files_have_the_statistics_that_delta_gives(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], on_driver: list[Any]
) -> None:
    path, by_delta = str(tmp_path / "table"), str(tmp_path / "delta")
    rows: Rows = [(1, "x" * 40), (2, None), (3, "é" * 40)]
    for each in (path, by_delta):
        write_table(
            spark, each, [], "k INT, v STRING", ddl="k INT, v STRING", properties=properties
        )
    table = Table(spark, path)
    upsert(table, rows, "k INT, v STRING")
    frame(spark, rows, "k INT, v STRING").write.format("delta").mode("append").save(by_delta)
    assert on_driver

    def added(of: str) -> dict[str, Any]:
        log = Path(of, "_delta_log", f"{newest_version(of):020}.json").read_text().splitlines()
        [add] = [json.loads(line)["add"] for line in log if '"add"' in line]
        return {"keys": sorted(add.keys() - {"tags"}), **json.loads(add["stats"])}

    assert added(path) == added(by_delta)


@pytest.mark.minutes
@ONE_LAYOUT
def test_the_source_is_evaluated_by_one_job_and_no_other_runs(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], on_driver: list[Any]
) -> None:
    path, source = str(tmp_path / "table"), str(tmp_path / "source")
    write_table(spark, path, [(k, 0) for k in range(8)], SCHEMA, files=4, properties=properties)
    write_table(spark, source, [(k, 1) for k in range(3, 9)], SCHEMA)
    table = Table(spark, path)
    upsert(table, [(0, 1)])
    whole = spark.read.format("delta").load(source)
    # Delta itself runs a job to choose the files of a filtered table. How many rows are left of
    # them, no statistics say.
    computed = whole.withColumn("v", F.col("v") + 0)
    for rows, jobs in ((computed, 1), (whole.where("v > 0"), 2)):
        merge = table.merge(rows, on="t.k = s.k")
        merge = merge.when_matched_update_all().when_not_matched_insert_all()
        merge.execute()  # Delta reads the state of a table once
        with configured(spark, {ON_DRIVER: "auto"}):
            assert jobs_of(spark, f"{jobs}, {properties}", merge.execute) == jobs
    assert len(on_driver) == 5
    assert rows_of(table) == [(0, 1), (1, 0), (2, 0), *[(k, 1) for k in range(3, 9)]]


# Without the calls that release objects, which come when Python collects garbage.
# Four are the settings with which Spark passes over files, asked before the read and the commit.
MOST_CALLS = 304


@pytest.mark.minutes
@ONE_LAYOUT
def test_a_merge_makes_few_calls_of_the_jvm(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    on_driver: list[Any],
) -> None:
    calls = Counter[str]()
    send = GatewayClient.send_command

    def counted(client: Any, command: str, *arguments: Any, **options: Any) -> Any:
        if not command.startswith("m\n"):
            calls[caller()] += 1
        return send(client, command, *arguments, **options)

    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(8)], SCHEMA, files=4, properties=properties)
    frame(spark, [(k, 1) for k in range(3, 9)], SCHEMA).createOrReplaceTempView("few_calls")
    statement = f"MERGE INTO delta.`{path}` t USING few_calls s ON t.k = s.k {UPSERT}"
    for _ in range(2):  # what is asked of the JVM once, is asked by then
        deltaweave.merge(spark, statement)
    # Others of the same driver have rows cached: a merge does not ask about each of them.
    of_others = [spark.sparkContext.parallelize([i], 1).cache() for i in range(40)]
    for rows in of_others:
        rows.count()
    with monkeypatch.context() as patch:
        patch.setattr(GatewayClient, "send_command", counted)
        deltaweave.merge(spark, statement)
    for rows in of_others:
        rows.unpersist()
    assert len(on_driver) == 3
    print(f"calls of the JVM: {calls.total()}, {properties}")
    assert calls.total() <= MOST_CALLS, calls.most_common(20)


def caller() -> str:
    """The function of deltaweave that is being executed, or the thread's name."""
    frame = inspect.currentframe()
    while frame is not None:
        if "/platform/deltaweave/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_name} in {Path(frame.f_code.co_filename).stem}"
        frame = frame.f_back
    return threading.current_thread().name


@pytest.mark.parametrize(
    "limit",
    [
        "MAX_LOCAL_ROWS",
        "MAX_LOCAL_NEW_BYTES",
        pytest.param("MAX_LOCAL_BYTES", marks=FULL),
    ],
)
def test_what_is_too_big_is_left_to_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    limit: str,
) -> None:
    monkeypatch.setattr(limits, limit, 1)
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    upsert(Table(spark, path), [(2, 21), (3, 30)])
    assert not on_driver
    assert rows_of(Table(spark, path)) == [(1, 10), (2, 21), (3, 30)]


@pytest.mark.minutes
def test_a_source_whose_rows_are_counted_may_still_be_too_big(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_driver: list[Any]
) -> None:
    path, source = str(tmp_path / "table"), str(tmp_path / "source")
    schema = "k INT, v STRING"  # how long texts are, no count of rows tells
    write_table(spark, path, [(1, "a"), (2, "b")], schema)
    write_table(spark, source, [(2, "c"), (3, "d")], schema)
    statement = f"MERGE INTO delta.`{path}` t USING delta.`{source}` s ON t.k = s.k {UPSERT}"
    with configured(spark, {ON_DRIVER: "auto"}):
        deltaweave.merge(spark, statement)
        assert len(on_driver) == 1
        monkeypatch.setattr(limits, "MAX_LOCAL_ESTIMATED_BYTES", 1)
        deltaweave.merge(spark, statement)
    assert len(on_driver) == 1
    assert rows_of(Table(spark, path)) == [(1, "a"), (2, "c"), (3, "d")]


# All source rows and all target rows have one key: 16 pairs; too many are never made.
@pytest.mark.parametrize(("most", "is_done"), [(16, True), (15, False)])
def test_pairs_are_counted_before_they_are_made(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    most: int,
    is_done: bool,
) -> None:
    monkeypatch.setattr(limits, "MAX_PAIRS_ON_DRIVER", most)
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, v) for v in range(4)], SCHEMA)
    table = Table(spark, path)
    merge = table.merge(frame(spark, [(1, 9)] * 4, SCHEMA), on="t.k = s.k")
    merge.when_matched_delete().execute()
    assert bool(on_driver) == is_done
    assert rows_of(table) == []


@FULL
@pytest.mark.parametrize("rows_left", [1, 5_000_000], ids=["too_many_rows", "bytes"])
def test_keys_are_not_collected_again_for_files_that_are_too_big(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_left: int
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_TARGET_ROWS", rows_left)
    monkeypatch.setattr(limits, "LOCAL_MASTER_FACTOR", 1)
    if rows_left > 1:
        monkeypatch.setattr(local_merge, "file_eligibility", lambda files: Verdict("too big"))
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], SCHEMA)
    source = spark.range(2, 4).selectExpr("CAST(id AS INT) AS k", "1 AS v")
    table = Table(spark, path)
    merge = table.merge(source, on="t.k = s.k")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    with configured(spark, {ON_DRIVER: "false"}):
        merge.execute()
        usual = jobs_of(spark, f"usual {rows_left}", merge.execute)
    tried = jobs_of(spark, f"tried {rows_left}", merge.execute)
    assert tried == usual
    assert rows_of(table) == [(1, 10), (2, 1), (3, 1)]


@pytest.mark.minutes
def test_a_value_that_fails_for_a_row_without_a_match_fails_nothing(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], SCHEMA)
    table = Table(spark, path)

    def merge(rows: Rows) -> MergeResult:
        builder = table.merge(frame(spark, rows, SCHEMA), on="t.k = s.k")
        return builder.when_matched_update({"k": "s.k", "v": "CAST(100 / s.v AS INT)"}).execute()

    merge([(1, 5), (2, 0)])
    assert not on_driver
    assert rows_of(table) == [(1, 20)]
    with pytest.raises(errors.DeltaweaveError) as raised:
        merge([(1, 0)])
    assert raised.value.error_class == "DIVIDE_BY_ZERO"


def test_a_job_that_is_cancelled_ends_the_merge(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], SCHEMA)
    context = spark.sparkContext
    context.setJobGroup("cancelled on the driver", "")
    context._jsc.sc().cancelJobGroupAndFutureJobs("cancelled on the driver")
    try:
        with pytest.raises(errors.DeltaweaveError) as raised:
            upsert(Table(spark, path), [(1, 11)])
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert "CANCELLED" in (raised.value.error_class or "")
    assert not on_driver


MAPPED = {"delta.columnMapping.mode": "name"}


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("properties", "where"),
    [
        pytest.param({}, "_write_files", marks=FULL),
        (MAPPED | VECTORS, "_write_files"),
        (FEED, "record_changes"),
    ],
    ids=["copy_on_write", "mapped_with_vectors", "feed"],
)
def test_spark_does_the_merge_where_a_write_fails_and_no_file_is_left(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    where: str,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(4)], SCHEMA, files=2, properties=properties)
    before = {file for file in all_files(path) if file.endswith(".parquet")}
    write = getattr(local_files, where)

    def fails(*arguments: Any, **options: Any) -> Any:
        write(*arguments, **options)
        raise OSError("no space left on device")

    monkeypatch.setattr(local_files, where, fails)
    upsert(Table(spark, path), [(0, 1), (9, 1)])
    assert rows_of(Table(spark, path)) == [(0, 1), (1, 0), (2, 0), (3, 0), (9, 1)]
    there = {file for file in all_files(path) if file.endswith(".parquet")}
    files = deltalake.DeltaTable(path).file_uris()
    of_table = {file.removeprefix(f"{path}/").removeprefix(f"file://{path}/") for file in files}
    of_feed = {each["cdc"]["path"] for each in actions(path, 1) if "cdc" in each}
    assert bool(of_feed) is (properties == FEED)
    assert there == before | of_table | of_feed


def test_an_interrupted_write_leaves_no_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(4)], SCHEMA, files=2)
    before = all_files(path)
    rewrite = local_files.rewrite_rows

    def interrupted(*arguments: Any) -> Any:
        rewrite(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_files, "rewrite_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        upsert(Table(spark, path), [(0, 1), (9, 1)])
    assert all_files(path) == before


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("other", "runs", "left"),
    [
        ("INSERT INTO {t} VALUES (50, 5)", 1, [(50, 5)]),  # what it wrote is committed again
        # A row with its key: it runs again.
        pytest.param("INSERT INTO {t} VALUES (9, 5)", 2, [], marks=FULL),
        # Its rows are in another file.
        pytest.param("OPTIMIZE {t}", 2, [], marks=FULL),
    ],
    ids=["follows", "again", "moved"],
)
@ONE_LAYOUT
def test_what_another_commit_leaves_right_is_committed_again(
    spark: SparkSession,
    tmp_path: Path,
    overtaken: Callable[..., None],
    on_driver: list[Any],
    properties: dict[str, str],
    other: str,
    runs: int,
    left: Rows,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, 0) for k in range(4)], SCHEMA, files=2, properties=properties)
    overtaken(lambda: spark.sql(other.format(t=f"delta.`{path}`")))
    upsert(Table(spark, path), [(0, 1), (9, 1)])
    assert len(on_driver) == runs
    expected = [(0, 1), (1, 0), (2, 0), (3, 0), (9, 1), *left]
    assert rows_of(Table(spark, path)) == sorted(expected, key=repr)


@FULL
def test_delta_compacts_the_table_afterwards_if_it_asks_for_that(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "table")
    properties = {"delta.autoOptimize.autoCompact": "true"}
    write_table(spark, path, [(k, 0) for k in range(4)], SCHEMA, properties=properties)
    with configured(spark, {"spark.databricks.delta.autoCompact.minNumFiles": "2"}):
        upsert(Table(spark, path), [(9, 1)])
    assert on_driver
    assert commit_info(path, newest_version(path))["operation"] == "OPTIMIZE"
    assert len(deltalake.DeltaTable(path).file_uris()) == 1
