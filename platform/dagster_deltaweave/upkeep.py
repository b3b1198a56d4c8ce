"""Upkeep of Delta tables on a schedule: compact small files, delete unreferenced ones."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Sequence

from dagster import (
    AssetObservation,
    AssetsDefinition,
    DefaultScheduleStatus,
    GraphDefinition,
    MetadataValue,
    OpDefinition,
    OpExecutionContext,
    ScheduleDefinition,
    in_process_executor,
    op,
)
from pyspark.sql import SparkSession

from dagster_deltaweave.declaration import declaration_in
from dagster_deltaweave.io_manager import SparkDeltaIOManager
from dagster_deltaweave.observations import sql_name


def build_upkeep_schedule(
    *,
    name: str,
    tables: Sequence[AssetsDefinition],
    cron_schedule: str,
    execution_timezone: str = "UTC",
    io_manager_key: str = "io_manager",
    default_status: DefaultScheduleStatus = DefaultScheduleStatus.STOPPED,
) -> ScheduleDefinition:
    """A schedule whose job runs OPTIMIZE and VACUUM on the tables of merge assets.

    Each table is one op, in the pool of its asset, so that upkeep and merges of one table take
    turns where Dagster limits the pool. VACUUM keeps what the table's retention says, never less.
    What was done is an observation of the asset.

    Args:
        name: Name of the schedule; its job is `<name>_job`.
        tables: The merge assets whose tables are kept.
        cron_schedule: When.
        execution_timezone: The time zone of `cron_schedule`.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables.
        default_status: Whether the schedule starts by itself.
    """
    graph = GraphDefinition(
        name=f"{name}_job",
        description="Compacts the tables and deletes files that no kept version needs.",
        node_defs=[_upkeep_op(table, io_manager_key) for table in tables],
    )
    return ScheduleDefinition(
        name=name,
        # One JVM for all tables.
        job=graph.to_job(executor_def=in_process_executor),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Upkeep of {', '.join(each.key.to_user_string() for each in tables)}.",
    )


def _upkeep_op(table: AssetsDefinition, io_manager_key: str) -> OpDefinition:
    key = table.key
    declaration = declaration_in(table.metadata_by_key[key])

    @op(
        name="upkeep_of_" + re.sub(r"\W", "_", "__".join(key.path)),
        description=f"OPTIMIZE and VACUUM of {key.to_user_string()}.",
        required_resource_keys={io_manager_key},
        pool=table.op.pool,
    )
    def upkeep(context: OpExecutionContext) -> None:
        tables: SparkDeltaIOManager = getattr(context.resources, io_manager_key)
        delta_table = tables.table(key, declaration)
        if not delta_table.exists():
            context.log.info(f"There is no table at {delta_table.path_or_name} yet.")
            return
        spark, target = tables.spark.session, sql_name(delta_table.path_or_name)
        metadata = {**_optimize(spark, target), **_vacuum(spark, target)}
        metadata["upkeep/version"] = MetadataValue.int(delta_table.version())
        context.log_event(
            AssetObservation(asset_key=key, description="OPTIMIZE and VACUUM", metadata=metadata)
        )

    return upkeep


def _optimize(spark: SparkSession, target: str) -> dict[str, MetadataValue]:
    [row] = spark.sql(f"OPTIMIZE {target}").collect()
    return {
        "upkeep/files_compacted": MetadataValue.int(row.metrics.numFilesRemoved),
        "upkeep/files_added": MetadataValue.int(row.metrics.numFilesAdded),
    }


def _vacuum(spark: SparkSession, target: str) -> dict[str, MetadataValue]:
    # No RETAIN clause: the table's own retention, which Delta guards, keeps time travel, readers
    # under way, and the removed files that downstream assets have yet to read.
    spark.sql(f"VACUUM {target}").collect()
    ended = (
        spark.sql(f"DESCRIBE HISTORY {target}")
        .where("operation = 'VACUUM END'")
        .orderBy("version", ascending=False)
        .select("operationMetrics.numDeletedFiles")
        .first()
    )
    # Delta logs no VACUUM where the storage or a setting says so.
    if ended is None or ended.numDeletedFiles is None:
        return {}
    return {"upkeep/files_deleted": MetadataValue.int(int(ended.numDeletedFiles))}
