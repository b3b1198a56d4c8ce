"""The metadata that Dagster shows for a merge: its own table metadata, and `merge/…` numbers.

Dagster shows entries in their order and draws a plot of each number. So what matters comes first,
the numbers that people follow are flat, and all others are rows of one table (`merge/metrics`). A
number that can differ between merges of a table is recorded by each, also if it is zero.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from dagster_deltaweave.dagster_private import TableMetadataSet, UriMetadataSet
from dagster_deltaweave.metadata.merge_summary import summary
from dagster_deltaweave.tables import column_schema
from deltaweave.identifiers import table_name

if TYPE_CHECKING:
    from deltaweave import ChangedRows, MergePlan, MergeResult, Table, TouchedRows, WriteResult

MERGE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "merge/rows_updated": "numTargetRowsUpdated",
        "merge/rows_inserted": "numTargetRowsInserted",
        "merge/rows_deleted": "numTargetRowsDeleted",
        "merge/rows_copied": "numTargetRowsCopied",
        "merge/by_source_rows_updated": "numTargetRowsNotMatchedBySourceUpdated",
        "merge/by_source_rows_deleted": "numTargetRowsNotMatchedBySourceDeleted",
        "merge/source_rows": "numSourceRows",
        "merge/files_before_skipping": "numTargetFilesBeforeSkipping",
        "merge/files_after_skipping": "numTargetFilesAfterSkipping",
        "merge/files_removed": "numTargetFilesRemoved",
        "merge/files_added": "numTargetFilesAdded",
        "merge/deletion_vectors_added": "numTargetDeletionVectorsAdded",
        "merge/deletion_vectors_updated": "numTargetDeletionVectorsUpdated",
        "merge/deletion_vectors_removed": "numTargetDeletionVectorsRemoved",
        "merge/bytes_before_skipping": "numTargetBytesBeforeSkipping",
        "merge/bytes_after_skipping": "numTargetBytesAfterSkipping",
        "merge/bytes_removed": "numTargetBytesRemoved",
        "merge/bytes_added": "numTargetBytesAdded",
        "merge/change_files_added": "numTargetChangeFilesAdded",
        "merge/change_bytes_added": "numTargetChangeFileBytes",
    }
)
"""Metadata key to Delta's name of a count."""

PHASE_TIMES: Mapping[str, str] = MappingProxyType(
    {
        "merge/materialize_source_seconds": "materializeSourceTimeMs",
        "merge/scan_seconds": "scanTimeMs",
        "merge/rewrite_seconds": "rewriteTimeMs",
    }
)
"""Metadata key to Delta's name of a phase's time; Delta has no name for `merge/commit_seconds`."""

_FIRST = (
    "merge/summary",
    "merge/rows_updated",
    "merge/rows_inserted",
    "merge/rows_deleted",
    "merge/files_skipped",
    "merge/files_removed",
    "merge/seconds",
    "merge/write_amplification",
    "dagster/row_count",
)
"""The entries that are shown first."""

METRICS = "merge/metrics"
"""Metadata key of the table of numbers that have no plot."""

_OF_BY_SOURCE = ("merge/by_source_rows_updated", "merge/by_source_rows_deleted")
_PLOTTED = frozenset({*_FIRST, "merge/source_rows", "merge/rows_copied", *_OF_BY_SOURCE})
_OF_CHANGE_FEED = ("merge/change_files_added", "merge/change_bytes_added")
_OF_VECTORS = (
    "merge/deletion_vectors_added",
    "merge/deletion_vectors_updated",
    "merge/deletion_vectors_removed",
)
_BY_SOURCE = re.compile(r"\bNOT\s+MATCHED\s+BY\s+SOURCE\b", re.IGNORECASE)

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

TABLE_VERSION = "table/version"
"""Metadata key of the version that `dagster/row_count` and `dagster/column_schema` describe."""

TABLE_ID = "table/id"
"""Metadata key of Delta's id of the table: a table recreated in the same place has another."""

_ALREADY_APPLIED = "already-applied"


def in_order(of_run: Mapping[str, object], of_table: Mapping[str, object]) -> dict[str, object]:
    """Put a run's metadata before that of its table, and what matters most before both.

    What both have is as the run recorded it.
    """
    every = {**of_run, **of_table, **of_run}
    first = {key: every[key] for key in _FIRST if key in every}
    return {**first, **every}


def always_zero(table: Table, statement: str | None) -> set[str]:
    """Return the counts that are zero in each merge of this table with this statement.

    Args:
        table: The target.
        statement: The MERGE text; None for change events, which are applied by other clauses than
            WHEN NOT MATCHED BY SOURCE.
    """
    snapshot = table.snapshot()
    zero: set[str] = set()
    if statement is None or not _BY_SOURCE.search(statement):
        zero.update(_OF_BY_SOURCE)
    for keys, setting in (
        (_OF_CHANGE_FEED, "delta.enableChangeDataFeed"),
        (_OF_VECTORS, "delta.enableDeletionVectors"),
    ):
        if (snapshot.setting(setting) or "false").lower() != "true":
            zero.update(keys)
    return zero


