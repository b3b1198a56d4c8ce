"""What the clock starts: the nightly upkeep of the tables."""

from __future__ import annotations

from assets.returns_by_reason import returns_by_reason
from assets.web_returns import web_returns
from dagster_deltaweave import build_upkeep_schedule

nightly_upkeep = build_upkeep_schedule(
    name="nightly_upkeep", tables=[web_returns, returns_by_reason], cron_schedule="0 3 * * *"
)
