"""Column lineage of a merge: from which columns of its upstream assets the table's columns come.

The engine traces each value back to the columns of the files from which it was read
(`delta/lineage`). The location of these files identifies the asset:

1. Files of an upstream's table (its declared location, or the IO manager's root and the asset key),
   or below the `dagster/uri` in an upstream's definition, belong to that upstream.
2. All other files belong to the upstream without a known location, if there is exactly one, because
   an asset reads what it declares. With several, these columns have no lineage.

Rows that were created in Python or on the driver have no lineage. The lineage that is shown is
correct, but it may be incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from dagster import AssetKey, MetadataValue, OutputContext, TableColumnDep, TableColumnLineage

from dagster_deltaweave.tables import table_place
from deltaweave.errors import DeltaweaveError
from deltaweave.identifiers import quoted, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables import TableLocator
    from deltaweave import Table
    from deltaweave.delta.statement import Origin


def merge_lineage(
    context: OutputContext,
    tables: TableLocator,
    table: Table,
    changes: DataFrame,
    statement: Callable[[str], str],
) -> TableColumnLineage | None:
    """Return the column lineage of merging these changes into the asset's table, if it is known.

    The statement is analyzed once more; no row is read.

    Args:
        context: The context of the asset's output.
        tables: The IO manager that knows where the tables of upstream assets are.
        table: The asset's table.
        changes: The rows that are merged.
        statement: The MERGE text over the name of a view of the changes.

    Raises:
        DeltaweaveError: The statement can no longer be resolved.
    """
    from deltaweave.delta.statement import origins, parse_statement, resolve

    spark = changes.sparkSession
    view = f"lineage_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        of_columns = origins(resolve(parse_statement(spark, statement(view))))
    finally:
        spark.catalog.dropTempView(view)
    return table_lineage(of_columns, upstream_places(context, tables), table.location())


def insert_of_events(table: Table, events: DataFrame) -> Callable[[str], str]:
    """Return a statement that assigns what change events assign: equal names, whatever the action.

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
    origins: Mapping[str, Collection[Origin]], places: Mapping[AssetKey, str | None], own_place: str
) -> TableColumnLineage | None:
    """Build Dagster's column lineage, by the rules above.

    Args:
        origins: For each column of the table, the stored columns from which its values come.
        places: For each upstream, the location of its data, or None if it is unknown.
        own_place: The location of the table itself; a table is not its own upstream.
    """
    deps: dict[str, list[TableColumnDep]] = {}
    for column, stored in origins.items():
        assets = {
            (_asset_at(each.location, places, own_place), each.column) for each in sorted(stored)
        }
        found = [TableColumnDep(asset, name) for asset, name in assets if asset is not None]
        if found:
            deps[column] = found
    return TableColumnLineage(deps) if deps else None


def upstream_places(context: OutputContext, tables: TableLocator) -> dict[AssetKey, str | None]:
    """Return the location of each upstream's data, as far as it is known."""
    assets = context.step_context.job_def.asset_layer
    places: dict[AssetKey, str | None] = {}
    for key in assets.get(context.asset_key).parent_keys - {context.asset_key}:
        metadata = assets.get(key).metadata
        uri = metadata.get("dagster/uri")
        places[key] = uri.value if isinstance(uri, MetadataValue) else uri
        try:
            place = table_place(metadata, asset=key.to_user_string())
            if not tables.is_known(place):
                continue
            upstream = tables.table(key, place)
            if upstream.exists():
                places[key] = upstream.location()
        except DeltaweaveError:
            continue  # its key is no place for a table, its name is that of a view, …
    return places


def _asset_at(
    location: str, places: Mapping[AssetKey, str | None], own_place: str
) -> AssetKey | None:
    if _is_within(location, own_place):
        return None
    for key, place in places.items():
        if place is not None and _is_within(location, place):
            return key
    elsewhere = [key for key, place in places.items() if place is None]
    return elsewhere[0] if len(elsewhere) == 1 else None


def _is_within(location: str, place: str) -> bool:
    return f"{_as_uri(location)}/".startswith(f"{_as_uri(place)}/")


def _as_uri(path: str) -> str:
    """Return a location as a URI, because a local path has several spellings."""
    path = path.rstrip("/")
    return re.sub(r"^(file:)?/+", "file:/", path)
