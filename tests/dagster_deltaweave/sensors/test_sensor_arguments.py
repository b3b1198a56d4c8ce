"""Arguments with which a sensor would do nothing, or the wrong thing, and say nothing."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import AssetSelection, DagsterInvalidDefinitionError, DynamicPartitionsDefinition

from dagster_deltaweave import (
    build_commit_observer,
    build_partition_sensor,
    build_rematerialization_sensor,
    build_table_sensor,
)

ORDERS = AssetSelection.assets("orders")
LANDED = {
    "target": ORDERS,
    "directory": "/landing",
    "partitions_def": DynamicPartitionsDefinition(name="days"),
}


@pytest.mark.parametrize(
    ("build", "arguments", "problem"),
    [
        (build_partition_sensor, {**LANDED, "max_requests_per_tick": 0}, "must be at least 1"),
        (build_partition_sensor, {**LANDED, "attempts": 0}, "must be at least 1"),
        (build_partition_sensor, {**LANDED, "max_lateness_seconds": -1}, "must be at least 0"),
        (build_partition_sensor, {**LANDED, "retry_after_seconds": float("nan")}, "is nan"),
        # Each directory has the name of itself, also while it is being copied.
        (build_partition_sensor, {**LANDED, "marker": ""}, "marker is empty"),
        (
            build_table_sensor,
            {"target": ORDERS, "table": "/lake/orders", "max_requests_per_tick": 0},
            "must be at least 1",
        ),
        (build_commit_observer, {"tables": ["orders"], "max_commits_per_tick": 0}, "at least 1"),
        (build_rematerialization_sensor, {"tables": [1], "retry_after_seconds": -1}, "at least 0"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_when_definitions_load(
    build: Any, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DagsterInvalidDefinitionError, match=f"sensor s: .*{problem}"):
        build(name="s", **arguments)
