"""A job that keeps the stream of a merge-on-read table running."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import (
    AssetsDefinition,
    AssetSelection,
    DagsterInvalidDefinitionError,
    define_asset_job,
    in_process_executor,
)

from dagster_deltaweave.io_manager import STREAM_TAG, StreamRun
from dagster_deltaweave.tables import MergeOnReadAssets, merge_on_read_tables

if TYPE_CHECKING:
    from dagster_deltaweave.dagster_private import (
        UnresolvedAssetJobDefinition,
    )


def build_stream_job(
    *,
    name: str,
    tables: MergeOnReadAssets | Sequence[MergeOnReadAssets],
    every: str = "10 seconds",
    run_for: timedelta | None = None,
    observe_every: timedelta = timedelta(seconds=30),
) -> UnresolvedAssetJobDefinition:
    """Build a job whose run keeps the stream of a merge-on-read table running.

    Each micro-batch is appended once, and readers see it immediately, while the run continues. The
    base can be rematerialized at any time meanwhile. Observations of the changes record:

    - `stream/batch`: the number of the newest micro-batch in the stream.
    - `stream/rows`: events since the previous observation, in the last 100 micro-batches, which
      Spark remembers.
    - `stream/rows_per_second`: these events divided by the time since the previous observation.
    - `stream/processed_rows_per_second`: the rate at which the newest micro-batch was processed.
    - `stream/freshness_seconds`: 0 if the stream has appended all that it found and waits;
      otherwise the time since it began the micro-batch that it appended last.
    - `changes/…`: what is pending.

    With each observation of newly appended batches, the changes and the view are materialized, with
    the newest batch as their data version, so that what depends on them runs while this run lasts.

    A run that is terminated or killed leaves nothing incomplete: the next run continues from its
    checkpoint.

    Args:
        name: The job's name.
        tables: What `@merge_on_read_asset` returns of one table, whose function returns a
            streaming DataFrame.
        every: How often events are appended.
        run_for: How long the run lasts; by default until it is terminated.
        observe_every: The least time between two observations.
    """
    found = merge_on_read_tables(tables, f"stream job {name}")
    if len(found) > 1:
        raise DagsterInvalidDefinitionError(
            f"stream job {name}: its run keeps one stream running, so give each table a job."
        )
    changes: AssetsDefinition = found[0].changes
    run = StreamRun(
        every, run_for.total_seconds() if run_for else None, observe_every.total_seconds()
    )
    return define_asset_job(
        name,
        selection=AssetSelection.assets(changes),
        tags={STREAM_TAG: json.dumps(asdict(run))},
        executor_def=in_process_executor,
        description=f"Keeps the stream of {changes.key.to_user_string()} running.",
    )
