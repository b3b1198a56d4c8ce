"""What starts by itself: a run for each partition that lands, a look at what others commit."""

from __future__ import annotations

from dagster import define_asset_job, in_process_executor

from assets.landing import landing_directory, web_returns_landing
from assets.partitions import web_returns_partitions
from assets.returns_by_reason import returns_by_reason
from assets.web_returns import web_returns
from dagster_deltaweave import build_commit_observer, build_partition_sensor

merge_web_returns = define_asset_job(
    "merge_web_returns",
    selection=[web_returns, returns_by_reason],
    description="Merges a landed partition into web_returns, then what it touched into the counts.",
    executor_def=in_process_executor,
)

web_returns_landed = build_partition_sensor(
    name="web_returns_landed",
    target=merge_web_returns,
    directory=landing_directory(),
    partitions_def=web_returns_partitions,
    landing_asset=web_returns_landing.key,
)

commits_of_others = build_commit_observer(
    name="commits_of_others", tables=[web_returns, returns_by_reason]
)
