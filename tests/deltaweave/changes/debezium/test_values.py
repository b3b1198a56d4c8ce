"""Times and decimals as connectors send them, with their Connect schema and without."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import deltaweave
from deltaweave import FROM_DEBEZIUM, Table, debezium_changes
from deltaweave.errors import SourceError, StatementError

MYSQL: dict[str, Any] = {"connector": "mysql"}
SOURCE = {"file": "binlog.000001", "pos": 1, "row": 0}


def message(
    after: dict[str, Any], semantics: dict[str, tuple[str, dict[str, str] | None]] | None = None
) -> str:
    """An insert, with the Connect schema of some columns if any are given."""
    payload = {"before": None, "after": after, "op": "c", "source": SOURCE}
    if semantics is None:
        return json.dumps(payload)
    fields = [{"field": "plain", "type": "int32", "optional": True}]
    for name, (semantic, parameters) in semantics.items():
        field = {"field": name, "type": "int64", "name": semantic, "version": 1}
        fields.append(field if parameters is None else {**field, "parameters": parameters})  # type: ignore[dict-item]
    row = {"type": "struct", "fields": fields, "optional": True}
    parts = [{**row, "field": part} for part in ("before", "after")]
    return json.dumps({"schema": {"type": "struct", "fields": parts}, "payload": payload})


def topic(spark: SparkSession, *texts: str) -> DataFrame:
    return spark.createDataFrame(
        [("t", 3, n, text) for n, text in enumerate(texts)],
        "topic STRING, partition INT, offset BIGINT, value STRING",
    )


# 0001-01-01, the year 1969, an hour that a zone has twice, 9999-12-31
DAYS = {-719_162: "0001-01-01", -1: "1969-12-31", 20_751: "2026-10-25", 2_932_896: "9999-12-31"}
MILLIS = {
    -62_135_596_800_000: "0001-01-01 00:00:00",
    -1: "1969-12-31 23:59:59.999",
    1_792_891_800_000: "2026-10-25 01:30:00",
    253_402_300_799_999: "9999-12-31 23:59:59.999",
}
MICROS = {
    -62_135_596_800_000_000: "0001-01-01 00:00:00",
    -1: "1969-12-31 23:59:59.999999",
    1_792_891_800_000_001: "2026-10-25 01:30:00.000001",
    253_402_300_799_999_999: "9999-12-31 23:59:59.999999",
}
NANOS = {
    -1: "1969-12-31 23:59:59.999999",  # rounded down, as databases' times are
    -1_000: "1969-12-31 23:59:59.999999",
    1_792_891_800_000_001_999: "2026-10-25 01:30:00.000001",
}
ISO = {
    "2026-10-25T01:30:00.5Z": "2026-10-25 01:30:00.5",
    "0001-01-01T00:00:00Z": "0001-01-01 00:00:00",
    "2026-10-25 01:30:00.5+00:00": "2026-10-25 01:30:00.5",
}
ZONED = {
    "2026-10-25 01:30:00+09:00": "2026-10-24 16:30:00",
    "2026-10-25T01:30:00.5-05:00": "2026-10-25 06:30:00.5",
    "2026-10-25 01:30:00 Asia/Tokyo": "2026-10-24 16:30:00",
}
DAYS_IN_ISO = {"2026-10-25Z": "2026-10-25", "2026-10-25": "2026-10-25"}
DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
TIMES: list[tuple[str, str, dict[Any, str]]] = [
    (f"{DEBEZIUM}Date", "DATE", DAYS),
    (f"{CONNECT}Date", "DATE", DAYS),
    (f"{DEBEZIUM}IsoDate", "DATE", DAYS_IN_ISO),
    (f"{DEBEZIUM}ZonedTimestamp", "TIMESTAMP", ZONED),
    *[
        (semantic, data_type, values)
        for data_type in ("TIMESTAMP_NTZ", "TIMESTAMP")
        for semantic, values in (
            (f"{DEBEZIUM}Timestamp", MILLIS),
            (f"{CONNECT}Timestamp", MILLIS),
            (f"{DEBEZIUM}MicroTimestamp", MICROS),
            (f"{DEBEZIUM}NanoTimestamp", NANOS),
            (f"{DEBEZIUM}IsoTimestamp", ISO),
            (f"{DEBEZIUM}ZonedTimestamp", ISO),
        )
    ],
]


def shown(rows: DataFrame, columns: dict[str, str]) -> list[Any]:
    """The values as text, instants in UTC."""
    told = {
        "TIMESTAMP": "string(TIMESTAMP_NTZ '1970-01-01' + "
        "INTERVAL '0.000001' SECOND * unix_micros({0})) AS {0}",
    }
    row = rows.selectExpr(
        *[told.get(of, "string({0}) AS {0}").format(name) for name, of in columns.items()]
    ).first()
    assert row is not None
    return list(row)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("zone", "has_schema"), [("America/New_York", True), ("Europe/Berlin", False)]
)
def test_times_of_every_kind_are_the_databases_in_every_zone(
    spark: SparkSession, zone: str, has_schema: bool
) -> None:
    there = spark.newSession()
    there.conf.set("spark.sql.session.timeZone", zone)
    cases = [
        (f"c{n}_{m}", semantic, of, value, expected)
        for n, (semantic, of, values) in enumerate(TIMES)
        for m, (value, expected) in enumerate(values.items())
    ]
    columns = {name: of for name, _, of, _, _ in cases}
    after = {name: value for name, _, _, value, _ in cases}
    semantics = {name: (semantic, None) for name, semantic, *_ in cases}
    units = {
        name: "nanos" if "Nano" in semantic else "micros" if "Micro" in semantic else "millis"
        for name, semantic, of, *_ in cases
        if of != "DATE"
    }
    rows = debezium_changes(
        topic(there, message(after, semantics if has_schema else None)),
        schema=", ".join(f"{name} {of}" for name, of in columns.items()),
        # Without effect where messages say the unit.
        time_unit="micros" if has_schema else units,  # type: ignore[arg-type]
        **MYSQL,
    )
    assert shown(rows, columns) == [expected for *_, expected in cases]


def test_two_messages_of_a_topic_may_have_different_units(spark: SparkSession) -> None:
    texts = [
        message({"at": 1_000}, {"at": (f"{DEBEZIUM}Timestamp", None)}),
        message({"at": 2_000_000}, {"at": (f"{DEBEZIUM}MicroTimestamp", None)}),  # after an ALTER
        message({"at": 3_000_000}),
    ]
    rows = debezium_changes(topic(spark, *texts), schema="at TIMESTAMP_NTZ", **MYSQL)
    found = rows.orderBy("_cdc_position").selectExpr("second(at) AS s").collect()
    assert [row.s for row in found] == [1, 2, 3]


@pytest.mark.minutes
def test_decoded_rows_have_times_in_the_units_that_are_given(spark: SparkSession) -> None:
    row = "STRUCT<day: INT, ms: BIGINT, us: BIGINT>"
    frame = spark.createDataFrame(
        [((None, (20_751, -1, -1), "c", ("f", 1, 0)), 0)],
        f"value STRUCT<before: {row}, after: {row}, op: STRING, "
        "source: STRUCT<file: STRING, pos: INT, row: INT>>, offset INT",
    )
    columns = {"day": "DATE", "ms": "TIMESTAMP_NTZ", "us": "TIMESTAMP"}
    rows = debezium_changes(
        frame,
        schema=", ".join(f"{name} {of}" for name, of in columns.items()),
        time_unit={"ms": "millis"},
        **MYSQL,
    )
    assert shown(rows, columns) == [
        "2026-10-25",
        "1969-12-31 23:59:59.999",
        "1969-12-31 23:59:59.999999",
    ]


@pytest.mark.minutes
def test_decoded_values_are_as_those_in_json(spark: SparkSession) -> None:
    of_row = "STRUCT<v: STRUCT<scale: INT, value: BINARY>, s: STRUCT<x: INT>, d: DOUBLE>"
    frame = spark.createDataFrame(
        [((None, ((2, b"\x00\x96"), (1,), 1.5), "c", (1,)), 0)],
        f"value STRUCT<before: {of_row}, after: {of_row}, op: STRING, "
        "source: STRUCT<lsn: BIGINT>>, offset INT",
    )

    def read(schema: str) -> Row:
        [found] = debezium_changes(frame, schema=schema, connector="postgresql").collect()
        return found

    row = read("v DECIMAL(9,1), s STRING, d DECIMAL(9,1)")
    assert (row.v, row.s, row.d) == (Decimal("1.5"), '{"x":1}', Decimal("1.5"))
    for column, problem in (("v STRING", "v is a decimal's bytes"), ("d INT", "d is no INT")):
        with pytest.raises(PySparkException, match=f"of column {problem}"):
            read(column)


def precise(unscaled: int) -> str:
    """What Connect makes of a decimal's digits."""
    size = unscaled.bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


