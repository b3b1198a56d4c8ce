"""A key that comes several times in a run gives one row, or an error before anything is written."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
)
from pyspark.sql import DataFrame, SparkSession

from dagster_deltaweave import Changes, merge_asset, partition_keys, partition_tags
from dagster_deltaweave.io_manager.rows_by_key import RunPartitions, one_row_for_each_key
from dagster_deltaweave.partitions import partition_positions
from dagster_deltaweave.tables import ChangesOfPartitions, merge_declaration_in
from deltaweave import Table, clauses
from deltaweave.errors import AmbiguousMatchError, SourceError, StatementError
from tests.dagster_deltaweave.conftest import Run, rows

AssetTable = Callable[[str], Table]
Rows = list[tuple[Any, ...]]

LETTERS = StaticPartitionsDefinition(["c", "a", "b"])  # in this order, which is not the alphabet's
BY_LETTER: dict[str, Rows] = {
    "c": [(1, "c", 1), (None, "c", 1)],
    "a": [(1, "a", 2), (2, "a", 2)],
    "b": [(1, "b", 3), (3, "b", 3), (None, "b", 3)],
}
# What the partitions give one after another.
ONE_BY_ONE = [
    (1, "b", 3),  # the newest partition that has it
    (2, "a", 2),
    (3, "b", 3),
    (None, "b", 3),  # a null is equal to nothing: each stays
    (None, "c", 1),
]
SCHEMA = "id INT, letter STRING, n INT"
FULL = {"deltaweave/full_refresh": "true"}
ALL = partition_tags(["b", "c", "a"])  # in any order
DELETES = [
    clauses.when_matched_delete("s.n = 3"),
    clauses.when_matched_update_all(),
    clauses.when_not_matched_insert_all("s.n <> 3"),
]
ADDS_UP = [
    clauses.when_matched_update({"n": "t.n + s.n"}),
    clauses.when_not_matched_insert_all(),
]
NAMED = [
    clauses.when_matched_update({"id": "s.id", "letter": "s.letter", "n": "s.n"}),
    clauses.when_not_matched_insert({"n": "s.n", "letter": "s.letter", "`id`": "s.id"}),
]
LOSES = [  # where the table has the key, a row of n = 3 stays away and the older one remains
    clauses.when_matched_update_all("s.n <> 3"),
    clauses.when_not_matched_insert_all(),
]
DELETES_SOME = [clauses.when_matched_delete("s.n = 2"), *NAMED]
ONLY_UPDATES = [clauses.when_matched_update_all()]
ONLY_INSERTS = [clauses.when_not_matched_insert_all()]


def letters_of(
    spark: SparkSession, by_partition: Mapping[str, Rows], as_mapping: bool = False, **declared: Any
) -> AssetsDefinition:
    """Rows of each partition: as one DataFrame, or by partition."""

    @merge_asset(**{"keys": ["id"], "partitions_def": LETTERS, **declared})
    def letters(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        keys = partition_keys(context)
        if as_mapping:
            return {key: frame(spark, by_partition[key]) for key in keys if by_partition[key]}
        return frame(spark, [row for key in keys for row in by_partition[key]])

    return letters


def frame(spark: SparkSession, some: Rows) -> DataFrame:
    return spark.createDataFrame(some, SCHEMA)


TELL: dict[str, dict[str, Any]] = {
    "function": {"as_mapping": True},
    "partition_expr": {"partition_expr": "letter"},
    "sequence_by": {"sequence_by": "n"},
}


@pytest.mark.minutes
def test_the_newest_row_of_several_partitions_counts(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    told = [letters_of(spark, BY_LETTER, name=f"by_{each}", **TELL[each]) for each in TELL]

    run(*told, tags=ALL)
    for each in TELL:
        assert rows(table(f"by_{each}")) == ONE_BY_ONE, each

    run(told[0], tags=partition_tags(["b"]))  # again, over rows that are there
    assert [row for row in rows(table("by_function")) if row[0]] == ONE_BY_ONE[:3]
    run(told[0], tags={**ALL, **FULL})
    assert rows(table("by_function")) == ONE_BY_ONE


@pytest.mark.minutes
def test_clauses_leave_what_they_leave_of_one_partition_after_another(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """Deletes, named columns, inserts alone; what depends on the table's rows is refused."""
    twice = {"c": [(1, "c", 1), (2, "c", 1)], "a": [(1, "a", 2)], "b": [(1, "b", 3), (4, "b", 1)]}
    wider = f"{SCHEMA}, note STRING"  # of which a deleted row loses its note, and others keep it
    done: list[tuple[list[Any], str | None, Rows]] = [
        (DELETES, None, [(2, "c", 1), (4, "b", 1)]),  # the newest row of 1 deletes it
        (NAMED, wider, [(1, "b", 3, None), (2, "c", 1, None), (4, "b", 1, None)]),
        (ONLY_INSERTS, None, [(1, "c", 1), (2, "c", 1), (4, "b", 1)]),  # the first one stays
        (ONLY_UPDATES, SCHEMA, []),
    ]
    refused: list[tuple[list[Any], str | None]] = [
        (ADDS_UP, None),
        (LOSES, None),
        (DELETES_SOME, wider),
    ]

    def assets_of(name: str, cases: Iterable[tuple[list[Any], str | None]]) -> Any:
        return [
            letters_of(
                spark, twice, name=f"{name}_{at}", clauses=given, as_mapping=True, schema=schema
            )
            for at, (given, schema) in enumerate(cases)
        ]

    run(*assets_of("at_once", (each[:2] for each in done)), tags=ALL)
    # A table that each run writes alike is enough to show that the expected rows are theirs.
    for key in LETTERS.get_partition_keys():
        run(*assets_of("each", (each[:2] for each in done[:2])), partition=key)
    for at, (given, _, expected) in enumerate(done):
        assert rows(table(f"at_once_{at}")) == expected, given
        assert at > 1 or rows(table(f"each_{at}")) == expected, given

    failed = run(*assets_of("refused", refused), tags=ALL, raise_on_error=False)
    errors = [each for each in failed.all_events if each.is_step_failure]
    assert len(errors) == len(refused)
    for each in errors:
        cause = each.step_failure_data.error.cause or each.step_failure_data.error
        assert re.search(r"id=1, rows=\d[^$]*one by one", cause.message)
    assert not any(table(f"refused_{at}").exists() for at in range(len(refused)))


