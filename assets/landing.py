"""Where source data lands: outside of Dagster's making, but in its lineage."""

from __future__ import annotations

from pathlib import Path

from dagster import AssetSpec

from assets.partitions import web_returns_partitions
from resources.environments import lake

GROUP = "web_returns"

web_returns_landing = AssetSpec(
    "web_returns_landing",
    description=(
        "Web returns as they land: a directory of Parquet files for each partition, complete once "
        "its `_SUCCESS` file is there. `op` says whether a row is to be upserted or deleted."
    ),
    partitions_def=web_returns_partitions,
    group_name=GROUP,
    kinds={"parquet"},
    owners=["team:returns"],
)


def landing_directory() -> Path:
    """Return the directory under which the partitions of web_returns land."""
    return lake() / "landing" / "web_returns"
