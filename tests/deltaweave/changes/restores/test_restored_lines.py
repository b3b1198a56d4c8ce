"""Tables that were restored by time in other zones, and whose logs were cleaned up since."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.tables import MergeOnReadLocations
from deltaweave import Table
from deltaweave.changes import delivery
from deltaweave.changes.history import Remembered
from deltaweave.changes.restores.lineage import LineageLease
from deltaweave.changes.side_tables import Tombstones
from deltaweave.errors import CommitConflictError
from tests.deltaweave.changes.restores.test_restores import (
    DELETES,
    INSERTS,
    KINDS,
    ON_READ,
    OTHERS,
    Kind,
    Lake,
    another_process,
    clean_up,
    on_read,
    rows_of,
)
from tests.deltaweave.changes.test_current_rows import current_rows, frame
from tests.deltaweave.engine.test_session_settings import APPLICATION, VERSION
from tests.support.drawn_events import PARTIAL, Event, delete, truncate
from tests.support.settings import configured

ANEW = "spark.databricks.delta.columnMapping.reuseColumnMetadataDuringOverwrite"
EAST, WEST = "Asia/Tokyo", "America/Los_Angeles"
# What both kinds do alike is tested of one of them in `make test-slow`.
SLOW, FULL = pytest.mark.minutes, pytest.mark.full_matrix
OF_ROWS, OF_HISTORIES = (
    pytest.mark.parametrize(
        "kind",
        [
            pytest.param(kind, marks=SLOW if kind == told else FULL)
            for kind in ("current rows", "histories")
        ],
    )
    for told in ("current rows", "histories")
)

OF_PARTIAL_VERSIONS = replace(KINDS["histories"], arguments={**PARTIAL, "stored_as_scd_type": 2})


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    """Be a process in another zone, in which RESTORE notes its time."""
    assert spark._jvm is not None
    zones, key = spark._jvm.java.util.TimeZone, "spark.sql.session.timeZone"
    before, session = zones.getDefault(), spark.conf.get(key)
    zones.setDefault(zones.getTimeZone(zone))
    spark.conf.set(key, zone)
    try:
        yield
    finally:
        zones.setDefault(before)
        spark.conf.set(key, session)
        another_process()


@pytest.mark.minutes
def test_a_time_of_another_zone_is_that_of_the_version_that_was_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, KINDS["histories"])
    inserted, deleted = lake.apply(INSERTS), lake.apply(DELETES)
    for zone, version, *batches in (
        (EAST, inserted, INSERTS),
        (WEST, deleted, INSERTS, DELETES),
    ):
        with in_zone(spark, zone):
            lake.restore(version, by_time=True)
        assert lake.rows_after_late_events() == lake.expected(*batches), zone


@pytest.mark.minutes
def test_a_restored_base_has_its_batches_in_any_zone_and_with_any_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = on_read(Lake(spark, tmp_path, ON_READ))
    base, changes = f"delta.`{tmp_path}/base`", str(tmp_path / "base_changes")

    def merged() -> tuple[int, int]:
        """The newest batch in the base, with Spark and without."""
        found = pending_changes(MergeOnReadLocations(table.base.path_or_name, changes, ""))
        assert found is not None
        return table.merged_batch(), found.merged_batch

    for batch in (INSERTS, DELETES):
        table.append(frame(spark, batch))
        table.rematerialize()
    inserted, deleted = table.base.version() - 1, table.base.version()
    for zone, version, batch in ((EAST, inserted, 1), (WEST, deleted, 2)):
        history = spark.sql(f"DESCRIBE HISTORY {base}").where(f"version = {version}")
        with in_zone(spark, zone):
            [made] = history.selectExpr("CAST(timestamp AS STRING) AS at").collect()
            spark.sql(f"RESTORE TABLE {base} TO TIMESTAMP AS OF '{made.at}'")
        assert merged() == (batch, batch), zone
    expected = current_rows([*INSERTS, *DELETES])
    spark.sql(f"DELETE FROM {base}")
    spark.sql(f"RESTORE TABLE {base} TO VERSION AS OF {deleted}")
    restored = table.base.version()
    assert table.purge() == 2
    # First, RESTORE's version is cleaned up, and then all before it, too.
    for until, batch in ((deleted, 2), (restored - 1, 0)):
        clean_up(spark, tmp_path / "base", until)
        assert merged() == (batch, batch)
        assert rows_of(table) == expected


@OF_HISTORIES
def test_a_batch_that_a_restore_took_back_is_applied_again_as_a_whole(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    # Upserts and a delete: applying only half of them would show.
    batch = [Event(1, 20, 7, "g"), delete(2, 20), Event(4, 20, 8, "h")]
    inserted = lake.apply(INSERTS)
    applied = lake.apply(batch, pair=("topic", 1))
    assert lake.apply(batch, pair=("topic", 1)) == applied
    lake.restore(inserted)
    assert lake.rows() == lake.kind.rows(INSERTS)
    with configured(spark, {APPLICATION: "topic", VERSION: "1"}):
        again = lake.apply(batch)
    assert lake.rows() == lake.kind.rows([*INSERTS, *batch])
    # What comes again once more changes nothing, and the next batch is applied.
    assert lake.apply(batch, pair=("topic", 1)) == again
    lake.apply(OTHERS, pair=("topic", 2))
    assert lake.rows_after_late_events() == lake.expected(INSERTS, batch, OTHERS)


# Batches of one stream, each with upserts and a delete: half of one would show.
STREAM = {
    1: INSERTS,
    2: [Event(1, 20, 7, "g"), delete(2, 20), Event(4, 20, 8, "h")],
    3: [delete(4, 30), Event(5, 30, 9, "i"), Event(2, 25, 1, "j")],
    4: OTHERS,
}
BACK = [
    pytest.param((4, 2, 3), marks=SLOW),
    pytest.param((3, 2, 4), marks=FULL),
]


@OF_ROWS
@pytest.mark.parametrize("order", BACK)
def test_batches_taken_back_come_again_in_any_order(
    spark: SparkSession, tmp_path: Path, kind: str, order: tuple[int, ...]
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    inserted, _, _ = (lake.apply(STREAM[n], pair=("topic", n)) for n in (1, 2, 3))
    lake.restore(inserted)
    for n in order:
        applied = lake.apply(STREAM[n], pair=("topic", n))
    assert lake.rows() == lake.kind.rows([event for n in STREAM for event in STREAM[n]])
    # All are there, and so is what a second RESTORE keeps.
    for n in (2, 1, 4, 3):
        assert lake.apply(STREAM[n], pair=("topic", n)) == applied, n
    lake.restore(applied - 1)
    last = order[-1]
    rest = [event for n in STREAM if n != last for event in STREAM[n]]
    assert lake.rows() == lake.kind.rows(rest)
    lake.apply(STREAM[last], pair=("topic", last))
    assert lake.rows_after_late_events() == lake.expected(*STREAM.values())


@OF_ROWS
def test_batches_that_a_new_table_lacks_come_after_later_ones(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    for n in (1, 2):
        lake.apply(STREAM[n], pair=("topic", n))
    lake.replace()
    for n in (4, 2, 1):
        lake.apply(STREAM[n], pair=("topic", n))
    expected = lake.kind.rows([*STREAM[1], *STREAM[2], *STREAM[4]])
    assert lake.rows() == expected


@pytest.mark.minutes
def test_batches_that_a_changeset_lost_are_appended_after_later_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = on_read(Lake(spark, tmp_path, ON_READ))

    def append(n: int) -> int | None:
        return table.append(frame(spark, STREAM[n]), applied=("topic", n))

    assert [append(n) for n in (1, 2, 3)] == [1, 2, 3]
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base_changes` TO VERSION AS OF 1")
    assert [append(n) is None for n in (4, 2, 3)] == [False, False, False]
    assert [append(n) for n in (2, 3, 4, 1)] == [None, None, None, None]
    assert rows_of(table) == current_rows([event for n in STREAM for event in STREAM[n]])


@pytest.mark.minutes
def test_batches_that_a_changeset_lacks_are_merged_once_they_are_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = on_read(Lake(spark, tmp_path, ON_READ))
    for n in (1, 2, 3):
        table.append(frame(spark, STREAM[n]))
    for version, merged, pending in ((1, 1, 0), (3, 1, 2)):
        spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base_changes` TO VERSION AS OF {version}")
        if not pending:
            table.rematerialize()
        assert (table.merged_batch(), table.pending().batches) == (merged, pending), version
        assert table.purge() == 1
    expected = current_rows([event for n in (1, 2, 3) for event in STREAM[n]])
    assert rows_of(table) == expected
    table.rematerialize()
    assert {tuple(row) for row in table.read_optimized().collect()} == expected


OTHER_BATCH = [Event(1, 50, 1, "x"), delete(2, 50), Event(3, 5, 1, "y"), Event(3, 40, 3, "c")]
OF_SOME_COLUMNS = [replace(each, present=("v",)) for each in OTHER_BATCH]


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        pytest.param(KINDS["current rows"], [*OTHER_BATCH, truncate(45)], marks=SLOW),
        pytest.param(KINDS["current rows of partial events"], OF_SOME_COLUMNS, marks=FULL),
        pytest.param(KINDS["histories"], OTHER_BATCH, marks=FULL),
        pytest.param(OF_PARTIAL_VERSIONS, OF_SOME_COLUMNS, marks=SLOW),
    ],
)
def test_a_batch_whose_id_was_applied_is_skipped_as_a_whole(
    spark: SparkSession, tmp_path: Path, kind: Kind, batch: list[Event]
) -> None:
    """Its application ids may have begun again, as with a new checkpoint."""
    lake = Lake(spark, tmp_path, kind)
    for n in (1, 2):
        lake.apply([*STREAM[n], Event(3, 30, 3, "c")], pair=("topic", n))
    rows, version = lake.rows(), Table(spark, lake.named("table")).version()
    assert lake.apply(batch, pair=("topic", 1)) == version
    assert lake.rows() == rows
    # Nothing of it is remembered either: these are older than events of it.
    late = [Event(2, 45, 1, "z"), Event(3, 35, 2, "z")]
    lake.apply(late)
    expected = [*STREAM[1], *STREAM[2], Event(3, 30, 3, "c"), *late]
    assert lake.rows() == kind.rows(expected)


@OF_HISTORIES
def test_a_restore_before_a_batchs_commit_makes_the_batch_begin_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake, check = Lake(spark, tmp_path, KINDS[kind]), LineageLease.check
    inserted, _ = lake.apply(INSERTS), lake.apply([delete(5, 40), Event(6, 40, 9, "i")])

    def restored_after(*arguments: Any, **named: Any) -> None:
        check(*arguments, **named)
        monkeypatch.setattr(LineageLease, "check", check)
        with ThreadPoolExecutor(1) as another:
            another.submit(lake.restore, inserted).result()

    monkeypatch.setattr(LineageLease, "check", restored_after)
    # No file of the RESTORE may hold its key, so the two do not conflict.
    late = Event(5, 15, 5, "e")
    lake.apply([late], pair=("topic", 1))
    assert lake.rows() == lake.kind.rows([*INSERTS, late])


@pytest.mark.minutes
def test_a_restore_before_a_rematerialization_commits_loses_no_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, check = on_read(Lake(spark, tmp_path, ON_READ)), LineageLease.check
    undone, pending = Event(6, 40, 9, "i"), Event(5, 15, 5, "e")
    for batch in (INSERTS, [undone]):
        table.append(frame(spark, batch))
        table.rematerialize("merge")
    restore = f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {table.base.version() - 1}"
    table.append(frame(spark, [pending]))

    def restored_after(*arguments: Any, **named: Any) -> None:
        check(*arguments, **named)
        monkeypatch.setattr(LineageLease, "check", check)
        with ThreadPoolExecutor(1) as another:
            another.submit(spark.sql, restore).result()

    monkeypatch.setattr(LineageLease, "check", restored_after)
    with pytest.raises(CommitConflictError, match="RESTORE made version"):
        table.rematerialize("merge")
    expected = current_rows([*INSERTS, undone, pending])
    assert (table.merged_batch(), rows_of(table)) == (1, expected)
    table.rematerialize("merge")
    assert {tuple(row) for row in table.read_optimized().collect()} == expected


@OF_ROWS
def test_what_a_lost_attempt_noted_is_of_the_commit_of_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    lake.apply(INSERTS)
    rival, rivals = Event(7, 10, 5, "e"), list[int]()
    owner: Any = Remembered if "histories" in kind else Tombstones
    name = "add" if "histories" in kind else "remember"
    write = getattr(owner, name)

    def lost(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(owner, name, write)
        write(*arguments, **options)
        rivals.append(lake.apply([rival]))
        raise CommitConflictError("a rival was faster", table="table")

    monkeypatch.setattr(owner, name, lost)
    lake.apply([delete(1, 20), delete(5, 20), Event(6, 20, 6, "f")])
    lake.restore(rivals[0])
    # The deletes are of no commit that the table has.
    late = [Event(1, 15, 7, "g"), Event(5, 15, 8, "h")]
    lake.apply(late)
    assert lake.rows() == lake.kind.rows([*INSERTS, rival, *late])


@OF_ROWS
def test_a_table_that_is_replaced_during_a_batch_remembers_all_of_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake, lineage_lease = Lake(spark, tmp_path, KINDS[kind]), delivery.lineage_lease
    lake.apply(OTHERS)
    # Each table's files have names of their own for its columns.
    with configured(spark, {ANEW: "false"}):
        lake.replace("name")

        def replaced(*arguments: Any) -> LineageLease:
            monkeypatch.setattr(delivery, "lineage_lease", lineage_lease)
            lake.replace("name")
            return lineage_lease(*arguments)

        monkeypatch.setattr(delivery, "lineage_lease", replaced)
        lake.apply([*INSERTS, *DELETES])
    assert lake.rows_after_late_events() == lake.expected(INSERTS, DELETES)


@pytest.mark.minutes
def test_what_a_restore_took_back_is_pending_also_where_the_log_forgets_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = on_read(Lake(spark, tmp_path, ON_READ))
    for batch in (INSERTS, DELETES):
        table.append(frame(spark, batch))
        table.rematerialize()
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF 1")
    restored = table.base.version()
    clean_up(spark, tmp_path / "base", restored - 1)
    table.append(frame(spark, OTHERS))
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/base` SET TBLPROPERTIES ('a' = 'b')")
    clean_up(spark, tmp_path / "base", restored)
    assert rows_of(table) == current_rows([*INSERTS, *DELETES, *OTHERS])


@pytest.mark.minutes
def test_inserts_are_there_once_where_the_log_forgets_what_a_restore_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    kind = replace(ON_READ, arguments={**ON_READ.arguments, "inserts": "op = 'insert'"})
    table, expected = on_read(Lake(spark, tmp_path, kind)), set[Any]()

    def append(k: int) -> None:
        table.append(frame(spark, [Event(k, k, k, "a", "insert")]))
        expected.add((k, k, "a"))

    for k in (1, 2):
        append(k)
        table.rematerialize()
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF 1")
    restored = table.base.version()
    clean_up(spark, tmp_path / "base", restored - 1)
    assert rows_of(table) == expected
    append(3)
    assert rows_of(table) == expected
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/base` SET TBLPROPERTIES ('a' = 'b')")
    clean_up(spark, tmp_path / "base", restored)
    append(4)
    found = pending_changes(
        MergeOnReadLocations(str(tmp_path / "base"), table.changes.path_or_name, "")
    )
    assert found is not None
    assert (table.merged_batch(), found.merged_batch, rows_of(table)) == (0, 0, expected)
    table.rematerialize("merge")
    assert (table.merged_batch(), table.purge()) == (4, 4)
    assert sorted(map(tuple, table.read_optimized().collect())) == sorted(expected)


CLONED = (
    # Names in a clone's commit are not quoted.
    ("default.`20260301`", "clone of name"),
    ("delta.`{folder}/so u'rce.1`", "clone of path"),
)


@pytest.mark.minutes
def test_a_clone_remembers_whatever_its_source_is_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, KINDS["current rows of partial events"])
    for source, name in CLONED:
        named = source.format(folder=tmp_path)
        try:
            for batch in (INSERTS, DELETES):
                lake.apply(batch, named)
            spark.sql(f"CREATE OR REPLACE TABLE delta.`{tmp_path}/{name}` SHALLOW CLONE {named}")
            assert lake.rows_after_late_events(name) == lake.expected(INSERTS, DELETES), name
        finally:
            spark.sql("DROP TABLE IF EXISTS default.`20260301`")


@pytest.mark.minutes
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_clone_remembers_nothing_of_a_table_that_took_its_sources_place(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    lake = Lake(spark, tmp_path, KINDS["current rows"])
    lake.apply(INSERTS)
    lake.clone("clone", lake.apply(DELETES))
    remembered = DELETES
    if how == "replaced":
        lake.replace()
    else:
        (tmp_path / "table").rename(tmp_path / "before")
        remembered = [event for event in DELETES if event.op != "delete"]
        remembered += [delete(1, 5)]  # its row was deleted, and what deleted it is forgotten
    for number in range(4):
        lake.apply([delete(2, 99), Event(50 + number, 1)])
    if how == "removed":  # except its data files, which the clone has
        for file in (tmp_path / "before").glob("*.*"):
            file.rename(tmp_path / "table" / file.name)
    assert lake.rows_after_late_events("clone") == lake.expected(INSERTS, remembered)


@pytest.mark.minutes
def test_a_clone_remembers_what_its_source_did_before_a_restore(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The source may be a clone itself."""
    lake = Lake(spark, tmp_path, KINDS["current rows of partial events"])
    inserted, deleted = lake.apply(INSERTS), lake.apply(DELETES)
    lake.restore(inserted)
    lake.apply(OTHERS)
    lake.clone("clone", deleted)
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/again` SHALLOW CLONE delta.`{tmp_path}/clone`")
    for name in ("again", "clone"):
        assert lake.rows_after_late_events(name) == lake.expected(INSERTS, DELETES), name
