"""Values that come decoded, at every depth: held exactly by the table's type, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import debezium_changes

# By depth: what surrounds a type, and a value in SQL.
DEPTHS = {
    "column": ("{}", "{}"),
    "array": ("ARRAY<{}>", "array(NULL, {})"),
    "struct": ("STRUCT<a: {}, b: INT>", "named_struct('a', {}, 'b', 1)"),
    "value": ("MAP<STRING, {}>", "map('k', {})"),
    "key": ("MAP<{}, INT>", "map({}, 1)"),
    "deep": (
        "ARRAY<MAP<INT, STRUCT<a: ARRAY<{}>>>>",
        "array(map(1, named_struct('a', array({}))))",
    ),
}
# The events' type, the table's type, values that it holds, and values that it does not hold.
PAIRS: list[tuple[str, str, list[str], list[str]]] = [
    ("DOUBLE", "INT", ["-2.0D", "-0.0D"], ["1.5D", "2147483648.0D", "double('NaN')"]),
    ("DOUBLE", "BIGINT", ["9007199254740992D"], ["9223372036854775807D", "double('inf')"]),
    ("FLOAT", "INT", ["float(16777216)"], ["float(2147483647)", "float(0.5)"]),
    ("DECIMAL(9,3)", "DECIMAL(5,2)", ["1.250BD"], ["1.255BD", "1234.500BD", "999.999BD"]),
    ("DECIMAL(25,3)", "BIGINT", ["9223372036854775807.0BD"], ["0.001BD", "9223372036854775808BD"]),
    ("DOUBLE", "DECIMAL(4,1)", ["0.1D"], ["0.15D", "1000.0D", "double('NaN')"]),
    ("TIMESTAMP", "DATE", ["TIMESTAMP'2026-01-02'"], ["TIMESTAMP'2026-01-02 00:00:00.000001'"]),
    (
        "TIMESTAMP_NTZ",
        "DATE",
        ["TIMESTAMP_NTZ'0001-01-01'"],
        ["TIMESTAMP_NTZ'2026-01-02 10:00:00'"],
    ),
    ("BIGINT", "INT", ["2147483647L"], ["2147483648L"]),
    ("BIGINT", "SMALLINT", ["-32768L"], ["32768L"]),
    ("BIGINT", "TINYINT", ["127L"], ["-129L"]),
    ("BIGINT", "DOUBLE", ["4611686018427387904L"], ["9007199254740993L", "9223372036854775807L"]),
    ("INT", "FLOAT", ["16777216"], ["16777217", "2147483647"]),
    ("INT", "BOOLEAN", ["1"], ["2"]),
    ("STRING", "INT", ["'01'"], ["'x'", "'1.5'", "'2147483648'"]),
    ("STRING", "DECIMAL(5,2)", ["'1.250'", "'125E-2'"], ["'1.255'", "'x'", "'1255e-3'"]),
    ("STRING", "DOUBLE", ["'0.1'", "'-Infinity'", "'NaN'"], ["'1e400'", "'-1e400'", "'x'"]),
    ("STRING", "FLOAT", ["'0.5'"], ["'1e39'"]),
    ("STRING", "BIGINT", ["'5'"], ["'5.0000000000000000001'", "'1e-30'"]),
    ("DOUBLE", "FLOAT", ["0.1D", "double('inf')", "double('NaN')"], ["0.123456789D", "1e300D"]),
    ("DECIMAL(20,2)", "DOUBLE", ["0.10BD"], ["123456789012345678.25BD"]),
]


def rows_of(pairs: list[str], cases: list[tuple[int, str]]) -> str:
    """SQL of an array of structs: each has a value in one column, and null in the others."""
    rows = []
    for case, value in cases:
        fields = [
            f"'v{number}', CAST({value if number == case else 'NULL'} AS {of})"
            for number, of in enumerate(pairs)
        ]
        rows.append(f"named_struct({', '.join(fields)})")
    return f"array({', '.join(rows)})"


def read(spark: SparkSession, depth: str, cases: list[tuple[int, str]]) -> list[Any]:
    """Read a message for each case; return its place, problem and row."""
    around, with_parts = DEPTHS[depth]
    held = [around.format(of) for of, *_ in PAIRS]
    after = rows_of(held, [(case, with_parts.format(value)) for case, value in cases])
    envelopes = spark.sql(
        "SELECT named_struct('before', if(offset < 0, after, NULL), 'after', after, 'op', 'c', "
        "'source', named_struct('lsn', 1L)) AS value, offset "
        f"FROM (SELECT posexplode({after}) AS (offset, after))"
    )
    schema = ", ".join(f"v{n} {around.format(of)}" for n, (_, of, *_) in enumerate(PAIRS))
    rows = debezium_changes(
        envelopes, schema=schema, connector="postgresql", offset="offset", rescues=True
    )
    names = ", ".join(f"v{n}" for n in range(len(PAIRS)))
    found = rows.selectExpr("_cdc_message.*", f"to_json(struct({names})) AS row")
    return sorted(found.collect(), key=lambda row: int(row.place.split()[1]))


@pytest.mark.minutes
@pytest.mark.parametrize("depth", DEPTHS)
def test_decoded_parts_are_held_exactly_or_refused(spark: SparkSession, depth: str) -> None:
    around, with_parts = DEPTHS[depth]
    fine = [(number, value) for number, pair in enumerate(PAIRS) for value in pair[2]]
    wrong = [(number, value) for number, pair in enumerate(PAIRS) for value in pair[3]]
    if depth == "key":  # maps have no -0.0, and no two NaN
        fine = [(number, value) for number, value in fine if value != "-0.0D"]
    expected = rows_of(
        [around.format(of) for _, of, *_ in PAIRS],
        [(n, with_parts.format(f"CAST({value} AS {PAIRS[n][1]})")) for n, value in fine],
    )
    read_fine = read(spark, depth, fine)
    shown = spark.sql(f"SELECT to_json(row) AS row FROM (SELECT explode({expected}) AS row)")
    assert [(row.problem, row.row) for row in read_fine] == [(None, r.row) for r in shown.collect()]
    for (number, value), row in zip(wrong, read(spark, depth, wrong), strict=True):
        of = around.format(PAIRS[number][1]).replace(", ", ",").replace(": ", ":").upper()
        ending = f" of column v{number} is no {of}"
        assert row.problem is not None, (PAIRS[number], value, row)
        assert ending in row.problem, row
        assert row.place in row.problem, row


# A type, text, and the value that text in JSON is read as; None if it is refused.
TEXTS: list[tuple[str, str, str | None]] = [
    ("BINARY", "AP8=", "X'00FF'"),
    ("BINARY", "AP-_", "X'00FFBF'"),
    ("BINARY", "A", None),
    ("VARIANT", '{"a": [1]}', """parse_json('{"a":[1]}')"""),
    ("VARIANT", "{", None),
    ("INT", "5.0", "5"),
    ("INT", "5E2", "500"),
    ("INT", "5.5", None),
]


@pytest.mark.minutes
@pytest.mark.parametrize("depth", ["column", "deep"])
def test_decoded_text_is_read_as_text_of_json_is(spark: SparkSession, depth: str) -> None:
    around, with_parts = DEPTHS[depth]
    after = ", ".join(
        f"'v{n}', {with_parts.format(f'{text!r}')}" for n, (_, text, _) in enumerate(TEXTS)
    )
    envelopes = spark.sql(
        "SELECT named_struct('before', if(offset < 0, after, NULL), 'after', after, 'op', 'c', "
        "'source', named_struct('lsn', 1L)) AS value, offset "
        f"FROM (SELECT named_struct({after}) AS after, 0L AS offset)"
    )
    schema = ", ".join(f"v{n} {around.format(of)}" for n, (of, *_) in enumerate(TEXTS))
    rows = debezium_changes(
        envelopes, schema=schema, connector="postgresql", offset="offset", rescues=True
    )
    fine = {f"v{n}": with_parts.format(value) for n, (*_, value) in enumerate(TEXTS) if value}
    wrong = [f"v{n}" for n, (*_, value) in enumerate(TEXTS) if value is None]
    expected = spark.sql(f"SELECT {', '.join(f'{sql} AS {name}' for name, sql in fine.items())}")
    [(read,)] = rows.selectExpr(f"to_json(struct({', '.join(fine)}))").collect()
    [(shown,)] = expected.selectExpr("to_json(struct(*))").collect()
    assert read == shown
    assert rows.selectExpr(*[f"{name} IS NULL" for name in wrong]).collect() == [
        (True,) * len(wrong)
    ]
