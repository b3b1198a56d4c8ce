"""Merges on the driver whose clauses read the target's rows, or that compare nulls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeResult, Table, errors
from deltaweave.engine import limits
from tests.builders import Rows, frame, write_table
from tests.support.on_driver import rows_of
from tests.support.oracles import newest_version
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

pytestmark = pytest.mark.usefixtures("switched_on")

SCHEMA = "k INT, v INT, w STRING"
VECTORS = {"delta.enableDeletionVectors": "true"}
LAYOUTS = pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy_on_write", "vectors"])
# What does not depend on the layout is tested in one of them in `make test`.
IN_COPIES = pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="copy_on_write"),
        pytest.param(VECTORS, id="vectors", marks=pytest.mark.full_matrix),
    ],
)
IN_VECTORS = pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="copy_on_write", marks=pytest.mark.full_matrix),
        pytest.param(VECTORS, id="vectors"),
    ],
)
INSERT = "WHEN NOT MATCHED THEN INSERT *"


def merge(table: Table, rows: Rows, clauses: str, on: str = "t.k = s.k") -> MergeResult:
    frame(table.spark, rows, SCHEMA).createOrReplaceTempView("changes")
    target = f"delta.`{table.path_or_name}`"
    return deltaweave.merge(table.spark, f"MERGE INTO {target} t USING changes s ON {on} {clauses}")


def small_table(spark: SparkSession, path: Path, rows: Rows, **options: Any) -> Table:
    write_table(spark, str(path), rows, SCHEMA, **options)
    return Table(spark, str(path))


# Two values of each type that Spark evaluates, and one beside them that it does not.
EXTREMES = {
    "TINYINT": ("CAST(-128 AS TINYINT)", "CAST(127 AS TINYINT)"),
    "SMALLINT": ("CAST(-32768 AS SMALLINT)", "CAST(32767 AS SMALLINT)"),
    "INT": ("-2147483648", "2147483647"),
    "BIGINT": ("9007199254740992L", "9223372036854775807L"),
    "FLOAT": ("CAST('NaN' AS FLOAT)", "CAST('-Infinity' AS FLOAT)"),
    "DOUBLE": ("-0D", "4.9E-324D"),
    "DECIMAL(38, 0)": (f"{'9' * 38}", f"-{'9' * 38}"),
    "DECIMAL(38, 38)": (f"0.{'9' * 38}", f"-0.{'0' * 37}1"),
    "STRING": ("'\U0001f600'", "''"),
    "BINARY": ("X'00FF'", "X''"),
    "BOOLEAN": ("true", "false"),
    "DATE": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "TIMESTAMP": (
        "TIMESTAMP'0001-01-03 00:00:00.000001Z'",
        "TIMESTAMP'9999-12-30 23:59:59.999999Z'",
    ),
    "TIMESTAMP_NTZ": (
        "TIMESTAMP_NTZ'2024-03-10 02:30:00'",  # a time that New York's clocks pass over
        "TIMESTAMP_NTZ'0001-01-01 00:00:00.000001'",
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("zone", ["America/New_York", "UTC"])
def test_extreme_old_values_of_every_type_reach_clauses_unchanged(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], zone: str
) -> None:
    """What the source has reaches them, too: `t.x <=> s.x` holds, and a value moves on unharmed."""
    path, names = str(tmp_path / "table"), [f"x{i}" for i in range(len(EXTREMES))]

    def rows(values: list[str], key: int, more: str) -> str:
        typed = zip(values, EXTREMES, names, strict=True)
        columns = ", ".join(
            f"CAST({e} AS {t}) AS {n}, CAST(NULL AS {t}) AS {n}_old" for e, t, n in typed
        )
        return f"SELECT {key} AS k, {columns}, {more} AS a"

    firsts, lasts = ([each[i] for each in EXTREMES.values()] for i in (0, 1))
    nulls = ["NULL"] * len(EXTREMES)
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        whole = [
            rows(each, key, f"array({key})") for key, each in enumerate((firsts, lasts, nulls))
        ]
        spark.sql(" UNION ALL ".join(whole)).coalesce(1).write.format("delta").save(path)
        spark.sql(" UNION ALL ".join(whole)).createOrReplaceTempView("extremes")
        same = " AND ".join(f"t.{name} <=> s.{name}" for name in names)
        moved = ", ".join(f"{name}_old = coalesce(t.{name}, s.{name})" for name in names)
        deltaweave.merge(
            spark,
            f"MERGE INTO delta.`{path}` t USING extremes s ON t.k = s.k "
            f"WHEN MATCHED AND {same} THEN UPDATE SET {moved}",
        )
        assert on_driver
        table = Table(spark, path).read()
        text = "to_json(struct({}), map('ignoreNullFields', 'false'))"
        before = text.format(", ".join(names))
        after = text.format(", ".join(f"{name}_old AS {name}" for name in names))
        read = table.selectExpr("k", before, after, "a[0]").orderBy("k").collect()
        expected = spark.table("extremes").selectExpr("k", before).orderBy("k").collect()
    assert [(row[0], row[1], row[2], row[3]) for row in read] == [
        (key, text_of, text_of, key) for key, text_of in expected
    ]


@pytest.mark.minutes
@IN_VECTORS
def test_nulls_match_nulls_alone_where_they_are_equal(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    target = [(None, 1, None), (None, 2, ""), (0, 3, None), (0, 4, ""), (1, 5, "a")]
    table = small_table(spark, tmp_path / "table", target, files=2, properties=properties)
    source = [(None, 10, None), (0, 40, ""), (1, 50, None), (0, 60, "b")]
    merge(
        table,
        source,
        f"WHEN MATCHED THEN UPDATE SET v = s.v {INSERT}",
        "t.k <=> s.k AND t.w <=> s.w",
    )
    assert on_driver
    expected = [
        (None, 10, None),  # both null
        (None, 2, ""),  # no row with a null and a text that is empty
        (0, 3, None),  # 0 is no null
        (0, 40, ""),
        (1, 5, "a"),
        (1, 50, None),
        (0, 60, "b"),
    ]
    assert rows_of(table) == sorted(expected, key=repr)


def test_one_of_two_keys_may_compare_nulls(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    target = [(None, 1, "a"), (1, 2, None), (1, 3, "a")]
    table = small_table(spark, tmp_path / "table", target)
    source = [(None, 10, "a"), (1, 20, None), (1, 30, "a")]
    merge(table, source, "WHEN MATCHED THEN UPDATE SET v = s.v", "t.k = s.k AND t.w <=> s.w")
    assert on_driver
    assert rows_of(table) == sorted([(None, 1, "a"), (1, 20, None), (1, 30, "a")], key=repr)


@pytest.mark.minutes
@IN_COPIES
def test_a_column_that_a_file_lacks_is_null_to_clauses(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1,), (2,)], "k INT", properties=properties)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (v INT, w STRING)")
    table = Table(spark, path)
    merge(table, [(1, 5, "s")], "WHEN MATCHED AND t.v IS NULL THEN UPDATE SET v = s.v")
    assert on_driver
    assert rows_of(table) == [(1, 5, None), (2, None, None)]


def test_clauses_may_spell_columns_in_any_case(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    table = small_table(spark, tmp_path / "table", [(1, 5, "t"), (2, 9, "t")])
    clauses = "WHEN MATCHED AND T.V < S.v THEN UPDATE SET V = T.V + S.V, w = t.W"
    merge(table, [(1, 6, "s"), (2, 6, "s")], clauses)
    assert on_driver
    assert rows_of(table) == [(1, 11, "t"), (2, 9, "t")]


@pytest.mark.minutes
@LAYOUTS
def test_rows_that_were_marked_before_are_not_read(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    rows = [(k, k * 10, str(k)) for k in range(20)]
    table = small_table(spark, tmp_path / "table", rows, properties=VECTORS)
    spark.sql(f"DELETE FROM delta.`{table.path_or_name}` WHERE k < 3")
    if not properties:
        spark.sql(
            f"ALTER TABLE delta.`{table.path_or_name}` "
            "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
        )
    merge(table, [(2, 1, "s"), (3, 1, "s")], f"WHEN MATCHED THEN UPDATE SET v = t.v + s.v {INSERT}")
    assert on_driver
    assert rows_of(table) == sorted([(2, 1, "s"), (3, 31, "3"), *rows[4:]], key=repr)


@pytest.mark.minutes
@LAYOUTS
def test_each_pair_has_the_values_of_its_own_clause_and_rows(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    rows = [(k, k, f"t{k}") for k in range(8)]
    with_feed = {**properties, "delta.enableChangeDataFeed": "true"}
    table = small_table(spark, tmp_path / "table", rows, files=3, properties=with_feed)
    clauses = (
        "WHEN MATCHED AND t.v = 1 THEN DELETE "
        "WHEN MATCHED AND s.v > t.v THEN UPDATE SET w = t.w || s.w, v = s.v "
        "WHEN MATCHED AND s.v = t.v THEN UPDATE SET * "
        "WHEN MATCHED AND t.v = 7 THEN UPDATE SET v = t.v "
        "WHEN NOT MATCHED AND s.v > 0 THEN INSERT (k, v) VALUES (s.k, s.v) "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    source = [
        (9, 0, "s"),
        (7, 0, "s"),
        (5, 5, "s"),
        (3, 4, "s"),
        (8, 2, "s"),
        (2, 0, "s"),
        (1, 9, "s"),
    ]
    result = merge(table, source, clauses)
    assert on_driver
    expected = [
        (0, 0, "t0"),  # in no pair
        (2, 2, "t2"),  # no clause takes it
        (3, 4, "t3s"),
        (4, 4, "t4"),
        (5, 5, "s"),
        (6, 6, "t6"),
        (7, 7, "t7"),
        (8, 2, None),  # inserted by the first clause that holds
        (9, 0, "s"),
    ]
    assert rows_of(table) == expected
    metrics = result.metrics
    assert (
        metrics.num_source_rows,
        metrics.num_target_rows_inserted,
        metrics.num_target_rows_updated,
        metrics.num_target_rows_deleted,
    ) == (7, 2, 3, 1)
    assert result.num_source_rows_unaffected == 1  # that of key 2
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    changes = feed.load(table.path_or_name).select("_change_type", "k", "v", "w").collect()
    assert sorted(map(tuple, changes), key=repr) == [
        ("delete", 1, 1, "t1"),
        ("insert", 8, 2, None),
        ("insert", 9, 0, "s"),
        ("update_postimage", 3, 4, "t3s"),
        ("update_postimage", 5, 5, "s"),
        ("update_postimage", 7, 7, "t7"),
        ("update_preimage", 3, 3, "t3"),
        ("update_preimage", 5, 5, "t5"),
        ("update_preimage", 7, 7, "t7"),
    ]


def test_clauses_that_read_the_target_need_one_more_job_than_kept_columns(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    table = small_table(spark, tmp_path / "table", [(k, k, "t") for k in range(8)], files=4)
    merge(table, [(0, 1, "s")], "WHEN MATCHED THEN UPDATE SET v = s.v")

    def of(value: str) -> int:
        clauses = f"WHEN MATCHED THEN UPDATE SET v = {value} {INSERT}"
        return jobs_of(spark, value, lambda: merge(table, [(1, 1, "s"), (9, 1, "s")], clauses))

    assert of("t.v + s.v") == of("s.v") + 1
    assert len(on_driver) == 3


@pytest.mark.minutes
def test_a_failing_value_fails_the_merge_only_for_rows_that_match(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    """Spark does the same."""
    table = small_table(spark, tmp_path / "table", [(1, 5, "t"), (2, 0, "t")])
    clauses = "WHEN MATCHED THEN UPDATE SET v = CAST(100 / t.v AS INT)"
    merge(table, [(1, 0, "s"), (3, 0, "s")], clauses)
    assert on_driver
    assert rows_of(table) == [(1, 20, "t"), (2, 0, "t")]
    with pytest.raises(errors.DeltaweaveError) as raised:
        merge(table, [(2, 0, "s")], clauses)
    assert raised.value.error_class == "DIVIDE_BY_ZERO"
    assert rows_of(table) == [(1, 20, "t"), (2, 0, "t")]


@pytest.mark.minutes
@pytest.mark.parametrize("value", ["t.v + s.v", "s.v"], ids=["computed", "beside_a_kept_column"])
def test_constraints_hold_for_values_that_come_from_the_target(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], value: str
) -> None:
    table = small_table(spark, tmp_path / "table", [(1, 5, "t"), (2, 6, "t")])
    target = f"delta.`{table.path_or_name}`"
    spark.sql(f"ALTER TABLE {target} ADD CONSTRAINT low CHECK (v < 10 AND w = 't')")
    clauses = f"WHEN MATCHED THEN UPDATE SET v = {value} {INSERT}"
    merge(table, [(1, 4, "s"), (3, 1, "t")], clauses)
    assert len(on_driver) == 1
    after = rows_of(table)
    assert after == [(1, 9 if "t.v" in value else 4, "t"), (2, 6, "t"), (3, 1, "t")]
    for broken in ((2, 20, "t"), (4, 1, "s")):  # one of an update, one of an insert
        with pytest.raises(errors.ConstraintViolationError, match="low"):
            merge(table, [(1, 0, "s"), broken], clauses)
    assert rows_of(table) == after
    assert len(on_driver) == 1


@pytest.mark.minutes
@IN_VECTORS
def test_nested_source_values_do_not_pass_through_the_query_of_the_pairs(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any], properties: dict[str, str]
) -> None:
    path, schema = str(tmp_path / "table"), "k INT, at INT, o STRUCT<x: INT>, a ARRAY<STRING>"
    rows = [(k, 5, (k,), [f"t{k}"]) for k in range(4)]
    write_table(spark, path, rows, schema, files=2, properties=properties)
    source = [(0, 6, (60,), ["s"]), (1, 5, (61,), None), (2, 4, (62,), ["s"]), (7, 1, None, [])]
    frame(spark, source, schema).createOrReplaceTempView("changes")
    deltaweave.merge(
        spark,
        f"MERGE INTO delta.`{path}` t USING changes s ON t.k = s.k "
        "WHEN MATCHED AND s.at > t.at THEN UPDATE SET * "
        "WHEN MATCHED AND s.at = t.at THEN UPDATE SET a = s.a, o = s.o "
        "WHEN MATCHED THEN UPDATE SET at = t.at + 1 "
        f"{INSERT}",
    )
    assert on_driver
    assert [
        (r.k, r.at, r.o and r.o.x, r.a) for r in Table(spark, path).read().sort("k").collect()
    ] == [
        (0, 6, 60, ["s"]),  # newer: all of it
        (1, 5, 61, None),  # as old: two columns
        (2, 6, 2, ["t2"]),  # older: a value of the target
        (3, 5, 3, ["t3"]),
        (7, 1, None, []),
    ]


@pytest.mark.minutes
def test_a_value_of_the_source_may_fail_in_a_row_that_no_clause_takes(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    table = small_table(spark, tmp_path / "table", [(1, 5, "t"), (2, 5, "t")])
    clauses = "WHEN MATCHED AND s.w > t.w THEN UPDATE SET v = CAST(10 / s.v AS INT)"
    merge(table, [(1, 2, "u"), (2, 0, "a"), (3, 0, "z")], clauses)
    assert not on_driver  # it is not known beforehand which rows are taken
    assert rows_of(table) == [(1, 5, "t"), (2, 5, "t")]


@pytest.mark.minutes
def test_constraints_hold_for_source_values_under_a_target_condition(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    table = small_table(spark, tmp_path / "table", [(1, 5, "t"), (2, 6, "t")])
    spark.sql(f"ALTER TABLE delta.`{table.path_or_name}` ADD CONSTRAINT low CHECK (v < 10)")
    clauses = "WHEN MATCHED AND s.w > t.w THEN UPDATE SET *"
    # 20 breaks it in a row that no clause takes
    merge(table, [(1, 9, "u"), (2, 20, "a"), (3, 20, "z")], clauses)
    assert len(on_driver) == 1
    assert rows_of(table) == [(1, 9, "u"), (2, 6, "t")]
    with pytest.raises(errors.ConstraintViolationError, match="low"):
        merge(table, [(2, 20, "u")], clauses)
    assert rows_of(table) == [(1, 9, "u"), (2, 6, "t")]


def test_several_source_rows_for_one_row_are_an_error(
    spark: SparkSession, tmp_path: Path, on_driver: list[Any]
) -> None:
    table = small_table(spark, tmp_path / "table", [(1, 5, "t")])
    with pytest.raises(errors.AmbiguousMatchError):
        merge(table, [(1, 1, "s"), (1, 2, "s")], "WHEN MATCHED THEN UPDATE SET v = t.v + s.v")
    assert not on_driver
    assert rows_of(table) == [(1, 5, "t")]


@pytest.mark.minutes
@pytest.mark.parametrize("limit", ["MAX_LOCAL_NEW_BYTES", "MAX_LOCAL_BYTES"])
def test_old_values_that_are_too_big_are_left_to_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    on_driver: list[Any],
    limit: str,
) -> None:
    """The file and the source are small: the text is stored once, and there for each row."""
    path = str(tmp_path / "table")
    rows = spark.range(300).selectExpr("CAST(id AS INT) AS k", "1 AS v", "repeat('x', 1000) AS w")
    rows.coalesce(1).write.format("delta").save(path)
    table = Table(spark, path)
    source = [(k, 1, "") for k in range(300)]
    clauses = "WHEN MATCHED THEN UPDATE SET w = t.w || '!'"
    merge(table, source, clauses)
    assert len(on_driver) == 1
    monkeypatch.setattr(limits, limit, 200_000)
    merge(table, source, clauses)
    assert len(on_driver) == 1
    assert {row.w for row in table.read().collect()} == {f"{'x' * 1000}!!"}


def test_pairs_that_no_clause_takes_count_for_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_driver: list[Any]
) -> None:
    rows = [(k, 1, "t") for k in range(300)]
    table = small_table(spark, tmp_path / "table", rows)
    monkeypatch.setattr(limits, "MAX_LOCAL_NEW_BYTES", 100_000)
    source = [(7, 2, "x" * 1000), *[(k, 1, "s") for k in range(300) if k != 7]]
    merge(table, source, "WHEN MATCHED AND s.v > t.v THEN UPDATE SET *")
    assert on_driver
    assert rows_of(table) == sorted([source[0], *[row for row in rows if row[0] != 7]], key=repr)


FIRST = [(k, 0, "t") for k in range(4)]
ADDS = "WHEN MATCHED THEN UPDATE SET v = t.v + s.v"
RAISES = "WHEN MATCHED AND s.v > t.v THEN UPDATE SET v = s.v"
UNITES = "unites"

# What another writer commits before a merge of (0, 1) and (1, -5), the merge's clauses, how often
# it runs (one that unites vectors runs again in a table without them), the rows afterwards.
RIVALS: dict[str, tuple[str, str, int | str, Rows]] = {
    "a row of another key": (
        "INSERT INTO {t} VALUES (50, 5, 'o')",
        ADDS,
        1,
        [(0, 1, "t"), (1, -5, "t"), *FIRST[2:], (50, 5, "o")],
    ),
    "the old value": (
        "UPDATE {t} SET v = 7 WHERE k = 0",
        ADDS,
        2,
        [(0, 8, "t"), (1, -5, "t"), *FIRST[2:]],
    ),
    "another row of the same file": (
        "UPDATE {t} SET v = 7 WHERE k = 2",
        ADDS,
        UNITES,
        [(0, 1, "t"), (1, -5, "t"), (2, 7, "t"), FIRST[3]],
    ),
    "the value of a row that no clause took": (
        "UPDATE {t} SET v = -9 WHERE k = 1",
        RAISES,
        2,
        [(0, 1, "t"), (1, -5, "t"), *FIRST[2:]],
    ),
    "a compaction": ("OPTIMIZE {t}", ADDS, 2, [(0, 1, "t"), (1, -5, "t"), *FIRST[2:]]),
    "the version before": (
        "RESTORE TABLE {t} TO VERSION AS OF 0",
        ADDS,
        2,
        [(0, 1, "t"), (1, -5, "t"), *FIRST[2:]],
    ),
}


def rivals_and_layouts() -> Iterator[Any]:
    """Each rival in both layouts; in `make test` in one by turns, and in both where they differ."""
    for place, (name, (_, _, runs, _)) in enumerate(RIVALS.items()):
        for number, properties in enumerate(({}, VECTORS)):
            is_told = place % 2 == number or runs == UNITES
            marks = [] if is_told else [pytest.mark.full_matrix]
            layout = "vectors" if properties else "copy_on_write"
            yield pytest.param(name, properties, id=f"{name}-{layout}", marks=marks)


@pytest.mark.minutes
@pytest.mark.parametrize(("name", "properties"), list(rivals_and_layouts()))
def test_an_old_value_that_another_commit_changed_is_read_again(
    spark: SparkSession,
    tmp_path: Path,
    overtaken: Callable[..., None],
    on_driver: list[Any],
    properties: dict[str, str],
    name: str,
) -> None:
    other, clauses, runs, expected = RIVALS[name]
    files = 2 if name == "a compaction" else 1
    table = small_table(spark, tmp_path / "table", FIRST, files=files, properties=properties)
    target = f"delta.`{table.path_or_name}`"
    spark.sql(f"UPDATE {target} SET v = 3 WHERE k < 2" if "RESTORE" in other else "SELECT 1")
    before = newest_version(table.path_or_name)
    overtaken(lambda: spark.sql(other.format(t=target)))
    merge(table, [(0, 1, "s"), (1, -5, "s")], clauses)
    if runs == UNITES:
        runs = 1 if properties else 2
    assert len(on_driver) == runs
    assert newest_version(table.path_or_name) == before + 2
    assert rows_of(table) == sorted(expected, key=repr)
