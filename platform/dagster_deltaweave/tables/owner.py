"""Which asset a table of a schema belongs to: a table property for other code locations.

A table's name is only the last part of its asset's key, so keys of two assets may give one name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dagster import AssetKey

from dagster_deltaweave.tables.declaration import TableDeclaration
from deltaweave.errors import NOTHING_DONE, StatementError
from deltaweave.identifiers import literal

if TYPE_CHECKING:
    from deltaweave import Table

OWNER = "deltaweave.asset"
"""Property of a table that an asset created in its schema: the asset's key."""

Declaration = TypeVar("Declaration", bound=TableDeclaration)


def with_owner(declaration: Declaration, key: AssetKey) -> Declaration:
    """Add the asset that creates the table to the declaration's properties."""
    properties = {**(declaration.properties or {}), OWNER: key.to_user_string()}
    return replace(declaration, properties=properties)


def check_owner(table: Table, declaration: TableDeclaration) -> None:
    """Refuse to write a table that another asset created.

    Args:
        table: The table, which exists.
        declaration: What is declared of it, and by which asset if that matters.

    Raises:
        StatementError: It is another asset's.
    """
    own = (declaration.properties or {}).get(OWNER)
    if own is not None:
        check_is_of(table, own)


def check_is_of(table: Table, own: str) -> None:
    """Refuse a table that another asset than this one created.

    Args:
        table: The table, which exists.
        own: The asset's key, as Dagster spells it.

    Raises:
        StatementError: It is another asset's.
    """
    owner = table.setting(OWNER)
    if owner in (None, own):
        return
    raise StatementError(
        f"it is the table of the asset {owner}, and not that of {own}: their keys give one name.",
        table=table.path_or_name,
        operation="locating",
        state=NOTHING_DONE,
        hint="Give one of the two assets another schema in its metadata, or another key. If they "
        "share the table on purpose, declare it for both by table=…. If the asset has a new key, "
        "under which nothing counts as applied that was applied under the old one, "
        f"say so: ALTER TABLE … SET TBLPROPERTIES ('{OWNER}' = {literal(own)}).",
    )
