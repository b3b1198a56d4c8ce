"""`DeltaTableResource`: the tables of assets, for code that reads or changes them itself."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from typing import TYPE_CHECKING

from dagster import ConfigurableResource, ResourceDependency

from dagster_deltaweave.io_manager import SparkDeltaIOManager
from dagster_deltaweave.tables import AssetOrKey, NamedAsset

if TYPE_CHECKING:
    from deltaweave import Table


class DeltaTableResource(ConfigurableResource["DeltaTableResource"]):
    """Gives the `deltaweave.Table` of an asset, where the IO manager has it.

    The session starts when a table is first asked for.

    >>> tables = DeltaTableResource(io_manager=io_manager)
    >>> tables.table("sales/orders").history()
    """

    io_manager: ResourceDependency[SparkDeltaIOManager]

    def table(self, asset: AssetOrKey) -> "Table":
        """The table of an asset.

        Args:
            asset: The asset, or its key (`sales/orders`). If the asset declares where its table is
                (`table=…`, `schema` in its metadata), give the asset: its key does not say so.

        Raises:
            StatementError: The asset is the view of a merge-on-read table, which has no table.
        """
        named = NamedAsset.of(asset)
        return self.io_manager.locator.table(named.key, named.declared_place("opening"))
