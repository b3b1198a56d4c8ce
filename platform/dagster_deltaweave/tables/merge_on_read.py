"""The three assets of a merge-on-read table, and the two tables behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetsDefinition

import deltaweave
from dagster_deltaweave.tables.applied_changes import READ_METADATA_KEY
from dagster_deltaweave.tables.declaration import MergeOnReadDeclaration
from dagster_deltaweave.tables.metadata_declarations import table_declaration
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables.locator import TableLocator
    from deltaweave import MergeOnReadTable

WHERE = "deltaweave/where"
"""Metadata key of an input: a condition of key columns, for both the base and the changes."""


class MergeOnReadAssets(list[AssetsDefinition]):
    """The three assets of a merge-on-read table.

    It is a list, so that Dagster's loaders find the assets in a module:
    `Definitions(assets=[*orders])`.

    Attributes:
        changes: The appended change events.
        base: The table into which they are merged.
        view: The rows of the base with all changes.
    """

    def __init__(
        self, changes: AssetsDefinition, base: AssetsDefinition, view: AssetsDefinition
    ) -> None:
        super().__init__([changes, base, view])
        self.changes, self.base, self.view = changes, base, view

    @property
    def declaration(self) -> MergeOnReadDeclaration:
        """The declaration of the view."""
        key = self.view.key
        found = table_declaration(self.view.metadata_by_key[key], asset=key.to_user_string())
        assert isinstance(found, MergeOnReadDeclaration)
        return found

    @property
    def io_manager_key(self) -> str:
        """The resource key of the IO manager that stores them."""
        return self.changes.get_io_manager_key_for_asset_key(self.changes.key)


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
            state="Nothing was read.",
            hint=f"Read its changes: {declaration.changes.to_user_string()} is an asset too.",
        )
    table = open_merge_on_read(tables, declaration)
    where = metadata.get(WHERE)
    where = getattr(where, "value", where)
    if declaration.part == "view":
        return table.read(where=where)
    rows = table.read_optimized()
    return rows if where is None else rows.where(where)
