"""Files with few unmarked rows are rewritten; nothing else changes by that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import MergeResult, Table
from deltaweave.engine import limits
from deltaweave.engine.merge_run import MAX_MARKED_FRACTION
from tests.builders import frame, write_table
from tests.merge_cases import CASES_BY_NAME
from tests.merge_cases.case import VECTORS_AND_FEED, Layout, MergeCase
from tests.support.big_source import keep_pairs_on_executors
from tests.support.oracles import CHANGED_ROWS, Stage, rows_as_text
from tests.support.settings import configured

pytestmark = pytest.mark.minutes

VECTORS = {"delta.enableDeletionVectors": "true"}
LAYOUTS = [Layout(vectors=True), VECTORS_AND_FEED]
NAMES = [
    "five_clauses_of_all_kinds",
    "mirror_of_the_source",
    "several_source_rows_may_delete_one_row",
    "new_column_by_explicit_assignment",
    "odd_partition_values",
    "column_names_that_need_back_quotes",
]


def by_turns() -> Iterator[Any]:
    """Each case in both layouts; in `make test-slow` in one of them."""
    for place, name in enumerate(NAMES):
        for number, layout in enumerate(LAYOUTS):
            marks = [] if place % 2 == number else [pytest.mark.full_matrix]
            yield pytest.param(CASES_BY_NAME[name], layout, id=f"{name}-{layout}", marks=marks)


@pytest.mark.parametrize(("case", "layout"), list(by_turns()))
def test_rewritten_files_hold_what_built_in_merge_leaves(
    spark: SparkSession, tmp_path: Path, case: MergeCase, layout: Layout
) -> None:
    stage = Stage(
        spark, replace(case, conf={**case.conf, MAX_MARKED_FRACTION: "0"}), tmp_path, layout
    )
    theirs, ours = stage.by_oracle(), stage.by_sql()
    if ours.error is not None:
        raise ours.error
    assert ours.rows == rows_as_text(case.expected or ())
    assert ours.changes == theirs.changes
    assert {name: ours.metrics[name] for name in CHANGED_ROWS} == {
        name: theirs.metrics.get(name, 0) for name in CHANGED_ROWS
    }
    assert ours.metrics["numTargetDeletionVectorsAdded"] == 0
    assert ours.metrics["numTargetDeletionVectorsUpdated"] == 0


def upserted(spark: SparkSession, path: str, keys: list[int], limit: float | None) -> MergeResult:
    changes = frame(spark, [(k, -k) for k in keys], "k INT, v INT")
    setting = limits.DEFAULT_MAX_MARKED_FRACTION if limit is None else limit
    with configured(spark, {MAX_MARKED_FRACTION: str(setting)}):
        merge = Table(spark, path).merge(changes, on="t.k = s.k")
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.fixture
def pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pairs are."""
    if request.param == "on the executors":
        keep_pairs_on_executors(monkeypatch)


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize(
    ("pairs", "limit", "removed", "copied", "vectors"),
    [
        # The file that keeps 1 row of 6, and the one that keeps none.
        ("on the driver", None, 2, 1, 1),
        ("on the executors", None, 2, 1, 1),
        ("on the executors", 0.9, 1, 0, 2),  # 5 of 6 are not more than 0.9
        ("on the driver", 1, 1, 0, 2),  # a file without rows left goes all the same
        ("on the driver", 0.1, 3, 6, 0),  # the file that keeps 5 of 6, too
    ],
    indirect=["pairs"],
)
def test_files_are_rewritten_by_the_fraction_of_their_rows_that_change(
    spark: SparkSession,
    tmp_path: Path,
    limit: float | None,
    removed: int,
    copied: int,
    vectors: int,
) -> None:
    path = str(tmp_path / "table")
    rows = [(k, k) for k in range(24)]
    write_table(spark, path, rows, "k INT, v INT", files=4, properties=VECTORS)
    changed = [
        0,  # one of the first file's six
        *range(6, 11),  # all but one of the second's
        *range(12, 18),  # all of the third's; the fourth is not touched
        24,  # inserted
    ]
    result = upserted(spark, path, changed, limit)
    assert result.metrics["numTargetFilesRemoved"] == removed
    assert result.metrics["numTargetRowsCopied"] == copied
    assert result.metrics["numTargetDeletionVectorsAdded"] == vectors
    assert result.metrics["numTargetRowsUpdated"] == 12
    assert result.metrics["numTargetRowsInserted"] == 1
    table = Table(spark, path)
    assert {row.k: row.v for row in table.read().collect()} == {
        k: -k if k in changed else k for k in range(25)
    }
    assert table.row_count() == 25


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize(
    ("pairs", "earlier", "later"),
    [
        # Fewer rows change than there are, with those marked before.
        ("on the driver", [0, 1, 2], [3, 4]),
        ("on the executors", [2], [0, 1, 3, 5]),  # more do
    ],
    indirect=["pairs"],
)
def test_rows_marked_by_earlier_merges_count(
    spark: SparkSession, tmp_path: Path, earlier: list[int], later: list[int]
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, [(k, k) for k in range(6)], "k INT, v INT", properties=VECTORS)
    first = upserted(spark, path, earlier, None)  # at most half of the file
    assert first.metrics["numTargetDeletionVectorsAdded"] == 1
    second = upserted(spark, path, later, None)  # five of six, with the earlier ones
    assert second.metrics["numTargetFilesRemoved"] == 1
    assert second.metrics["numTargetDeletionVectorsRemoved"] == 1
    assert second.metrics["numTargetRowsCopied"] == 1
    rows = {row.k: row.v for row in Table(spark, path).read().collect()}
    assert rows == {k: -k if k in earlier + later else k for k in range(6)}
