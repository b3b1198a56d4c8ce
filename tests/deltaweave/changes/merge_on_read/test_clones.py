"""Clones of merge-on-read tables: of both sides, at the same or at different times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.tables import MergeOnReadLocations
from deltaweave import MergeOnReadTable, apply_changes
from deltaweave.changes.merge_on_read import ViewMethod, changeset, watermark
from deltaweave.changes.merge_on_read import sides as both_sides
from deltaweave.changes.restores import lineage
from deltaweave.changes.side_tables import side_table
from deltaweave.errors import SourceError
from tests.deltaweave.changes.merge_on_read.test_other_writers import replace_by_an_empty_one
from tests.deltaweave.changes.restores.test_restores import (
    DELETES,
    INSERTS,
    LATE,
    ON_READ,
    OTHERS,
    Lake,
    another_process,
    clean_up,
    on_read,
    rows_of,
)
from tests.deltaweave.changes.test_current_rows import current_rows, frame
from tests.support.drawn_events import WHOLE, Event, Row, delete, truncate

pytestmark = pytest.mark.minutes

ALL = current_rows([*INSERTS, *DELETES, *OTHERS])


class Clones:
    """A table whose first two batches are merged and purged, and clones of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.lake = Lake(spark, folder, ON_READ)
        self.table = on_read(self.lake)
        self.append(self.table, INSERTS)
        self.table.rematerialize()
        self.inserted = self.table.base.version()
        self.append(self.table, DELETES)
        self.unmerged = self.table.changes.version()
        self.table.rematerialize()
        assert self.table.purge() == 2
        self.append(self.table, OTHERS)

    def append(self, table: MergeOnReadTable, events: Any) -> int | None:
        return table.append(frame(self.lake.spark, events))

    def of(self, name: str, base: int | None, changes: int | None) -> MergeOnReadTable:
        """Clone both sides, each at a version or now."""
        for side, version in (("", base), ("_changes", changes)):
            at = "" if version is None else f" VERSION AS OF {version}"
            self.lake.spark.sql(
                f"CREATE TABLE delta.`{self.lake.folder}/{name}{side}` "
                f"SHALLOW CLONE delta.`{self.lake.folder}/base{side}`{at}"
            )
        return on_read(self.lake, name)


def test_a_cloned_pair_goes_on_where_its_source_was(spark: SparkSession, tmp_path: Path) -> None:
    clones = Clones(spark, tmp_path)
    for table in (
        clones.of("clone", None, None),
        clones.of("earlier", clones.inserted, clones.unmerged),
    ):
        others = [] if table.base.path_or_name.endswith("earlier") else OTHERS
        assert rows_of(table) == current_rows([*INSERTS, *DELETES, *others])
        newest = table.newest_batch()
        done = table.rematerialize("merge")
        assert done is not None
        assert (done.batch, table.pending().batches) == (newest, 0)
        assert clones.append(table, LATE) == newest + 1
        assert rows_of(table) == current_rows([*INSERTS, *DELETES, *others, *LATE])


