"""A merge asset declared in YAML: the component `dagster_deltaweave.MergeAssetComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Component,
    ComponentLoadContext,
    Definitions,
    DynamicPartitionsDefinition,
    Model,
    PartitionsDefinition,
    Resolvable,
    ResolvedAssetSpec,
    Resolver,
    Scaffolder,
    ScaffoldRequest,
    scaffold_with,
)
from dagster.components.component_scaffolding import scaffold_component
from dagster.components.lib.executable_component.function_component import ResolvableCallable
from dagster.components.resolved.core_models import OpSpec
from pydantic import Field, field_validator, model_validator

from dagster_deltaweave.asset_decorator import KINDS, merge_asset
from dagster_deltaweave.declaration import IdempotentBy, SchemaPolicy
from dagster_deltaweave.run_partitions import partition_keys
from dagster_deltaweave.source_partition import literal_path
from deltaweave.engine import clauses as when
from deltaweave.engine.clauses import Action, Clause, Kind
from deltaweave.errors import SourceError
from deltaweave.locations import refuse_credentials

_SPARK = "spark"


class MergeClause(Model, Resolvable):
    """A WHEN clause: which rows, under which condition, and what to do with them."""

    when: Annotated[Kind, Field(description="Which rows the clause looks at.")]
    then: Annotated[Action, Field(description="What it does to them.")]
    condition: Annotated[
        str | None, Field(description="SQL over the table `t` and the changes `s`; else all rows.")
    ] = None
    set: Annotated[
        Mapping[str, str] | None,
        Field(description="For update and insert: column of the table to SQL."),
    ] = None

    @model_validator(mode="after")
    def _is_complete(self) -> "MergeClause":
        if (self.set is not None) != (self.then in ("update", "insert")):
            raise ValueError(
                f"`set` goes with `then: update` and `then: insert`, not `then: {self.then}`."
                if self.set is not None
                else f"`then: {self.then}` needs `set`, the columns and their SQL."
            )
        return self

    def clause(self) -> Clause:
        """The clause as the engine takes it."""
        name = f"when_{self.when}_{self.then}"
        build: Callable[..., Clause] | None = getattr(when, name, None)
        if build is None:
            raise ValueError(f"MERGE has no clause `when: {self.when}` with `then: {self.then}`.")
        if self.set is None:
            return build(condition=self.condition)
        return build(self.set, condition=self.condition)


class PathSource(Model, Resolvable):
    """Changes that lie as files under a path."""

    type: Literal["path"] = "path"
    path: Annotated[
        str,
        Field(description="Path or URI; `{partition}` in it is replaced by each of the run's."),
    ]
    format: Annotated[str, Field(description="Any format that Spark reads.")] = "parquet"
    columns: Annotated[
        str | None, Field(description="The files' schema as DDL; else Spark infers it.")
    ] = None
    options: Annotated[Mapping[str, str], Field(description="Options of Spark's reader.")] = {}

    @field_validator("path")
    @classmethod
    def _holds_no_credentials(cls, path: str) -> str:
        refuse_credentials(path, operation="declaration")
        return path


class SqlSource(Model, Resolvable):
    """Changes that a query computes."""

    type: Literal["sql"] = "sql"
    sql: Annotated[
        str,
        Resolver(lambda context, text: text, model_field_type=str, inject_before_resolve=False),
        Field(description="A SELECT; an upstream asset is written as its name in braces."),
    ]
    upstreams: Annotated[
        Mapping[str, str],
        Field(description="Name in the query to the upstream asset's key, e.g. `sales/orders`."),
    ] = {}


class FunctionSource(Model, Resolvable):
    """Changes that a Python function returns, as that of a `@merge_asset` does."""

    type: Literal["function"] = "function"
    function: Annotated[
        ResolvableCallable,
        Field(description="`package.module.function`, or `.folder.module.function` under defs."),
    ]


class MergeAssetScaffolder(Scaffolder):
    """Writes a `defs.yaml` that says all that a first merge needs, to be filled in."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write it for an asset of the folder's name."""
        name = Path(request.target_path).stem
        scaffold_component(
            request,
            {
                "asset": {"key": name, "description": f"What a row of {name} is."},
                "keys": ["id"],
                "source": {"type": "path", "path": f"/landing/{name}", "format": "parquet"},
                "schema_policy": "strict",
            },
        )


