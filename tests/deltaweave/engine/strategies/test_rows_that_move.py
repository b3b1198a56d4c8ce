"""Files copied in place where an update moves rows to other partitions, beside built-in MERGE."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import deltaweave
from deltaweave import Table, errors
from deltaweave.engine import run
from deltaweave.engine.merge_run import REWRITE_IN_PLACE
from deltaweave.engine.strategies import copy_in_place
from tests.builders import frame, write_table
from tests.deltaweave.engine.strategies.test_copy_in_place import rows_in_files
from tests.support.footers import SPARK_VERSION, rewritten_footer_of
from tests.support.oracles import change_feed, commit_info, newest_version, rows_as_text
from tests.support.settings import configured

SCHEMA = "k INT, v INT, p STRING"
# Partition a has 0 to 7, b 10 to 17, the null one 20 to 27.
ROWS = [(first + i, 1, p) for first, p in ((0, "a"), (10, "b"), (20, None)) for i in range(8)]
SOURCE = [
    (1, 5, "a"),  # stays in its partition
    (2, 5, "b"),  # moves
    (11, 5, None),  # moves to the null partition
    (21, 5, "c"),  # moves out of it, into a new one
    (22, 0, "c"),  # is deleted, by the clauses that delete
    (30, 5, "a"),  # is inserted
]
UPSERT = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
COUNTS = (
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsInserted",
    "numTargetRowsCopied",
    "numTargetFilesRemoved",
)


@dataclass(frozen=True)
class Moving:
    """A merge that moves rows.

    Attributes:
        clauses: Its clauses.
        properties: Of the table.
        setup: Statements before the merge.
        source: The source.
    """

    clauses: str = UPSERT
    properties: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    source: list[tuple[Any, ...]] = field(default_factory=lambda: SOURCE)


CASES = {
    "an upsert": Moving(),
    "values of the target": Moving(
        "WHEN MATCHED AND s.v = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = t.v + s.v, p = concat(t.p, s.p) "
        "WHEN NOT MATCHED THEN INSERT *"
    ),
    "rows that are not in the source": Moving(
        f"{UPSERT} WHEN NOT MATCHED BY SOURCE AND t.k % 7 = 3 THEN UPDATE SET p = 'd' "
        "WHEN NOT MATCHED BY SOURCE AND t.k > 25 THEN DELETE"
    ),
    "all rows of a file": Moving(
        source=[(k, 9, "b") for k in range(8)],
    ),
    "several source rows delete one": Moving(
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY SOURCE AND t.k = 3 THEN UPDATE SET p = 'd'",
        source=[*SOURCE, *SOURCE],
    ),
    "change feed": Moving(
        "WHEN MATCHED AND s.v = 0 THEN DELETE " + UPSERT,
        {"delta.enableChangeDataFeed": "true"},
    ),
    "tracked rows": Moving(properties={"delta.enableRowTracking": "true"}),
    "column mapping": Moving(properties={"delta.columnMapping.mode": "name"}),
    "a constraint": Moving(
        setup=("ALTER TABLE {target} ADD CONSTRAINT of_p CHECK (p IS NULL OR p <> 'e')",)
    ),
}


def merged(
    spark: SparkSession, folder: Path, case: Moving, *, by_delta: bool
) -> tuple[str, dict[str, Any]]:
    """The table's path, and what can be compared."""
    path, original = str(folder / ("theirs" if by_delta else "ours")), str(folder / "original")
    if not Path(original).exists():
        write_table(
            spark,
            original,
            ROWS,
            SCHEMA,
            ddl=SCHEMA,
            partition_by=["p"],
            properties=dict(case.properties),
            setup=case.setup,
        )
    shutil.copytree(original, path)
    frame(spark, case.source, SCHEMA).createOrReplaceTempView("s")
    text = f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k {case.clauses}"
    if by_delta:
        spark.sql(text)
    else:
        assert deltaweave.merge(spark, text).strategy == "copy-in-place"
    version = newest_version(path)
    metrics = commit_info(path, version)["operationMetrics"]
    outcome: dict[str, Any] = {
        "rows": rows_as_text(Table(spark, path).read().collect()),
        "counts": {name: metrics[name] for name in COUNTS},
    }
    if "delta.enableChangeDataFeed" in case.properties:
        outcome["feed"] = change_feed(spark, path, version)
    if "delta.enableRowTracking" in case.properties:
        rows = Table(spark, path).read()
        tracked = rows.select("k", "_metadata.row_id", "_metadata.row_commit_version").collect()
        outcome["old ids"] = sorted(tuple(row) for row in tracked if row.k != 30)
    return path, outcome


