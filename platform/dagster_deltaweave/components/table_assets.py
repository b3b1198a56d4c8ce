"""Tables declared in YAML: of merges, of change events, and merged on read."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from dagster import (
    AssetsDefinition,
    ComponentLoadContext,
    DefaultSensorStatus,
    Definitions,
    Model,
    Resolvable,
    SensorDefinition,
    scaffold_with,
)
from pydantic import Field, model_validator

from dagster_deltaweave.assets import MergeOnReadAssets, cdc_asset, merge_asset, merge_on_read_asset
from dagster_deltaweave.components.table_component import (
    AttributesScaffolder,
    Automation,
    TableComponent,
    function_of_source,
    policy_in,
    with_options,
)
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.sensors import build_rematerialization_sensor
from dagster_deltaweave.tables import (
    CurrentTableOptions,
    Duration,
    EventArguments,
    IdempotentBy,
    MergeOnReadArguments,
    MergeOptions,
    TableOptions,
    options_in,
)
from deltaweave import clauses as when
from deltaweave.changes.merge_on_read import RematerializationStrategy
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
class MergeAssetComponent(with_options(TableComponent, TableOptions, MergeOptions)):  # type: ignore[misc]
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

    clauses: Annotated[
        Sequence[MergeClause], Field(description="The WHEN clauses; by default an upsert.")
    ] = ()
    table: Annotated[str | None, Field(description="Path or catalog name of the table.")] = None
    table_schema: Annotated[str | None, Field(description="DDL of a created table.")] = None

    def asset_definitions(self) -> Sequence[AssetsDefinition]:
        """Build the merge asset that the attributes declare."""
        decorate = merge_asset(
            **options_in(TableOptions, self),
            **options_in(MergeOptions, self),
            clauses=[each.clause() for each in self.clauses],
            table=self.table,
            schema=self.table_schema,
            retries=self.retries,
            **self._dagster_arguments(),
        )
        return [decorate(function_of_source(self.source))]


class EventTableComponent(TableComponent):
    """What tables of change events have in common, besides their options."""

    table: Annotated[str | None, Field(description="Path or catalog name of the table.")] = None

    def _event_arguments(self, options: type[EventArguments]) -> dict[str, Any]:
        """Return the arguments that the decorators of change events share, and Dagster's."""
        return {
            **options_in(options, self),
            "table": self.table,
            "retries": self.retries,
            **self._dagster_arguments(),
        }


class CdcAssetScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of a table of change events."""

    attributes: ClassVar[dict[str, Any]] = {
        "asset": {"key": "NAME", "description": "What a row of NAME is."},
        "keys": ["id"],
        "sequence_by": "sequence",
        "apply_as_deletes": "operation = 'delete'",
        "except_column_list": ["sequence", "operation"],
        "source": {"type": "path", "path": "/landing/NAME", "format": "parquet"},
    }


@scaffold_with(CdcAssetScaffolder)
class CdcAssetComponent(with_options(EventTableComponent, CurrentTableOptions)):  # type: ignore[misc]
    """A Delta table as an asset, kept current by change events in any order.

    The attributes are those of `@cdc_asset`. The asset needs the resources `spark` and
    `io_manager`.

    ```yaml
    type: dagster_deltaweave.CdcAssetComponent
    attributes:
      asset: {key: sales/customers}
      keys: [id]
      sequence_by: lsn
      apply_as_deletes: op = 'd'
      except_column_list: [op, lsn]
      source: {type: path, path: "/landing/customers/{partition}"}
      dynamic_partitions: customers
    ```
    """

    def asset_definitions(self) -> Sequence[AssetsDefinition]:
        """Build the asset of change events that the attributes declare."""
        decorate = cdc_asset(**self._event_arguments(CurrentTableOptions))
        return [decorate(function_of_source(self.source))]


_REMATERIALIZATION = RematerializationPolicy()


class Rematerialization(Model, Resolvable):
    """When a sensor merges the pending changes into the base: any limit that is reached."""

    rows: Annotated[int | None, Field(description="Pending events.")] = _REMATERIALIZATION.rows
    size_in_bytes: Annotated[int | None, Field(description="Size of their files.")] = (
        _REMATERIALIZATION.size_in_bytes
    )
    batches: Annotated[int | None, Field(description="Pending batches.")] = (
        _REMATERIALIZATION.batches
    )
    age: Annotated[
        Duration | None, Field(description="Since the oldest batch; by default a day.")
    ] = None
    fraction_of_base: Annotated[
        float | None, Field(description="Size of the changes as a fraction of the base's.")
    ] = _REMATERIALIZATION.fraction_of_base
    running: Annotated[bool, Field(description="Whether the sensor starts by itself.")] = False

    def sensor(self, table: MergeOnReadAssets, io_manager_key: str) -> SensorDefinition:
        """Build the sensor `<view>_rematerialization`."""
        return build_rematerialization_sensor(
            name=f"{'__'.join(table.view.key.path)}_rematerialization",
            tables=[table],
            policy=policy_in(RematerializationPolicy, self),
            default_status=(
                DefaultSensorStatus.RUNNING if self.running else DefaultSensorStatus.STOPPED
            ),
            io_manager_key=io_manager_key,
        )


class MergeOnReadAssetScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of a merge-on-read table."""

    attributes: ClassVar[dict[str, Any]] = {
        **CdcAssetScaffolder.attributes,
        "rematerialization": {"batches": 1000},
    }


@scaffold_with(MergeOnReadAssetScaffolder)
class MergeOnReadAssetComponent(with_options(EventTableComponent, MergeOnReadArguments)):  # type: ignore[misc]
    """A Delta table whose change events are appended now and merged later, as three assets.

    The attributes are those of `@merge_on_read_asset`; the asset's key is that of the view. The
    assets need the resources `spark` and `io_manager`.

    ```yaml
    type: dagster_deltaweave.MergeOnReadAssetComponent
    attributes:
      asset: {key: sales/orders}
      keys: [id]
      sequence_by: version
      except_column_list: [version]
      source: {type: path, path: "/landing/orders/{partition}"}
      dynamic_partitions: orders
      rematerialization: {batches: 100, running: true}
    ```
    """

    strategy: Annotated[
        RematerializationStrategy, Field(description="How the base is rematerialized.")
    ] = "auto"
    idempotent_by: Annotated[IdempotentBy | None, Field(description="What is appended once.")] = (
        None
    )
    changes_table: Annotated[str | None, Field(description="Path of the changes.")] = None
    checkpoint: Annotated[
        str | None, Field(description="Where Spark keeps the progress of a stream.")
    ] = None
    base_automation_condition: Annotated[
        Automation, Field(description="When the base is rematerialized, as by a sensor.")
    ] = None
    view_automation_condition: Annotated[
        Automation, Field(description="When the view records what is pending.")
    ] = None
    rematerialization: Annotated[
        Rematerialization | None,
        Field(description="A sensor that merges the changes; without it, none is defined."),
    ] = None

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Build the three assets of the table, and the sensor if one is declared."""
        assets = self.asset_definitions()
        sensors = []
        if self.rematerialization is not None:
            sensors.append(self.rematerialization.sensor(assets, self.io_manager_key))
        return Definitions(assets=list(assets), sensors=sensors)

    def asset_definitions(self) -> MergeOnReadAssets:
        """Build the assets of the changes, the base and the view."""
        decorate = merge_on_read_asset(
            strategy=self.strategy,
            idempotent_by=self.idempotent_by,
            changes_table=self.changes_table,
            checkpoint=self.checkpoint,
            base_automation_condition=self.base_automation_condition,
            view_automation_condition=self.view_automation_condition,
            **self._event_arguments(MergeOnReadArguments),
        )
        return decorate(function_of_source(self.source))
