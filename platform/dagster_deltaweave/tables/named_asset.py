"""Names the asset of a table: by its definition, its spec, or its key alone."""

# No `from __future__ import annotations`: the functions of checks are annotated with these types.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    DagsterInvalidDefinitionError,
    OpDefinition,
    OpExecutionContext,
)

from dagster_deltaweave.dagster_private import AssetGraph, CheckError
from dagster_deltaweave.tables.declaration import TablePlace
from dagster_deltaweave.tables.locator import io_manager_of
from dagster_deltaweave.tables.metadata_declarations import table_place

AssetOrKey: TypeAlias = AssetsDefinition | AssetSpec | AssetKey | str
"""The asset of a table, also an external one: its definition or spec, or its key."""


def one_or_more(assets: Any, of: str) -> Sequence[Any]:
    """The assets that a builder got, as a list also if it got one alone.

    Args:
        assets: One, or several.
        of: What is built for them, to name it.

    Raises:
        DagsterInvalidDefinitionError: There is none.
    """
    # Before lists: a key is a tuple, and a name is a sequence of letters.
    listed = [assets] if isinstance(assets, get_args(AssetOrKey)) else list(assets)
    if not listed:
        raise DagsterInvalidDefinitionError(
            f"{of}: its list of assets is empty, so it would do nothing. Name at least one asset, "
            "or leave it out."
        )
    return listed


@dataclass(frozen=True)
class NamedAsset:
    """What is known of a table's asset before a run.

    Attributes:
        key: The key that it is declared with.
        metadata: Its definition's; None if only the key is given.
        io_manager_key: Resource key of its IO manager.
        pool: The pool of its op; None if it has none, or is not known.
        is_partitioned: Whether it has partitions; None if that is not known.
    """

    key: AssetKey
    metadata: Mapping[str, Any] | None
    io_manager_key: str
    pool: str | None = None
    is_partitioned: bool | None = None

    @classmethod
    def of(cls, asset: AssetOrKey, io_manager_key: str | None = None) -> "NamedAsset":
        """What the definition or the key says; an IO manager that is given goes before its own."""
        if isinstance(asset, AssetsDefinition):
            key, node = asset.key, asset.node_def
            pool = node.pool if isinstance(node, OpDefinition) else None
            metadata = asset.metadata_by_key[key]
            manager = io_manager_key or io_manager_of(asset)
            return cls(key, metadata, manager, pool, asset.partitions_def is not None)
        if isinstance(asset, AssetSpec):
            own = asset.metadata.get("dagster/io_manager_key")
            manager = io_manager_key or own or "io_manager"
            return cls(
                asset.key, asset.metadata, manager, is_partitioned=asset.partitions_def is not None
            )
        key = AssetKey.from_user_string(asset) if isinstance(asset, str) else asset
        return cls(key, None, io_manager_key or "io_manager")

    @property
    def name(self) -> str:
        """The key as Dagster spells it."""
        return self.key.to_user_string()

    def place(self, context: OpExecutionContext, key: AssetKey) -> TablePlace:
        """Where the table is, or how it is written, by the key that it has in a run."""
        metadata = self.metadata
        if metadata is None:
            graph = _graph(context)
            metadata = graph.get(key).metadata if graph.has(key) else {}
        return table_place(metadata, asset=key.to_user_string())


def _graph(context: OpExecutionContext) -> AssetGraph:
    """The assets of the code location; for a run outside of one, those of its job."""
    try:
        return context.repository_def.asset_graph
    except CheckError:
        return context.job_def.asset_layer.asset_graph
