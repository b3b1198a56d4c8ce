"""Any merge does what Delta's own MERGE does: rows, schema, errors, metrics, change feed.

Where that goes wrong by a known defect, the semantics decide (`evaluation`).

`make test` runs the same few examples each time; `make fuzz N=5000` runs that many new ones.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow
import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, seed, settings
from pyspark.sql import SparkSession

from deltaweave.delta.statement import builtin_defects, parse_statement
from deltaweave.engine.merge_run import ON_DRIVER, REWRITE_IN_PLACE
from deltaweave.errors import DeltaweaveError
from deltaweave.identifiers import quoted
from tests.merge_cases.case import AMBIGUOUS, MergeCase
from tests.properties.draws import FEED, VECTORS, merges, merges_of_exact_keys
from tests.properties.evaluation import OF_A_VALUE, Truth, evaluate
from tests.support.big_source import collect_no_keys, keep_pairs_on_executors
from tests.support.on_driver import written_on_driver
from tests.support.oracles import Outcome, Stage, assert_same_metrics, collected, rows_as_text
from tests.support.readers import assert_reads_alike_through_filters, drawn_filters
from tests.support.settings import configured

pytestmark = pytest.mark.minutes

EXAMPLES = int(os.environ.get("DELTAWEAVE_FUZZ_EXAMPLES", "15"))
SHRINKS = os.environ.get("DELTAWEAVE_FUZZ_SHRINK", "1") != "0"
FIRST_SEED = int(os.environ.get("DELTAWEAVE_FUZZ_SEED", "0"))
BEYOND_ARROW = ("would lose data", "is not a valid decimal128 number")
MISQUOTED = ("INVALID_ATTRIBUTE_NAME_SYNTAX", "UNRESOLVED_COLUMN.WITH_SUGGESTION")
# What built-in MERGE does where it meets a defect.
EXPLAINS: dict[str, Callable[[Truth, Outcome], bool]] = {
    "drops_rows_as_repeated": lambda right, theirs: len(theirs.rows) < len(right.rows),
    "takes_unmatched_rows_for_matched": lambda _, theirs: (
        "USER_RAISED_EXCEPTION" in theirs.error_classes
    ),
    "overlooks_repeated_matches": lambda right, _: right.is_ambiguous,
    "quotes_names_wrongly": lambda _, theirs: first_class(theirs) in MISQUOTED,
    "makes_the_table_unreadable": lambda *_: False,  # no such table is drawn
    "moves_rows_to_another_hour": lambda *_: False,  # nor any such time
    "overlooks_days": lambda *_: False,  # nor any such day
    "overlooks_widened_decimals": lambda *_: False,  # nor any such column
}
UNTYPED_FILTER = "DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN"
UNTYPED_JOIN = "JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE"
# Small tests of as many examples each, one seed for each, to spread over pytest's workers.
EXAMPLES_PER_TEST = 25
SEEDS = range(FIRST_SEED, FIRST_SEED + -(-EXAMPLES // EXAMPLES_PER_TEST))

in_this_number = settings(
    max_examples=min(EXAMPLES, EXAMPLES_PER_TEST),
    database=None,  # the seed alone says what is drawn
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    # Shrinking takes minutes: a long search can do without (DELTAWEAVE_FUZZ_SHRINK=0).
    phases=[Phase.generate, *([Phase.shrink] if SHRINKS else [])],
    suppress_health_check=list(HealthCheck),  # an example takes seconds
)


@pytest.mark.parametrize("seed_of_draws", SEEDS)
def test_a_merge_does_what_built_in_merge_does(
    spark: SparkSession, seed_of_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed_of_draws % 2:
        keep_pairs_on_executors(monkeypatch)
    if seed_of_draws % 4 == 3:
        collect_no_keys(monkeypatch)
    on_driver = {ON_DRIVER: "true"} if seed_of_draws % 4 == 2 else {}
    decided: list[bool] = []

    @seed(seed_of_draws)
    @in_this_number
    @given(case=merges())
    def compared(case: MergeCase) -> None:
        assume(not seeks_zero_among_negative_ones(case))
        note(reproduction(case))
        with configured(spark, on_driver):
            decided.append(compare(spark, case))

    compared()
    assert sum(decided) > len(decided) // 4, "of too few merges the semantics say what is right"


@pytest.mark.parametrize("seed_of_draws", SEEDS[:1] if EXAMPLES <= 50 else SEEDS)
def test_files_rewritten_in_place_are_as_good_to_all_readers(
    spark: SparkSession, seed_of_draws: int
) -> None:
    @seed(seed_of_draws)
    @settings(in_this_number, max_examples=min(EXAMPLES, EXAMPLES_PER_TEST) // 2)
    @given(case=merges())
    def compared(case: MergeCase) -> None:
        assume(not seeks_zero_among_negative_ones(case))
        others = {k: v for k, v in case.properties.items() if k not in VECTORS}
        case = replace(case, properties=others, setup=())
        note(reproduction(case))
        compare_in_place(spark, case)

    compared()


@pytest.mark.full_matrix
@pytest.mark.parametrize("seed_of_draws", SEEDS)
def test_merges_on_the_driver_do_what_built_in_merge_does(
    spark: SparkSession, seed_of_draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = written_on_driver(monkeypatch)
    number = min(EXAMPLES, EXAMPLES_PER_TEST) // 2

    @seed(seed_of_draws)
    @settings(in_this_number, max_examples=number)
    @given(case=merges_of_exact_keys())
    def compared(case: MergeCase) -> None:
        assume(not seeks_zero_among_negative_ones(case))
        note(reproduction(case))
        with configured(spark, {ON_DRIVER: "true"}):
            compare(spark, case)

    compared()
    # Some four of twelve qualify.
    assert len(written) > number // 6, "of the merges that are drawn for it, too few qualify"


def compare_in_place(spark: SparkSession, case: MergeCase) -> None:
    """Compare the rows as Spark, delta-rs and, after it has compacted them, Delta read them."""
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(spark, case, Path(folder))
        theirs = stage.by_oracle()
        with configured(spark, {REWRITE_IN_PLACE: "true"}):
            ours = stage.by_sql()
        note(f"built-in: {described(theirs)}\nours:     {described(ours)}")
        truth = compare_with_semantics(spark, case, stage, ours, theirs)
        if ours.rows == theirs.rows and ours.version is not None and is_read_back(case):
            filters = drawn_filters(spark.read.format("delta").load(theirs.path), 6, seed=case.name)
            assert_reads_alike_through_filters(spark, ours.path, theirs.path, filters)
        if truth is not None and truth.differs_from(theirs):
            return
        if is_of_a_value(theirs) and ours.error is None:
            compare_without_failing_casts(spark, case, ours)
            return
        assert (ours.error is None) == (theirs.error is None)
        assert ours.rows == theirs.rows
        if ours.version is None:
            return
        assert (ours.changes or []) == (theirs.changes or [])
        if not case.properties.items() - FEED.items():  # delta-rs knows no column mapping
            by_delta_rs = rows_by_delta_rs(theirs.path)
            assert by_delta_rs is None or rows_by_delta_rs(ours.path) == by_delta_rs
        spark.sql(f"OPTIMIZE delta.{quoted(ours.path)}")
        with configured(
            spark, case.conf
        ):  # times that Python lacks are texts in the session's zone
            rows = collected(spark.read.format("delta").load(ours.path))
        assert rows_as_text(rows) == ours.rows


def rows_by_delta_rs(path: str) -> list[str] | None:
    """The rows as delta-rs reads them; None where it cannot.

    Spark stores times in a form that Arrow reads as nanoseconds, of the years 1678 to 2261 alone.
    delta-rs spells the bounds of negative decimals in a way that it cannot read (`-9999.-99`).
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            # delta-rs finds no folder that is named `%20` or by a backslash.
            plain = shutil.copytree(path, f"{folder}/table")
            table = deltalake.DeltaTable(plain)
            return sorted(map(repr, table.to_pyarrow_table().to_pylist()))
    except pyarrow.ArrowInvalid as error:
        if not any(each in str(error) for each in BEYOND_ARROW):
            raise
        return None