DECIMALS = ["0", "1.5", "-1.5", "-0.01", "1.27", "1.28", "-1.28", "-1.29", "9" * 36 + ".99"]
DECIMALS += [f"-{'9' * 36}.99", "123456789012345678901234567890.12", "-655.36"]


@pytest.mark.minutes
def test_precise_decimals_are_read_by_their_schema(spark: SparkSession) -> None:
    after: dict[str, Any] = {}
    semantics: dict[str, tuple[str, dict[str, str] | None]] = {}
    for n, text in enumerate(DECIMALS):
        digits = int(Fraction(text) * 100)
        after[f"c{n}"] = precise(digits)
        semantics[f"c{n}"] = (f"{CONNECT}Decimal", {"scale": "2"})
        after[f"v{n}"] = {"scale": 2, "value": precise(digits)}  # says its scale itself
    after["f"], semantics["f"] = precise(15), (f"{CONNECT}Decimal", {"scale": "1"})
    after["n"], semantics["n"] = None, (f"{CONNECT}Decimal", {"scale": "1"})
    names = [f"c{n}" for n in range(len(DECIMALS))] + [f"v{n}" for n in range(len(DECIMALS))]
    schema = ", ".join([*(f"{name} DECIMAL(38,2)" for name in names), "f DOUBLE, n DECIMAL(9,1)"])
    [row] = debezium_changes(
        topic(spark, message(after, semantics)), schema=schema, **MYSQL
    ).collect()
    assert [row[name] for name in names] == [*map(Decimal, DECIMALS)] * 2
    assert (row.f, row.n) == (1.5, None)


