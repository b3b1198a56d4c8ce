"""What a caller may ask for besides the statement: a fallback, and quiet updates."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

import deltaweave
from deltaweave import Table, errors
from deltaweave.delta.jvm import IGNORING_FILES, Jvm
from deltaweave.delta.statement import builtin
from deltaweave.engine import clauses
from tests.builders import frame, write_table
from tests.support.oracles import newest_version, rows_as_text
from tests.support.settings import configured

UPSERT = (
    "MERGE INTO {target} t USING {source} s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)
REFUSED = {
    "delta.enableIcebergCompatV2": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "false",
}


@pytest.fixture
def refused(spark: SparkSession, tmp_path: Path) -> str:
    """A table with a feature that the engine refuses."""
    path = str(tmp_path / "refused")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT", properties=REFUSED)
    frame(spark, [(2, 200), (3, 300)], "k INT, v INT").createOrReplaceTempView("options_source")
    return path


def test_a_refused_feature_is_named(spark: SparkSession, refused: str) -> None:
    with pytest.raises(errors.UnsupportedFeatureError) as raised:
        deltaweave.merge(spark, UPSERT.format(target=f"delta.`{refused}`", source="options_source"))
    assert raised.value.features == ("icebergCompatV2",)
    assert "fallback" in str(raised.value)
    assert newest_version(refused) == 0


def test_the_fallback_runs_deltas_own_merge_and_says_so(
    spark: SparkSession, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with caplog.at_level(logging.WARNING, "deltaweave"):
        result = deltaweave.merge(spark, statement, fallback="builtin")
    assert (result.strategy, result.version) == ("builtin", 1)
    assert result.metrics["numTargetRowsUpdated"] == result.metrics["numTargetRowsInserted"] == 1
    [warned] = [record for record in caplog.records if record.name == "deltaweave.statements"]
    assert warned.levelno == logging.WARNING
    assert "icebergCompatV2" in warned.getMessage()
    rows = Table(spark, refused).read().collect()
    assert rows_as_text(rows) == ["(1, 10)", "(2, 200)", "(3, 300)"]


def test_no_merge_is_left_to_delta_where_it_passes_over_files(
    spark: SparkSession, refused: str
) -> None:
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with (
        configured(spark, {IGNORING_FILES[0]: "true"}),
        pytest.raises(errors.SettingError, match="ignoreCorruptFiles"),
    ):
        deltaweave.merge(spark, statement, fallback="builtin")
    assert newest_version(refused) == 0


@pytest.mark.minutes
def test_the_fallback_takes_no_other_merge_for_its_own(
    spark: SparkSession, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    run = Jvm.data_frame_of_plan
    meanwhile: list[str] = []

    def another_merges_after_it(jvm: Jvm, plan: Any) -> Any:
        done = run(jvm, plan)
        other = spark.newSession()
        frame(other, [(4, 400)], "k INT, v INT").createOrReplaceTempView("options_source")
        other.sql(statement).collect()
        for each in meanwhile:
            jvm.spark.sql(each)
        return done

    monkeypatch.setattr(Jvm, "data_frame_of_plan", another_merges_after_it)
    result = deltaweave.merge(spark, statement, fallback="builtin")
    assert (result.version, result.metrics["numTargetRowsInserted"]) == (1, 1)  # 2 is the other's
    # As when another thread of the session commits to another table at that moment.
    meanwhile.append(f"CREATE TABLE delta.`{tmp_path / 'elsewhere'}` (k INT) USING delta")
    result = deltaweave.merge(spark, statement, fallback="builtin")
    assert result.version is None
    assert "its version is not known" in result.warnings[0]


@pytest.mark.parametrize(
    ("source", "expected", "error_class"),
    [
        (
            "SELECT 2 AS k, 1 AS v UNION ALL SELECT 2, 2",
            errors.AmbiguousMatchError,
            "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE",
        ),
        (
            "SELECT 2 AS k, 1 / (id - id) AS v FROM range(1)",
            errors.MergeFailedError,
            "DIVIDE_BY_ZERO",
        ),
    ],
    ids=["several matches", "a value that fails"],
)
@pytest.mark.parametrize("others_merge", [False, True])
def test_an_error_of_the_fallback_says_whether_anything_was_committed(
    spark: SparkSession,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    expected: type[errors.DeltaweaveError],
    error_class: str,
    *,
    others_merge: bool,
) -> None:
    run = Jvm.data_frame_of_plan
    upsert = UPSERT.format(target=f"delta.`{refused}`", source="options_source")

    def run_beside_others(jvm: Jvm, plan: Any) -> Any:
        if others_merge:
            spark.sql(upsert)
        return run(jvm, plan)

    monkeypatch.setattr(Jvm, "data_frame_of_plan", run_beside_others)
    statement = UPSERT.format(target=f"delta.`{refused}`", source=f"({source})")
    with pytest.raises(expected) as raised:
        deltaweave.merge(spark, statement, fallback="builtin")
    error = raised.value
    is_known = not others_merge or expected is errors.AmbiguousMatchError
    assert error.state == (errors.NOTHING_COMMITTED if is_known else errors.STATE_UNKNOWN)
    assert (error.error_class, error.version) == (error_class, 0)
    assert newest_version(refused) == others_merge


@pytest.mark.parametrize("is_hidden", [False, True], ids=["raised", "hidden"])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ((Jvm, "data_frame_of_plan"), "in Delta's own MERGE, which may have committed"),
        (
            (builtin, "merges_after"),
            "after Delta's own MERGE: the session's last commit is of version 1",
        ),
    ],
    ids=["merge", "history"],
)
def test_an_interrupt_ends_the_fallback_and_the_log_says_what_is_committed(
    spark: SparkSession,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: tuple[Any, str],
    said: str,
    *,
    is_hidden: bool,
) -> None:
    call = getattr(*where)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        call(*arguments, **named)
        try:
            raise KeyboardInterrupt
        finally:
            if is_hidden:
                raise errors.SourceLostError("the stream was closed")

    monkeypatch.setattr(*where, interrupted)
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with caplog.at_level(logging.WARNING, "deltaweave"), pytest.raises(KeyboardInterrupt):
        deltaweave.merge(spark, statement, fallback="builtin")
    assert f"interrupted {said}" in caplog.text
    assert newest_version(refused) == 1


def test_an_interrupt_in_the_history_of_a_failed_fallback_is_logged(
    spark: SparkSession,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failed(*arguments: Any) -> Any:
        raise errors.SourceLostError("the stream was closed")

    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Jvm, "data_frame_of_plan", failed)
    monkeypatch.setattr(builtin, "merges_after", interrupted)
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with caplog.at_level(logging.WARNING, "deltaweave"), pytest.raises(KeyboardInterrupt):
        deltaweave.merge(spark, statement, fallback="builtin")
    assert "interrupted in Delta's own MERGE, which may have committed" in caplog.text


def test_the_fallback_of_the_builder(spark: SparkSession, refused: str) -> None:
    merge = Table(spark, refused).merge(spark.table("options_source"), on="t.k = s.k")
    result = merge.when_matched_delete().execute(fallback="builtin")
    assert (result.strategy, result.metrics["numTargetRowsDeleted"]) == ("builtin", 1)


def test_the_fallback_does_not_drop_what_built_in_merge_cannot_promise(
    spark: SparkSession, refused: str
) -> None:
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with pytest.raises(errors.UnsupportedFeatureError):
        deltaweave.merge(spark, statement, fallback="builtin", idempotency=("loader", 1))
    assert newest_version(refused) == 0


def test_the_fallback_is_not_taken_where_the_engine_can(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "plain")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    source = frame(spark, [(1, 100)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k").when_matched_update_all()
    assert merge.execute(fallback="builtin").strategy == "copy-on-write"


QUIET = {
    # what the source gives: (rows, columns) and the rows that change
    "equal_values": ([(1, 10, "a"), (2, 20, "b")], 0),
    "one_of_two_differs": ([(1, 10, "a"), (2, 21, "b")], 1),
    "null_stays_null": ([(3, None, None)], 0),
    "null_becomes_a_value": ([(3, 0, None)], 1),
    "a_value_becomes_null": ([(2, None, "b")], 1),
    "an_equal_row_and_a_new_one": ([(1, 10, "a"), (9, 90, "z")], 0),
}


def quiet_and_layouts() -> Iterator[Any]:
    """Each case with vectors and without; in `make test` in one way by turns."""
    for place, case in enumerate(QUIET):
        for number, vectors in enumerate(("true", "false")):
            marks = [] if place % 2 == number else [pytest.mark.full_matrix]
            yield pytest.param(case, vectors, id=f"{case}-{vectors}", marks=marks)


@pytest.mark.parametrize(("case", "vectors"), list(quiet_and_layouts()))
def test_updates_that_change_nothing_are_skipped_where_asked(
    spark: SparkSession, tmp_path: Path, case: str, vectors: str
) -> None:
    rows, updated = QUIET[case]
    schema = "k INT, v INT, w STRING"
    path = str(tmp_path / "table")
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": vectors}
    target = [(1, 10, "a"), (2, 20, "b"), (3, None, None)]
    write_table(spark, path, target, schema, properties=properties)
    merge = Table(spark, path).merge(frame(spark, rows, schema), on="t.k = s.k")
    result = (
        merge.when_matched_update_all()
        .when_not_matched_insert_all()
        .execute(skip_unchanged_updates=True)
    )
    inserted = sum(row[0] == 9 for row in rows)
    assert result.metrics["numTargetRowsUpdated"] == updated
    assert result.metrics["numTargetRowsInserted"] == inserted
    assert result.metrics["numTargetFilesRemoved"] == (updated if vectors == "false" else 0)
    expected = {row[0]: row for row in target} | {row[0]: row for row in rows}
    assert rows_as_text(Table(spark, path).read().collect()) == rows_as_text(expected.values())
    if result.version is None:
        assert updated == inserted == 0
        return
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", result.version)
    changes = feed.format("delta").load(path).count()
    assert changes == 2 * updated + inserted


def test_a_skipped_update_still_takes_its_row_from_later_clauses(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10), (2, 20)], "k INT, v INT")
    source = frame(spark, [(1, 10), (2, 0)], "k INT, v INT")
    merge = Table(spark, path).merge(source, on="t.k = s.k")
    merge = merge.when_matched_update({"v": "s.v"}, condition="s.v > 0").when_matched_delete()
    result = merge.execute(skip_unchanged_updates=True)
    # row 1 is the first clause's, which changes nothing; row 2 is deleted
    assert rows_as_text(Table(spark, path).read().collect()) == ["(1, 10)"]
    assert result.metrics["numTargetRowsDeleted"] == 1


@pytest.mark.minutes
def test_maps_and_random_values_are_never_taken_for_unchanged(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, {"a": 1}, 0.5)], "k INT, m MAP<STRING, INT>, r DOUBLE")
    table, source = Table(spark, path), frame(spark, [(1,)], "k INT")
    for values in ({"m": "map('a', 1)"}, {"r": "rand()"}):
        merge = table.merge(source, on="t.k = s.k").when_matched_update(values)
        result = merge.execute(skip_unchanged_updates=True)
        assert result.metrics["numTargetRowsUpdated"] == 1
    # The map is not assigned here, so it does not matter that it cannot be compared.
    merge = table.merge(source, on="t.k = s.k").when_matched_update({"k": "s.k"})
    assert merge.execute(skip_unchanged_updates=True).version is None


LCASE = T.StringType("UTF8_LCASE")


@pytest.mark.parametrize(
    ("data_type", "is_known"),
    [
        (T.StringType(), True),
        (T.ArrayType(T.StringType()), True),
        (LCASE, False),  # 'bob' equals 'Bob'
        (T.StringType("UTF8_BINARY_RTRIM"), False),
        (T.StructType().add("a", T.ArrayType(LCASE)), False),
        (T.MapType(T.IntegerType(), T.IntegerType()), False),
    ],
    ids=str,
)
def test_which_types_show_that_an_update_changes_nothing(
    data_type: T.DataType, is_known: bool
) -> None:
    assert clauses.is_comparable(data_type) is is_known


@pytest.mark.parametrize(
    "option",
    [
        {"computed_from": 0},
        {"skip_unchanged_updates": True},
        {"idempotency": ("loader", 1)},
        {"idempotency": ("loader", 1), "applied_before": -1},
    ],
    ids=lambda option: "+".join(option),
)
def test_the_fallback_is_refused_with_options_that_built_in_merge_lacks(
    spark: SparkSession, refused: str, option: dict[str, Any]
) -> None:
    statement = UPSERT.format(target=f"delta.`{refused}`", source="options_source")
    with pytest.raises(errors.UnsupportedFeatureError) as raised:
        deltaweave.merge(spark, statement, fallback="builtin", **option)
    assert raised.value.not_in_builtin == tuple(option)
    assert f"Delta's own MERGE cannot honour {', '.join(option)}" in str(raised.value)
    assert newest_version(refused) == 0


def test_the_builder_hands_all_of_its_arguments_over(spark: SparkSession, refused: str) -> None:
    merge = Table(spark, refused).merge(
        spark.table("options_source"), on="t.k = s.k", idempotency=("loader", 1)
    )
    with pytest.raises(errors.UnsupportedFeatureError) as raised:
        merge.when_matched_delete().execute(
            fallback="builtin", computed_from=0, applied_before=-1, skip_unchanged_updates=True
        )
    assert set(raised.value.not_in_builtin) == {
        "idempotency",
        "applied_before",
        "computed_from",
        "skip_unchanged_updates",
    }


def test_a_source_computed_from_an_older_version_is_a_conflict(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    frame(spark, [(1, 100)], "k INT, v INT").createOrReplaceTempView("computed")
    statement = UPSERT.format(target=f"delta.`{path}`", source="computed")
    assert deltaweave.merge(spark, statement, computed_from=0).version == 1
    with pytest.raises(errors.CommitConflictError):
        deltaweave.merge(spark, statement, computed_from=0)
    assert newest_version(path) == 1


def test_applied_before_without_a_pair_is_refused_and_not_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(1, 10)], "k INT, v INT")
    rows = frame(spark, [(1, 100)], "k INT, v INT")
    merge = Table(spark, path).merge(rows, on="t.k = s.k").when_matched_update_all()
    with pytest.raises(errors.StatementError, match="applied_before"):
        merge.execute(applied_before=3)
    with pytest.raises(errors.StatementError, match="applied_before"):
        Table(spark, path).write(rows, "append", applied={"loader": 1}, applied_before=3)
    assert newest_version(path) == 0
