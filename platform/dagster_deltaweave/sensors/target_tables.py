"""The tables that a sensor's target merges partitions into, and which deliveries they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    JobDefinition,
    PartitionsDefinition,
    RepositoryDefinition,
    ResourceDefinition,
    SensorEvaluationContext,
    build_resources,
)

from dagster_deltaweave.dagster_private import UnresolvedAssetJobDefinition
from dagster_deltaweave.logs import HeldPartitions, holds_delivery, merged_partitions
from dagster_deltaweave.tables import (
    MergeDeclaration,
    TableLocator,
    WriteDeclaration,
    table_declaration,
)
from deltaweave.errors import SourceError
from deltaweave.identifiers import is_path

if TYPE_CHECKING:
    from dagster_deltaweave.landing import Delivery

Target = JobDefinition | UnresolvedAssetJobDefinition | AssetSelection


@dataclass(frozen=True)
class TargetTable:
    """A table, and what its log says that it holds.

    Attributes:
        key: The key of its asset.
        declaration: How the asset is written.
        held: What the table holds; None if there is no table.
        margin: How much earlier than a run a delivery must have changed, in ns, to be in what the
            run read.
    """

    key: AssetKey
    declaration: MergeDeclaration | WriteDeclaration
    held: HeldPartitions | None
    margin: int

    @property
    def is_ordered(self) -> bool:
        """Whether an older partition must be merged before a newer one."""
        return isinstance(self.declaration, MergeDeclaration) and self.declaration.needs_order

    def holds(self, delivery: Delivery) -> bool:
        """Whether the delivery is merged, or its partition if it counts once."""
        record = None if self.held is None else self.held.records.get(delivery.partition)
        if record is None:
            return False
        if self.declaration.idempotent_by == "partition":
            return True
        return holds_delivery(record, str(delivery.identity), delivery.changed_at + self.margin)


@dataclass(frozen=True)
class SensorTarget:
    """What a sensor starts.

    Attributes:
        context: The context of the tick.
        target: The job or the assets.
        partitions_def: The partitions that land.
    """

    context: SensorEvaluationContext
    target: Target
    partitions_def: PartitionsDefinition[str]

    @property
    def job_name(self) -> str | None:
        """The name of the job, if the target is one."""
        return None if isinstance(self.target, AssetSelection) else self.target.name

    @cached_property
    def partitioned(self) -> frozenset[AssetKey]:
        """The assets that have the partitions that land; all if the tick knows no definitions."""
        definitions = [(key, self.repository.assets_defs_by_key.get(key)) for key in self._keys]
        return frozenset(
            key
            for key, definition in definitions
            if definition is not None and definition.partitions_def == self.partitions_def
        )

    @cached_property
    def repository(self) -> RepositoryDefinition:
        """The definitions of the code location."""
        repository = self.context.repository_def
        if repository is None:
            raise ValueError("a landing sensor needs build_sensor_context(definitions=…).")
        return repository

    @property
    def _keys(self) -> Sequence[AssetKey]:
        if isinstance(self.target, JobDefinition):
            return sorted(self.target.asset_layer.executable_asset_keys)
        selection = self.target
        if isinstance(selection, UnresolvedAssetJobDefinition):
            selection = selection.selection
        return sorted(selection.resolve(self.repository.asset_graph))

    def tables(self, margin: int) -> list[TargetTable]:
        """Return the tables whose logs say what they hold; not of assets stored otherwise.

        Args:
            margin: As of `TargetTable`.

        Raises:
            SourceError: A log cannot be read.
        """
        return [
            TargetTable(key, declaration, _held(location, key), margin)
            for key, declaration, location in self._located()
        ]

    def _located(self) -> Iterator[tuple[AssetKey, MergeDeclaration | WriteDeclaration, str]]:
        for key in sorted(self.partitioned):
            definition = self.repository.assets_defs_by_key[key]
            declaration = table_declaration(
                definition.metadata_by_key.get(key, {}), asset=key.to_user_string()
            )
            if not isinstance(declaration, (MergeDeclaration, WriteDeclaration)):
                continue
            with build_resources(
                _needed(definition, key), instance=self.context.instance
            ) as resources:
                manager = getattr(resources, _manager_of(definition, key), None)
                locator = getattr(manager, "locator", None)
                if not isinstance(locator, TableLocator):
                    continue
                location = locator.path_or_name(key, declaration)
            # A table that has a name is found by a catalog, which needs Spark.
            if is_path(location):
                yield key, declaration, location


def _manager_of(definition: AssetsDefinition, key: AssetKey) -> str:
    return definition.get_io_manager_key_for_asset_key(key)


def _needed(definition: AssetsDefinition, key: AssetKey) -> dict[str, ResourceDefinition]:
    """The IO manager of an asset and the resources that it needs, of those bound to the asset."""
    bound, left = definition.resource_defs, [_manager_of(definition, key)]
    needed: dict[str, ResourceDefinition] = {}
    while left:
        name = left.pop()
        if name in bound and name not in needed:
            needed[name] = bound[name]
            left += bound[name].get_required_resource_keys(bound)
    return needed


def _held(location: str, key: AssetKey) -> HeldPartitions | None:
    try:
        return merged_partitions(location, key)
    except (OSError, ValueError, KeyError) as error:
        raise SourceError(
            f"its log cannot be read ({type(error).__name__}: {error}), so it is not known which "
            "partitions it holds.",
            table=location,
            operation="looking for new partitions",
            state="Nothing was requested; the next tick looks again.",
        ) from None
