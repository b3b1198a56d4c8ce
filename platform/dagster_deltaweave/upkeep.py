"""Upkeep of Delta tables: compact or cluster, purge deleted rows, delete unreferenced files."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    AssetObservation,
    AssetsDefinition,
    DagsterInvalidDefinitionError,
    DefaultScheduleStatus,
    DependencyDefinition,
    GraphDefinition,
    In,
    JobDefinition,
    MetadataValue,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    RetryRequested,
    ScheduleDefinition,
    in_process_executor,
    op,
)

from dagster_deltaweave.declaration import table_declaration
from dagster_deltaweave.io_manager import SparkDeltaIOManager
from dagster_deltaweave.observations import sql_name
from dagster_deltaweave.run_mark import marked
from deltaweave.delta.failures import translated
from deltaweave.errors import DeltaweaveError, StatementError, Transient

if TYPE_CHECKING:
    from deltaweave import Table
    from deltaweave.delta.snapshot import FileLayout

_RETRIES, _SECONDS_BEFORE_RETRY = 3, 5


@dataclass(frozen=True)
class UpkeepPolicy:
    """When a table needs upkeep, and what must not be deleted.

    Attributes:
        small_file_bytes: Size below which a file is small.
        small_files: Compact from this many small files on that share a partition with another,
        small_file_fraction: and from this fraction of all files on.
        unclustered_file_fraction: Cluster a clustered table from this fraction of files on that
            no clustering has arranged.
        deleted_row_fraction: Purge from this fraction of rows on that are marked deleted.
        least_retention: VACUUM is refused where the table keeps removed files for a shorter time:
            older versions, readers under way and downstream assets still need them.
    """

    small_file_bytes: int = 64 * 1024**2
    small_files: int = 8
    small_file_fraction: float = 0.25
    unclustered_file_fraction: float = 0.25
    deleted_row_fraction: float = 0.1
    least_retention: timedelta = timedelta(days=7)

    def compacting(self, layout: "FileLayout", is_clustered: bool) -> str | None:
        """Why the table is to be optimized, or None where it is not."""
        fraction = _fraction(layout.small_files, layout.files)
        if layout.small_files >= self.small_files and fraction >= self.small_file_fraction:
            return f"{layout.small_files} of {layout.files} files are small"
        unclustered = _fraction(layout.unclustered_files, layout.files)
        if is_clustered and layout.files > 1 and unclustered >= self.unclustered_file_fraction:
            return f"{layout.unclustered_files} of {layout.files} files are not clustered"
        return None

    def purging(self, layout: "FileLayout") -> str | None:
        """Why rows marked deleted are to be purged, or None where they are not."""
        fraction = _fraction(layout.deleted_rows, layout.rows)
        if layout.deleted_rows and fraction >= self.deleted_row_fraction:
            return f"{layout.deleted_rows} of {layout.rows} rows are marked deleted"
        return None


def build_upkeep_schedule(
    *,
    name: str,
    tables: Sequence[AssetsDefinition],
    cron_schedule: str,
    operations: Sequence[str] = ("optimize", "purge", "vacuum"),
    policy: UpkeepPolicy | None = None,
    execution_timezone: str = "UTC",
    io_manager_key: str = "io_manager",
    default_status: DefaultScheduleStatus = DefaultScheduleStatus.STOPPED,
) -> ScheduleDefinition:
    """A schedule of `build_upkeep_job`; its job is `<name>_job`.

    Args:
        name: Name of the schedule.
        tables: As of `build_upkeep_job`.
        cron_schedule: When.
        operations: As of `build_upkeep_job`.
        policy: As of `build_upkeep_job`.
        execution_timezone: The time zone of `cron_schedule`.
        io_manager_key: As of `build_upkeep_job`.
        default_status: Whether the schedule starts by itself.
    """
    return ScheduleDefinition(
        name=name,
        job=build_upkeep_job(
            name=f"{name}_job",
            tables=tables,
            operations=operations,
            policy=policy,
            io_manager_key=io_manager_key,
        ),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Upkeep of {', '.join(each.key.to_user_string() for each in tables)}.",
    )


def build_upkeep_job(
    *,
    name: str,
    tables: Sequence[AssetsDefinition],
    operations: Sequence[str] = ("optimize", "purge", "vacuum"),
    policy: UpkeepPolicy | None = None,
    io_manager_key: str = "io_manager",
) -> JobDefinition:
    """A job that keeps the tables of merge assets.

    `optimize` compacts small files (OPTIMIZE), by the table's clustering where it has one; `purge`
    rewrites files with rows marked deleted (REORG … APPLY (PURGE)); `vacuum` deletes the files
    that no kept version needs, never earlier than the table's own retention says. The first two
    run only where the policy says that the table needs it, and say so where it does not.

    Each is one op for each table, after the one before, in the pool of the table's asset: so upkeep
    and merges of one table take turns where Dagster limits the pool. What was done is an
    observation of the asset, with what the table's files looked like before.

    Args:
        name: Name of the job.
        tables: The merge assets whose tables are kept.
        operations: Which of `optimize`, `purge` and `vacuum`, in their order.
        policy: When a table needs them; by default `UpkeepPolicy()`.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables.

    Raises:
        DagsterInvalidDefinitionError: An operation is not known.
    """
    for operation in operations:
        if operation not in _OPERATIONS:
            raise DagsterInvalidDefinitionError(
                f"upkeep job {name}: {operation!r} is none of {', '.join(_OPERATIONS)}."
            )
    ops = [
        [
            _upkeep_op(table, operation, policy or UpkeepPolicy(), io_manager_key)
            for operation in operations
        ]
        for table in tables
    ]
    graph = GraphDefinition(
        name=name,
        description="Compacts or clusters the tables, purges deleted rows, deletes unneeded files.",
        node_defs=[each for of_table in ops for each in of_table],
        dependencies={
            later.name: {"after": DependencyDefinition(earlier.name)}
            for of_table in ops
            for earlier, later in pairwise(of_table)
        },
    )
    # One JVM for all tables.
    return graph.to_job(executor_def=in_process_executor)


def _upkeep_op(
    table: AssetsDefinition, operation: str, policy: UpkeepPolicy, io_manager_key: str
) -> OpDefinition:
    key = table.key
    declaration = table_declaration(table.metadata_by_key[key], asset=key.to_user_string())
    keep = _OPERATIONS[operation]

    @op(
        name=f"{operation}_" + re.sub(r"\W", "_", "__".join(key.path)),
        description=f"{operation.capitalize()} {key.to_user_string()}.",
        ins={"after": In(Nothing)},
        required_resource_keys={io_manager_key},
        pool=table.op.pool,
    )
    def upkeep(context: OpExecutionContext) -> None:
        tables: SparkDeltaIOManager = getattr(context.resources, io_manager_key)
        delta_table = tables.table(key, declaration)
        if not delta_table.exists():
            context.log.info(f"There is no table at {delta_table.path_or_name} yet.")
            return
        try:
            with marked(delta_table.spark, context.run_id):
                keep(context, key, delta_table, policy)
        except DeltaweaveError as error:
            if isinstance(error, Transient):
                raise RetryRequested(_RETRIES, _SECONDS_BEFORE_RETRY) from error
            raise

    return upkeep


def _optimize(
    context: OpExecutionContext, key: AssetKey, table: "Table", policy: UpkeepPolicy
) -> None:
    layout, clustered = table.layout(policy.small_file_bytes), table.is_clustered()
    reason = policy.compacting(layout, clustered)
    if reason is None:
        _observe(context, key, table, "Nothing to optimize", _layout(layout))
        return
    rewritten = _rewrite(table, f"OPTIMIZE {sql_name(table.path_or_name)}")
    _observe(context, key, table, f"OPTIMIZE: {reason}", {**_layout(layout), **rewritten})


def _purge(
    context: OpExecutionContext, key: AssetKey, table: "Table", policy: UpkeepPolicy
) -> None:
    layout = table.layout(policy.small_file_bytes)
    reason = policy.purging(layout)
    if reason is None:
        _observe(context, key, table, "Nothing to purge", _layout(layout))
        return
    rewritten = _rewrite(table, f"REORG TABLE {sql_name(table.path_or_name)} APPLY (PURGE)")
    _observe(context, key, table, f"PURGE: {reason}", {**_layout(layout), **rewritten})


def _vacuum(
    context: OpExecutionContext, key: AssetKey, table: "Table", policy: UpkeepPolicy
) -> None:
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
    # No RETAIN clause: Delta takes the table's own retention, which it guards.
    spark, target = table.spark, sql_name(table.path_or_name)
    with translated(table.path_or_name, operation="VACUUM"):
        spark.sql(f"VACUUM {target}").collect()
    ended = (
        spark.sql(f"DESCRIBE HISTORY {target}")
        .where("operation = 'VACUUM END'")
        .orderBy("version", ascending=False)
        .select("operationMetrics.numDeletedFiles")
        .first()
    )
    # Delta logs no VACUUM where the storage or a setting says so.
    numbers = {"upkeep/retention_hours": kept.total_seconds() / 3600}
    if ended is not None and ended.numDeletedFiles is not None:
        numbers["upkeep/files_deleted"] = int(ended.numDeletedFiles)
    _observe(context, key, table, "VACUUM", numbers)


_OPERATIONS: Mapping[str, Callable[[OpExecutionContext, AssetKey, "Table", UpkeepPolicy], None]] = {
    "optimize": _optimize,
    "purge": _purge,
    "vacuum": _vacuum,
}


def _rewrite(table: "Table", command: str) -> dict[str, float]:
    with translated(table.path_or_name, operation=command.split()[0]):
        [row] = table.spark.sql(command).collect()
    metrics = row.metrics
    vectors = metrics.deletionVectorStats
    return {
        "upkeep/files_removed": metrics.numFilesRemoved,
        "upkeep/files_added": metrics.numFilesAdded,
        "upkeep/bytes_removed": metrics.filesRemoved.totalSize,
        "upkeep/bytes_added": metrics.filesAdded.totalSize,
        "upkeep/rows_purged": vectors.numDeletionVectorRowsRemoved if vectors else 0,
    }


def _layout(layout: "FileLayout") -> dict[str, float]:
    """What the files looked like before, as flat numbers."""
    return {
        "upkeep/files": layout.files,
        "upkeep/bytes": layout.size_in_bytes,
        "upkeep/small_files": layout.small_files,
        "upkeep/unclustered_files": layout.unclustered_files,
        "upkeep/deleted_rows": layout.deleted_rows,
        "upkeep/deleted_row_fraction": _fraction(layout.deleted_rows, layout.rows),
    }


def _fraction(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _observe(
    context: OpExecutionContext,
    key: AssetKey,
    table: "Table",
    description: str,
    numbers: Mapping[str, float],
) -> None:
    context.log.info(f"{table.path_or_name}: {description}.")
    metadata = {
        name: MetadataValue.int(value) if isinstance(value, int) else MetadataValue.float(value)
        for name, value in {**numbers, "upkeep/version": table.version()}.items()
    }
    context.log_event(AssetObservation(asset_key=key, description=description, metadata=metadata))
