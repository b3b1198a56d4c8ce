"""Events that cannot be applied are put aside with their reason, and the others are applied."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import FROM_DEBEZIUM, MergeOnReadTable, Table, debezium_changes
from deltaweave.changes.delivery import num_rescued
from deltaweave.errors import SourceError, StatementError
from tests.support.settings import configured

SCHEMA = "id INT, at TIMESTAMP_NTZ, tags ARRAY<INT>, doc VARIANT, name STRING"
TOPIC = "topic STRING, partition INT, offset BIGINT, key STRING, value STRING"
INFINITY = 9223372036825200000


def message(at: int, after: dict[str, Any] | None, **more: Any) -> str:
    return json.dumps({"op": "c", "before": None, "after": after, "source": {"lsn": at}, **more})


# Each message, and a part of what is wrong with it; None for those that are applied.
MESSAGES: list[tuple[str | None, str | None]] = [
    (message(1, {"id": 1, "at": 0, "name": "a"}), None),
    (
        message(2, {"id": 1, "at": INFINITY}),
        "of column at is outside the years 1 to 9999 in micros",
    ),
    (message(3, {"id": 2, "tags": [1, "x"]}), "of column tags is no ARRAY<INT>"),
    (message(4, {"id": 2, "doc": "{nope"}), "of column doc is no VARIANT"),
    (message(5, {"id": "two"}), "the value two of column id is no INT"),
    (message(6, {"id": None, "name": "b"}), "a null in its key id"),
    (message(7, {"id": 2, "tags": [["__debezium_unavailable_value"]]}), "placeholder"),
    (json.dumps({"op": "c", "after": {"id": 3}, "source": {"lsn": None}}), "no sequence"),
    ("{not JSON", "is no JSON envelope"),
    ('{"op": "c", "after": 7, "source": 8}', "is no JSON envelope"),
    (message(9, None, op="d", before={"id": None}), "a null in its key id"),
    (None, None),  # a tombstone
    (message(10, {"id": 2, "tags": [7], "doc": "{}", "name": "c"}), None),
    (message(11, {"id": 1, "name": "d"}, op="u"), None),  # leaves at as it is
    (message(8, {"id": 4, "name": "gone"}), None),
    (message(12, None, op="d", before={"id": 4, "at": INFINITY}), None),  # its key is enough
]
AFTER = [(1, "1970-01-01 00:00:00", "d"), (2, None, "c")]
WRONG = {offset: said for offset, (_, said) in enumerate(MESSAGES) if said is not None}


def topic(spark: SparkSession, messages: list[tuple[str | None, str | None]]) -> DataFrame:
    rows = [("t", 3, n, f'{{"id":{n}}}', text) for n, (text, _) in enumerate(messages)]
    return spark.createDataFrame(rows, TOPIC)


def changes(spark: SparkSession, messages: list[tuple[str | None, str | None]]) -> DataFrame:
    return debezium_changes(
        topic(spark, messages), schema=SCHEMA, connector="postgresql", rescues=True
    )


def apply(spark: SparkSession, path: str, rows: DataFrame, kind: Any, beside: Any) -> DataFrame:
    deltaweave.apply_changes(
        spark,
        path,
        rows,
        keys=["id"],
        rescued=beside,
        stored_as_scd_type=kind,
        **FROM_DEBEZIUM,
    )
    return Table(spark, path).read().where("true" if kind == 1 else "__END_AT IS NULL")


def merged_on_read(
    spark: SparkSession, path: str, rows: DataFrame, kind: Any, beside: Any
) -> DataFrame:
    table = MergeOnReadTable(spark, path, keys=["id"], rescued=beside, **FROM_DEBEZIUM)
    table.append(rows)
    table.rematerialize()
    return table.read()


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("way", "kind", "beside"),
    [(apply, 1, "named"), (apply, 2, True), (merged_on_read, None, True)],
    ids=["current_named", "histories", "merge_on_read"],
)
def test_messages_that_cannot_be_applied_are_kept_aside_once(
    spark: SparkSession, tmp_path: Path, way: Callable[..., DataFrame], kind: Any, beside: Any
) -> None:
    if beside == "named":
        beside = str(tmp_path / "quarantine of orders")
    path = str(tmp_path / "orders")
    for _ in range(2):  # as a run that is retried
        after = way(spark, path, changes(spark, MESSAGES), kind, beside)
        rows = after.select("id", F.col("at").cast("string"), "name").collect()
        assert sorted(map(tuple, rows)) == AFTER
        kept = Table(spark, f"{path}_rescued" if beside is True else beside).read()
        found = {row.message: (row.reason, row.event) for row in kept.collect()}
        assert len(found) == kept.count() == len(WRONG)
        for offset, said in WRONG.items():
            reason, event = found[f'topic t, partition 3, offset {offset}, key {{"id":{offset}}}']
            assert said in reason
            assert event == MESSAGES[offset][0]


@pytest.mark.minutes
def test_any_source_may_have_events_that_are_kept_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    rows = [
        (1, 1, "a", b"\x00"),
        (None, 2, "b", b"\x01"),  # no key
        (2, None, "c", None),  # no sequence
        (2, None, "c", None),  # the same event again
    ]
    source = spark.createDataFrame(rows, "k INT, at INT, `na me` STRING, raw BINARY")
    result = deltaweave.apply_changes(
        spark, path, source, keys=["k"], sequence_by="at", rescued=True
    )
    assert result.num_events_rescued == 3
    assert "rescued: 3 events that cannot be applied" in str(result)
    assert [row.k for row in Table(spark, path).read().collect()] == [1]
    kept = Table(spark, f"{path}_rescued").read().collect()
    assert sorted((row.reason, row.message, json.loads(row.event)["na me"]) for row in kept) == [
        ("a null in its key k", None, "b"),
        ("no sequence", None, "c"),
    ]
    assert {json.loads(row.event)["k"] for row in kept} == {None, 2}


@pytest.mark.minutes
def test_a_wrong_message_is_overlooked_by_no_way_to_apply_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = changes(spark, MESSAGES)
    assert rows.where("_cdc_op <> 't'").count() == len(MESSAGES) - 1  # all but the tombstone
    with pytest.raises(SourceError, match=r"events cannot be applied: id=1 at \S+ has no sequence"):
        deltaweave.apply_changes(
            spark,
            str(tmp_path / "t"),
            changes(spark, MESSAGES[:2]).drop("_cdc_message"),
            keys=["id"],
            sequence_by="_cdc_position",
            present_columns="_cdc_present",
            column_list=["id", "at", "name"],
        )


@pytest.mark.minutes
def test_corrected_events_are_not_rescued_again_by_an_applied_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = spark.createDataFrame([(1, 1), (None, 2)], "k INT, at INT")
    path = str(tmp_path / "t")
    aside = Table(spark, f"{path}_rescued")
    for waiting, before in ((1, None), (0, None), (1, "a RESTORE, which takes the batch back")):
        if before is not None:
            spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
        deltaweave.apply_changes(
            spark,
            path,
            source,
            keys=["k"],
            sequence_by="at",
            rescued=True,
            idempotency=("batches", 1),
        )
        assert aside.read().count() == waiting
        spark.sql(f"DELETE FROM delta.`{aside.path_or_name}`")


@pytest.mark.minutes
def test_a_batch_that_a_restore_took_back_is_appended_and_put_aside_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = spark.createDataFrame([(1, 1), (None, 2)], "k INT, at INT")
    base = str(tmp_path / "t")
    table = MergeOnReadTable(spark, base, keys=["k"], sequence_by="at", rescued=True)
    aside = Table(spark, f"{base}_rescued")
    for number, waiting in ((1, 1), (None, 0), (2, 1)):
        if number == 2:
            spark.sql(f"RESTORE TABLE delta.`{base}_changes` TO VERSION AS OF 0")
        assert table.append(source, applied=("batches", 1)) == number
        assert (table.read().count(), aside.read().count()) == (1, waiting)
        spark.sql(f"DELETE FROM delta.`{aside.path_or_name}`")


@pytest.mark.minutes
def test_tables_that_put_events_aside_together_have_each_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    aside = Table(spark, str(tmp_path / "aside"))
    tables = [Table(spark, str(tmp_path / name)) for name in ("customers", "orders")]
    source = spark.createDataFrame([(None, "x", 1), (1, "y", 2)], "id INT, name STRING, at INT")

    def put_aside() -> list[int | None]:
        for table in tables:
            deltaweave.apply_changes(
                spark,
                table.path_or_name,
                source,
                keys=["id"],
                sequence_by="at",
                rescued=aside.path_or_name,
            )
        return [num_rescued(table, aside.path_or_name) for table in tables]

    for _ in range(2):
        assert (put_aside(), aside.row_count()) == ([1, 1], 2)
    # What an earlier release put aside is of whichever table, and is there once.
    earlier = aside.read().drop("target").where(f"target = '{tables[0].location()}'")
    earlier.write.format("delta").save(str(tmp_path / "earlier"))
    aside = Table(spark, str(tmp_path / "earlier"))
    for _ in range(2):
        assert (put_aside(), aside.row_count()) == ([1, 1], 1)


@pytest.mark.minutes
@pytest.mark.parametrize("way", [apply, merged_on_read])
def test_a_table_that_was_moved_has_what_was_put_aside_before(
    spark: SparkSession, tmp_path: Path, way: Callable[..., DataFrame]
) -> None:
    path, moved = str(tmp_path / "orders"), str(tmp_path / "moved")
    for where in (path, moved):
        if where == moved:
            for ending in ("", "_rescued", "_changes"):
                if Path(path + ending).exists():
                    Path(path + ending).rename(moved + ending)
        way(spark, where, changes(spark, MESSAGES[:3]), 1, True)
        waiting = num_rescued(Table(spark, where), True)
        assert (waiting, Table(spark, f"{where}_rescued").row_count()) == (2, 2)


def test_a_decoded_message_that_is_put_aside_has_its_nulls(spark: SparkSession) -> None:
    row = "STRUCT<id: INT, at: BIGINT, name: STRING>"
    frame = spark.createDataFrame(
        [((None, (1, INFINITY, None), "c", (1,)),)],
        f"value STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<lsn: BIGINT>>",
    )
    rows = debezium_changes(
        frame,
        schema="id INT, at TIMESTAMP, name STRING",
        connector="postgresql",
        offset=None,
        rescues=True,
    )
    [found] = rows.select("_cdc_message.*").collect()
    assert "of column at" in found.problem
    assert json.loads(found.event)["after"] == {"id": 1, "at": INFINITY, "name": None}


@pytest.mark.minutes
def test_decoded_values_that_do_not_fit_their_column_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    row = (
        "STRUCT<id: STRING, n: STRING, tags: ARRAY<STRING>, by: MAP<STRING, STRUCT<b: STRING, "
        "a: STRING>>>"
    )
    fine = ("1", "7", ["8", None], {"x": ("9", "10")})
    decoded = [
        (fine, None),
        (("two", *fine[1:]), "the value two of column id is no INT"),
        (("2", "seven", *fine[2:]), "the value seven of column n is no DOUBLE"),
        (("2", "7", ["8", "nine"], {}), 'the value ["8","nine"] of column tags is no ARRAY<INT>'),
        (("2", "7", [], {"x": ("z", "1")}), "of column by is no MAP<STRING,STRUCT<A:INT,B:INT>>"),
    ]
    events = [((None, after, "c", (n,)), n) for n, (after, _) in enumerate(decoded)]
    of_value = f"STRUCT<before: {row}, after: {row}, op: STRING, source: STRUCT<lsn: BIGINT>>"
    frame = spark.createDataFrame(events, f"value {of_value}, offset BIGINT")

    def changes(*, rescues: bool) -> DataFrame:
        return debezium_changes(
            frame,
            schema="id INT, n DOUBLE, tags ARRAY<INT>, by MAP<STRING, STRUCT<a: INT, b: INT>>",
            connector="postgresql",
            rescues=rescues,
        )

    path = str(tmp_path / "t")
    with pytest.raises(SourceError, match=r"is no (INT|DOUBLE) \(the message at offset \d\)"):
        apply(spark, path, changes(rescues=False), 1, False)
    [applied] = apply(spark, path, changes(rescues=True), 1, True).collect()
    assert (applied.id, applied.n, applied.tags) == (1, 7.0, [8, None])
    assert applied.by["x"].asDict() == {"a": 10, "b": 9}  # by name
    kept = Table(spark, f"{path}_rescued").read()
    reasons = {row.message: row.reason for row in kept.collect()}
    assert len(reasons) == len(decoded) - 1
    for offset, (_, said) in enumerate(decoded):
        assert said is None or said in reasons[f"offset {offset}"]


ZONES = ("Asia/Tokyo", "America/New_York")


@pytest.mark.minutes
def test_events_put_aside_have_the_same_exact_times_in_every_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    micros = (1_767_225_600_123_456, 1_767_225_600_123_999)  # of one millisecond
    for zone in ZONES:
        with configured(spark, {"spark.sql.session.timeZone": zone}):
            instant = "timestamp_micros(micros)"
            local = (
                "TIMESTAMP_NTZ'2026-01-01' + make_interval(0, 0, 0, 0, 0, 0, micros % 1000 / 1e6)"
            )
            source = spark.createDataFrame(
                [(each,) for each in micros], "micros BIGINT"
            ).selectExpr(
                "CAST(NULL AS INT) AS k",
                f"{instant} AS at",
                f"{local} AS local",
                f"array(named_struct('m', map('x', {instant}))) AS nested",
            )
            deltaweave.apply_changes(
                spark, path, source, keys=["k"], sequence_by="at", rescued=True
            )
            kept = [
                json.loads(row.event) for row in Table(spark, f"{path}_rescued").read().collect()
            ]
            digits = ["123456", "123999"]
            instants = [f"2026-01-01T00:00:00.{each}Z" for each in digits]
            assert sorted(each["at"] for each in kept) == instants
            assert sorted(each["nested"][0]["m"]["x"] for each in kept) == instants
            assert sorted(each["local"] for each in kept) == [
                f"2026-01-01T00:00:00.000{each[3:]}" for each in digits
            ]


def test_decoded_structs_in_texts_have_exact_times_in_every_zone(spark: SparkSession) -> None:
    row = "STRUCT<id: INT, doc: STRUCT<at: TIMESTAMP>>"
    after = "named_struct('id', 1, 'doc', named_struct('at', timestamp_micros(1767225600123456)))"
    frame = spark.sql(
        f"SELECT named_struct('before', CAST(NULL AS {row}), 'after', CAST({after} AS {row}), "
        "'op', 'c', 'source', named_struct('lsn', 1L)) AS value"
    )
    for zone in ZONES:
        with configured(spark, {"spark.sql.session.timeZone": zone}):
            rows = debezium_changes(
                frame, schema="id INT, doc STRING", connector="postgresql", offset=None
            )
            [found] = rows.select("doc").collect()
        assert json.loads(found.doc) == {"at": "2026-01-01T00:00:00.123456Z"}


@pytest.mark.parametrize("is_relative", [False, True])
def test_events_are_not_put_aside_into_the_table_itself(
    spark: SparkSession, tmp_path: Path, is_relative: bool
) -> None:
    path = str(tmp_path / "t")
    named = os.path.relpath(path) if is_relative else path
    with pytest.raises(StatementError, match="rescued is the table itself"):
        apply(spark, named, changes(spark, MESSAGES), 1, f"{named}/")
    assert not Table(spark, path).exists()


@pytest.mark.minutes
def test_a_batch_whose_events_are_all_put_aside_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    only_wrong = [MESSAGES[offset] for offset in WRONG]
    assert apply(spark, path, changes(spark, only_wrong), 1, True).count() == 0
    table = MergeOnReadTable(spark, str(tmp_path / "m"), keys=["id"], rescued=True, **FROM_DEBEZIUM)
    assert table.append(changes(spark, only_wrong)) is None


@pytest.mark.minutes
def test_events_put_aside_are_of_a_table_that_is_made_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    aside = str(tmp_path / "aside")
    arguments: dict[str, Any] = {"keys": ["id"], "rescued": aside, **FROM_DEBEZIUM}
    name, only_wrong = "made_after_its_events", [MESSAGES[offset] for offset in WRONG]
    try:
        table = MergeOnReadTable(spark, name, changes=f"{tmp_path}/changes", **arguments)
        for batch in (only_wrong, [*only_wrong, MESSAGES[0]]):
            table.append(changes(spark, batch))
            assert num_rescued(table.base, aside) == len(WRONG)
        assert table.base.exists()
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.minutes
def test_messages_that_cannot_be_read_stop_the_batch_that_rescues_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    # A value, a key, a sequence and an envelope, each read in its own way.
    for offset in (1, 5, 7, 8):
        said = WRONG[offset]
        rows = changes(spark, [MESSAGES[offset]])
        place = r'\(topic t, partition 3, offset 0, key \{"id":0\}\)'
        with pytest.raises(SourceError, match=rf"1 of 1 events .+{place} has .*{said}"):
            apply(spark, path, rows, 1, False)
    assert not Table(spark, path).exists()
