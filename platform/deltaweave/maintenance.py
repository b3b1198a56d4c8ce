"""Maintenance of Delta tables: OPTIMIZE, purging, statistics, the key index and VACUUM, when due.

Each operation runs if the policy says that the table needs it, by the numbers in its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from deltaweave._validation import counted
from deltaweave.changes.side_tables import side_tables
from deltaweave.delta.commit import rewritable_partitions
from deltaweave.delta.jvm import translated
from deltaweave.errors import StatementError
from deltaweave.identifiers import table_name

if TYPE_CHECKING:
    from deltaweave import Table
    from deltaweave.delta.log import FileLayout

Operation: TypeAlias = "Callable[[Table, UpkeepPolicy], Done]"

# The numbers that are recorded for side tables.
_COUNTED = ("files_removed", "files_added", "files_deleted")


@dataclass(frozen=True)
class UpkeepPolicy:
    """When a table needs upkeep, and what must not be deleted.

    Attributes:
        small_file_bytes: Size below which a file is small.
        small_files: Compact when at least this many small files share a partition with another,
        small_file_fraction: and they are at least this fraction of all files.
        unclustered_file_fraction: Cluster a clustered table when at least this fraction of its
            files is not clustered yet.
        deleted_row_fraction: Purge when at least this fraction of the rows is marked deleted.
        time_between_vacuums: Least time between two VACUUMs, each of which lists all files of the
            table. On some object stores Delta does not record VACUUM in the table's history;
            there, each run vacuums.
        least_retention: VACUUM is refused if the table keeps removed files for a shorter time,
            because older versions, running readers and downstream assets still need them. This does
            not apply to side tables, which keep removed files for Delta's default time.
    """

    small_file_bytes: int = 64 * 1024**2
    small_files: int = 8
    small_file_fraction: float = 0.25
    unclustered_file_fraction: float = 0.25
    deleted_row_fraction: float = 0.1
    time_between_vacuums: timedelta = timedelta(days=1)
    least_retention: timedelta = timedelta(days=7)

    def compacting(self, layout: FileLayout, is_clustered: bool) -> str | None:
        """Return why the table needs OPTIMIZE; None if it does not."""
        small = fraction(layout.small_files, layout.files)
        if layout.small_files >= self.small_files and small >= self.small_file_fraction:
            return f"{layout.small_files} of {layout.files} files were small"
        unclustered = fraction(layout.unclustered_files, layout.files)
        if is_clustered and layout.files > 1 and unclustered >= self.unclustered_file_fraction:
            return f"{layout.unclustered_files} of {layout.files} files were not clustered"
        return None

    def purging(self, layout: FileLayout) -> str | None:
        """Return why the table needs a purge of rows marked deleted; None if it does not."""
        deleted = fraction(layout.deleted_rows, layout.rows)
        if layout.deleted_rows and deleted >= self.deleted_row_fraction:
            return f"{layout.deleted_rows} of {layout.rows} rows were marked deleted"
        return None

    def of_side_tables(self) -> UpkeepPolicy:
        """Return the policy for side tables: any retention; nobody reads their older versions."""
        return replace(self, least_retention=timedelta(0))

    def vacuuming(self, last: datetime | None, now: datetime) -> str | None:
        """Return why the table needs VACUUM; None if the last one is recent.

        `last` is when the table was last vacuumed, as far as its history knows.
        """
        if last is None:
            return "the table's history has no VACUUM"
        since = timedelta(seconds=int((now - last).total_seconds()))
        return f"the last was {since} ago" if since >= self.time_between_vacuums else None


def fraction(part: int, whole: int) -> float:
    """Return a part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class Done:
    """The outcome of an operation on a table.

    Attributes:
        description: A sentence on what was done and why, or why nothing was done.
        numbers: Numbers by name, of the table before and of what was done.
    """

    description: str
    numbers: Mapping[str, float]


def with_side_tables(keep: Operation) -> Operation:
    """Wrap an operation so that it also runs on side tables, and sum their numbers.

    VACUUM and the other commands on a table do not touch its side tables.
    """

    @wraps(keep)
    def kept(table: Table, policy: UpkeepPolicy) -> Done:
        done = keep(table, policy)
        total: Counter[str] = Counter()
        for beside in side_tables(table):
            for name, value in keep(beside, policy.of_side_tables()).numbers.items():
                if name in _COUNTED:
                    total[f"side_tables/{name}"] += int(value)
        return Done(done.description, {**done.numbers, **total})

    return kept


@with_side_tables
def optimize(table: Table, policy: UpkeepPolicy) -> Done:
    """Compact small files, by the table's clustering if it has one."""
    layout = table.layout(policy.small_file_bytes)
    reason = policy.compacting(layout, table.is_clustered())
    return _rewrite_where(reason, table, layout, "OPTIMIZE {}")


@with_side_tables
def purge(table: Table, policy: UpkeepPolicy) -> Done:
    """Rewrite the files in which rows are marked deleted."""
    layout = table.layout(policy.small_file_bytes)
    return _rewrite_where(policy.purging(layout), table, layout, "REORG TABLE {} APPLY (PURGE)")