def merge_metadata(result: MergeResult, unused: Collection[str] = ()) -> dict[str, MetadataValue]:
    """Return what a merge did: flat numbers, a few texts, and a table of all other numbers.

    In addition to `MERGE_COUNTS` and `PHASE_TIMES` (most are in the table `merge/metrics`):

    - `merge/summary`: what it did, in a line for people.
    - `merge/seconds`: the time of the whole merge with its commit.
    - `merge/files_skipped`: files that the merge did not read, by their statistics and the source's
      keys.
    - `merge/files_touched`, `merge/bytes_touched`, in the table: files in which a row changed,
      rewritten or marked; missing if Delta's own MERGE ran, which does not report them.
    - `merge/write_amplification`: rows written for each changed row, to two digits. It is 1 if only
      changed rows were written, less if rows were deleted by marking them, and more if rows were
      copied; missing if no row changed.
    - `merge/source_rows_unaffected`: source rows for which no row was changed
      (`MergeResult.num_source_rows_unaffected`), if that is known.
    - `merge/version`: the version that it committed, if any.

    Only of merges that did not go straight, since they are few and the summary says so:

    - `merge/attempts`: how often the merge ran; more than once if executors died.
    - `merge/commit_attempts`, `merge/files_redone`: how often it tried to commit (more than once if
      other commits won), and the touched files that were therefore written again.

    Args:
        result: What the merge reports.
        unused: Counts that are left out if they are zero, since they are so in each merge
            (`always_zero`).
    """
    metrics = result.metrics
    counts = {key: metrics[name] for key, name in MERGE_COUNTS.items()}
    skipped = counts["merge/files_before_skipping"] - counts["merge/files_after_skipping"]
    numbers: dict[str, float] = {
        **{key: count for key, count in counts.items() if count or key not in unused},
        **{key: metrics[name] / 1000 for key, name in PHASE_TIMES.items()},
        "merge/commit_seconds": result.commit_time_ms / 1000,
    }
    if result.strategy != "builtin":
        numbers["merge/files_touched"] = len(result.touched_files.removed)
        numbers["merge/bytes_touched"] = result.touched_files.removed_bytes
    seconds = (metrics["executionTimeMs"] + result.commit_time_ms) / 1000
    metadata: dict[str, MetadataValue] = {
        "merge/summary": MetadataValue.text(summary(result)),
        **{
            key: MetadataValue.int(int(number))
            for key, number in numbers.items()
            if key in _PLOTTED
        },
        "merge/files_skipped": MetadataValue.int(skipped),
        "merge/seconds": MetadataValue.float(seconds),
        "merge/strategy": MetadataValue.text(result.strategy),
        METRICS: _metrics_table(numbers),
        **_repetitions(result),
    }
    amplification = _write_amplification(result)
    if amplification is not None:
        metadata["merge/write_amplification"] = MetadataValue.float(round(amplification, 2))
    if result.num_source_rows_unaffected is not None:
        metadata["merge/source_rows_unaffected"] = MetadataValue.int(
            result.num_source_rows_unaffected
        )
    if result.version is not None:
        metadata["merge/version"] = MetadataValue.int(result.version)
    return metadata


def _metrics_table(numbers: Mapping[str, float]) -> MetadataValue:
    schema = TableSchema(columns=[TableColumn("metric", "string"), TableColumn("value", "number")])
    rest = {key: number for key, number in numbers.items() if key not in _PLOTTED}
    records = [TableRecord({"metric": key, "value": number}) for key, number in rest.items()]
    return MetadataValue.table(records, schema=schema)


def _repetitions(result: MergeResult) -> dict[str, MetadataValue]:
    counts = {}
    if result.attempts > 1:
        counts["merge/attempts"] = result.attempts
    if result.commit_attempts > 1:
        counts["merge/commit_attempts"] = result.commit_attempts
        counts["merge/files_redone"] = result.files_redone
    return {key: MetadataValue.int(count) for key, count in counts.items()}


def _write_amplification(result: MergeResult) -> float | None:
    metrics = result.metrics
    written = metrics.num_target_rows_inserted + metrics.num_target_rows_updated
    changed = written + metrics.num_target_rows_deleted
    return (written + metrics.num_target_rows_copied) / changed if changed else None


def write_metadata(
    result: WriteResult, how: str, predicate: str | None
) -> dict[str, MetadataValue]:
    """Describe as metadata what a write without a merge committed, and which rows it replaced."""
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
    """Return which versions of the upstream a merge applied, and by how many files they differ."""
    metadata: dict[str, MetadataValue] = {"touched/until": MetadataValue.int(applied.until)}
    for count in ("added_files", "removed_files"):
        if hasattr(applied, count):
            metadata[f"touched/{count}"] = MetadataValue.int(getattr(applied, count))
    if applied.after is not None:
        metadata["touched/after"] = MetadataValue.int(applied.after)
    return metadata


def table_metadata(table: Table, version: int | None = None) -> dict[str, object]:
    """Return Dagster's standard metadata of a table's version, `table/version` and `table/id`.

    The row count comes from the log. It is left out if the statistics of some file do not say how
    many rows it has.

    Args:
        table: The table.
        version: The version to describe, by default the newest.

    Raises:
        DeltaweaveError: The version no longer exists.
    """
    snapshot = table.snapshot(version)
    return {
        **TableMetadataSet(
            row_count=snapshot.num_records(),
            column_schema=column_schema(snapshot.schema),
            table_name=table_name(table.path_or_name),
            storage_kind="deltalake",
        ),
        **UriMetadataSet(uri=table.location()),
        TABLE_VERSION: MetadataValue.int(snapshot.version),
        TABLE_ID: MetadataValue.text(snapshot.id),
    }


def warnings_metadata(warnings: Collection[str]) -> dict[str, MetadataValue]:
    """Return the warnings about what was committed as metadata, a line each; empty without any."""
    return {"deltaweave/warnings": MetadataValue.text("\n".join(warnings))} if warnings else {}


def plan_metadata(plan: MergePlan) -> dict[str, MetadataValue]:
    """Return the plan that was made before the merge ran, as metadata."""
    return {"merge/plan": MetadataValue.md(f"```\n{plan}\n```")}
