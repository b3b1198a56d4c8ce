"""The three decorators take the same names for the same things, and pass Dagster's own on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from dagster import (
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    RetryPolicy,
    StaticPartitionsDefinition,
)

from dagster_deltaweave import cdc_asset, merge_asset, merge_on_read_asset

Declare = Callable[..., AssetsDefinition]


def changes() -> tuple[Any, Any]:
    """Two outputs, as Dagster wants them of an asset with a check; it is never called."""
    raise NotImplementedError


def merged(**arguments: Any) -> AssetsDefinition:
    return merge_asset(keys=["id"], **arguments)(changes)


def kept_current(**arguments: Any) -> AssetsDefinition:
    return cdc_asset(keys=["id"], sequence_by="lsn", **arguments)(changes)


def appended(**arguments: Any) -> AssetsDefinition:
    return merge_on_read_asset(keys=["id"], sequence_by="lsn", **arguments)(changes).changes


each_decorator = pytest.mark.parametrize("declare", [merged, kept_current, appended])


@each_decorator
def test_dagsters_own_arguments_are_passed_on(declare: Declare) -> None:
    parts = StaticPartitionsDefinition(["a", "b"])
    upstream = AssetKey(["landing"])
    key = declare().key
    retry = RetryPolicy(max_retries=2)
    condition = AutomationCondition.eager()
    definition = declare(
        retry_policy=retry,
        op_tags={"team": "sales"},
        check_specs=[AssetCheckSpec("is_full", asset=key)],
        code_version="7",
        backfill_policy=BackfillPolicy.multi_run(1),
        partitions_def=parts,
        automation_condition=condition,
        group_name="sales",
        owners=["team:sales"],
        tags={"tier": "gold"},
        deps=[upstream],
        pool="one_pool",
        metadata={"note": "kept"},
        required_resource_keys={"spark"},
    )

    spec = definition.get_asset_spec(key)
    assert definition.op.retry_policy == retry
    assert definition.op.tags["team"] == "sales"
    assert [check.name for check in definition.check_specs] == ["is_full"]
    assert spec.code_version == "7"
    assert definition.backfill_policy == BackfillPolicy.multi_run(1)
    assert definition.partitions_def == parts
    assert spec.automation_condition == condition
    assert (spec.group_name, list(spec.owners)) == ("sales", ["team:sales"])
    assert spec.tags["tier"] == "gold"
    assert [dep.asset_key for dep in spec.deps] == [upstream]
    assert definition.op.pool == "one_pool"
    assert spec.metadata["note"] == "kept"
    assert "spark" in definition.required_resource_keys


@each_decorator
def test_an_argument_that_dagster_does_not_know_is_an_error(declare: Declare) -> None:
    with pytest.raises(Exception, match="no_such_argument"):
        declare(no_such_argument=1)


def test_shared_arguments_of_the_decorators_have_the_same_defaults() -> None:
    shared = {
        "table": None,
        "retries": 3,
        "name": None,
        "key_prefix": None,
        "metadata": None,
        "pool": None,
    }
    decorators = (merge_asset, cdc_asset, merge_on_read_asset)
    for decorator in decorators:
        parameters = inspect.signature(decorator).parameters
        assert {name: parameters[name].default for name in shared} == shared
        assert {"keys", "except_column_list", "kinds", "arguments"} <= set(parameters)
        assert parameters["arguments"].annotation == "Unpack[DagsterArguments]"


def test_the_base_of_a_merge_on_read_table_keeps_a_pool_of_its_own() -> None:
    declare = partial(merge_on_read_asset, keys=["id"], sequence_by="lsn")
    tables = declare(name="orders", pool="one_pool", io_manager_key="lake")(changes)

    assert tables.changes.op.pool == "one_pool"
    assert tables.base.op.pool == "merge/orders_base"
    assert tables.view.op.pool is None
    for each in tables:
        assert each.op.output_defs[0].io_manager_key == "lake"
