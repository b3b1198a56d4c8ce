"""What a batch commits: one version where it is alone, and all of what others did meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import MergeResult, Table
from deltaweave.changes import current, history
from deltaweave.changes.side_tables import tombstones
from deltaweave.errors import CommitConflictError, SourceError
from tests.support.drawn_events import SCHEMA, WHOLE, Event, delete
from tests.support.spark_jobs import jobs_of

Apply = Callable[..., MergeResult]


@pytest.fixture
def apply(spark: SparkSession, tmp_path: Path) -> Apply:
    """Applies a batch to the table `t`."""

    def applied(*batch: Event, **arguments: Any) -> MergeResult:
        return deltaweave.apply_changes(
            spark,
            str(tmp_path / "t"),
            spark.createDataFrame([event.row() for event in batch], SCHEMA),
            keys=["k"],
            sequence_by="seq",
            apply_as_deletes="op = 'delete'",
            **{**WHOLE, **arguments},
        )

    return applied


def rows(spark: SparkSession, tmp_path: Path) -> set[tuple[Any, ...]]:
    read = Table(spark, str(tmp_path / "t")).read()
    columns = [name for name in ("k", "v", "__START_AT", "__END_AT") if name in read.columns]
    return {tuple(row) for row in read.select(*columns).collect()}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", [1, 2])
def test_the_first_batch_that_remembers_anything_commits_one_version(
    apply: Apply, spark: SparkSession, tmp_path: Path, kind: int
) -> None:
    result = apply(
        Event(1, 1, 10), Event(1, 2, 10), delete(2, 5), Event(2, 1, 10), stored_as_scd_type=kind
    )
    table = Table(spark, str(tmp_path / "t"))
    assert (result.version, table.version()) == (1, 1)
    assert result.metrics.num_target_rows_inserted == (1 if kind == 1 else 2)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/t`").collect()
    assert [row.operation for row in history] == ["MERGE", "CREATE TABLE"]


# Where both kinds do the same, one of them tells it; both are for `make test-all`.
FULL = pytest.mark.full_matrix
OF_ROWS = pytest.mark.parametrize("kind", [1, pytest.param(2, marks=FULL)])
OF_HISTORIES = pytest.mark.parametrize("kind", [pytest.param(1, marks=FULL), 2])


class DeathError(Exception):
    """The process ends here."""


def meanwhile(monkeypatch: pytest.MonkeyPatch, kind: int, do: Callable[[], object]) -> None:
    """Do something once, before the next merge into the table."""
    owner: Any = current if kind == 1 else history.Histories
    merge, is_done = owner.merge_changes, []

    def merged(*arguments: Any, **options: Any) -> MergeResult:
        if is_done:
            return merge(*arguments, **options)
        is_done.append(True)
        do()
        return merge(*arguments, **options)

    monkeypatch.setattr(owner, "merge_changes", merged)


@pytest.mark.minutes
@pytest.mark.parametrize(("kind", "at_most"), [(1, 16), (2, 23)])
def test_a_small_batch_takes_few_spark_jobs(
    apply: Apply, spark: SparkSession, kind: int, at_most: int
) -> None:
    arguments = {"stored_as_scd_type": kind}
    apply(Event(1, 1, 10), Event(2, 1, 20), Event(2, 2, 20), delete(3, 1), **arguments)
    # A late event, a repeated value and a delete: all tables are read and written.
    batch = (Event(1, 3, 30), Event(2, 3, 20), Event(3, 0, 5), delete(2, 5), Event(4, 1, 1))
    jobs = jobs_of(spark, f"small batch {kind}", lambda: apply(*batch, **arguments))
    assert 0 < jobs <= at_most


def test_a_batch_that_fails_says_so_and_leaves_nothing_cached(
    spark: SparkSession, tmp_path: Path
) -> None:
    cached = len(spark.sparkContext._jsc.getPersistentRDDs())  # type: ignore[union-attr]
    batch = spark.range(2).selectExpr(
        "int(id) AS k", "int(id) AS seq", "IF(id = 1, raise_error('no value'), 'a') AS v"
    )
    with pytest.raises(SourceError, match="no value"):
        deltaweave.apply_changes(
            spark,
            str(tmp_path / "t"),
            batch,
            keys=["k"],
            sequence_by="seq",
            stored_as_scd_type=2,
        )
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == cached  # type: ignore[union-attr]


@pytest.mark.minutes
@OF_ROWS
def test_a_delete_that_another_batch_remembers_meanwhile_is_applied(
    apply: Apply, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """The result reports both batches."""
    arguments = {"stored_as_scd_type": kind}
    apply(Event(9, 1, 9), delete(8, 1), **arguments)
    # It has nothing to delete yet, and so commits nothing.
    meanwhile(monkeypatch, kind, lambda: apply(delete(1, 5), **arguments))
    result = apply(Event(1, 3, 30), Event(2, 3, 30), idempotency=("a", 1), **arguments)
    assert result.version == Table(spark, str(tmp_path / "t")).version()
    assert result.metrics.num_target_rows_inserted == 2
    assert rows(spark, tmp_path) == (
        {(9, 9), (2, 30)} if kind == 1 else {(9, 9, 1, None), (2, 30, 3, None), (1, 30, 3, 5)}
    )


@pytest.mark.minutes
@OF_HISTORIES
def test_events_remembered_meanwhile_without_effect_hide_no_result(
    apply: Apply, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    arguments = {"stored_as_scd_type": kind}
    apply(Event(9, 1, 9), delete(8, 1), **arguments)
    meanwhile(monkeypatch, kind, lambda: apply(delete(7, 5), **arguments))
    result = apply(Event(1, 3, 30), **arguments)
    assert result.version == 2
    assert result.metrics.num_target_rows_inserted == 1


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("kind", "end"), [pytest.param(1, "dies", marks=FULL), (2, "dies"), (1, "conflicts")]
)
def test_a_batch_stopped_between_its_merges_is_completed_on_redelivery(
    apply: Apply,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: int,
    end: str,
) -> None:
    arguments = {"stored_as_scd_type": kind}
    apply(Event(9, 1, 9), delete(8, 1), **arguments)

    owner: Any = current if kind == 1 else history.Histories
    merge, calls = owner.merge_changes, []

    def merged(*given: Any, **options: Any) -> MergeResult:
        calls.append(True)
        if len(calls) == 1:
            apply(delete(1, 5), **arguments)  # which finds nothing to delete
            merge(*given, **options)
            if end == "dies":
                raise DeathError
            raise CommitConflictError("another one was first")
        return merge(*given, **options)

    monkeypatch.setattr(owner, "merge_changes", merged)
    batch = (Event(1, 3, 30), Event(2, 3, 30))
    if end == "dies":
        with pytest.raises(DeathError):
            apply(*batch, idempotency=("a", 1), **arguments)
    apply(*batch, idempotency=("a", 1), **arguments)
    assert rows(spark, tmp_path) == (
        {(9, 9), (2, 30)} if kind == 1 else {(9, 9, 1, None), (2, 30, 3, None), (1, 30, 3, 5)}
    )


@pytest.mark.minutes
@OF_HISTORIES
def test_a_batch_applied_long_ago_brings_nothing_back_on_redelivery(
    apply: Apply, spark: SparkSession, tmp_path: Path, kind: int
) -> None:
    arguments = {"stored_as_scd_type": kind, "late_by": timedelta(0)}
    batch = (Event(1, 3, 30), Event(1, 4, 30), Event(2, 3, 30))
    apply(*batch, idempotency=("a", 1), **arguments)
    apply(delete(1, 5), Event(2, 6, 60), **arguments)
    apply(delete(7, 5), **arguments)  # nothing is remembered any more of the others
    path = f"{tmp_path}/t/_deltaweave_{'tombstones' if kind == 1 else 'events'}"
    spark.sql(f"DELETE FROM delta.`{path}`")
    before = rows(spark, tmp_path)
    result = apply(*batch, idempotency=("a", 1), **arguments)
    assert result.version is None
    assert rows(spark, tmp_path) == before


@pytest.mark.minutes
@OF_HISTORIES
def test_a_recreated_table_forgets_what_the_one_before_remembered(
    apply: Apply, spark: SparkSession, tmp_path: Path, kind: int
) -> None:
    arguments = {"stored_as_scd_type": kind}
    apply(Event(1, 100, 1), delete(1, 200), Event(2, 100, 1), delete(2, 200), **arguments)
    path = str(tmp_path / "t")
    schema = Table(spark, path).read().schema
    DeltaTable.replace(spark).location(path).addColumns(schema).execute()
    # Another database, whose log starts over.
    apply(Event(1, 1, 10), delete(2, 2), Event(3, 1, 30), **arguments)
    apply(Event(2, 1, 20), **arguments)  # late, as the new table remembers
    assert rows(spark, tmp_path) == (
        {(1, 10), (3, 30)} if kind == 1 else {(1, 10, 1, None), (2, 20, 1, 2), (3, 30, 1, None)}
    )


@pytest.mark.minutes
@OF_ROWS
def test_what_is_remembered_may_be_kept_forever(
    apply: Apply, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(tombstones, "TIDIED_EVERY", 1)
    arguments = {"stored_as_scd_type": kind, "late_by": timedelta.max}
    apply(delete(1, 5), Event(2, 1, 20), **arguments)
    apply(delete(2, 6), **arguments)
    apply(Event(1, 4, 40), Event(2, 5, 50), **arguments)
    if kind == 1:
        assert rows(spark, tmp_path) == set()
    else:
        assert rows(spark, tmp_path) == {(1, 40, 4, 5), (2, 20, 1, 5), (2, 50, 5, 6)}
