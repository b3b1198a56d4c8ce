"""`Changes`: the rows that a function returns, and the upstream version that they apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetsDefinition, OpDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import ChangedRows, TouchedRows

READ_METADATA_KEY = "deltaweave/read"
"""Metadata key of an `AssetIn` that says what to load of the upstream table."""

READ_TOUCHED = "touched"
"""Value of that key: the rows of files that were touched since the version last applied."""

READ_CHANGED = "changes"
"""Value of that key: exactly the rows changed since then, from the upstream's change data feed."""


@dataclass(frozen=True)
class Changes:
    """The rows to write, and the touched or changed rows of the upstream table that they apply.

    The merge commits `applied.until` together with the rows. So a run that is executed again
    applies nothing twice, and the next run continues from there.

    Attributes:
        rows: The changes, as the merge's source: a DataFrame of Spark, pandas or Polars, or
            Arrow's table or record batches.
        applied: The touched or changed rows from the asset's input, unchanged.
    """

    rows: Any
    applied: TouchedRows | ChangedRows | None = None


@dataclass(frozen=True)
class ChangesOfPartitions(Changes):
    """Changes of several partitions, and which of them each row is of.

    Attributes:
        parts: Partition key to its rows, a DataFrame of Spark; `rows` has those of all.
    """

    parts: Mapping[str, DataFrame] = field(default_factory=dict)


def application_id(upstream: AssetKey, downstream: AssetKey, table_id: str | None = None) -> str:
    """Return the application id of `downstream`'s commits of the versions of `upstream` it applied.

    Args:
        upstream: The upstream asset.
        downstream: The asset that applies it.
        table_id: Delta's id of the upstream's table; without it, the id that earlier releases used.
    """
    pair = f"{upstream.to_user_string()}→{downstream.to_user_string()}"
    return pair if table_id is None else f"{pair}@{table_id}"


def touched_upstreams(definition: AssetsDefinition) -> list[AssetKey]:
    """Return the upstream assets that this asset reads only by touched or changed rows."""
    if not isinstance(definition.node_def, OpDefinition):
        return []  # ops of a graph asset get whole tables
    inputs = definition.op.ins
    return [
        key
        for name, key in definition.keys_by_input_name.items()
        if name in inputs
        and (inputs[name].metadata or {}).get(READ_METADATA_KEY) in (READ_TOUCHED, READ_CHANGED)
    ]
