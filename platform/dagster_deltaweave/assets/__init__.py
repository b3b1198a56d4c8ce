"""Decorators that declare Delta tables as Dagster assets.

- `merge`: `@merge_asset`: the function returns changes, and a MERGE brings them into the table.
- `cdc`: `@cdc_asset`: the function returns change events, and the table holds the newest state.
- `merge_on_read`: `@merge_on_read_asset`: events are appended now and merged later.
- `base_and_view`: the base and the view of a merge-on-read table, as assets.
- `table_asset`: what the three decorators share.
- `stream_job`: a job whose run keeps the stream of a merge-on-read table running.
"""

from __future__ import annotations

from dagster_deltaweave.assets.cdc import cdc_asset
from dagster_deltaweave.assets.merge import merge_asset
from dagster_deltaweave.assets.merge_on_read import merge_on_read_asset
from dagster_deltaweave.assets.stream_job import build_stream_job
from dagster_deltaweave.assets.table_asset import KINDS, DagsterArguments
from dagster_deltaweave.tables import MergeOnReadAssets

__all__ = [
    "KINDS",
    "DagsterArguments",
    "MergeOnReadAssets",
    "build_stream_job",
    "cdc_asset",
    "merge_asset",
    "merge_on_read_asset",
]
