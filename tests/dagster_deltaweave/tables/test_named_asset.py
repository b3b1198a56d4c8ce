"""Assets that builders get: one, or several, and never none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import AssetKey, DagsterInvalidDefinitionError

from dagster_deltaweave import (
    build_commit_observer,
    build_merge_checks,
    build_orphan_changes_check,
    build_rematerialization_schedule,
    build_rematerialization_sensor,
    build_rescued_events_check,
    build_table_checks,
    build_upkeep_job,
    build_upkeep_schedule,
)

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


@pytest.mark.parametrize("asset", ["orders", AssetKey("orders")])
def test_upkeep_takes_one_asset_alone(asset: Any) -> None:
    job = build_upkeep_job(name="n", tables=asset, operations=["vacuum"])
    assert [node.name for node in job.nodes] == ["vacuum_orders"]
