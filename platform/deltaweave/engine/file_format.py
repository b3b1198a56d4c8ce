"""The format of the Parquet files that the engine writes into a table, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    WritableColumn,
    arrow_schema,
    assumes_new_calendar,
    codec,
    file_mode,
    settings_for_arrow,
)
from deltaweave.delta.log import TableSnapshot
from deltaweave.delta.scan import tracked_columns
from deltaweave.engine.tasks import Disk, NotRewritableError, ObjectStore, Storage, TableFormat


def table_format(transaction: Transaction, columns: Sequence[WritableColumn]) -> TableFormat:
    """Return what new files of the table look like; Spark's settings choose the compression.

    Args:
        columns: The columns in the table's files, as `written_columns` gives them.
    """
    compression, extension = codec(transaction)
    tracked = tracked_columns(transaction)
    return TableFormat(
        arrow_schema(transaction, columns),
        compression,
        extension,
        transaction.statistics_schema,
        transaction.string_prefix_length,
        transaction.merge.spark.version,
        assumes_new_calendar(transaction.merge.spark),
        storage_to_rewrite(transaction),
        transaction.own_files.prefix,
        transaction.own_files.change_feed() if transaction.metadata.keeps_change_feed else None,
        None if tracked is None else (tracked.row_id.name, tracked.commit_version.name),
    )


def storage_to_rewrite(transaction: Transaction) -> Storage:
    """Return the storage in which tasks rewrite the table's files."""
    storage = storage_of(transaction.table)
    if storage is None:
        raise NotRewritableError("Arrow no longer sees the table's store")
    return Disk(file_mode(transaction)) if isinstance(storage, Disk) else storage


def storage_of(table: TableSnapshot) -> Storage | None:
    """Return the storage of a table's files; None if Python does not open it."""
    if table.data_path.startswith("file:"):
        return Disk()
    settings = settings_for_arrow(table)
    return None if isinstance(settings, str) else ObjectStore(settings)
