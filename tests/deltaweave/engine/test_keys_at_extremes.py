"""Keys of all types, however long, late or oddly written, find the files that hold them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table, errors
from deltaweave.delta.log import statistics
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from tests.builders import write_table
from tests.support.big_source import collect_no_keys
from tests.support.oracles import rows_as_text
from tests.support.rivals import overtake
from tests.support.settings import configured

LATE = "America/Los_Angeles"  # whose last moment of 9999 is in the year 10000 in UTC


@pytest.fixture(params=["in_text", "by_query"])
def bounds_are_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of few files Python reads the log's text, of many a query of Spark does."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "by_query":
            patch.setattr(statistics, "statistics_in_text", lambda adds, statistics, columns: None)
        yield


def write_files(spark: SparkSession, path: str, data_type: str, keys: Sequence[str]) -> Table:
    """A table with a file for each key, an SQL expression."""
    values = ", ".join(f"(CAST({key} AS {data_type}), 0)" for key in keys)
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS (k, v)").coalesce(1)
    rows.write.format("delta").option("maxRecordsPerFile", 1).save(path)
    return Table(spark, path)


def files_read(table: Table, key: str, on: str = "t.k = s.k") -> int:
    """How many files a merge by one key reads."""
    plan = deltaweave.explain(
        table.spark,
        f"MERGE INTO delta.`{table.path_or_name}` t USING (SELECT {key} AS k) s ON {on} "
        "WHEN MATCHED THEN DELETE",
    )
    return plan.after_source_keys.files


def upsert(table: Table, keys: Sequence[str], data_type: str) -> tuple[int, int]:
    """How many rows an upsert of the keys updates, and how many it inserts."""
    values = ", ".join(f"(CAST({key} AS {data_type}), 1)" for key in keys)
    source = table.spark.sql(f"SELECT * FROM VALUES {values} AS (k, v)")
    merge = table.merge(source, on="t.k = s.k").when_matched_update_all()
    metrics = merge.when_not_matched_insert_all().execute().metrics
    return metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]


# Keys that doubles round, each in a file of its own.
LONG_DECIMALS = [
    "20240101000000001BD",
    "20240101000000003BD",
    "-9999999999999999999999999999.9999999999BD",
    "9999999999999999999999999999.9999999999BD",
    "0.0000000001BD",
]


@pytest.mark.minutes
def test_a_decimal_key_of_17_digits_finds_its_file(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_files(spark, str(tmp_path / "table"), "DECIMAL(38,10)", LONG_DECIMALS)
    assert upsert(table, [LONG_DECIMALS[0]], "DECIMAL(38,10)") == (1, 0)
    assert upsert(table, ["20240101000000002BD"], "DECIMAL(38,10)") == (0, 1)
    collect_no_keys(monkeypatch)  # but their ranges
    assert upsert(table, LONG_DECIMALS, "DECIMAL(38,10)") == (5, 0)
    assert files_read(table, "CAST(0.0000000001BD AS DECIMAL(38,10))") == 1


@pytest.mark.minutes
def test_a_decimal_key_finds_the_file_that_delta_rs_wrote(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None
) -> None:
    path, keys = str(tmp_path / "table"), [each.removesuffix("BD") for each in LONG_DECIMALS]
    for key in keys:
        columns = {"k": pa.array([Decimal(key)], pa.decimal128(38, 10)), "v": pa.array([0])}
        deltalake.write_deltalake(path, pa.table(columns), mode="append")
    assert upsert(Table(spark, path), LONG_DECIMALS, "DECIMAL(38,10)") == (5, 0)


@pytest.mark.minutes
def test_a_decimal_key_finds_the_file_that_was_rewritten_in_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = write_files(spark, str(tmp_path / "table"), "DECIMAL(38,10)", LONG_DECIMALS)
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        for _ in range(2):
            assert upsert(table, LONG_DECIMALS, "DECIMAL(38,10)") == (5, 0)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("data_type", "bounds_are_read"),
    [("TIMESTAMP", "in_text"), ("TIMESTAMP_NTZ", "by_query"), ("DATE", "in_text")],
    indirect=["bounds_are_read"],
)
def test_a_last_moment_in_one_file_leaves_the_bounds_of_others_known(
    spark: SparkSession, tmp_path: Path, data_type: str, bounds_are_read: None
) -> None:
    last = {
        "DATE": ["DATE'9999-12-31'", "DATE'+10000-01-01'"],
        "TIMESTAMP": ["TIMESTAMP'9999-12-31 23:59:59.999999'", "TIMESTAMP'+12024-01-01 00:00:00'"],
        "TIMESTAMP_NTZ": [
            "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
            "TIMESTAMP_NTZ'+12024-01-01 00:00:00'",
        ],
    }[data_type]
    keys = [f"DATE'2024-0{month}-01'" for month in (1, 2, 3)]
    with configured(spark, {"spark.sql.session.timeZone": LATE}):
        table = write_files(spark, str(tmp_path / "table"), data_type, [*keys, *last])
        # That of the key, and that of the year that Python does not have.
        assert files_read(table, f"CAST({keys[1]} AS {data_type})") == 2
        assert upsert(table, [keys[0], last[0]], data_type) == (2, 0)
        assert upsert(table, [keys[0], last[1]], data_type) == (2, 0)


@pytest.mark.minutes
def test_a_text_of_the_highest_characters_finds_its_file(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None
) -> None:
    # To Java, 40 and 64 characters: Delta's writer keeps them whole.
    keys = [f"repeat('\U0010ffff', {times})" for times in (20, 32)]
    keys += ["'a'", "repeat('z', 40)"]
    table = write_files(spark, str(tmp_path / "table"), "STRING", keys)
    for key in keys:
        assert files_read(table, key) in (2, 3), key  # of the two, nothing says where they end
    assert upsert(table, [keys[0]], "STRING") == (1, 0)
    assert upsert(table, [keys[1]], "STRING") == (1, 0)


@pytest.mark.minutes
def test_keys_find_files_that_were_written_before_their_type_was_widened(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None
) -> None:
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (single FLOAT, day DATE, whole INT, cents DECIMAL(5,2)) "
        "USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true', "
        "'delta.feature.timestampNtz' = 'supported')"
    )
    for number in ("0.1", "1.1", "2.1"):
        spark.sql(
            f"INSERT INTO delta.`{path}` VALUES ({number}F, DATE'2024-01-01' + "
            f"INT({number}), INT({number}), {number})"
        )
    held = {  # as they are read once the types are wider
        "single": ("DOUBLE", "CAST(0.1F AS DOUBLE)"),  # 0.1, as statistics say, is below
        "day": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2024-01-01 00:00:00'"),
        "whole": ("DECIMAL(38,10)", "CAST(0 AS DECIMAL(38,10))"),
        "cents": ("DECIMAL(20,4)", "CAST(0.1 AS DECIMAL(20,4))"),
    }
    for column, (data_type, _) in held.items():
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN {column} TYPE {data_type}")
    spark.sql(
        f"INSERT INTO delta.`{path}` VALUES (3.1, TIMESTAMP_NTZ'2024-02-01 01:00:00', 9.5, 9.0001)"
    )
    for column, (_, key) in held.items():
        merge = Table(spark, path).merge(spark.sql(f"SELECT {key} AS k"), on=f"t.{column} = s.k")
        metrics = merge.when_matched_update({"day": "t.day"}).execute().metrics
        assert metrics["numTargetRowsUpdated"] == 1, column
        assert metrics["numTargetFilesAfterSkipping"] == 1, column


# Each widening of Delta: the type of the old file, the wider one, and its lowest and highest value.
WIDENED = {
    "bytes": ("TINYINT", "SMALLINT", "-32768S", "32767S"),
    "bytes_twice": ("TINYINT", "INT", "-2147483648", "2147483647"),
    "shorts": ("SMALLINT", "BIGINT", "-9223372036854775808", "9223372036854775807L"),
    "ints": ("INT", "BIGINT", "-9223372036854775808", "9223372036854775807L"),
    "ints_as_doubles": ("INT", "DOUBLE", "-1.7976931348623157E308D", "1.7976931348623157E308D"),
    "ints_as_decimals": ("INT", "DECIMAL(12,2)", "-9999999999.99BD", "9999999999.99BD"),
    "longs": ("BIGINT", "DECIMAL(38,0)", f"-{'9' * 38}BD", f"{'9' * 38}BD"),
    "singles": ("FLOAT", "DOUBLE", "-1.7976931348623157E308D", "1.7976931348623157E308D"),
    "days": ("DATE", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ'0001-01-01'", "TIMESTAMP_NTZ'9999-12-31'"),
    "to_64_bits": ("DECIMAL(9,2)", "DECIMAL(12,2)", "-30000000BD", "30000000BD"),
    "to_bytes": ("DECIMAL(18,2)", "DECIMAL(20,2)", f"-{'9' * 18}BD", f"{'9' * 18}BD"),
    "to_more_bytes": ("DECIMAL(20,2)", "DECIMAL(38,2)", f"-{'9' * 36}BD", f"{'9' * 36}BD"),
    "of_wider_scale": ("DECIMAL(5,2)", "DECIMAL(20,4)", f"-{'9' * 16}BD", f"{'9' * 16}BD"),
}
NESTED = ("to_64_bits", "to_more_bytes")
PATHS = {**{name: name for name in WIDENED}, **{f"of_{name}.k": name for name in NESTED}}

INSERTED = "WHEN NOT MATCHED THEN INSERT (v, {column}) VALUES (-1, {value})"
UPSERTED = f"WHEN MATCHED THEN UPDATE SET v = s.v {INSERTED}"
BY_SPARK = {ON_DRIVER: "false", REWRITE_IN_PLACE: "false"}
# Whether rows are marked as deleted, the session's settings, and the clauses.
WAYS: dict[str, tuple[bool, dict[str, str], str]] = {
    "vectors": (True, BY_SPARK, UPSERTED),
    "copies": (False, BY_SPARK, UPSERTED),
    "in_place": (False, {**BY_SPARK, REWRITE_IN_PLACE: "true"}, UPSERTED),
    "driver": (True, {ON_DRIVER: "true"}, UPSERTED),
    "insert_only": (False, BY_SPARK, INSERTED),
}


@pytest.fixture(scope="module")
def widened(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of wide types, and for each path two files of narrow ones, with ten keys each."""
    path = str(tmp_path_factory.mktemp("widened") / "table")
    columns, values = [], []
    for place, (key_path, name) in enumerate(PATHS.items()):
        narrow, column = WIDENED[name][0], key_path.split(".")[0]
        key = as_key("id % 20 + 1", narrow)
        is_nested = column != key_path
        columns.append(f"{column} {f'STRUCT<k: {narrow}>' if is_nested else narrow}")
        value = f"struct({key} AS k)" if is_nested else key
        values.append(f"CASE WHEN id DIV 20 = {place} THEN {value} END AS {column}")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (v INT, {', '.join(columns)}) USING delta TBLPROPERTIES "
        "('delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported', "
        "'delta.enableDeletionVectors' = 'false', 'delta.dataSkippingNumIndexedCols' = '-1')"
    )
    rows = spark.sql(f"SELECT 0 AS v, {', '.join(values)} FROM range({20 * len(PATHS)})")
    writer = rows.coalesce(1).write.format("delta").option("maxRecordsPerFile", 10)
    writer.mode("append").save(path)
    for key_path, name in PATHS.items():
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN {key_path} TYPE {WIDENED[name][1]}")
    return Path(path)


