"""Assets that builders get: one, or several, whatever names them, and never none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from dagster import (
    AssetChecksDefinition,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    Definitions,
    FilesystemIOManager,
    IOManager,
    IOManagerDefinition,
    asset,
    define_asset_job,
    graph_asset,
    mem_io_manager,
    multi_asset,
    op,
    resource,
    with_resources,
)

from dagster_deltaweave import (
    MergeOnReadAssets,
    SparkDeltaIOManager,
    SparkResource,
    build_commit_observer,
    build_merge_checks,
    build_orphan_changes_check,
    build_pending_changes_check,
    build_rematerialization_schedule,
    build_rematerialization_sensor,
    build_rescued_events_check,
    build_stream_job,
    build_table_checks,
    build_upkeep_job,
    build_upkeep_schedule,
    merge_asset,
    merge_on_read_asset,
)
from deltaweave.errors import StatementError

NIGHTLY = {"cron_schedule": "0 3 * * *"}


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (build_table_checks, {"asset": [], "unique_key": ["id"]}),
        (build_merge_checks, {"asset": [], "source_rows": True}),
        (build_orphan_changes_check, {"asset": [], "changes": print, "keys": ["id"]}),
        (build_rescued_events_check, {"asset": []}),
        (build_commit_observer, {"name": "n", "tables": []}),
        (build_rematerialization_sensor, {"name": "n", "tables": []}),
        (build_rematerialization_schedule, {"name": "n", "tables": [], **NIGHTLY}),
        (build_upkeep_job, {"name": "n", "tables": []}),
        (build_upkeep_schedule, {"name": "n", "tables": [], **NIGHTLY}),
    ],
)
def test_what_would_do_nothing_is_refused_when_definitions_load(
    build: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="list of assets is empty"):
        build(**arguments)


def asset_named_in_each_way() -> dict[str, tuple[Any, list[str]]]:
    """What names assets, and the keys of these."""

    @merge_asset(keys=["id"])
    def one() -> None: ...

    @multi_asset(specs=[AssetSpec("a"), AssetSpec("b").with_io_manager_key("other")], pool="both")
    def several(): ...  # type: ignore[no-untyped-def]

    @op
    def number() -> int:
        return 1

    @graph_asset
    def graph() -> int:
        return number()

    return {
        "a name": ("sales/one", ["sales/one"]),
        "a key": (AssetKey(["sales", "one"]), ["sales/one"]),
        "a definition": (one, ["one"]),
        "a spec": (AssetSpec("one"), ["one"]),
        "an external definition": (AssetsDefinition(specs=[AssetSpec("one")]), ["one"]),
        "a graph asset": (graph, ["graph"]),
        "a multi-asset": (several, ["a", "b"]),
        "a merge-on-read table": (merged_on_read("orders"), ["orders_changes", "orders_base"]),
        "a list": ([one, "two", AssetKey("three")], ["one", "two", "three"]),
        "a tuple": ((one, "two"), ["one", "two"]),
        "lists in a list": (
            [several, merged_on_read("orders")],
            ["a", "b", "orders_changes", "orders_base"],
        ),
    }


def merged_on_read(name: str) -> MergeOnReadAssets:
    @merge_on_read_asset(keys=["id"], sequence_by="version", name=name)
    def changes() -> None: ...

    return changes


@pytest.mark.parametrize("way", asset_named_in_each_way())
def test_builders_take_whatever_names_assets(way: str) -> None:
    assets, names = asset_named_in_each_way()[way]
    job = build_upkeep_job(name="n", tables=assets, operations=["vacuum"])
    assert {each.name for each in job.nodes} == {f"vacuum_{n.replace('/', '__')}" for n in names}
    checks = build_table_checks(assets, unique_key=["id"])
    each = [checks] if isinstance(checks, AssetChecksDefinition) else checks
    assert [next(iter(of_one.check_keys)).asset_key.to_user_string() for of_one in each] == names
    build_commit_observer(name="n", tables=assets)
    if way == "a list":
        once: Any = iter(assets)
        assert len(build_upkeep_schedule(name="s", tables=once, **NIGHTLY).job.nodes) >= len(names)


def test_upkeep_of_a_multi_asset_has_its_pool_and_the_io_manager_of_each() -> None:
    several, _ = asset_named_in_each_way()["a multi-asset"]
    job = build_upkeep_job(name="n", tables=several, operations=["vacuum"])
    assert {
        each.name: (each.definition.pools, each.definition.required_resource_keys)
        for each in job.nodes
    } == {
        "vacuum_a": ({"both"}, {"io_manager"}),
        "vacuum_b": ({"both"}, {"other"}),
    }


def test_builders_of_merge_on_read_tables_take_one_or_several() -> None:
    one, other = merged_on_read("orders"), merged_on_read("prices")
    for tables, bases in ((one, 1), ([one, other], 2)):
        sensor = build_rematerialization_sensor(name="n", tables=tables)
        schedule = build_rematerialization_schedule(name="n", tables=tables, **NIGHTLY)
        assert [sensor.job.name, schedule.job.name]
        checks = build_pending_changes_check(tables)
        assert len(checks if isinstance(checks, list) else [checks]) == bases
    build_stream_job(name="n", tables=one)
    build_stream_job(name="n", tables=[one])


def test_tables_of_keys_of_any_characters_are_kept_up_each_once() -> None:
    keys = ["a-b", "a_b", "größe", AssetKey(["a", "b"]), "a__b", AssetSpec("a-b"), "2024-01 x"]
    job = build_upkeep_job(name="n", tables=keys, operations=["vacuum"])
    names = {node.name for node in job.nodes}
    assert len(names) == len(keys) - 1  # one is named twice
    assert {"vacuum_gr__e", "vacuum_2024_01_x"} <= names


def test_checks_of_keys_that_give_one_identifier_run_in_ops_of_their_own() -> None:
    usual = {"a": ["a"], "_a": ["_a"], "a__b": ["a", "b"], "a_1__b_2": ["a_1", "b_2"]}
    others = [["a__b"], ["-a"], ["a_", "_b"], ["a", "__b"], ["a", "_", "_b"], ["a_1", "b-2"]]
    specs = [AssetSpec(key) for key in [*usual.values(), *others]]
    checks = [
        *build_table_checks(specs, unique_key=["id"]),
        *build_merge_checks(specs, row_count_change=(0, 1)),
    ]
    manager = SparkDeltaIOManager(root="/lake", spark=SparkResource())
    resources = {"io_manager": manager}
    Definitions.validate_loadable(
        Definitions(assets=specs, asset_checks=checks, resources=resources)
    )
    assert [each.op.name for each in checks[: len(usual)]] == [
        f"{name}__unique_key" for name in usual
    ]


ONE = merge_asset(keys=["id"], name="one")(lambda: None)


def test_an_io_manager_without_tables_is_named() -> None:
    job = build_upkeep_job(name="n", tables="orders", operations=["vacuum"])
    with pytest.raises(StatementError, match="io_manager is not a SparkDeltaIOManager but a"):
        job.execute_in_process(resources={"io_manager": FilesystemIOManager()})


CHECKS = build_merge_checks("one", row_count_change=(0, 1))


@pytest.mark.parametrize("wrong", [AssetSelection.assets("one"), None, 3, {"one": 1}, [3], CHECKS])
def test_what_names_no_asset_is_refused_when_definitions_load(wrong: Any) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="it takes definitions, specs or keys"):
        build_upkeep_job(name="n", tables=wrong)


@pytest.mark.parametrize("wrong", [ONE, "one", AssetKey("one"), [ONE], [*merged_on_read("one")]])
@pytest.mark.parametrize(
    "build",
    [
        build_rematerialization_sensor,
        partial(build_rematerialization_schedule, **NIGHTLY),
        build_stream_job,
        lambda name, tables: build_pending_changes_check(tables),
    ],
)
def test_what_is_no_merge_on_read_table_is_refused(build: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="what @merge_on_read_asset returns"):
        build(name="n", tables=wrong)


def test_a_stream_job_of_several_tables_is_refused() -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="give each table a job"):
        build_stream_job(name="n", tables=[merged_on_read("one"), merged_on_read("two")])


def test_a_view_of_merge_on_read_is_refused_where_a_table_is_needed() -> None:
    view = merged_on_read("orders").view
    with pytest.raises(StatementError, match="no table of its own"):
        build_table_checks(view, unique_key=["id"])
    with pytest.raises(StatementError, match="no table of its own"):
        build_orphan_changes_check(view, changes=lambda spark, _: spark.range(1), keys=["id"])
    with pytest.raises(StatementError, match="no table of its own"):
        build_upkeep_job(name="n", tables=view)


class Bound(IOManager):
    """An IO manager that is bound to one asset."""

    def handle_output(self, context: Any, obj: object) -> None: ...

    def load_input(self, context: Any) -> None: ...


def asset_with_its_own_io_manager(way: str, manager: Bound) -> AssetsDefinition:
    def made(context: Any) -> Bound:
        assert context.resources.lake == "a lake"
        return manager

    bound = IOManagerDefinition(made, required_resource_keys={"lake"})
    lake = resource(lambda _: "a lake")
    metadata = {"deltaweave/write": "append"}

    if way == "io_manager_def":

        @asset(io_manager_def=bound, resource_defs={"lake": lake}, metadata=metadata)
        def orders() -> int:
            return 1

        return orders

    given = {"io_manager": bound, "lake": lake}
    if way == "resource_defs":

        @asset(resource_defs=given, metadata=metadata)
        def orders() -> int:
            return 1

        return orders

    @asset(metadata=metadata)
    def orders() -> int:
        return 1

    [definition] = with_resources([orders], given)
    assert isinstance(definition, AssetsDefinition)
    return definition


@pytest.mark.parametrize("others", [{}, {"io_manager": mem_io_manager}])
@pytest.mark.parametrize("way", ["io_manager_def", "resource_defs", "with_resources"])
def test_checks_and_upkeep_take_the_io_manager_that_is_bound_to_the_asset(
    monkeypatch: pytest.MonkeyPatch, way: str, others: dict[str, Any]
) -> None:
    manager, seen = Bound(), list[Any]()

    def locate(resources: object, key: str) -> None:
        seen.append(getattr(resources, key))
        raise StatementError("it has no table.")

    monkeypatch.setattr("dagster_deltaweave.tables.named_asset.run_locator", locate)
    orders = asset_with_its_own_io_manager(way, manager)
    defined = Definitions(
        assets=[orders],
        asset_checks=[
            build_table_checks(orders, unique_key=["id"]),
            build_orphan_changes_check(orders, changes=lambda *_: None, keys=["id"]),
        ],
        jobs=[
            define_asset_job("checks", AssetSelection.checks_for_assets(orders)),
            build_upkeep_job(name="upkeep", tables=orders, operations=["vacuum"]),
        ],
        resources=others,
    )
    with DagsterInstance.ephemeral() as instance:
        for name, steps in (("checks", 2), ("upkeep", 1)):
            seen.clear()
            job = defined.resolve_job_def(name)
            assert not job.execute_in_process(instance=instance, raise_on_error=False).success
            assert seen == [manager] * steps


def test_a_job_of_tables_with_two_io_managers_of_one_key_is_refused() -> None:
    one = asset_with_its_own_io_manager("resource_defs", Bound())
    other = asset_with_its_own_io_manager("with_resources", Bound()).with_attributes(
        asset_key_replacements={AssetKey("orders"): AssetKey("others")}
    )
    for tables in ([one, other], [one, "third"]):  # the third's may need another `lake`
        with pytest.raises(DagsterInvalidDefinitionError, match="give each of them a job"):
            build_upkeep_job(name="upkeep", tables=tables)
    build_upkeep_job(name="upkeep", tables=[one])


def test_a_job_takes_the_bound_io_manager_and_that_of_the_definitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[Any]()

    def locate(resources: object, key: str) -> None:
        seen.append(getattr(resources, key))
        raise StatementError("it has no table.")

    monkeypatch.setattr("dagster_deltaweave.tables.named_asset.run_locator", locate)
    needing, alone, other = Bound(), Bound(), Bound()
    orders = asset_with_its_own_io_manager("resource_defs", needing)
    given: Any = {"io_manager": IOManagerDefinition.hardcoded_io_manager(alone)}

    @asset(resource_defs=given)
    def parts() -> int:
        return 1

    @asset
    def items() -> int:
        return 1

    jobs = [
        build_upkeep_job(name=f"upkeep{n}", tables=each, operations=["vacuum"])
        for n, each in enumerate(([parts, items], [parts, "items"], [items]))
    ]
    defined = Definitions([parts, items], jobs=jobs, resources={"io_manager": other})
    with DagsterInstance.ephemeral() as instance:
        for job in jobs:
            found = defined.resolve_job_def(job.name)
            assert not found.execute_in_process(instance=instance, raise_on_error=False).success
    assert sorted(map(id, seen)) == sorted(map(id, [alone, other] * 2 + [other]))

    # A resource that only one of two bound IO managers needs.
    stores = asset(
        name="stores", io_manager_key="other", resource_defs={"other": given["io_manager"]}
    )
    build_upkeep_job(name="both", tables=[orders, stores(lambda: 1)])


def test_an_io_manager_of_changes_alone_is_refused() -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match="io_manager_key"):

        @merge_on_read_asset(
            keys=["id"], sequence_by="version", resource_defs={"io_manager": mem_io_manager}
        )
        def orders() -> None: ...
