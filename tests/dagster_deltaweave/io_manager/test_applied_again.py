"""What counts as applied, by the transaction ids of runs and after a RESTORE; without Spark."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetOut,
    BackfillPolicy,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    InputContext,
    IOManager,
    Output,
    OutputContext,
    StaticPartitionsDefinition,
    asset,
    define_asset_job,
    materialize,
    multi_asset,
)
from dagster._core.execution.api import create_execution_plan
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import (
    ASSET_RESUME_RETRY_TAG,
    BACKFILL_ID_TAG,
    PARENT_BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    ROOT_RUN_ID_TAG,
)
from dagster._core.test_utils import create_run_for_test

from dagster_deltaweave import SparkDeltaIOManager, SparkResource
from dagster_deltaweave.dagster_private import RANGE_TAGS
from dagster_deltaweave.io_manager import delta_io_manager, stores
from dagster_deltaweave.io_manager.merge_order import loads_itself
from dagster_deltaweave.io_manager.target_table import Start, TargetTable, run_created_ms
from dagster_deltaweave.io_manager.transaction_ids import (
    RunIds,
    first_attempt,
    id_in_line,
    ids_of_run,
    is_known,
)
from dagster_deltaweave.logs.delta_log import LogAt
from dagster_deltaweave.partitions import (
    FULL_REFRESH_TAG,
    HELD_TAG,
    IDENTITY_TAG,
    recorded_tag,
    wrote,
)
from dagster_deltaweave.tables import TableLocator
from dagster_deltaweave.tables.declaration import WriteDeclaration
from deltaweave import Table
from deltaweave.changes.restores import lineage
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


class Appending(IOManager):
    """Appends the number of a run once for each first attempt, and fails when it is to."""

    def __init__(self) -> None:
        self.appended: dict[str, int] = {}
        self.number, self.fails = -1, ""

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        step = context.step_context
        if context.asset_key == AssetKey("report"):
            assert self.fails != "report"
            return
        assert self.fails != "before"
        self.appended.setdefault(first_attempt(step.instance, step.dagster_run), self.number)
        assert self.fails != "after"

    def load_input(self, context: InputContext) -> Any: ...


@pytest.mark.parametrize(
    ("runs", "appended"),
    [
        (["", ""], [0, 1]),
        (["before", ""], [1]),
        (["after", ""], [0]),
        (["report", ""], [0]),
        (["report", "report", ""], [0]),
        (["report", "before", ""], [0]),
        (["report", "", ""], [0, 2]),
        (["", "report", ""], [0, 1]),
        (["", "delete 0", ""], [0, 2]),
        (["", "before", "delete 0", ""], [0, 3]),
        (["", "after", "delete 0", ""], [0, 1]),
        (["report", "report", "delete 0", ""], [0]),
        (["before", "report", "delete 0", "report", "delete 1", ""], [1]),
        # What a run did that nobody asked about before it was deleted is unknown.
        (["report", "before", "delete 0", ""], [0, 3]),
    ],
)
def test_a_run_that_repeats_a_failed_one_appends_once(runs: list[str], appended: list[int]) -> None:
    """Each run executes the one before it again; what follows a run that succeeded is new."""
    manager, ids = Appending(), dict[int, str]()

    @asset
    def log() -> int:
        return 1

    @asset(deps=[log])
    def report() -> int:
        return 1

    with DagsterInstance.ephemeral() as instance:
        for number, each in enumerate(runs):
            if each.startswith("delete"):
                instance.delete_run(ids[int(each.split()[1])])
                continue
            manager.number, manager.fails = number, each
            parent = ids[max(ids)] if ids else None
            tags = {PARENT_RUN_ID_TAG: parent, ROOT_RUN_ID_TAG: ids[0]} if parent else {}
            done = materialize(
                [log, report],
                resources={"io_manager": manager},
                instance=instance,
                tags=tags,
                raise_on_error=False,
            )
            ids[number] = done.run_id
            assert done.success == (not each)
    assert list(manager.appended.values()) == appended


@pytest.mark.parametrize(
    ("runs", "appended"),
    [
        ([("one", "a", "after"), ("two", "a", "")], [0]),
        ([("one", "a", "report"), ("two", "a", "")], [0]),
        ([("one", "a", "before"), ("two", "a", "")], [1]),
        ([("one", "a", ""), ("two", "a", "")], [0, 1]),
        ([("one", "a", "report"), ("two", "b", "")], [0, 1]),
        ([("one", "a..b", "report"), ("two", "a..b", "")], [0]),
        ([("one", "a..b", "report"), ("two", "b", "")], [0, 1]),  # else it would be of "a", too
        ([("one", "a", "report"), ("two", "a", "report"), ("three", "a", "")], [0]),
        ([("one", "a", "report"), ("three", "a", "")], [0]),  # the second was cancelled before
        ([("one", "a", "report"), ("two", "a", ""), ("three", "a", "")], [0, 2]),
        ([("one", "a", "report"), ("new", "a", "")], [0, 1]),
    ],
)
def test_a_backfill_that_repeats_a_failed_one_appends_once(
    runs: list[tuple[str, str, str]], appended: list[int]
) -> None:
    """Its runs name the backfill that it executes again, and no run."""
    manager, letters = Appending(), StaticPartitionsDefinition(["a", "b"])
    again = {"two": {PARENT_BACKFILL_ID_TAG: "one"}, "three": {PARENT_BACKFILL_ID_TAG: "two"}}

    @asset(partitions_def=letters, backfill_policy=BackfillPolicy.single_run())
    def log() -> int:
        return 1

    @asset(partitions_def=letters, backfill_policy=BackfillPolicy.single_run(), deps=[log])
    def report() -> int:
        return 1

    with DagsterInstance.ephemeral() as instance:
        for each in ("one", "two", "three", "new"):
            tags, status = again.get(each, {}), BulkActionStatus.COMPLETED_FAILED
            instance.add_backfill(PartitionBackfill(each, status, False, tags, 0.0))
        for number, (backfill, partitions, fails) in enumerate(runs):
            manager.number, manager.fails = number, fails
            first, _, last = partitions.partition("..")
            of_range = dict(zip(RANGE_TAGS, (first, last), strict=True)) if last else {}
            materialize(
                [log, report],
                resources={"io_manager": manager},
                instance=instance,
                partition_key=None if last else first,
                tags={BACKFILL_ID_TAG: backfill, **again.get(backfill, {}), **of_range},
                raise_on_error=False,
            )
    assert list(manager.appended.values()) == appended


@pytest.mark.parametrize(
    ("retries", "is_new"),
    [
        (["b failure"], False),
        (["b success"], True),
        (["b failure", "b success"], True),
        (["b success by hand"], False),  # it says nothing of the other assets
        (["b failure", "b success by hand"], False),
        (["b failure by hand", "b success"], False),
        (["a,b failure", "b success"], True),
    ],
)
def test_a_backfill_that_succeeded_after_retries_is_followed_by_new_runs(
    retries: list[str], is_new: bool
) -> None:
    """Retries of its runs execute the assets that failed, each those of the one before."""
    of_a = {BACKFILL_ID_TAG: "A", PARTITION_NAME_TAG: "p1"}

    def made(instance: DagsterInstance, said: str, tags: dict[str, str]) -> DagsterRun:
        assets, status, *_ = said.split()
        by_hand = "by hand" in said  # its page has the tags of the run before copied
        return create_run_for_test(
            instance,
            step_keys_to_execute=["b"] if by_hand else None,
            asset_selection=frozenset(map(AssetKey, assets.split(","))),
            status=DagsterRunStatus[status.upper()],
            parent_run_id=tags.get(PARENT_RUN_ID_TAG),
            root_run_id=tags.get(ROOT_RUN_ID_TAG),
            tags={**tags, **({ASSET_RESUME_RETRY_TAG: "true"} if assets == "b" else {})},
        )

    with DagsterInstance.ephemeral() as instance:
        root = parent = made(instance, "a,b failure", of_a)
        for each in retries:
            tags = {PARENT_RUN_ID_TAG: parent.run_id, ROOT_RUN_ID_TAG: root.run_id}
            parent = made(instance, each, of_a | tags)
        of_b = {PARENT_BACKFILL_ID_TAG: "A", PARTITION_NAME_TAG: "p1"}
        run = made(instance, "a,b started", {BACKFILL_ID_TAG: "B", **of_b})
        assert (first_attempt(instance, run) == run.run_id) == is_new


def test_a_first_attempt_that_is_given_by_hand_counts() -> None:
    """Dagster copies its tag to what repeats the run, also after a success."""
    with DagsterInstance.ephemeral() as instance:

        def first(given: str, parent: str | None, status: DagsterRunStatus) -> tuple[str, str]:
            tags = {"deltaweave/first_attempt": given}
            ids = {PARENT_RUN_ID_TAG: parent, ROOT_RUN_ID_TAG: parent} if parent else {}
            run = create_run_for_test(
                instance,
                tags=tags | ids,
                status=status,
                parent_run_id=parent,
                root_run_id=parent,
            )
            return first_attempt(instance, run), run.run_id

        failure, success = DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS
        found, run = first("lost", None, failure)
        assert found == "lost"
        found, run = first("lost", run, success)
        assert found == "lost"
        found, new = first("lost", run, failure)
        assert found == new
        found, run = first("lost", new, success)
        assert found == new
        found, run = first("other (run other)", run, failure)
        assert found == "other"
        instance.delete_run(run)
        assert first("lost", run, failure)[0] == "lost"


def test_the_log_names_the_run_whose_append_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    written = SimpleNamespace(version=None, warnings=())
    monkeypatch.setattr(stores, "write_output", lambda *_: written)
    output: Any = SimpleNamespace(
        context=SimpleNamespace(log=SimpleNamespace(info=said.append)),
        target=SimpleNamespace(prepare=lambda _: None, start_of_write=lambda **_: None),
        rows=None,
    )
    ids = RunIds(output.context, cast("Any", None), [], {"deltaweave/run/1a2b/log": 0})
    stores.store_write(WriteDeclaration(mode="append"), output, ids)
    assert said == ["Nothing is written: the table holds deltaweave/run/1a2b/log."]


def test_an_append_that_a_restore_took_back_is_appended_again(table: TableWithIds) -> None:
    """Its run is executed again, because another output of it failed."""
    with DagsterInstance.ephemeral() as instance:
        step = SimpleNamespace(instance=instance, dagster_run=create_run_for_test(instance))
        output = SimpleNamespace(
            context=SimpleNamespace(asset_key=AssetKey("log"), step_context=step),
            declaration=WriteDeclaration(mode="append"),
            table=table,
            partitions=[],
            upstreams=[],
            changes=SimpleNamespace(applied=None),
        )

        def append() -> bool:
            [(name, version)] = ids_of_run(cast("Any", output)).applied.items()
            held = table.snapshot().last_applied(name)
            if held is None:
                commit(table.path, table.snapshot().version + 1, *_txns({name: version}))
            return held is None

        assert (append(), append()) == (True, False)
        table.restore(to=0)
        assert (append(), append()) == (True, False)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["all"], 0),
        (["all", "some"], 0),
        (["all", "some", "some"], 0),
        (["all", "all"], 1),
        (["all", "all", "some"], 1),
        (["gone", "all"], 1),
        (["gone", "all", "some"], 1),
        (["all", "gone", "some"], 0),
        (["gone", "some"], None),
        (["all", "failed assets"], 0),
        (["all", "failed assets", "some"], 0),
        (["all", "some", "failed assets"], 0),
        (["all", "failed assets", "failed assets"], 0),
        (["gone", "failed assets"], None),
        # One asset takes over nothing that the run before read.
        (["log", "failed log"], 1),
        (["log", "failed log", "failed log"], 2),
        (["log", "failed log", "some"], 1),
        (["both", "failed log"], 0),
        (["both", "failed log", "failed log"], 0),
    ],
)
def test_a_run_was_created_when_the_one_whose_steps_it_resumes_was(
    runs: list[str], expected: int | None
) -> None:
    """All steps began after that; if that run was deleted, nothing is known to have been read."""
    with DagsterInstance.ephemeral() as instance:
        made: list[Any] = []
        for each in runs:
            time.sleep(0.002)
            resumes = {ASSET_RESUME_RETRY_TAG: "true"} if each.startswith("failed") else {}
            assets = ["raw", "log"] if each == "both" else ["log"] if "log" in each else []
            made.append(
                create_run_for_test(
                    instance,
                    asset_selection=frozenset(map(AssetKey, assets)) or None,
                    step_keys_to_execute=["log"] if each == "some" else None,
                    parent_run_id=made[-1].run_id if made else None,
                    root_run_id=made[0].run_id if made else None,
                    tags=resumes | ({PARENT_RUN_ID_TAG: made[-1].run_id} if made else {}),
                )
            )
        records = [instance.get_run_record_by_id(each.run_id) for each in made]
        for each, run in zip(runs, made, strict=True):
            if each == "gone":
                instance.delete_run(run.run_id)
        step = SimpleNamespace(instance=instance, dagster_run=made[-1])
        record = None if expected is None else records[expected]
        created = record.create_timestamp.timestamp() if record else 0
        context = cast("Any", SimpleNamespace(step_context=step))
        assert run_created_ms(context) == int(created * 1000)


@pytest.mark.parametrize("steps", [["log"], ["log", "report"]])
def test_a_run_executed_again_from_python_names_its_parent_by_no_tag(steps: list[str]) -> None:
    """One that executes all steps of its parent again reads all inputs again."""

    @asset
    def log() -> int:
        return 1

    @asset(deps=[log])
    def report() -> int:
        return 1

    definitions = Definitions([log, report], jobs=[define_asset_job("both")])
    job = definitions.resolve_job_def("both")
    with DagsterInstance.ephemeral() as instance:
        first = instance.create_run_for_job(job, status=DagsterRunStatus.FAILURE)
        time.sleep(0.002)
        again = instance.create_run_for_job(
            job,
            create_execution_plan(job, step_keys_to_execute=steps),
            parent_run_id=first.run_id,
            root_run_id=first.run_id,
        )
        assert PARENT_RUN_ID_TAG not in again.tags
        assert first_attempt(instance, again) == first.run_id
        read_by = again if len(steps) == 2 else first
        record = instance.get_run_record_by_id(read_by.run_id)
        assert record is not None
        step = SimpleNamespace(instance=instance, dagster_run=again)
        context = cast("Any", SimpleNamespace(step_context=step))
        assert run_created_ms(context) == int(record.create_timestamp.timestamp() * 1000)


def test_an_asset_of_a_step_reads_itself_only_by_a_dependency_of_its_own() -> None:
    """Another output of the step may depend on it, or an input may order steps of a subset."""
    found: dict[str, tuple[Start, bool]] = {}

    class Starts(IOManager):
        def handle_output(self, context: OutputContext, obj: object) -> None:
            target = TargetTable(context, cast("Any", None), cast("Any", None))
            name = context.asset_key.to_user_string()
            found[name] = target.start_of_write(adds_only=True), loads_itself(context)

        def load_input(self, context: InputContext) -> int:
            return 1

    raw, clean = AssetKey("raw"), AssetKey("clean")
    outs = {name: AssetOut(is_required=False) for name in ("raw", "clean")}
    deps = {"raw": set[AssetKey](), "clean": {raw}}

    @multi_asset(outs=outs, internal_asset_deps=deps, can_subset=True)
    def step(context: AssetExecutionContext) -> Iterator[Output[int]]:
        for name in ("raw", "clean"):
            yield Output(1, name)

    assert clean in step.keys
    assert raw in step.dependency_keys
    materialize([step], resources={"io_manager": Starts()})
    assert found == {name: (Start(None, reads_all=False), False) for name in ("raw", "clean")}


HELD = {HELD_TAG: '["orders"]'}
SUCCESS, FAILURE = DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE


def again_after(instance: DagsterInstance, before: Sequence[DagsterRunStatus]) -> dict[str, str]:
    """The tags of a run that executes again the last of these runs, each of the one before it."""
    tags: dict[str, str] = {}
    for status in before:
        run = create_run_for_test(instance, status=status, tags=tags)
        tags = {PARENT_RUN_ID_TAG: run.run_id}
    return tags


@pytest.mark.parametrize(
    ("tags", "has_table", "before", "is_held"),
    [
        (HELD, True, [], True),
        (HELD | {FULL_REFRESH_TAG: "true"}, True, [], False),
        (HELD, False, [], False),  # the table was dropped since
        (HELD, True, [FAILURE], True),
        (HELD, True, [SUCCESS], False),  # a run that succeeded is executed again
        (HELD, True, [SUCCESS, FAILURE], False),  # and once more, after that failed
    ],
)
def test_what_held_a_runs_delivery_is_not_stored_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tags: Mapping[str, str],
    has_table: bool,
    before: Sequence[DagsterRunStatus],
    is_held: bool,
) -> None:
    """The step of the asset runs because another asset lacks the delivery.

    `before`: how the runs ended that this one executes again, the first one first.
    """
    stored, unchanged = list[AssetKey](), list[AssetKey]()
    monkeypatch.setattr(delta_io_manager, "store_nothing", lambda c, _: stored.append(c.asset_key))
    monkeypatch.setattr(
        stores, "record_unchanged", lambda context, _: unchanged.append(context.asset_key)
    )
    monkeypatch.setattr(TableLocator, "table", lambda *_: SimpleNamespace(exists=lambda: has_table))

    @multi_asset(outs={name: AssetOut() for name in ("orders", "rejects")})
    def step() -> tuple[Any, Any]:
        return None, None

    manager = SparkDeltaIOManager(root=str(tmp_path), spark=SparkResource())
    orders, rejects = AssetKey("orders"), AssetKey("rejects")
    with DagsterInstance.ephemeral() as instance:
        more = again_after(instance, before)
        result = materialize(
            [step], resources={"io_manager": manager}, tags={**tags, **more}, instance=instance
        )
        run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert wrote(run, recorded_tag(orders)) == is_held
    assert unchanged == [orders] * is_held
    assert stored == ([rejects] if is_held else [orders, rejects])


@pytest.mark.parametrize(
    ("declared", "tags", "before", "is_held"),
    [
        ({"write": "append"}, {IDENTITY_TAG: "7@9"}, [], True),
        ({"write": "merge", "keys": "id"}, {IDENTITY_TAG: "7@9"}, [], True),
        # Somebody executes again what failed after its commit, perhaps with other code.
        ({"write": "append"}, {IDENTITY_TAG: "7@9"}, [FAILURE], False),
        ({"write": "append"}, {IDENTITY_TAG: "7@9"}, [SUCCESS, FAILURE], False),
        ({"write": "append"}, {}, [], False),  # by hand
        ({}, {IDENTITY_TAG: "7@9"}, [], False),  # nothing declares a table of its own
    ],
)
def test_what_a_tables_record_holds_is_not_stored_for_a_new_request(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    declared: Mapping[str, str],
    tags: Mapping[str, str],
    before: Sequence[DagsterRunStatus],
    is_held: bool,
) -> None:
    stored, unchanged = list[AssetKey](), list[AssetKey]()
    monkeypatch.setattr(delta_io_manager, "store_nothing", lambda c, _: stored.append(c.asset_key))
    monkeypatch.setattr(
        stores, "record_unchanged", lambda context, _: unchanged.append(context.asset_key)
    )
    monkeypatch.setattr(stores, "records_delivery", lambda *_: True)
    monkeypatch.setattr(TableLocator, "table", lambda *_: SimpleNamespace(exists=lambda: True))
    days = StaticPartitionsDefinition(["day-1"])

    @asset(partitions_def=days, metadata={f"deltaweave/{k}": v for k, v in declared.items()})
    def orders() -> Any:
        return None

    manager = SparkDeltaIOManager(root=str(tmp_path), spark=SparkResource())
    with DagsterInstance.ephemeral() as instance:
        all_tags = {**tags, **again_after(instance, before)}
        resources = {"io_manager": manager}
        materialize(
            [orders], resources=resources, tags=all_tags, instance=instance, partition_key="day-1"
        )
    assert unchanged == [orders.key] * is_held
    assert stored == [orders.key] * (not is_held)
