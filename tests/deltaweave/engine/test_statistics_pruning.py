"""Files that cannot hold a key of the source are not read; a file that may hold one always is."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import deltaweave
from deltaweave import Table
from deltaweave.engine.merge_run import ON_DRIVER
from deltaweave.engine.source.keys import KeyRanges, key_ranges
from tests.builders import Rows, frame, write_table
from tests.merge_cases.case import (
    by_source_delete,
    by_source_update,
    insert_all,
    update_all,
)
from tests.support.big_source import collect_no_keys
from tests.support.oracles import rows_as_text
from tests.support.settings import configured

LONG = "a prefix that is longer than what statistics keep of a string / "

# Column type, keys of four files (one row each), keys of the source, how many files are read.
TYPES: dict[str, tuple[str, list[Any], list[Any], int]] = {
    "int": ("INT", [10, 20, 30, 40], [20, 25], 1),
    "bigint": ("BIGINT", [1, 2**40, 2**62, -(2**62)], [2**62], 1),
    "one_far_key_does_not_bring_all_back": ("INT", [10, 20, 30, 40], [10, 40], 2),
    "decimal": ("DECIMAL(38,18)", [Decimal(f"{i}.1") for i in range(4)], [Decimal("2.1")], 1),
    "date": ("DATE", [date(2024, m, 1) for m in (1, 4, 7, 10)], [date(2024, 4, 1)], 1),
    "timestamp_cut_off_at_milliseconds": (
        "TIMESTAMP",
        [datetime(2024, m, 1, 0, 0, 0, 999999, timezone.utc) for m in (1, 4, 7, 10)],
        [datetime(2024, 4, 1, 0, 0, 0, 999999, timezone.utc)],
        1,
    ),
    "string": ("STRING", ["apple", "berry", "cherry", "date"], ["cherry"], 1),
    "string_cut_off": ("STRING", [LONG + c for c in "abcd"], [LONG + "c"], 4),
    "string_of_the_highest_characters": (
        "STRING",
        ["\U0010ffff" * 40, "a" * 40, "b" * 40, "\ufffd" * 40],
        ["\U0010ffff" * 40],
        2,  # the last one may stand for any bytes that are no text
    ),
    "double": ("DOUBLE", [0.5, 1.5, 2.5, 3.5], [1.5], 1),
    "float": ("FLOAT", [0.1, 1.1, 2.1, 3.1], [1.100000023841858], 1),
    "double_nan_in_the_source": ("DOUBLE", [0.5, 1.5, 2.5, float("nan")], [float("nan")], 4),
    "double_nan_in_a_file": ("DOUBLE", [0.5, 1.5, 2.5, float("nan")], [1.5], 2),
    "negative_zero": ("DOUBLE", [-0.0, 1.5, 2.5, 3.5], [0.0], 1),
    "boolean_has_no_statistics": ("BOOLEAN", [True, False, True, False], [True], 4),
    "null_matches_nothing": ("INT", [10, 20, 30, None], [None, 10], 2),
}


def read_files(table: Table, source: Rows, schema: str, on: str = "t.k = s.k") -> int:
    merge = table.merge(frame(table.spark, source, schema), on=on)
    return merge.when_matched_delete().execute().metrics["numTargetFilesAfterSkipping"]


def files_read_by_ranges(table: Table, source: DataFrame) -> int:
    """How many files a merge would read if the source's keys were too many to be collected."""
    source.createOrReplaceTempView("many_keys")
    with pytest.MonkeyPatch.context() as patch:
        collect_no_keys(patch)
        plan = deltaweave.explain(
            table.spark,
            f"MERGE INTO delta.`{table.path_or_name}` t USING many_keys s ON t.k = s.k "
            "WHEN MATCHED THEN DELETE",
        )
    return plan.after_source_keys.files