REFUSED: dict[str, tuple[dict[str, Rows], dict[str, Any], str]] = {
    "nothing tells": (BY_LETTER, {}, r"id=1, rows=3\.\n.*partition key: rows.*sequence_by"),
    "order by a column that the changes lack": (
        BY_LETTER,
        {"partition_expr": "elsewhere"},
        "id=1, rows=3",
    ),
    "twice in the newest partition": (
        {"c": [(1, "c", 1)], "a": [], "b": [(1, "b", 2), (1, "b", 3)]},
        {"as_mapping": True},
        "id=1, rows=2.*one row for each key and partition",
    ),
    "of no partition": (
        {"c": [(1, "c", 1)], "a": [(1, "elsewhere", 2)], "b": []},
        {"partition_expr": "letter"},
        "of none of the run's partitions",
    ),
    "equal sequences": (
        {"c": [(1, "c", 1), (1, "c", 1)], "a": [], "b": []},
        {"sequence_by": "n"},
        "id=1, rows=2",
    ),
    "partitions of one time": (
        {"2026-01-01|x": [(1, "x", 1)], "2026-01-01|y": [(1, "y", 1)]},
        {
            "as_mapping": True,
            "partitions_def": MultiPartitionsDefinition(
                {
                    "day": DailyPartitionsDefinition("2026-01-01", end_date="2026-01-03"),
                    "region": StaticPartitionsDefinition(["x", "y"]),
                }
            ),
        },
        "id=1, rows=2",
    ),
    "partitions without an order": (
        {"2026-01-01|x": [(1, "x", 1)], "2026-01-01|y": [(1, "y", 1)]},
        {
            "as_mapping": True,
            "partitions_def": MultiPartitionsDefinition(
                {
                    "one": StaticPartitionsDefinition(["2026-01-01"]),
                    "two": StaticPartitionsDefinition(["x", "y"]),
                }
            ),
        },
        "id=1, rows=2",
    ),
}


