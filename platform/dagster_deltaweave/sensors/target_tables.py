"""The assets that a sensor's target merges partitions into, and which deliveries they hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast, get_args

from dagster import (
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterInvalidDefinitionError,
    DagsterRun,
    DynamicPartitionsDefinition,
    JobDefinition,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    RepositoryDefinition,
    SensorEvaluationContext,
    TimeWindowPartitionsDefinition,
    build_resources,
)

from dagster_deltaweave.dagster_private import UnresolvedAssetJobDefinition
from dagster_deltaweave.landing import Delivery, Landing
from dagster_deltaweave.logs import HeldPartitions, merged_partitions
from dagster_deltaweave.partitions import (
    ATTEMPT_TAG,
    NO_TABLE,
    RECORDED_TAG,
    Positions,
    newest_first,
    recorded_tag,
    written_tag,
    wrote,
)
from dagster_deltaweave.sensors.run_requests import known_partitions
from dagster_deltaweave.storage import file_system, redacted
from dagster_deltaweave.tables import (
    MergeDeclaration,
    TableDeclaration,
    TableLocator,
    WriteDeclaration,
    bound_resources,
    table_declaration,
)
from deltaweave.errors import NOTHING_REQUESTED, SourceError
from deltaweave.identifiers import is_path

_Job = JobDefinition | UnresolvedAssetJobDefinition
_Assets = AssetSelection | AssetsDefinition | Sequence[AssetsDefinition] | Sequence[AssetKey]
Target = _Job | _Assets | str | Sequence[str]
"""What Dagster's own sensors take as their target."""


@dataclass(frozen=True)
class TargetAsset:
    """An asset with the landing partitions, and what its table holds by the table's log.

    Attributes:
        declaration: How the asset's table is written, if it is declared.
        is_read: Whether a log says what the table holds; otherwise Dagster's runs do.
        held: What the table holds; None if there is no table, or none is read.
        margin: How much earlier than a run a delivery must have changed, in ns, to be in what the
            run read.
    """

    key: AssetKey
    declaration: TableDeclaration | None = None
    is_read: bool = False
    held: HeldPartitions | None = None
    margin: int = 0

    @property
    def is_ordered(self) -> bool:
        """Whether an older partition must be merged before a newer one."""
        return self.declaration is not None and self.declaration.needs_order

    def holds(self, delivery: Delivery, landing: Landing) -> bool:
        """Return whether the table holds the delivery, or rows of a partition that counts once."""
        if self.held is None or self.declaration is None:
            return False
        is_once = self.declaration.idempotent_by == "partition"
        if is_once and self.held.counts(delivery.partition, landing):
            return True
        changed_at = delivery.changed_at + self.margin
        identity = str(delivery.identity)
        return self.held.holds_delivery(delivery.partition, landing, identity, changed_at)

    def counts(self, run: DagsterRun) -> bool:
        """Return whether a run that succeeded counts as a merge that the table's log does not show.

        A run that recorded its partitions counts by the log alone, and one that had no row and no
        table to record that counts. Of others, which no tag describes, only runs of a sensor count
        if there is no table: it may have been dropped.
        """
        if not self.is_read:
            return True
        own = recorded_tag(self.key)
        if wrote(run, own):
            return (written_tag(run.tags, own) or "").startswith(NO_TABLE)
        if wrote(run, RECORDED_TAG):
            return False
        return self.held is not None or written_tag(run.tags, ATTEMPT_TAG) is not None

    def newest_merged(self, positions: Positions, instance: DagsterInstance) -> str | None:
        """Return the newest merged partition; no partition before it is merged any more."""
        if self.is_read:
            order = self.held.order if self.held else {}
        else:
            order = dict.fromkeys(instance.get_materialized_partitions(self.key), 0)
        return next(newest_first(order, positions), None)


