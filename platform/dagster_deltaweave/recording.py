"""What a materialization leaves in Dagster: metadata, observations and a data version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dagster import AssetObservation, DataVersion, MetadataValue, OutputContext
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet

from dagster_deltaweave import observations
from dagster_deltaweave.column_lineage import merge_lineage
from dagster_deltaweave.history import last_change
from dagster_deltaweave.phases import phase_observations

if TYPE_CHECKING:
    from dagster_deltaweave.changes import Changes
    from dagster_deltaweave.io_manager import SparkDeltaIOManager
    from deltaweave import MergePlan, MergeResult, Table, WriteResult


def record_merge(
    context: OutputContext,
    tables: SparkDeltaIOManager,
    table: Table,
    changes: Changes,
    partitions: Sequence[str],
    statement: Callable[[str], str] | None,
    result: MergeResult,
    plan: MergePlan | None = None,
) -> dict[str, Any]:
    """Observe each phase of a merge, and give the asset's materialization its data version.

    Args:
        context: The context of the asset's output.
        tables: The IO manager that holds the tables of the asset and its upstreams.
        table: The asset's table.
        changes: What was merged.
        partitions: The run's partitions.
        statement: The MERGE text over the name of the changes; None where there was none.
        result: What the merge reports.
        plan: What was expected of it, where that was asked for.

    Returns:
        The metadata of the materialization, beside that of the table.
    """
    # The numbers are of the whole merge, so they belong to a partition only where it is the one.
    partition = partitions[0] if len(partitions) == 1 else None
    about_commit: dict[str, MetadataValue] = {
        "merge/retries": MetadataValue.int(context.step_context.previous_attempt_count)
    }
    if changes.applied is not None:
        about_commit.update(observations.touched_metadata(changes.applied))
    for observation in phase_observations(context.asset_key, partition, result, about_commit):
        context.log_event(observation)
    record_data_version(context, version_of_rows(table, result))
    return {
        **(observations.partition_metadata(result) if partition else {}),
        **(_lineage_metadata(context, tables, table, changes, statement) if statement else {}),
        **observations.merge_metadata(result),
        **about_commit,
        **(observations.statement_metadata(statement("changes")) if statement else {}),
        **(observations.plan_metadata(plan) if plan else {}),
        **observations.spark_ui_metadata(table.spark),
    }


def record_write(
    context: OutputContext,
    table: Table,
    written: WriteResult,
    how: str,
    predicate: str | None,
    partitions: Sequence[str],
) -> dict[str, Any]:
    """Observe a write without a merge, and give the materialization its data version.

    Args:
        context: The context of the asset's output.
        table: The asset's table.
        written: What the write reports.
        how: The mode of writing, for people.
        predicate: The rows that were replaced; None for all or none.
        partitions: The run's partitions.

    Returns:
        The metadata of the materialization, beside that of the table.
    """
    metadata: dict[str, Any] = dict(observations.write_metadata(written, how, predicate))
    context.log_event(
        AssetObservation(
            asset_key=context.asset_key,
            partition=partitions[0] if len(partitions) == 1 else None,
            description=f"Write: {how}",
            metadata=metadata,
        )
    )
    version = last_change(table).version if written.version is None else written.version
    record_data_version(context, version)
    return metadata


def version_of_rows(table: Table, result: MergeResult) -> int:
    """The version of the table that has the rows it now has.

    It stays where a merge changes nothing, also when upkeep made versions meanwhile.
    """
    if result.version is not None and result.strategy != "none":
        return result.version
    return last_change(table).version


def record_data_version(context: OutputContext, version: int) -> None:
    """Make a version of the table the data version of the asset's materialization.

    By it Dagster tells whether downstream assets are stale. It is the table's even where the asset
    is partitioned: its partitions are those of the changes, and a downstream asset that reads the
    table reads what all of them gave.
    """
    context.step_context.set_data_version(context.asset_key, DataVersion(str(version)))


def _lineage_metadata(
    context: OutputContext,
    tables: SparkDeltaIOManager,
    table: Table,
    changes: Changes,
    statement: Callable[[str], str],
) -> dict[str, object]:
    try:
        lineage = merge_lineage(context, tables, table, changes.rows, statement)
    except Exception as error:
        # The merge is committed: what is merely shown of it must not fail its run.
        context.log.warning(f"The column lineage is left out: {error}")
        return {}
    return dict(TableMetadataSet(column_lineage=lineage)) if lineage else {}