@pytest.mark.minutes
def test_repeated_keys_are_refused_if_nothing_decides_which_row_counts(
    spark: SparkSession, run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    for why, (by_partition, declared, message) in REFUSED.items():
        letters = letters_of(spark, by_partition, **declared)
        as_mapping = bool(declared.get("as_mapping"))
        with pytest.raises(AmbiguousMatchError, match=f"(?s){message}") as refused:
            reduced(spark, letters, by_partition, table("letters"), instance, as_mapping=as_mapping)
        assert refused.value.keys[0]["id"] == 1, why

    letters = letters_of(spark, BY_LETTER)
    for tags in (ALL, {**ALL, **FULL}):
        with pytest.raises((AmbiguousMatchError, StatementError)):
            run(letters, tags=tags)
    assert not table("letters").exists()


def reduced(
    spark: SparkSession,
    asset: AssetsDefinition,
    by_partition: Mapping[str, Rows],
    table: Table,
    instance: DagsterInstance,
    *,
    as_mapping: bool,
) -> DataFrame:
    """What a run of these partitions would merge."""
    declaration = merge_declaration_in(asset.metadata_by_key[asset.key])
    assert declaration is not None
    rows = frame(spark, [row for each in by_partition.values() for row in each])
    parts = {key: frame(spark, some) for key, some in by_partition.items() if some}
    changes = ChangesOfPartitions(rows, parts=parts) if as_mapping else Changes(rows)
    positions = partition_positions(asset.partitions_def, instance)
    of_run = RunPartitions(asset.partitions_def, list(by_partition), positions)
    return one_row_for_each_key(table, declaration, changes, of_run, is_rebuilt=False)


@pytest.mark.minutes
def test_a_new_key_twice_in_one_partition_is_an_error_as_an_old_one_is(
    spark: SparkSession, run: Run, table: AssetTable, instance: DagsterInstance
) -> None:
    changes: list[Rows] = []

    def customers(**declared: Any) -> AssetsDefinition:
        @merge_asset(keys=["id"], name="customers", **declared)
        def customers():  # type: ignore[no-untyped-def]
            return frame(spark, changes.pop(0))

        return customers

    changes += [[(1, "a", 1)], [(1, "b", 2), (1, "b", 3)], [(2, "b", 2), (2, "b", 2)]]
    run(customers())
    for _ in range(2):
        with pytest.raises(AmbiguousMatchError):
            run(customers())
    assert rows(table("customers")) == [(1, "a", 1)]

    # A row that no clause would insert is none too many; and rows that are there are left alone.
    changes += [[(2, "b", 2), (2, "b", 3)], [(1, "c", 5), (1, "c", 6), (3, "c", 1)]]
    run(customers(clauses=DELETES))
    inserts = customers(clauses=ONLY_INSERTS)
    run(inserts)
    assert rows(table("customers")) == [(1, "a", 1), (2, "b", 2), (3, "c", 1)]

    # Nor is one inserted several times if others delete its row before the merge commits.
    toggles = customers(clauses=[clauses.when_matched_delete(), *ONLY_INSERTS])
    some = {"": [(1, "c", 5), (1, "c", 6), (9, "c", 1), (None, "c", 1), (None, "c", 1)]}
    for customer, left in ((inserts, [9, None, None]), (toggles, [1, 9, None, None])):
        merged = reduced(spark, customer, some, table("customers"), instance, as_mapping=False)
        assert sorted([row.id for row in merged.collect()], key=str) == left

    changes += [[(4, "d", 1), (4, "d", 1), (1, "d", 9)]]
    run(customers(unique_keys=False))  # MERGE's own semantics
    assert rows(table("customers")) == [
        (1, "d", 9),
        (2, "b", 2),
        (3, "c", 1),
        (4, "d", 1),
        (4, "d", 1),
    ]


def test_windows_of_time_tell_which_row_is_newer(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    days = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04", timezone="Europe/Berlin")

    @merge_asset(
        keys=["id"], partitions_def=days, partition_expr="at", schema="id INT, at TIMESTAMP"
    )
    def readings(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        # The first hour of the third day in Berlin is the second day's in UTC.
        return spark.sql(
            "SELECT 1 AS id, TIMESTAMP'2026-01-02 23:30:00Z' AS at UNION ALL "
            "SELECT 1, TIMESTAMP'2026-01-02 12:00:00Z'"
        )

    run(readings, tags=partition_tags(["2026-01-02", "2026-01-03"]))

    at = table("readings").read().selectExpr("unix_timestamp(at) % 86400 AS s").collect()
    assert [row.s for row in at] == [23 * 3600 + 1800]


@pytest.mark.minutes
def test_rows_by_partition_are_of_the_runs_partitions_and_alike(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    returned: list[Any] = [
        {"elsewhere": frame(spark, [(1, "a", 1)])},
        {"a": frame(spark, [(1, "a", 1)]), "b": frame(spark, [(1, "b", 1)]).drop("n")},
        {"a": frame(spark, [(1, "a", 1)]), "b": spark.sql("SELECT 2 id, 'b' letter, '03' n")},
        {"a": None},
        {"a": frame(spark, [(1, "a", 1)]), "b": None},
    ]

    @merge_asset(keys=["id"], partitions_def=LETTERS)
    def letters(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        return returned.pop(0)

    @asset(partitions_def=LETTERS, metadata={"deltaweave/write": "append"})
    def appended(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        return {"a": frame(spark, [(1, "a", 1)]), "b": frame(spark, [(1, "a", 1)])}

    with pytest.raises(SourceError, match="elsewhere, which are no partitions of this run"):
        run(letters, tags=partition_tags(["a", "b"]))
    with pytest.raises(SourceError, match="a and b differ in the columns n"):
        run(letters, tags=partition_tags(["a", "b"]))
    with pytest.raises(SourceError, match="the columns n have other types"):
        run(letters, tags=partition_tags(["a", "b"]))
    run(letters, tags=partition_tags(["a", "b"]))
    assert not table("letters").exists()  # None of each partition is None
    run(letters, tags=partition_tags(["a", "b"]))
    assert rows(table("letters")) == [(1, "a", 1)]
    run(appended, tags=partition_tags(["a", "b"]))
    assert rows(table("appended")) == [(1, "a", 1), (1, "a", 1)]