@dataclass(frozen=True)
class StartedTarget:
    """The job or the assets that a sensor starts."""

    context: SensorEvaluationContext
    target: Target

    @property
    def job_name(self) -> str | None:
        """The name of the job, if the target is one."""
        return self.target.name if isinstance(self.target, get_args(_Job)) else None

    @property
    def is_of_ops(self) -> bool:
        """Whether it is a job of ops, which materializes no asset."""
        return isinstance(self.target, JobDefinition) and not self.keys

    def without(self, held: Collection[AssetKey]) -> Sequence[AssetKey] | None:
        """Return a run's assets without some, if those can be left out; None for all assets."""
        graph = self.repository.asset_graph
        wanted = [graph.get(key) for key in self.executed if key not in held]
        together = {key for each in wanted for key in each.execution_set_asset_keys}
        return None if together >= self.executed else sorted(together)

    @cached_property
    def executed(self) -> frozenset[AssetKey]:
        """The assets of the target that runs make."""
        graph = self.repository.asset_graph
        return frozenset(key for key in self.keys if graph.get(key).is_executable)

    @cached_property
    def repository(self) -> RepositoryDefinition:
        """The definitions of the code location."""
        repository = self.context.repository_def
        if repository is None:
            raise ValueError("a landing sensor needs build_sensor_context(definitions=…).")
        return repository

    @cached_property
    def keys(self) -> Sequence[AssetKey]:
        """All assets of the target."""
        if isinstance(self.target, JobDefinition):
            return sorted(self.target.asset_layer.executable_asset_keys)
        given = self.target
        if isinstance(given, UnresolvedAssetJobDefinition):
            given = given.selection
        if isinstance(given, AssetsDefinition):
            given = [given]
        selection = AssetSelection.from_coercible(given)
        return sorted(selection.resolve(self.repository.asset_graph))


@dataclass(frozen=True)
class SensorTarget(StartedTarget):
    """The job or the assets that a sensor starts, for partitions that land in a directory."""

    partitions_def: PartitionsDefinition[str]
    directory: str | Path
    suffix: str = ""

    @cached_property
    def landing(self) -> Landing:
        """What lands there, as runs name it."""
        return Landing.of(self.directory, self.suffix)

    @cached_property
    def known(self) -> frozenset[str] | None:
        """The partitions that the sensor and its assets have now; None if any can be added."""
        own, known = self.partitions_def, known_partitions(self.context, self.partitions_def)
        for each in self._definitions:
            keys = None if each == own else known_partitions(self.context, each)
            if isinstance(each, DynamicPartitionsDefinition) and each != own:
                # The sensor adds its own partitions alone.
                name = each.name
                keys = frozenset(self.context.instance.get_dynamic_partitions(name) if name else ())
            known = keys if known is None else known if keys is None else known & keys
        return known

    def denies(self, partition: str) -> bool:
        """Return whether Dagster refuses a run for a known partition, as some of the last month."""
        return any(_denies(each, partition) for each in {self.partitions_def, *self._definitions})

    @cached_property
    def _definitions(self) -> Collection[PartitionsDefinition[str]]:
        """The partitions of the assets that the sensor looks at, or of the job of ops."""
        if isinstance(self.target, JobDefinition) and self.target.partitions_def:
            return [self.target.partitions_def]
        found = map(self._partitions_of.get, self.partitioned)
        return {each for each in found if each is not None}

    @cached_property
    def _partitions_of(self) -> Mapping[AssetKey, PartitionsDefinition[str] | None]:
        definitions = self.repository.assets_defs_by_key
        return {
            key: definitions[key].specs_by_key[key].partitions_def
            for key in self.keys
            if key in definitions
        }

    @cached_property
    def partitioned(self) -> frozenset[AssetKey]:
        """Return the assets with the landing partitions, or else others; of ops, their job."""
        partitions = self._partitions_of
        own = frozenset(key for key, each in partitions.items() if each == self.partitions_def)
        # The sensor's own may differ from theirs, e.g. by their first day.
        others = frozenset(key for key, each in partitions.items() if each is not None)
        if not others and isinstance(self.target, JobDefinition) and self.target.partitions_def:
            return frozenset({AssetKey([self.target.name])})
        if not others:
            names = ", ".join(each.to_user_string() for each in self.keys) or self.job_name
            raise _unpartitioned(f"sensor on {self.landing.directory}", names)
        return own or others

    def assets(self, margin: int) -> list[TargetAsset]:
        """Return the assets that have the partitions that land, and what their tables hold."""
        return [self._asset(key, margin) for key in sorted(self.partitioned)]

    def _asset(self, key: AssetKey, margin: int) -> TargetAsset:
        definition = self.repository.assets_defs_by_key.get(key)
        if definition is None:
            return TargetAsset(key, margin=margin)
        metadata = definition.metadata_by_key.get(key, {})
        declaration = table_declaration(metadata, asset=key.to_user_string())
        location = None
        if isinstance(declaration, (MergeDeclaration, WriteDeclaration)):
            location = self._location(definition, key, declaration)
        if location is None:
            return TargetAsset(key, declaration, margin=margin)
        return TargetAsset(key, declaration, True, _held_in(location, key), margin)

    def _location(
        self, definition: AssetsDefinition, key: AssetKey, declaration: TableDeclaration
    ) -> str | None:
        """Return where the asset's log can be read without Spark; None if it cannot."""
        name = definition.get_io_manager_key_for_asset_key(key)
        needed = bound_resources(definition, name)
        try:
            with build_resources(needed, instance=self.context.instance) as resources:
                locator = getattr(getattr(resources, name, None), "locator", None)
            if not isinstance(locator, TableLocator):
                return None
            location = locator.path_or_name(key, declaration)
            # A table that has a name is found by a catalog, which needs Spark.
            if not is_path(location):
                return None
            file_system(location)
        # Only runs have its configuration, or Arrow does not have the store.
        except (DagsterInvalidConfigError, ValueError, NotImplementedError) as error:
            self.context.log.warning(
                f"{key.to_user_string()}: its log is not read, so Dagster's runs say what is "
                f"merged: {redacted(error)}"
            )
            return None
        return location