@pytest.mark.minutes
@pytest.mark.parametrize("name", CASES)
def test_rows_move_as_by_built_in_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, apart = CASES[name], list[Any]()
    rewrite = copy_in_place.rewrite_without_changed_rows
    monkeypatch.setattr(
        copy_in_place, "rewrite_without_changed_rows", lambda *a: apart.append(a) or rewrite(*a)
    )
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        _, ours = merged(spark, tmp_path, case, by_delta=False)
    _, theirs = merged(spark, tmp_path, case, by_delta=True)

    assert ours == theirs
    assert len(apart) == 1


@pytest.mark.minutes
def test_rows_that_stay_keep_their_order_and_their_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        path, _ = merged(spark, tmp_path, Moving(), by_delta=False)

    assert sorted(rows_in_files(path, tmp_path).values(), key=repr) == sorted(
        [
            [0, *range(3, 8)],  # of a
            [10, *range(12, 18)],  # of b
            [20, *range(23, 28)],  # of the null partition
            [1, 30],  # what changed or came, by partition
            [2],
            [11],
            [21, 22],
        ],
        key=repr,
    )


@pytest.mark.minutes
def test_what_stays_of_a_file_that_is_left_to_spark_is_copied_by_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three files is by a Spark whose calendar Arrow does not know."""
    rewritten = copy_in_place.rewrite_without_changed_rows
    left: list[int] = []

    def spy(*arguments: Any) -> Any:
        done = rewritten(*arguments)
        left.append(len(done.left))
        return done

    monkeypatch.setattr(copy_in_place, "rewrite_without_changed_rows", spy)
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        path = str(tmp_path / "table")
        write_table(spark, path, ROWS, SCHEMA, ddl=SCHEMA, partition_by=["p"])
        [of_b] = Path(path, "p=b").glob("*.parquet")
        rewritten_footer_of(str(of_b), {SPARK_VERSION: b"2.4.8"})
        frame(spark, SOURCE, SCHEMA).createOrReplaceTempView("s")
        text = f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k {UPSERT}"
        assert deltaweave.merge(spark, text).strategy == "copy-on-write"

    new = {row[0]: row for row in SOURCE}
    expected = [new.pop(row[0], row) for row in ROWS] + list(new.values())
    assert left == [1]
    assert rows_as_text(Table(spark, path).read().collect()) == rows_as_text(expected)


@pytest.mark.minutes
def test_a_row_that_breaks_its_new_partitions_constraint_fails_the_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    case = Moving(
        setup=("ALTER TABLE {target} ADD CONSTRAINT of_p CHECK (p IS NULL OR p <> 'e')",),
        source=[(1, 5, "e")],
    )
    with (
        configured(spark, {REWRITE_IN_PLACE: "true"}),
        pytest.raises(errors.DeltaweaveError, match="of_p"),
    ):
        merged(spark, tmp_path, case, by_delta=False)

    path = tmp_path / "ours"
    assert rows_as_text(Table(spark, str(path)).read().collect()) == rows_as_text(ROWS)
    assert len(list(path.rglob("*.parquet"))) == 3  # what was written is deleted


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("rival", "is_redone"),
    [
        ("UPDATE {t} SET v = 7 WHERE k = 24", False),  # of a file in which nothing matches
        # Rows of ours are in other files now, and their new rows in files with those of others.
        ("OPTIMIZE {t} WHERE p = 'a'", True),
        ("UPDATE {t} SET p = 'b' WHERE k = 1", True),  # another merge moves ours
    ],
)
def test_a_merge_that_moves_rows_is_right_after_another_commit(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overtaken: Callable[..., None],
    rival: str,
    is_redone: bool,
) -> None:
    path = str(tmp_path / "table")
    write_table(spark, path, ROWS[1:], SCHEMA, ddl=SCHEMA, partition_by=["p"])
    Table(spark, path).write(frame(spark, ROWS[:1], SCHEMA), "append")  # a second file of a
    frame(spark, SOURCE[:3], SCHEMA).createOrReplaceTempView("s")
    runs: list[Any] = []
    write = run.write_changes
    monkeypatch.setattr(run, "write_changes", lambda *a: runs.append(a) or write(*a))
    overtaken(lambda: spark.sql(rival.format(t=f"delta.`{path}`")))
    with configured(spark, {REWRITE_IN_PLACE: "true"}):
        result = deltaweave.merge(
            spark, f"MERGE INTO delta.`{path}` t USING s ON t.k = s.k {UPSERT}"
        )

    new = {row[0]: row for row in SOURCE[:3]}
    if "k = 24" in rival:
        new[24] = (24, 7, None)
    expected = [new.get(row[0], row) for row in ROWS]
    assert result.strategy == "copy-in-place"
    assert rows_as_text(Table(spark, path).read().collect()) == rows_as_text(expected)
    assert (len(runs), result.commit_attempts) == (2 if is_redone else 1, 2)
