"""What Debezium sends for values that it does not have, in every form, is never written."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass
from functools import reduce
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import FROM_DEBEZIUM, MergeOnReadTable, Table, debezium_changes
from deltaweave.errors import SourceError, StatementError

DEFAULT = "__debezium_unavailable_value"
CUSTOM = 'n/a "«é😀»" \\ {x}~?>'
POSTGRESQL: dict[str, Any] = {"connector": "postgresql"}


@dataclass(frozen=True)
class Form:
    """A column, a value that it keeps, and a placeholder.

    Attributes:
        of: The column's type.
        kept: Its value before, as JSON has it.
        sent: The placeholder, as JSON has it.
        decoded: The placeholder in decoded rows, if JSON has it in another form.
        kept_decoded: The value before, likewise.
        sent_of: The type in decoded rows, if it is another one.
    """

    of: str
    kept: Any
    sent: Any
    decoded: Any = None
    kept_decoded: Any = None
    sent_of: str | None = None


def forms(placeholder: str) -> dict[str, Form]:
    code = placeholder.encode()
    signed = [each - 256 if each > 127 else each for each in code]
    text = base64.b64encode(code).decode()
    url = base64.urlsafe_b64encode(code).decode()
    of_uuid = uuid.UUID(bytes=md5(code).digest(), version=3)
    kept = {"a": "b"}
    wkb = {"wkb": "AQI=", "srid": 4326}
    return {
        "text": Form("STRING", "long", placeholder),
        "base64": Form("STRING", "long", text),
        "base64_unpadded": Form("STRING", "long", text.rstrip("=")),
        "base64url": Form("STRING", "long", url),
        "base64url_unpadded": Form("STRING", "long", url.rstrip("=")),
        "hex": Form("STRING", "00ff", code.hex()),
        "hex_upper": Form("STRING", "00FF", code.hex().upper()),
        "bytes": Form("BINARY", "AP8=", text, code, b"\x00\xff"),
        "bytes_as_text": Form("BINARY", "AP8=", placeholder, code, b"\x00\xff"),
        "bytes_url": Form("BINARY", "AP8=", url, code, b"\x00\xff"),
        "bytes_hex": Form("BINARY", "AP8=", code.hex(), code, b"\x00\xff"),
        "uuid": Form("STRING", str(uuid.UUID(int=7)), str(of_uuid)),
        "uuid_upper": Form("STRING", str(uuid.UUID(int=7)), str(of_uuid).upper()),
        "uuid_bytes": Form(
            "BINARY", "AP8=", base64.b64encode(of_uuid.bytes).decode(), of_uuid.bytes, b"\x00\xff"
        ),
        "decimal": Form("DECIMAL(9,2)", "1.50", placeholder, sent_of="STRING"),
        "json_document": Form("STRING", '{"a": 1}', placeholder),
        "texts": Form("ARRAY<STRING>", ["long", None], [placeholder]),
        "blobs": Form("ARRAY<BINARY>", ["AP8="], [text], [code], [b"\x00\xff"]),
        "uuids": Form("ARRAY<STRING>", [str(uuid.UUID(int=7))], [str(of_uuid)]),
        "ints": Form("ARRAY<INT>", [1, 2], signed),
        "bigints": Form("ARRAY<BIGINT>", [2**40], signed),
        "unsigned": Form("ARRAY<INT>", [1], list(code)),
        "doubles": Form("ARRAY<DOUBLE>", [0.5], [float(each) for each in signed]),
        "numbers_as_text": Form("ARRAY<STRING>", ["1"], [str(each) for each in signed]),
        "hstore": Form("MAP<STRING,STRING>", kept, {placeholder: placeholder}),
        "hstore_as_json": Form(
            "STRING", '{"a":"b"}', f"{{{json.dumps(placeholder)}:{json.dumps(placeholder)}}}"
        ),
        "hstore_with_blanks": Form(
            "STRING",
            '{"a":"b"}',
            json.dumps({placeholder: placeholder}, indent=1, ensure_ascii=False),
        ),
        "geometry": Form(
            "STRUCT<wkb: BINARY, srid: INT>",
            wkb,
            {"wkb": text, "srid": 4326},
            (code, 4326),
            (b"\x01\x02", 4326),
        ),
        "geography": Form(
            "STRUCT<srid: INT, wkb: BINARY>",
            wkb,
            {"srid": None, "wkb": text},
            (None, code),
            (4326, b"\x01\x02"),
        ),
    }


def messages(spark: SparkSession, encoding: str, placeholder: str, key: int) -> DataFrame:
    """A row of every form with its value, then an update that sends none of the values."""
    table = forms(placeholder)
    if encoding == "rows":
        fields = ", ".join(f"{name}: {form.sent_of or form.of}" for name, form in table.items())
        row = f"STRUCT<id: INT, {fields}, other: INT>"
        kept = [form.kept_decoded or form.kept for form in table.values()]
        sent = [form.decoded or form.sent for form in table.values()]
        return spark.createDataFrame(
            [((None, (key, *kept, 7), "c", (1,)), 0), ((None, (key, *sent, None), "u", (2,)), 1)],
            f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<lsn: BIGINT>>, "
            "offset BIGINT",
        )
    rows = [
        {"id": key, **{name: form.kept for name, form in table.items()}, "other": 7},
        {"id": key, **{name: form.sent for name, form in table.items()}, "other": None},
    ]
    texts = [
        json.dumps({"op": op, "after": row, "source": {"lsn": n}}, ensure_ascii=encoding == "json")
        for n, (op, row) in enumerate(zip("cu", rows, strict=True))
    ]
    frame = spark.createDataFrame([(t, n) for n, t in enumerate(texts)], "value STRING, offset INT")
    return frame.withColumn(
        "value", F.col("value").cast("binary" if encoding == "bytes" else "string")
    )


@pytest.mark.minutes
def test_a_placeholder_in_any_form_leaves_the_value_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    # CUSTOM, whose characters need care, in each encoding.
    cases = [("json", DEFAULT), ("json", CUSTOM), ("bytes", CUSTOM), ("rows", CUSTOM)]
    names = list(forms(DEFAULT))
    schema = ", ".join(
        ["id INT", *(f"{name} {form.of}" for name, form in forms(DEFAULT).items()), "other INT"]
    )
    parts = [
        debezium_changes(
            messages(spark, encoding, placeholder, key),
            schema=schema,
            unavailable=placeholder,
            **POSTGRESQL,
        )
        for key, (encoding, placeholder) in enumerate(cases)
    ]
    rows = reduce(DataFrame.union, parts).persist()
    found = rows.orderBy("_cdc_position", "id").collect()
    firsts, updates = found[: len(cases)], found[len(cases) :]
    for case, first, update in zip(cases, firsts, updates, strict=True):
        # No form is a value, and no value is a form.
        assert {name: update[name] for name in names} == dict.fromkeys(names), case
        assert (update["_cdc_present"], first["_cdc_present"]) == (["id", "other"], None), case
        assert None not in [first[name] for name in names], case

    kept = ["id", *names, "other"]
    expected = [{**first.asDict(), "other": None} for first in firsts]
    expected = [{name: each[name] for name in kept} for each in expected]
    path = str(tmp_path / "t")
    deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    merged = MergeOnReadTable(spark, str(tmp_path / "m"), keys=["id"], **FROM_DEBEZIUM)
    merged.append(rows)
    rows.unpersist()
    for table in (Table(spark, path).read(), merged.read()):
        assert [row.asDict() for row in table.select(*kept).orderBy("id").collect()] == expected


# By column: its type; a value with the placeholder in it, as JSON and decoded.
WITHIN: dict[str, tuple[str, Any]] = {
    "array, among others": ("ARRAY<STRING>", ["a", DEFAULT]),
    "array, twice": ("ARRAY<STRING>", [DEFAULT, DEFAULT]),
    "array of arrays": ("ARRAY<ARRAY<STRING>>", [[DEFAULT]]),
    "array of arrays of numbers": ("ARRAY<ARRAY<INT>>", [list(DEFAULT.encode())]),
    "map, as a value": ("MAP<STRING,STRING>", {"a": DEFAULT}),
    "map, as a key": ("MAP<STRING,STRING>", {DEFAULT: "a"}),
    "struct": ("STRUCT<x: STRING>", {"x": DEFAULT}),
    "array of structs": ("ARRAY<STRUCT<x: STRING>>", [{"x": DEFAULT}]),
    "document": ("STRING", json.dumps({"a": [1, DEFAULT]})),
    "quoted": ("STRING", json.dumps(DEFAULT)),
}


NAMED = (
    r"(?s)column the column contains .*(unavailable_value|\[95).* topic t, partition 3, offset 12"
)


@pytest.mark.minutes
@pytest.mark.parametrize("encoding", ["json", "rows"])
def test_a_placeholder_in_an_unknown_form_is_refused_and_named(
    spark: SparkSession, tmp_path: Path, encoding: str
) -> None:
    for of, value in WITHIN.values():
        if encoding == "rows":
            row = f"STRUCT<id: INT, `the column`: {of}>"
            frame = spark.createDataFrame(
                [("t", 3, 12, (None, (1, value), "u", (2,)))],
                "topic STRING, partition INT, offset BIGINT, "
                f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<lsn: INT>>",
            )
        else:
            after = {"id": 1, "the column": value}
            text = json.dumps({"op": "u", "after": after, "source": {"lsn": 1}})
            frame = spark.createDataFrame(
                [("t", 3, 12, text)], "topic STRING, partition INT, offset BIGINT, value STRING"
            )
        rows = debezium_changes(frame, schema=f"id INT, `the column` {of}", **POSTGRESQL)
        with pytest.raises(PySparkException, match=NAMED):
            rows.collect()
    path = str(tmp_path / "t")
    with pytest.raises(SourceError, match=NAMED):
        deltaweave.apply_changes(spark, path, rows, keys=["id"], **FROM_DEBEZIUM)
    assert not Table(spark, path).exists()


def test_text_that_only_mentions_the_placeholder_is_a_value(spark: SparkSession) -> None:
    texts = [
        f"Debezium sends {DEFAULT} here",
        f'"{DEFAULT}" is what Debezium sends',
        f'[note] "{DEFAULT}"',  # no JSON
        json.dumps({"a": f"see {DEFAULT}"}),
        json.dumps([DEFAULT + "s"]),
        DEFAULT.encode().hex()[:-1],
        "[95]",
        f'["{DEFAULT}"] is what "it" sends',
        "",
    ]
    values = [
        (json.dumps({"op": "c", "after": {"id": n, "text": text}, "source": {"lsn": n}}), n)
        for n, text in enumerate(texts)
    ]
    frame = spark.createDataFrame(values, "value STRING, offset BIGINT")
    rows = debezium_changes(frame, schema="id INT, text STRING", **POSTGRESQL).orderBy("id")
    assert [row.text for row in rows.collect()] == texts


@pytest.mark.parametrize(
    ("unavailable", "kept", "values"),
    [
        # With column.truncate.to.N.chars; the shortest that is no value.
        (DEFAULT, [DEFAULT[:27], DEFAULT[:20], DEFAULT[:11]], [DEFAULT[:10], DEFAULT[1:20]]),
        ("unavailable value", [], ["unavailable"]),
    ],
)
def test_a_placeholder_that_the_connector_truncated_is_one(
    spark: SparkSession, unavailable: str, kept: list[str], values: list[str]
) -> None:
    texts = [*kept, *values]
    envelopes = [
        (json.dumps({"op": "u", "after": {"id": n, "text": text}, "source": {"lsn": n}}), n)
        for n, text in enumerate(texts)
    ]
    frame = spark.createDataFrame(envelopes, "value STRING, offset BIGINT")
    rows = debezium_changes(
        frame, schema="id INT, text STRING", unavailable=unavailable, **POSTGRESQL
    )
    found = [(row.text, row["_cdc_present"]) for row in rows.orderBy("id").collect()]
    assert found == [(None, ["id"])] * len(kept) + [(text, None) for text in values]


@pytest.mark.parametrize("unavailable", ["", "hex:", "hex:xy"])
def test_a_placeholder_that_is_none_is_refused(spark: SparkSession, unavailable: str) -> None:
    frame = spark.createDataFrame([("{}", 0)], "value STRING, offset BIGINT")
    with pytest.raises(StatementError, match="is not a placeholder"):
        debezium_changes(frame, schema="id INT", unavailable=unavailable, **POSTGRESQL)
