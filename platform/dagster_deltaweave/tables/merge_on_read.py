"""The two tables behind the three assets of a merge-on-read table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltaweave
from dagster_deltaweave.tables.applied_changes import READ_METADATA_KEY
from dagster_deltaweave.tables.declaration import MergeOnReadDeclaration
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.tables.locator import TableLocator
    from deltaweave import MergeOnReadTable

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
    """The locations, as declared or under the root at their keys; this needs no session."""
    base = tables.path_or_name(declaration.base, declaration.of_part("base"))
    changes = tables.path_or_name(declaration.changes, declaration.of_part("changes"))
    # Not in the changeset's directory, because a table is created in an empty directory.
    return MergeOnReadLocations(base, changes, declaration.checkpoint or f"{changes}_checkpoint")


def open_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration
) -> MergeOnReadTable:
    """The table, in the session of the locator."""
    at = merge_on_read_locations(tables, declaration)
    return deltaweave.MergeOnReadTable(
        tables.session, at.base, changes=at.changes, **declaration.arguments
    )


def load_merge_on_read(
    tables: TableLocator, declaration: MergeOnReadDeclaration, metadata: Mapping[str, Any]
) -> DataFrame:
    """The rows of the view or of the base alone, lazily.

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
