"""What Dagster shows of a merge: Dagster's own table metadata, and flat `merge/…` numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from deltaweave import MergeResult, Table, TouchedRows

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


def touched_metadata(applied: TouchedRows) -> dict[str, MetadataValue]:
    """Which versions of the upstream table a merge applied, and by how many files they differ."""
    metadata: dict[str, MetadataValue] = {
        "touched/until": MetadataValue.int(applied.until),
        "touched/added_files": MetadataValue.int(applied.added_files),
        "touched/removed_files": MetadataValue.int(applied.removed_files),
    }
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
