"""Statements that built-in MERGE gets wrong: the right rows, by hand, and what it does with them.

Once a test here fails because built-in MERGE does right, Delta has fixed it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import session_merges
from deltaweave.delta.log import features
from deltaweave.delta.statement import builtin_defects, parse_statement
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.errors import AmbiguousMatchError, UnsupportedFeatureError
from tests.builders import write_table
from tests.merge_cases.case import (
    AMBIGUOUS,
    Layout,
    MergeCase,
    by_source_delete,
    by_source_update,
    delete,
    insert,
    insert_all,
    update,
    update_all,
)
from tests.support.oracles import Stage, newest_version, rows_as_text
from tests.support.settings import configured

NAN, INFINITE = float("nan"), float("inf")
FEED, VECTORS = Layout(feed=True), Layout(vectors=True)
BOTH = Layout(vectors=True, feed=True)
REPEATED = "drops_rows_as_repeated"
UNMATCHED = "takes_unmatched_rows_for_matched"
OVERLOOKED = "overlooks_repeated_matches"
RAISED = "USER_RAISED_EXCEPTION"


@dataclass(frozen=True)
class DefectCase:
    """A statement that built-in MERGE gets wrong.

    Attributes:
        defect: The name of the defect.
        layout: How the table is kept where built-in MERGE gets it wrong.
        built_in: The rows that it makes, the class of the error that it fails with, or None where
            it loses rows, and the order of the join decides which.
        case: The statement, with the right rows or the right error.
    """

    defect: str
    layout: Layout
    built_in: list[tuple[object, ...]] | str | None
    case: MergeCase


CASES = [
    DefectCase(
        REPEATED,
        FEED,
        [(2, 20)],
        MergeCase(
            name="repeated_delete_beside_an_insert",
            target=[(1, 10), (2, 20)],
            # The source's second row and the target's second row have the same number.
            source=[(1, 100), (3, 300), (1, 101)],
            clauses=(delete(), insert_all()),
            expected=[
                (2, 20),  # copied
                (3, 300),  # inserted
            ],
        ),
    ),
    DefectCase(
        REPEATED,
        FEED,
        None,
        MergeCase(
            name="repeated_delete_beside_an_insert_that_takes_no_row",
            target=[(1, 10), (2, 20), (5, 50), (6, 60)],
            source=[(1, 100), (3, 300), (4, 1), (7, 1), (1, 101)],
            clauses=(delete(), insert_all("s.v < 0")),
            expected=[
                (2, 20),  # copied, as are the others: built-in MERGE loses a row of the table
                (5, 50),
                (6, 60),
            ],
        ),
    ),
    DefectCase(
        REPEATED,
        BOTH,
        None,
        MergeCase(
            name="repeated_delete_beside_an_insert_and_an_update_by_source",
            target=[(1, 10), (2, 20)],
            source=[(1, 100), (3, 300), (1, 101)],
            clauses=(delete(), insert_all(), by_source_update({"v": "0"})),
            expected=[
                (2, 0),  # not matched by source
                (3, 300),  # inserted
            ],
        ),
    ),
    DefectCase(
        REPEATED,
        BOTH,
        None,
        MergeCase(
            name="repeated_deletes_as_they_were_drawn",
            target_schema="v0 INT, k0 DOUBLE, k1 INT",
            target=[
                (4, NAN, 1),
                (4, -0.0, 2),
                (4, -0.0, 4),  # deleted by (-0.0, 4, 4)
                (5, -0.0, 5),  # deleted by (-0.0, 5, 4) and (-0.0, 5, 5)
                (4, INFINITE, 0),
                (2, -0.0, 0),
                (5, 0.0, 1),  # deleted by (0.0, 1, 2)
                (1, -3.0, 3),  # deleted by (-3.0, 3, 3)
                (5, -3.0, None),
                (1, None, 4),
                (1, 1.5, 1),
                (0, 1.5, None),
            ],
            source_schema="k0 DOUBLE, k1 INT, v0 INT",
            source=[
                (1.5, 0, 3),
                (None, 3, None),  # inserted by no clause
                (-0.0, 5, 4),
                (0.0, None, 4),
                (None, None, 5),
                (-0.0, 5, 5),
                (-3.0, 3, 3),
                (-0.0, 4, 4),
                (NAN, 5, 1),
                (1.5, 5, 3),
                (INFINITE, 3, 4),
                (0.0, 1, 2),
            ],
            on="s.k1 <=> t.k1 AND s.k0 = t.k0",
            clauses=(
                delete(),
                insert({"v0": "s.v0", "k0": "s.k0", "k1": "s.k1"}, "s.v0 % 2 = 1"),
                insert(
                    {"k0": "IF(s.v0 % 2 = 0, s.k0, CAST(1.5 AS DOUBLE))", "k1": "NULL"},
                    "s.k0 IS NOT NULL",
                ),
                by_source_update({"k1": "NULL"}),
            ),
            expected=[
                (4, NAN, None),  # not matched by source, as are the next seven
                (4, -0.0, None),
                (4, INFINITE, None),
                (2, -0.0, None),
                (5, -3.0, None),
                (1, None, None),
                (1, 1.5, None),
                (0, 1.5, None),
                (3, 1.5, 0),  # inserted by the first clause, as are the next three
                (3, 1.5, 5),
                (5, None, None),
                (1, NAN, 5),
                (None, 0.0, None),  # inserted by the second clause, as is the next one
                (None, INFINITE, None),
            ],
        ),
    ),
    DefectCase(
        UNMATCHED,
        VECTORS,
        RAISED,
        MergeCase(
            name="null_of_a_missing_source_row_meets_the_condition",
            target=[(1, 10), (2, 20)],
            source=[(1, 100)],
            on="t.k = s.k OR s.k IS NULL",
            clauses=(update({"v": "s.v"}), by_source_delete("t.v < 0")),
            expected=[
                (1, 100),  # updated
                (2, 20),  # not matched by source, and no clause takes it
            ],
        ),
    ),
    DefectCase(
        UNMATCHED,
        VECTORS,
        RAISED,
        MergeCase(
            name="null_of_a_missing_target_row_equals_the_source_s_null",
            target=[(1, 10)],
            source=[(1, 100), (None, 300)],
            on="t.k <=> s.k",
            clauses=(update({"v": "s.v"}), insert_all("s.v < 0")),
            expected=[(1, 100)],  # updated; no clause inserts (NULL, 300)
        ),
    ),
    DefectCase(
        UNMATCHED,
        BOTH,
        RAISED,
        MergeCase(
            name="null_of_a_missing_source_row_as_it_was_drawn",
            target_schema="v1 TIMESTAMP, v2 INT, k0 DATE, v0 ARRAY<INT>",
            target=[
                (dt.datetime(2024, 1, 1), None, dt.date(2024, 1, 1), None),
                (None, 5, dt.date(1969, 12, 31), [1, 2]),
                (dt.datetime(2024, 1, 1, 0, 0, 0, 1), 5, None, [None, 3]),
                (dt.datetime(2024, 1, 1), 5, dt.date(2024, 2, 29), [1, 2]),
            ],
            source_schema="v1 TIMESTAMP, v2 INT, k0 DATE, v0 ARRAY<INT>",
            source=[(None, None, dt.date(2024, 2, 29), None)],
            on="s.k0 = t.k0 OR s.k0 IS NULL",
            clauses=(
                update({"v2": "s.v2"}),
                insert_all("NOT (s.v2 IN (3, 2, 3))"),
                insert_all("size(s.v0) = 1"),
                by_source_delete("t.v0 IS NULL"),
            ),
            expected=[  # (2024-01-01, NULL, 2024-01-01, NULL) is not matched by source, and deleted
                (None, 5, dt.date(1969, 12, 31), [1, 2]),  # no clause takes it
                (dt.datetime(2024, 1, 1, 0, 0, 0, 1), 5, None, [None, 3]),  # no clause takes it
                (dt.datetime(2024, 1, 1), None, dt.date(2024, 2, 29), [1, 2]),  # updated
            ],
        ),
    ),
    DefectCase(
        OVERLOOKED,
        VECTORS,
        [(1, 100), (2, 20)],
        MergeCase(
            name="null_condition_of_one_of_two_matches",
            target=[(1, 10), (2, 20)],
            source=[(1, 100), (1, None)],
            clauses=(update_all("s.v > 0"),),
            error=AMBIGUOUS,
        ),
    ),
    DefectCase(
        OVERLOOKED,
        Layout(),
        [(1, 10), (1, 10), (4, 40)],
        MergeCase(
            name="null_conditions_of_both_matches_beside_deletes",
            target=[(1, 10), (2, 20), (3, 30), (4, 40)],
            source=[(1, None), (1, None), (2, 1), (3, 1)],
            clauses=(delete("s.v > 0"),),
            error=AMBIGUOUS,  # built-in MERGE writes the row (1, 10) twice
        ),
    ),
    DefectCase(
        OVERLOOKED,
        Layout(),
        [(1, 10), (1, 10), (4, 40)],
        MergeCase(
            name="null_condition_beside_one_that_is_never_null",
            target=[(1, 10), (2, 20), (3, 30), (4, 40)],
            source=[(1, None), (1, None), (2, 1), (3, 1)],
            clauses=(delete("s.v > 0"), update({"v": "1"}, "coalesce(s.k = 99, false)")),
            error=AMBIGUOUS,  # built-in MERGE writes the row (1, 10) twice
        ),
    ),
]
WAYS = {"spark": {}, "driver": {ON_DRIVER: "true"}, "in_place": {REWRITE_IN_PLACE: "true"}}
LAYOUTS = [Layout(), FEED, VECTORS, BOTH]
named = pytest.mark.parametrize("of", CASES, ids=lambda of: of.case.name)


@pytest.mark.minutes
@named
def test_built_in_merge_gets_it_wrong_and_the_engine_right(
    spark: SparkSession, tmp_path: Path, of: DefectCase
) -> None:
    stage = Stage(spark, of.case, tmp_path, of.layout)
    assert_right(stage, of.case, of.layout)
    theirs = stage.by_oracle()
    if isinstance(of.built_in, str):
        assert of.built_in in theirs.error_classes
        return
    assert theirs.error is None
    if of.built_in is None:
        assert set(theirs.rows) < set(rows_as_text(of.case.expected or ()))
    else:
        assert theirs.rows == rows_as_text(of.built_in)


def by_turns() -> Iterator[Any]:
    """Some cases in each layout; in `make test-slow` in two of them."""
    for place, of in enumerate(CASES[number] for number in (1, 3, 6, 7)):
        for number, layout in enumerate(LAYOUTS):
            mark = pytest.mark.minutes if place % 2 == number % 2 else pytest.mark.full_matrix
            yield pytest.param(of, layout, id=f"{of.case.name}-{layout}", marks=mark)


@pytest.mark.parametrize(("of", "layout"), list(by_turns()))
def test_the_engine_gets_it_right_however_it_writes(
    spark: SparkSession, tmp_path: Path, of: DefectCase, layout: Layout
) -> None:
    stage = Stage(spark, of.case, tmp_path, layout)
    for way, conf in WAYS.items():
        if not (layout.vectors and way == "in_place"):
            with configured(spark, conf):
                assert_right(stage, of.case, layout)


def assert_right(stage: Stage, case: MergeCase, layout: Layout) -> None:
    ours = stage.by_sql()
    if case.error is not None:
        assert ours.error_classes == (case.error,)
        assert ours.rows == rows_as_text(case.target)
        return
    if ours.error is not None:
        raise ours.error
    expected = rows_as_text(case.expected or ())
    assert ours.rows == expected
    if layout.feed:
        changed = rows_after(rows_as_text(case.target), ours.changes or [])
        assert changed == expected


def rows_after(rows: list[str], changes: list[str]) -> list[str]:
    """The rows before a merge, changed as the change data feed says."""
    rows = list(rows)
    for change in changes:
        row, kind = change[:-1].rsplit(", ", 1)
        if kind in ("'delete'", "'update_preimage'"):
            rows.remove(f"{row})")
    for change in changes:
        row, kind = change[:-1].rsplit(", ", 1)
        if kind in ("'insert'", "'update_postimage'"):
            rows.append(f"{row})")
    return sorted(rows)


ON_KEYS = "t.k = s.k"
DELETE_ALL, INSERT = "WHEN MATCHED THEN DELETE", "WHEN NOT MATCHED THEN INSERT *"
UPDATE, UPDATE_IF = "WHEN MATCHED THEN UPDATE SET v = s.v", "WHEN MATCHED AND s.v > 0 THEN DELETE"
INSERT_IF = "WHEN NOT MATCHED AND s.v > 0 THEN INSERT *"
BY_SOURCE_UPDATE = "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 0"
BY_SOURCE_IF = "WHEN NOT MATCHED BY SOURCE AND t.v < 0 THEN DELETE"
NO_VECTORS = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
MET = {
    # layout, ON, clauses, and the defects that built-in MERGE may meet
    "delete_and_insert": (FEED, ON_KEYS, [DELETE_ALL, INSERT], [REPEATED]),
    "delete_and_conditional_insert": (FEED, ON_KEYS, [DELETE_ALL, INSERT_IF], [REPEATED]),
    "delete_and_insert_with_vectors": (BOTH, ON_KEYS, [DELETE_ALL, INSERT], []),
    "update_by_source_too": (BOTH, ON_KEYS, [DELETE_ALL, INSERT, BY_SOURCE_UPDATE], [REPEATED]),
    "delete_by_source_too": (BOTH, ON_KEYS, [DELETE_ALL, INSERT, BY_SOURCE_IF], []),
    "without_a_feed": (Layout(), ON_KEYS, [DELETE_ALL, INSERT, BY_SOURCE_UPDATE], []),
    "delete_alone": (FEED, ON_KEYS, [DELETE_ALL, BY_SOURCE_UPDATE], []),
    "delete_if_true": (FEED, ON_KEYS, ["WHEN MATCHED AND true THEN DELETE", INSERT], []),
    "upsert": (BOTH, ON_KEYS, [UPDATE, INSERT], []),
    "source_null": (VECTORS, "t.k = s.k OR s.k IS NULL", [UPDATE, BY_SOURCE_IF], [UNMATCHED]),
    "target_null": (VECTORS, "t.k = s.k OR t.k IS NULL", [UPDATE, INSERT_IF], [UNMATCHED]),
    "null_safe": (VECTORS, "t.k <=> s.k", [UPDATE, BY_SOURCE_IF], [UNMATCHED]),
    "null_safe_beside_equal": (VECTORS, "t.k <=> s.k AND t.v = s.v", [UPDATE, BY_SOURCE_IF], []),
    "null_safe_without_by_source": (VECTORS, "t.k <=> s.k", [UPDATE, INSERT], []),
    "null_safe_without_vectors": (FEED, "t.k <=> s.k", [UPDATE, BY_SOURCE_IF], []),
    "null_refused_by_a_clause": (VECTORS, "t.k <=> s.k", [UPDATE_IF, BY_SOURCE_IF], []),
    "constant_condition": (VECTORS, "true", [UPDATE, INSERT_IF], [UNMATCHED]),
    "null_condition": (Layout(), ON_KEYS, [UPDATE_IF], [OVERLOOKED]),
    "null_condition_of_two": (VECTORS, ON_KEYS, [UPDATE_IF, UPDATE_IF], [OVERLOOKED]),
    "null_condition_and_no_null_condition": (
        Layout(),
        ON_KEYS,
        [UPDATE_IF, "WHEN MATCHED AND coalesce(s.k = 99, false) THEN UPDATE SET v = 1"],
        [OVERLOOKED],
    ),
    "null_condition_and_none": (VECTORS, ON_KEYS, [UPDATE_IF, UPDATE], []),
    "null_condition_and_insert": (Layout(), ON_KEYS, [UPDATE_IF, INSERT], []),
    "no_null_condition": (
        Layout(),
        ON_KEYS,
        ["WHEN MATCHED AND coalesce(s.v > 0, false) THEN DELETE"],
        [],
    ),
}


def test_clauses_and_table_decide_what_built_in_merge_may_get_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    for layout in LAYOUTS:
        table = MergeCase(name="defects", clauses=(delete(),), expected=())
        write_table(spark, str(tmp_path / str(layout)), **layout.of(table).table())
    spark.createDataFrame([], "k INT, v INT").createOrReplaceTempView("defects_source")
    found = {
        name: defects(spark, tmp_path / str(of), on, when)
        for name, (of, on, when, _) in MET.items()
    }
    assert found == {name: expected for name, (*_, expected) in MET.items()}
    with configured(spark, NO_VECTORS):
        # Without vectors, rows are copied, and can be taken for repeated deletes.
        assert defects(spark, tmp_path / str(VECTORS), "true", [UPDATE, INSERT_IF]) == []
        assert defects(spark, tmp_path / str(BOTH), ON_KEYS, [DELETE_ALL, INSERT]) == [REPEATED]


def defects(spark: SparkSession, path: Path, on: str, clauses: list[str]) -> list[str]:
    text = f"MERGE INTO delta.`{path}` t USING defects_source s ON {on} {' '.join(clauses)}"
    return [defect.name for defect in builtin_defects(parse_statement(spark, text))]


COLUMNS = {
    # columns, partition column, layout, and the defects that any statement meets
    "back_quote": ("k INT, `a``b` INT", None, FEED, ["quotes_names_wrongly"]),
    "back_quote_without_a_feed": ("k INT, `a``b` INT", None, VECTORS, []),
    "dot": ("k INT, `a.b` INT", None, FEED, []),
    "dot_in_a_partition": ("k INT, `a.b` INT", "a.b", Layout(), ["quotes_names_wrongly"]),
    "metadata": ("k INT, _Metadata INT", None, VECTORS, ["makes_the_table_unreadable"]),
    "metadata_without_vectors": ("k INT, _metadata INT", None, FEED, []),
    "time": ("k INT, at TIMESTAMP", "at", Layout(), ["moves_rows_to_another_hour"]),
    "time_that_is_no_partition": ("k INT, at TIMESTAMP", None, Layout(), []),
}


@pytest.mark.minutes
def test_columns_decide_what_built_in_merge_may_get_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.createDataFrame([], "k INT").createOrReplaceTempView("defects_source")
    found = {}
    with configured(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        for name, (columns, partition, layout, _) in COLUMNS.items():
            table = MergeCase(
                name=name,
                target_schema=columns,
                partition_by=() if partition is None else (partition,),
                clauses=(delete(),),
                expected=(),
            )
            write_table(spark, str(tmp_path / name), **layout.of(table).table())
            found[name] = defects(spark, tmp_path / name, ON_KEYS, [DELETE_ALL])
    assert found == {name: expected for name, (*_, expected) in COLUMNS.items()}
    assert defects(spark, tmp_path / "time", ON_KEYS, [DELETE_ALL]) == []  # the session's is UTC
    in_1582 = f"{ON_KEYS} AND t.at > DATE'1582-10-05'"
    assert defects(spark, tmp_path / "time", in_1582, [DELETE_ALL]) == ["overlooks_days"]
    with configured(spark, {"spark.sql.datetime.java8API.enabled": "true"}):  # as the hint says
        assert defects(spark, tmp_path / "time", in_1582, [DELETE_ALL]) == []


@pytest.mark.minutes
def test_widened_decimals_decide_what_built_in_merge_may_get_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    wide, plain = tmp_path / "wide", tmp_path / "plain"
    spark.sql(
        f"CREATE TABLE delta.`{wide}` (k DECIMAL(9,2), v INT) USING delta "
        "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    )
    spark.sql(f"ALTER TABLE delta.`{wide}` ALTER COLUMN k TYPE DECIMAL(12,2)")
    spark.sql(f"CREATE TABLE delta.`{plain}` (k DECIMAL(12,2), v INT) USING delta")
    below, of_source = "t.k = s.k AND t.k < 30000000", "t.k = s.k AND s.k < 30000000"
    met = ["overlooks_widened_decimals"]
    source_of = {
        "plain": f"SELECT * FROM delta.`{plain}`",
        "wide": f"SELECT * FROM delta.`{wide}`",
        "filtered": f"SELECT * FROM delta.`{wide}` WHERE k < 30000000",
        "in_query": f"SELECT * FROM delta.`{plain}` WHERE k IN (SELECT k FROM delta.`{wide}`)",
    }
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, query in source_of.items():
        spark.sql(query).createOrReplaceTempView("defects_source")
        for path in (wide, plain):
            for on in (ON_KEYS, below, of_source):
                found[name, path.name, on] = defects(spark, path, on, [UPDATE, INSERT])
        with configured(spark, {"spark.sql.parquet.filterPushdown.decimal": "false"}):  # the hint
            assert defects(spark, wide, below, [UPDATE, INSERT]) == []
    for (name, path, on), of_case in found.items():
        is_widened = (name, path) != ("plain", "plain")
        has_constant = on != ON_KEYS or name in ("filtered", "in_query")
        assert of_case == (met if is_widened and has_constant else []), (name, path, on)


@pytest.fixture
def refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """A statement that built-in MERGE gets wrong, on a table that the engine refuses; its path."""
    of = CASES[0]
    path = str(tmp_path / "refused")
    write_table(spark, path, **of.layout.of(of.case).table())
    source = spark.createDataFrame(list(of.case.source), of.case.source_schema)
    source.createOrReplaceTempView("defects_source")
    monkeypatch.delitem(features.FEATURES, "changeDataFeed")
    return of.case.statement(target=f"delta.`{path}`", source="defects_source"), path


def test_the_fallback_is_refused_and_says_why(
    spark: SparkSession, refused: tuple[str, str]
) -> None:
    statement, path = refused
    for fallback in ("builtin", None):
        with pytest.raises(UnsupportedFeatureError) as raised:
            deltaweave.merge(spark, statement, fallback=fallback)
        assert raised.value.features == ("changeDataFeed",)
        assert raised.value.builtin_defects == (REPEATED,)
        for said in ("WHEN MATCHED THEN DELETE", "enableChangeDataFeed", "WHEN MATCHED AND true"):
            assert said in str(raised.value)
    assert newest_version(path) == 0
    mended = statement.replace("WHEN MATCHED THEN", "WHEN MATCHED AND true THEN")
    with pytest.raises(AmbiguousMatchError, match=AMBIGUOUS):  # by built-in MERGE, as the hint says
        deltaweave.merge(spark, mended, fallback="builtin")


def test_an_enabled_session_does_not_leave_it_to_built_in_merge(
    spark: SparkSession, refused: tuple[str, str]
) -> None:
    statement, path = refused
    session_merges.enable(spark)
    try:
        with pytest.raises(UnsupportedFeatureError, match="WHEN MATCHED AND true"):
            spark.sql(statement)
    finally:
        session_merges.disable(spark)
    assert newest_version(path) == 0
