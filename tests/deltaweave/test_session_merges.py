"""The MERGE statements of an enabled session run on the engine, and look as they did before."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from delta.exceptions import ConcurrentAppendException
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import deltaweave
from deltaweave import errors, session_merges
from deltaweave.delta.commit.table_lock import LOCK_TIMEOUT
from deltaweave.delta.jvm import IGNORING_FILES, Jvm
from deltaweave.delta.statement import ParsedMerge
from tests.builders import frame, write_table
from tests.deltaweave.engine.test_options import REFUSED
from tests.support.locks import held_by_another_process, lock_file
from tests.support.oracles import error_classes, newest_version, rows_as_text
from tests.support.settings import configured
from tests.support.spark_jobs import jobs_of

TARGET = [(1, "a"), (2, "b"), (3, "c")]
SOURCE = [(2, "B"), (3, None), (4, "D")]
COLUMNS = "k INT, v STRING"
ALL_CLAUSES = (
    "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
    "WHEN NOT MATCHED THEN INSERT *"
)
Merge = Callable[[SparkSession, str], DataFrame]


@dataclass(frozen=True)
class Way:
    """One way in which existing code merges."""

    merge: Merge
    on_engine: bool = True


def sql(text: str, **kwargs: Any) -> Merge:
    return lambda spark, path: spark.sql(text.replace("{target}", f"delta.`{path}`"), **kwargs)


def by_delta_table(spark: SparkSession, path: str) -> DataFrame:
    table = DeltaTable.forPath(spark, path).alias("t")
    merge = table.merge(frame(spark, SOURCE, COLUMNS).alias("s"), "t.k = s.k")
    merge = merge.whenMatchedDelete("s.v IS NULL").whenMatchedUpdate(set={"v": "s.v"})
    return merge.whenNotMatchedInsertAll().execute()


def by_delta_table_of_all_clauses(spark: SparkSession, path: str) -> DataFrame:
    table = DeltaTable.forPath(spark, path).alias("t")
    source = frame(spark, [(2, "B", 1), (4, "D", 1)], "k INT, v STRING, n INT").alias("s")
    merge = table.merge(source, F.expr("t.k = s.k")).withSchemaEvolution()
    merge = merge.whenMatchedUpdateAll(F.col("s.n") == 1)
    merge = merge.whenNotMatchedInsert(values={"k": "s.k + 1", "n": F.lit(7)})
    merge = merge.whenNotMatchedBySourceUpdate("t.k = 1", set={"t.v": F.upper("t.v")})
    return merge.whenNotMatchedBySourceDelete().execute()


def by_delta_table_of_a_name(spark: SparkSession, path: str) -> DataFrame:
    name = f"named_{uuid4().hex}"
    spark.sql(f"CREATE TABLE {name} USING delta LOCATION '{path}'")
    try:
        merge = DeltaTable.forName(spark, name).alias("t")
        source = frame(spark, SOURCE, COLUMNS).alias("s")
        return merge.merge(source, "t.k = s.k").whenMatchedUpdate(set={"v": "s.v"}).execute()
    finally:
        spark.sql(f"DROP TABLE {name}")


def into_itself(spark: SparkSession, path: str) -> DataFrame:
    table = DeltaTable.forPath(spark, path)
    source = table.toDF().where("k > 1").alias("s")
    return table.alias("t").merge(source, "t.k = s.k").whenMatchedDelete().execute()


WAYS = {
    "text": Way(sql(f"MERGE INTO {{target}} t USING merged_source s ON t.k = s.k {ALL_CLAUSES}")),
    "text_after_comments": Way(
        sql(
            "-- ours\n/* MERGE */ merge INTO {target} t USING merged_source s ON t.k = s.k "
            f"{ALL_CLAUSES}"
        )
    ),
    "common_table_expression": Way(
        sql(
            "WITH s AS (SELECT * FROM merged_source WHERE k > 2) "
            f"MERGE INTO {{target}} t USING s ON t.k = s.k {ALL_CLAUSES}"
        )
    ),
    "keyword_arguments": Way(
        lambda spark, path: spark.sql(
            f"MERGE INTO delta.`{path}` t USING {{source}} s ON t.k = s.k AND s.k < {{below}} "
            "WHEN MATCHED THEN UPDATE SET v = s.v",
            source=frame(spark, SOURCE, COLUMNS),
            below=3,
        )
    ),
    "nothing_changes": Way(
        sql(
            "MERGE INTO {target} t USING merged_source s ON t.k = s.k + 100 "
            "WHEN MATCHED THEN DELETE"
        )
    ),
    "delta_table": Way(by_delta_table),
    "delta_table_of_all_clauses": Way(by_delta_table_of_all_clauses),
    "delta_table_of_a_name": Way(by_delta_table_of_a_name),
    "delta_table_into_itself": Way(into_itself),
    "script": Way(
        sql(f"BEGIN MERGE INTO {{target}} t USING merged_source s ON t.k = s.k {ALL_CLAUSES}; END"),
        on_engine=False,
    ),
    "no_merge": Way(sql("WITH merge AS (SELECT 1 AS one) SELECT * FROM merge"), on_engine=False),
}


def merged_later(*changes: str, condition: str | None = None) -> Merge:
    """A merge by a DeltaTable that was made before the table changed."""

    def merge(spark: SparkSession, path: str) -> DataFrame:
        made_before = DeltaTable.forPath(spark, path).alias("t")
        for change in changes:
            spark.sql(change.replace("{target}", f"delta.`{path}`"))
        source = spark.sql("SELECT 2 AS k, 100 AS a, 200 AS b").alias("s")
        return made_before.merge(source, "t.k = s.k").whenMatchedUpdateAll(condition).execute()

    return merge


def by_source(condition: str) -> Merge:
    def merge(spark: SparkSession, path: str) -> DataFrame:
        source = spark.sql("SELECT 2 AS k, 1 AS q").alias("s")
        target = DeltaTable.forPath(spark, path).alias("t")
        return target.merge(source, "t.k = s.k").whenNotMatchedBySourceDelete(condition).execute()

    return merge


# Built-in MERGE may overlook that several source rows match one row.
MAY_BE_NULL = "s.a > t.a"

# PySpark shows it instead of an error of Delta that names a place in the statement.
HIDDEN = "Cannot find main error class"
# What existing code may catch.
WRONG = {
    "no_such_column": sql(
        "MERGE INTO {target} t USING merged_source s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET x = 1"
    ),
    "no_such_table": sql(
        "MERGE INTO nowhere t USING merged_source s ON t.k = s.k WHEN MATCHED THEN DELETE"
    ),
    "no_delta_table": sql(
        "MERGE INTO merged_source t USING merged_source s ON t.k = s.k WHEN MATCHED THEN DELETE"
    ),
    "syntax": sql("MERGE INTO {target} t USING merged_source s ON WHEN MATCHED THEN DELETE"),
    "several_matches": sql(
        "MERGE INTO {target} t USING (SELECT * FROM merged_source UNION ALL SELECT 2, 'C') s "
        "ON t.k = s.k WHEN MATCHED THEN UPDATE SET *"
    ),
    "value_that_does_not_fit": sql(
        "MERGE INTO {target} t USING merged_source s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET k = CAST(s.v AS INT)"
    ),
    "by_source_that_reads_the_source": by_source("s.q IS NULL"),
    "by_source_with_a_name_of_the_source": by_source("q IS NULL"),
    "insert_that_reads_the_target": lambda spark, path: (
        DeltaTable.forPath(spark, path)
        .alias("t")
        .merge(spark.table("merged_source").alias("s"), "t.k = s.k")
        .whenNotMatchedInsert(values={"k": "t.k"})
        .execute()
    ),
    "arguments_of_another_kind": lambda spark, path: spark.sql(
        f"MERGE INTO delta.`{path}` t USING merged_source s ON t.k = ? WHEN MATCHED THEN DELETE",
        args=(1,),  # type: ignore[arg-type]
    ),
    "builder_without_clauses": lambda spark, path: (
        DeltaTable.forPath(spark, path).merge(spark.table("merged_source"), "true").execute()
    ),
    "builder_with_no_such_column": lambda spark, path: (
        DeltaTable.forPath(spark, path)
        .merge(spark.table("merged_source"), "true")
        .whenMatchedUpdate(set={"x": "1"})
        .execute()
    ),
}


def new_session(spark: SparkSession) -> SparkSession:
    """A session with the rows that are merged, as `merged_source`."""
    session = spark.newSession()
    session.conf.set("spark.sql.scripting.enabled", "true")  # as it is since Spark 4.1
    frame(session, SOURCE, COLUMNS).createOrReplaceTempView("merged_source")
    return session


@pytest.fixture
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own that is enabled, beside which others are not."""
    session = new_session(spark)
    deltaweave.enable(session)
    yield session
    deltaweave.disable(session)


