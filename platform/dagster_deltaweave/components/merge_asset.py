"""A merge asset declared in YAML: the component `dagster_deltaweave.MergeAssetComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from dagster import AssetsDefinition, Model, Resolvable, Resolver, scaffold_with
from pydantic import Field, model_validator

from dagster_deltaweave.assets import merge_asset
from dagster_deltaweave.components.merge_sources import function_of_source
from dagster_deltaweave.components.table_component import AttributesScaffolder, TableComponent
from dagster_deltaweave.tables import IdempotentBy, Order, SchemaPolicy
from deltaweave import clauses as when
from deltaweave.clauses import Action, Clause, Kind


class MergeClause(Model, Resolvable):
    """A WHEN clause: its rows, its condition and its action."""

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
        """Build the clause that the attributes declare."""
        name = f"when_{self.when}_{self.then}"
        build: Callable[..., Clause] | None = getattr(when, name, None)
        if build is None:
            raise ValueError(f"MERGE has no clause `when: {self.when}` with `then: {self.then}`.")
        if self.set is None:
            return build(condition=self.condition)
        return build(self.set, condition=self.condition)


class MergeAssetScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of a table into which changes are merged."""

    attributes: ClassVar[dict[str, Any]] = {
        "asset": {"key": "NAME", "description": "What a row of NAME is."},
        "keys": ["id"],
        "source": {"type": "path", "path": "/landing/NAME", "format": "parquet"},
        "schema_policy": "strict",
    }


@scaffold_with(MergeAssetScaffolder)
class MergeAssetComponent(TableComponent):
    """A Delta table as an asset: the source of its changes, and how they are merged into it.

    The attributes are those of `@merge_asset`. The asset needs the resources `spark` and
    `io_manager`.

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

    keys: Annotated[Sequence[str], Field(description="Columns that identify a row.")] = ()
    unique_keys: Annotated[
        bool, Field(description="Whether several changes for one key that is new are an error.")
    ] = True
    on: Annotated[
        str | None, Field(description="The merge condition, if it is more than equal keys.")
    ] = None
    clauses: Annotated[
        Sequence[MergeClause], Field(description="The WHEN clauses; by default an upsert.")
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
        SchemaPolicy, Field(description="What happens to columns that the table lacks.")
    ] = "strict"
    except_column_list: Annotated[
        Sequence[str], Field(description="Columns of the changes that only clauses use.")
    ] = ()
    partition_expr: Annotated[
        str | Mapping[str, str] | None,
        Field(description="SQL of a row's partition, if partitions are parts of the table."),
    ] = None
    idempotent_by: Annotated[
        IdempotentBy | None, Field(description="What a re-run must not apply again.")
    ] = None
    sequence_by: Annotated[
        str | None, Field(description="Column that says which of two rows is newer.")
    ] = None
    order: Annotated[
        Order, Field(description="Whether partitions are merged in their order or in any order.")
    ] = "partition"
    skip_unchanged_updates: Annotated[
        bool, Field(description="Whether to skip updates that change no value of their row.")
    ] = False

    def asset_definitions(self) -> Sequence[AssetsDefinition]:
        """Build the merge asset that the attributes declare."""
        decorate = merge_asset(
            keys=self.keys,
            unique_keys=self.unique_keys,
            on=self.on,
            clauses=[each.clause() for each in self.clauses],
            merge_text=self.merge_text,
            table=self.table,
            schema=self.table_schema,
            partition_by=self.partition_by,
            cluster_by=self.cluster_by,
            properties=dict(self.properties),
            schema_policy=self.schema_policy,
            except_column_list=self.except_column_list,
            partition_expr=self.partition_expr,
            idempotent_by=self.idempotent_by,
            sequence_by=self.sequence_by,
            order=self.order,
            skip_unchanged_updates=self.skip_unchanged_updates,
            retries=self.retries,
            **self._dagster_arguments(),
        )
        return [decorate(function_of_source(self.source))]