# Target and source type, keys of the files, keys of the source, how many files are read.
COMPARED_AS_DOUBLES: dict[str, tuple[str, str, list[int], list[float], int]] = {
    "int": ("INT", "DOUBLE", [10, 20, 30, 40], [20.0, 25.5, -0.5], 1),
    "bigint": ("BIGINT", "DOUBLE", [10, 20, 30, 40], [40.0], 1),
    # 2^53 and 2^53 + 1 are the same double: both files hold a match.
    "bigint_that_doubles_round": ("BIGINT", "DOUBLE", [1, 2**53, 2**53 + 1], [2.0**53], 2),
    "infinite": ("INT", "DOUBLE", [10, 20], [float("inf"), 20.0], 1),
    "int_as_bigint": ("INT", "BIGINT", [10, 20, 30], [2**40, 30], 1),
}


@pytest.mark.parametrize(
    "condition",
    [
        "t.k < 15",  # a cast of 15 to bigint, before Spark's optimizer sees it
        "t.k BETWEEN 5 AND 5 + 10",
        "t.k IN (10, 11)",
        "t.day <= '2024-01-31'",
        "t.day < add_months(DATE'2024-01-01', 1)",
        "t.day < current_date() AND t.k < 15",
        "t.name LIKE 'app%'",
        "t.small < 15L",  # the column is cast
        "NOT t.k >= 15",
        "abs(t.k) BETWEEN 5 AND 15 AND t.k < 15",
    ],
)
def test_files_that_a_condition_rules_out_are_not_read(
    spark: SparkSession, three_files: str, condition: str
) -> None:
    statement = f"MERGE INTO delta.`{three_files}` t USING (SELECT 0L AS k) s ON t.k > s.k"
    in_on = deltaweave.explain(spark, f"{statement} AND {condition} WHEN MATCHED THEN DELETE")
    of_clause = deltaweave.explain(spark, f"{statement} WHEN MATCHED AND {condition} THEN DELETE")
    assert (in_on.after_conditions.files, of_clause.after_conditions.files) == (1, 1)


