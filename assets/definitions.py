"""All that Dagster loads of this deployment; wiring only."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from assets.landing import web_returns_landing
from assets.returns_by_reason import returns_by_reason
from assets.schedules import nightly_upkeep
from assets.sensors import merge_web_returns, web_returns_landed
from assets.web_returns import web_returns
from resources.environments import resources

defs = Definitions(
    assets=[web_returns_landing, web_returns, returns_by_reason],
    jobs=[merge_web_returns],
    schedules=[nightly_upkeep],
    sensors=[web_returns_landed],
    resources=resources(),
    # One process and so one JVM for all steps of a run, also for runs started in the UI.
    executor=in_process_executor,
)