def as_key(number: str, data_type: str) -> str:
    """A number as a key of the type, as SQL."""
    is_day = data_type in ("DATE", "TIMESTAMP_NTZ")
    value = f"date_from_unix_date(INT({number}))" if is_day else number
    return f"CAST({value} AS {data_type})"


@pytest.mark.minutes
@pytest.mark.parametrize("way", WAYS)
def test_keys_beyond_the_type_of_an_old_file_hide_none_of_its_rows(
    spark: SparkSession, tmp_path: Path, widened: Path, way: str
) -> None:
    """Parquet's filters would convert a far key to the file's type, where some overflow."""
    path = str(shutil.copytree(widened, tmp_path / "table"))
    marks, conf, clauses = WAYS[way]
    if marks:
        vectors = "('delta.enableDeletionVectors' = 'true')"
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES {vectors}")
    found, expected = {}, {}
    for key_path, name in PATHS.items():
        _, wide, low, high = WIDENED[name]
        column, *nested = key_path.split(".")
        written = clauses.format(column=column, value="struct(s.k)" if nested else "s.k")
        # The ends of many keys are pushed, each of few; and what ON says of the target alone.
        for far, numbers, also in ((high, range(1, 11), ""), (low, [20], f"AND t.{key_path} >= ")):
            keys = [*(as_key(str(number), wide) for number in numbers), f"CAST({far} AS {wide})"]
            source = f"(SELECT k, 1 AS v FROM VALUES ({'), ('.join(keys)}) AS (k))"
            case = (key_path, len(keys))
            expected[case] = (len(numbers) if "UPDATE" in clauses else 0, 1)
            with configured(spark, conf):
                found[case] = updated_and_inserted(
                    spark,
                    f"MERGE INTO delta.`{path}` t USING {source} s "
                    f"ON t.{key_path} = s.k {also and also + keys[-1]} {written}",
                )
    assert found == expected