@pytest.fixture(scope="module")
def three_files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of a row in each file; only the first one meets the conditions above."""
    path = str(tmp_path_factory.mktemp("three") / "table")
    rows = [
        (10, 10, date(2024, 1, 1), "apple"),
        (20, 20, date(2024, 4, 1), "berry"),
        (30, 30, date(2024, 7, 1), "cherry"),
    ]
    write_table(spark, path, rows, "k BIGINT, small SMALLINT, day DATE, name STRING", files=3)
    return path


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("in_the_files", "in_the_source"),
    [("DATE'2024-01-01'", "DATE'+12024-01-01'"), ("DATE'+12024-01-01'", "DATE'2024-01-01'")],
    ids=["source", "files"],
)
def test_dates_that_python_cannot_hold_are_no_reason_to_fail_or_to_skip(
    spark: SparkSession, tmp_path: Path, in_the_files: str, in_the_source: str
) -> None:
    path = str(tmp_path / "table")
    for day in ("DATE'2024-01-01'", in_the_files):
        spark.sql(f"SELECT {day} AS k, 1 AS v").write.format("delta").mode("append").save(path)
    source = spark.sql(f"SELECT {in_the_source} AS k UNION ALL SELECT {in_the_files}")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_delete()
    deleted = merge.execute().metrics["numTargetRowsDeleted"]
    assert deleted == 2  # the row of each file


@pytest.mark.minutes
@pytest.mark.parametrize("case", COMPARED_AS_DOUBLES)
def test_keys_compared_in_another_type_prune_too(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    data_type, source_type, held, wanted, files = COMPARED_AS_DOUBLES[case]
    path, rows = str(tmp_path / "table"), [(key, 0) for key in held]
    write_table(spark, path, rows, f"k {data_type}, v INT", files=len(held))
    table = Table(spark, path)
    source = frame(spark, [(key,) for key in wanted], f"k {source_type}")
    expected = rows_as_text(table.read().join(source, "k", "left_anti").select("k", "v").collect())
    assert files_read_by_ranges(table, source) == files
    assert read_files(table, [(key,) for key in wanted], f"k {source_type}") == files
    assert rows_as_text(table.read().collect()) == expected


@pytest.mark.minutes
@pytest.mark.parametrize("case", TYPES)
def test_only_files_that_may_hold_a_key_are_read(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    data_type, held, wanted, files = TYPES[case]
    path, rows = str(tmp_path / "table"), [(key, 0) for key in held]
    write_table(spark, path, rows, f"k {data_type}, v INT", files=len(held))
    table = Table(spark, path)
    source = frame(spark, [(key,) for key in wanted], f"k {data_type}")
    expected = rows_as_text(table.read().join(source, "k", "left_anti").collect())
    assert files_read_by_ranges(table, source) == files
    assert read_files(table, [(key,) for key in wanted], f"k {data_type}") == files
    assert rows_as_text(table.read().collect()) == expected


@pytest.mark.minutes
def test_the_files_of_other_partitions_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    path, schema = str(tmp_path / "table"), "k INT, p STRING"
    rows = [(1, "a=b"), (2, "ü/%"), (3, None), (4, " ")]
    write_table(spark, path, rows, schema, partition_by=["p"])
    on = "t.p = s.p AND t.k = s.k"
    assert read_files(Table(spark, path), [(2, "ü/%"), (9, "new")], schema, on) == 1
    assert read_files(Table(spark, path), [(3, None)], schema, "t.p <=> s.p AND t.k = s.k") == 1


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("data_type", "held", "wanted", "compared_as"),
    [
        ("INT", [-50, 7, 50], 7, "INT"),
        ("BIGINT", [-(2**62), 7, 2**62], 2**62, "BIGINT"),
        ("INT", [1, 2, 3], 2, "DOUBLE"),
        ("DATE", [date(2024, m, 1) for m in (1, 4, 7)], date(2024, 4, 1), "DATE"),
        ("STRING", ["a", "b" * 50, "b" * 51], "b" * 50, "STRING"),
        (
            "DECIMAL(5, 1)",
            [Decimal("-1.5"), Decimal("2.5"), Decimal(3)],
            Decimal(3),
            "DECIMAL(5, 1)",
        ),
        ("BOOLEAN", [True, False], True, "BOOLEAN"),
    ],
)
def test_partitions_of_other_values_are_not_read(
    spark: SparkSession,
    tmp_path: Path,
    data_type: str,
    held: list[Any],
    wanted: Any,
    compared_as: str,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(0, p) for p in held], f"k INT, p {data_type}", partition_by=["p"])
    source = frame(spark, [(wanted,)], f"p {data_type}").selectExpr(
        f"CAST(p AS {compared_as}) AS p"
    )
    merge = Table(spark, path).merge(source, on="t.p = s.p").when_matched_delete()
    metrics = merge.execute().metrics
    assert metrics["numTargetRowsDeleted"] == 1
    assert metrics["numTargetFilesAfterSkipping"] <= (1 if data_type != "BOOLEAN" else 2)


@pytest.mark.minutes
def test_a_file_without_statistics_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    none = {"delta.dataSkippingNumIndexedCols": "0"}
    write_table(
        spark, path, [(1, 1), (2, 2), (3, 3), (4, 4)], "k INT, v INT", files=4, properties=none
    )
    assert read_files(Table(spark, path), [(2,)], "k INT") == 4


@pytest.mark.minutes
def test_keys_under_column_mapping(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    named = {"delta.columnMapping.mode": "name"}
    rows = [(1, 1), (2, 2), (3, 3), (4, 4)]
    write_table(spark, path, rows, "old INT, v INT", files=4, properties=named)
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN old TO `k's.key`")
    source = frame(spark, [(2,)], "k INT")
    merge = Table(spark, path).merge(source, on="t.`k's.key` = s.k").when_matched_delete()
    assert merge.execute().metrics["numTargetFilesAfterSkipping"] == 1


@pytest.mark.minutes
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_keys_in_fields_of_structs(spark: SparkSession, tmp_path: Path, mapping: str) -> None:
    path = str(tmp_path / "table")
    held = [(((key, None), key),) for key in (1, 2, 3, 4)] + [(None,)]
    write_table(
        spark,
        path,
        held,
        "a STRUCT<b: STRUCT<`k.1`: INT, x: INT>, v: INT>",
        files=5,
        properties={"delta.columnMapping.mode": mapping},
    )
    table = Table(spark, path)
    # That of 2, and that whose struct is null: nothing bounds it.
    assert read_files(table, [(2,), (9,)], "k INT", on="t.a.b.`k.1` = s.k") == 2
    # The row whose struct is null matches too, and whoever wrote it may not have counted that.
    assert read_files(table, [(None,)], "k INT", on="t.a.b.`k.1` <=> s.k") == 4
    assert {row.v for row in table.read().select("a.v").collect()} == {1, 3, 4}


def test_an_empty_source_reads_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 1), (2, 2)], "k INT, v INT", files=2)
    assert read_files(Table(spark, path), [], "k INT", on="t.k > s.k") == 0


ROWS = [(1, 10), (2, 20), (3, 30), (4, 40)]
BY_SOURCE = {
    # a file is left out only if no key is in it and no clause can take a row of it
    "conditions_leave_files_out": (
        (update_all(), by_source_delete("t.k = 4")),
        [(1, 100), (2, 20), (3, 30)],  # updated; kept; kept; deleted
        2,
    ),
    "one_of_two_clauses_has_no_condition": (
        (by_source_delete("t.k = 4"), by_source_update({"v": "0"})),
        [(1, 10), (2, 0), (3, 0)],  # matched; zeroed; zeroed; deleted
        4,
    ),
    "inserts_beside": (
        (insert_all(), by_source_update({"v": "t.v + 1"}, "t.v >= 40")),
        [(1, 10), (2, 20), (3, 30), (4, 41)],
        2,
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("name", BY_SOURCE)
def test_not_matched_by_source_keeps_files_that_a_clause_may_take(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    clauses, expected, files = BY_SOURCE[name]
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS, "k INT, v INT", files=4)
    source = frame(spark, [(1, 100)], "k INT, v INT")
    result = Table(spark, path).merge(source, on="t.k = s.k").add(*clauses).execute()
    assert rows_as_text(Table(spark, path).read().collect()) == rows_as_text(expected)
    assert result.metrics["numTargetFilesAfterSkipping"] == files


keys = st.one_of(
    st.tuples(st.just("INT"), st.lists(st.integers(-50, 50), min_size=1)),
    st.tuples(st.just("DOUBLE"), st.lists(st.floats(width=32), min_size=1)),
    st.tuples(
        st.just("STRING"),
        st.lists(
            st.tuples(
                st.sampled_from(["", "a" * 31, "\U0010ffff" * 33, LONG]),
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            ).map("".join),
            min_size=1,
        ),
    ),
    st.tuples(
        st.just("TIMESTAMP"),
        st.lists(
            st.datetimes(datetime(1950, 1, 1), datetime(2200, 1, 1)).map(
                lambda at: at.replace(tzinfo=timezone.utc)
            ),
            min_size=1,
        ),
    ),
)


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        ("CAST(id * 10 AS INT)", [0, 30, 960, 990]),
        ("CAST(id * 10 AS DOUBLE)", [0.0, 30.0, 960.0, 990.0]),
        ("IF(id < 4, id, 9223372036854775807 - id)", [0, 3, 2**63 - 100, 2**63 - 97]),
        (
            "DATE'2024-01-01' + CAST(id AS INT)",
            [date(2024, 1, 1), date(2024, 1, 4), date(2024, 4, 6), date(2024, 4, 9)],
        ),
        ("CAST(id AS DECIMAL(20, 2))", [Decimal(0), Decimal(3), Decimal(96), Decimal(99)]),
        ("CAST(id AS STRING)", ["0", "99"]),  # which cannot be cut
        ("IF(id < 4, id, double('inf'))", [0.0, float("inf")]),  # nor what has no width
        ("IF(id < 4, id, double('nan'))", None),
        ("IF(id < 0, id, null)", []),
        ("IF(id < 4, 7, null)", [7, 7]),
    ],
)
def test_keys_that_are_too_many_are_known_by_ranges(
    spark: SparkSession, key: str, ends: list[Any] | None
) -> None:
    # Four rows at each end of a hundred numbers.
    rows = spark.range(0, 100, 1, 4).where("id < 4 OR id >= 96").selectExpr(f"{key} AS k", "id")
    first, other = key_ranges(rows, at_most=8)
    assert (None if first is None else first.ends) == ends
    assert other == KeyRanges([0, 3, 96, 99], has_null=False)
    [whole] = key_ranges(rows.select("id"), at_most=1)
    assert whole == KeyRanges([0, 99], has_null=False)


@pytest.mark.minutes
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    drawn=keys,
    files=st.integers(2, 4),
    seed=st.randoms(use_true_random=False),
    collected=st.booleans(),
)
def test_no_file_with_a_match_is_ever_left_out(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: Any,
    files: int,
    seed: Any,
    collected: bool,
) -> None:
    """Every target row whose key the source has is deleted, wherever it is."""
    data_type, values = drawn
    path = str(tmp_path_factory.mktemp("drawn") / "table")
    rows = [(value, i) for i, value in enumerate(values)]
    write_table(spark, path, rows, f"k {data_type}, v INT", files=files)
    source = frame(
        spark, [(v,) for v in seed.sample(values, k=len(values) // 2 + 1)], f"k {data_type}"
    )
    source.createOrReplaceTempView("drawn_keys")
    table = spark.read.format("delta").load(path)
    expected = rows_as_text(table.join(source, "k", "left_anti").collect())
    with pytest.MonkeyPatch.context() as patch:
        if not collected:
            collect_no_keys(patch)
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING drawn_keys s ON t.k = s.k WHEN MATCHED THEN DELETE",
        )
    assert rows_as_text(spark.read.format("delta").load(path).collect()) == expected


@pytest.mark.minutes
def test_both_days_that_the_old_calendar_reads_as_one_are_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The old calendar's 29 February and 1 March of 1500 are both read as 1 March."""
    path = tmp_path / "table"
    path.mkdir()
    for day in (10, 11):
        rows = pa.table({"k": [date(1500, 3, day)], "v": [0]})
        pq.write_table(rows, path / f"{day}.parquet", store_schema=False)
    with configured(
        spark, {"spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY", ON_DRIVER: "false"}
    ):
        spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
        changes = frame(spark, [(date(1500, 3, 1), 1)], "k DATE, v BIGINT")
        merge = Table(spark, str(path)).merge(changes, on="t.k = s.k").when_matched_update_all()
        metrics = merge.when_not_matched_insert_all().execute().metrics
    assert (metrics["numTargetRowsUpdated"], metrics["numTargetRowsInserted"]) == (2, 0)


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("bounded_as", "merged_as"), [("LEGACY", "CORRECTED"), ("CORRECTED", "LEGACY")]
)
def test_old_days_are_within_bounds_that_another_calendar_gave(
    spark: SparkSession, tmp_path: Path, bounded_as: str, merged_as: str
) -> None:
    """Files that no Spark wrote are read by the session's calendar."""
    path, mode = tmp_path / "table", "spark.sql.parquet.datetimeRebaseModeInRead"
    path.mkdir()
    for year in (1, 150, 1000, 1582, 1583):
        rows = pa.table({"k": [date(year, 1, 1)], "v": [0]})
        pq.write_table(rows, path / f"{year}.parquet", store_schema=False)
    with configured(spark, {mode: bounded_as}):
        spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
    table = Table(spark, str(path))
    with configured(spark, {mode: merged_as}):
        for row in table.read().select("k").collect():
            changes = frame(spark, [(row.k, 1)], "k DATE, v BIGINT")
            merge = table.merge(changes, on="t.k = s.k").when_matched_update_all()
            assert merge.execute().metrics["numTargetRowsUpdated"] == 1, row
