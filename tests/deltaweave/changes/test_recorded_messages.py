"""Messages that Debezium's connectors sent make the rows that their databases had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import FROM_DEBEZIUM, Table, debezium_changes
from tests.deltaweave.changes.debezium_messages import FOLDER, messages, recordings

# Recordings whose tables other tests read: they have no envelopes, or another log.
NO_ENVELOPES = ("flattened", "other_log")

CONNECTORS: dict[str, Any] = {"postgresql": "postgresql", "mariadb": "mysql"}

# The arguments of `debezium_changes` that a recording's settings ask for.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "isostring": {"unavailable": "unsent"},
}

# Modes in which all columns of a table are read: one beside its Connect schema, one without it.
IN_FULL = ("microseconds", "strings")
# The types that each mode writes in its own way.
WRITTEN_BY_MODE = ("DECIMAL", "DATE", "TIMESTAMP", "BINARY", "MAP")


@dataclass(frozen=True)
class Recorded:
    """A table that was recorded.

    Attributes:
        database: Its database.
        table: Its name.
        keys: The columns of its key.
        columns: Types of its columns, by their names.
        unread: By mode, columns whose values are not read; `*` for every mode.
    """

    database: str
    table: str
    keys: tuple[str, ...]
    columns: dict[str, str]
    unread: dict[str, set[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    def read_in(self, mode: str) -> dict[str, str]:
        """Return the columns that are read of a recording."""
        unread = self.unread.get("*", set()) | self.unread.get(mode, set())
        read = {name: of for name, of in self.columns.items() if name not in unread}
        # A mode with another placeholder has it in columns of all types.
        in_full = (*IN_FULL, *(ARGUMENTS if self.table == "toasted" else ()))
        if self.table not in ("everything", "toasted") or mode in in_full:
            return read
        return {name: of for name, of in read.items() if name in self.keys or of_mode(of)}


def of_mode(of: str) -> bool:
    """Return whether each mode writes values of a type in its own way."""
    return any(kind in of for kind in WRITTEN_BY_MODE)


def ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {of}" for name, of in columns.items())


def typed(text: str) -> dict[str, str]:
    """Return the columns of lines that each have a type and the names that have it."""
    columns = {}
    for line in text.strip().splitlines():
        of, names = line.split(": ", 1)
        columns.update(dict.fromkeys(names.split(), of.strip()))
    return columns


# What is read by other tests, value by value: numbers in base64.
PRECISE = {
    *{"a_numeric_12_3", "a_numeric_20", "a_numeric_38_10"},
    *{"a_decimal_12_3", "a_decimal_20", "a_decimal_38_10"},
}
# Times in milliseconds, which messages without their Connect schema do not say.
MILLIS = {
    *{"a_timestamp_0", "a_timestamp_3"},
    *{"a_datetime", "a_datetime_1", "a_datetime_3", "booked"},
}
BYTES = {"a_binary", "a_varbinary", "a_tinyblob", "a_blob", "a_longblob"}
TABLES = [
    Recorded(
        "postgresql",
        "everything",
        ("id",),
        typed("""
            INT: id an_int a_domain
            SMALLINT: a_smallint
            BIGINT: a_bigint an_oid
            DECIMAL(12,3): a_numeric_12_3
            DECIMAL(20,0): a_numeric_20
            DECIMAL(38,10): a_numeric_38_10
            DECIMAL(38,6): a_numeric
            DECIMAL(19,2): a_money
            FLOAT: a_real
            DOUBLE: a_double
            STRING: a_text a_varchar a_char a_citext a_uuid a_json a_jsonb an_xml an_inet a_cidr
            STRING: a_macaddr a_macaddr8 an_int4range an_int8range a_numrange a_daterange a_tsrange
            STRING: a_tstzrange an_enum a_tsvector an_ltree
            BINARY: a_bytea
            BOOLEAN: a_boolean a_bit
            DATE: a_date
            TIMESTAMP_NTZ: a_timestamp a_timestamp_0 a_timestamp_3 a_timestamp_4
            TIMESTAMP: a_timestamptz a_timestamptz_3
            MAP<STRING,STRING>: an_hstore
            ARRAY<SMALLINT>: smallints
            ARRAY<INT>: ints
            ARRAY<BIGINT>: bigints
            ARRAY<DECIMAL(10,2)>: numerics
            ARRAY<FLOAT>: reals
            ARRAY<DOUBLE>: doubles
            ARRAY<STRING>: texts varchars uuids inets jsonbs enums
            ARRAY<BINARY>: byteas
            ARRAY<DATE>: dates
            ARRAY<TIMESTAMP_NTZ>: timestamps
            ARRAY<TIMESTAMP>: timestamptzs
            ARRAY<BOOLEAN>: booleans
        """),
        {
            "*": {"a_numeric"},
            "default": {*PRECISE, "a_money", *MILLIS},
            # Numbers in floating point and times in milliseconds have fewer digits.
            "connect": {
                *{"a_numeric", "a_numeric_20", "a_numeric_38_10"},
                *{"a_timestamp", "a_timestamp_4", "timestamps"},
            },
            # Bytes are hexadecimal digits, which are not read.
            "isostring": {"a_date", "a_bytea", "byteas"},
            "nanoseconds": {*MILLIS, "a_timestamp", "a_timestamp_4", "a_bytea", "byteas"},
        },
    ),
    Recorded(
        "postgresql",
        "toasted",
        ("id",),
        typed("""
            INT: id
            STRING: note a_text a_varchar a_char a_citext a_json a_jsonb an_xml an_ltree a_tsvector
            BINARY: a_bytea
            MAP<STRING,STRING>: an_hstore
            ARRAY<INT>: ints
            ARRAY<BIGINT>: bigints
            ARRAY<STRING>: texts varchars uuids jsonbs
            ARRAY<BINARY>: byteas
            ARRAY<DATE>: dates
        """),
        {
            # Debezium sends null in these modes.
            "connect": {"a_bytea", "byteas", "dates"},
            "isostring": {"a_bytea", "byteas", "dates"},
            "microseconds": {"a_bytea", "byteas"},
            "nanoseconds": {"a_bytea", "byteas"},
        },
    ),
    Recorded(
        "postgresql",
        "ledger",
        ("Branch", "number"),
        typed("""
            STRING: Branch remark
            BIGINT: number added
            DECIMAL(12,2): amount
        """),
        {
            # Kafka Connect sends the column's default where the row has null.
            "*": {"added"},
        },
    ),
    Recorded("postgresql", "emptied", ("id",), {"id": "INT", "note": "STRING"}),
    Recorded("postgresql", "without_key", ("id",), {"id": "INT", "note": "STRING"}),
    Recorded(
        "mariadb",
        "everything",
        ("id",),
        typed("""
            INT: id a_smallint_unsigned a_mediumint a_mediumint_unsigned an_int a_year
            TINYINT: a_tinyint
            SMALLINT: a_tinyint_unsigned a_smallint a_boolean
            BIGINT: an_int_unsigned a_bigint
            DECIMAL(20,0): a_bigint_unsigned a_decimal_20
            DECIMAL(12,3): a_decimal_12_3
            DECIMAL(38,10): a_decimal_38_10
            DECIMAL(10,2): a_decimal_unsigned
            FLOAT: a_float
            DOUBLE: a_double
            BOOLEAN: a_bit
            DATE: a_date
            TIMESTAMP_NTZ: a_datetime a_datetime_1 a_datetime_3 a_datetime_4 a_datetime_6
            TIMESTAMP: a_timestamp a_timestamp_3 a_timestamp_6
            STRING: a_char a_varchar a_text a_tinytext a_mediumtext a_longtext a_latin1 an_enum
            STRING: a_set a_json a_uuid
            BINARY: a_binary a_varbinary a_tinyblob a_blob a_longblob
        """),
        {
            # Beyond the range of BIGINT, Debezium sends another number, or one in base64.
            "*": {"a_bigint_unsigned"},
            "default": {*PRECISE, "a_decimal_unsigned", *MILLIS},
            # Numbers in floating point and times in milliseconds have fewer digits.
            "connect": {
                *{"a_decimal_20", "a_decimal_38_10"},
                *{"a_datetime_4", "a_datetime_6"},
            },
            # Bytes are hexadecimal digits, which are not read.
            "isostring": {"a_date", *BYTES},
            "microseconds": BYTES,
            "nanoseconds": {*MILLIS, "a_datetime_4", "a_datetime_6", *BYTES},
        },
    ),
    Recorded(
        "mariadb",
        "ledger",
        ("Branch", "number"),
        typed("""
            STRING: Branch remark
            BIGINT: number added
            DECIMAL(12,2): amount
            TIMESTAMP_NTZ: booked seen
        """),
        {
            "connect": {"seen"},  # in milliseconds
        },
    ),
    Recorded("mariadb", "emptied", ("id",), {"id": "INT", "note": "STRING"}),
    Recorded("mariadb", "without_key", ("id",), {"id": "INT", "note": "STRING"}),
]


@pytest.mark.minutes
@pytest.mark.parametrize("recorded", TABLES, ids=str)
def test_recorded_changes_make_the_rows_of_the_database(
    spark: SparkSession, tmp_path: Path, recorded: Recorded
) -> None:
    modes = [each.split("-", 1)[1] for each in recordings(recorded.database)]
    modes = [mode for mode in modes if mode not in NO_ENVELOPES]
    if not any(map(of_mode, recorded.columns.values())):
        modes = [mode for mode in modes if mode in IN_FULL]
    assert set(IN_FULL) <= set(modes)
    # Recordings have the same changes at the same positions, so one table can hold all of them.
    events = reduce(
        lambda some, more: some.unionByName(more, allowMissingColumns=True),
        # Kept: the plan that reads a wide table is long, and each query plans it again.
        [changes_of(spark, recorded, mode).localCheckpoint() for mode in modes],
    )
    path = str(tmp_path / "t")
    deltaweave.apply_changes(spark, path, events, keys=["mode", *recorded.keys], **FROM_DEBEZIUM)
    rows = Table(spark, path).read().collect()
    expected = spark.read.schema(ddl(recorded.columns)).json(
        str(FOLDER / f"{recorded.database}.{recorded.table}.rows.jsonl")
    )
    held_by_all, wrong = expected.collect(), {}
    for mode in modes:
        names = list(recorded.read_in(mode))
        found = texts_of([row for row in rows if row["mode"] == mode], names)
        held = texts_of(held_by_all, names)
        if found != held:
            wrong[mode] = (found, held)
    assert wrong == {}


def changes_of(spark: SparkSession, recorded: Recorded, mode: str) -> DataFrame:
    """Return a recording's changes of a table, with the mode as a column."""
    found = messages(f"{recorded.database}-{mode}", recorded.table)
    kafka = spark.createDataFrame(
        [(each.value, each.offset) for each in found], "value STRING, offset BIGINT"
    )
    columns = recorded.read_in(mode)
    arguments = ARGUMENTS.get(mode, {})
    if mode == "strings":
        arguments = {"time_unit": dict.fromkeys(MILLIS.intersection(columns), "millis")}
    return debezium_changes(
        kafka, schema=ddl(columns), connector=CONNECTORS[recorded.database], **arguments
    ).withColumn("mode", F.lit(mode))


