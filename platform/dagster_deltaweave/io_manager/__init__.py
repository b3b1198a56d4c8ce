"""The IO manager: it stores outputs in Delta tables and loads tables as inputs.

- `delta_io_manager`: `SparkDeltaIOManager`, which Dagster calls, `DeltaTableResource`, and the
  outputs of ops that are not assets.
- `loading`: loads the inputs of assets, with the columns and the version that they ask for.
- `frames`: converts between Spark, pandas, Polars, Arrow, and further types, which users add.
- `step_attempts`: which errors start the step again; it waits before its inputs are loaded.
- `output`: what is to be stored and how, as the run's tags change it; what is recorded after the
  commit.
- `stores`: stores an output as its declaration says: merges, applies, writes or rebuilds.
- `change_events`: appends to the changeset of a merge-on-read table: a batch or a stream.
- `target_table`: the table before a write: its location, its columns, the version to start at.
- `transaction_ids`: what a commit records so that nothing is applied twice.
- `earlier_runs`: the runs of older partitions that a merge must come after, as Dagster knows them.
- `merge_order`: merges of partitions in order: a run waits for those runs, and takes the lease;
  older partitions are refused.
- `rows_by_key`: one row for each key, or an error.
"""

from __future__ import annotations

from dagster_deltaweave.io_manager.change_events import STREAM_TAG, StreamRun, observe_pending
from dagster_deltaweave.io_manager.delta_io_manager import DeltaTableResource, SparkDeltaIOManager
from dagster_deltaweave.io_manager.frames import TypeHandler
from dagster_deltaweave.io_manager.output import Recording
from dagster_deltaweave.io_manager.step_attempts import (
    error_shown_first,
    retry_run_if_transient,
    shows_errors_first,
    wait_of_step,
)

__all__ = [
    "STREAM_TAG",
    "DeltaTableResource",
    "Recording",
    "SparkDeltaIOManager",
    "StreamRun",
    "TypeHandler",
    "error_shown_first",
    "observe_pending",
    "retry_run_if_transient",
    "shows_errors_first",
    "wait_of_step",
]
