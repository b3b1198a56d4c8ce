"""Source partitions of CSV and JSON: their columns, and rows that do not fit the schema."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import read_source_partition
from deltaweave.errors import SourceError, StatementError

Read = Callable[..., DataFrame]

SCHEMA = "id INT, `a name` STRING, price DECIMAL(6,2), day DATE"
CSV = "id,a name,price,day\n1,x,1.50,2026-11-01\n2,,2,\n"
ROWS = {(1, "x", Decimal("1.50"), "2026-11-01"), (2, None, Decimal("2.00"), "None")}


@pytest.fixture
def landed(tmp_path: Path) -> Callable[..., Path]:
    def write(**files: str | bytes) -> Path:
        directory = tmp_path / "2026-11-01 é"
        directory.mkdir(exist_ok=True)
        for each in directory.iterdir():
            each.unlink()
        for name, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            (directory / name.replace("_", ".", 1)).write_bytes(data)
        return directory

    return write


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def read(path: Path, **arguments: Any) -> DataFrame:
        wanted = {"schema": SCHEMA, "format": "csv", **arguments}
        return read_source_partition(spark, str(path), table="orders", **wanted)

    return read


def rows(frame: DataFrame) -> set[tuple[object, ...]]:
    return {(*row[:3], str(row[3])) for row in frame.collect()}


@pytest.mark.minutes
def test_csv_columns_are_found_by_header_and_json_columns_by_name(
    read: Read, landed: Callable[..., Path]
) -> None:
    # Two files with their columns in another order, one of them compressed.
    turned = "day,price,id,a name\n2026-11-02,3.10,3,\"y, 'z'\"\n"
    path = landed(a_csv=CSV, b_csv_gz=b"")
    (path / "b.csv_gz").rename(path / "b.csv.gz")
    (path / "b.csv.gz").write_bytes(gzip.compress(turned.encode()))
    assert rows(read(path)) == ROWS | {(3, "y, 'z'", Decimal("3.10"), "2026-11-02")}
    # A file by itself, and one column alone.
    assert rows(read(path / "a.csv")) == ROWS
    assert [row.id for row in read(path / "a.csv").select("id").collect()] == [1, 2]
    # Without a header, the columns are in the order of the schema.
    path = landed(a_csv="1;x;1.50;01.11.2026\n2;;2;\n")
    options = {"header": False, "sep": ";", "dateFormat": "dd.MM.yyyy"}
    assert rows(read(path, options=options)) == ROWS
    path = landed(a_json='{"id":1,"a name":"x","price":1.5,"day":"2026-11-01"}\n{"price":2,"id":2}')
    assert rows(read(path, format="json")) == ROWS


@pytest.mark.minutes
def test_a_row_that_does_not_fit_is_named_by_file_line_and_column(
    spark: SparkSession, read: Read, landed: Callable[..., Path], tmp_path: Path
) -> None:
    cases: list[tuple[str, str, dict[str, Any], list[str]]] = [
        # of a text of several lines, the line where the row begins
        ("csv", CSV + "3,\"q\nr\",no,\n", {"multiLine": True},
         ["a.csv, line 4, column price (decimal(6,2)): '3,\"q"]),
        ("csv", "id,a name,price,day\r\nno,x,1,nor\r\n5\r\n6,x,1,,7\r\n", {},
         ["line 2, column id (int), column day (date): 'no,x,1,nor'",
          "line 3, no row of 4 values: '5'", "line 4, no row of 4 values: '6,x,1,,7'"]),
        # only ends of lines end them, and a byte order mark is in none
        ("csv", "\ufeffid,a name,price,day\n1,x\x0by,1,\nno,a\x0bb\x85c\u2028d,1,\n", {},
         ["line 3, column id (int)"]),
        ("csv", "\ufeffno,x,1,\n", {"header": False}, ["line 1, column id (int): 'no,x,1,'"]),
        ("json", '{"id":1}\n{"id":"one"}\nnone\n', {},
         ["a.json, line 2, column id (int): '{\"id\":\"one\"}'", "line 3, no JSON object: 'none'"]),
    ]  # fmt: skip
    for format, text, options, expected in cases:
        path = landed(**{f"a_{format}": text})
        with pytest.raises(SourceError, match="rows that do not fit its schema") as caught:
            read(path, format=format, options=options)
        for part in expected:
            assert part in str(caught.value)

    path, beside = (
        landed(a_csv=CSV + "no,x,1,\n", b_csv="id,a name,price,day\n1\n"),
        str(tmp_path / "rescued"),
    )
    for _ in range(2):  # read again, they are put aside once
        kept = read(path, rescued=beside)
        assert rows(kept) == ROWS
        # nor are they among those of a column that fits, or of none
        assert kept.select("a name").where("`a name` = 'x'").collect() == [("x",)]
        assert kept.count() == 2
        found = spark.read.format("delta").load(beside).orderBy("file")
        assert [(row.record, row.columns) for row in found.collect()] == [
            ("no,x,1,", ["id"]),
            ("1", []),
        ]
    # A row of JSON, too, is bad whatever is read of it.
    path = landed(a_json='{"id":1,"a name":"x"}\n{"id":"no","a name":"y"}\n')
    kept = read(path, format="json", rescued=beside)
    assert kept.select("a name").collect() == [("x",)]
    assert kept.count() == 1
    # Reading files that were replaced after the look fails.
    late = read(landed(a_csv=CSV))
    (path / "a.csv").write_text(CSV + "no,x,1,\n")
    with pytest.raises(Exception, match="a row does not fit the schema: no,x,1,"):
        late.select("a name").collect()
    # Repaired and delivered again, it has none any more.
    read(landed(a_csv=CSV), rescued=beside)
    assert spark.read.format("delta").load(beside).count() == 0


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("text", "options", "refused"),
    [
        ('{"id":1}{"id":2}\n{"id":3}\n', {}, "line 1: '{\"id\":1}{\"id\":2}'"),
        ('{"id":1}\n{"id":2},{"id":3}\n', {}, "line 2: "),
        ('{"id":1}}\n', {}, "line 1: "),
        ('\ufeff{"id":1}]\n', {}, "line 1: "),
        ('{"id":1} x\n', {}, "line 1: "),
        ('[{"id":1}][]\n', {}, "line 1: "),
        ('{"id":1}\0{"id":2}\n', {}, "line 1: "),
        # as lines are, read by mistake as one text
        ('{"id":1}\n{"id":2}\n', {"multiLine": True}, "line 1: "),
        ('[{"id":1}]\n[{"id":2}]', {"multiLine": True}, "line 1: "),
        # What Spark reads whole, or finds bad itself, is as it was.
        ('\ufeff{"id":1}\n\n \n{"id":2} \n', {}, [1, 2]),
        ('[{"id":1},{"id":2}]\n[]\nnone\n{"id":"x"}{"id":3}\n', {}, [1, 2]),
        ('[{"id":1},\n{"id":2}]\n', {"multiLine": True}, [1, 2]),
        ('{"id":1 /* a */} // b\n{id:2}\n',
         {"allowComments": True, "allowUnquotedFieldNames": True}, [1, 2]),
    ],
)  # fmt: skip
def test_what_follows_the_first_value_of_json_is_not_dropped(
    read: Read, landed: Callable[..., Path], tmp_path: Path,
    text: str, options: dict[str, Any], refused: str | list[int],
) -> None:  # fmt: skip
    path, arguments = landed(a_json=text), {"format": "json", "options": options}
    arguments["rescued"] = str(tmp_path / "rescued")
    if isinstance(refused, list):
        assert sorted(row.id for row in read(path, **arguments).collect()) == refused
        return
    with pytest.raises(SourceError, match="more than one value in a text of JSON") as caught:
        read(path, **arguments)
    assert f"a.json, {refused}" in str(caught.value)


@pytest.mark.minutes
@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16LE", "ISO-8859-1", None])
def test_json_of_other_encodings_is_looked_at_as_it_is_read(
    read: Read, landed: Callable[..., Path], encoding: str | None
) -> None:
    options: dict[str, Any] = {"encoding": encoding, "multiLine": True}
    text = '{"id":1,"a name":"é"}\n'
    path = landed(a_json=text.encode(encoding or "UTF-16"))
    assert [row[1] for row in read(path, format="json", options=options).collect()] == ["é"]
    if encoding is not None:  # otherwise, Spark finds out
        path = landed(a_json=(text + text).encode(encoding))
        with pytest.raises(SourceError, match=r"more than one value in a text of JSON: .*é"):
            read(path, format="json", options=options)


@pytest.mark.minutes
def test_csv_is_read_by_rfc_4180_unless_options_say_otherwise(
    read: Read, landed: Callable[..., Path]
) -> None:
    schema = "id INT, s STRING"
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ('1,"x, ""q"""', 'x, "q"', {}),
        ('1,"c:\\d\\"', "c:\\d\\", {}),
        ("1,@x, @@q@@@", "x, @q@", {"quote": "@"}),
        ('1,"x, \\"q\\""', 'x, "q"', {"ESCAPE": "\\"}),
        ("1,None", "None", {"nullValue": None}),
    ]
    for text, value, options in cases:
        path = landed(a_csv=f"id,s\n{text}\n")
        assert read(path, schema=schema, options=options).collect() == [(1, value)]


def test_other_columns_and_options_are_refused(read: Read, landed: Callable[..., Path]) -> None:
    path = landed(a_csv=CSV, b_csv="id,name,price,day\n")
    with pytest.raises(SourceError, match=r"b\.csv: column a name string is missing; column name"):
        read(path)
    path = landed(a_json='{"id":1}\n{"idd":2}\n')
    with pytest.raises(SourceError, match=r"a\.json: column idd string is unexpected"):
        read(path, format="json")
    with pytest.raises(SourceError, match="holds no file"):
        read(landed(), format="csv")
    with pytest.raises(SourceError, match=r"has no columns in b\.csv: the file is empty"):
        read(landed(a_csv=CSV, b_csv=""))
    with pytest.raises(StatementError, match="the option MODE is set by the function itself"):
        read(path, options={"MODE": "DROPMALFORMED"})
    with pytest.raises(StatementError, match="options and rescued are for CSV and JSON"):
        read(path, format="parquet", rescued="t")