# With `decimal.format=NUMERIC`, whose numbers may read like base64 (1234, 12345678).
NUMBERS = ["1234", "12345678", "-1234", "12345678901234567890123456789012345678", "0"]
FRACTIONS = ["12.34", "-0.01", "1E+2", "0E-10", "-1.5E-1", "1234.00", "-1234567890123.45"]


@pytest.mark.minutes
def test_decimals_that_are_numbers_are_read_beside_their_schema(spark: SparkSession) -> None:
    columns: dict[str, tuple[str, str, str]] = {}  # type, scale and JSON
    for n, text in enumerate(NUMBERS):
        columns[f"n{n}"] = ("DECIMAL(38,0)", "0", text)
    for n, text in enumerate(FRACTIONS):
        columns[f"f{n}"] = ("DECIMAL(38,2)", "2", text)
    columns["s"] = ("STRING", "2", "12.34")
    columns["big"] = ("BIGINT", "0", "1234")
    columns["items"] = ("ARRAY<DECIMAL(9,0)>", "0", "[null, 1234]")
    columns["exponents"] = ("ARRAY<DECIMAL(9,2)>", "2", "[1.5, null, -12E+2]")
    # Bytes, also some that read like a number.
    columns["bytes"] = ("DECIMAL(9,0)", "0", '"1234"')
    columns["x"] = ("DECIMAL(9,0)", "0", '"1234"')
    columns["point"] = ("STRUCT<x: DOUBLE>", "0", '{"x": 1.5}')
    columns["of_bytes"] = ("ARRAY<DECIMAL(9,0)>", "0", '[null, "1234"]')
    fields = []
    for name, (of, scale, _) in columns.items():
        said = {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": {"scale": scale}}
        is_array = of.startswith("ARRAY")
        fields.append({"field": name, **({"type": "array", "items": said} if is_array else said)})
    parts = [{"field": part, "type": "struct", "fields": fields} for part in ("before", "after")]
    row = ", ".join(f'"{name.upper()}": {text}' for name, (*_, text) in columns.items())
    for op, part in (("c", "after"), ("d", "before")):
        text = (
            f'{{"schema": {json.dumps({"fields": parts})}, "payload": {{"op": "{op}", '
            f'"{part}": {{{row}}}, "source": {json.dumps(SOURCE)}}}}}'
        )
        schema = ", ".join(f"{name} {of}" for name, (of, *_) in columns.items())
        [found] = debezium_changes(topic(spark, text), schema=schema, **MYSQL).collect()
        of_bytes = Decimal(int.from_bytes(base64.b64decode("1234"), "big", signed=True))
        assert [found[f"n{n}"] for n in range(len(NUMBERS))] == [*map(Decimal, NUMBERS)]
        assert [found[f"f{n}"] for n in range(len(FRACTIONS))] == [*map(Decimal, FRACTIONS)]
        assert (found.s, found.big) == ("12.34", 1234)
        assert (found["items"], found.bytes) == ([None, Decimal(1234)], of_bytes)
        assert found.exponents == [Decimal("1.5"), None, Decimal(-1200)]
        assert (found.of_bytes, found.x) == ([None, of_bytes], of_bytes)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("of", "value", "problem"),
    [
        ("DECIMAL(38,2)", "12345678901234.56", "Spark reads 15 digits of it"),
        ("DECIMAL(38,0)", "1.234567890123456E20", "Spark reads 15 digits of it"),
        ("STRING", "0.1234567890123456", "Spark reads 15 digits of it"),
        ("ARRAY<DECIMAL(38,2)>", "[1, 12345678901234.56]", "is no ARRAY"),
        # Their doubles are 1.0.
        ("DECIMAL(38,18)", "1.000000000000000001", "Spark reads 15 digits of it"),
        ("ARRAY<DECIMAL(38,18)>", "[null, 1.000000000000000001]", "is no ARRAY"),
        # Doubles also as variants: with an exponent, or more than 38 digits.
        ("DECIMAL(38,25)", "1.000000000000000001E-7", "Spark reads 15 digits of it"),
        ("ARRAY<DECIMAL(38,25)>", "[1E-7, 1.000000000000000001E-7]", "is no ARRAY"),
        ("DECIMAL(38,18)", f"1.{'0' * 38}1", "Spark reads 15 digits of it"),
        # A value of its row cannot be a variant.
        ("DECIMAL(9,0)", '1234, "doc": {"a": 1, "a": 2}', "may be bytes or a number"),
        ("ARRAY<DECIMAL(38,18)>", '[1.000000000000000001], "doc": {"a": 1, "a": 2}', "no ARRAY"),
    ],
)
def test_numbers_whose_digits_may_be_lost_are_refused(
    spark: SparkSession, of: str, value: str, problem: str
) -> None:
    said: Any = {"type": "bytes", "name": f"{CONNECT}Decimal", "parameters": {"scale": "2"}}
    said = {"type": "array", "items": said} if of.startswith("ARRAY") else said
    parts = [{"field": "after", "type": "struct", "fields": [{"field": "at", **said}]}]
    text = (
        f'{{"schema": {json.dumps({"fields": parts})}, "payload": {{"op": "c", '
        f'"after": {{"at": {value}}}, "source": {json.dumps(SOURCE)}}}}}'
    )
    rows = debezium_changes(topic(spark, text), schema=f"at {of}", **MYSQL)
    with pytest.raises(PySparkException, match=rf"of column at.*{problem}"):
        rows.collect()


