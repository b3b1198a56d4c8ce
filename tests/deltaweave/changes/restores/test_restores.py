"""Tables of change events that were restored, cloned, copied or replaced: what they remember."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes.merge_on_read import watermark
from deltaweave.changes.restores import commit_lines, lineage
from deltaweave.changes.side_tables import EVENTS, side_table
from deltaweave.changes.side_tables.tombstones import Tombstones
from deltaweave.errors import ConstraintViolationError, SourceError
from tests.deltaweave.changes.test_current_rows import current_rows, frame
from tests.deltaweave.changes.test_histories import versions
from tests.support.drawn_events import PARTIAL, WHOLE, Event, Row, delete


@dataclass(frozen=True)
class Kind:
    """A kind of table; `rows` makes its rows of all events, by plain Python."""

    arguments: dict[str, Any]
    columns: tuple[str, ...]
    rows: Callable[[Sequence[Event]], set[Row]]


KINDS = {
    "current rows": Kind(WHOLE, ("k", "v", "w"), current_rows),
    "current rows of partial events": Kind(PARTIAL, ("k", "v", "w"), current_rows),
    "histories": Kind(
        {**WHOLE, "stored_as_scd_type": 2}, ("k", "v", "w", "__START_AT", "__END_AT"), versions
    ),
}

INSERTS = [Event(1, 10, 1, "a"), Event(2, 10, 2, "b")]
# The second changes nothing that a version shows, so a history remembers it beside the table.
DELETES = [delete(1, 20), Event(2, 30, 2, "b")]
OTHERS = [Event(3, 30, 3, "c"), delete(3, 40)]
# A late event of a key that was deleted, and one between the two that the history knows.
LATE = [Event(1, 15, 5, "e"), Event(2, 20, 6, "f")]
PARTIAL_LATE = [Event(1, 15, 5, present=("v",)), Event(2, 20, 6, present=("v",))]


@dataclass(frozen=True)
class Lake:
    """A table, and what is done to it."""

    spark: SparkSession
    folder: Path
    kind: Kind

    def apply(
        self, events: Sequence[Event], name: str = "table", pair: tuple[str, int] | None = None
    ) -> int:
        """Apply events; return the version after them."""
        table = self.named(name)
        deltaweave.apply_changes(
            self.spark,
            table,
            frame(self.spark, events),
            keys=["k"],
            sequence_by="seq",
            apply_as_deletes="op = 'delete'",
            apply_as_truncates="op = 'truncate'",
            idempotency=pair,
            **self.kind.arguments,
        )
        return Table(self.spark, table).version()

    def named(self, name: str) -> str:
        """The table in the folder with a name, unless it is one with back quotes."""
        return name if "`" in name else str(self.folder / name)

    def restore(self, version: int, *, by_time: bool = False) -> None:
        table, to = f"delta.`{self.folder}/table`", f"VERSION AS OF {version}"
        if by_time:
            history = self.spark.sql(f"DESCRIBE HISTORY {table}").where(f"version = {version}")
            [made] = history.selectExpr("CAST(timestamp AS STRING) AS at").collect()
            to = f"TIMESTAMP AS OF '{made.at}'"
        self.spark.sql(f"RESTORE TABLE {table} TO {to}")

    def clone(self, name: str, version: int) -> None:
        self.spark.sql(
            f"CREATE TABLE delta.`{self.folder}/{name}` SHALLOW CLONE delta.`{self.folder}/table` "
            f"VERSION AS OF {version}"
        )

    def replace(self, mapping: str = "none") -> None:
        """Recreate the table in its place, with a mode of column mapping."""
        path, name = self.folder / "table", "replaced_changes"
        self.spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{path}'")
        try:
            columns = Table(self.spark, str(path)).read().limit(0)
            columns.createOrReplaceTempView("columns_of_changes")
            self.spark.sql(
                f"CREATE OR REPLACE TABLE {name} USING delta LOCATION '{path}' "
                f"TBLPROPERTIES ('delta.columnMapping.mode' = '{mapping}') "
                "AS SELECT * FROM columns_of_changes"
            )
        finally:
            self.spark.sql(f"DROP TABLE {name}")  # its name alone: it is where it was

    def rows(self, name: str = "table") -> set[Row]:
        read = Table(self.spark, self.named(name)).read().select(*self.kind.columns)
        return {tuple(row) for row in read.collect()}

    def rows_after_late_events(self, name: str = "table") -> set[Row]:
        partial = "present_columns" in self.kind.arguments
        self.apply(PARTIAL_LATE if partial else LATE, name)
        return self.rows(name)

    def expected(self, *batches: Sequence[Event]) -> set[Row]:
        """The rows of batches and late events."""
        late = PARTIAL_LATE if "present_columns" in self.kind.arguments else LATE
        return self.kind.rows([event for batch in (*batches, late) for event in batch])


def another_process() -> None:
    """Forget what this process looked at."""
    side_table.checked_until.clear()
    side_table.noted_batches.clear()
    forget_logs()


def forget_logs() -> None:
    """Forget what this process read in logs."""
    commit_lines.applied_ids.clear()
    commit_lines.restored_versions.clear()
    commit_lines.looks_at_batches.clear()
    lineage.known_logs.clear()
    watermark.merged_in_sources.clear()


@pytest.mark.minutes
def test_late_events_find_restored_rows_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, KINDS["current rows of partial events"])
    inserted, _ = lake.apply(INSERTS), lake.apply(DELETES)
    lake.restore(inserted)
    assert lake.rows_after_late_events() == {(1, 5, "a"), (2, 6, "b")}


# Tables of whole events remember as those of partial events do, except the columns. Histories are
# also restored by time, in another zone: `test_restored_lines`.
@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["current rows of partial events", "histories"])
def test_what_a_restored_table_does_not_have_does_not_count(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    inserted, deleted = lake.apply(INSERTS), lake.apply(DELETES)
    newest = lake.apply(OTHERS)
    # Each RESTORE leaves out what came after its version, also what came after an earlier RESTORE.
    restored: list[tuple[Any, ...]] = [
        (deleted, INSERTS, DELETES),
        (0,),
        (newest, INSERTS, DELETES, OTHERS),
        (inserted, INSERTS),
    ]
    for version, *batches in restored[kind == "histories" :]:
        lake.restore(version, by_time=version == deleted)
        another_process()
        assert lake.rows_after_late_events() == lake.expected(*batches), (version, batches)


@pytest.mark.minutes
def test_an_older_version_of_a_side_table_counts_what_it_did(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A reader has it while others settle the side table."""
    lake = Lake(spark, tmp_path, KINDS["current rows"])
    inserted, _ = lake.apply(INSERTS), lake.apply(DELETES)
    lake.restore(inserted)
    tombstones = Tombstones.of(Table(spark, lake.named("table")))
    older = tombstones.kept_in.snapshot()
    newest = tombstones.settle()
    found = side_table.settled(older, newest, side_table.TOMBSTONES)
    assert found is not None
    assert found.rows.collect() == []
    settled = tombstones.kept_in.snapshot()
    assert settled.version == older.version + 1
    assert side_table.settled(settled, newest, side_table.TOMBSTONES) is None