def test_a_clone_of_an_older_base_without_the_purged_batches_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also once a batch was appended to it. (Delta itself refuses to clone over rows.)"""
    clones = Clones(spark, tmp_path)
    table = clones.of("older", clones.inserted, None)
    for _ in range(2):
        for step in (table.read, table.rematerialize):
            with pytest.raises(SourceError, match="up to 1, and those up to 2 were") as raised:
                step()
            assert "VERSION AS OF" in str(raised.value.hint)
        clones.append(table, LATE)


def test_clones_without_their_source_are_refused_if_they_may_lack_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    clones = Clones(spark, tmp_path)
    table = clones.of("clone", None, None)
    assert rows_of(table) == ALL
    for side in ("base", "base_changes"):
        (tmp_path / side / "_delta_log").rename(tmp_path / f"{side}_log")
    another_process()
    with pytest.raises(SourceError, match="up to 0, and those up to 2 were"):
        table.read()


METHODS = ["auto", *(each for each in get_args(ViewMethod) if each != "anti_join")]
BOTH, BASE, CHANGES = ("", "_changes"), ("",), ("_changes",)


class Pairs:
    """A table whose events say which of them insert, and clones of its sides."""

    def __init__(self, spark: SparkSession, folder: Path, **arguments: Any) -> None:
        self.spark, self.folder, self.arguments = spark, folder, arguments
        self.source = self.opened("base")

    def opened(self, base: str, changes: str | None = None) -> MergeOnReadTable:
        arguments: dict[str, Any] = {
            "changes": str(self.folder / (changes or f"{base}_changes")),
            "inserts": "op = 'insert'",
            "partition_by": ["w"],
            "keep_merged_for": timedelta(0),
            **WHOLE,
            **self.arguments,
        }
        return MergeOnReadTable(
            self.spark,
            str(self.folder / base),
            keys=["k"],
            sequence_by="seq",
            apply_as_deletes="op = 'delete'",
            **arguments,
        )

    def append(self, table: MergeOnReadTable, *events: Event) -> int | None:
        return table.append(frame(self.spark, events))

    def clone(
        self, name: str, sides: Sequence[str] = BOTH, of: str = "base", verb: str = "CREATE"
    ) -> MergeOnReadTable:
        """Clone sides of a table; the others are those of the table itself."""
        for side in sides:
            self.spark.sql(
                f"{verb} TABLE delta.`{self.folder}/{name}{side}` "
                f"SHALLOW CLONE delta.`{self.folder}/{of}{side}`"
            )
        base, changes = (name if side in sides else of for side in BOTH)
        return self.opened(base, f"{changes}_changes")

    def read(self, table: MergeOnReadTable) -> set[Row]:
        """Read a table by every method; they must agree."""
        reads = [table.read(each).withColumn("method", F.lit(each)) for each in METHODS]
        found: dict[str, list[Row]] = {method: [] for method in METHODS}
        for *row, method in reduce(DataFrame.unionByName, reads).sort("k").collect():
            found[method].append(tuple(row))
        assert all(rows == found["auto"] for rows in found.values()), found
        return set(found["auto"])


def pending_in_logs(table: MergeOnReadTable) -> int:
    """Count the batches that are pending by the tables' logs alone."""
    found = pending_changes(
        MergeOnReadLocations(table.base.path_or_name, table.changes.path_or_name, "")
    )
    assert found is not None
    return found.batches


def insert(k: int, seq: int, v: int) -> Event:
    return Event(k, seq, v, "a", "insert")


def upsert(k: int, seq: int, v: int) -> Event:
    return Event(k, seq, v, "a")


@pytest.mark.parametrize(
    ("sides", "purges", "strategy"),
    [
        (BOTH, True, "merge"),
        (BOTH, False, "overwrite"),
        (BASE, False, "replace_where"),
        pytest.param(BASE, True, "overwrite", marks=pytest.mark.full_matrix),
        pytest.param(CHANGES, True, "replace_where", marks=pytest.mark.full_matrix),
        pytest.param(CHANGES, False, "merge", marks=pytest.mark.full_matrix),
    ],
)
def test_a_clone_has_what_its_source_had_whatever_was_purged(
    spark: SparkSession, tmp_path: Path, sides: Sequence[str], purges: bool, strategy: Any
) -> None:
    """Inserted rows are there once, and rows that somebody deleted stay deleted."""
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10), insert(2, 1, 20), insert(4, 1, 40))
    pairs.append(pairs.source, delete(4, 20))
    pairs.source.rematerialize()
    pairs.source.base.delete("k = 1")
    if purges:
        assert pairs.source.purge() == 2
    pairs.append(pairs.source, upsert(4, 15, 41), insert(6, 30, 60))  # the first is late
    expected = {(2, 20, "a"), (6, 60, "a")}
    table = pairs.clone("clone", sides)
    pending = table.pending()
    assert (table.merged_batch(), pending.batches, pending.rows) == (2, 1, 2)
    assert pairs.read(table) == expected
    if sides == BASE:
        table.create_view("of_clone")
        assert {tuple(row) for row in spark.table("of_clone").collect()} == expected
    assert pairs.append(table, insert(7, 40, 70), upsert(2, 40, 21), upsert(4, 16, 42)) == 4
    expected = {(2, 21, "a"), (6, 60, "a"), (7, 70, "a")}
    assert rows_of(table) == expected
    done = table.rematerialize(strategy)
    assert done is not None
    assert (done.batch, table.pending().batches) == (4, 0)
    assert {tuple(row) for row in table.read_optimized().collect()} == expected


@pytest.mark.parametrize(
    ("cloned", "strategy"),
    [
        ("at once", "merge"),
        ("changes first", "overwrite"),
        ("again", "replace_where"),
    ],
)
def test_a_cloned_pair_without_pending_batches_goes_on(
    spark: SparkSession, tmp_path: Path, cloned: str, strategy: Any
) -> None:
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10))
    if cloned == "changes first":
        pairs.clone("clone", CHANGES)
    pairs.append(pairs.source, insert(2, 1, 20))
    pairs.source.rematerialize()
    assert pairs.source.purge() == 2
    pairs.clone("clone", BASE if cloned == "changes first" else BOTH)
    table = pairs.clone("again", of="clone") if cloned == "again" else pairs.opened("clone")
    assert (table.pending().batches, table.rematerialize(strategy)) == (0, None)
    assert pending_in_logs(table) == 0
    assert rows_of(table) == {(1, 10, "a"), (2, 20, "a")}
    assert pairs.append(table, insert(3, 2, 30), upsert(2, 2, 21)) == 3
    expected = {(1, 10, "a"), (2, 21, "a"), (3, 30, "a")}
    assert pairs.read(table) == expected
    done = table.rematerialize(strategy)
    assert done is not None
    assert (done.batch, table.newest_batch()) == (3, 3)
    assert {tuple(row) for row in table.read_optimized().collect()} == expected