@with_side_tables
def floating_bounds(table: Table, policy: UpkeepPolicy) -> Done:  # noqa: ARG001 - an `Operation`
    """Rewrite the files of earlier releases by whose footers readers may miss rows with NaN."""
    rewritten = table.rewrite_floating_bounds()
    if rewritten is None:
        return Done(
            "Not known whether files have bounds of floating values: executors lack pyarrow, or "
            "Arrow does not see the table's store",
            {"files_removed": 0},
        )
    return Done(
        f"Rewrote {counted(rewritten, 'file')} with bounds by which readers may miss rows with NaN"
        if rewritten
        else "No file with bounds of floating values",
        {"files_removed": rewritten},
    )


def statistics(table: Table, policy: UpkeepPolicy) -> Done:  # noqa: ARG001 - an `Operation`
    """Compute the statistics of files that have none."""
    computed = table.compute_missing_statistics()
    return Done(
        f"Computed the statistics of {counted(computed, 'file')} without any"
        if computed
        else "No file without statistics",
        {"files_without_statistics": computed},
    )


def index_keys(table: Table, policy: UpkeepPolicy) -> Done:  # noqa: ARG001 - an `Operation`
    """Index the keys of files that the key index lacks, if the table has one."""
    column = table.indexed_column()
    if column is None:
        return Done("No key index is asked for", {})
    indexed = table.index_keys()
    described = (
        f"Indexed {column} in {counted(indexed, 'file')}"
        if indexed
        else f"{column} is indexed in all files"
    )
    return Done(described, {"files_indexed": indexed})


@with_side_tables
def vacuum(table: Table, policy: UpkeepPolicy) -> Done:
    """Delete files that no kept version needs."""
    kept = table.retention()
    if kept < policy.least_retention:
        raise StatementError(
            f"the table keeps removed files for {kept}, less than the {policy.least_retention} "
            "that its upkeep asks for.",
            table=table.path_or_name,
            operation="VACUUM",
            state="No file was deleted.",
            hint="Set its property delta.deletedFileRetentionDuration, or lower least_retention.",
        )
    retention = {"retention_hours": kept.total_seconds() / 3600}
    last = _last_vacuum(table).ended
    reason = policy.vacuuming(last, datetime.now().astimezone())
    if reason is None:
        return Done("Vacuumed lately", retention)
    # Without a RETAIN clause, Delta uses the table's own retention.
    with translated(table.path_or_name, operation="VACUUM", commits=True):
        table.spark.sql(f"VACUUM {table_name(table.path_or_name)}").collect()
    ended, deleted = _last_vacuum(table)
    recorded = {} if ended == last else {"files_deleted": deleted}
    what = f"VACUUM deleted {counted(deleted, 'file')}" if recorded else "VACUUM ran"
    return Done(f"{what}: {reason}", {**retention, **recorded})


OPERATIONS: Mapping[str, Operation] = {
    "optimize": optimize,
    "purge": purge,
    "floating_bounds": floating_bounds,
    "statistics": statistics,
    "index_keys": index_keys,
    "vacuum": vacuum,
}
"""The operations by name, in their default order."""


def _rewrite_where(reason: str | None, table: Table, layout: FileLayout, command: str) -> Done:
    """Run a command that rewrites files, if there is a reason; record the files before it."""
    operation = "PURGE" if "PURGE" in command else "OPTIMIZE"
    before = {
        "files": layout.files,
        "bytes": layout.size_in_bytes,
        "small_files": layout.small_files,
        "unclustered_files": layout.unclustered_files,
        "deleted_rows": layout.deleted_rows,
        "deleted_row_fraction": fraction(layout.deleted_rows, layout.rows),
    }
    if reason is None:
        return Done(f"Nothing to {operation.lower()}", before)
    with translated(table.path_or_name, operation=operation, commits=True):
        where = rewritable_partitions(table.snapshot())
        [row] = table.spark.sql(command.format(table_name(table.path_or_name) + where)).collect()
    metrics, vectors = row.metrics, row.metrics.deletionVectorStats
    rewritten = {
        "files_removed": metrics.numFilesRemoved,
        "files_added": metrics.numFilesAdded,
        "bytes_removed": metrics.filesRemoved.totalSize,
        "bytes_added": metrics.filesAdded.totalSize,
        "rows_purged": vectors.numDeletionVectorRowsRemoved if vectors else 0,
    }
    verb = "PURGE rewrote" if operation == "PURGE" else "OPTIMIZE compacted"
    into = f"{counted(metrics.numFilesRemoved, 'file')} into {metrics.numFilesAdded:,}"
    return Done(f"{verb} {into}: {reason}", {**before, **rewritten})


class _Vacuum(NamedTuple):
    """When a VACUUM ended, None if none did, and how many files it deleted."""

    ended: datetime | None
    num_deleted: int


def _last_vacuum(table: Table) -> _Vacuum:
    """Return the table's last VACUUM by its history."""
    history = table.spark.sql(f"DESCRIBE HISTORY {table_name(table.path_or_name)}")
    ended = (
        history.where("operation = 'VACUUM END'")
        .orderBy("version", ascending=False)
        .select("timestamp", "operationMetrics.numDeletedFiles")
        .first()
    )
    if ended is None:
        return _Vacuum(None, 0)
    # Spark returns local time without its zone.
    return _Vacuum(ended.timestamp.astimezone(), int(ended.numDeletedFiles or 0))