@pytest.mark.minutes
def test_a_restore_during_a_batch_makes_it_begin_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, KINDS["current rows of partial events"])
    inserted, _ = lake.apply(INSERTS), lake.apply(DELETES)
    remember = Tombstones.remember

    def restored_after(*arguments: Any) -> int | None:
        noted = remember(*arguments)
        monkeypatch.setattr(Tombstones, "remember", remember)
        lake.restore(inserted)
        return noted

    monkeypatch.setattr(Tombstones, "remember", restored_after)
    # A delete that changes nothing is not forgotten by a RESTORE to what came after it.
    applied = lake.apply([delete(9, 50)])
    lake.apply([Event(7, 60, 7, "g")])
    lake.restore(applied)
    lake.apply([Event(9, 40, 9, "i"), *PARTIAL_LATE])
    assert lake.rows() == lake.expected(INSERTS)


# What a clone or a copy has is found alike for all kinds.
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("kind", "names"),
    [("current rows", ("of_deleted", "copied")), ("histories", ("of_inserted",))],
)
def test_a_clone_a_copy_and_a_new_table_count_what_their_rows_come_from(
    spark: SparkSession, tmp_path: Path, kind: str, names: Sequence[str]
) -> None:
    lake = Lake(spark, tmp_path, KINDS[kind])
    inserted, deleted = lake.apply(INSERTS), lake.apply(DELETES)
    lake.clone("of_deleted", deleted)
    lake.clone("of_inserted", inserted)
    shutil.copytree(lake.folder / "table", lake.folder / "copied")
    for name in names:
        batches = [INSERTS] if name == "of_inserted" else [INSERTS, DELETES]
        assert lake.rows_after_late_events(name) == lake.expected(*batches), name
    lake.replace()
    assert lake.rows() == set()
    assert lake.rows_after_late_events() == lake.expected()
    lake.restore(inserted)
    assert lake.rows_after_late_events() == lake.expected(INSERTS)


