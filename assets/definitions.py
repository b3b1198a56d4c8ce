"""All that Dagster loads of this deployment; wiring only."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from assets.checks import returns_by_reason_rows, web_returns_merges, web_returns_rows
from assets.landing import web_returns_landing
from assets.returns_by_reason import returns_by_reason
from assets.schedules import nightly_upkeep
from assets.sensors import commits_of_others, merge_web_returns, web_returns_landed
from assets.web_returns import web_returns
from resources.environments import resources

defs = Definitions(
    assets=[web_returns_landing, web_returns, returns_by_reason],
    asset_checks=[web_returns_rows, web_returns_merges, returns_by_reason_rows],
    jobs=[merge_web_returns],
    schedules=[nightly_upkeep],
    sensors=[web_returns_landed, commits_of_others],
    resources=resources(),
    # One process and so one JVM for all steps of a run, also for runs started in the UI.
    executor=in_process_executor,
)
