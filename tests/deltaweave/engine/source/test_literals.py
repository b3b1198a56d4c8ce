"""A value that was collected is the same value again when it is given back to Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from deltaweave.engine.source.keys import typed_literal
from tests.support.settings import configured

VALUES = {
    "DATE": ("0001-01-01", "0999-12-31", "1582-10-04", "1582-10-10", "1970-01-01", "9999-12-31"),
    "TIMESTAMP": (
        "0001-01-02 00:00:00.000001Z",
        "1582-10-10 12:00:00Z",
        "1883-11-18 12:03:58.000001Z",
        "1969-12-31 23:59:59.999999Z",
        "2024-03-10 07:30:00Z",
        "2024-11-03 05:30:00Z",  # in New York twice 01:30, once now
        "2024-11-03 06:30:00Z",  # and once an hour later
        "9999-12-30 23:59:59.999999Z",
    ),
    "TIMESTAMP_NTZ": (
        "0001-01-01 00:00:00.000001",
        "1582-10-10 12:00:00",
        "2024-03-10 02:30:00",  # a time that no clock in New York shows
        "9999-12-31 23:59:59.999999",
    ),
    "DECIMAL(38,0)": ("9" * 38, "-" + "9" * 38, "0"),
    "DECIMAL(38,10)": ("9" * 28 + "." + "9" * 10, "0.0000000001", "100", "-1E-10"),
    "DECIMAL(10,2)": ("99999999.99", "0.00", "-1.10"),
    "TINYINT": ("-128", "127"),
    "SMALLINT": ("-32768", "32767"),
    "INT": ("-2147483648", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807", "9007199254740993", "0"),
    "FLOAT": ("NaN", "Infinity", "1.1", "1.17549435E-38"),
    "DOUBLE": ("NaN", "-Infinity", "0.1", "4.9E-324", "1.7976931348623157E308"),
    "STRING": ("", "it's", "a\\b\\\\n", "line\nbreak\r", '\t%_`"', "nul\x00l", "\U0010ffff日ü"),
    "BINARY": ("", "\x00a"),
    "BOOLEAN": ("true", "false"),
}


@pytest.mark.minutes
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_a_collected_value_is_the_same_as_a_literal(spark: SparkSession, zone: str) -> None:
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        for name, texts in VALUES.items():
            rows = spark.createDataFrame([(text,) for text in texts], "value STRING")
            rows = rows.selectExpr(f"CAST(value AS {name}) AS value").localCheckpoint()
            data_type = rows.schema["value"].dataType
            values = [row[0] for row in rows.collect()]
            literals = [typed_literal(value, data_type) for value in values]
            same = [rows.value.eqNullSafe(each).alias(f"is_{i}") for i, each in enumerate(literals)]
            found = rows.select(*same).collect()
            for i, text in enumerate(texts):
                assert found[i][f"is_{i}"], f"{text!r} of {name}"
                assert sum(found[i]) == 1, f"{text!r} of {name} is another value, too"
            kinds = {f.dataType for f in spark.range(1).select(*literals).schema}
            assert kinds == {data_type}, name


def test_a_collected_struct_is_the_same_as_a_literal(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT struct(DATE'0001-01-01' AS `a.b`, struct(1BD AS c, INT(NULL) AS d) AS e) AS v"
    )
    [row] = rows.collect()
    again = typed_literal(row["v"], rows.schema["v"].dataType)
    assert rows.select(again.eqNullSafe(rows.v)).first() == (True,)