def on_read(lake: Lake, name: str = "base") -> MergeOnReadTable:
    return MergeOnReadTable(
        lake.spark,
        str(lake.folder / name),
        keys=["k"],
        sequence_by="seq",
        apply_as_deletes="op = 'delete'",
        keep_merged_for=timedelta(0),
        **lake.kind.arguments,
    )


ON_READ = Kind(WHOLE, ("k", "v", "w"), current_rows)


@pytest.mark.minutes
@pytest.mark.parametrize("strategy", ["merge", "overwrite"])
def test_a_restored_base_is_read_with_the_batches_that_it_lost(
    spark: SparkSession, tmp_path: Path, strategy: Any
) -> None:
    lake = Lake(spark, tmp_path, ON_READ)
    table = on_read(lake)
    table.append(frame(spark, INSERTS))
    table.rematerialize()
    inserted = table.base.version()
    table.append(frame(spark, DELETES))
    table.rematerialize()
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {inserted}")
    assert (table.merged_batch(), table.pending().batches, table.purge()) == (1, 1, 1)
    assert rows_of(table) == current_rows([*INSERTS, *DELETES])
    done = table.rematerialize(strategy)
    assert done is not None
    assert (done.batch, table.merged_batch(), table.pending().batches) == (2, 2, 0)
    table.append(frame(spark, LATE))
    expected = current_rows([*INSERTS, *DELETES, *LATE])
    assert rows_of(table) == expected
    table.rematerialize(strategy)
    assert {tuple(row) for row in table.read_optimized().collect()} == expected
    if strategy == "overwrite":
        # Rows that are corrected by an overwrite are those of the batches that were merged.
        spark.sql(f"CREATE TABLE corrected USING delta LOCATION '{tmp_path}/base'")
        rows = spark.table("corrected")
        rows.where("k <> 2").write.format("delta").mode("overwrite").saveAsTable("corrected")
        table.append(frame(spark, []))
        assert (table.merged_batch(), table.pending().batches) == (3, 0)
        assert rows_of(table) == {row for row in expected if row[0] != 2}
        spark.sql("DROP TABLE corrected")
    if strategy == "merge":
        # The log forgets the RESTORE, and what it took back is still pending.
        spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {inserted}")
        restored = table.base.version()
        assert table.purge() == 1
        spark.sql(f"ALTER TABLE delta.`{tmp_path}/base` SET TBLPROPERTIES ('a' = 'b')")
        clean_up(spark, tmp_path / "base", restored)
        assert (table.merged_batch(), rows_of(table)) == (1, expected)


def clean_up(spark: SparkSession, table: Path, until: int) -> None:
    """Delete the commits of a table's log up to a version, as log cleanup does."""
    assert spark._jvm is not None
    logs = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.clearCache()  # the checkpoint is of the newest version
    logs.forTable(spark._jsparkSession, str(table)).checkpoint()
    for version in range(until + 1):
        for path in (table / "_delta_log").glob(f"{version:020}.*"):
            path.unlink()
    logs.clearCache()
    forget_logs()