@pytest.mark.minutes
@pytest.mark.parametrize("has_schema", [True, False])
def test_parts_of_values_are_read_as_columns_of_their_types(
    spark: SparkSession, has_schema: bool
) -> None:
    """Units and scales of an array's items are in the message's schema, or are the column's."""
    items: dict[str, tuple[str, str, Any, Any]] = {  # type, Connect schema, items, what is read
        "dates": ("ARRAY<DATE>", f"{DEBEZIUM}Date", [20_751, None], ["2026-10-25", None]),
        "ms": ("ARRAY<TIMESTAMP_NTZ>", f"{DEBEZIUM}Timestamp", [-1], ["1969-12-31 23:59:59.999"]),
        "us": (
            "ARRAY<TIMESTAMP_NTZ>",
            f"{DEBEZIUM}MicroTimestamp",
            [-1],
            ["1969-12-31 23:59:59.999999"],
        ),
        "iso": (
            "ARRAY<TIMESTAMP_NTZ>",
            f"{DEBEZIUM}IsoTimestamp",
            ["2026-10-25T01:30:00.5Z"],
            ["2026-10-25 01:30:00.5"],
        ),
        "scaled": (
            "ARRAY<DECIMAL(9,2)>",
            "io.debezium.data.VariableScaleDecimal",
            [{"scale": 2, "value": precise(150)}],
            ["1.50"],
        ),
    }
    plain: dict[str, tuple[str, Any, str]] = {
        "fields": (
            "STRUCT<City: STRING, at: TIMESTAMP_NTZ, x: STRUCT<Deep: INT>, gone: INT>",
            {"city": "c", "at": -1, "X": {"deep": 5.0}, "other": 1},
            "{c, 1969-12-31 23:59:59.999999, {5}, null}",
        ),
        "by_name": ("MAP<STRING,BINARY>", {"a": base64.b64encode(b"x").decode()}, "{a -> x}"),
        "midnight": ("DATE", "2024-01-01T00:00:00.000Z", "2024-01-01"),
        "whole": ("BIGINT", 5.0, "5"),
        "large": ("BIGINT", 1.5e10, "15000000000"),
        "longest": ("BIGINT", 2**63 - 1, "9223372036854775807"),
        "endless": ("DOUBLE", "-Infinity", "-Infinity"),
    }
    after = {name: value for name, (*_, value, _) in {**items, **plain}.items()}
    payload: Any = {"after": after, "op": "c", "source": SOURCE}
    fields = [
        {"field": name, "type": "array", "items": {"type": "int64", "name": semantic}}
        for name, (_, semantic, *_) in items.items()
    ]
    if has_schema:
        part = {"field": "after", "type": "struct", "fields": fields}
        payload = {"schema": {"type": "struct", "fields": [part]}, "payload": payload}
    schema = ", ".join(f"{name} {of}" for name, (of, *_) in {**items, **plain}.items())
    units: Any = {} if has_schema else {"ms": "millis"}
    rows = debezium_changes(
        topic(spark, json.dumps(payload)), schema=schema, time_unit=units, **MYSQL
    )
    [row] = rows.selectExpr(
        *[f"CAST({name} AS ARRAY<STRING>) AS {name}" for name in items],
        *[f"CAST({name} AS STRING) AS {name}" for name in plain],
    ).collect()
    expected = {name: value for name, (*_, value) in {**items, **plain}.items()}
    assert row.asDict() == expected


