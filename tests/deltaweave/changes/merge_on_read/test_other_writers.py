"""Merge on read beside other writers of its tables: nothing is lost, undone or taken for done."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from deltaweave import MergeOnReadTable, Table, apply_changes
from deltaweave.changes.merge_on_read.changeset import Changeset
from deltaweave.changes.merge_on_read.merged_view import MergedView
from deltaweave.changes.side_tables.tombstones import Tombstones
from deltaweave.errors import CommitConflictError, DeltaweaveError, SourceError
from tests.deltaweave.changes.merge_on_read.test_table import frame, rows
from tests.support.drawn_events import SCHEMA, WHOLE, Event, delete, truncate

pytestmark = pytest.mark.minutes

EVENTS: dict[str, Any] = {
    "keys": ["k"],
    "sequence_by": "seq",
    "apply_as_deletes": "op = 'delete'",
    **WHOLE,
}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> MergeOnReadTable:
    return opened(spark, tmp_path)


def opened(spark: SparkSession, folder: Path, **arguments: Any) -> MergeOnReadTable:
    return MergeOnReadTable(
        spark,
        str(folder / "base"),
        keep_merged_for=timedelta(0),
        **{"apply_as_truncates": "op = 'truncate'", **EVENTS, **arguments},
    )


def append(table: MergeOnReadTable, *events: Event, **options: Any) -> int | None:
    return table.append(frame(table.spark, events), **options)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[[], Any]], None]:
    """Lets another writer do something just before the next call of a method."""

    def set_up(owner: Any, name: str, other: Callable[[], Any]) -> None:
        method = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, method)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(other).result()
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    return set_up


def batch_numbers(table: MergeOnReadTable) -> list[int]:
    return [row[0] for row in table.changes.read().select("_cdc_batch").orderBy(1).collect()]


def test_a_read_has_the_columns_of_the_version_that_it_reads(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))
    table.rematerialize()
    append(table, Event(2, 1, 20))
    columns, base = table.read().columns, f"delta.`{table.base.path_or_name}`"
    before(MergedView, "rows", lambda: table.spark.sql(f"ALTER TABLE {base} ADD COLUMN (x INT)"))
    read = table.read()
    assert (read.columns, read.count()) == (columns, 2)
    assert table.read_optimized().columns == [*columns, "x"]


def test_two_appenders_never_take_one_number(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))
    before(Table, "write", lambda: append(table, Event(2, 1, 20)))
    assert append(table, Event(3, 1, 30)) == 3
    assert batch_numbers(table) == [1, 2, 3]
    table.rematerialize()
    table.purge()
    assert rows(table.read()) == {(1, 10, None), (2, 20, None), (3, 30, None)}


def test_appenders_at_once_lose_nothing(table: MergeOnReadTable) -> None:
    together = Barrier(3)

    def appends(number: int) -> int | None:
        together.wait()
        return append(table, Event(number, 1, number))

    with ThreadPoolExecutor(3) as pool:
        numbers = list(pool.map(appends, range(3)))
    assert sorted(number or 0 for number in numbers) == batch_numbers(table) == [1, 2, 3]
    assert rows(table.read()) == {(k, k, None) for k in range(3)}


def test_a_batch_that_two_processes_append_is_appended_once(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))
    of_stream: dict[str, Any] = {"applied": ("stream", 0)}
    before(Table, "write", lambda: append(table, Event(2, 1, 20), **of_stream))
    assert append(table, Event(2, 1, 20), **of_stream) is None
    assert batch_numbers(table) == [1, 2]


OTHERS: dict[str, Callable[[MergeOnReadTable], Any]] = {
    "a delete": lambda table: table.base.delete("k = 2"),
    "an update": lambda table: table.spark.sql(
        f"UPDATE delta.`{table.base.path_or_name}` SET v = 21 WHERE k = 2"
    ),
    "a merge": lambda table: apply_changes(
        table.spark,
        table.base.path_or_name,
        frame(table.spark, [Event(2, 2, 21, "b"), Event(4, 1, 40, "c")]),
        **EVENTS,
    ),
    "an append": lambda table: table.spark.sql(
        f"INSERT INTO delta.`{table.base.path_or_name}` SELECT 4, v, 'c', _cdc_sequence "
        f"FROM delta.`{table.base.path_or_name}` WHERE k = 2"
    ),
    "a rewrite of files": lambda table: table.base.compact(),
}
AFTER = {
    "a delete": {(1, 11, "a"), (3, 30, "b")},
    "an update": {(1, 11, "a"), (2, 21, "b"), (3, 30, "b")},
    "a merge": {(1, 11, "a"), (2, 21, "b"), (3, 30, "b"), (4, 40, "c")},
    "an append": {(1, 11, "a"), (2, 20, "b"), (3, 30, "b"), (4, 20, "c")},
    "a rewrite of files": {(1, 11, "a"), (2, 20, "b"), (3, 30, "b")},
}


@pytest.mark.parametrize(
    ("strategy", "other"),
    [
        ("overwrite", "a delete"),
        ("overwrite", "an append"),
        ("overwrite", "a rewrite of files"),
        ("replace_where", "a merge"),
        # Much like a delete: rows of files that are gone.
        *[
            pytest.param("overwrite", each, marks=pytest.mark.full_matrix)
            for each in ("an update", "a merge")
        ],
    ],
)
def test_a_rematerialization_undoes_no_write_to_the_base_meanwhile(
    spark: SparkSession,
    tmp_path: Path,
    before: Callable[..., None],
    strategy: Any,
    other: str,
) -> None:
    table = opened(spark, tmp_path, partition_by=["w"])
    for event in (Event(2, 1, 20, "b"), Event(3, 1, 30, "b")):  # two files of a partition
        append(table, event)
        table.rematerialize("merge")
    append(table, Event(1, 2, 11, "a"))
    # What it writes is computed by now, and it has not begun to write.
    before(Table, "write", lambda: OTHERS[other](table))
    with pytest.raises(CommitConflictError):
        table.rematerialize(strategy)
    table.rematerialize(strategy)
    assert rows(table.read_optimized()) == rows(table.read()) == AFTER[other]


def test_of_two_rematerializations_at_once_one_does_it(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10), Event(2, 1, 20))
    table.rematerialize()
    append(table, Event(1, 2, 11), delete(2, 2))
    # The second write of a rematerialization is that of the deletes, right before its commit.
    before(Table, "write", lambda: before(Table, "write", lambda: table.rematerialize("merge")))
    assert table.rematerialize("overwrite") is None
    assert (table.pending().batches, rows(table.read_optimized())) == (0, {(1, 11, None)})


def test_an_overtaken_rematerialization_leaves_later_batches_pending(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))

    def another() -> None:
        table.rematerialize()
        append(table, Event(3, 1, 30))

    append(table, Event(2, 1, 20))
    before(Table, "write", another)
    assert table.rematerialize("overwrite") is None
    assert (table.merged_batch(), table.pending().batches) == (2, 1)
    assert rows(table.read()) == {(1, 10, None), (2, 20, None), (3, 30, None)}


def test_a_delete_remembered_while_the_base_is_rewritten_is_not_forgotten(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))
    table.rematerialize()
    append(table, Event(2, 3, 20))

    def deletes() -> None:  # finds no row of 2 to delete, so that it commits nothing to the base
        events = frame(table.spark, [delete(2, 5)])
        apply_changes(table.spark, table.base.path_or_name, events, **EVENTS)

    before(Table, "write", deletes)
    table.rematerialize("overwrite")
    assert rows(table.read_optimized()) == {(1, 10, None)}


@pytest.mark.parametrize(
    "strategy", ["merge", pytest.param("overwrite", marks=pytest.mark.full_matrix)]
)
def test_batches_appended_during_a_merge_are_merged_by_the_next(
    table: MergeOnReadTable, before: Callable[..., None], strategy: Any
) -> None:
    append(table, Event(1, 1, 10))
    before(Tombstones, "version", lambda: append(table, Event(1, 2, 11)))
    done = table.rematerialize(strategy)
    assert done is not None
    assert (done.batch, table.pending().batches) == (1, 1)
    assert rows(table.read_optimized()) == {(1, 10, None)}
    assert rows(table.read()) == {(1, 11, None)}
    table.rematerialize(strategy)
    assert rows(table.read_optimized()) == {(1, 11, None)}


def test_a_reader_whose_batches_are_purged_meanwhile_reads_the_newer_base(
    table: MergeOnReadTable, before: Callable[..., None]
) -> None:
    append(table, Event(1, 1, 10))

    def merges_and_purges() -> None:
        table.rematerialize()
        assert table.purge() == 1

    before(Changeset, "after", merges_and_purges)
    assert rows(table.read()) == {(1, 10, None)}


def test_a_reader_counts_no_delete_of_a_batch_that_came_after_its_own(
    table: MergeOnReadTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, Event(1, 1, 10))
    listed = Changeset.after

    def listed_before_another_batch(changeset: Changeset, batch: int) -> Any:
        found = listed(changeset, batch)
        monkeypatch.setattr(Changeset, "after", listed)
        append(table, delete(1, 2), Event(2, 2, 20))
        table.rematerialize()
        return found

    monkeypatch.setattr(Changeset, "after", listed_before_another_batch)
    assert rows(table.read()) in ({(1, 10, None)}, {(2, 20, None)})


@pytest.mark.parametrize(
    "how", ["removed", pytest.param("replaced", marks=pytest.mark.full_matrix)]
)
def test_a_recreated_base_does_not_pass_for_one_with_the_purged_batches(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    def recreate() -> None:
        if how == "removed":
            forget(tmp_path / "base", spark)
        else:
            replace_by_an_empty_one(table.base)

    table = opened(spark, tmp_path)
    append(table, Event(1, 1, 10))
    table.rematerialize()
    append(table, Event(2, 1, 20))
    recreate()
    append(table, Event(3, 1, 30))
    # Nothing was purged: the changeset tells all.
    expected = {(1, 10, None), (2, 20, None), (3, 30, None)}
    assert rows(table.read()) == expected
    table.rematerialize()
    table.purge()
    assert rows(table.read()) == expected
    recreate()
    append(table, Event(4, 1, 40))
    assert table.purge() == 0
    for step in (table.read, table.rematerialize):
        with pytest.raises(SourceError, match="up to 3 were purged") as raised:
            step()
        assert raised.value.table == table.base.path_or_name
    assert table.merged_batch() == 0


def test_a_recreated_changeset_begins_after_the_batches_in_the_base(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = opened(spark, tmp_path)
    for number in range(3):
        append(table, Event(number, 1, number))
    table.rematerialize()
    forget(tmp_path / "base_changes", spark)
    assert table.rematerialize() is None
    assert append(table, Event(0, 2, 100)) == 4
    assert rows(table.read()) == {(0, 100, None), (1, 1, None), (2, 2, None)}
    done = table.rematerialize()
    assert done is not None
    assert (done.batch, rows(table.read_optimized())) == (4, rows(table.read()))


def test_an_earlier_releases_watermark_counts_until_the_base_has_its_own(
    table: MergeOnReadTable,
) -> None:
    append(table, Event(1, 1, 10))
    table.base.write(table.base.read(), "append", applied={"deltaweave/merged_batch": 1})
    assert (table.merged_batch(), table.purge()) == (1, 1)
    append(table, Event(2, 1, 20))
    table.rematerialize("merge")
    assert table.merged_batch() == 2
    assert table.base.last_applied("deltaweave/merged_batch") == 0  # for readers by delta-rs
    assert rows(table.read()) == {(2, 20, None)}  # the base never held 1, and its batch is purged
    replace_by_an_empty_one(table.base)
    assert table.merged_batch() == 0


def replace_by_an_empty_one(table: Table) -> None:
    """Recreate a table in its place, as `CREATE OR REPLACE` does: its log goes on."""
    name, before = "other_writers_replaced", table.id()
    # Delta replaces nothing by its path alone.
    table.spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{table.path_or_name}'")
    try:
        anew = DeltaTable.replace(table.spark).tableName(name).location(table.path_or_name)
        anew.addColumns(table.read().schema).execute()
    finally:
        table.spark.sql(f"DROP TABLE {name}")  # its name alone: it is where it was
    assert (table.row_count(), table.id() == before) == (0, False)


def forget(folder: Path, spark: SparkSession) -> None:
    """Take a table away, as `rm -r` does."""
    shutil.rmtree(folder)
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def ingest(table: MergeOnReadTable, landing: Path, checkpoint: Path, name: str = "orders") -> None:
    stream = table.spark.readStream.schema(SCHEMA).json(str(landing))
    table.ingest(stream, name=name, checkpoint=str(checkpoint)).awaitTermination()


def land(spark: SparkSession, landing: Path, *events: Event) -> None:
    frame(spark, events).coalesce(1).write.mode("append").json(str(landing))


def test_a_stream_with_a_new_checkpoint_appends_its_batches_again(
    spark: SparkSession, table: MergeOnReadTable, tmp_path: Path
) -> None:
    land(spark, tmp_path / "landing", Event(1, 1, 10))
    ingest(table, tmp_path / "landing", tmp_path / "checkpoint")
    land(spark, tmp_path / "landing", Event(2, 1, 20))
    shutil.rmtree(tmp_path / "checkpoint")  # its batch 0 now has both files
    ingest(table, tmp_path / "landing", tmp_path / "checkpoint")
    assert rows(table.read()) == {(1, 10, None), (2, 20, None)}
    assert table.pending().rows == 3

    # Another source under the same name.
    land(spark, tmp_path / "other", Event(3, 1, 30))
    ingest(table, tmp_path / "other", tmp_path / "checkpoint_of_other")
    assert rows(table.read()) == {(1, 10, None), (2, 20, None), (3, 30, None)}

    # As after a crash between the append and the stream's own record of the batch.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    ingest(table, tmp_path / "landing", tmp_path / "checkpoint", name="renamed")
    assert table.pending().rows == 4

    checkpoint = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    mark = f"deltaweave/stream/{checkpoint['id']}"
    assert table.changes.last_applied(mark) == 0


def test_what_a_truncate_took_is_not_read_after_the_changeset_was_purged(
    table: MergeOnReadTable,
) -> None:
    append(table, Event(1, 1, 10))
    append(table, truncate(3))
    table.rematerialize()
    table.purge()
    append(table, Event(2, 2, 20), Event(3, 4, 30))  # 2 is older than the truncate
    assert rows(table.read()) == {(3, 30, None)}


def test_a_purge_says_what_it_took_in_its_own_commit_and_is_not_repeated(
    table: MergeOnReadTable,
) -> None:
    append(table, Event(1, 1, 10))
    table.rematerialize()
    versions = []
    for _ in range(2):
        assert table.purge() == 1
        versions.append(table.changes.version())
    assert versions[0] == versions[1]
    assert table.changes.last_applied("deltaweave/purged_batch") == 1


def seen(table: MergeOnReadTable, methods: Sequence[Any]) -> list[set[Any]]:
    return [rows(table.read(method)) for method in methods]


def test_deleted_rows_come_back_whether_or_not_their_events_insert(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = opened(spark, tmp_path, inserts="op = 'insert'", apply_as_truncates=None)
    methods = ("left_join_inserts", "left_join_anti_join", "full_outer_join", "auto")
    append(table, *[Event(k, 1, k, op="insert") for k in range(1, 6)])
    append(table, delete(1, 2), delete(2, 2))
    table.rematerialize()  # 1 and 2 are gone
    append(
        table,
        Event(1, 3, 100),  # says that it is no insert
        Event(2, 3, 200, op="insert"),  # says that it is one
        delete(3, 2),
        Event(3, 3, 300, op="insert"),  # the base holds the row that was deleted meanwhile
        delete(4, 2),
        Event(4, 3, 400),
        Event(6, 1, 600, op="insert"),
        Event(5, 0, 0),  # late
    )
    expected = {
        *{(1, 100, None), (2, 200, None), (3, 300, None), (4, 400, None), (5, 5, None)},
        (6, 600, None),
    }
    assert seen(table, methods) == [expected] * 4
    table.rematerialize("merge")
    append(table, Event(1, 4, 101))  # has a row again, and a remembered delete still
    after = expected - {(1, 100, None)} | {(1, 101, None)}
    assert seen(table, methods) == [after] * 4
    table.rematerialize("overwrite")
    assert rows(table.read_optimized()) == after


def test_events_that_say_if_they_insert_are_read_beside_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    telling = opened(spark, tmp_path, inserts="op = 'insert'", apply_as_truncates=None)
    append(telling, Event(1, 1, 10, op="insert"), Event(2, 1, 20, op="insert"))
    telling.rematerialize()
    append(telling, Event(3, 1, 30, op="insert"), Event(2, 2, 21))
    silent = opened(spark, tmp_path, apply_as_truncates=None)
    append(silent, Event(1, 2, 11), Event(4, 1, 40))
    append(telling, Event(4, 2, 41))  # whose insert was not declared
    expected = {(1, 11, None), (2, 21, None), (3, 30, None), (4, 41, None)}
    methods = ("auto", "left_join_inserts", "left_join_anti_join")
    assert seen(telling, methods) == seen(silent, methods) == [expected] * 3


def test_pending_batches_of_a_base_with_other_names_in_files_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MergeOnReadTable(spark, str(tmp_path / "t"), keys=["order id"], sequence_by="at")

    def append(key: int, columns: str = "2 AS v, 3 AS w, 4 AS x") -> None:
        table.append(spark.sql(f"SELECT {key} AS `order id`, 1 AS at, {columns}"))

    append(1)
    append(2)
    assert table.read().count() == 2
    shutil.move(tmp_path / "t", tmp_path / "earlier")
    append(3)  # the base's files have other names now, because of the blank
    shutil.move(tmp_path / "t", tmp_path / "later")
    shutil.move(tmp_path / "earlier", tmp_path / "t")
    with pytest.raises(SourceError, match="were appended for a table that was in its"):
        table.read()  # of batch 3
    shutil.rmtree(tmp_path / "t")
    shutil.move(tmp_path / "later", tmp_path / "t")
    steps = (table.read, table.rematerialize, lambda: table.create_view("of_another_base"))
    for step in steps:
        with pytest.raises(SourceError, match="were appended for a table that was in its") as error:
            step()
    for statement in statements(error.value, "DELETE"):
        spark.sql(statement)
    append(1)
    assert {row[0] for row in table.read().collect()} == {1, 3}
    # No batch is of the earlier base now, so a column may be dropped that batches have.
    spark.sql(f"ALTER TABLE delta.`{table.base.path_or_name}` DROP COLUMN v")
    assert {row[0] for row in table.read().collect()} == {1, 3}
    table.rematerialize()
    append(4, "3 AS w, 4 AS x")
    spark.sql(f"ALTER TABLE delta.`{table.base.path_or_name}` DROP COLUMN w")
    with monkeypatch.context() as patched:
        # By the statistics, these have keys: no job looks for events without them.
        patched.setattr(type(table.base.read()), "take", None)
        assert {row[0] for row in table.read().collect()} == {1, 3, 4}
    table.rematerialize()
    # Or the names of a column that is no key: it was added when the table had column mapping.
    other, nested = f"{tmp_path}/other", ("{0} AS s", "array({0}) AS l")
    whole, with_v = "named_struct('a', 1, 'b', {0})", spark.sql("SELECT 1 AS k, 1 AS at, 2 AS v")
    of_a = [each.format("named_struct('a', 1)") for each in nested]
    table = MergeOnReadTable(spark, other, keys=["k"], sequence_by="at")
    table.append(with_v.selectExpr("*", *of_a))
    spark.sql(
        f"ALTER TABLE delta.`{other}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"ALTER TABLE delta.`{other}` ADD COLUMNS (w INT, s.b INT, l.element.b INT)")
    of_both = [each.format(whole.format("4")) for each in nested]
    table.append(with_v.selectExpr("*", "3 AS w", *of_both))
    shutil.rmtree(other)
    of_neither = [each.format(whole.format("INT(NULL)")) for each in nested]
    table.append(with_v.selectExpr("2 AS k", "at", "v", "INT(NULL) AS w", *of_neither))
    with pytest.raises(SourceError, match=r"the column s.col-\S+, l.item.col-\S+, col-") as error:
        table.read()
    assert not statements(error.value, "UPDATE")
    spark.sql(f"UPDATE delta.`{other}_changes` SET _cdc_values.l = NULL WHERE _cdc_batch = 2")
    with pytest.raises(SourceError, match=r"the column s.col-\S+, col-") as error:
        table.read()
    for statement in statements(error.value, "UPDATE"):
        spark.sql(statement)
    found = table.read().select("k", "v", "w", "s.*").orderBy("k").collect()
    assert list(map(tuple, found)) == [(1, 2, None, 1, None), (2, 2, None, 1, None)]


def test_a_base_replaced_during_an_append_gets_the_batch_by_its_own_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MergeOnReadTable(
        spark,
        str(tmp_path / "t"),
        keys=["order id"],
        sequence_by="at",
        except_column_list=["at"],
    )
    columns = "`order id` INT, v INT, _cdc_sequence STRUCT<at: INT, tie: BIGINT>"
    mapped = {"delta.columnMapping.mode": "name"}
    table.base.create_if_missing(columns, properties=mapped)
    write = Table.write

    def replaced_before(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        shutil.rmtree(tmp_path / "t")
        table.base.create_if_missing(columns, properties=mapped)
        return write(*arguments, **named)

    monkeypatch.setattr(Table, "write", replaced_before)
    assert table.append(spark.sql("SELECT 1 AS `order id`, 1 AS at, 2 AS v")) == 1
    assert rows(table.read()) == {(1, 2)}


def test_pending_events_of_some_columns_are_never_read_as_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, columns = (
        str(tmp_path / "t"),
        "_cdc_column_sequences MAP<STRING, STRUCT<at: INT, tie: BIGINT>>",
    )
    of_all: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}
    whole = MergeOnReadTable(spark, path, **of_all)
    part = MergeOnReadTable(spark, path, present_columns="p", **of_all)
    schema = "k INT, at INT, a INT, b INT, p ARRAY<STRING>"
    whole.append(spark.createDataFrame([(1, 1, 1, 1, None)], schema).drop("p"))
    whole.rematerialize()
    version = whole.base.version()
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({columns})")
    part.append(spark.createDataFrame([(1, 2, 2, None, ["a"])], schema))
    # An event that sets all columns can lose nothing.
    whole.append(spark.createDataFrame([(2, 3, 3, None, None)], schema).drop("p"))
    part.rematerialize()
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    whole.create_view("pending_events_of_some_columns")
    for read in (whole.read(), spark.table("pending_events_of_some_columns")):
        with pytest.raises(Exception, match=r"event leaves columns out.*_cdc_column_sequences"):
            read.collect()
        assert rows(read.where("k = 2")) == {(2, 3, None)}
    with pytest.raises(DeltaweaveError, match="event leaves columns out"):
        whole.rematerialize()
    assert rows(whole.read_optimized()) == {(1, 1, 1)}
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({columns})")
    assert rows(whole.read()) == {(1, 2, 1), (2, 3, None)}
    whole.rematerialize()
    assert rows(whole.read_optimized()) == {(1, 2, 1), (2, 3, None)}


def statements(error: SourceError, word: str) -> list[str]:
    """The statements in an error's hint that begin with a word."""
    return re.findall(rf"{word} (?:FROM|delta).+?(?=[;)]|\.$)", str(error.hint))
