"""The IO manager: it stores outputs in Delta tables and loads tables as inputs.

- `delta_io_manager`: `SparkDeltaIOManager`, which Dagster calls.
- `op_outputs`: keeps the outputs of ops that are no assets.
- `loading`: loads the inputs of assets, with the columns and the version that they ask for.
- `frames`: converts between Spark, pandas, Polars, Arrow, and further types, which users add.
- `run_options`: what the tags of a run change about how it writes.
- `run_retry`: which errors start the step again.
- `output`: what is to be stored, what was stored, and what is recorded after the commit.
- `stores`: stores an output as its declaration says: merges, applies, writes or rebuilds.
- `change_events`: appends to the changeset of a merge-on-read table: a batch or a stream.
- `target_table`: the table before a write: its location, its columns, the version to start at.
- `transaction_ids`: what a commit records so that nothing is applied twice.
- `merge_order`: merges of partitions in order: the lease, and the refusal of older ones.
- `earlier_runs`: a run waits for the runs of older partitions.
- `rows_by_key`: one row for each key, or an error.
- `step_waits`: it waits before its inputs are loaded.
"""

from __future__ import annotations

from dagster_deltaweave.io_manager.change_events import STREAM_TAG, StreamRun, observe_pending
from dagster_deltaweave.io_manager.delta_io_manager import SparkDeltaIOManager
from dagster_deltaweave.io_manager.frames import TypeHandler
from dagster_deltaweave.io_manager.run_retry import retry_run_if_transient
from dagster_deltaweave.io_manager.step_waits import wait_of_step

__all__ = [
    "STREAM_TAG",
    "SparkDeltaIOManager",
    "StreamRun",
    "TypeHandler",
    "observe_pending",
    "retry_run_if_transient",
    "wait_of_step",
]
