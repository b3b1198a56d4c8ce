"""`DeltaTableResource`: the tables of assets, for code that reads or changes them itself."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from typing import TYPE_CHECKING

from dagster import AssetKey, AssetsDefinition, ConfigurableResource, ResourceDependency

from dagster_deltaweave.io_manager import SparkDeltaIOManager
from dagster_deltaweave.tables import MergeOnReadDeclaration, table_place
from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from deltaweave import Table


class DeltaTableResource(ConfigurableResource["DeltaTableResource"]):
    """Gives the `deltaweave.Table` of an asset, where the IO manager has it.

    The session starts when a table is first asked for.

    >>> tables = DeltaTableResource(io_manager=io_manager)
    >>> tables.table("sales/orders").history()
    """

    io_manager: ResourceDependency[SparkDeltaIOManager]

    def table(self, asset: AssetsDefinition | AssetKey | str) -> "Table":
        """The table of an asset.

        Args:
            asset: The asset, or its key (`sales/orders`). If the asset declares where its table is
                (`table=…`, `schema` in its metadata), give the asset: its key does not say so.

        Raises:
            StatementError: The asset is the view of a merge-on-read table, which has no table.
        """
        if not isinstance(asset, AssetsDefinition):
            key = AssetKey.from_user_string(asset) if isinstance(asset, str) else asset
            return self.io_manager.locator.table(key)
        name = asset.key.to_user_string()
        declaration = table_place(asset.metadata_by_key[asset.key], asset=name)
        if isinstance(declaration, MergeOnReadDeclaration) and declaration.part == "view":
            raise StatementError(
                "the view of a merge-on-read table has no table of its own.",
                table=name,
                operation="opening",
                hint=f"Its tables are those of {declaration.base.to_user_string()} and "
                f"{declaration.changes.to_user_string()}.",
            )
        return self.io_manager.locator.table(asset.key, declaration)
