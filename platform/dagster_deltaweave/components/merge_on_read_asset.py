"""A merge-on-read table declared in YAML: `dagster_deltaweave.MergeOnReadAssetComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from dagster import (
    ComponentLoadContext,
    DefaultSensorStatus,
    Definitions,
    Model,
    Resolvable,
    SensorDefinition,
    scaffold_with,
)
from pydantic import Field

from dagster_deltaweave.assets import MergeOnReadAssets, merge_on_read_asset
from dagster_deltaweave.components.cdc_asset import CdcAssetScaffolder, EventTableComponent
from dagster_deltaweave.components.merge_sources import function_of_source
from dagster_deltaweave.components.table_component import AttributesScaffolder, Automation, Duration
from dagster_deltaweave.maintenance import RematerializationPolicy
from dagster_deltaweave.sensors import build_rematerialization_sensor
from dagster_deltaweave.tables import IdempotentBy
from deltaweave.changes.merge_on_read import Strategy

_POLICY = RematerializationPolicy()


class Rematerialization(Model, Resolvable):
    """When a sensor merges the pending changes into the base: any limit that is reached."""

    rows: Annotated[int | None, Field(description="Pending events.")] = _POLICY.rows
    size_in_bytes: Annotated[int | None, Field(description="Size of their files.")] = (
        _POLICY.size_in_bytes
    )
    batches: Annotated[int | None, Field(description="Pending batches.")] = _POLICY.batches
    age: Annotated[
        Duration | None, Field(description="Since the oldest batch; by default a day.")
    ] = None
    fraction_of_base: Annotated[
        float | None, Field(description="Size of the changes as a fraction of the base's.")
    ] = _POLICY.fraction_of_base
    running: Annotated[bool, Field(description="Whether the sensor starts by itself.")] = False

    def sensor(self, table: MergeOnReadAssets, io_manager_key: str) -> SensorDefinition:
        """Build the sensor `<view>_rematerialization`."""
        policy = RematerializationPolicy(
            rows=self.rows,
            size_in_bytes=self.size_in_bytes,
            batches=self.batches,
            age=self.age.timedelta() if self.age else _POLICY.age,
            fraction_of_base=self.fraction_of_base,
        )
        return build_rematerialization_sensor(
            name=f"{'__'.join(table.view.key.path)}_rematerialization",
            tables=[table],
            policy=policy,
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
class MergeOnReadAssetComponent(EventTableComponent):
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

    inserts: Annotated[
        str | None, Field(description="SQL condition of events that insert new keys.")
    ] = None
    partition_by: Annotated[Sequence[str], Field(description="Partition columns of the base.")] = ()
    keep_merged_for: Annotated[
        Duration | None,
        Field(description="How long changes are kept once merged; by default an hour."),
    ] = None
    broadcast_limit_bytes: Annotated[
        int, Field(description="Changes up to this measured size are broadcast.")
    ] = 2**30
    strategy: Annotated[Strategy, Field(description="How the base is rematerialized.")] = "auto"
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
        kept = self.keep_merged_for
        decorate = merge_on_read_asset(
            inserts=self.inserts,
            partition_by=self.partition_by,
            keep_merged_for=kept.timedelta() if kept else timedelta(hours=1),
            broadcast_limit_bytes=self.broadcast_limit_bytes,
            strategy=self.strategy,
            idempotent_by=self.idempotent_by,
            changes_table=self.changes_table,
            checkpoint=self.checkpoint,
            base_automation_condition=self.base_automation_condition,
            view_automation_condition=self.view_automation_condition,
            **self._event_arguments(),
        )
        return decorate(function_of_source(self.source))