def seeks_zero_among_negative_ones(case: MergeCase) -> bool:
    """Whether a statement asks for `= 0` and the target holds -0.0.

    A defect of Spark's Parquet reader: `WHERE k = 0` finds no -0.0 in a file that holds it in a
    dictionary (three rows of -0.0 and no other do). `t.k = s.k AND s.k = 0` implies that filter.
    """
    statement = case.statement(target="t", source="s").replace("% 2 = 0", "")
    zeros = [value for row in case.target for value in row if repr(value) == "-0.0"]
    return bool(zeros) and "= 0" in statement


def compare(spark: SparkSession, case: MergeCase) -> bool:
    """Run the case both ways and compare all that can be seen afterwards.

    Returns:
        Whether the semantics say what is right.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(spark, case, Path(folder))
        theirs, ours = stage.by_oracle(), stage.by_sql()
        note(f"built-in: {described(theirs)}\nours:     {described(ours)}")
        truth = compare_with_semantics(spark, case, stage, ours, theirs)
        if ours.rows == theirs.rows and ours.version is not None and is_read_back(case):
            filters = drawn_filters(spark.read.format("delta").load(theirs.path), 6, seed=case.name)
            assert_reads_alike_through_filters(spark, ours.path, theirs.path, filters)
    if truth is None or not truth.differs_from(theirs):
        compare_with_built_in(spark, case, ours, theirs)
    return truth is not None


def compare_with_built_in(
    spark: SparkSession, case: MergeCase, ours: Outcome, theirs: Outcome
) -> None:
    if is_of_a_value(theirs) and ours.error is None:
        compare_without_failing_casts(spark, case, ours)
        return
    assert (ours.error is None) == (theirs.error is None)
    assert ours.rows == theirs.rows
    assert ours.schema == theirs.schema
    if theirs.error is not None:
        assert_same_error(ours, theirs)
        return
    assert_same_metrics(case, ours, with_true_count(case, theirs))
    assert (ours.changes or []) == (theirs.changes or [])  # an empty commit may be theirs alone


def is_read_back(case: MergeCase) -> bool:
    """Whether the files of an example are read through filters: those of a third of them are."""
    return zlib.crc32(case.statement(target="t", source="s").encode()) % 3 == 0


def compare_with_semantics(
    spark: SparkSession, case: MergeCase, stage: Stage, ours: Outcome, theirs: Outcome
) -> Truth | None:
    """Return what is right, which the engine does; built-in MERGE does it except known defects.

    None if both refuse the statement, or if the values of rows cannot be computed.
    """
    if not {None, AMBIGUOUS} & {first_class(ours), first_class(theirs)}:
        return None
    truth = evaluate(spark, case, stage.target_rows(), stage.source)
    statement = case.statement(target=f"delta.{quoted(str(stage.original))}", source=stage.source)
    with configured(spark, case.conf):
        known = [each.name for each in builtin_defects(parse_statement(spark, statement))]
    if truth is None:
        assume(not known)  # nobody says what is right
        return None
    note(f"right, by the semantics: {truth}")
    if not truth.is_taken and ours.error is None and theirs.error is None:
        return None  # by their statistics, both left out the files in which no clause takes a row
    assert not truth.differs_from(ours), f"the engine: {truth.differs_from(ours)}"
    wrong = truth.differs_from(theirs)
    is_explained = any(EXPLAINS[name](truth, theirs) for name in known) or is_of_a_value(theirs)
    assert is_explained or not wrong, f"a new defect of built-in MERGE: {wrong}"
    return truth


def first_class(outcome: Outcome) -> str | None:
    """The error class that an outcome names first; None where nothing failed."""
    return None if outcome.error is None else (*outcome.error_classes, "")[0]


def compare_without_failing_casts(spark: SparkSession, case: MergeCase, ours: Outcome) -> None:
    """Compare the rows with what built-in MERGE does where a cast that fails gives NULL.

    The engine leaves out more files, and no file is read for a source without rows: it need not
    meet the value for which built-in MERGE failed. A row with that value matches nothing.
    """
    case = replace(case, conf={**case.conf, "spark.sql.ansi.enabled": "false"})
    with tempfile.TemporaryDirectory() as folder:
        theirs = Stage(spark, case, Path(folder)).by_oracle()
    assert theirs.error is None
    assert (ours.rows, ours.schema) == (theirs.rows, theirs.schema)


def assert_same_error(ours: Outcome, theirs: Outcome) -> None:
    """Ours names one of the error classes in the chain of causes."""
    assert isinstance(ours.error, DeltaweaveError)
    assert ours.version is None
    if theirs.error_classes[:1] == (UNTYPED_FILTER,):
        # ON NULL: it depends on the table's state whether Delta's skipping or the join meets it.
        assert ours.error_classes in (theirs.error_classes[:1], (UNTYPED_JOIN,))
        return
    if is_of_a_value(ours) and (is_of_a_value(theirs) or first_class(theirs) in MISQUOTED):
        # Which of several values that cannot be computed is met first, is nobody's promise; nor
        # whether one is met before built-in MERGE plans a write by names that it quotes wrongly.
        return
    assert set(ours.error_classes) <= set(theirs.error_classes)
    assert bool(ours.error_classes) == bool(theirs.error_classes)


def is_of_a_value(outcome: Outcome) -> bool:
    """Whether it failed for a value that cannot be computed."""
    return any(name.startswith(OF_A_VALUE) for name in outcome.error_classes)


def with_true_count(case: MergeCase, theirs: Outcome) -> Outcome:
    """Built-in MERGE's outcome, with each row of the source counted once.

    A nested-loop join reads the source in each task, and Delta's counter runs with the tasks. The
    optimizer may make one of an equality too: `t.k = s.k AND s.k IS NULL` is false to it.
    """
    return replace(theirs, metrics={**theirs.metrics, "numSourceRows": len(case.source)})


def described(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{outcome.error_classes}: {str(outcome.error)[:500]}"
    return f"version {outcome.version}, rows:\n" + "\n".join(f"  {row}" for row in outcome.rows)


def reproduction(case: MergeCase) -> str:
    """The case as text: the table, the source, and the statement."""
    lines = [f"CREATE TABLE target ({case.target_schema}) USING delta"]
    if case.partition_by:
        lines.append(f"PARTITIONED BY ({', '.join(map(quoted, case.partition_by))})")
    if case.properties:
        lines.append(f"TBLPROPERTIES {dict(case.properties)}")
    lines.append(f"rows in {case.files} file(s):")
    lines += [f"  {row}" for row in case.target]
    lines += [statement.format(target="target") for statement in case.setup]
    lines.append(f"source ({case.source_schema}), rows:")
    lines += [f"  {row}" for row in case.source]
    lines += [f"SET {key} = {value}" for key, value in case.conf.items()]
    lines.append(case.statement(target="target", source="source"))
    return "\n".join(lines)