# The column's type, its value, the message's Connect schema for it, the unit, and the error.
REFUSED: list[tuple[str, Any, str | None, str, str]] = [
    (
        "TIMESTAMP",
        1_704_067_200_000_001,
        None,
        "millis",
        r"9999 in millis, and inside in micros, nanos",
    ),
    ("TIMESTAMP_NTZ", 1_704_067_200_000_000_001, None, "micros", r"in micros, and inside in nanos"),
    ("DATE", 1_704_067_200_000, None, "micros", r"in days, and inside in millis, micros, nanos"),
    ("TIMESTAMP", 10**20, None, "millis", r"in millis, and inside in no other unit"),
    ("TIMESTAMP", 1, f"{DEBEZIUM}MicroTime", "micros", r"is a io\.debezium\.time\.MicroTime"),
    ("DATE", 2024, f"{DEBEZIUM}Year", "micros", r"is a io\.debezium\.time\.Year"),
    ("TIMESTAMP_NTZ", 9_223_372_036_825_200_000, f"{DEBEZIUM}MicroTimestamp", "micros", "infinity"),
    ("TIMESTAMP_NTZ", 2**63 - 1, f"{DEBEZIUM}NanoTimestamp", "micros", "infinity"),
    ("DATE", 2_146_033_979, f"{DEBEZIUM}Date", "micros", "infinity"),
    ("DATE", -622_191_234, f"{CONNECT}Date", "micros", "infinity"),
    (
        "TIMESTAMP",
        "infinity",
        f"{DEBEZIUM}ZonedTimestamp",
        "micros",
        "is no TIMESTAMP",
    ),
    ("DATE", "+5877611-06-22Z", f"{DEBEZIUM}IsoDate", "micros", "is no DATE"),
    ("TIMESTAMP", "10:34:56.789012Z", f"{DEBEZIUM}ZonedTime", "micros", "is no TIMESTAMP"),
    ("TIMESTAMP", "10:34:56", None, "micros", "is no TIMESTAMP"),
    *[
        ("TIMESTAMP", text, None, "micros", "is no TIMESTAMP with a time zone")
        for text in ("2026-10-25 01:30:00", "2026-10-25T01:30:00.5", "2026-10-25", "2026-10-25 ")
    ],
    ("ARRAY<TIMESTAMP>", ["2026-10-25T01:30:00"], None, "micros", "is no ARRAY<TIMESTAMP>"),
    ("DATE", 1, f"{DEBEZIUM}Timestamp", "micros", "has a time of day, and the column has days"),
    ("DATE", "2024-01-01T10:34:56Z", None, "micros", "is no DATE"),
    *[  # a `datetimeoffset`: without its zone, two instants would be one value
        ("TIMESTAMP_NTZ", text, f"{DEBEZIUM}ZonedTimestamp", "micros", "is no TIMESTAMP_NTZ in UTC")
        for text in (
            "2026-01-01T00:30:00+02:00",
            "2026-01-01 00:30:00.5-00:30",
            "2026-01-01 00:30 Asia/Tokyo",
            "2026-01-01+02:00",
        )
    ],
    ("DATE", "2026-01-01T00:00:00+02:00", f"{DEBEZIUM}ZonedTimestamp", "micros", "is no DATE"),
    ("DATE", {"year": 2026}, f"{DEBEZIUM}StructuredDate", "micros", "is no DATE"),
    ("DECIMAL(9,2)", precise(150), None, "micros", r"decimal\.handling\.mode=string"),
    # More than 38 digits, with 16, 17 and 26 bytes.
    ("DECIMAL(38,2)", precise(10**38), f"{CONNECT}Decimal", "micros", "is no DECIMAL"),
    ("DOUBLE", precise(-(2**127) - 1), f"{CONNECT}Decimal", "micros", "is no DOUBLE"),
    ("DOUBLE", precise(2**200), f"{CONNECT}Decimal", "micros", "is no DOUBLE"),
    ("STRING", precise(150), f"{CONNECT}Decimal", "micros", "the type DECIMAL"),
    ("VARCHAR(20)", precise(150), f"{CONNECT}Decimal", "micros", "the type DECIMAL"),
    ("CHAR(20)", precise(150), f"{CONNECT}Decimal", "micros", "the type DECIMAL"),
    ("BIGINT", precise(150), f"{CONNECT}Decimal", "micros", "the type DECIMAL"),
    (
        "STRING",
        {"scale": 2, "value": precise(150)},
        "io.debezium.data.VariableScaleDecimal",
        "micros",
        "the type DECIMAL",
    ),
    ("DECIMAL(3,2)", "1234.5", None, "micros", "is no DECIMAL"),
    ("DECIMAL(5,2)", 1.255, None, "micros", "is no DECIMAL"),
    ("DECIMAL(9,1)", precise(125), f"{CONNECT}Decimal", "micros", "is no DECIMAL"),
    ("DOUBLE", "1e400", None, "micros", "is no DOUBLE"),
    ("FLOAT", -1e300, None, "micros", "is no FLOAT"),
    ("BINARY", "hello", None, "micros", "is no BINARY"),
    ("BINARY", "%%%%", None, "micros", "is no BINARY"),
    ("INT", 5.5, None, "micros", "is no INT"),
    ("ARRAY<TIMESTAMP>", [1_704_067_200_000_000_001], None, "micros", "is no ARRAY<TIMESTAMP>"),
    ("ARRAY<DECIMAL(5,2)>", [1.255], None, "micros", r"is no ARRAY<DECIMAL\(5,2\)>"),
    ("ARRAY<FLOAT>", [1e300], None, "micros", "is no ARRAY<FLOAT>"),
    ("STRUCT<x: INT>", [1], None, "micros", "is no STRUCT<X:INT>"),
    ("MAP<STRING,INT>", {"a": "b"}, None, "micros", "is no MAP<STRING,INT>"),
    ("ARRAY<INT>", {"a": 1}, None, "micros", "is no ARRAY<INT>"),
    # PostgreSQL's `json` keeps a key that comes twice.
    ("STRUCT<a: INT>", '{"a": 1, "a": 2}', None, "micros", "is no STRUCT<A:INT>"),
    ("STRUCT<name: INT>", {"Name": 1, "NAME": 2}, None, "micros", "is no STRUCT<NAME:INT>"),
    ("MAP<STRING,INT>", '{"a": 1, "a": 2}', None, "micros", "is no MAP<STRING,INT>"),
    ("INT", "many", None, "micros", "is no INT"),
]


