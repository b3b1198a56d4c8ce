"""Dagster's automation conditions on merge assets: what an upstream's change starts."""

from __future__ import annotations

from dagster import (
    AssetDep,
    AssetKey,
    AssetMaterialization,
    AssetSpec,
    AutomationCondition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    evaluate_automation_conditions,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from dagster_deltaweave import merge_asset

COUNTRIES = StaticPartitionsDefinition(["de", "fr", "us"])
REGIONS = StaticPartitionsDefinition(["europe", "america"])
IN_REGION = StaticPartitionMapping({"de": "europe", "fr": "europe", "us": "america"})
DAYS = DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")


def materialize(instance: DagsterInstance, key: str, *partitions: str) -> None:
    for partition in partitions:
        instance.report_runless_asset_event(AssetMaterialization(key, partition=partition))


def test_what_reads_a_view_runs_for_new_rows_alone_by_the_condition_on_data_versions(
    instance: DagsterInstance,
) -> None:
    new_rows: AutomationCondition[AssetKey] = AutomationCondition.eager().replace(
        AutomationCondition.newly_updated(), AutomationCondition.data_version_changed()
    )

    def reader(name: str, condition: AutomationCondition[AssetKey]):  # type: ignore[no-untyped-def]
        @merge_asset(keys=["id"], name=name, deps=["orders"], automation_condition=condition)
        def of_orders() -> None: ...

        return of_orders

    eager, patient = reader("eager", AutomationCondition.eager()), reader("patient", new_rows)
    defs = Definitions(assets=[AssetSpec("orders"), eager, patient])

    def record_view(batch: int) -> None:
        tags = {DATA_VERSION_TAG: str(batch)}
        instance.report_runless_asset_event(AssetMaterialization("orders", tags=tags))

    record_view(1)
    cursor = evaluate_automation_conditions(defs, instance).cursor
    requested = []
    for batch in (2, 2):  # an append; then the base was rematerialized, the rows are the same
        record_view(batch)
        result = evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = result.cursor
        requested.append([result.get_num_requested(each.key) for each in (eager, patient)])

    assert requested == [[1, 1], [1, 0]]


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
