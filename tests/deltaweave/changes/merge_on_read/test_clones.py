"""Clones of merge-on-read tables: of both sides, at the same or at different times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaweave import MergeOnReadTable
from deltaweave.errors import SourceError
from tests.deltaweave.changes.test_current_rows import current_rows, frame
from tests.deltaweave.changes.test_restores import (
    DELETES,
    INSERTS,
    LATE,
    ON_READ,
    OTHERS,
    Lake,
    on_read,
    rows_of,
)

pytestmark = pytest.mark.minutes

ALL = current_rows([*INSERTS, *DELETES, *OTHERS])


class Clones:
    """A table whose first two batches are merged and purged, and clones of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.lake = Lake(spark, folder, ON_READ)
        self.table = on_read(self.lake)
        self.append(self.table, INSERTS)
        self.table.rematerialize()
        self.inserted = self.table.base.version()
        self.append(self.table, DELETES)
        self.unmerged = self.table.changes.version()
        self.table.rematerialize()
        assert self.table.purge() == 2
        self.append(self.table, OTHERS)

    def append(self, table: MergeOnReadTable, events: Any) -> int | None:
        return table.append(frame(self.lake.spark, events))

    def of(self, name: str, base: int | None, changes: int | None) -> MergeOnReadTable:
        """Clone both sides, each at a version or now."""
        for side, version in (("", base), ("_changes", changes)):
            at = "" if version is None else f" VERSION AS OF {version}"
            self.lake.spark.sql(
                f"CREATE TABLE delta.`{self.lake.folder}/{name}{side}` "
                f"SHALLOW CLONE delta.`{self.lake.folder}/base{side}`{at}"
            )
        return on_read(self.lake, name)


def test_a_cloned_pair_goes_on_where_its_source_was(spark: SparkSession, tmp_path: Path) -> None:
    clones = Clones(spark, tmp_path)
    for table in (
        clones.of("clone", None, None),
        clones.of("earlier", clones.inserted, clones.unmerged),
    ):
        others = [] if table.base.path_or_name.endswith("earlier") else OTHERS
        assert rows_of(table) == current_rows([*INSERTS, *DELETES, *others])
        newest = table.newest_batch()
        done = table.rematerialize("merge")
        assert done is not None
        assert (done.batch, table.pending().batches) == (newest, 0)
        assert clones.append(table, LATE) == newest + 1
        assert rows_of(table) == current_rows([*INSERTS, *DELETES, *others, *LATE])


def test_a_clone_of_an_older_base_without_the_purged_batches_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also once a batch was appended to it. (Delta itself refuses to clone over rows.)"""
    clones = Clones(spark, tmp_path)
    table = clones.of("older", clones.inserted, None)
    for _ in range(2):
        for step in (table.read, table.rematerialize):
            with pytest.raises(SourceError, match="up to 1, and those up to 2 were") as raised:
                step()
            assert "VERSION AS OF" in str(raised.value.hint)
        clones.append(table, LATE)


def test_clones_without_their_source_are_refused_if_they_may_lack_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    clones = Clones(spark, tmp_path)
    table = clones.of("clone", None, None)
    assert rows_of(table) == ALL
    for side in ("base", "base_changes"):
        (tmp_path / side / "_delta_log").rename(tmp_path / f"{side}_log")
    with pytest.raises(SourceError, match="up to 0, and those up to 2 were"):
        table.read()
