"""The two tables behind the three assets of a merge-on-read table, as the IO manager knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltaweave
from dagster_deltaweave.changes import READ
from dagster_deltaweave.declaration import MergeOnReadDeclaration
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_deltaweave.io_manager import SparkDeltaIOManager
    from deltaweave import MergeOnReadTable

WHERE = "deltaweave/where"
"""Metadata key of an input: a condition of key columns, for the base and the changes alike."""


@dataclass(frozen=True)
class Locations:
    """Where a merge-on-read table lies: paths or URIs.

    Attributes:
        base: The base.
        changes: The changeset.
        checkpoint: How far a stream was read.
    """

    base: str
    changes: str
    checkpoint: str


def locations(tables: SparkDeltaIOManager, declaration: MergeOnReadDeclaration) -> Locations:
    """Where the tables lie: as declared, or under the root at their keys; asks for no session."""
    base = declaration.base_path or tables.path_or_name(declaration.base)
    changes = declaration.changes_path or tables.path_or_name(declaration.changes)
    # Not in the changeset's directory: a table is made in an empty one.
    return Locations(base, changes, declaration.checkpoint or f"{changes}_checkpoint")


def opened(tables: SparkDeltaIOManager, declaration: MergeOnReadDeclaration) -> MergeOnReadTable:
    """The table, in the IO manager's session."""
    at = locations(tables, declaration)
    return deltaweave.MergeOnReadTable(
        tables.spark.session, at.base, changes=at.changes, **declaration.arguments
    )


def load(
    tables: SparkDeltaIOManager, declaration: MergeOnReadDeclaration, metadata: Mapping[str, Any]
) -> DataFrame:
    """The rows of the view or of the base alone, lazily.

    Args:
        tables: The IO manager.
        declaration: Of the view or the base.
        metadata: That of the input.

    Raises:
        SourceError: The input asks for touched or changed rows.
        StatementError: The condition is not one of keys.
    """
    if READ in metadata:
        raise SourceError(
            f"rows that are merged on read have no versions of which {READ} could tell.",
            table=declaration.view.to_user_string(),
            operation="READ",
            state="Nothing was read.",
            hint=f"Read its changes: {declaration.changes.to_user_string()} is an asset too.",
        )
    table = opened(tables, declaration)
    where = metadata.get(WHERE)
    where = getattr(where, "value", where)
    if declaration.part == "view":
        return table.read(where=where)
    rows = table.read_optimized()
    return rows if where is None else rows.where(where)
