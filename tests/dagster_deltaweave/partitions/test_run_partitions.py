"""What a function asks of its run holds in every shape of asset, and without a run."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetMaterialization,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    DagsterInstance,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    InputContext,
    IOManager,
    OpExecutionContext,
    OutputContext,
    PartitionKeyRange,
    StaticPartitionsDefinition,
    asset,
    build_asset_context,
    build_op_context,
    graph_asset,
    materialize,
    multi_asset,
    op,
)
from dagster._core.test_utils import freeze_time

from dagster_deltaweave import is_full_refresh, merge_asset, partition_keys, partition_tags
from dagster_deltaweave.partitions import (
    covers_all_partitions,
    lists_partitions,
    output_partition_keys,
)
from deltaweave.errors import StatementError

LETTERS = StaticPartitionsDefinition(["a", "b", "c"])
RANGE = {
    "dagster/asset_partition_range_start": "a",
    "dagster/asset_partition_range_end": "b",
}
FULL = {"deltaweave/full_refresh": "true"}
Asked = list[tuple[list[str], bool]]


def of_asset(asked: Asked) -> AssetsDefinition:
    @asset(partitions_def=LETTERS)
    def letters(context: AssetExecutionContext) -> None:
        asked.append((partition_keys(context), is_full_refresh(context)))

    return letters


def of_merge_asset(asked: Asked) -> AssetsDefinition:
    @merge_asset(keys=["id"], partitions_def=LETTERS)
    def letters(context: AssetExecutionContext) -> None:
        asked.append((partition_keys(context), is_full_refresh(context)))

    return letters


def of_multi_asset(asked: Asked) -> AssetsDefinition:
    @multi_asset(
        specs=[AssetSpec("one", skippable=True), AssetSpec("two", skippable=True)],
        partitions_def=LETTERS,
        can_subset=True,
    )
    def letters(context: AssetExecutionContext):  # type: ignore[no-untyped-def]
        asked.append((partition_keys(context), is_full_refresh(context)))
        yield from ()

    return letters


def of_graph_asset(asked: Asked) -> AssetsDefinition:
    @op
    def inside(context: OpExecutionContext) -> None:
        asked.append((partition_keys(context), is_full_refresh(context)))

    @graph_asset(partitions_def=LETTERS)
    def letters():  # type: ignore[no-untyped-def]
        return inside()

    return letters


SHAPES = [of_asset, of_merge_asset, of_multi_asset, of_graph_asset]


@pytest.mark.parametrize("shape", SHAPES)
def test_functions_know_the_partitions_of_their_run(
    shape: Callable[[Asked], AssetsDefinition],
) -> None:
    asked: Asked = []
    letters = shape(asked)

    # Nothing is stored: the default IO manager takes None.
    materialize([letters], partition_key="b")
    materialize([letters], tags={**partition_tags(["c", "a"]), **FULL})
    if shape is not of_graph_asset:  # Dagster runs a range as one by ops of assets alone
        materialize([letters], tags=RANGE)
    with pytest.raises(StatementError, match="the asset has no partition z"):
        materialize([letters], tags=partition_tags(["z"]))

    assert asked[:2] == [(["b"], False), (["c", "a"], True)]
    assert asked[2:] in ([], [(["a", "b"], False)])


def test_functions_are_called_without_a_run_in_unit_tests() -> None:
    asked: Asked = []
    letters: Any = of_merge_asset(asked)

    letters(build_asset_context(partition_key="b"))
    letters(build_asset_context(partition_key_range=PartitionKeyRange("b", "c"), run_tags=FULL))
    letters(build_asset_context(run_tags=partition_tags(["c", "a"])))
    letters(build_asset_context())

    assert asked == [(["b"], False), (["b", "c"], True), (["c", "a"], False), ([], False)]


def test_ops_of_graph_assets_are_called_without_a_run_in_unit_tests() -> None:
    @op
    def read(context: OpExecutionContext) -> tuple[list[str], bool]:
        return partition_keys(context), is_full_refresh(context)

    assert read(build_op_context(partition_key="b")) == (["b"], False)
    assert read(build_op_context(run_tags=partition_tags(["c", "a"]) | FULL)) == (["c", "a"], True)
    assert read(build_op_context()) == ([], False)


def test_an_output_without_partitions_has_none_beside_one_with_some() -> None:
    answers: dict[str, tuple[list[str], bool, bool]] = {}

    class Answers(IOManager):
        def handle_output(self, context: OutputContext, obj: object) -> None:
            keys = output_partition_keys(context)
            given = (keys, lists_partitions(context), covers_all_partitions(context, keys))
            answers[context.asset_key.to_user_string()] = given

        def load_input(self, context: InputContext) -> None: ...

    @multi_asset(outs={key: AssetOut() for key in ("plain", "lettered")}, can_subset=True)
    def both() -> tuple[int, int]:
        return 1, 2

    def with_letters(spec: AssetSpec) -> AssetSpec:
        is_lettered = spec.key.path == ["lettered"]
        return spec.replace_attributes(partitions_def=LETTERS) if is_lettered else spec

    mixed, resources = both.map_asset_specs(with_letters), {"io_manager": Answers()}
    materialize([mixed], resources=resources, partition_key="a")
    assert answers == {"plain": ([], False, True), "lettered": (["a"], False, False)}
    materialize([mixed], resources=resources, tags=partition_tags(["a", "b"]))
    assert answers == {"plain": ([], False, True), "lettered": (["a", "b"], True, False)}


@pytest.mark.parametrize(
    ("opened", "left_out", "expected"),
    [([], 0, True), ([], 1, False), (["opens"], 0, True), (["opens", "is merged"], 0, False)],
)
def test_a_run_of_all_partitions_is_one_also_if_a_window_opens_meanwhile(
    instance: DagsterInstance, opened: list[str], left_out: int, expected: bool
) -> None:
    now = datetime.now(timezone.utc)
    hours = HourlyPartitionsDefinition(f"{now - timedelta(hours=4):%Y-%m-%d-%H:00}")
    first, *_, last = hours.get_partition_keys()[left_out:]
    answers: list[bool] = []

    class Asks(IOManager):
        def handle_output(self, context: OutputContext, obj: Any) -> None:
            keys = context.asset_partition_keys
            with freeze_time(now + timedelta(hours=len(opened))):
                answers.append(covers_all_partitions(context, keys))

        def load_input(self, context: InputContext) -> None: ...

    @asset(partitions_def=hours, backfill_policy=BackfillPolicy.single_run())
    def rebuilt() -> int:
        if "is merged" in opened:
            [merged] = hours.get_partition_keys(now + timedelta(hours=1))[-1:]
            instance.report_runless_asset_event(AssetMaterialization("rebuilt", partition=merged))
        return 1

    named = {"start": first, "end": last}
    tags = {f"dagster/asset_partition_range_{which}": key for which, key in named.items()}
    materialize([rebuilt], resources={"io_manager": Asks()}, instance=instance, tags=tags)
    assert answers == [expected]


@pytest.mark.parametrize("kind", ["list", "range"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("nothing", [([*"abc"], True)]),
        ("add d", [([*"abc"], False)]),  # what the function has not returned is not replaced
        ("delete b", None),
        ("delete c", []),
    ],
)
def test_dynamic_partitions_that_change_during_a_run(
    instance: DagsterInstance, change: str, expected: Any, kind: str
) -> None:
    """One that is deleted fails a run that lists it, or that ends with it."""
    letters = DynamicPartitionsDefinition(name="letters")
    instance.add_dynamic_partitions("letters", [*"abc"])
    answers: list[tuple[list[str], bool]] = []

    class Asks(IOManager):
        def handle_output(self, context: OutputContext, obj: Any) -> None:
            keys = sorted(output_partition_keys(context))
            answers.append((keys, covers_all_partitions(context, keys)))

        def load_input(self, context: InputContext) -> None: ...

    @asset(partitions_def=letters, backfill_policy=BackfillPolicy.single_run())
    def rebuilt() -> int:
        if change == "add d":
            instance.add_dynamic_partitions("letters", ["d"])
        elif change != "nothing":
            instance.delete_dynamic_partition("letters", change[-1])
        return 1

    to_c = {**RANGE, "dagster/asset_partition_range_end": "c"}
    run = materialize(
        [rebuilt],
        resources={"io_manager": Asks()},
        instance=instance,
        tags=partition_tags([*"abc"]) if kind == "list" else to_c,
        raise_on_error=False,
    )
    if expected is None:  # within a range, it is left out
        expected = [] if kind == "list" else [(["a", "c"], True)]
    assert answers == expected
    assert run.success == bool(expected)