def texts_of(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return a text of each row, in which NaN equals itself."""
    return sorted(str({name: row[name] for name in names}) for row in rows)


def read_of(
    spark: SparkSession, recording: str, table: str, schema: str, **arguments: Any
) -> DataFrame:
    """Return the rows of a recording's messages, with what is wrong with them."""
    sent = [(m.value, m.offset) for m in messages(recording, table)]
    kafka = spark.createDataFrame(sent, "value STRING, offset BIGINT")
    connector = CONNECTORS[recording.split("-")[0]]
    return debezium_changes(kafka, schema=schema, connector=connector, rescues=True, **arguments)


# By database: the times that Spark lacks or the connector changes, and what is read of rows.
FINITE = ("2024-02-29 00:00:00", "2024-02-29 00:00:00")
OUT_OF_RANGE: dict[str, tuple[str, dict[int, set[Any]]]] = {
    "postgresql": (
        "a_date DATE, a_timestamp TIMESTAMP_NTZ, a_timestamptz TIMESTAMP",
        {3: {("2024-02-29", *FINITE), ("2024-03-01", *FINITE)}},
    ),
    "mariadb": (
        "a_date DATE, a_datetime TIMESTAMP_NTZ, a_datetime_6 TIMESTAMP_NTZ",
        {
            **{key: {(None, None, None)} for key in (1, 3)},  # days that do not exist
            # By the connector: the year 1 is 2001 (enable.time.adjuster).
            **{key: {("2001-01-01", *(["2001-01-01 00:00:00"] * 2))} for key in (2, 4)},
        },
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("database", CONNECTORS)
def test_recorded_times_that_spark_lacks_are_put_aside_or_arrive_as_null(
    spark: SparkSession, database: str
) -> None:
    names = [each for each in recordings(database) if each.split("-")[1] not in NO_ENVELOPES]
    schema, expected = OUT_OF_RANGE[database]
    read = []
    for name in names:
        of_mode = {"time_unit": {"a_datetime": "millis"}} if name == "mariadb-strings" else {}
        read.append(read_of(spark, name, "out_of_range", f"id INT, {schema}", **of_mode))
    times = [F.col(each.split()[0]).cast("string") for each in schema.split(", ")]
    problem = F.col("_cdc_message")["problem"].alias("problem")
    rows = reduce(DataFrame.unionByName, read).select("id", problem, F.array(*times).alias("at"))
    fine: dict[int, set[Any]] = {}
    for row in rows.collect():
        if row.problem is None:
            fine.setdefault(row.id, set()).add(tuple(row.at))
        else:
            assert database == "postgresql"
            assert row.id != 3, row.problem
    assert {of: at for of, at in fine.items() if of in expected} == expected
    assert not fine.keys() & ({1, 2, 4} - expected.keys())  # infinity


@pytest.mark.parametrize("database", CONNECTORS)
def test_recorded_flattened_rows_are_refused(spark: SparkSession, database: str) -> None:
    for table in ("ledger", "emptied"):
        rows = read_of(spark, f"{database}-flattened", table, "id INT, number BIGINT, note STRING")
        with pytest.raises(Exception, match="is not an envelope but a flattened row"):
            rows.collect()


@pytest.mark.parametrize("database", CONNECTORS)
def test_recordings_have_every_kind_of_message(database: str) -> None:
    for recording in recordings(database):
        found = [m for m in messages(recording) if m.topic.count(".") == 2]
        values = [json.loads(each.value) for each in found if each.value is not None]
        carries_schemas = {"schema" in value for value in values}
        assert len(carries_schemas) == 1, recording
        payloads = [value["payload"] if "schema" in value else value for value in values]
        operations = {value["__op" if "flattened" in recording else "op"] for value in payloads}
        # Flattening drops truncates, and the other log's table has none.
        is_whole = not recording.endswith(("flattened", "other_log"))
        assert operations == {*"crud", *("t" if is_whole else "")}, recording
        has_tombstones = any(each.value is None and each.key for each in found)
        assert has_tombstones == (not recording.endswith("flattened")), recording
        keyless = {each.key for each in found if each.topic.endswith(".without_key")}
        assert keyless <= {None}, recording


# Columns for whose values PostgreSQL's connector has no placeholder: null arrives instead.
ALWAYS_NULL = {
    *{"a_varbit", "smallints", "numerics", "reals", "doubles", "booleans", "inets", "hstores"},
    *{"enums", "times", "timestamps", "timestamptzs"},
}


@pytest.mark.parametrize(
    ("mode", "further"),
    [
        ("default", {"a_numeric"}),
        ("strings", set[str]()),
        ("connect", {"a_numeric", "a_bytea", "byteas", "dates"}),
        ("isostring", {"byteas", "dates"}),
        ("microseconds", {"a_bytea", "byteas"}),
        ("nanoseconds", {"byteas"}),
    ],
)
def test_postgresql_sends_null_for_large_values_of_some_types(mode: str, further: set[str]) -> None:
    values = [m.value for m in messages(f"postgresql-{mode}", "toasted") if m.value is not None]
    payloads = [json.loads(value) for value in values]
    rows = [payload.get("payload", payload)["after"] for payload in payloads]
    nulls = {row["note"]: {name for name, is_ in row.items() if is_ is None} for row in rows if row}
    assert nulls["the rest is not sent"] == ALWAYS_NULL | further
    assert nulls["all is sent"] == set()  # by REPLICA IDENTITY FULL
