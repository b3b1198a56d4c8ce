"""What runs record of their partitions, by logs that are made by hand; without Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import (
    AssetKey,
    InputContext,
    IOManager,
    OutputContext,
    asset,
    materialize,
    mem_io_manager,
)

from dagster_deltaweave import Changes
from dagster_deltaweave.io_manager import transaction_ids
from dagster_deltaweave.landing import Landing
from dagster_deltaweave.logs import merged_partitions, order_id, recorded_name, records_id
from dagster_deltaweave.logs.delta_log import LogAt
from dagster_deltaweave.partitions import recorded_tag
from dagster_deltaweave.tables.declaration import MergeDeclaration
from deltaweave import Lease, Table
from deltaweave.changes.restores import lineage
from tests.support.made_logs import CREATED, ID, MadeTable, commit, restore

ORDERS = AssetKey("orders")
RECORDS, ORDER = records_id(ID, ORDERS), order_id(ORDERS)


class RecordedTable(MadeTable):
    """One that can be merged into, as far as application ids go."""

    spark = SimpleNamespace(range=lambda rows: None)
    before_commit: list[Callable[[], None]]
    tags_of_runs: list[dict[str, str]]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.before_commit, self.tags_of_runs = [], []

    def merge(self, source: object, on: str) -> Any:
        return SimpleNamespace(when_matched_delete=lambda: SimpleNamespace(execute=self._execute))

    def _execute(self, lease: Lease) -> None:
        while self.before_commit:
            self.before_commit.pop()()
        snapshot = self.snapshot()
        if lease.application_id is not None:
            held = snapshot.last_applied(lease.application_id, -1)
            lease.check(held, table="orders", version=snapshot.version)
        self.commit(lease.marks)

    def commit(self, ids: Any) -> None:
        actions = [{"txn": {"appId": name, "version": version}} for name, version in ids.items()]
        commit(self.path, self.snapshot().version + 1, *actions)

    def records(self, partition: str, tags: dict[str, str] | None = None) -> dict[str, int]:
        run = SimpleNamespace(tags=tags or {}, parent_run_id=None)
        instance = SimpleNamespace(add_run_tags=lambda _, added: self.tags_of_runs.append(added))
        step = SimpleNamespace(dagster_run=run, instance=instance)
        context = SimpleNamespace(asset_key=ORDERS, step_context=step, run_id="run")
        of_run = cast("OutputContext", context), cast("Table", self), [partition]
        return transaction_ids.RunIds(*of_run).of_partitions()

    def record_applied_before(self, ids: Mapping[str, int]) -> None:
        """Record the partition a, as a run does whose rows were applied before."""
        tags: dict[str, str] = {}
        run = SimpleNamespace(tags=tags, parent_run_id=None)
        instance = SimpleNamespace(add_run_tags=lambda *_: None)
        step = SimpleNamespace(dagster_run=run, instance=instance)
        context = SimpleNamespace(asset_key=ORDERS, step_context=step, run_id="run")
        of_run = cast("OutputContext", context), cast("Table", self), ["a"], ids
        transaction_ids.RunIds(*of_run).record_applied_before()

    def merge_partition(self, partition: str) -> None:
        self.commit(self.records(partition))

    def last_applied(self, name: str) -> int | None:
        found: int | None = self.snapshot().last_applied(name)
        return found

    @property
    def held(self) -> list[str]:
        found = merged_partitions(str(self.path), ORDERS)
        return [] if found is None else sorted(found.records)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedTable:
    monkeypatch.setattr(transaction_ids, "LogOf", lambda snapshot: LogAt(snapshot.data_path))
    commit(tmp_path, 0, CREATED)
    return RecordedTable(tmp_path)


@pytest.fixture
def without_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_ids, "tag_commits_with_run", lambda *_: nullcontext())
    monkeypatch.setattr(transaction_ids, "run_created_ms", lambda _: 7)


@pytest.mark.usefixtures("without_run")
def test_runs_at_once_after_a_restore_take_back_nothing_of_each_other(table: RecordedTable) -> None:
    for partition in "abc":
        table.merge_partition(partition)
    restore(table.path, 4, to=1)
    assert table.held == ["a"]
    b, c = table.records("b"), table.records("c")  # both look before one of them commits
    assert table.held == ["a"]
    table.commit(b)
    table.commit(c)
    assert table.held == ["a", "b", "c"]

    restore(table.path, 8, to=1)
    table.before_commit.append(lambda: table.merge_partition("b"))
    table.merge_partition("c")
    assert table.held == ["a", "b", "c"]


@pytest.mark.usefixtures("without_run")
@pytest.mark.parametrize(
    "when", ["never", "before the record", "while it is committed", "after it"]
)
def test_a_record_of_what_was_applied_before_outlives_no_restore(
    table: RecordedTable, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(lineage, "LogOf", lambda snapshot: LogAt(snapshot.data_path))
    table.commit({"orders#a": 0})  # by a release that recorded nothing

    def back() -> None:
        restore(table.path, table.snapshot().version + 1, to=0)

    if when == "before the record":
        back()
    if when == "while it is committed":
        table.before_commit.append(back)
    table.record_applied_before({"orders#a": 0})
    if when == "after it":
        back()
    assert table.held == (["a"] if when == "never" else [])
    table.merge_partition("b")
    assert table.held == (["a", "b"] if when == "never" else ["b"])


@pytest.mark.usefixtures("without_run")
def test_a_merge_that_a_restore_overtook_is_recorded(table: RecordedTable) -> None:
    """Its rows are in the table, and those whose records it had read are not."""
    table.merge_partition("a")
    b = table.records("b")
    restore(table.path, 2, to=0)
    table.commit(b)
    assert table.held == ["b"]
    table.merge_partition("c")
    assert table.held == ["b", "c"]


@pytest.mark.usefixtures("without_run")
def test_a_delivery_is_recorded_by_its_landing_directory(table: RecordedTable) -> None:
    for directory in ("/one", "/other"):
        landing = json.dumps({"directory": directory, "marker": "_SUCCESS", "identity": "5@7"})
        tags = {"deltaweave/landing": landing, "deltaweave/fingerprint": "5@7"}
        table.commit(table.records("a", tags))
    assert table.tags_of_runs == [{recorded_tag(ORDERS): "(run run)"}] * 2
    found = merged_partitions(str(table.path), ORDERS)
    assert found is not None
    one, other, third = map(Landing, ("/one", "/other", "/third"))
    looked = [found.holds_delivery("a", each, "5@7", 9) for each in (one, other, third)]
    assert looked == [True, True, False]
    restore(table.path, 3, to=1)
    found = merged_partitions(str(table.path), ORDERS)
    assert found is not None
    assert [found.holds_delivery("a", each, "5@7", 9) for each in (one, other)] == [True, False]


LANDED = {"directory": "/landing", "marker": "_SUCCESS", "identity": "5@7"}


def tags_of(suffix: str, directory: str = "/landing") -> dict[str, str]:
    """The landing's tag of a run, as the sensor writes it."""
    landing = {**LANDED, "directory": directory, **({"suffix": suffix} if suffix else {})}
    return {"deltaweave/landing": json.dumps(landing), "deltaweave/fingerprint": "5@7"}


