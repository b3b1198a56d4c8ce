"""Shared by the components of tables: their asset, the source of its rows, Dagster's arguments."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from dagster import (
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    Component,
    ComponentLoadContext,
    Definitions,
    DynamicPartitionsDefinition,
    Model,
    PartitionsDefinition,
    ResolutionContext,
    Resolvable,
    ResolvedAssetSpec,
    Resolver,
    Scaffolder,
    ScaffoldRequest,
)
from dagster.components.component_scaffolding import scaffold_component
from dagster.components.resolved.core_models import OpSpec
from pydantic import Field, InstanceOf

from dagster_deltaweave.assets import KINDS, DagsterArguments
from dagster_deltaweave.components.merge_sources import (
    FunctionSource,
    PathSource,
    SqlSource,
    inputs_of_source,
    resources_of_source,
)

Automation: TypeAlias = Annotated[
    InstanceOf[AutomationCondition[Any]] | None, Resolver.default(model_field_type=str | None)
]
"""A condition of Dagster's, as an expression: `"{{ dg.AutomationCondition.eager() }}"`."""


def _resolved_keys(context: ResolutionContext, keys: str | Sequence[str]) -> list[AssetKey]:
    texts = [keys] if isinstance(keys, str) else keys
    return [AssetKey.from_user_string(context.resolve_value(each, as_type=str)) for each in texts]


OneOrMoreKeys: TypeAlias = Annotated[
    InstanceOf[AssetKey] | Annotated[Sequence[InstanceOf[AssetKey]], Field(min_length=1)],
    Resolver(_resolved_keys, model_field_type=str | Sequence[str]),
]
"""The key of an asset, or a list of keys."""


class Duration(Model, Resolvable):
    """A time span, e.g. `{days: 7}`: the sum of its parts."""

    days: Annotated[float, Field(ge=0)] = 0
    hours: Annotated[float, Field(ge=0)] = 0
    minutes: Annotated[float, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0

    def timedelta(self) -> timedelta:
        """Return the span as a Python `timedelta`."""
        return timedelta(
            days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds
        )


class TableComponent(Component, Resolvable, Model):
    """A component that declares a table, as one or several assets."""

    asset: Annotated[
        ResolvedAssetSpec,
        Field(
            description="Key, description, group, owners, tags, partitions, automation and such."
        ),
    ]
    source: Annotated[
        PathSource | SqlSource | FunctionSource, Field(description="Where the rows come from.")
    ]
    retries: Annotated[int, Field(description="Attempts after a transient error.")] = 3
    dynamic_partitions: Annotated[
        str | None,
        Field(description="Name of dynamic partitions, which are added as they land."),
    ] = None
    op: Annotated[OpSpec | None, Field(description="Pool and backfill policy of its runs.")] = None
    io_manager_key: Annotated[str, Field(description="Resource key of the IO manager.")] = (
        "io_manager"
    )

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Build the definitions of the table's assets."""
        return Definitions(assets=self.asset_definitions())

    def asset_definitions(self) -> Sequence[AssetsDefinition]:
        """Build the assets that the attributes declare."""
        raise NotImplementedError

    def _dagster_arguments(self) -> dict[str, Any]:
        """Return the decorator arguments that are Dagster's own or that name the asset."""
        spec, op = self.asset, self.op or OpSpec()
        passed_on: DagsterArguments = {
            "ins": inputs_of_source(self.source),
            "deps": list(spec.deps),
            "partitions_def": self._partitions_def(),
            "backfill_policy": op.backfill_policy,
            "automation_condition": spec.automation_condition,
            "freshness_policy": spec.freshness_policy,
            "description": spec.description,
            "group_name": spec.group_name,
            "owners": list(spec.owners),
            "tags": {k: v for k, v in spec.tags.items() if not k.startswith("dagster/kind/")},
            "code_version": spec.code_version,
            "io_manager_key": self.io_manager_key,
            "required_resource_keys": resources_of_source(self.source),
        }
        return {
            "name": spec.key.path[-1],
            "key_prefix": list(spec.key.path[:-1]) or None,
            "metadata": spec.metadata,
            "kinds": spec.kinds or KINDS,
            "pool": op.pool,
            **passed_on,
        }

    def _partitions_def(self) -> PartitionsDefinition[str] | None:
        if self.dynamic_partitions is None:
            return self.asset.partitions_def
        if self.asset.partitions_def is not None:
            raise ValueError("Give dynamic_partitions or the asset's partitions_def, not both.")
        return DynamicPartitionsDefinition(name=self.dynamic_partitions)


def declared_assets(
    context: ComponentLoadContext, keys: AssetKey | Sequence[AssetKey]
) -> list[AssetsDefinition]:
    """The assets with these keys, one or several, as the components of this project declare them.

    Raises:
        ValueError: No component declares one of them.
    """
    keys = [keys] if isinstance(keys, AssetKey) else keys
    tables = context.component_tree.get_all_components(of_type=TableComponent)
    declared = {each.key: each for table in tables for each in table.asset_definitions()}
    for key in keys:
        if key not in declared:
            known = ", ".join(sorted(each.to_user_string() for each in declared)) or "none"
            raise ValueError(
                f"No component declares the table {key.to_user_string()}; declared are: {known}. "
                "For assets of Python code, use the function of dagster_deltaweave in its place."
            )
    return [declared[key] for key in keys]


class AttributesScaffolder(Scaffolder):
    """Writes a `defs.yaml` with what a first use of a component needs, for the user to fill in."""

    attributes: ClassVar[dict[str, Any]]

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write it; `NAME` in the attributes becomes the name of the folder."""
        scaffold_component(request, _named(self.attributes, Path(request.target_path).stem))


def _named(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _named(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each, name) for each in value]
    return value.replace("NAME", name) if isinstance(value, str) else value
