"""Records a materialization in Dagster: metadata, observations and a data version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dagster import AssetObservation, DataVersion, MetadataValue, OutputContext

from dagster_deltaweave.dagster_private import DATA_VERSION_TAG, TableMetadataSet
from dagster_deltaweave.logs import last_change
from dagster_deltaweave.metadata import metadata_entries
from dagster_deltaweave.metadata.column_lineage import insert_of_events, merge_lineage
from dagster_deltaweave.metadata.phases import merge_observation
from dagster_deltaweave.metadata.statement_text import statement_metadata

if TYPE_CHECKING:
    from dagster_deltaweave.tables import Changes, TableLocator
    from deltaweave import MergePlan, MergeResult, Table, WriteResult


def record_merge(
    context: OutputContext,
    tables: TableLocator,
    table: Table,
    changes: Changes,
    partitions: Sequence[str],
    statement: Callable[[str], str] | None,
    result: MergeResult,
    plan: MergePlan | None = None,
) -> dict[str, Any]:
    """Observe a merge, and give the asset's materialization its data version.

    Args:
        context: The context of the asset's output.
        tables: The IO manager that holds the tables of the asset and its upstreams.
        table: The asset's table.
        changes: What was merged.
        partitions: The run's partitions.
        statement: The MERGE text over the name of the changes; None if there was none.
        result: What the merge reports.
        plan: The plan of the merge, if it was requested.

    Returns:
        The metadata of the materialization, in addition to that of the table.
    """
    # The numbers cover the whole merge, so they belong to a partition only if there is just one.
    partition = partitions[0] if len(partitions) == 1 else None
    context.log_event(merge_observation(context.asset_key, partition, result))
    described = _record_version(context, table, version_of_changed_rows(result))
    text = statement("changes") if statement else None
    unused = _always_zero(context, table, text)
    retries = context.step_context.previous_attempt_count
    return {
        **metadata_entries.merge_metadata(result, unused),
        **({"merge/retries": MetadataValue.int(retries)} if retries else {}),
        **(metadata_entries.touched_metadata(changes.applied) if changes.applied else {}),
        metadata_entries.TABLE_VERSION: described,
        **_lineage_metadata(context, tables, table, changes, statement),
        **(statement_metadata(text) if text else {}),
        **(metadata_entries.plan_metadata(plan) if plan else {}),
    }


def _always_zero(context: OutputContext, table: Table, text: str | None) -> frozenset[str]:
    try:
        return frozenset(metadata_entries.always_zero(table, text))
    except Exception as error:
        # The merge is committed, and its numbers must be recorded: with those that are always zero.
        context.log.warning(f"Numbers that are always zero are recorded, too: {error}")
        return frozenset()


def record_write(
    context: OutputContext,
    table: Table,
    written: WriteResult,
    how: str,
    predicate: str | None,
    partitions: Sequence[str],
    *,
    is_of_partitions: bool = False,
) -> dict[str, Any]:
    """Observe a write without a merge, and give the materialization its data version.

    Args:
        context: The context of the asset's output.
        table: The asset's table.
        written: What the write reports.
        how: The mode of writing, for people.
        predicate: The rows that were replaced; None for all or none.
        partitions: The run's partitions.
        is_of_partitions: Whether these rows are those of the partitions.

    Returns:
        The metadata of the materialization, in addition to that of the table.
    """
    metadata = metadata_entries.write_metadata(written, how, predicate)
    context.log_event(
        AssetObservation(
            asset_key=context.asset_key,
            partition=partitions[0] if len(partitions) == 1 else None,
            description=f"Write: {how}",
            metadata=metadata,
        )
    )
    # The rows are those of one partition only if there is just one, without what was copied of
    # others from files that hold both.
    of_one = is_of_partitions and len(partitions) == 1 and "numOutputRows" in written.metrics
    counted = None
    if of_one:
        counted = written.metrics["numOutputRows"] - written.metrics.get("numCopiedRows", 0)
    return {
        metadata_entries.TABLE_VERSION: _record_version(context, table, written.version),
        **metadata,
        **TableMetadataSet(partition_row_count=counted),
    }


def version_of_changed_rows(result: MergeResult) -> int | None:
    """Return the version of a merge that changed rows; None for an idempotency pair alone."""
    metrics = result.metrics
    changed = (
        metrics.num_target_rows_inserted
        or metrics.num_target_rows_updated
        or metrics.num_target_rows_deleted
    )
    return result.version if changed else None


def record_unchanged(context: OutputContext, table: Table) -> int:
    """Make the last version that changed the table's rows the asset's data version.

    So the data version stays if a run changes nothing, even if upkeep made versions meanwhile. If
    the log no longer holds the change, the data version that was recorded before is kept.

    Returns:
        A version with these rows: the newest, if only upkeep made versions since.
    """
    change = last_change(table)
    version = change.version
    if not change.is_in_log:
        recorded = _recorded_version(context)
        version = version if recorded is None else min(recorded, version)
    record_data_version(context, version)
    return change.newest


def _record_version(context: OutputContext, table: Table, committed: int | None) -> int:
    """Record the data version; return the table version with the rows that the run left."""
    if committed is None:
        return record_unchanged(context, table)
    record_data_version(context, committed)
    return committed


def _recorded_version(context: OutputContext) -> int | None:
    """Return the data version of the asset's last materialization, if it is a table version."""
    instance = context.step_context.instance
    event = instance.get_latest_materialization_event(context.asset_key)
    materialization = event.asset_materialization if event else None
    tags = (materialization.tags or {}) if materialization else {}
    recorded = tags.get(DATA_VERSION_TAG, "")
    return int(recorded) if recorded.isdecimal() else None


def record_data_version(context: OutputContext, version: int) -> None:
    """Make a version of the table the data version of the asset's materialization.

    Dagster uses it to decide whether downstream assets are stale. It is the table's version even if
    the asset is partitioned: the partitions are those of the changes, and a downstream asset that
    reads the table reads the result of all of them.
    """
    context.step_context.set_data_version(context.asset_key, DataVersion(str(version)))


def _lineage_metadata(
    context: OutputContext,
    tables: TableLocator,
    table: Table,
    changes: Changes,
    statement: Callable[[str], str] | None,
) -> dict[str, object]:
    try:
        of_columns = statement or insert_of_events(table, changes.rows)
        lineage = merge_lineage(context, tables, table, changes.rows, of_columns)
    except Exception as error:
        # The merge is committed, so an error in what is only displayed must not fail the run.
        context.log.warning(f"The column lineage is left out: {error}")
        return {}
    return dict(TableMetadataSet(column_lineage=lineage)) if lineage else {}