@pytest.mark.usefixtures("without_run")
def test_what_is_put_back_is_new_though_an_earlier_release_merged_it(table: RecordedTable) -> None:
    table.commit(table.records("a", tags_of("")))  # as releases did that left out the suffix
    corrected = {key: value.replace("5@7", "5@8") for key, value in tags_of(".csv").items()}
    table.commit(table.records("a", corrected))
    landing = Landing("/landing", ".csv")

    def looked() -> list[bool]:
        found = merged_partitions(str(table.path), ORDERS)
        assert found is not None
        return [found.holds_delivery("a", landing, each, 9) for each in ("5@7", "5@8")]

    assert looked() == [False, True]
    restore(table.path, 3, to=1)
    assert looked() == [True, False]


@pytest.mark.usefixtures("without_run")
@pytest.mark.parametrize(
    ("recorded", "asked", "is_held"),
    [
        ("-eu.csv", "-eu.csv", True),
        ("-eu.csv", "-us.csv", False),
        (".csv", "-us.csv", False),  # one is the tail of the other
        (".csv", ".csv.gz", False),
        ("-eu.csv", "", False),
        # Earlier releases recorded all suffixes as none, each delivery by its digest.
        ("", "-eu.csv", True),
        ("", "", True),
    ],
)
def test_a_delivery_is_recorded_by_the_suffix_of_its_landing(
    table: RecordedTable, recorded: str, asked: str, is_held: bool
) -> None:
    table.commit(table.records("a", tags_of(recorded)))
    found = merged_partitions(str(table.path), ORDERS)
    assert found is not None
    assert found.holds_delivery("a", Landing("/landing", asked), "5@7", 9) == is_held
    assert not found.holds_delivery("a", Landing("/landing", asked), "5@8", 9)
    step = SimpleNamespace(
        dagster_run=SimpleNamespace(tags=tags_of(asked), parent_run_id=None), instance=None
    )
    context: Any = SimpleNamespace(
        asset_key=ORDERS,
        step_context=step,
        has_asset_partitions=True,
        asset_partition_keys=["a"],
        asset_spec=SimpleNamespace(partitions_def=None),
    )
    assert transaction_ids.records_delivery(context, cast("Table", table)) == is_held
    restore(table.path, table.snapshot().version + 1, to=0)
    assert not transaction_ids.records_delivery(context, cast("Table", table))


