"""Whether the asset's table may be where it is, or be created there, before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltaweave
from dagster_deltaweave.tables import (
    TableDeclaration,
    TableLocator,
    check_owner,
    check_parents,
    check_parents_of_name,
    check_places,
    full_names,
    path_under,
    with_owner,
)
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import is_path, literal

if TYPE_CHECKING:
    from dagster import OutputContext
    from pyspark.sql import SparkSession

    from deltaweave import Table


def check_location(
    context: OutputContext, locator: TableLocator, table: Table, declaration: TableDeclaration
) -> TableDeclaration:
    """Refuse a table in a place that holds another table's data.

    Returns:
        The declaration; that of a table in a schema also says whose it is.

    Raises:
        StatementError: It is inside another table, around one, would be created in its place, or
            another asset created it. Or it has a name now, and the asset has a table at its key.
    """
    key, spark = context.asset_key, table.spark
    is_made, location = table.exists(), table.planned_location()
    check_places(context, locator.path_or_name, full_names(spark), location, is_made=is_made)
    if locator.is_under_root(declaration):
        if not is_made:
            check_parents(locator.root, key, lambda path: deltaweave.Table(spark, path).exists())
        return declaration
    if not is_made and not is_path(table.path_or_name):
        check_parents_of_name(table.path_or_name, location, lambda path: _is_table(spark, path))
    if declaration.table is not None:
        return declaration
    declaration = with_owner(declaration, key)
    if is_made:
        check_owner(table, declaration)
    else:
        _refuse_to_begin_anew(locator, context, table)
    return declaration


def _refuse_to_begin_anew(locator: TableLocator, context: OutputContext, table: Table) -> None:
    """Raise if the asset's table was at its key until it got a schema: it would start empty."""
    try:
        before = path_under(locator.root, context.asset_key)
    except StatementError:
        return  # there can be none
    if not _is_table(table.spark, before):
        return
    raise StatementError(
        f"there is no such table, but the asset has one at {before}, whose rows it would lack.",
        table=table.path_or_name,
        operation="locating",
        state="Nothing was written.",
        hint="Give that table its name: CREATE TABLE "
        f"{table.path_or_name} USING delta LOCATION {literal(before)}. Or move it away.",
    )


def _is_table(spark: SparkSession, path: str) -> bool:
    try:
        return deltaweave.Table(spark, path).exists()
    except DeltaweaveError:
        return False  # directories that may not be read are above those of this lake
