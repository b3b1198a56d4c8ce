"""Shared by the components of tables: their asset, the source of its rows, Dagster's arguments."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from dagster import (
    AssetExecutionContext,
    AssetIn,
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
from dagster.components.lib.executable_component.function_component import ResolvableCallable
from dagster.components.resolved.core_models import OpSpec
from pydantic import Field, InstanceOf, create_model, field_validator

from dagster_deltaweave.assets import ASSET_KINDS, DagsterArguments
from dagster_deltaweave.landing import literal_path
from dagster_deltaweave.partitions import partition_keys
from dagster_deltaweave.tables import Duration
from deltaweave._validation import check_given_location
from deltaweave.errors import SourceError

_SPARK = "spark"
_PARTITION = "{partition}"

AnyPolicy = TypeVar("AnyPolicy")


class PathSource(Model, Resolvable):
    """Changes in files under a path."""

    type: Literal["path"] = "path"
    path: Annotated[
        str,
        Field(
            description="Path or URI; each of the run's partitions replaces `{partition}`, "
            "and is read by itself."
        ),
    ]
    format: Annotated[str, Field(description="Any format that Spark reads.")] = "parquet"
    columns: Annotated[
        str | None, Field(description="The files' schema as DDL; by default Spark infers it.")
    ] = None
    options: Annotated[Mapping[str, str], Field(description="Options of Spark's reader.")] = {}

    @field_validator("path")
    @classmethod
    def _is_a_location(cls, path: str) -> str:
        check_given_location(path, operation="declaration")
        return path


class SqlSource(Model, Resolvable):
    """Changes that a query computes."""

    type: Literal["sql"] = "sql"
    sql: Annotated[
        str,
        Resolver(lambda _, text: text, model_field_type=str, inject_before_resolve=False),
        Field(description="A SELECT; an upstream asset is written as its name in braces."),
    ]
    upstreams: Annotated[
        Mapping[str, str],
        Field(description="Name in the query to the upstream asset's key, e.g. `sales/orders`."),
    ] = {}


class FunctionSource(Model, Resolvable):
    """Changes that a Python function returns, like the function of a `@merge_asset`."""

    type: Literal["function"] = "function"
    function: Annotated[
        ResolvableCallable,
        Field(description="`package.module.function`, or `.folder.module.function` under defs."),
    ]


Source = PathSource | SqlSource | FunctionSource
"""The possible sources of the rows of a table in YAML."""


def inputs_of_source(source: Source) -> Mapping[str, AssetIn] | None:
    """Return the upstream assets that a query names, as inputs; None for other sources."""
    if not isinstance(source, SqlSource):
        return None
    return {
        name: AssetIn(key=AssetKey.from_user_string(key)) for name, key in source.upstreams.items()
    }


def function_of_source(source: Source) -> Callable[..., Any]:
    """Build the asset's function, which returns the changes."""
    if isinstance(source, FunctionSource):
        return source.function
    if isinstance(source, SqlSource):
        return _run_query(source)
    return _read_files(source)


def _read_files(source: PathSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext) -> Any:
        reader = getattr(context.resources, _SPARK).session.read.format(source.format)
        reader = reader.options(**source.options)
        reader = reader.schema(source.columns) if source.columns else reader
        if _PARTITION not in source.path:
            return reader.load(source.path)
        is_pattern = source.format.lower() != "delta"
        # Spark takes the columns of all files that it reads at once from one of them.
        parts = {
            key: reader.load(path_of_partition(source.path, key, is_pattern))
            for key in partition_keys(context)
        }
        return parts if len(parts) > 1 else parts.popitem()[1]

    return changes


def path_of_partition(path: str, key: str, is_pattern: bool = True) -> str:
    """Put a partition's key in place of `{partition}`, whatever characters the key holds."""
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise SourceError(
            f"the key {key!r} leads to another directory.",
            table=path,
            operation="reading a source partition",
            hint="Give the partition a key that is a name.",
        )
    # As a pattern, the key `*` would read the files of all partitions.
    return path.replace(_PARTITION, literal_path(key) if is_pattern else key)


def _run_query(source: SqlSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext, **upstreams: Any) -> Any:
        return getattr(context.resources, _SPARK).session.sql(source.sql, **upstreams)

    return changes


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
    op: Annotated[OpSpec | None, Field(description="Pool, tags and backfill policy of its op.")] = (
        None
    )
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
        for name in ("name", "description"):
            if getattr(op, name) is not None:
                raise ValueError(f"The op of an asset has no `{name}` of its own: leave it out.")
        passed_on: DagsterArguments = {
            "ins": inputs_of_source(self.source),
            "deps": list(spec.deps),
            "partitions_def": self._partitions_def(),
            "backfill_policy": op.backfill_policy,
            "op_tags": op.tags,
            "automation_condition": spec.automation_condition,
            "freshness_policy": spec.freshness_policy,
            "description": spec.description,
            "group_name": spec.group_name,
            "owners": list(spec.owners),
            "tags": {k: v for k, v in spec.tags.items() if not k.startswith("dagster/kind/")},
            "code_version": spec.code_version,
            "io_manager_key": self.io_manager_key,
            # A function names the resources that it needs as its parameters.
            "required_resource_keys": (
                set() if isinstance(self.source, FunctionSource) else {_SPARK}
            ),
        }
        return {
            "name": spec.key.path[-1],
            "key_prefix": list(spec.key.path[:-1]) or None,
            "metadata": spec.metadata,
            "kinds": spec.kinds or ASSET_KINDS,
            "pool": op.pool,
            **passed_on,
        }

    def _partitions_def(self) -> PartitionsDefinition[str] | None:
        if self.dynamic_partitions is None:
            return self.asset.partitions_def
        if self.asset.partitions_def is not None:
            raise ValueError("Give dynamic_partitions or the asset's partitions_def, not both.")
        return DynamicPartitionsDefinition(name=self.dynamic_partitions)


def with_options(component: type[TableComponent], *options: type[Any]) -> Any:
    """Return a component that has the fields of dataclasses as attributes in YAML, too."""
    attributes: dict[str, Any] = {
        each.name: (each.type, ... if each.default is MISSING else each.default)
        for kind in options
        for each in fields(kind)
    }
    name = "And".join(kind.__name__ for kind in (component, *options))
    return create_model(name, __base__=component, __module__=component.__module__, **attributes)


def policy_in(kind: type[AnyPolicy], attributes: Model) -> AnyPolicy:
    """Build a policy of its fields that YAML has; of a time span that is left out, the default."""
    given = {
        each.name: (getattr(attributes, each.name), each.default)
        for each in fields(cast(Any, kind))
        if each.name in type(attributes).model_fields
    }
    return kind(
        **{
            name: value.timedelta() if isinstance(value, Duration) else value
            for name, (value, default) in given.items()
            if value is not None or not isinstance(default, timedelta)
        }
    )


def declared_assets(
    context: ComponentLoadContext, keys: AssetKey | Sequence[AssetKey]
) -> list[AssetsDefinition]:
    """Return the assets with a key or keys, as the components of this project declare them."""
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
        """Write the `defs.yaml`; `NAME` in the attributes becomes the name of the folder."""
        scaffold_component(request, _with_name(self.attributes, Path(request.target_path).stem))


def _with_name(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _with_name(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_name(each, name) for each in value]
    return value.replace("NAME", name) if isinstance(value, str) else value
