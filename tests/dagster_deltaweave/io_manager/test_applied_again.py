"""What counts as applied, by transaction ids that a RESTORE leaves as they are; without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from dagster_deltaweave.io_manager.transaction_ids import id_in_line, is_known
from dagster_deltaweave.logs.delta_log import LogAt
from deltaweave import Table
from deltaweave.changes import lineage
from deltaweave.delta.commit import TransactionId
from tests.support.made_logs import CREATED, MadeTable, checkpoint, commit, restore

A, B = "orders#a", "orders#b"


class TableWithIds(MadeTable):
    """A table whose commits hold the transaction ids of what they apply."""

    def apply(self, name: str, applied: int = 0) -> bool:
        """Apply as a run does; return whether it was not applied before."""
        table, snapshot = cast("Table", self), self.snapshot()
        name, applied = id_in_line(table, TransactionId(name, applied))
        held = snapshot.last_applied(name)
        if held is not None and held >= applied:
            return False
        commit(self.path, snapshot.version + 1, *_txns({name: applied}))
        return True

    def overtaken_by_restore(self, to: int, pairs: Mapping[str, int]) -> None:
        """Commit what a run applies that read the version before a RESTORE."""
        read = self.snapshot().version
        self.restore(to)
        commit(self.path, read + 2, *_txns(pairs), read=read)

    def restore(self, to: int) -> None:
        restore(self.path, self.snapshot().version + 1, to)


def _txns(pairs: Mapping[str, int]) -> list[dict[str, object]]:
    return [{"txn": {"appId": name, "version": version}} for name, version in pairs.items()]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableWithIds:
    monkeypatch.setattr(lineage, "LogOf", lambda snapshot: LogAt(snapshot.data_path))
    commit(tmp_path, 0, CREATED)
    return TableWithIds(tmp_path)


def test_what_a_restore_took_back_is_applied_again_once(table: TableWithIds) -> None:
    assert (table.apply(A), table.apply(B), table.apply(B)) == (True, True, False)
    for number in (1, 2):
        table.restore(to=1)
        assert (
            id_in_line(cast("Table", table), TransactionId(B, 0))[0]
            == f"deltaweave/again/{number}/{B}"
        )
        assert (table.apply(A), table.apply(B), table.apply(B)) == (False, True, False)
    table.restore(to=0)
    assert (table.apply(A), table.apply(A)) == (True, False)
    commit(table.path, table.snapshot().version + 1, operation="CREATE OR REPLACE TABLE")
    assert (table.apply(A), table.apply(A)) == (True, False)


def test_deliveries_before_the_newest_that_a_restore_left_are_over(table: TableWithIds) -> None:
    assert (table.apply(A, 100), table.apply(A, 200), table.apply(A, 150)) == (True, True, False)
    table.restore(to=1)
    assert (table.apply(A, 50), table.apply(A, 100)) == (False, False)
    assert (table.apply(A, 150), table.apply(A, 120)) == (True, False)
    assert (table.apply(A, 200), table.apply(A, 180), table.apply(A, 200)) == (True, False, False)
    assert (table.apply(A, 300), table.apply(A, 250), table.apply(A, 200)) == (True, False, False)


@pytest.mark.parametrize("applied", [0, 100])
def test_what_came_after_a_restore_counts_whatever_its_run_had_read(
    table: TableWithIds, applied: int
) -> None:
    """Its rows are in the table, also if the RESTORE undid what its run had read."""
    assert (table.apply(A, applied), table.apply(B)) == (True, True)
    table.overtaken_by_restore(0, {"orders#c": applied})
    assert table.apply("orders#c", applied) is False
    assert (table.apply(A, applied), table.apply(B)) == (True, True)


def test_a_mark_counts_where_the_log_lacks_what_a_restore_undid(table: TableWithIds) -> None:
    assert (table.apply(A), table.apply(B)) == (True, True)
    assert is_known(cast("Table", table), {A: 0})
    assert not is_known(cast("Table", table), {A: 0, B: 1})
    table.restore(to=0)
    assert not is_known(cast("Table", table), {A: 0})
    checkpoint(table.path, 2, {A: 0, B: 0})
    for version in range(3):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()
    assert not is_known(cast("Table", table), {A: 0})
    assert table.apply(A) is False