def test_a_clone_is_emptied_by_an_event_that_is_pending(
    spark: SparkSession, tmp_path: Path
) -> None:
    pairs = Pairs(spark, tmp_path, apply_as_truncates="op = 'truncate'")
    pairs.append(pairs.source, upsert(1, 1, 10))
    pairs.source.rematerialize()
    pairs.append(pairs.source, truncate(3), upsert(2, 2, 20))
    emptied = pairs.opened("clone_1")  # a clone takes its place, and its transaction ids stay
    pairs.append(emptied, upsert(8, 8, 80))
    emptied.rematerialize()
    emptied.purge()
    emptied.base.delete("true")
    for number, sides in enumerate((CHANGES, BOTH, BASE)):
        table = pairs.clone(f"clone_{number}", sides, verb="CREATE OR REPLACE")
        if sides == BOTH:
            cloned = table.base.version(), table.changes.version()
        assert pairs.read(table) == set(), sides
        pairs.append(table, upsert(3, 4, 30))
        assert rows_of(table) == {(3, 30, "a")}, sides
    restored = pairs.opened("clone_1")
    restored.rematerialize("merge")
    assert {tuple(row) for row in restored.read_optimized().collect()} == {(3, 30, "a")}
    for each, version in ((restored.base, cloned[0]), (restored.changes, cloned[1])):
        spark.sql(f"RESTORE TABLE delta.`{each.path_or_name}` TO VERSION AS OF {version}")
    assert pairs.read(restored) == set()


