"""Finds the tables of assets by their root or their schema, and opens them in a session.

Code that looks up a table by its asset key takes this value instead of the whole IO manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import deltaweave
from dagster_deltaweave.tables.catalog_names import NO_NAMESPACE, Namespace
from dagster_deltaweave.tables.declaration import (
    MergeOnReadDeclaration,
    TableDeclaration,
    TablePlace,
)
from dagster_deltaweave.tables.owner import check_is_of
from dagster_deltaweave.tables.paths import path_under
from deltaweave.errors import NOTHING_DONE, StatementError

if TYPE_CHECKING:
    from dagster import AssetKey
    from pyspark.sql import SparkSession

    from dagster_deltaweave.spark import SparkResource
    from deltaweave import Table


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
        raise StatementError(
            f"the resource {io_manager_key} is no SparkDeltaIOManager but a "
            f"{type(manager).__name__}, which has no tables.",
            operation="locating",
            state=NOTHING_DONE,
            hint="Name the resource that has them, by io_manager_key=.",
        )
    return locator
