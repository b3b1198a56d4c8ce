"""A merge-on-read table checks its arguments before it reads or writes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.errors import DeltaweaveError, NotADeltaTableError, StatementError
from tests.deltaweave.changes.merge_on_read.test_table import frame, rows
from tests.support.drawn_events import PARTIAL, WHOLE, Event, delete


def opened(spark: SparkSession, base: str, **arguments: Any) -> MergeOnReadTable:
    return MergeOnReadTable(spark, base, **{"keys": ["k"], "sequence_by": "seq", **arguments})


def test_a_missing_base_is_reported_also_where_nothing_is_pending(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(NotADeltaTableError, match="there is no Delta table here"):
        opened(spark, str(tmp_path / "mistyped"), **WHOLE).rematerialize()


def test_unknown_words_are_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = opened(spark, str(tmp_path / "base"), **WHOLE)
    table.append(frame(spark, [Event(1, 1, 10)]))
    events = frame(spark, [Event(1, 2, 11)])
    version = table.base.version()
    base = f"delta.`{table.base.path_or_name}`"
    merge = f"MERGE INTO {base} t USING {base} s ON t.k = s.k WHEN MATCHED THEN DELETE"
    any_word: Any = "nope"
    other_key = opened(spark, str(tmp_path / "base"), **{**WHOLE, "keys": ["nope"]})
    partial = opened(spark, str(tmp_path / "base"), **PARTIAL)
    refused: dict[str, Callable[[], Any]] = {
        r"strategy is 'nope'; known are merge, overwrite, replace_where, auto\.": lambda: (
            table.rematerialize(any_word)
        ),
        "method is 'nope'; known are auto, double_rank, full_outer_join, left_join_anti_join, "
        r"left_join_inserts, anti_join\.": lambda: table.read(any_word),
        r"mode is 'nope'; known are append, overwrite\.": lambda: table.base.write(
            table.base.read(), any_word
        ),
        r"fallback is 'nope'; known are None, builtin\.": lambda: deltaweave.merge(
            spark, merge, fallback=any_word
        ),
        r"stored_as_scd_type is 'nope'; known are 1, 2\.": lambda: deltaweave.apply_changes(
            spark,
            table.base.path_or_name,
            events,
            keys=["k"],
            sequence_by="seq",
            stored_as_scd_type=any_word,
        ),
        "keys is a list of one or more": lambda: opened(spark, "anywhere", keys=[]),
        "keys is a list of one": lambda: opened(spark, "anywhere", keys="k"),
        r"reading of .* no column nope\.": other_key.read,
        r"the table has no column nope\.": other_key.rematerialize,
        r"has no column nope\.\n.*\nGive keys= from its columns: k, v, w\.": lambda: (
            other_key.create_view("of_nothing")
        ),
        "has no column _cdc_column_sequences": partial.read,
        r"connector is 'nope'; known are postgresql, ": lambda: deltaweave.debezium_changes(
            events, schema="k INT", connector=any_word
        ),
        r"time_unit is 'nope'; known are micros, millis, nanos\.": lambda: (
            deltaweave.debezium_changes(
                events, schema="k INT", connector="postgresql", time_unit=any_word
            )
        ),
    }
    for problem, call in refused.items():
        with pytest.raises(StatementError, match=problem):
            call()
    assert (table.base.version(), table.pending().batches) == (version, 1)


@pytest.mark.minutes
def test_values_have_the_bases_types_or_are_refused_before_the_append(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = opened(spark, str(tmp_path / "base"))

    def append(value: str, key: str = "1") -> int | None:
        return table.append(spark.sql(f"SELECT {key} AS k, {value} AS v, 1 AS seq"))

    columns = "k INT, v INT, seq INT, _cdc_sequence STRUCT<at: INT, tie: BIGINT>"
    table.base.create_if_missing(columns)
    for value, key in (("'seven'", "1"), ("5000000000", "1"), ("5", "5000000000"), ("5", "'one'")):
        with pytest.raises(DeltaweaveError):
            append(value, key)
    assert append("7L", "2L") == 1
    assert append("8S", "3S") == 2
    read = table.read()
    assert read.schema == table.base.read().drop("_cdc_sequence").schema
    assert rows(read) == {(2, 7, 1), (3, 8, 1)}


@pytest.mark.minutes
def test_a_row_that_breaks_a_constraint_waits_until_an_event_corrects_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "base")
    table = opened(spark, path)

    def append(value: int, sequence: int) -> None:
        table.append(spark.sql(f"SELECT 1 AS k, {value} AS v, {sequence} AS seq"))

    append(5, 1)
    table.rematerialize()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (v > 0)")
    append(-5, 2)
    assert rows(table.read()) == {(1, -5, 2)}
    for strategy in ("merge", "overwrite"):
        with pytest.raises(DeltaweaveError, match="positive"):
            table.rematerialize(strategy)
    append(7, 3)
    table.rematerialize()
    assert rows(table.read_optimized()) == {(1, 7, 3)}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["path", "path in SQL", "name"])
def test_changes_lie_beside_the_base_however_it_is_named(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    database = f"of_{tmp_path.name}".replace("-", "_").lower()
    base, changes = {
        "path": (f"{tmp_path}/orders", f"{tmp_path}/orders_changes"),
        "path in SQL": (f"delta.`{tmp_path}/orders`", f"{tmp_path}/orders_changes"),
        "name": (f"{database}.`orders`", f"{database}.orders_changes"),
    }[kind]
    if kind == "name":
        location = (tmp_path / "database").as_uri()
        spark.sql(f"CREATE DATABASE {database} LOCATION '{location}'")
    table = opened(spark, base, **WHOLE)
    try:
        table.append(frame(spark, [Event(1, 1, 10)]))
        assert rows(table.read()) == {(1, 10, None)}
        table.rematerialize()
        assert rows(table.read_optimized()) == {(1, 10, None)}
        assert Table(spark, changes).row_count() == 1
    finally:
        spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


@pytest.mark.parametrize(
    "where",
    [
        "v = 1",
        "_cdc_sequence.at = 1",
        "_cdc_operation = 'upsert'",
        "_cdc_batch = 1",
        "k = 1 AND _cdc_values.v = 1",
        "_metadata.file_name = 'x'",
    ],
)
def test_a_condition_of_other_columns_than_keys_is_refused_by_their_name(
    spark: SparkSession, tmp_path: Path, where: str
) -> None:
    table = opened(spark, str(tmp_path / "base"), **WHOLE)
    table.append(frame(spark, [Event(1, 1, 10)]))
    with pytest.raises(StatementError, match=r"v|_cdc|_metadata") as raised:
        table.read(where=where)
    assert raised.value.table == table.base.path_or_name
    assert rows(table.read(where=F.col("k") == 1)) == {(1, 10, None)}


@pytest.fixture
def elsewhere(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session in another zone than its process, both with hours that come twice a year."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield session
    monkeypatch.undo()
    time.tzset()


PARTITIONS = {
    # The second hour of its kind in Berlin, and the first.
    "TIMESTAMP": ("TIMESTAMP'2026-10-25 01:30:00Z'", "TIMESTAMP'2026-10-25 00:30:00Z'"),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'2026-10-25 02:30:00.000001'",
        "TIMESTAMP_NTZ'2026-10-25 02:30:00'",
    ),
    "DATE": ("DATE'2026-10-25'", "DATE'0001-01-01'"),
    "BINARY": ("X'4127'", "X'41'"),
    "STRING": (r"'it\'s a \\ or \\\'n of \u0024{spark.app.name}'", "'a/b=c'"),
    "DOUBLE": ("double('NaN')", "1e-5D"),
    "DECIMAL(20, 3)": ("12345678901234567.125", "-0.001"),
    "BOOLEAN": ("true", "false"),
    "INT": ("-1", "NULL"),
}


@pytest.mark.minutes
@pytest.mark.parametrize(
    "data_type",
    [
        # These two have no value that SQL writes otherwise than as it is.
        pytest.param(each, marks=pytest.mark.full_matrix if each in ("DATE", "BOOLEAN") else ())
        for each in PARTITIONS
    ],
)
def test_partitions_of_any_type_are_replaced_and_no_others(
    elsewhere: SparkSession, tmp_path: Path, data_type: str
) -> None:
    one, other = PARTITIONS[data_type]
    table = opened(
        elsewhere,
        str(tmp_path / "base"),
        apply_as_deletes="op = 'd'",
        except_column_list=["seq", "op"],
        partition_by=["p"],
    )

    def events(*values: str) -> Any:
        return elsewhere.sql(
            " UNION ALL ".join(
                f"SELECT {k} k, {v} v, CAST({p} AS {data_type}) p, {seq} seq, '{op}' op"
                for k, v, p, seq, op in (value.split("|") for value in values)
            )
        )

    table.append(events(f"1|10|{one}|1|u", f"2|20|{one}|1|u", f"3|30|{other}|1|u"))
    table.rematerialize()
    kept = "to_json(partitionValues)"
    before = {(row[0], row[1]) for row in table.base.files().selectExpr(kept, "path").collect()}
    table.append(events(f"1|11|{one}|2|u", f"2|0|{one}|2|d"))
    table.rematerialize("replace_where")
    after = {(row[0], row[1]) for row in table.base.files().selectExpr(kept, "path").collect()}
    found = sorted(map(tuple, table.base.read().select("k", "v").collect()))
    assert found == [(1, 11), (3, 30)]
    assert len(before) == len(after) == 2
    assert len(before & after) == 1  # that of the other partition
    assert table.base.read().where(f"p <=> CAST({one} AS {data_type})").count() == 1


@pytest.mark.minutes
def test_a_delete_in_the_partition_of_nulls_leaves_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = opened(
        spark,
        str(tmp_path / "base"),
        apply_as_deletes="op = 'delete'",
        partition_by=["w", "v"],
        **WHOLE,
    )
    table.append(frame(spark, [Event(1, 1, None, "a"), Event(2, 1, 1, None), Event(3, 1, 1, "a")]))
    table.rematerialize()
    table.append(frame(spark, [delete(1, 2), delete(2, 2)]))
    table.rematerialize("replace_where")
    assert rows(table.read_optimized()) == {(3, 1, "a")}
