"""The IO manager: it stores outputs in Delta tables and loads tables as inputs.

- `delta_io_manager`: `SparkDeltaIOManager`, which Dagster calls.
- `loading`: loads the inputs of assets.
- `input_options`: the columns and the version that an input asks for.
- `run_options`: what the tags of a run change about how it writes.
- `run_retry`: which errors start the step again.
- `stored_output`: stores an output as its declaration says.
- `table_write`: merges, applies, writes or rebuilds one table.
- `changeset_append`: appends to the changeset of a merge-on-read table.
- `stream_run`: runs a stream until it has drained its source, or for a time.
- `schema_policy`: creates tables and adds the columns that they lack.
- `start_version`: the version of the table at which a write starts.
- `transaction_ids`: the marks that a run commits so that nothing is applied twice.
- `partition_records`: what a commit records of its partitions.
- `merge_order`: merges of partitions in order: the lease, and the refusal of older ones.
- `earlier_runs`: a run waits for the runs of older partitions.
- `after_commit`: records a run after its commit; a failure there is a warning.
- `frames`: converts between Spark, pandas, Polars and Arrow.
- `type_handlers`: further types, which users add.
"""

from __future__ import annotations

from dagster_deltaweave.io_manager.changeset_append import observe_pending
from dagster_deltaweave.io_manager.delta_io_manager import SparkDeltaIOManager
from dagster_deltaweave.io_manager.run_retry import retry_run_if_transient
from dagster_deltaweave.io_manager.stream_run import STREAM_TAG, StreamRun
from dagster_deltaweave.io_manager.type_handlers import TypeHandler

__all__ = [
    "STREAM_TAG",
    "SparkDeltaIOManager",
    "StreamRun",
    "TypeHandler",
    "observe_pending",
    "retry_run_if_transient",
]
