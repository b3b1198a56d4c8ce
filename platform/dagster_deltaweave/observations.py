"""What Dagster shows of a merge: Dagster's own table metadata, and flat `merge/…` numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from deltaweave import ChangedRows, MergeResult, Table, TouchedRows, WriteResult

MERGE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "merge/source_rows": "numSourceRows",
        "merge/rows_inserted": "numTargetRowsInserted",
        "merge/rows_updated": "numTargetRowsUpdated",
        "merge/rows_deleted": "numTargetRowsDeleted",
        "merge/rows_copied": "numTargetRowsCopied",
        "merge/files_before_skipping": "numTargetFilesBeforeSkipping",
        "merge/files_after_skipping": "numTargetFilesAfterSkipping",
        "merge/files_removed": "numTargetFilesRemoved",
        "merge/files_added": "numTargetFilesAdded",
        "merge/bytes_before_skipping": "numTargetBytesBeforeSkipping",
        "merge/bytes_after_skipping": "numTargetBytesAfterSkipping",
        "merge/bytes_removed": "numTargetBytesRemoved",
        "merge/bytes_added": "numTargetBytesAdded",
    }
)
"""Metadata key to Delta's name of a count. Flat numbers: the UI plots nothing else."""

MERGE_TIMES: Mapping[str, str] = MappingProxyType(
    {
        "merge/seconds": "executionTimeMs",
        "merge/materialize_source_seconds": "materializeSourceTimeMs",
        "merge/scan_seconds": "scanTimeMs",
        "merge/rewrite_seconds": "rewriteTimeMs",
    }
)
"""Metadata key to Delta's name of a time."""

WRITE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "write/rows": "numOutputRows",
        "write/files_added": "numFiles",
        "write/bytes_added": "numOutputBytes",
        "write/files_removed": "numRemovedFiles",
        "write/bytes_removed": "numRemovedBytes",
    }
)
"""Metadata key to Delta's name of a count of a write without a merge."""

_ALREADY_APPLIED = "already-applied"


def merge_metadata(result: MergeResult) -> dict[str, MetadataValue]:
    """The metrics of a merge, its strategy, and the version it committed if it committed one."""
    metrics = result.metrics
    metadata: dict[str, MetadataValue] = {
        **{key: MetadataValue.int(metrics[name]) for key, name in MERGE_COUNTS.items()},
        **{key: MetadataValue.float(metrics[name] / 1000) for key, name in MERGE_TIMES.items()},
        "merge/strategy": MetadataValue.text(result.strategy),
    }
    if result.version is not None:
        metadata["merge/version"] = MetadataValue.int(result.version)
    return metadata


def write_metadata(
    result: WriteResult, how: str, predicate: str | None
) -> dict[str, MetadataValue]:
    """What a write without a merge committed, and which rows it replaced."""
    metadata: dict[str, MetadataValue] = {"write/mode": MetadataValue.text(how)}
    for key, name in WRITE_COUNTS.items():
        if name in result.metrics:
            metadata[key] = MetadataValue.int(result.metrics[name])
    if result.version is None:
        metadata["write/mode"] = MetadataValue.text(_ALREADY_APPLIED)
    else:
        metadata["write/version"] = MetadataValue.int(result.version)
    if predicate is not None:
        metadata["write/replaced_where"] = MetadataValue.text(predicate)
    return metadata


def touched_metadata(applied: TouchedRows | ChangedRows) -> dict[str, MetadataValue]:
    """Which versions of the upstream table a merge applied, and by how many files they differ."""
    metadata: dict[str, MetadataValue] = {"touched/until": MetadataValue.int(applied.until)}
    for count in ("added_files", "removed_files"):
        if hasattr(applied, count):
            metadata[f"touched/{count}"] = MetadataValue.int(getattr(applied, count))
    if applied.after is not None:
        metadata["touched/after"] = MetadataValue.int(applied.after)
    return metadata


def table_metadata(table: Table) -> dict[str, object]:
    """Dagster's standard metadata of a table, as it now is."""
    return {
        **TableMetadataSet(
            row_count=table.row_count(),
            column_schema=table_schema(table.read().schema),
            table_name=sql_name(table.path_or_name),
            storage_kind="deltalake",
        ),
        **UriMetadataSet(uri=table.location()),
    }


def partition_metadata(result: MergeResult) -> dict[str, object]:
    """The rows of the partition that was merged; nothing where its merge was skipped."""
    if result.strategy == _ALREADY_APPLIED:
        return {}
    return dict(TableMetadataSet(partition_row_count=result.metrics["numSourceRows"]))


def statement_metadata(statement: str) -> dict[str, MetadataValue]:
    """The MERGE as it ran, for people."""
    return {"merge/statement": MetadataValue.md(f"```sql\n{statement}\n```")}


def table_schema(schema: StructType) -> TableSchema:
    """A Spark schema as Dagster's."""
    return TableSchema(
        columns=[
            TableColumn(
                field.name,
                type=field.dataType.simpleString(),
                description=field.metadata.get("comment"),
                constraints=TableColumnConstraints(nullable=field.nullable),
            )
            for field in schema
        ]
    )


def sql_name(path_or_name: str) -> str:
    """What SQL calls a table given by path or name: a path becomes `` delta.`path` ``."""
    if "/" not in path_or_name or "`" in path_or_name:
        return path_or_name
    return f"delta.`{path_or_name}`"
