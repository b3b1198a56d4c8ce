"""Whether the asset's table may be where it is, or be created there, before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltaweave
from dagster_deltaweave.storage import local_path
from dagster_deltaweave.tables import (
    TableDeclaration,
    TableLocator,
    check_owner,
    check_parents,
    check_places,
    full_names,
    path_under,
    with_owner,
)
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.identifiers import literal

if TYPE_CHECKING:
    from dagster import OutputContext
    from pyspark.sql import SparkSession

    from deltaweave import Table

_DENIED = ("AccessDenied", "AccessControl", "Forbidden", "Permission denied")


def check_location(
    context: OutputContext, locator: TableLocator, table: Table, declaration: TableDeclaration
) -> TableDeclaration:
    """Refuse a table at a location that holds another table's data.

    Returns:
        The declaration; that of a table in a schema also says whose it is.

    Raises:
        StatementError: It would be inside another table, around one, at its path, or another asset
            created it. Or it has a name now, and the asset has a table at its key.
    """
    spark = table.spark
    is_made = table.exists()
    location = table.location() if is_made else table.planned_location()
    check_places(
        context,
        locator.path_or_name,
        full_names(spark),
        location,
        declaration,
        is_made=is_made,
        is_table=lambda path: _is_table(spark, path),
    )
    if not is_made:
        check_parents(table.path_or_name, location, lambda path: _is_table(spark, path))
    if declaration.table is not None or locator.is_under_root(declaration):
        return declaration
    declaration = with_owner(declaration, context.asset_key)
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
    if not deltaweave.Table(table.spark, before).exists():
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
    """Return whether there is a table in a directory above a new one."""
    local = local_path(path)
    if local is not None and not (local / "_delta_log").is_dir():
        return False  # as nearly always, without asking the JVM
    try:
        return deltaweave.Table(spark, path).exists()
    except DeltaweaveError as error:
        if any(word in str(error) for word in _DENIED):
            return False  # above what this deployment may read, there are tables of others alone
        raise