# Sources of the keys 1 to 10 and 30000000. The last one has more digits than DECIMAL(9,2), the type
# of the file of the others; Spark's own queries lack the others where they ask for keys below it.
SOURCES = {
    "table": "SELECT * FROM {wide}",
    "view": "SELECT * FROM {view}",
    "of_files": "{wide}",
    "filtered": "SELECT * FROM {wide} WHERE id <= 30000000",
    "filtered_by_field": "SELECT of.id AS id, v FROM {wide} WHERE of.id <= 30000000",
    "filtered_by_query": "SELECT * FROM {wide} WHERE id <= (SELECT max(id) FROM {wide})",
    "in_query": "SELECT * FROM {plain} WHERE id IN (SELECT id FROM {wide} WHERE id <= 30000000)",
    "with": "WITH w AS (SELECT * FROM {wide} WHERE id <= 30000000) SELECT * FROM w",
    "grouped": "SELECT id, max(v) AS v FROM {wide} GROUP BY id",
    "cached": "SELECT * FROM {cached}",
}
UPDATED, ADDED = (
    "WHEN MATCHED THEN UPDATE SET v = s.v",
    "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)",
)
# What ON asks for beside the key, the clauses, and how many rows are updated, inserted and deleted.
OF_SOURCES = {
    "keys": ("", f"{UPDATED} {ADDED}", (10, 1, 0)),
    "a few keys": ("AND s.id IN (5, 30000000)", f"{UPDATED} {ADDED}", (1, 10, 0)),
    "the target": ("AND t.id < 30000000", f"{UPDATED} {ADDED}", (10, 1, 0)),
    "the source": ("AND s.id < 30000000", f"{UPDATED} {ADDED}", (10, 1, 0)),
    "inserts alone": ("AND t.id < 30000000", ADDED, (0, 1, 0)),
    "no source": (
        "AND s.id < 30000000",
        f"{UPDATED} WHEN NOT MATCHED BY SOURCE THEN DELETE",
        (10, 0, 0),
    ),
    "clauses": (
        "",
        "WHEN MATCHED AND s.id < 30000000 THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED AND s.id < 30000000 THEN INSERT (id, v) VALUES (s.id, s.v)",
        (10, 0, 0),
    ),
}


