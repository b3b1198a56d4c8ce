"""What starts runs, declared in YAML: `MaintenanceComponent` and `LandingSensorComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from dagster import (
    AssetKey,
    AssetSelection,
    AssetSpec,
    Component,
    ComponentLoadContext,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    Model,
    Resolvable,
    ResolvedAssetKey,
    scaffold_with,
)
from pydantic import Field

from dagster_deltaweave.components.table_component import (
    AttributesScaffolder,
    OneOrMoreKeys,
    declared_assets,
    policy_in,
)
from dagster_deltaweave.maintenance import OPERATIONS, UpkeepPolicy, build_upkeep_schedule
from dagster_deltaweave.sensors import build_partition_sensor
from dagster_deltaweave.tables import Duration

_UPKEEP = UpkeepPolicy()


class Policy(Model, Resolvable):
    """When a table needs maintenance: the limits of `UpkeepPolicy`."""

    small_file_bytes: int = _UPKEEP.small_file_bytes
    small_files: int = _UPKEEP.small_files
    small_file_fraction: float = _UPKEEP.small_file_fraction
    unclustered_file_fraction: float = _UPKEEP.unclustered_file_fraction
    deleted_row_fraction: float = _UPKEEP.deleted_row_fraction
    time_between_vacuums: Duration | None = None
    least_retention: Duration | None = None


class MaintenanceScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of a nightly maintenance."""

    attributes: ClassVar[dict[str, Any]] = {
        "name": "NAME",
        "assets": ["orders"],
        "cron_schedule": "0 3 * * *",
    }


@scaffold_with(MaintenanceScaffolder)
class MaintenanceComponent(Component, Resolvable, Model):
    """A schedule that compacts, purges, indexes and vacuums tables where they need it.

    The attributes are those of `build_upkeep_schedule`. Components declare the assets.

    ```yaml
    type: dagster_deltaweave.MaintenanceComponent
    attributes:
      name: nightly
      assets: [sales/orders, sales/customers]
      cron_schedule: "0 3 * * *"
      policy: {small_files: 20, time_between_vacuums: {days: 7}}
    ```
    """

    name: Annotated[str, Field(description="Name of the schedule; its job is `<name>_job`.")]
    assets: Annotated[
        OneOrMoreKeys,
        Field(description="Key of the asset whose table is maintained, or keys of several."),
    ]
    cron_schedule: Annotated[str, Field(description="When it runs.")]
    execution_timezone: Annotated[str, Field(description="Time zone of `cron_schedule`.")] = "UTC"
    operations: Annotated[Sequence[str], Field(description="The operations, in order.")] = tuple(
        OPERATIONS
    )
    policy: Annotated[Policy | None, Field(description="When a table needs an operation.")] = None
    running: Annotated[bool, Field(description="Whether the schedule starts by itself.")] = False
    io_manager_key: Annotated[
        str | None,
        Field(description="Resource key of the IO manager, by default each table's."),
    ] = None

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Build the upkeep schedule and its job."""
        schedule = build_upkeep_schedule(
            name=self.name,
            tables=declared_assets(context, self.assets),
            cron_schedule=self.cron_schedule,
            operations=self.operations,
            policy=policy_in(UpkeepPolicy, self.policy or Policy()),
            execution_timezone=self.execution_timezone,
            io_manager_key=self.io_manager_key,
            default_status=(
                DefaultScheduleStatus.RUNNING if self.running else DefaultScheduleStatus.STOPPED
            ),
        )
        return Definitions(schedules=[schedule])


class LandingSensorScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of a landing sensor."""

    attributes: ClassVar[dict[str, Any]] = {
        "name": "NAME",
        "directory": "/landing/orders",
        "assets": ["orders"],
    }


@scaffold_with(LandingSensorScaffolder)
class LandingSensorComponent(Component, Resolvable, Model):
    """A sensor that requests a run for each source partition that lands in a directory.

    The attributes are those of `build_partition_sensor`. The partitions are those of the first of
    the assets, which a component declares.

    ```yaml
    type: dagster_deltaweave.LandingSensorComponent
    attributes:
      name: orders_landed
      directory: /landing/orders
      assets: [sales/orders]
      landing_asset: sales/orders_landing
      running: true
    ```
    """

    name: Annotated[str, Field(description="The sensor's name.")]
    directory: Annotated[str, Field(description="The landing directory, a path or URI.")]
    assets: Annotated[
        OneOrMoreKeys,
        Field(description="Key of the asset that a run materializes, or keys of several."),
    ]
    landing_asset: Annotated[
        ResolvedAssetKey | None,
        Field(description="Key of an external asset for the directory; it is defined, too."),
    ] = None
    marker: Annotated[
        str | None,
        Field(description="Name of the file that is written last; null if sizes have to settle."),
    ] = "_SUCCESS"
    suffix: Annotated[
        str, Field(description="How names of files end that are partitions; empty: directories.")
    ] = ""
    max_requests_per_tick: Annotated[int, Field(description="Runs that a tick requests.")] = 20
    max_lateness_seconds: Annotated[
        int, Field(description="How late a delivery may become visible.")
    ] = 600
    attempts: Annotated[int, Field(description="Runs for a delivery, if they fail.")] = 3
    retry_after_seconds: Annotated[
        float, Field(description="How long after a failed run the second is requested.")
    ] = 60
    minimum_interval_seconds: Annotated[int, Field(description="Least time between ticks.")] = 30
    running: Annotated[bool, Field(description="Whether the sensor starts by itself.")] = False
    description: Annotated[str | None, Field(description="Description in the UI.")] = None
    metadata: Annotated[Mapping[str, Any] | None, Field(description="Metadata of the sensor.")] = (
        None
    )
    owners: Annotated[Sequence[str] | None, Field(description="Owners of the sensor.")] = None
    tags: Annotated[Mapping[str, str] | None, Field(description="Tags of the sensor.")] = None
    run_tags: Annotated[
        Mapping[str, str] | None, Field(description="Tags of the runs that it requests.")
    ] = None

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Build the sensor, and the external asset if it has one."""
        keys = [self.assets] if isinstance(self.assets, AssetKey) else self.assets
        partitions_def = declared_assets(context, keys[0])[0].partitions_def
        if partitions_def is None:
            raise ValueError(
                f"{keys[0].to_user_string()} has no partitions: a landing sensor requests a "
                "run for each. Give it dynamic_partitions or a partitions_def."
            )
        others = LandingSensorComponent.model_fields.keys() - {"assets", "running"}
        sensor = build_partition_sensor(
            target=AssetSelection.assets(*keys),
            partitions_def=partitions_def,
            default_status=(
                DefaultSensorStatus.RUNNING if self.running else DefaultSensorStatus.STOPPED
            ),
            **{name: getattr(self, name) for name in others},
        )
        landing = []
        if self.landing_asset is not None:
            landing.append(AssetSpec(self.landing_asset, partitions_def=partitions_def))
        return Definitions(assets=landing, sensors=[sensor])