@scaffold_with(MergeAssetScaffolder)
class MergeAssetComponent(Component, Resolvable, Model):
    """A Delta table as an asset: where its changes come from, and how they are merged into it.

    The attributes are those of `@merge_asset`. It needs the resources `spark` and `io_manager`.

    ```yaml
    type: dagster_deltaweave.MergeAssetComponent
    attributes:
      asset:
        key: sales/orders
        owners: ["team:sales"]
      keys: [order_id]
      source: {type: path, path: "/landing/orders/{partition}"}
      dynamic_partitions: orders
    ```
    """

    asset: Annotated[
        ResolvedAssetSpec,
        Field(
            description="Key, description, group, owners, tags, partitions, automation and such."
        ),
    ]
    source: Annotated[
        PathSource | SqlSource | FunctionSource, Field(description="Where the changes come from.")
    ]
    keys: Annotated[Sequence[str], Field(description="Columns that identify a row.")] = ()
    on: Annotated[
        str | None, Field(description="The merge condition, where keys do not say it.")
    ] = None
    clauses: Annotated[
        Sequence[MergeClause], Field(description="What to do with which rows; else an upsert.")
    ] = ()
    merge_text: Annotated[
        str | None,
        Resolver(lambda context, text: text, model_field_type=str, inject_before_resolve=False),
        Field(description="A whole MERGE statement with {target} and {source}."),
    ] = None
    table: Annotated[str | None, Field(description="Path or catalog name of the table.")] = None
    table_schema: Annotated[str | None, Field(description="DDL of a created table.")] = None
    partition_by: Annotated[Sequence[str], Field(description="Its partition columns.")] = ()
    cluster_by: Annotated[Sequence[str], Field(description="Its clustering columns.")] = ()
    properties: Annotated[Mapping[str, str], Field(description="Its table properties.")] = {}
    schema_policy: Annotated[
        SchemaPolicy, Field(description="What becomes of columns that the table lacks.")
    ] = "strict"
    except_columns: Annotated[
        Sequence[str], Field(description="Columns of the changes that only clauses use.")
    ] = ()
    partition_expr: Annotated[
        str | Mapping[str, str] | None,
        Field(description="SQL of a row's partition, where partitions are parts of the table."),
    ] = None
    idempotent_by: Annotated[
        IdempotentBy | None, Field(description="What a re-run must not apply again.")
    ] = None
    retries: Annotated[int, Field(description="Attempts after an error that may pass.")] = 3
    dynamic_partitions: Annotated[
        str | None,
        Field(description="Name of dynamic partitions, where source partitions come as they land."),
    ] = None
    op: Annotated[OpSpec | None, Field(description="Pool and backfill policy of its runs.")] = None
    io_manager_key: Annotated[str, Field(description="Resource key of the IO manager.")] = (
        "io_manager"
    )

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """The asset."""
        return Definitions(assets=[self.asset_definition()])

    def asset_definition(self) -> AssetsDefinition:
        """The merge asset that the attributes declare."""
        spec: AssetSpec = self.asset
        op = self.op or OpSpec()
        decorate = merge_asset(
            keys=self.keys,
            on=self.on,
            clauses=[each.clause() for each in self.clauses],
            merge_text=self.merge_text,
            table=self.table,
            schema=self.table_schema,
            partition_by=self.partition_by,
            cluster_by=self.cluster_by,
            properties=dict(self.properties),
            schema_policy=self.schema_policy,
            except_columns=self.except_columns,
            partition_expr=self.partition_expr,
            idempotent_by=self.idempotent_by,
            retries=self.retries,
            name=spec.key.path[-1],
            key_prefix=list(spec.key.path[:-1]) or None,
            ins=_ins(self.source),
            deps=list(spec.deps),
            partitions_def=self._partitions_def(),
            backfill_policy=op.backfill_policy,
            automation_condition=spec.automation_condition,
            freshness_policy=spec.freshness_policy,
            metadata=spec.metadata,
            description=spec.description,
            group_name=spec.group_name,
            owners=list(spec.owners),
            tags={k: v for k, v in spec.tags.items() if not k.startswith("dagster/kind/")},
            kinds=spec.kinds or KINDS,
            code_version=spec.code_version,
            pool=op.pool,
            io_manager_key=self.io_manager_key,
            required_resource_keys=_resources(self.source),
        )
        return decorate(_function(self.source))

    def _partitions_def(self) -> PartitionsDefinition[str] | None:
        if self.dynamic_partitions is None:
            return self.asset.partitions_def
        if self.asset.partitions_def is not None:
            raise ValueError("Give dynamic_partitions or the asset's partitions_def, not both.")
        return DynamicPartitionsDefinition(name=self.dynamic_partitions)


def _ins(source: PathSource | SqlSource | FunctionSource) -> Mapping[str, AssetIn] | None:
    if not isinstance(source, SqlSource):
        return None
    return {
        name: AssetIn(key=AssetKey.from_user_string(key)) for name, key in source.upstreams.items()
    }


def _resources(source: PathSource | SqlSource | FunctionSource) -> set[str]:
    # A function names those it needs as its own parameters.
    return set() if isinstance(source, FunctionSource) else {_SPARK}


def _function(source: PathSource | SqlSource | FunctionSource) -> Callable[..., Any]:
    if isinstance(source, FunctionSource):
        return source.function
    if isinstance(source, SqlSource):
        return _query(source)
    return _files(source)


def _files(source: PathSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext) -> Any:
        reader = getattr(context.resources, _SPARK).session.read.format(source.format)
        reader = reader.options(**source.options)
        reader = reader.schema(source.columns) if source.columns else reader
        if "{partition}" not in source.path:
            return reader.load(source.path)
        keys, is_pattern = partition_keys(context), source.format.lower() != "delta"
        return reader.load([path_of_partition(source.path, each, is_pattern) for each in keys])

    return changes


def path_of_partition(path: str, key: str, is_pattern: bool = True) -> str:
    """The path with a partition's key in the place of `{partition}`, whatever the key holds.

    Args:
        path: The path.
        key: The partition's key.
        is_pattern: Whether the reader takes paths for patterns, as Delta's does not.

    Raises:
        SourceError: The key leads to another directory.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise SourceError(
            f"the key {key!r} leads to another directory.",
            table=path,
            operation="reading a source partition",
            hint="Give the partition a key that is a name.",
        )
    # As a pattern, the key `*` would read the files of all partitions.
    return path.replace("{partition}", literal_path(key) if is_pattern else key)


def _query(source: SqlSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext, **upstreams: Any) -> Any:
        return getattr(context.resources, _SPARK).session.sql(source.sql, **upstreams)

    return changes
