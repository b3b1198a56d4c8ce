"""Records a materialization in Dagster: metadata, observations, lineage and a data version.

For the lineage of columns, the engine traces each value back to the columns of the files from which
it was read; `docs/internals/outputs.md` says to which asset files belong. The lineage that is shown
is correct, but it may be incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DataVersion,
    MetadataValue,
    OutputContext,
    TableColumnDep,
    TableColumnLineage,
)

from dagster_deltaweave.dagster_private import (
    DATA_VERSION_TAG,
    TableMetadataSet,
    get_input_data_version_tag,
)
from dagster_deltaweave.logs import last_change
from dagster_deltaweave.metadata import metadata_entries
from dagster_deltaweave.metadata.metadata_entries import (
    TABLE_ID,
    merge_observation,
    statement_metadata,
)
from dagster_deltaweave.tables import MergeOnReadDeclaration, table_location
from deltaweave.errors import DeltaweaveError
from deltaweave.identifiers import quoted, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables import Changes, TableLocator
    from deltaweave import MergePlan, MergeResult, Table, WriteResult
    from deltaweave.delta.statement import Origin


class MaterializedOutput(Protocol):
    """What recording needs to know of an output, which is an `io_manager.output.Output`."""

    @property
    def context(self) -> OutputContext:
        """The context of the asset's output."""

    @property
    def tables(self) -> TableLocator:
        """Where the tables of the IO manager are."""

    @property
    def table(self) -> Table:
        """The asset's table."""

    @property
    def changes(self) -> Changes:
        """What the asset's function returned."""

    @property
    def partitions(self) -> Sequence[str]:
        """The run's partitions."""


def merge_lineage(
    output: MaterializedOutput, statement: Callable[[str], str]
) -> TableColumnLineage | None:
    """Return the column lineage of merging an output into its table, if it is known.

    The statement is analyzed once more; no row is read.
    """
    from deltaweave.delta.statement import origins, parse_statement, resolve

    changes = output.changes.rows
    spark = changes.sparkSession
    view = f"lineage_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        found = origins(resolve(parse_statement(spark, statement(view))))
    finally:
        spark.catalog.dropTempView(view)
    locations = upstream_locations(output.context, output.tables)
    return table_lineage(found, locations, output.table.location())


def insert_of_events(table: Table, events: DataFrame) -> Callable[[str], str]:
    """Return a statement that assigns columns by name, as change events do.

    Applying events has no statement of its own. This one is analyzed and never run.
    """
    given = {name.lower() for name in events.columns}
    names = [name for name in table.snapshot().schema.names if name.lower() in given]
    columns = ", ".join(quoted(name) for name in names)
    values = ", ".join(f"s.{quoted(name)}" for name in names)
    target = table_name(table.path_or_name)
    return lambda view: (
        f"MERGE INTO {target} AS t USING {view} AS s ON false"
        f" WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})"
    )


def table_lineage(
    origins: Mapping[str, Collection[Origin]],
    locations: Mapping[AssetKey, str | None],
    own_location: str,
) -> TableColumnLineage | None:
    """Build Dagster's column lineage, by the rules above.

    `locations` has, for each upstream, the location of its data; None if it is unknown.
    """
    deps: dict[str, list[TableColumnDep]] = {}
    for column, stored in origins.items():
        assets = {
            (_asset_at(each.location, locations, own_location), each.column)
            for each in sorted(stored)
        }
        found = [TableColumnDep(asset, name) for asset, name in assets if asset is not None]
        if found:
            deps[column] = found
    return TableColumnLineage(deps) if deps else None


def upstream_locations(context: OutputContext, tables: TableLocator) -> dict[AssetKey, str | None]:
    """Return the location of each upstream's data, as far as it is known."""
    assets = context.step_context.job_def.asset_layer
    locations: dict[AssetKey, str | None] = {}
    for key in assets.get(context.asset_key).parent_keys - {context.asset_key}:
        metadata = assets.get(key).metadata
        uri = metadata.get("dagster/uri")
        locations[key] = uri.value if isinstance(uri, MetadataValue) else uri
        try:
            declared = table_location(metadata, asset=key.to_user_string())
            if not tables.is_known(declared):
                continue
            upstream = tables.table(key, declared)
            if upstream.exists():
                locations[key] = upstream.location()
        except DeltaweaveError:
            continue  # its key cannot be a location, its name is that of a view, …
    return locations


def _asset_at(
    location: str, locations: Mapping[AssetKey, str | None], own_location: str
) -> AssetKey | None:
    if _is_within(location, own_location):
        return None
    for key, directory in locations.items():
        if directory is not None and _is_within(location, directory):
            return key
    elsewhere = [key for key, directory in locations.items() if directory is None]
    return elsewhere[0] if len(elsewhere) == 1 else None


def _is_within(location: str, directory: str) -> bool:
    return f"{_as_uri(location)}/".startswith(f"{_as_uri(directory)}/")


def _as_uri(path: str) -> str:
    """Return a location as a URI, because a local path has several spellings."""
    path = path.rstrip("/")
    return re.sub(r"^(file:)?/+", "file:/", path)


def record_merge(
    output: MaterializedOutput,
    result: MergeResult,
    statement: Callable[[str], str] | None = None,
    plan: MergePlan | None = None,
) -> dict[str, Any]:
    """Observe a merge, and give the asset's materialization its data version.

    `statement` is the MERGE text over the name of the changes; None if there was none.

    Returns:
        The metadata of the materialization, in addition to that of the table.
    """
    context, table, partitions = output.context, output.table, output.partitions
    applied = output.changes.applied
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
        **(metadata_entries.touched_metadata(applied) if applied else {}),
        metadata_entries.TABLE_VERSION: described,
        **_lineage_metadata(output, statement),
        **(statement_metadata(text) if text else {}),
        **(metadata_entries.plan_metadata(plan) if plan else {}),
    }


