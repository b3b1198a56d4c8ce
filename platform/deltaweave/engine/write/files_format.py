"""The format of the Parquet files that the engine writes into a table."""

from __future__ import annotations

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import arrow_schema, assumes_new_calendar, codec, file_mode
from deltaweave.delta.scan import tracked_columns
from deltaweave.engine.tasks import TableFormat


def table_format(transaction: Transaction) -> TableFormat:
    """What new files of the table look like; Spark's Parquet settings choose the compression."""
    compression, extension = codec(transaction)
    tracked = tracked_columns(transaction)
    return TableFormat(
        arrow_schema(transaction),
        compression,
        extension,
        transaction.statistics_schema,
        transaction.string_prefix_length,
        transaction.merge.spark.version,
        assumes_new_calendar(transaction.merge.spark),
        file_mode(transaction),
        transaction.own_files.prefix,
        transaction.own_files.change_feed() if transaction.metadata.keeps_change_feed else None,
        None if tracked is None else (tracked.row_id.name, tracked.commit_version.name),
    )
