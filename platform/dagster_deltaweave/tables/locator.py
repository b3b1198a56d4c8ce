"""Finds the tables of assets by their root or their schema, and opens them in a session.

Code that looks up a table by its asset key takes this value instead of the whole IO manager. The
name of a table in a schema is only the last part of its asset's key, so keys of two assets may give
one name: a table property says which asset created it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import AssetKey

import deltaweave
from dagster_deltaweave.tables.applied_changes import READ_METADATA_KEY
from dagster_deltaweave.tables.declaration import (
    NO_NAMESPACE,
    MergeOnReadDeclaration,
    Namespace,
    TableDeclaration,
    TablePlace,
    locating_error,
)
from dagster_deltaweave.tables.places import path_under
from deltaweave.errors import NOTHING_READ, SourceError
from deltaweave.identifiers import string_token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_deltaweave.spark import SparkResource
    from deltaweave import MergeOnReadTable, Table


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
    raise locating_error(
        table.path_or_name,
        f"it is the table of the asset {owner}, and not that of {own}: their keys give one name.",
        "Give one of the two assets another schema in its metadata, or another key. If they "
        "share the table on purpose, declare it for both by table=…. If the asset has a new key, "
        "under which nothing counts as applied that was applied under the old one, "
        f"say so: ALTER TABLE … SET TBLPROPERTIES ('{OWNER}' = {string_token(own)}).",
    )


@dataclass(frozen=True)
class TableLocator:
    """Finds the tables of assets.

    Attributes:
        root: Path or URI under which the tables are, each at its asset key.
        spark: The resource whose session opens them; it is used only when a table is opened.
        namespace: The catalog and schema of the tables that have names, by default.
    """

    root: str
    spark: SparkResource
    namespace: Namespace = NO_NAMESPACE

    @property
    def session(self) -> SparkSession:
        """The session that opens the tables; started or found on first use."""
        return self.spark.session

    def table(self, key: AssetKey, place: TablePlace | None = None) -> Table:
        """Open the table of an asset: where it is declared, in its schema, or under the root.

        Raises:
            StatementError: There can be no table at its key or of its name. Or the default schema
                alone gives it a name, and the table of that name is another asset's.
        """
        path_or_name = self.path_or_name(key, place)  # before a session starts
        table = deltaweave.Table(self.session, path_or_name)
        if not self._is_named_for_it(place or TablePlace()) and table.exists():
            check_is_of(table, key.to_user_string())
        return table

    def path_or_name(self, key: AssetKey, place: TablePlace | None = None) -> str:
        """Return where the table of an asset is; this needs no session.

        Raises:
            StatementError: There can be no table at its key, or of its name.
        """
        declared = place or TablePlace()
        if declared.table:
            return declared.table
        if self.is_under_root(declared):
            return path_under(self.root, key)
        return declared.namespace.or_else(self.namespace).name_of(key)

    def is_known(self, place: TablePlace) -> bool:
        """Return whether the table is the asset's own, not one that the default schema gives it.

        An asset that declares neither a table nor how it is written may have none; keys of other
        assets may give the same name.
        """
        return isinstance(place, TableDeclaration) or self._is_named_for_it(place)

    def _is_named_for_it(self, place: TablePlace) -> bool:
        """Return whether the place is the asset's alone, and not a name from the default schema."""
        return place.is_given or self.is_under_root(place)

    def is_under_root(self, place: TablePlace) -> bool:
        """Return whether the table is at its key under the root.

        Those of a merge-on-read table are so in any schema: sensors and checks read their logs
        without Spark, and so without a catalog.
        """
        if place.table:
            return False
        namespace = place.namespace.or_else(self.namespace)
        return isinstance(place, MergeOnReadDeclaration) or not namespace.is_given


def run_locator(resources: object, io_manager_key: str) -> TableLocator:
    """Return the locator of a run: that of the IO manager among its resources.

    Args:
        resources: The resources of a context.
        io_manager_key: Resource key of the `SparkDeltaIOManager`.

    Raises:
        StatementError: The resource is another one.
    """
    manager = getattr(resources, io_manager_key)
    locator = getattr(manager, "locator", None)
    if not isinstance(locator, TableLocator):
        raise locating_error(
            None,
            f"the resource {io_manager_key} is no SparkDeltaIOManager but a "
            f"{type(manager).__name__}, which has no tables.",
            "Name the resource that has them, by io_manager_key=.",
        )
    return locator


WHERE = "deltaweave/where"
"""Metadata key of an input: a condition of key columns, for both the base and the changes."""


@dataclass(frozen=True)
class MergeOnReadLocations:
    """The locations of a merge-on-read table: paths or URIs.

    Attributes:
        base: The base.
        changes: The changeset.
        checkpoint: The checkpoint of a stream.
    """

    base: str
    changes: str
    checkpoint: str


def merge_on_read_locations(
    tables: TableLocator, declaration: MergeOnReadDeclaration
) -> MergeOnReadLocations:
    """Return the locations, as declared or under the root at their keys; this needs no session."""
    base = tables.path_or_name(declaration.base, declaration.of_part("base"))
    changes = tables.path_or_name(declaration.changes, declaration.of_part("changes"))
    # Not in the changeset's directory, because a table is created in an empty directory.
    return MergeOnReadLocations(base, changes, declaration.checkpoint or f"{changes}_checkpoint")


def open_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration
) -> MergeOnReadTable:
    """Open the merge-on-read table in the session of the locator."""
    at = merge_on_read_locations(tables, declaration)
    return deltaweave.MergeOnReadTable(
        tables.session, at.base, changes=at.changes, **declaration.arguments
    )


def load_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration, metadata: Mapping[str, Any]
) -> DataFrame:
    """Read the rows of the view or of the base alone, lazily.

    Args:
        tables: Where the tables are.
        declaration: The declaration of the view or the base.
        metadata: The metadata of the input.

    Raises:
        SourceError: The input asks for touched or changed rows.
        StatementError: The condition uses other columns than keys.
    """
    if READ_METADATA_KEY in metadata:
        raise SourceError(
            f"{READ_METADATA_KEY} needs versions, and rows that are merged on read have none.",
            table=declaration.view.to_user_string(),
            operation="READ",
            state=NOTHING_READ,
            hint=f"Read its changes: {declaration.changes.to_user_string()} is an asset too.",
        )
    table = open_merge_on_read(tables, declaration)
    where = metadata.get(WHERE)
    where = getattr(where, "value", where)
    if declaration.part == "view":
        return table.read(where=where)
    rows = table.read_optimized()
    return rows if where is None else rows.where(where)