@pytest.fixture(scope="module")
def widened_sources(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Sources of `SOURCES` by name: widened, in a view, in the cache, and of one type."""
    folder = tmp_path_factory.mktemp("sources")
    wide, plain, of_cache = (f"delta.`{folder / name}`" for name in ("wide", "plain", "of_cache"))
    for name in (wide, of_cache):
        write_widened(spark, name)
    spark.sql(f"CREATE TABLE {plain} USING delta AS SELECT id, v FROM {wide}")
    spark.sql(f"CREATE OR REPLACE TEMP VIEW widened_view AS SELECT * FROM {wide}")
    cached = spark.sql(f"SELECT * FROM {of_cache}").cache()
    cached.createOrReplaceTempView("widened_cached")
    yield {"wide": wide, "plain": plain, "view": "widened_view", "cached": "widened_cached"}
    cached.unpersist()


def write_widened(spark: SparkSession, name: str) -> None:
    """Write the keys 1 to 10 as DECIMAL(9,2), widen it, and write the key 30000000."""
    spark.sql(
        f"CREATE TABLE {name} (id DECIMAL(9,2), v INT, of STRUCT<id: DECIMAL(9,2)>) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true', "
        "'delta.enableDeletionVectors' = 'false')"
    )
    key = "struct(CAST(id AS DECIMAL(9,2)) AS id)"
    spark.sql(f"INSERT INTO {name} SELECT /*+ COALESCE(1) */ id, 1, {key} FROM range(1, 11)")
    for path in ("id", "of.id"):
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN {path} TYPE DECIMAL(12,2)")
    spark.sql(f"INSERT INTO {name} VALUES (30000000, 1, struct(30000000BD))")


def of_sources() -> Iterator[Any]:
    """Each source by its keys, and each question of a table; the others in `make test-all`."""
    for source in SOURCES:
        for asked in OF_SOURCES:
            tells = source == "table" or asked == "keys"
            mark = pytest.mark.minutes if tells else pytest.mark.full_matrix
            yield pytest.param(source, asked, id=f"{source}-{asked}", marks=mark)


@pytest.mark.parametrize(("source", "asked"), list(of_sources()))
def test_a_source_whose_decimals_were_widened_loses_no_row(
    spark: SparkSession, tmp_path: Path, widened_sources: dict[str, str], source: str, asked: str
) -> None:
    target = f"delta.`{tmp_path / 'target'}`"
    spark.sql(f"CREATE TABLE {target} (id DECIMAL(12,2), v INT) USING delta")
    spark.sql(f"INSERT INTO {target} SELECT /*+ COALESCE(1) */ id, 0 FROM range(1, 11)")
    query, (on, clauses, expected) = SOURCES[source].format(**widened_sources), OF_SOURCES[asked]
    using = f"({query})" if " " in query else query
    with configured(spark, BY_SPARK):
        metrics = deltaweave.merge(
            spark, f"MERGE INTO {target} t USING {using} s ON t.id = s.id {on} {clauses}"
        ).metrics
    changed = ("Updated", "Inserted", "Deleted")
    assert tuple(metrics[f"numTargetRows{each}"] for each in changed) == expected


@pytest.mark.minutes
def test_a_rival_that_brings_an_old_file_back_is_seen(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (k DECIMAL(9,2), v INT) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    for keys in ("range(1, 11)", "range(100, 101)"):
        spark.sql(f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ id, 0 FROM {keys}")
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN k TYPE DECIMAL(12,2)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE k <= 10")
    restore = f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 3"
    overtake(monkeypatch, lambda: spark.sql(restore).collect())
    keys = [*map(str, range(1, 11)), "30000000"]
    assert upsert(Table(spark, path), keys, "DECIMAL(12,2)") == (10, 1)


def updated_and_inserted(spark: SparkSession, statement: str) -> object:
    """How many rows a merge updates and inserts, or how it fails."""
    try:
        metrics = deltaweave.merge(spark, statement).metrics
    except errors.DeltaweaveError as error:
        return str(error)[:200]
    return metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]


ODD_NAMES = ["k.1", "it's", "a?*", "$", "[0]", ".x", 'say"', "\u00fc-"]


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("mapping", "bounds_are_read"),
    [("none", "by_query"), ("name", "in_text"), ("name", "by_query")],
    indirect=["bounds_are_read"],
)
def test_keys_of_any_name_find_their_files(
    spark: SparkSession, tmp_path: Path, mapping: str, bounds_are_read: None
) -> None:
    path = str(tmp_path / "table")
    names = ", ".join(f"`{name}`: STRUCT<`{name}`: INT>" for name in ODD_NAMES)
    columns = ", ".join(f"`{name}` INT" for name in ODD_NAMES)
    many = {"delta.dataSkippingNumIndexedCols": "-1", "delta.columnMapping.mode": mapping}
    rows = [((tuple((key,) for _ in ODD_NAMES)), *[key for _ in ODD_NAMES]) for key in range(3)]
    write_table(spark, path, rows, f"s STRUCT<{names}>, {columns}", files=3, properties=many)
    if mapping == "name":
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN s TO `a.b'?`")
    struct = "a.b'?" if mapping == "name" else "s"
    table = Table(spark, path)
    on = " AND ".join(
        f"t.`{name}` = s.k AND t.`{struct}`.`{name}`.`{name}` = s.k" for name in ODD_NAMES
    )
    assert files_read(table, "1", on) == 1
    for name in ODD_NAMES:
        assert files_read(table, "1", f"t.`{name}` = s.k") == 1, name
    assert files_read(table, "1", f"t.`{struct}`.`.x`.`.x` = s.k") == 1


@pytest.mark.minutes
def test_a_file_rewritten_in_place_has_bounds_of_fields_of_any_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [((key,), 0) for key in range(3)], "s STRUCT<`.x`: INT>, v INT")
    source = spark.sql("SELECT 1 AS k, 5 AS v")
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        merge = Table(spark, path).merge(source, on="t.s.`.x` = s.k")
        result = merge.when_matched_update({"v": "s.v"}).execute()
    assert result.strategy == "copy-in-place"
    log = sorted(Path(path, "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    [added] = [json.loads(line)["add"] for line in log if '"add"' in line]
    assert json.loads(added["stats"])["maxValues"] == {"s": {".x": 2}, "v": 5}


# What may stand in the place of a file's statistics.
NOT_UNDERSTOOD = {
    "none": None,
    "empty": "{}",
    "of_no_column": '{"numRecords":1}',
    "cut_short": '{"numRecords":1,"minValues":{"k":5',
    "no_object": "[1]",
    "no_numbers": '{"numRecords":1,"minValues":{"k":"x"},"maxValues":{"k":"y"}}',
    "one_end": '{"numRecords":1,"minValues":{"k":5},"nullCount":{"k":0}}',
    "not_nested": '{"numRecords":1,"minValues":5,"maxValues":[5],"nullCount":{"k":0}}',
}


@pytest.mark.minutes
def test_a_file_is_read_whose_statistics_are_not_understood(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None
) -> None:
    path = str(tmp_path / "table")
    table = write_files(spark, path, "INT", [str(key) for key in range(len(NOT_UNDERSTOOD) + 2)])
    table = with_statistics(table, list(NOT_UNDERSTOOD.values()), str(tmp_path / "edited"))
    last = len(NOT_UNDERSTOOD) + 1
    assert files_read(table, str(last)) == len(NOT_UNDERSTOOD) + 1
    # The one of null keys as well: nobody knows that it has none.
    known_to_have_none = ("one_end", "not_nested")
    may_have = len(NOT_UNDERSTOOD) - len(known_to_have_none)
    assert files_read(table, "CAST(NULL AS INT)", on="t.k <=> s.k") >= may_have
    keys = [str(key) for key in range(last + 1)]
    assert upsert(table, keys, "INT") == (last + 1, 0)


def with_statistics(table: Table, texts: Sequence[str | None], path: str) -> Table:
    """A copy of a table, of whose first files the log says something else."""
    shutil.copytree(table.path_or_name, path)
    log = Path(path, "_delta_log")
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    for checksum in log.glob(".*.crc"):
        checksum.unlink()
    commit = log / f"{0:020}.json"
    said = [json.loads(line) for line in commit.read_text().splitlines()]
    adds = sorted(
        (action["add"] for action in said if "add" in action),
        key=lambda add: json.loads(add["stats"])["minValues"]["k"],
    )
    for add, text in zip(adds, texts, strict=False):
        add.pop("stats")
        add.update({} if text is None else {"stats": text})
    commit.write_text("\n".join(map(json.dumps, said)))
    return Table(table.spark, path)


PARTITION_VALUES = {
    "day": ("DATE", "DATE'1000-01-01'", "DATE'9999-12-31'"),
    "at": ("TIMESTAMP", "TIMESTAMP'2024-01-01 00:00:00.000001'", "TIMESTAMP'1850-01-01 00:00:00'"),
    "local": (
        "TIMESTAMP_NTZ",
        "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
    ),
    "decimal": ("DECIMAL(38,10)", "20240101000000001BD", "20240101000000003BD"),
    "single": ("FLOAT", "0.1F", "-0.0F"),
    "double": ("DOUBLE", "0.1D", "1.7976931348623157E308D"),
    "big": ("BIGINT", "9223372036854775807", "CAST(-9223372036854775807L - 1 AS BIGINT)"),
    "text": ("STRING", f"'{'a' * 40}b'", f"'{'a' * 40}c'"),
}


@pytest.mark.minutes
def test_partitions_of_extreme_values_are_found(
    spark: SparkSession, tmp_path: Path, bounds_are_read: None
) -> None:
    path = str(tmp_path / "table")
    rows = [
        ", ".join(
            f"CAST({values[i]} AS {values[0]}) AS {name}"
            for name, values in PARTITION_VALUES.items()
        )
        for i in (1, 2)
    ]
    nulls = ", ".join(f"CAST(NULL AS {values[0]}) AS {n}" for n, values in PARTITION_VALUES.items())
    nulls = nulls.replace("CAST(NULL AS STRING)", "''")  # which Delta writes as null
    with configured(spark, {"spark.sql.session.timeZone": LATE}):
        selects = " UNION ALL ".join(f"SELECT 0 AS v, {row}" for row in (*rows, nulls))
        spark.sql(selects).write.format("delta").partitionBy(*PARTITION_VALUES).save(path)
        table = Table(spark, path)
        for name, (data_type, *held) in PARTITION_VALUES.items():
            for key in held:
                read = files_read(table, f"CAST({key} AS {data_type})", f"t.{name} = s.k")
                assert 1 <= read <= 2, (name, key)  # its own, and that of nulls
            null = f"CAST(NULL AS {data_type})"
            assert files_read(table, null, f"t.{name} <=> s.k") == 1, name
        source = table.read().drop("v").where("text IS NOT NULL")
        on = " AND ".join(f"t.{name} = s.{name}" for name in PARTITION_VALUES)
        table.merge(source, on=on).when_matched_update({"v": "t.v + 1"}).execute()
    assert sorted(row.v for row in table.read().collect()) == [0, 1, 1]


# Types of target and source, the keys of the files and of the source.
COMPARED: dict[str, tuple[str, str, list[str], list[str]]] = {
    "text_with_whole": ("STRING", "INT", ["'1'", "'01'", "' 1'", "'2'", "'10'"], ["1"]),
    "whole_with_text": ("INT", "STRING", ["1", "2", "10"], ["'01'", "' 10'"]),
    "whole_with_decimal": ("INT", "DECIMAL(38,10)", ["1", "2", "3"], ["2.0", "2.5"]),
    "big_with_single": ("BIGINT", "FLOAT", ["16777216", "16777217", "5"], ["16777216"]),
    "single_with_double": ("FLOAT", "DOUBLE", ["0.1", "0.5", "2.5"], ["0.1D", "0.5D"]),
    "double_with_single": ("DOUBLE", "FLOAT", ["0.1D", "CAST(0.1F AS DOUBLE)"], ["0.1F"]),
    "day_with_moment": ("DATE", "TIMESTAMP", ["DATE'2024-01-01'"] * 2, ["DATE'2024-01-01'"]),
    "narrow_with_wide_decimal": ("DECIMAL(5,2)", "DECIMAL(38,10)", ["1.10", "2.2"], ["1.1"]),
    "zeros": ("DOUBLE", "DOUBLE", ["-0.0D", "0.0D", "1D"], ["0.0D"]),
    "nan": ("DOUBLE", "DOUBLE", ["'NaN'", "0.0D", "1D"], ["'NaN'", "1D"]),
    "infinite": ("FLOAT", "FLOAT", ["'-Infinity'", "'Infinity'", "1"], ["'Infinity'"]),
}


@pytest.mark.minutes
@pytest.mark.parametrize("case", COMPARED)
def test_keys_match_in_whatever_type_they_are_compared(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    data_type, source_type, held, wanted = COMPARED[case]
    table = write_files(spark, str(tmp_path / "table"), data_type, held)
    values = ", ".join(f"(CAST({key} AS {source_type}))" for key in wanted)
    source = spark.sql(f"SELECT * FROM VALUES {values} AS (k)")
    rows, keys = table.read().alias("t"), source.alias("s")
    left = rows.join(keys, rows["k"].eqNullSafe(keys["k"]), "left_anti")
    expected = rows_as_text(left.collect())
    assert len(expected) < len(held)
    table.merge(source, on="t.k = s.k").when_matched_delete().execute()
    assert rows_as_text(table.read().collect()) == expected


def test_a_day_is_a_key_to_the_last(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(date.min, 0), (date.max, 0)], "k DATE, v INT", files=2)
    table = Table(spark, path)
    assert [files_read(table, f"DATE'{day}'") for day in ("0001-01-01", "9999-12-31")] == [1, 1]
    assert files_read(table, "DATE'2024-01-01'") == 0