def _denies(definition: PartitionsDefinition[str], partition: str) -> bool:
    """Return whether a definition that lists a partition has no such key where time is concerned.

    Of other definitions, Dagster would compute all keys again.
    """
    if isinstance(definition, MultiPartitionsDefinition):
        of_dimension = definition.get_partition_key_from_str(partition).keys_by_dimension
        dimensions = definition.partitions_defs
        return any(_denies(each.partitions_def, of_dimension[each.name]) for each in dimensions)
    is_of_time = isinstance(definition, TimeWindowPartitionsDefinition)
    return is_of_time and not definition.has_partition_key(partition)


def check_target_partitions(sensor: str, target: Target) -> None:
    """Refuse a target without partitions, if definitions or a job of ops are given for it.

    The first tick checks assets that are named by keys or selections.
    """
    if isinstance(target, JobDefinition):
        if target.partitions_def is None and not target.asset_layer.executable_asset_keys:
            raise _unpartitioned(f"sensor {sensor}", target.name)
        return
    # Selections and jobs are tuples, too.
    several = type(target) in (list, tuple)
    given = list(cast("Sequence[object]", target)) if several else [target]
    definitions = [each for each in given if isinstance(each, AssetsDefinition)]
    specs = [spec for each in definitions for spec in each.specs]
    if specs and len(definitions) == len(given) and not any(s.partitions_def for s in specs):
        names = ", ".join(spec.key.to_user_string() for spec in specs)
        raise _unpartitioned(f"sensor {sensor}", names)


def _unpartitioned(sensor: str, names: str | None) -> DagsterInvalidDefinitionError:
    return DagsterInvalidDefinitionError(
        f"{sensor}: {names} has no partitions, and the sensor requests a run for each partition. "
        "Give it a partitions_def."
    )


def _held_in(location: str, key: AssetKey) -> HeldPartitions | None:
    try:
        return merged_partitions(location, key)
    except (OSError, ValueError, KeyError) as error:
        raise SourceError(
            f"its log cannot be read ({type(error).__name__}: {redacted(error)}), so it is not "
            "known which partitions it holds.",
            table=location,
            operation="looking for new partitions",
            state=NOTHING_REQUESTED,
        ) from None
