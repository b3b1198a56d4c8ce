"""Merges on the driver into tables with partitions, beside built-in MERGE on a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.engine import limits
from deltaweave.engine.backends.local import files as local_files
from deltaweave.errors import ConstraintViolationError
from tests.builders import Rows, frame, write_table
from tests.merge_cases.case import (
    MergeCase,
    delete,
    insert_all,
    update,
    update_all,
)
from tests.support.oracles import Outcome, Stage, actions, all_files, assert_outcome

pytestmark = pytest.mark.usefixtures("switched_on")

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
LAYOUTS = {"copy on write": {}, "vectors": VECTORS, "vectors and feed": VECTORS | FEED}
MON, TUE, WED = date(2026, 11, 23), date(2026, 11, 24), date(2026, 11, 25)
SCHEMA = "k INT, day DATE, v INT"
TARGET: Rows = [(1, MON, 10), (2, MON, 20), (3, TUE, 30), (4, None, 40)]
UPSERT = (update_all(), insert_all())


@dataclass(frozen=True)
class Partitioned:
    """A merge, its rows afterwards, and whether the driver does it."""

    source: Rows
    expected: Rows
    clauses: Sequence[Any] = UPSERT
    on: str = "t.k = s.k"
    target: Rows = tuple(TARGET)
    schema: str = SCHEMA
    by: tuple[str, ...] = ("day",)
    properties: Mapping[str, str] = field(default_factory=dict)
    here: bool = True
    layouts: tuple[str, ...] = tuple(LAYOUTS)


NAMED: dict[str, Any] = {"schema": "k INT, name STRING, v INT", "by": ("name",)}
CASES = {
    "rows that stay, and new ones": Partitioned(
        [(1, MON, 11), (5, WED, 50), (6, None, 60)],
        [
            (1, MON, 11),  # updated
            (2, MON, 20),
            (3, TUE, 30),
            (4, None, 40),
            (5, WED, 50),  # inserted into a new partition
            (6, None, 60),  # inserted
        ],
    ),
    "a row that moves": Partitioned(
        [(1, TUE, 11), (3, None, 31)],
        [
            (1, TUE, 11),  # moved
            (2, MON, 20),
            (3, None, 31),  # moved
            (4, None, 40),
        ],
    ),
    "a row that moves and others that stay": Partitioned(
        [(1, None, 11), (2, MON, 21), (5, TUE, 50)],
        [
            (1, None, 11),  # moved
            (2, MON, 21),  # updated in its place
            (3, TUE, 30),
            (4, None, 40),
            (5, TUE, 50),  # inserted
        ],
    ),
    "the partition in ON": Partitioned(
        [(1, MON, 11), (2, TUE, 21), (4, None, 41)],
        [
            (1, MON, 11),  # updated
            (2, MON, 20),
            (2, TUE, 21),  # inserted: that of Monday is another one
            (3, TUE, 30),
            (4, None, 40),
            (4, None, 41),  # inserted: null equals no null
        ],
        on="t.day = s.day AND s.k = t.k",
    ),
    "null partitions match": Partitioned(
        [(4, None, 41), (5, None, 50)],
        [
            (1, MON, 10),
            (2, MON, 20),
            (3, TUE, 30),
            (4, None, 41),  # updated
            (5, None, 50),  # inserted
        ],
        on="t.day <=> s.day AND t.k = s.k",
    ),
    "the partition alone": Partitioned(
        [(9, MON, 0)],
        [
            # both of Monday are deleted
            (3, TUE, 30),
            (4, None, 40),
        ],
        clauses=[delete()],
        on="s.day = t.day",
    ),
    "kept columns": Partitioned(
        [(1, WED, 11), (3, WED, 31)],
        [
            (1, MON, 11),  # its day stays
            (2, MON, 20),
            (3, TUE, 31),  # its day stays
            (4, None, 40),
        ],
        clauses=[update({"v": "s.v"})],
    ),
    "a condition on the old partition": Partitioned(
        [(1, TUE, 11), (3, MON, 31)],
        [
            (1, MON, 21),  # Tuesday is after Monday
            (2, MON, 20),
            # 3 is deleted: Monday is not after Tuesday
            (4, None, 40),
        ],
        clauses=[update({"v": "t.v + s.v"}, condition="s.day > t.day"), delete()],
    ),
    "only new rows": Partitioned(
        [(1, WED, 11), (7, WED, 70)],
        [
            (1, MON, 10),
            (2, MON, 20),
            (3, TUE, 30),
            (4, None, 40),
            (7, WED, 70),  # inserted
        ],
        clauses=[insert_all()],
    ),
    "two partition columns": Partitioned(
        [(1, "b", -7, 11), (3, "a_b-c.d", 0, 30)],
        [
            (1, "b", -7, 11),  # updated
            (2, "b", 8, 20),
            (3, "a_b-c.d", 0, 30),  # inserted
        ],
        target=[(1, "b", -7, 10), (2, "b", 8, 20)],
        schema="k INT, name STRING, n BIGINT, v INT",
        by=("n", "name"),
    ),
    "columns by name": Partitioned(
        [(1, MON, 11), (5, WED, 50)],
        [
            (1, MON, 11),  # updated
            (2, MON, 20),
            (3, TUE, 30),
            (4, None, 40),
            (5, WED, 50),  # inserted
        ],
        properties={"delta.columnMapping.mode": "name"},
        layouts=("copy on write", "vectors"),  # DataFrameWriter writes no such table with a feed
    ),
    "a value that Spark escapes": Partitioned(
        [(1, "a b", 11), (2, "c/d", 20)],
        [
            (1, "a b", 11),  # updated
            (2, "c/d", 20),  # inserted
        ],
        target=[(1, "a b", 10)],
        here=False,
        **NAMED,
    ),
    "the text that stands for null": Partitioned(
        [(1, "__HIVE_DEFAULT_PARTITION__", 11)],
        [
            (1, None, 11),  # Delta reads the name of the directory
        ],
        target=[(1, "x", 10)],
        here=False,
        **NAMED,
    ),
    "a condition on the partition alone": Partitioned(
        [(1, MON, 11), (3, MON, 31)],
        [
            (1, MON, 11),  # updated
            (2, MON, 20),
            (3, TUE, 30),  # not of Monday
            (4, None, 40),
        ],
        clauses=[update({"v": "s.v"}, condition="t.day = s.day")],
    ),
    "an empty text": Partitioned(
        [(1, "", 11)],
        [
            (1, None, 11),  # an empty text is stored as null
        ],
        target=[(1, "x", 10)],
        here=False,
        **NAMED,
    ),
}


def case_of(name: str, layout: str) -> MergeCase:
    each = CASES[name]
    return MergeCase(
        name=f"partitions_{list(CASES).index(name)}_{layout.replace(' ', '_')}",
        target=each.target,
        source=each.source,
        clauses=tuple(each.clauses),
        on=each.on,
        expected=each.expected,
        target_schema=each.schema,
        source_schema=each.schema,
        partition_by=each.by,
        properties={**LAYOUTS[layout], **each.properties},
    )


def runs() -> Iterator[Any]:
    """Each case in each of its layouts; in `make test` in one of them by turns."""
    for place, (name, each) in enumerate(CASES.items()):
        for number, layout in enumerate(each.layouts):
            marks = [] if place % len(each.layouts) == number else [pytest.mark.full_matrix]
            yield pytest.param(name, layout, id=f"{name}-{layout}", marks=marks)


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "layout"), list(runs()))
def test_partitions_hold_what_built_in_merge_gives(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], name: str, layout: str
) -> None:
    case = case_of(name, layout)
    stage = Stage(spark, case, tmp_path)
    theirs, ours = stage.by_oracle(), stage.by_sql()
    assert_outcome(case, ours, theirs)
    assert len(on_driver) == CASES[name].here
    assert _places(ours) == _places(theirs)
    if not case.properties:  # what delta-rs reads
        assert _by_delta_rs(ours.path) == _by_delta_rs(theirs.path)


@pytest.mark.parametrize("by", [[], ["day"]])
def test_many_new_rows_are_written_to_several_files_in_their_order(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    by: list[str],
) -> None:
    monkeypatch.setattr(limits, "MIN_FILE_BYTES", 8)  # less than a row
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    path = str(tmp_path / "t")
    write_table(spark, path, [(0, MON, 0)], SCHEMA, partition_by=by)
    new = [(k, TUE, k) for k in range(1, 6)]
    source = frame(spark, [*new, (6, WED, 6)], SCHEMA).coalesce(1)
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_not_matched_insert_all()
    result = merge.execute()
    assert len(on_driver) == 1
    added = [each["add"] for each in actions(path, result.version or 0) if "add" in each]
    assert len(added) == (3 if by else 2)  # two of Tuesday, one of Wednesday
    bounds = [json.loads(add["stats"]) for add in added]
    spans = sorted((each["minValues"]["k"], each["maxValues"]["k"]) for each in bounds)
    assert all(one[1] < other[0] for one, other in pairwise(spans))
    rows = sorted(map(tuple, Table(spark, path).read().collect()))
    assert rows == [(0, MON, 0), *new, (6, WED, 6)]


def test_a_partition_of_many_columns_counts_once(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    """From five keys on, a Scala Map has its keys in another order than they were given."""
    by = ["year", "month", "day", "country", "kind"]
    schema = "k INT, v INT, year INT, month INT, day INT, country STRING, kind STRING"
    where, path = (2026, 11, 26, "de", "a"), str(tmp_path / "t")
    write_table(spark, path, [(1, 10, *where), (2, 20, *where)], schema, partition_by=by)
    source = frame(spark, [(1, 11, *where), (3, 30, *where)], schema)
    merge = Table(spark, path).merge(source, on="t.k = s.k")
    result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert len(on_driver) == 1
    assert result.metrics["numTargetPartitionsAddedTo"] == 1
    assert result.metrics["numTargetPartitionsRemovedFrom"] == 1
    assert sorted(row.v for row in Table(spark, path).read().collect()) == [11, 20, 30]


def _places(outcome: Outcome) -> set[tuple[str, str]]:
    """The directory and the partition of each new file, unless directories have random names."""
    assert outcome.version is not None
    added = [each["add"] for each in actions(outcome.path, outcome.version) if "add" in each]
    mapped = any("=" not in add["path"] for add in added)
    return {
        ("" if mapped else add["path"].rpartition("/")[0], json.dumps(add["partitionValues"]))
        for add in added
    }


def _by_delta_rs(path: str) -> list[str]:
    return sorted(map(repr, deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()))


@pytest.mark.minutes
def test_an_empty_text_in_the_log_is_an_empty_text_as_to_spark(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int32()), "p": ["", None, "a"]})
    deltalake.write_deltalake(path, rows, partition_by=["p"])  # it logs the first as ""
    source = frame(spark, [(1, ""), (3, "a")], "k INT, p STRING")
    merge = Table(spark, path).merge(source, on="t.p = s.p AND t.k = s.k").when_matched_delete()
    merge.execute()
    assert not on_driver
    assert [tuple(row) for row in Table(spark, path).read().collect()] == [(2, None)]


@pytest.mark.minutes
def test_a_value_in_the_log_that_is_not_understood_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = tmp_path / "t"
    write_table(spark, str(path), TARGET, SCHEMA, partition_by=["day"])
    log = path / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace(':"2026-11-23"', ':"2026-11-23 00:00:00"'))
    for kept in (path / "_delta_log").glob("*.crc"):
        kept.unlink()
    source = frame(spark, [(1, MON, 11)], SCHEMA)
    merge = Table(spark, str(path)).merge(source, on="t.k = s.k")
    merge.when_matched_update({"v": "s.v"}).execute()
    assert not on_driver
    assert (1, MON, 11) in [tuple(row) for row in Table(spark, str(path)).read().collect()]


@pytest.mark.parametrize(
    ("schema", "by", "properties", "why_not"),
    [
        ("k INT, at TIMESTAMP", "at", {}, "partitioned, and column 'at' is of type timestamp"),
        ("k INT, d DOUBLE", "d", {}, "partitioned, and column 'd' is of type double"),
        ("k INT, `ä` INT", "ä", {}, "'ä', whose name is escaped"),
        ("k INT, c CHAR(3)", "c", {}, "partitioned, and 'c' is of limited length"),
        (SCHEMA, "day", VECTORS | FEED, ""),
    ],
)
def test_which_partitions_the_driver_takes(
    spark: SparkSession,
    tmp_path: Path,
    schema: str,
    by: str,
    properties: dict[str, str],
    why_not: str,
) -> None:
    path = str(tmp_path / "t")
    write_table(spark, path, [], "k INT", ddl=schema, partition_by=[by], properties=properties)
    frame(spark, [(1,)], "k INT").createOrReplaceTempView("qualifying")
    plan = deltaweave.explain(
        spark,
        f"MERGE INTO delta.`{path}` t USING qualifying s ON t.k = s.k WHEN MATCHED THEN DELETE",
    )
    assert why_not in plan.why_not_on_driver
    assert bool(why_not) == bool(plan.why_not_on_driver)


@pytest.mark.minutes
def test_new_rows_of_many_partitions_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_PARTITIONS", 2)
    path = str(tmp_path / "t")
    write_table(spark, path, TARGET, SCHEMA, partition_by=["day"])
    for number, days in ((7, (MON, TUE)), (8, (MON, TUE, WED))):
        rows = [(10 * number + i, day, 0) for i, day in enumerate(days)]
        merge = Table(spark, path).merge(frame(spark, rows, SCHEMA), on="t.k = s.k")
        merge.when_not_matched_insert_all().execute()
    assert len(on_driver) == 1
    assert Table(spark, path).read().count() == len(TARGET) + 5


@pytest.mark.minutes
def test_the_feed_of_many_partitions_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LOCAL_PARTITIONS", 1)
    path = str(tmp_path / "t")
    write_table(spark, path, TARGET, SCHEMA, partition_by=["day"], properties=VECTORS | FEED)
    for keys in ([1], [2, 3]):  # of one day, and of two
        source = frame(spark, [(key, None, 0) for key in keys], SCHEMA)
        Table(spark, path).merge(source, on="t.k = s.k").when_matched_delete().execute()
    assert len(on_driver) == 1
    assert [row.k for row in Table(spark, path).read().collect()] == [4]


def test_the_feed_of_a_table_with_mapped_columns_has_its_partitions(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    path = str(tmp_path / "t")
    mapped = {"delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"}
    write_table(spark, path, TARGET, SCHEMA, ddl=SCHEMA, partition_by=["day"], properties=mapped)
    merge = Table(spark, path).merge(frame(spark, [(1, TUE, 11)], SCHEMA), on="t.k = s.k")
    version = merge.when_matched_update_all().execute().version
    assert on_driver
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    rows = feed.option("startingVersion", version or 0).load(path).select("_change_type", "day")
    assert sorted(map(tuple, rows.collect())) == [
        ("update_postimage", TUE),
        ("update_preimage", MON),
    ]


@pytest.mark.minutes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_constraint_on_the_partition_holds(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], layout: str
) -> None:
    path = str(tmp_path / "t")
    write_table(spark, path, TARGET, SCHEMA, partition_by=["day"], properties=LAYOUTS[layout])
    spark.sql(
        f"ALTER TABLE delta.`{path}` ADD CONSTRAINT c CHECK (day IS NULL OR day < '2026-11-25')"
    )
    merge = Table(spark, path).merge(frame(spark, [(1, TUE, 11)], SCHEMA), on="t.k = s.k")
    merge.when_matched_update_all().execute()
    assert on_driver
    broken = frame(spark, [(2, WED, 21)], SCHEMA)
    with pytest.raises(ConstraintViolationError):
        Table(spark, path).merge(broken, on="t.k = s.k").when_matched_update_all().execute()
    rows = Table(spark, path).read().sort("k").collect()
    assert [(row.k, row.day) for row in rows] == [(1, TUE), (2, MON), (3, TUE), (4, None)]


@pytest.mark.minutes
def test_a_failed_write_in_one_partition_leaves_no_file_and_spark_merges(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")
    write_table(spark, path, TARGET, SCHEMA, partition_by=["day"], properties=VECTORS)
    write, written = local_files.write_file, []

    def fails(directory: str, *given: Any) -> Any:
        written.append(directory)
        if len(written) == 2:
            raise OSError("the disk is full")
        return write(directory, *given)

    monkeypatch.setattr(local_files, "write_file", fails)
    source = frame(spark, [(5, MON, 50), (6, TUE, 60), (7, WED, 70)], SCHEMA)
    Table(spark, path).merge(source, on="t.k = s.k").when_not_matched_insert_all().execute()
    assert len(written) > 1
    assert not on_driver
    named = {row.path for row in Table(spark, path).files().select("path").collect()}
    assert {file for file in all_files(path) if not file.startswith("_")} == named
    assert Table(spark, path).read().count() == 7