def _always_zero(context: OutputContext, table: Table, text: str | None) -> frozenset[str]:
    try:
        return frozenset(metadata_entries.always_zero(table, text))
    except Exception as error:
        # The merge is committed, so record all of its numbers.
        context.log.warning(f"Numbers that are always zero are recorded, too: {error}")
        return frozenset()


def record_write(
    output: MaterializedOutput,
    written: WriteResult,
    how: str,
    predicate: str | None,
    *,
    is_of_partitions: bool = False,
) -> dict[str, Any]:
    """Observe a write without a merge, and give the materialization its data version.

    `predicate` is that of the rows that were replaced; None for all or none.

    Returns:
        The metadata of the materialization, in addition to that of the table.
    """
    context, partitions = output.context, output.partitions
    metadata = metadata_entries.write_metadata(written, how, predicate)
    context.log_event(
        AssetObservation(
            asset_key=context.asset_key,
            partition=partitions[0] if len(partitions) == 1 else None,
            description=f"Write: {how}",
            metadata=metadata,
        )
    )
    # With just one partition, the rows are its own, less those of others that were copied from
    # shared files.
    is_of_one = is_of_partitions and len(partitions) == 1 and "numOutputRows" in written.metrics
    counted = None
    if is_of_one:
        counted = written.metrics["numOutputRows"] - written.metrics.get("numCopiedRows", 0)
    return {
        metadata_entries.TABLE_VERSION: _record_version(context, output.table, written.version),
        **metadata,
        **TableMetadataSet(partition_row_count=counted),
    }


def version_of_changed_rows(result: MergeResult) -> int | None:
    """Return the version of a merge that changed rows; None for a transaction id alone."""
    metrics = result.metrics
    changed = (
        metrics.num_target_rows_inserted
        or metrics.num_target_rows_updated
        or metrics.num_target_rows_deleted
    )
    return result.version if changed else None


def record_unchanged(context: OutputContext, table: Table) -> int:
    """Make the last version that changed the table's rows the asset's data version.

    The data version thus stays if a run changes nothing, even if upkeep has made versions since. If
    the log no longer holds the change, the data version that was recorded before is kept.

    Returns:
        A version with these rows: the newest, if only upkeep made versions since.
    """
    change = last_change(table)
    version = change.version
    if not change.is_in_log:
        newest = newest_materialization(context.step_context.instance, context.asset_key)
        recorded = data_version_of(newest)
        version = version if recorded is None else min(recorded, version)
    record_data_version(context, version)
    return change.newest


def _record_version(context: OutputContext, table: Table, committed: int | None) -> int:
    """Record the data version; return the table version with the rows that the run left."""
    if committed is None:
        return record_unchanged(context, table)
    record_data_version(context, committed)
    return committed


def newest_materialization(instance: DagsterInstance, key: AssetKey) -> AssetMaterialization | None:
    """Return the newest materialization of an asset, with or without a run; None without any."""
    event = instance.get_latest_materialization_event(key)
    return event.asset_materialization if event else None


def data_version_of(made: AssetMaterialization | None) -> int | None:
    """Return the data version of a materialization, if it is a number; otherwise None."""
    version = ((made.tags if made else None) or {}).get(DATA_VERSION_TAG, "")
    return int(version) if version.isdecimal() else None


def recorded_batch(instance: DagsterInstance, key: AssetKey) -> bool:
    """Return whether the newest materialization of changes recorded their table, or a batch."""
    made = newest_materialization(instance, key)
    return made is not None and (TABLE_ID in made.metadata or bool(data_version_of(made)))


def record_data_version(context: OutputContext, version: int) -> None:
    """Make a version of the table the data version of the asset's materialization.

    Dagster uses it to decide whether downstream assets are stale. It is the table's version even if
    the asset is partitioned: the partitions are those of the changes, and a downstream asset that
    reads the table reads the result of all of them.
    """
    context.step_context.set_data_version(context.asset_key, DataVersion(str(version)))


def _lineage_metadata(
    output: MaterializedOutput, statement: Callable[[str], str] | None
) -> dict[str, object]:
    try:
        assigned = statement or insert_of_events(output.table, output.changes.rows)
        lineage = merge_lineage(output, assigned)
    except Exception as error:
        # The merge is committed, so an error in what is only displayed must not fail the run.
        output.context.log.warning(f"The column lineage is left out: {error}")
        return {}
    return dict(TableMetadataSet(column_lineage=lineage)) if lineage else {}


def keep_view_fresh(
    context: AssetExecutionContext,
    declaration: MergeOnReadDeclaration,
    base_version: str,
    metadata: Mapping[str, Any],
) -> None:
    """Record the view again, as it was recorded last but with the base's new data version.

    Dagster shows an asset as stale if it was materialized with another version of an upstream. But
    the base's new version holds what the view read from the changes before, so the view's own data
    version stays. A view that was never materialized is left as it is.
    """
    before = newest_materialization(context.instance, declaration.view)
    if before is None or not before.tags:
        return
    base_tag = get_input_data_version_tag(declaration.base)
    if before.tags.get(base_tag, base_version) == base_version:
        return
    # Without a run, because the run that merges materializes only the base.
    context.instance.report_runless_asset_event(
        AssetMaterialization(
            asset_key=declaration.view,
            description="The base was rematerialized: the rows are as they were.",
            metadata=metadata,
            tags={**before.tags, base_tag: base_version},
        )
    )
