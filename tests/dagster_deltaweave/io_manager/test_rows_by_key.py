"""A key that comes several times in a run gives one row, or an error before anything is written."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
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
from dagster_deltaweave.tables import ChangesOfPartitions, MergeDeclaration, merge_declaration_in
from deltaweave import Table, clauses
from deltaweave.errors import AmbiguousMatchError, DeltaweaveError, SourceError, StatementError
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
    wider = f"{SCHEMA}, note STRING"  # a deleted row loses its note, others keep it
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
    "no order": (BY_LETTER, {}, r"id=1, rows=3\.\n.*partition key: rows.*sequence_by"),
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


SNAPSHOT = [
    clauses.when_matched_update_all(),
    *ONLY_INSERTS,
    clauses.when_not_matched_by_source_delete(),
]
AS_TEXT = (
    "MERGE INTO {target} t USING {source} s ON t.id = s.id WHEN NOT MATCHED THEN INSERT * "
    "WHEN NOT MATCHED BY SOURCE AND t.n > 0 THEN UPDATE SET n = 0"
)
BY_SOURCE: dict[str, dict[str, Any]] = {
    "keys": {"clauses": SNAPSHOT, "as_mapping": True},
    "keys that repeat": {"clauses": SNAPSHOT, "unique_keys": False},
    "in any order": {"clauses": SNAPSHOT, "order": "any"},
    "on": {"clauses": SNAPSHOT, "keys": [], "on": "t.id = s.id"},
    "text": {"keys": [], "merge_text": AS_TEXT},
    "text in a WITH": {"keys": [], "merge_text": f"WITH a AS (SELECT 1) {AS_TEXT}"},
}


@pytest.mark.minutes
def test_several_partitions_are_refused_where_a_clause_is_by_source(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    """Each partition would delete the rows of the others, which one merge of all spares."""
    some: dict[str, Rows] = {"c": [(1, "c", 1)], "a": [(2, "a", 2)], "b": [(3, "b", 3)]}
    for why, declared in BY_SOURCE.items():
        for tags in (ALL, {**ALL, **FULL}):
            with pytest.raises(StatementError, match=r"BY SOURCE(?s:.*)one by one|MERGE text"):
                run(letters_of(spark, some, **declared), tags=tags)
            assert not table("letters").exists(), why

    letters = letters_of(spark, some, **BY_SOURCE["keys"])
    for key in ("c", "a"):
        run(letters, partition=key)
    assert rows(table("letters")) == [(2, "a", 2)]
    some["a"] = some["b"] = []
    run(letters, tags=ALL)  # only one partition has rows
    assert rows(table("letters")) == [(1, "c", 1)]


ASSIGNED_KEYS: list[list[Any]] = [
    [clauses.when_matched_update({"id": "s.n"}), *ONLY_INSERTS],
    [clauses.when_matched_update({"t.`ID`": "t.id + 1"}), *ONLY_INSERTS],
    [*ONLY_UPDATES, clauses.when_not_matched_insert({"id": "s.n", "letter": "s.letter"})],
    [*ONLY_UPDATES, clauses.when_not_matched_insert({"letter": "s.letter"})],
]
KEPT_KEYS: list[list[Any]] = [
    [clauses.when_matched_update({"t.`ID`": "s.id", "n": "s.n"}), *ONLY_INSERTS],
    [clauses.when_matched_update({"id": "t.id", "n": "s.n"}), *ONLY_INSERTS],
]


@pytest.mark.minutes
def test_several_partitions_are_refused_where_a_clause_assigns_a_key(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    some: dict[str, Rows] = {"c": [(1, "c", 2)], "a": [(2, "a", 2)], "b": []}
    for given in ASSIGNED_KEYS:
        letters = letters_of(spark, some, clauses=given, as_mapping=True)
        with pytest.raises(StatementError, match=r"the table's id another(?s:.*)one by one"):
            run(letters, tags=ALL)
        assert not table("letters").exists(), given
    for at, given in enumerate(KEPT_KEYS):
        letters = letters_of(spark, some, clauses=given, as_mapping=True, name=f"kept_{at}")
        run(letters, tags=ALL)
        assert rows(table(f"kept_{at}")) == [(1, "c", 2), (2, "a", 2)], given


UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
TEXT = "MERGE INTO {{target}} t USING {} ON {} {}"
NEWEST = "(SELECT id, max_by(letter, n) AS letter, max(n) AS n FROM {source} GROUP BY id) s"
IN_WITH = "WITH s AS (SELECT * FROM {source}) "
PLAIN_INSERT = [clauses.when_not_matched_insert({"n": "s.id", "letter": "s.letter"})]
TWICE: dict[str, Rows] = {"c": [(1, "c", 1)], "a": [(1, "a", 2)], "b": []}
ONCE: dict[str, Rows] = {"c": [(1, "c", 1), (1, "c", 1)], "a": [(2, "a", 2)], "b": []}
NULLS: dict[str, Rows] = {"c": [(None, "c", 1)], "a": [(None, "a", 2)], "b": []}
NAMED_KEYS, NO_EQUALITY = r"id=1, rows=2\.(?s:.*)one by one", "has no columns that are equal"
# The rows of partitions, how they are merged, and why that is refused, if it is.
CONDITIONS: list[tuple[dict[str, Rows], dict[str, Any], str]] = [
    (TWICE, {"on": "t.id = s.id"}, NAMED_KEYS),
    (TWICE, {"on": "t.id = s.id", "as_mapping": True}, NAMED_KEYS),
    (TWICE, {"on": "s.id = t.ID AND t.n <= s.n"}, NAMED_KEYS),
    (TWICE, {"on": "t.id = s.id", "order": "any"}, NAMED_KEYS),
    (TWICE, {"on": "t.n = s.id", "clauses": PLAIN_INSERT}, NAMED_KEYS),
    (TWICE, {"merge_text": TEXT.format("{source} s", "t.id = s.id", UPSERT)}, NAMED_KEYS),
    (TWICE, {"merge_text": TEXT.format(NEWEST, "t.id = s.id", UPSERT)}, ""),
    (TWICE, {"merge_text": IN_WITH + TEXT.format("s", "t.id = s.id", UPSERT)}, NO_EQUALITY),
    (TWICE, {"on": "t.id = s.id", "clauses": [clauses.when_matched_delete()]}, ""),
    (TWICE, {"on": "t.id = s.id AND t.letter = s.letter"}, ""),
    (TWICE, {"keys": ["id"], "unique_keys": False}, ""),  # MERGE's own semantics
    (ONCE, {"on": "t.id = s.id"}, NAMED_KEYS),  # of unknown partitions
    (ONCE, {"on": "t.id = s.id", "as_mapping": True}, ""),
    (ONCE, {"on": "t.id = s.id", "partition_expr": "letter"}, ""),
    (NULLS, {"on": "t.id = s.id"}, ""),
    (NULLS, {"on": "t.id <=> s.id"}, "id=None, rows=2"),
    (TWICE, {"on": "t.id = s.id + 0"}, NO_EQUALITY),
    (TWICE, {"on": "t.id = s.id OR t.n = s.n"}, NO_EQUALITY),
    (TWICE, {"on": "t.id = s.n"}, NO_EQUALITY),  # what INSERT * gives differs
    (TWICE, {"on": "t.n = s.id", "clauses": ONLY_UPDATES}, NO_EQUALITY),  # which moves a match
    (TWICE, {"on": "abs(t.id) = s.id", "clauses": [ADDS_UP[0]]}, ""),
    (TWICE, {"on": "abs(t.id) = s.id", "order": "any"}, ""),
    (TWICE, {"on": "false"}, ""),
    (TWICE, {"merge_text": TEXT.format("{source} s", "1 = 0", UPSERT)}, ""),
]


@pytest.mark.minutes
def test_conditions_are_refused_that_find_rows_of_several_partitions(
    spark: SparkSession, table: AssetTable, instance: DagsterInstance
) -> None:
    for some, declared, message in CONDITIONS:
        given = {"keys": [], **declared}
        letters = letters_of(spark, some, **given)
        as_mapping = bool(declared.get("as_mapping"))
        with pytest.raises(DeltaweaveError, match=message) if message else nullcontext():
            reduced(spark, letters, some, table("letters"), instance, as_mapping=as_mapping)


@pytest.mark.minutes
def test_a_refresh_by_a_condition_inserts_no_row_of_several_partitions(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    letters = letters_of(spark, TWICE, keys=[], on="t.id = s.id")
    for tags in (ALL, {**ALL, **FULL}):
        with pytest.raises(AmbiguousMatchError, match=NAMED_KEYS):
            run(letters, tags=tags)
    assert not table("letters").exists()


@pytest.mark.minutes
def test_conditions_compare_what_the_table_stores(
    spark: SparkSession, table: AssetTable, instance: DagsterInstance
) -> None:
    @merge_asset(on="t.k = s.k", schema="k INT, n INT", partitions_def=LETTERS)
    def numbers() -> None: ...

    declaration = merge_declaration_in(numbers.metadata_by_key[numbers.key])
    assert declaration is not None
    texts = spark.sql("SELECT '1' AS k, 1 AS n UNION ALL SELECT '01', 2")
    positions = partition_positions(LETTERS, instance)
    of_run = RunPartitions(LETTERS, ["c", "a"], positions)
    with pytest.raises(AmbiguousMatchError, match="k=1, rows=2"):
        one_row_for_each_key(
            table("numbers"), declaration, Changes(texts), of_run, is_rebuilt=False
        )


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


# By what the table has: two keys of a source that it would store as one, or change.
SAME = "keys come more than once"
CHANGED = "keys do not fit the table, whose K is .*K="
MERGES = ""  # MERGE itself decides
AS_STORED: list[tuple[str, str, str, str]] = [
    ("INT", "1.2D", "1.4D", CHANGED),
    ("INT", "1.20BD", "1.40BD", CHANGED),
    ("INT", "5000000000", "1L", CHANGED),
    ("INT", "1.0D", "2BD", MERGES),
    ("BIGINT", "double('NaN')", "1.0D", CHANGED),
    ("DECIMAL(5,2)", "1.201BD", "1.202BD", CHANGED),
    ("DECIMAL(5,2)", "1.201D", "1.202D", CHANGED),
    ("FLOAT", "0.1D", "2.5D", CHANGED),
    ("FLOAT", "16777217", "16777216", f"{CHANGED}|{SAME}"),
    ("DOUBLE", "9007199254740993", "9007199254740992", f"{CHANGED}|{SAME}"),
    ("DOUBLE", "0.0D", "-0.0D", SAME),
    ("DATE", "TIMESTAMP'2026-01-01 10:00:00'", "TIMESTAMP'2026-01-01 00:00:00'", CHANGED),
    ("DATE", "TIMESTAMP'2026-01-02 00:00:00'", "TIMESTAMP'2026-01-01 00:00:00'", MERGES),
    ("DATE", "'2026-01-01'", "'2026-01-01 10:00:00'", SAME),
    ("TIMESTAMP", "'2026-01-01'", "'2026-01-01 00:00:00'", SAME),
    ("TIMESTAMP", "1767225600", "1767225601", MERGES),
    ("INT", "'1'", "'01'", SAME),
    ("INT", "'1'", "'x'", CHANGED),
    ("DOUBLE", "'1.0'", "'1'", SAME),
    ("DECIMAL(5,2)", "'1.20'", "'1.2'", SAME),
    ("BOOLEAN", "'true'", "'t'", SAME),
    ("VARCHAR(3)", "'abc'", "'abc  '", CHANGED),
    ("CHAR(5)", "'ab   '", "'ab '", CHANGED),
    ("CHAR(5)", "'ab   '", "'abcde'", MERGES),
    ("STRING", "2", "3.5D", MERGES),
    ("STRING", "TIMESTAMP'2026-01-01 10:00:00'", "TIMESTAMP'2026-01-01 00:00:00'", MERGES),
    ("STRUCT<a: INT>", "named_struct('a', 1.2D)", "named_struct('a', 1.4D)", CHANGED),
    ("ARRAY<INT>", "array(1.2D)", "array(1.4D)", CHANGED),
]


def numbers_of(key: str, **declared: Any) -> MergeDeclaration:
    @merge_asset(keys=["K"], schema=f"k {key}, n INT", **declared)
    def numbers() -> None: ...

    declaration = merge_declaration_in(numbers.metadata_by_key[numbers.key])
    assert declaration is not None
    return declaration


@pytest.mark.minutes
def test_keys_that_the_table_would_store_as_one_are_refused(
    spark: SparkSession, table: AssetTable, instance: DagsterInstance
) -> None:
    of_run = RunPartitions(None, [], None)
    for of, one, other, message in AS_STORED:
        declaration = numbers_of(of)
        changes = Changes(spark.sql(f"SELECT {one} AS k, 1 AS n UNION ALL SELECT {other}, 2"))
        expected = pytest.raises(DeltaweaveError, match=f"(?s){message}")
        with expected if message else nullcontext():
            one_row_for_each_key(table("numbers"), declaration, changes, of_run, is_rebuilt=False)


@pytest.mark.minutes
def test_keys_that_are_not_inserted_are_compared_as_merge_does(
    spark: SparkSession, table: AssetTable, instance: DagsterInstance
) -> None:
    of_run = RunPartitions(None, [], None)
    numbers = table("numbers")
    spark.sql(f"CREATE TABLE delta.`{numbers.path_or_name}` (k INT, n INT) USING delta")
    spark.sql(f"INSERT INTO delta.`{numbers.path_or_name}` VALUES (1, 1)")
    some = clauses.when_not_matched_insert_all("s.n > 1")
    other = clauses.when_not_matched_insert({"k": "int(s.k)", "n": "s.n"})
    merged: list[tuple[str, Any]] = [
        ("'1' AS k, 1 AS n UNION ALL SELECT '01', 2", ONLY_INSERTS),  # the table has them
        ("1.2D AS k, 1 AS n", [some]),
        ("1.2D AS k, 1 AS n", ONLY_UPDATES),
        ("1.2D AS k, 1 AS n", [other]),  # what it inserts is its own
        ("CAST(NULL AS DOUBLE) AS k, 1 AS n UNION ALL SELECT NULL, 2", ONLY_INSERTS),
        ("'02' AS k, 1 AS n", [clauses.when_not_matched_insert_all("s.k LIKE '0%'")]),
    ]
    for statement, of_clauses in merged:
        given = spark.sql(f"SELECT {statement}")
        declaration = numbers_of("INT", clauses=of_clauses)
        found = one_row_for_each_key(numbers, declaration, Changes(given), of_run, is_rebuilt=False)
        assert found.schema["k"].dataType == given.schema["k"].dataType
        assert sorted(map(str, found.collect())) == sorted(map(str, given.collect())), statement


@pytest.mark.minutes
def test_parts_may_spell_keys_in_other_cases(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    @merge_asset(keys=["k"], schema="k INT, n INT", partitions_def=LETTERS)
    def numbers():  # type: ignore[no-untyped-def]
        parts = {"c": "1L AS k, 1 AS n", "a": "1L AS K, 2 AS n", "b": "2L AS k, 3 AS n"}
        return {key: spark.sql(f"SELECT {each}") for key, each in parts.items()}

    run(numbers, tags=ALL)
    assert rows(table("numbers")) == [(1, 2), (2, 3)]


# By column: its type, and a key in two types or spellings that SQL compares as equal.
SPELLINGS = {
    "day": ("DATE", "DATE'2026-01-01'", "TIMESTAMP'2026-01-01 00:00:00'"),
    "number": ("INT", "1", "'01'"),
    "amount": ("DECIMAL(5,2)", "1.5BD", "1.5D"),
    "ratio": ("FLOAT", "2.5F", "2.5D"),
}


@pytest.mark.minutes
def test_a_key_of_another_type_finds_the_row_of_its_key(
    spark: SparkSession, run: Run, table: AssetTable
) -> None:
    of_run: list[str] = []

    def assets() -> list[AssetsDefinition]:
        def of_policy(policy: Any) -> AssetsDefinition:
            schema = ", ".join(f"{name} {of}" for name, (of, *_) in SPELLINGS.items())

            @merge_asset(
                keys=[*SPELLINGS], schema=f"{schema}, n INT", schema_policy=policy, name=policy
            )
            def asset_of_policy():  # type: ignore[no-untyped-def]
                return spark.sql(of_run[-1])

            return asset_of_policy

        return [of_policy("strict"), of_policy("add")]

    for at in (1, 2, 1):
        keys = ", ".join(f"{each[at]} AS {name}" for name, each in SPELLINGS.items())
        of_run.append(f"SELECT {keys}, {len(of_run)} AS n")
        run(*assets())
    for policy in ("strict", "add"):
        assert [row[-1] for row in rows(table(policy))] == [2]

    wide = []

    @merge_asset(keys=["k"], schema="k INT, n INT", schema_policy="widen")
    def widened():  # type: ignore[no-untyped-def]
        return spark.sql(wide[-1])

    for statement in ("SELECT 1 AS k, 1 AS n", "SELECT 5000000000 AS k, 2 AS n"):
        wide.append(statement)
        run(widened)
    assert rows(table("widened")) == [(1, 1), (5000000000, 2)]


@pytest.mark.minutes
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

    with pytest.raises(SourceError, match="elsewhere, which are not partitions of this run"):
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