@pytest.mark.minutes
def test_values_that_cannot_be_meant_are_refused_with_column_and_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    for of, value, semantic, unit, problem in REFUSED:
        text = message(
            {"id": 1, "at": value}, None if semantic is None else {"at": (semantic, {"scale": "2"})}
        )
        rows = debezium_changes(
            topic(spark, text), schema=f"id INT, at {of}", time_unit=unit, **MYSQL
        )  # type: ignore[arg-type]
        named = rf"(?s)of column at.*{problem}.*topic t, partition 3, offset 0"
        with pytest.raises(PySparkException, match=named):
            rows.collect()
    with pytest.raises(SourceError, match=named):
        deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    assert not Table(spark, path).exists()


DAY = 1_767_225_600_000_000_000  # 2026-01-01
# What is sent for `at`, its Connect schema, and whether digits below the microsecond are lost.
BELOW_MICROSECONDS: list[tuple[Any, str | None, bool]] = [
    (DAY + 100, f"{DEBEZIUM}NanoTimestamp", True),  # a datetime2(7)
    (DAY + 1_000, f"{DEBEZIUM}NanoTimestamp", False),
    (0, f"{DEBEZIUM}NanoTimestamp", False),
    (-1, f"{DEBEZIUM}NanoTimestamp", True),
    (DAY // 1000 + 1, f"{DEBEZIUM}MicroTimestamp", False),  # also where time_unit is nanos
    (DAY + 1, None, True),
    ("2026-01-01T00:00:00.1234567Z", f"{DEBEZIUM}ZonedTimestamp", True),  # a datetimeoffset(7)
    ("2026-01-01T00:00:00.123456000Z", f"{DEBEZIUM}ZonedTimestamp", False),
    (None, f"{DEBEZIUM}NanoTimestamp", False),
]


@pytest.mark.parametrize("form", ["json", "decoded"])
def test_times_name_the_columns_that_lose_their_digits(spark: SparkSession, form: str) -> None:
    cases = BELOW_MICROSECONDS
    if form == "json":
        texts = [
            message({"at": value}, None if semantic is None else {"at": (semantic, None)})
            for value, semantic, _ in cases
        ]
        frame = topic(spark, *texts)
    else:  # without schemas, so numbers have the unit that is given
        cases = [case for case in cases if case[1] != f"{DEBEZIUM}MicroTimestamp"]
        row = "STRUCT<at: STRING>"
        source = tuple(SOURCE.values())
        sent = [None if value is None else str(value) for value, *_ in cases]
        frame = spark.createDataFrame(
            [((None, (value,), "c", source), n) for n, value in enumerate(sent)],
            f"value STRUCT<before: {row}, after: {row}, op: STRING, "
            "source: STRUCT<file: STRING, pos: INT, row: INT>>, offset INT",
        )
    rows = debezium_changes(frame, schema="at TIMESTAMP", time_unit="nanos", **MYSQL)
    found = rows.orderBy("_cdc_position.offset").select("_cdc_message.cut").collect()
    assert [row.cut == ["at"] for row in found] == [is_cut for *_, is_cut in cases]


@pytest.mark.minutes
def test_a_key_below_the_microsecond_is_refused_or_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    nanos = dict.fromkeys(("at", "seen"), (f"{DEBEZIUM}NanoTimestamp", None))
    texts = [
        message({"at": DAY + 100, "seen": DAY}, nanos),  # would be the row of the next
        message({"at": DAY + 200, "seen": DAY}, nanos),
        message({"at": DAY + 1_000, "seen": DAY + 900}, nanos),  # not in its key: it is cut
    ]
    rows = debezium_changes(
        topic(spark, *texts), schema="AT TIMESTAMP_NTZ, seen TIMESTAMP_NTZ", **MYSQL
    )
    with pytest.raises(
        SourceError, match=r"2 of 3 events .*digits below the microsecond in its key AT"
    ):
        deltaweave.apply_changes(spark, path, rows, keys=["at"], **FROM_DEBEZIUM)
    assert not Table(spark, path).exists()
    deltaweave.apply_changes(spark, path, rows, keys=["at"], rescued=True, **FROM_DEBEZIUM)
    [row] = Table(spark, path).read().selectExpr("string(at) AS at", "string(seen)").collect()
    assert tuple(row) == ("2026-01-01 00:00:00.000001", "2026-01-01 00:00:00")
    kept = Table(spark, f"{path}_rescued").read().select("message", "event").collect()
    assert {(row.message[-8:], row.event) for row in kept} == {
        (f"offset {n}", text) for n, text in enumerate(texts[:2])
    }


@pytest.mark.parametrize(
    ("unit", "problem"),
    [
        ({"at": "seconds"}, "time_unit is 'seconds'; known are micros, millis, nanos"),
        ({"id": "micros", "gone": "micros"}, "names id, gone, which is no TIMESTAMP in schema"),
    ],
)
def test_units_are_those_of_columns_that_are_times(
    spark: SparkSession, unit: Any, problem: str
) -> None:
    with pytest.raises(StatementError, match=problem):
        debezium_changes(topic(spark), schema="id INT, at TIMESTAMP", time_unit=unit, **MYSQL)
