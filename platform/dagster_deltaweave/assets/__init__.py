"""Decorators that declare Delta tables as Dagster assets.

- `merge`: `@merge_asset`: the function returns changes, and a MERGE brings them into the table.
- `change_events`: the function returns change events; `@cdc_asset`: the table holds the newest
  state; `@merge_on_read_asset`: events are appended now and merged later; the job of its stream.
- `table_asset`: what the three decorators share.
"""

from __future__ import annotations

from dagster_deltaweave.assets.change_events import (
    build_stream_job,
    cdc_asset,
    merge_on_read_asset,
)
from dagster_deltaweave.assets.merge import merge_asset
from dagster_deltaweave.assets.table_asset import ASSET_KINDS, DagsterArguments
from dagster_deltaweave.tables import MergeOnReadAssets

__all__ = [
    "ASSET_KINDS",
    "DagsterArguments",
    "MergeOnReadAssets",
    "build_stream_job",
    "cdc_asset",
    "merge_asset",
    "merge_on_read_asset",
]