EU, US, ANY = (
    recorded_name("orders#a", Landing("/landing", s)) for s in ("-eu.csv", "-us.csv", "")
)


@pytest.mark.parametrize(
    ("applied", "suffix", "time", "is_applied"),
    [
        ({}, "-us.csv", 10, False),
        # The older delivery of another suffix comes last.
        ({EU: 20}, "-us.csv", 10, False),
        ({EU: 20}, ".csv", 10, False),  # one is the tail of the other
        ({EU: 20}, "", 10, False),
        ({EU: 20}, "-eu.csv", 10, True),
        ({EU: 20}, "-eu.csv", 30, False),
        ({EU: 20, US: 10}, "-us.csv", 15, False),
        # An earlier release applied it, by an id without a suffix.
        ({ANY: 20}, "-eu.csv", 20, True),
        ({ANY: 20}, "-us.csv", 10, False),  # of another suffix, or of a directory
        ({ANY: 20}, "-us.csv", 30, False),
        ({ANY: 20, US: 30}, "-us.csv", 40, False),
        ({ANY: 20, US: 10}, "-us.csv", 15, False),
        ({ANY: 20}, "", 10, True),
        ({ANY: 20}, "", 30, False),
    ],
)
def test_an_older_delivery_counts_as_applied_only_for_its_own_suffix(
    table: RecordedTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    applied: Mapping[str, int],
    suffix: str,
    time: int,
    is_applied: bool,
) -> None:
    monkeypatch.setattr(lineage, "LogOf", lambda snapshot: LogAt(snapshot.data_path))
    landing = tmp_path / "landing"
    landing.mkdir()
    names = {
        recorded_name("orders#a", Landing("/landing", each)): recorded_name(
            "orders#a", Landing(str(landing), each)
        )
        for each in ("-eu.csv", "-us.csv", "")
    }
    table.commit({names[name]: version for name, version in applied.items()})
    output: Any = SimpleNamespace(
        context=SimpleNamespace(asset_key=ORDERS),
        table=table,
        declaration=MergeDeclaration(idempotent_by="delivery"),
        changes=Changes(None),
        upstreams=[],
        partitions=["a"],
        tags={**tags_of(suffix, str(landing)), "deltaweave/delivery": str(time)},
    )
    ids = transaction_ids.ids_of_run(output)
    assert ids.are_in_table() == is_applied
    table.commit(ids.applied)
    assert transaction_ids.ids_of_run(output).are_in_table()


@pytest.mark.usefixtures("without_run")
def test_what_a_restore_took_back_is_recorded_once_also_in_the_order(table: RecordedTable) -> None:
    for day in "12":
        table.commit({**table.records(day), f"{ORDER}#{day}": int(day), ORDER: int(day)})
    restore(table.path, 3, to=1)
    assert table.records("3") == {f"{RECORDS}#3": 7_000_000, RECORDS: 4}
    recorded = LogAt(str(table.path)).commit(4)
    assert recorded is not None
    assert recorded.applied == {f"{RECORDS}#2": -1, f"{ORDER}#2": -1, RECORDS: 3}
    assert table.records("3") == {f"{RECORDS}#3": 7_000_000, RECORDS: 4}


def test_a_record_is_older_than_what_any_step_of_the_run_read(
    table: RecordedTable,
) -> None:
    read_at, recorded = list[int](), dict[str, int]()

    class Recorder(IOManager):
        def handle_output(self, context: OutputContext, obj: object) -> None:
            of_run = context, cast("Table", table), ["a"]
            recorded.update(transaction_ids.RunIds(*of_run).of_partitions())

        def load_input(self, context: InputContext) -> None:
            return None

    @asset(io_manager_key="memory")
    def landed() -> None:
        read_at.append(time.time_ns())

    @asset(deps=[landed])
    def orders() -> int:
        return 1

    materialize([landed, orders], resources={"memory": mem_io_manager, "io_manager": Recorder()})
    assert 0 < recorded[f"{RECORDS}#a"] < read_at[0]
