"""The maintenance of tables declared in YAML: `dagster_deltaweave.MaintenanceComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from dagster import (
    Component,
    ComponentLoadContext,
    DefaultScheduleStatus,
    Definitions,
    Model,
    Resolvable,
    scaffold_with,
)
from pydantic import Field

from dagster_deltaweave.components.table_component import (
    AttributesScaffolder,
    OneOrMoreKeys,
    declared_assets,
)
from dagster_deltaweave.maintenance import OPERATIONS, UpkeepPolicy, build_upkeep_schedule
from dagster_deltaweave.tables import Duration

_POLICY = UpkeepPolicy()


class Policy(Model, Resolvable):
    """When a table needs maintenance: the limits of `UpkeepPolicy`."""

    small_file_bytes: int = _POLICY.small_file_bytes
    small_files: int = _POLICY.small_files
    small_file_fraction: float = _POLICY.small_file_fraction
    unclustered_file_fraction: float = _POLICY.unclustered_file_fraction
    deleted_row_fraction: float = _POLICY.deleted_row_fraction
    time_between_vacuums: Duration | None = None
    least_retention: Duration | None = None

    def upkeep_policy(self) -> UpkeepPolicy:
        """Return the limits as an `UpkeepPolicy`."""
        between, kept = self.time_between_vacuums, self.least_retention
        return UpkeepPolicy(
            small_file_bytes=self.small_file_bytes,
            small_files=self.small_files,
            small_file_fraction=self.small_file_fraction,
            unclustered_file_fraction=self.unclustered_file_fraction,
            deleted_row_fraction=self.deleted_row_fraction,
            time_between_vacuums=between.timedelta() if between else _POLICY.time_between_vacuums,
            least_retention=kept.timedelta() if kept else _POLICY.least_retention,
        )


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
            policy=(self.policy or Policy()).upkeep_policy(),
            execution_timezone=self.execution_timezone,
            io_manager_key=self.io_manager_key,
            default_status=(
                DefaultScheduleStatus.RUNNING if self.running else DefaultScheduleStatus.STOPPED
            ),
        )
        return Definitions(schedules=[schedule])