@pytest.fixture
def plain(spark: SparkSession) -> SparkSession:
    return new_session(spark)


@pytest.fixture
def on_engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables of the merges that ran on the engine."""
    tables: list[str] = []
    run = session_merges.run_parsed

    def noted(parsed: ParsedMerge, **options: Any) -> Any:
        result = run(parsed, **options)
        tables.append(parsed.table)
        return result

    monkeypatch.setattr(session_merges, "run_parsed", noted)
    return tables


def table(spark: SparkSession, path: Path) -> str:
    write_table(spark, str(path), TARGET, COLUMNS)
    return str(path)


@pytest.mark.minutes
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_existing_code_gets_what_it_gets_from_built_in_merge(
    way: Way, enabled: SparkSession, plain: SparkSession, on_engine: list[str], tmp_path: Path
) -> None:
    theirs, ours = table(plain, tmp_path / "theirs"), str(tmp_path / "ours")
    shutil.copytree(theirs, ours)
    by_built_in = way.merge(plain, theirs)
    assert not on_engine
    by_engine = way.merge(enabled, ours)
    assert len(on_engine) == way.on_engine
    assert by_engine.collect() == by_built_in.collect()
    assert by_engine.schema == by_built_in.schema
    assert by_engine.sparkSession is enabled
    rows = [
        rows_as_text(plain.read.format("delta").load(path).collect()) for path in (ours, theirs)
    ]
    assert rows[0] == rows[1]
    assert newest_version(ours) == newest_version(theirs)


@pytest.mark.parametrize("merge", WRONG.values(), ids=WRONG)
def test_existing_code_catches_the_errors_of_built_in_merge(
    merge: Merge, enabled: SparkSession, plain: SparkSession, tmp_path: Path
) -> None:
    path = table(plain, tmp_path / "table")
    raised = []
    for session in (enabled, plain):
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            merge(session, path)
        raised.append(caught.value)
    ours, theirs = raised
    kind = AnalysisException if HIDDEN in str(theirs) else type(theirs)
    assert type(ours).__name__ == kind.__name__
    assert set(error_classes(ours)) == set(error_classes(theirs))
    assert HIDDEN not in str(ours)
    assert newest_version(path) == 0


def test_the_column_that_is_wrong_is_named_by_an_error_of_spark(
    enabled: SparkSession, tmp_path: Path
) -> None:
    path = table(enabled, tmp_path / "table")
    with pytest.raises(AnalysisException) as caught:
        WRONG["no_such_column"](enabled, path)
    error = caught.value
    assert str(error).startswith("[DELTA_MERGE_UNRESOLVED_EXPRESSION] Cannot resolve x in UPDATE")
    assert error.getCondition() == "DELTA_MERGE_UNRESOLVED_EXPRESSION"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_a_java_trace_ends_with_the_sentences_of_the_engine(
    enabled: SparkSession, tmp_path: Path
) -> None:
    path = table(enabled, tmp_path / "table")
    enabled.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (k > 0)")
    with pytest.raises(Py4JJavaError) as caught:
        sql(
            "MERGE INTO {target} t USING merged_source s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET k = -1"
        )(enabled, path)
    last = "".join(traceback.format_exception(caught.value)).splitlines()[-5:]
    said = "\n".join(last)
    assert "CHECK constraint positive (k > 0) violated" in said
    assert "Nothing was committed" in said


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("changes", "condition", "is_on_engine"),
    [
        # In the old type, 5,000,000,000 would be 705,032,704.
        (
            [
                "ALTER TABLE {target} ALTER COLUMN a TYPE BIGINT",
                "UPDATE {target} SET a = 5000000000 WHERE k = 3",
            ],
            None,
            False,
        ),
        (["ALTER TABLE {target} ALTER COLUMN b AFTER k"], None, False),
        (["ALTER TABLE {target} ADD COLUMN n INT"], None, False),
        # Delta raises its error before it can overlook that a row has several matches.
        (["ALTER TABLE {target} ADD COLUMN n INT"], MAY_BE_NULL, False),
        (["INSERT INTO {target} VALUES (2, 1, 1)"], MAY_BE_NULL, True),
    ],
    ids=[
        "a type is widened",
        "columns change places",
        "a column is added",
        "a column is added to the target of a statement that built-in MERGE gets wrong",
        "rows are added",
    ],
)
def test_a_table_changed_since_its_delta_table_is_merged_as_by_built_in(
    changes: list[str],
    condition: str | None,
    is_on_engine: bool,
    enabled: SparkSession,
    plain: SparkSession,
    on_engine: list[str],
    tmp_path: Path,
) -> None:
    """The table changed after the DeltaTable object was made."""
    merge, outcomes = merged_later(*changes, condition=condition), []
    for session in (enabled, plain):
        path = str(tmp_path / f"of_{len(outcomes)}")
        properties = {"delta.enableTypeWidening": "true"}
        rows = [(1, 10, 20), (2, 11, 21), (3, 12, 22)]
        write_table(session, path, rows, "k INT, a INT, b INT", properties=properties)
        try:
            said: Any = merge(session, path).collect()
        except (PySparkException, Py4JJavaError) as error:
            said = type(error), set(error_classes(error))
        found = session.read.format("delta").load(path).collect()
        outcomes.append((said, rows_as_text(found), newest_version(path)))
    assert outcomes[0] == outcomes[1]
    assert len(on_engine) == is_on_engine


@pytest.mark.minutes
def test_no_statement_that_built_in_merge_gets_wrong_runs_there(
    enabled: SparkSession, tmp_path: Path
) -> None:
    """It does not run there after a type changed, either."""
    path, properties = str(tmp_path / "table"), {"delta.enableTypeWidening": "true"}
    write_table(enabled, path, [(2, 11, 21)], "k INT, a INT, b INT", properties=properties)
    merge = merged_later("ALTER TABLE {target} ALTER COLUMN a TYPE BIGINT", condition=MAY_BE_NULL)
    with pytest.raises(errors.SchemaChangedError) as caught:
        merge(enabled, path)
    assert (caught.value.version, newest_version(path)) == (1, 1)
    assert errors.NOTHING_COMMITTED in str(caught.value)


def test_what_is_wrong_with_a_merge_with_parameters_is_said(enabled: SparkSession) -> None:
    text = "MERGE INTO nowhere t USING merged_source s ON t.k = :k WHEN MATCHED THEN DELETE"
    with pytest.raises(AnalysisException) as caught:
        enabled.sql(text, args={"k": 1})
    assert "TABLE_OR_VIEW_NOT_FOUND" in error_classes(caught.value)


@pytest.mark.minutes
def test_a_session_is_asked_for_its_own_settings_whichever_is_active(
    enabled: SparkSession, plain: SparkSession, spark: SparkSession, tmp_path: Path
) -> None:
    found = []
    for session in (enabled, plain):
        path = str(tmp_path / f"of_{len(found)}")
        session.conf.set("spark.sql.session.timeZone", "America/New_York")
        session.conf.set("spark.sql.ansi.enabled", "false")
        write_table(session, path, [(1, 0)], "k INT, at BIGINT")
        other = spark.newSession()
        other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        other.conf.set("spark.sql.ansi.enabled", "true")
        sessions = spark.sparkContext._jvm.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(other._jsparkSession)
        session.sql(
            f"MERGE INTO delta.`{path}` t "
            "USING (SELECT 1 AS k UNION ALL SELECT CAST('x' AS INT)) s "
            "ON t.k = s.k WHEN MATCHED THEN "
            "UPDATE SET at = unix_timestamp(TIMESTAMP'2024-07-01 00:00:00')"
        )
        assert sessions.getActiveSession().get().equals(other._jsparkSession)
        found.append(session.read.format("delta").load(path).collect())
    assert found[0] == found[1] == [(1, 1719806400)]  # midnight in New York


def test_the_counts_of_a_session_merge_take_no_job(enabled: SparkSession, tmp_path: Path) -> None:
    counts = WAYS["text"].merge(enabled, table(enabled, tmp_path / "table"))
    assert jobs_of(enabled, "counts", counts.collect) == 0


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ("merge into t", True),
        (" \n\t-- a comment\nMERGE", True),
        ("/* a /* comment */ in a comment */ MERGE", True),
        ("/* a /* comment */ MERGE", False),  # the outer comment goes on
        ("-- MERGE", False),
        ("WITH s AS (SELECT 1) MERGE", True),
        ("SELECT 'MERGE'", False),
        ("", False),
        ("/* */" * 100_000 + "SELECT 1", False),  # quickly
    ],
    ids=range(9),
)
def test_a_statement_is_recognized_by_its_first_word(text: str, may_be: bool) -> None:
    assert session_merges.may_be_merge(text) == may_be


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("on", "value", "args"),
    [(":below", ":v", {"below": 3, "v": "it's"}), ("?", "?", [3, "it's"])],
    ids=["by name", "by place"],
)
def test_parameters_are_bound_which_built_in_merge_does_not_do(
    on: str, value: str, args: Any, enabled: SparkSession, plain: SparkSession, tmp_path: Path
) -> None:
    path = table(enabled, tmp_path / "table")
    merge = sql(
        f"MERGE INTO {{target}} t USING merged_source s ON t.k = s.k AND s.k < {on} "
        f"WHEN MATCHED THEN UPDATE SET v = {value}",
        args=args,
    )
    # Since Spark 4.1, Delta takes the plan apart before Spark's analyzer has bound them.
    unbound: AbstractContextManager[Any] = nullcontext()
    if Jvm.of(plain).spark_line >= (4, 1):
        unbound = pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER")
    with unbound:
        merge(plain, path)
    merge(enabled, path)
    rows = enabled.read.format("delta").load(path).collect()
    assert sorted(rows) == [(1, "a"), (2, "it's"), (3, "c")]


def test_a_lost_race_is_an_error_of_delta(
    enabled: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(enabled, tmp_path / "table")

    def loses(parsed: ParsedMerge, **_: Any) -> Any:
        cause = ConcurrentAppendException("files were added", "", None)
        raise errors.CommitConflictError("it lost", table=parsed.table) from cause

    monkeypatch.setattr(session_merges, "run_parsed", loses)
    with pytest.raises(ConcurrentAppendException, match="files were added"):
        by_delta_table(enabled, path)


def test_an_invalid_setting_of_the_lock_leaves_no_merge_to_built_in(
    enabled: SparkSession, tmp_path: Path
) -> None:
    """Which knows nothing of the lock that another process holds."""
    path = table(enabled, tmp_path / "table")
    with (
        configured(enabled, {LOCK_TIMEOUT: "soon"}),
        held_by_another_process(lock_file(Path(path))),
        pytest.raises(Exception, match="'soon'"),
    ):
        WAYS["text"].merge(enabled, path)
    assert newest_version(path) == 0


def test_what_the_engine_refuses_runs_on_built_in_merge_with_one_warning(
    enabled: SparkSession, on_engine: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "refused")
    write_table(enabled, path, TARGET, COLUMNS, properties=REFUSED)
    # Its reads would pass over files, which the engine's never do.
    with (
        configured(enabled, {IGNORING_FILES[0]: "true"}),
        pytest.raises(Exception, match="ignoreCorruptFiles is on"),
    ):
        WAYS["text"].merge(enabled, path)
    with caplog.at_level(logging.WARNING, "deltaweave"):
        counts = WAYS["text"].merge(enabled, path).first()
    assert counts == (3, 1, 1, 1)
    assert not on_engine
    [warned] = [record.getMessage() for record in caplog.records]
    assert "icebergCompatV2: Delta's own MERGE runs instead" in warned


@pytest.mark.minutes
def test_a_pair_is_reset_after_its_use_however_that_is_spelled(
    enabled: SparkSession, tmp_path: Path
) -> None:
    path = table(enabled, tmp_path / "table")
    enabled.conf.set("spark.databricks.delta.write.txnAppId", "loader")
    enabled.conf.set("spark.databricks.delta.write.txnVersion", "7")
    enabled.conf.set("spark.databricks.delta.write.txnVersion.autoReset.enabled", " True")
    assert WAYS["text"].merge(enabled, path).count() == 1
    assert enabled.conf.get("spark.databricks.delta.write.txnVersion", None) is None


def test_a_pair_of_the_session_is_applied_once(enabled: SparkSession, tmp_path: Path) -> None:
    path = table(enabled, tmp_path / "table")
    enabled.conf.set("spark.databricks.delta.write.txnAppId", "loader")
    enabled.conf.set("spark.databricks.delta.write.txnVersion", "7")
    assert WAYS["text"].merge(enabled, path).count() == 1
    assert WAYS["text"].merge(enabled, path).collect() == []  # as built-in MERGE returns it
    assert newest_version(path) == 1


@pytest.mark.minutes
def test_a_session_is_disabled_again_and_others_never_are_enabled(
    spark: SparkSession, enabled: SparkSession, on_engine: list[str], tmp_path: Path
) -> None:
    path = table(enabled, tmp_path / "table")
    beside = enabled.newSession()
    frame(beside, SOURCE, COLUMNS).createOrReplaceTempView("merged_source")
    WAYS["text"].merge(beside, path)
    assert not session_merges.is_enabled(spark)
    deltaweave.disable(enabled)
    WAYS["text"].merge(enabled, path)
    assert not on_engine
    assert newest_version(path) == 2


def test_a_method_that_another_library_wrapped_is_replaced_too(
    enabled: SparkSession, on_engine: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = inspect.unwrap(SparkSession.sql)
    traced: list[str] = []

    @functools.wraps(built_in)
    def tracing(self: SparkSession, text: str, *args: Any, **kwargs: Any) -> DataFrame:
        traced.append(text)
        return built_in(self, text, *args, **kwargs)

    path = table(enabled, tmp_path / "table")
    monkeypatch.setattr(SparkSession, "sql", tracing)
    deltaweave.enable(enabled)
    WAYS["text"].merge(enabled, path)
    enabled.sql("SELECT 1")
    assert len(on_engine) == 1
    assert "SELECT 1" in traced


@pytest.mark.minutes
def test_each_of_several_threads_enables_and_merges(
    spark: SparkSession, on_engine: list[str], tmp_path: Path
) -> None:
    def merge_in_a_session_of_its_own(number: int) -> None:
        session = spark.newSession()
        if number % 2:
            deltaweave.enable(session)
        frame(session, SOURCE, COLUMNS).createOrReplaceTempView("merged_source")
        WAYS["text"].merge(session, paths[number])

    paths = [table(spark, tmp_path / str(number)) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(merge_in_a_session_of_its_own, range(6)))
    assert sorted(name.strip("`").rsplit("/", 1)[1] for name in on_engine) == ["1", "3", "5"]
    assert [newest_version(path) for path in paths] == [1] * 6


@pytest.mark.minutes
@pytest.mark.parametrize("way", ["text", "builder"])
def test_a_stream_merges_its_batches(
    enabled: SparkSession, on_engine: list[str], tmp_path: Path, way: str
) -> None:
    target, arriving = table(enabled, tmp_path / "table"), table(enabled, tmp_path / "arriving")

    def upsert(batch: DataFrame, _: int) -> None:
        if way == "builder":
            named = DeltaTable.forPath(batch.sparkSession, target).alias("t")
            source = batch.selectExpr("k + 2 AS k", "v").alias("s")
            merge = named.merge(source, "t.k = s.k").whenMatchedUpdateAll()
            merge.whenNotMatchedInsertAll().execute()
            return
        batch.createOrReplaceTempView("batch")
        batch.sparkSession.sql(
            f"MERGE INTO delta.`{target}` t USING (SELECT k + 2 AS k, v FROM batch) s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    stream = enabled.readStream.format("delta").load(arriving).writeStream.foreachBatch(upsert)
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    assert len(on_engine) == 1
    rows = enabled.read.format("delta").load(target).collect()
    # 1 and 2 stay, 3 is updated by the row of 1, 4 and 5 are new
    assert sorted(rows) == [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "c")]


@pytest.mark.minutes
def test_the_example_of_the_guide_runs(enabled: SparkSession, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "existing-code.md"
    [example] = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    columns = "id INT, state STRING"
    write_table(enabled, str(tmp_path / "orders"), [(1, "open"), (2, "open")], columns)
    changes = frame(enabled, [(2, "cancelled"), (3, "new")], columns)
    changes.createOrReplaceTempView("changes")
    names: dict[str, Any] = {"spark": enabled, "changes": changes}
    exec(example.replace("/lake", str(tmp_path)), names)
    assert names["counts"].collect() == [(2, 1, 0, 1)]
    rows = enabled.read.format("delta").load(str(tmp_path / "orders")).collect()
    assert sorted(rows) == [(1, "open"), (3, "new")]
    assert not session_merges.is_enabled(enabled)


def test_a_session_that_is_enabled_says_so_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    session = spark.newSession()
    with caplog.at_level(logging.INFO, logger="deltaweave"):
        deltaweave.enable(session)
        deltaweave.enable(session)
    told = [text for each in caplog.records if "run on deltaweave" in (text := each.getMessage())]
    assert len(told) == 1
    assert f"Spark {spark.version}" in told[0]
