"""Columns that are added, renamed, dropped or widened between events."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeOnReadTable, Table
from deltaweave.changes import history
from deltaweave.changes.events import EventShape
from deltaweave.changes.merge_on_read import changeset
from deltaweave.changes.side_tables import tombstones
from deltaweave.errors import SourceError
from tests.support.column_changes import (
    KINDS,
    SHAPES,
    Added,
    Batch,
    Changing,
    Columns,
    Dropped,
    Kind,
    Rematerialized,
    Renamed,
    Row,
    Said,
    Speaks,
    Step,
    Widened,
    begun_with,
    expected,
    fields_of,
    followed,
    histories,
    joined,
    nested,
)
from tests.support.drawn_events import DRAWN
from tests.support.settings import configured

# 1 has versions and an event that none shows; 2 is deleted; 3 stays as it is.
BEFORE = Batch(
    [
        Said(1, 1, {"v": 10, "w": "a"}),
        Said(1, 3, {"v": 10, "w": "a"}),
        Said(2, 2, {"v": 20, "w": "b"}),
        Said(2, 7),
        Said(3, 1, {"v": 30, "w": "c"}),
    ]
)
# 1 becomes another between its events, 2 comes late.
LATE = [Said(1, 2, {"v": 11, "w": "z"}), Said(2, 3, {"v": 21, "w": "late"})]


def with_all(events: list[Said], **values: object) -> Batch:
    return Batch(
        [Said(e.k, e.seq, None if e.values is None else {**e.values, **values}) for e in events]
    )


CHANGES: dict[str, list[Step]] = {
    "added": [
        BEFORE,
        Added("x", "x"),
        Added("n.x", "x"),
        with_all([*LATE, Said(3, 5, {"v": 30, "w": "c"})], x=7),
        Batch([Said(4, 1, {"v": 40, "w": "d"}), Said(1, 4, {"v": 12, "w": "y"})]),
    ],
    "renamed": [
        BEFORE,
        Renamed("w", "title"),
        Renamed("k", "id"),
        Renamed("n.b", "title"),
        Batch([*LATE, Said(3, 5, {"v": 31, "w": "c"})]),
    ],
    "dropped": [
        BEFORE,
        Dropped("w"),
        Dropped("n.b"),
        Batch([Said(1, 2, {"v": 11}), Said(2, 3, {"v": 21}), Said(3, 5, {"v": 31})]),
    ],
    "dropped and added again": [
        BEFORE,
        Dropped("w"),
        Added("w2", "w", "STRING"),
        Dropped("n.b"),
        Added("n.b2", "b", "STRING"),
        Batch([Said(1, 2, {"v": 11, "w2": "n"}), Said(3, 5, {"v": 31, "w2": "n"})]),
    ],
    "widened": [
        BEFORE,
        Widened("v", "BIGINT"),
        Widened("k", "BIGINT"),
        Widened("n.a", "BIGINT"),
        Widened("n.c", "ARRAY<BIGINT>"),
        Batch([Said(1, 2, {"v": 2**40, "w": "z"}), Said(2**40, 3, {"v": 1, "w": "n"})]),
    ],
}
# In each, columns change and the fields of a column of such a shape.
SHAPE_OF = {
    "added": "array",
    "renamed": "map",
    "dropped": "struct",
    "dropped and added again": "array",
    "widened": "array of maps",
}


def with_fields(steps: Sequence[Step], columns: Columns) -> list[Step]:
    """The same steps, whose events have values of all fields that there are then."""
    found = list[Step]()
    for step in steps:
        columns = followed(columns, step)
        found.append(
            Batch([_with_fields(event, columns) for event in step.events])
            if isinstance(step, Batch)
            else step
        )
    return found


def _with_fields(event: Said, columns: Columns) -> Said:
    if event.values is None:
        return event
    number, values = event.values["v"], {}
    for id in fields_of(columns, "n"):
        of = columns[id][1]
        values[id] = f"of {number}" if of == "STRING" else [number, None] if "<" in of else number
    return replace(event, values={**event.values, "n": nested(SHAPES[columns["n"][1]], values)})


# Each change with each kind, each change with each way to speak that differs, and each kind with
# each way. All three together are drawn below.
CASES = [
    *itertools.product(["dropped", "widened"], KINDS, ["whole"]),
    *itertools.product(["added"], KINDS, ["no nulls"]),
    ("added", "current", "named"),
    ("added", "histories", "whole"),
    ("added", "merge on read", "named"),
    ("renamed", "current", "named"),
    ("renamed", "histories", "whole"),
    ("renamed", "merge on read", "named"),
    ("dropped and added again", "current", "whole"),
    ("dropped and added again", "histories", "named"),
    ("dropped and added again", "merge on read", "whole"),
]
# Some at once, some later: each change, and each kind with each way. The others are in `make
# test-all`.
SOON = [("added", "current", "named")]
LATER = [
    ("renamed", "histories", "whole"),
    ("widened", "merge on read", "whole"),
    *itertools.product(["added"], KINDS, ["no nulls"]),
    ("renamed", "merge on read", "named"),
    ("dropped", "merge on read", "whole"),
    ("dropped and added again", "current", "whole"),
    ("dropped and added again", "histories", "named"),
]


def cases() -> Iterator[Any]:
    for case in CASES:
        mark = pytest.mark.minutes if case in LATER else pytest.mark.full_matrix
        yield pytest.param(*case, marks=[] if case in SOON else [mark])


@pytest.mark.parametrize(("change", "kind", "speaks"), list(cases()))
def test_events_before_and_after_a_change_make_one_table(
    spark: SparkSession, tmp_path: Path, kind: Kind, change: str, speaks: Speaks
) -> None:
    columns = begun_with(SHAPE_OF[change])
    changing = Changing(spark, str(tmp_path / "t"), kind, speaks, columns)
    steps = with_fields(CHANGES[change], columns)
    seen: list[Step] = []
    for step in steps:
        changing.take(step)
        seen.append(step)
        if isinstance(step, Batch) and kind != "merge on read":
            assert shown(changing, changing.rows()) == shown(changing, expected(seen, changing))
        elif kind == "merge on read":
            # In the default way after each step, and in all in the end.
            how_many = None if step is steps[-1] else 1
            for method, rows in itertools.islice(changing.views(), how_many):
                assert rows == expected(seen, changing), method
    if kind == "merge on read":
        changing.merge_on_read().rematerialize("merge")
        assert changing.rows() == expected(seen, changing)


def shown(changing: Changing, rows: set[Row]) -> set[Row]:
    return joined(rows) if changing.kind == "histories" else rows


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
@DRAWN
@given(
    data=st.data(),
    speaks=st.sampled_from(["whole", "named", "no nulls"]),
    shape=st.sampled_from(list(SHAPES)),
)
def test_columns_changed_at_any_time_leave_what_the_final_columns_would(
    spark: SparkSession,
    tmp_path: Path,
    kind: Kind,
    data: st.DataObject,
    speaks: Speaks,
    shape: str,
) -> None:
    steps = data.draw(histories(kind, speaks, shape))
    path = str(tmp_path / uuid.uuid4().hex)
    changing = Changing(spark, path, kind, speaks, begun_with(shape))
    for step in steps:
        changing.take(step)
    rows = expected(steps, changing)
    if kind == "merge on read":
        for method, found in changing.views():
            assert found == rows, method
        strategy = data.draw(st.sampled_from(["merge", "overwrite"]))
        changing.take(Rematerialized(strategy))
    assert shown(changing, changing.rows()) == shown(changing, rows)


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
def test_what_earlier_releases_stored_by_the_names_of_columns_is_read(
    spark: SparkSession, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = Changing(spark, str(tmp_path / "t"), kind, "named")
    later = Batch([*LATE, Said(1, 5, {"v": 12}), Said(1, 4, {"v": 13, "w": "y"})])
    mapped = {"spark.databricks.delta.properties.defaults.columnMapping.mode": "name"}
    with monkeypatch.context() as earlier, configured(spark, mapped):
        for module in (changeset, history, tombstones):
            earlier.setattr(module, "to_stored", lambda rows, _: rows)
        earlier.setattr(EventShape, "stored", lambda _, name: name)
        changing.take(BEFORE)
        changing.take(Batch([Said(3, 4, {"w": "d"})]))
    changing.take(later)
    changing.take(Batch([Said(3, 3, {"v": 31, "w": "older"})]))
    steps: list[Step] = [
        BEFORE,
        Batch([Said(3, 4, {"w": "d"}), Said(3, 3, {"v": 31, "w": "older"})]),
        later,
    ]
    if kind == "merge on read":
        for method, rows in changing.views():
            assert rows == expected(steps, changing), method
        changing.merge_on_read().rematerialize("merge")
    assert shown(changing, changing.rows()) == shown(changing, expected(steps, changing))


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["histories", "merge on read"])
def test_events_that_lack_a_column_have_its_default_unless_stored_before(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    changing = Changing(spark, str(tmp_path / "t"), kind)
    changing.take(Batch([Said(1, 1, {"v": 1})]))
    changing.take(Added("x", "x"))
    for change in (
        "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER COLUMN x SET DEFAULT 7",
    ):
        spark.sql(f"ALTER TABLE delta.`{changing.path}` {change}")
    changing.take(Batch([Said(2, 1, {"v": 2})], lacks=("x",)))
    changing.take(Batch([Said(3, 1, {"v": 3})]))  # says that it is null
    rows = {(1, 1, None, None), (2, 2, None, 7), (3, 3, None, None)}
    if kind == "histories":
        assert changing.rows() == {(*row, 1, None) for row in rows}
        return
    for method, found in changing.views():
        assert found == rows, method
    changing.take(Rematerialized("merge"))
    assert changing.rows() == rows


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["histories", "merge on read"])
def test_keys_of_a_map_that_a_dropped_field_told_apart_are_an_error(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    """Until the field is back, because the stored event is then as it was."""
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {"keys": ["k"], "sequence_by": "at", "except_column_list": ["at"]}
    table = MergeOnReadTable(spark, path, **arguments)

    def apply(at: int, *keys: str) -> None:
        entries = ", ".join(f"named_struct({key}), {at}" for key in keys)
        rows = spark.sql(f"SELECT 1 AS k, {at} AS at, map({entries}) AS m")
        if kind == "merge on read":
            table.append(rows)
        else:
            deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=2)

    apply(10, "'a', 1, 'f', 1", "'a', 1, 'f', 2")
    if kind == "histories":  # which remember what no version shows
        rows = Table(spark, path).read().selectExpr("k", "15 AS at", "m")
        deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=2)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    version = Table(spark, path).version()
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN m.key.f")
    steps: list[Callable[[], Any]] = [lambda: apply(12, "'a', 3")]
    if kind == "merge on read":
        steps = [lambda: table.read().collect(), table.rematerialize]
    for step in steps:
        with pytest.raises(Exception, match="RESTORE the table to before DROP COLUMN"):
            step()
    assert Table(spark, path).version() == version + 1
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    apply(12, "'a', 3, 'f', 1")
    rows = table.read() if kind == "merge on read" else Table(spark, path).read()
    sizes = {"histories": [1, 2, 2], "merge on read": [1]}
    assert sorted(row[0] for row in rows.selectExpr("size(m)").collect()) == sizes[kind]


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
def test_keys_with_other_names_in_files_after_an_overwrite_are_an_error(
    spark: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    """An overwrite with overwriteSchema gives a column of another type another name in files."""
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {
        "keys": ["order id"],
        "sequence_by": "at",
        "apply_as_deletes": "v IS NULL",
        "except_column_list": ["at"],
        "rescued": True,
    }
    table = MergeOnReadTable(spark, path, **arguments)

    def apply(*events: str) -> None:
        rows = spark.sql(f"SELECT * FROM VALUES {', '.join(events)} AS t(`order id`, at, v)")
        if kind == "merge on read":
            table.append(rows)
        else:
            scd_type: Any = 2 if kind == "histories" else 1
            deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=scd_type)

    def of_another_type() -> None:
        whole = Table(spark, path).read()
        whole = whole.withColumn("order id", whole["order id"].cast("bigint"))
        whole.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)

    def seen() -> list[Any]:
        rows = table.read() if kind == "merge on read" else Table(spark, path).read()
        return sorted(rows.select("order id", "v").collect())

    apply("(1, 1, 1)", "(2, 5, NULL)")
    apply("(1, 2, 1)", "(2, 7, NULL)")
    before, version = seen(), Table(spark, path).version()
    steps: list[Callable[[], Any]] = [
        lambda: apply("(1, 3, 3)"),
        lambda: apply("(2, 6, 6)", "(3, 1, NULL)"),
        lambda: apply("(1, 3, 3)", "(NULL, 1, 1)"),  # which is not rescued either
    ]
    if kind == "merge on read":
        steps += [table.read, table.rematerialize]
    of_another_type()
    for step in steps:
        with pytest.raises(SourceError, match="other names") as error:
            step()
        assert str(error.value.hint).startswith("RESTORE the table to the version before")
    assert Table(spark, path).version() == version + 1
    assert not Table(spark, f"{path}_rescued").exists()
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    assert seen() == before
    apply("(2, 6, 6)")
    assert seen() == (before if kind != "histories" else [(1, 1), (2, 6)])
    if kind == "merge on read":
        table.rematerialize()  # remembers the delete
        of_another_type()
        for step in (table.read, lambda: table.create_view("of_other_keys")):
            with pytest.raises(SourceError, match="other names"):
                step()


# By the column that gets another type: events with a value that the earlier type would take as
# another one, or not at all. Of histories, no version shows the last of them.
RETYPED = {"k": ["('007', 3, 3)"], "v": ["(1, 3, 'abc')", "(1, 4, 'abc')"]}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("retyped", RETYPED)
def test_events_of_another_type_than_those_remembered_are_an_error(
    spark: SparkSession, tmp_path: Path, kind: Kind, retyped: str
) -> None:
    """Without column mapping, an overwrite with overwriteSchema leaves the names in files."""
    path = str(tmp_path / "t")
    arguments: dict[str, Any] = {
        "keys": ["k"],
        "sequence_by": "at",
        "apply_as_deletes": "v IS NULL",
        "except_column_list": ["at"],
    }
    table = MergeOnReadTable(spark, path, **arguments)

    def apply(*events: str) -> None:
        rows = spark.sql(f"SELECT * FROM VALUES {', '.join(events)} AS t(k, at, v)")
        if kind == "merge on read":
            table.append(rows)
        else:
            scd_type: Any = 2 if kind == "histories" else 1
            deltaweave.apply_changes(spark, path, rows, **arguments, stored_as_scd_type=scd_type)

    def seen() -> list[Any]:
        rows = table.read() if kind == "merge on read" else Table(spark, path).read()
        return sorted((str(row.k), str(row.v)) for row in rows.select("k", "v").collect())

    apply("(1, 1, 1)", "(7, 5, NULL)", "(8, 5, 8)")
    apply("(1, 2, 1)")  # histories remember it
    before, version = seen(), Table(spark, path).version()
    whole = Table(spark, path).read()
    whole = whole.withColumn(retyped, whole[retyped].cast("string"))
    whole.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    if kind == "current" and retyped == "v":
        apply(*RETYPED["v"])  # no values are remembered
        assert seen() == [("1", "abc"), ("8", "8")]
        return
    steps: list[Callable[[], Any]] = [lambda: apply(*RETYPED[retyped])]
    if kind == "merge on read" and retyped == "k":
        steps += [table.read, table.rematerialize, lambda: table.create_view("of_other_types")]
    kept_in = {"current": "/_deltaweave_tombstones", "histories": "/_deltaweave_events"}
    for step in steps:
        with pytest.raises(SourceError, match=f"{retyped} is int .* and string in") as raised:
            step()
        assert f"{path}{kept_in.get(kind, '_changes')}" in str(raised.value)
        assert "RESTORE the table to the version before" in str(raised.value.hint)
    assert Table(spark, path).version() == version + 1
    if kind == "merge on read" and retyped == "v":
        assert seen() == before
        table.rematerialize()  # the way out that the hint gives
        shutil.rmtree(f"{path}_changes")
        apply(*RETYPED["v"])
        assert seen() == [("1", "abc"), ("8", "8")]
        table.rematerialize()
        apply("(7, 4, 'late')")  # its delete is remembered
        assert seen() == [("1", "abc"), ("8", "8")]
        return
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")
    assert seen() == before
    apply("(7, 4, 4)")
    assert seen() == (before if kind != "histories" else sorted([*before, ("7", "4")]))