@pytest.mark.minutes
def test_a_base_restored_to_before_purged_batches_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The base is refused until it or the changeset has the batches again."""
    lake = Lake(spark, tmp_path, ON_READ)
    table = on_read(lake)
    table.append(frame(spark, INSERTS))
    table.rematerialize()
    inserted = table.base.version()
    table.append(frame(spark, DELETES))
    pending = table.changes.version()
    table.rematerialize()
    deleted = table.base.version()
    assert table.purge() == 2
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {inserted}")
    for step in (table.read, table.rematerialize):
        with pytest.raises(SourceError, match="holds the batches up to 1, and those up to 2 were"):
            step()
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base_changes` TO VERSION AS OF {pending}")
    assert rows_of(table) == current_rows([*INSERTS, *DELETES])
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {deleted}")
    assert table.merged_batch() == 2
    table.append(frame(spark, LATE))
    assert rows_of(table) == current_rows([*INSERTS, *DELETES, *LATE])


@pytest.mark.minutes
def test_clones_of_a_base_and_copies_with_changes_remember_its_deletes(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, tmp_path, ON_READ)
    table = on_read(lake)
    for batch in (INSERTS, DELETES):
        table.append(frame(spark, batch))
        table.rematerialize()
    table.purge()
    table.append(frame(spark, OTHERS))
    for name in ("base", "base_changes"):
        shutil.copytree(tmp_path / name, tmp_path / name.replace("base", "copied"))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/cloned` SHALLOW CLONE delta.`{tmp_path}/base`")
    for name, *batches in (
        ("copied", INSERTS, DELETES, OTHERS),
        ("cloned", INSERTS, DELETES),
    ):
        other = on_read(lake, name)
        other.append(frame(spark, LATE))
        assert rows_of(other) == lake.expected(*batches), name
        other.create_view("view_of_other")
        assert {tuple(row) for row in spark.table("view_of_other").collect()} == rows_of(other)


def rows_of(table: MergeOnReadTable) -> set[Row]:
    found = [tuple(row) for row in table.read().collect()]
    assert len(found) == len(set(found))
    return set(found)


@pytest.mark.minutes
def test_a_clone_knows_the_event_that_emptied_its_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    def apply(name: str, *events: tuple[int | None, int, str]) -> set[int]:
        path = str(tmp_path / name)
        deltaweave.apply_changes(
            spark,
            path,
            spark.createDataFrame(list(events), "k INT, at INT, op STRING"),
            keys=["k"],
            sequence_by="at",
            apply_as_truncates="op = 't'",
            except_column_list=["at", "op"],
        )
        return {row.k for row in Table(spark, path).read().collect()}

    assert apply("source", (1, 1, "u"), (None, 100, "t")) == set()
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/clone` SHALLOW CLONE delta.`{tmp_path}/source`")
    # The first is from before the source was emptied.
    assert apply("clone", (1, 50, "u"), (2, 150, "u")) == {2}
    assert apply("clone", (3, 60, "u")) == {2}
    # Nothing counts of a table that a clone replaced.
    assert apply("replaced", (1, 1, "u"), (None, 1000, "t")) == set()
    spark.sql(
        f"CREATE OR REPLACE TABLE delta.`{tmp_path}/replaced` "
        f"SHALLOW CLONE delta.`{tmp_path}/source`"
    )
    assert apply("replaced", (1, 50, "u"), (2, 150, "u")) == {2}


@pytest.mark.minutes
def test_a_clone_takes_over_events_of_a_source_that_got_other_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(name: str, *events: tuple[int, int, int], further: Sequence[str] = ()) -> None:
        deltaweave.apply_changes(
            spark,
            str(tmp_path / name),
            spark.createDataFrame(list(events), "k INT, at INT, v INT").selectExpr("*", *further),
            keys=["k"],
            sequence_by="at",
            except_column_list=["at"],
            stored_as_scd_type=2,
        )

    source, clone = (f"delta.`{tmp_path}/{name}`" for name in ("source", "clone"))
    apply("source", (1, 10, 1))
    apply("source", (1, 20, 1), (2, 20, 2))  # the first begins no version, and is remembered
    spark.sql(f"CREATE TABLE {clone} SHALLOW CLONE {source}")
    spark.sql(f"ALTER TABLE {clone} ADD CONSTRAINT small CHECK (v < 100)")
    remembered, aside = tmp_path / "source" / EVENTS, tmp_path / "aside"
    remembered.rename(aside)
    with pytest.raises(ConstraintViolationError):
        apply("clone", (1, 30, 1), (3, 1, 500))  # creates what remembers, and writes nothing to it
    aside.rename(remembered)
    spark.sql(f"ALTER TABLE {source} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    spark.sql(f"ALTER TABLE {source} ALTER COLUMN v TYPE BIGINT")
    spark.sql(f"ALTER TABLE {source} ADD COLUMNS (x INT)")
    apply("source", (1, 25, 1), further=["1 AS x"])
    apply("source", (1, 26, 1), further=["1 AS x"])
    monkeypatch.setattr(side_table, "checked_until", {})  # as in another process
    apply("clone", (1, 15, 2))
    found = Table(spark, str(tmp_path / "clone")).read().select("v", "__START_AT", "__END_AT")
    assert {tuple(row) for row in found.where("k = 1").collect()} == {
        (1, 10, 15),
        (2, 15, 20),
        (1, 20, None),
    }