def test_a_clone_that_others_write_or_restore_knows_its_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "NOTED_EVERY", 1)
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10))
    pairs.source.rematerialize()
    pairs.source.base.delete("k = 1")
    pairs.append(pairs.source, insert(2, 2, 20))
    table = pairs.clone("clone")
    events = frame(spark, [upsert(9, 9, 90)])
    apply_changes(spark, table.base.path_or_name, events, keys=["k"], sequence_by="seq", **WHOLE)
    assert rows_of(table) == {(2, 20, "a"), (9, 90, "a")}
    table.rematerialize()
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/clone` TO VERSION AS OF 0")
    assert (table.merged_batch(), rows_of(table)) == (1, {(2, 20, "a")})
    replace_by_an_empty_one(table.base)  # and then it is no clone
    assert (table.merged_batch(), pairs.read(table)) == (0, {(1, 10, "a"), (2, 20, "a")})


def test_rows_are_there_once_if_it_is_unknown_which_batches_a_base_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10))
    pairs.source.rematerialize()
    orphan, replaced = pairs.clone("orphan"), pairs.clone("replaced")
    spark.sql(f"CREATE TABLE replaced_by_rows USING delta LOCATION '{tmp_path}/replaced'")
    spark.sql(
        f"CREATE OR REPLACE TABLE replaced_by_rows USING delta LOCATION '{tmp_path}/replaced' "
        f"AS SELECT * FROM delta.`{tmp_path}/base`"
    )
    spark.sql("DROP TABLE replaced_by_rows")  # its name alone
    (tmp_path / "base" / "_delta_log").rename(tmp_path / "base_log")
    for table in (orphan, replaced):
        assert (table.merged_batch(), pairs.read(table)) == (0, {(1, 10, "a")})
        base, version = table.base.path_or_name, table.base.version()
        pairs.append(table, insert(2, 2, 20))
        table.rematerialize()
        spark.sql(f"RESTORE TABLE delta.`{base}` TO VERSION AS OF {version}")
        pairs.append(table, insert(3, 3, 30))
        expected = {(1, 10, "a"), (2, 20, "a"), (3, 30, "a")}
        assert (table.merged_batch(), pairs.read(table)) == (0, expected)


@pytest.mark.parametrize("how", ["moved", "cleaned up"])
def test_a_clone_records_a_doubt_while_it_is_unknown_what_its_source_had(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    pairs = Pairs(spark, tmp_path)
    for k in (1, 2):
        pairs.append(pairs.source, insert(k, k, 10 * k))
        pairs.source.rematerialize("merge")
    base = pairs.source.base
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/base` TO VERSION AS OF {base.version() - 1}")
    table = pairs.clone("clone")
    pairs.append(table, insert(3, 3, 30))
    assert table.merged_batch() == 1
    table.rematerialize("merge")
    if how == "moved":
        (tmp_path / "base" / "_delta_log").rename(tmp_path / "base_log")
        another_process()
    else:
        clean_up(spark, tmp_path / "base", base.version() - 1)
    spark.sql(f"RESTORE TABLE delta.`{tmp_path}/clone` TO VERSION AS OF 0")
    pairs.append(table, insert(4, 4, 40))
    expected = {(k, 10 * k, "a") for k in (1, 2, 3, 4)}
    assert (table.merged_batch(), pairs.read(table)) == (0, expected)
    if how == "moved":
        (tmp_path / "base_log").rename(tmp_path / "base" / "_delta_log")
        assert (table.merged_batch(), pairs.read(table)) == (1, expected)
        (tmp_path / "base" / "_delta_log").rename(tmp_path / "base_log")
    # The clone's log forgets that it was cloned and restored.
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/clone` SET TBLPROPERTIES ('a' = 'b')")
    clean_up(spark, tmp_path / "clone", table.base.version() - 1)
    for k in (5, 6):
        assert (table.merged_batch(), pairs.read(table)) == (0, expected)
        pairs.append(table, insert(k, k, 10 * k))
        expected.add((k, 10 * k, "a"))
    table.rematerialize()
    assert sorted(map(tuple, table.read_optimized().collect())) == sorted(expected)


def test_a_changeset_younger_than_a_clone_has_no_batch_of_its_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases numbered its batches from 1, and recorded no base's first batch."""
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10))
    pairs.source.rematerialize()
    pairs.clone("clone", BASE)
    table = pairs.opened("clone")
    with monkeypatch.context() as earlier:
        earlier.setattr(both_sides, "settle_watermark", lambda *_: None)
        earlier.setattr(both_sides, "merged_batch", lambda *_: 0)
        earlier.setattr(changeset, "first_batch_of_newest_base", lambda *_: 1)
        assert pairs.append(table, upsert(1, 2, 11), insert(2, 2, 20)) == 1
    expected = {(1, 11, "a"), (2, 20, "a")}
    assert (table.pending().batches, pairs.read(table)) == (1, expected)
    assert pairs.append(table, insert(3, 3, 30)) == 2
    expected |= {(3, 30, "a")}
    for each in (table, pairs.clone("again", of="clone")):
        assert pairs.read(each) == expected
        each.rematerialize()
        assert {tuple(row) for row in each.read_optimized().collect()} == expected


def test_a_clone_that_is_read_again_looks_for_nothing_in_its_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = Pairs(spark, tmp_path)
    pairs.append(pairs.source, insert(1, 1, 10), insert(2, 1, 20))
    for _ in range(3):
        pairs.append(pairs.source, delete(2, 20))
        pairs.source.rematerialize("merge")
    pairs.append(pairs.source, upsert(2, 15, 21))
    cloned, table = pairs.source.base.version(), pairs.clone("clone")
    assert rows_of(table) == {(1, 10, "a")}
    pairs.source.base.delete("k = 1")
    newest, read, commit_of = pairs.source.base.version(), set[int](), lineage.commit_of

    def counted(of: Any, version: int) -> Any:
        if of.data_path.endswith("/base"):
            read.add(version)
        return commit_of(of, version)

    monkeypatch.setattr(lineage, "commit_of", counted)
    monkeypatch.setattr(watermark, "source_of", None)
    monkeypatch.setattr(side_table, "collected", None)  # no job
    assert rows_of(table) == {(1, 10, "a")}
    assert read <= {cloned, newest}


def test_no_source_is_looked_for_where_a_table_has_all_its_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit is read to find a CLONE, and no job looks for events that empty the table."""
    pairs = Pairs(spark, tmp_path, apply_as_truncates="op = 'truncate'")
    pairs.append(pairs.source, upsert(1, 1, 10))
    monkeypatch.setattr(watermark, "cloned_by", None)
    monkeypatch.setattr(changeset, "cloned_by", None)
    monkeypatch.setattr(changeset, "collectable", None)
    steps = [pairs.source.pending, pairs.source.rematerialize, pairs.source.purge]
    for step in (*steps, lambda: pairs.append(pairs.source, upsert(2, 2, 20))):
        assert rows_of(pairs.source) == {(1, 10, "a")}
        step()
    assert rows_of(pairs.source) == {(1, 10, "a"), (2, 20, "a")}
