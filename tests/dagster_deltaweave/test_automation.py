"""Dagster's automation conditions on merge assets: what an upstream's change starts."""

from __future__ import annotations

import pytest
from dagster import (
    AssetDep,
    AssetKey,
    AssetMaterialization,
    AssetSelection,
    AssetSpec,
    AutomationCondition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    evaluate_automation_conditions,
)

from dagster_deltaweave import merge_asset, merge_on_read_asset

COUNTRIES = StaticPartitionsDefinition(["de", "fr", "us"])
REGIONS = StaticPartitionsDefinition(["europe", "america"])
IN_REGION = StaticPartitionMapping({"de": "europe", "fr": "europe", "us": "america"})
DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")


def materialize(instance: DagsterInstance, key: str, *partitions: str) -> None:
    for partition in partitions:
        instance.report_runless_asset_event(AssetMaterialization(key, partition=partition))


def test_a_reader_of_the_view_runs_for_appended_batches_alone(
    instance: DagsterInstance,
) -> None:
    """Its automation condition looks at the changes."""
    eager: AutomationCondition[AssetKey] = AutomationCondition.eager()

    def reader(  # type: ignore[no-untyped-def]
        name: str, condition: AutomationCondition[AssetKey], *deps: str
    ):
        @merge_asset(keys=["id"], name=name, deps=deps, automation_condition=condition)
        def of_orders() -> None: ...

        return of_orders

    of_view = reader("of_view", eager, "orders")
    patient = eager.ignore(AssetSelection.assets("orders"))
    of_changes = reader("of_changes", patient, "orders", "orders_changes")
    view = [AssetSpec("orders"), AssetSpec("orders_changes")]
    defs = Definitions(assets=[*view, of_view, of_changes])

    def record(*keys: str) -> None:
        for key in keys:
            instance.report_runless_asset_event(AssetMaterialization(key))

    record("orders", "orders_changes", "of_view", "of_changes")
    before = evaluate_automation_conditions(defs, instance)
    record("orders_changes", "orders")
    appended = evaluate_automation_conditions(defs, instance, cursor=before.cursor)
    record("of_view", "of_changes")
    done = evaluate_automation_conditions(defs, instance, cursor=appended.cursor)
    record("orders")
    merged = evaluate_automation_conditions(defs, instance, cursor=done.cursor)

    requested = [
        [each.get_num_requested(asset.key) for asset in (of_view, of_changes)]
        for each in (appended, done, merged)
    ]
    assert requested == [[1, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize("partitions", [None, DAYS])
def test_an_eager_base_waits_for_no_missing_partition_of_its_changes(
    instance: DagsterInstance, partitions: DailyPartitionsDefinition | None
) -> None:
    eager: AutomationCondition[AssetKey] = AutomationCondition.eager()
    patient = eager.without(~AutomationCondition.any_deps_missing())
    key = None if partitions is None else "2026-01-01"
    requested = []
    for name, condition in (("eager", eager), ("of_any", patient)):
        assets = merge_on_read_asset(
            name=name,
            keys=["id"],
            sequence_by="version",
            partitions_def=partitions,
            base_automation_condition=condition,
        )(lambda: None)
        defs = Definitions(assets=[*assets])
        first = evaluate_automation_conditions(defs, instance)
        event = AssetMaterialization(assets.changes.key, partition=key)
        instance.report_runless_asset_event(event)
        second = evaluate_automation_conditions(defs, instance, cursor=first.cursor)
        requested.append(second.get_num_requested(assets.base.key))
    assert requested == ([1, 1] if partitions is None else [0, 1])


def test_an_eager_merge_asset_merges_what_its_upstreams_partitions_map_to(
    instance: DagsterInstance,
) -> None:
    @merge_asset(
        keys=["id"],
        partitions_def=REGIONS,
        deps=[AssetDep("sales", partition_mapping=IN_REGION)],
        automation_condition=AutomationCondition.eager(),
    )
    def totals() -> None: ...

    defs = Definitions(assets=[AssetSpec("sales", partitions_def=COUNTRIES), totals])
    materialize(instance, "sales", "de", "us")
    first = evaluate_automation_conditions(defs, instance)
    materialize(instance, "sales", "fr")
    second = evaluate_automation_conditions(defs, instance, cursor=first.cursor)
    third = evaluate_automation_conditions(defs, instance, cursor=second.cursor)
    materialize(instance, "sales", "us")  # delivered again
    fourth = evaluate_automation_conditions(defs, instance, cursor=third.cursor)

    requested = [each.get_requested_partitions(totals.key) for each in (second, third, fourth)]
    assert requested == [{"europe"}, set(), {"america"}]


def test_older_days_are_merged_again_without_the_condition_on_the_newest(
    instance: DagsterInstance,
) -> None:
    newest = AutomationCondition.in_latest_time_window()
    any_day: AutomationCondition[AssetKey] = AutomationCondition.eager().without(newest)

    def daily(name: str, condition: AutomationCondition[AssetKey]):  # type: ignore[no-untyped-def]
        @merge_asset(
            keys=["id"],
            name=name,
            partitions_def=DAYS,
            deps=["sales"],
            automation_condition=condition,
        )
        def daily_sales() -> None: ...

        return daily_sales

    eager, patient = daily("eager", AutomationCondition.eager()), daily("patient", any_day)
    sales = AssetSpec("sales", partitions_def=DAYS)
    defs = Definitions(assets=[sales, eager, patient])
    materialize(instance, "sales", "2026-01-01", "2026-01-03")
    first = evaluate_automation_conditions(defs, instance)
    materialize(instance, "sales", "2026-01-01", "2026-01-03")
    second = evaluate_automation_conditions(defs, instance, cursor=first.cursor)

    assert second.get_requested_partitions(eager.key) == {"2026-01-03"}
    assert second.get_requested_partitions(patient.key) == {"2026-01-01", "2026-01-03"}
