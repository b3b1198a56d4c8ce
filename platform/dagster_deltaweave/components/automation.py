"""What watches over tables, declared in YAML.

- `MaintenanceComponent`: a schedule that maintains tables.
- `LandingSensorComponent`: a sensor that starts runs for what lands.
- `TableChecksComponent`: checks of rows and of merges.
"""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from dagster import (
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetsDefinition,
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
    RetryPolicy,
    scaffold_with,
)
from pydantic import Field, model_validator

from dagster_deltaweave.checks import CHECKS_OF_MERGES, build_merge_checks, build_table_checks
from dagster_deltaweave.components.table_component import (
    AttributesScaffolder,
    Automation,
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


class TableChecksScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` of checks."""

    attributes: ClassVar[dict[str, Any]] = {
        "asset": "orders",
        "unique_key": ["id"],
        "no_nulls": ["id"],
        "source_rows": True,
        "blocking": True,
    }


class _Blocking(NamedTuple):
    """Which checks of merges block, and which checks of rows: all, none, or those named."""

    merges: bool | list[str]
    rows: bool | list[str]


@scaffold_with(TableChecksScaffolder)
class TableChecksComponent(Component, Resolvable, Model):
    """Checks of the rows of a table, and of what its runs merged.

    The attributes are those of `build_table_checks` and `build_merge_checks`. A component declares
    the asset, or each of a list.

    ```yaml
    type: dagster_deltaweave.TableChecksComponent
    attributes:
      asset: sales/orders
      unique_key: [id]
      no_nulls: [id, state]
      changed_within: {days: 1}
      source_rows: true
      row_count_change: {lowest: -0.1}
      blocking: [unique_key]
    ```
    """

    class Change(Model, Resolvable):
        """By how much the row count may change, as a fraction of the count before."""

        lowest: float | None = None
        highest: float | None = None

        @model_validator(mode="after")
        def _has_a_bound(self) -> "TableChecksComponent.Change":
            if self.lowest is None and self.highest is None:
                raise ValueError("Give lowest or highest: without both, the check never fails.")
            return self

    class Retry(Model, Resolvable):
        """How often, and how many seconds later, Dagster runs checks again that raised an error."""

        max_retries: int = 1
        delay: float | None = None

    asset: Annotated[
        OneOrMoreKeys,
        Field(description="Key of the table's asset, or keys of several that are checked alike."),
    ]
    unique_key: Annotated[
        Sequence[str], Field(description="Columns in which no two rows are equal.")
    ] = ()
    no_nulls: Annotated[Sequence[str], Field(description="Columns without nulls.")] = ()
    whole_table: Annotated[
        bool, Field(description="Whether `no_nulls` reads the whole table each time.")
    ] = False
    table_schema: Annotated[
        str | None, Field(description="DDL of the columns that the table must have.")
    ] = None
    more_columns: Annotated[bool, Field(description="Whether it may have more of them.")] = False
    changed_within: Annotated[
        Duration | None, Field(description="How old the last change may be.")
    ] = None
    sample: Annotated[
        bool, Field(description="Whether up to 10 offending keys are shown in Dagster.")
    ] = True
    source_rows: Annotated[
        bool, Field(description="Whether each row of the source is accounted for.")
    ] = False
    every_row: Annotated[
        bool | None,
        Field(description="Whether clauses take each source row; default: as declared."),
    ] = None
    row_count_change: Annotated[
        Change | None, Field(description="How the row count may change from run to run.")
    ] = None
    blocking: Annotated[
        bool | Sequence[str],
        Field(description="Whether a failure blocks downstream assets, or names of checks."),
    ] = False
    severity: Annotated[Literal["error", "warn"], Field(description="Of a failure.")] = "error"
    io_manager_key: Annotated[
        str | None,
        Field(description="Resource key of the IO manager, by default the asset's."),
    ] = None

    automation_condition: Annotated[
        Automation, Field(description="When Dagster runs the checks by itself.")
    ] = None
    metadata: Annotated[Mapping[str, Any] | None, Field(description="Of each check.")] = None
    pool: Annotated[str | None, Field(description="The concurrency pool.")] = None
    retry_policy: Annotated[Retry | None, Field(description="Of checks that raise an error.")] = (
        None
    )

    @model_validator(mode="after")
    def _asks_for_a_check(self) -> "TableChecksComponent":
        if not self._checks_rows() and not self._checks_merges():
            raise ValueError(
                "Give unique_key, no_nulls, table_schema, changed_within, source_rows or "
                "row_count_change."
            )
        return self

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Build the checks of each asset: one op for those of rows, one for those of merges."""
        built = map(self.check_definitions, declared_assets(context, self.asset))
        return Definitions(asset_checks=[each for checks in built for each in checks])

    def check_definitions(self, asset: AssetsDefinition) -> list[AssetChecksDefinition]:
        """Build the checks that the attributes declare for an asset."""
        severity = AssetCheckSeverity[self.severity.upper()]
        blocking = self._blocking()
        within, retry = self.changed_within, self.retry_policy
        arguments: dict[str, Any] = {
            "automation_condition": self.automation_condition,
            "metadata": self.metadata,
            "pool": self.pool,
            "retry_policy": RetryPolicy(retry.max_retries, retry.delay) if retry else None,
        }
        checks = []
        if self._checks_rows():
            checks.append(
                build_table_checks(
                    asset,
                    unique_key=self.unique_key,
                    no_nulls=self.no_nulls,
                    whole_table=self.whole_table,
                    schema=self.table_schema,
                    more_columns=self.more_columns,
                    changed_within=within.timedelta() if within else None,
                    sample=self.sample,
                    blocking=blocking.rows,
                    severity=severity,
                    io_manager_key=self.io_manager_key,
                    **arguments,
                )
            )
        if self._checks_merges():
            change = self.row_count_change
            checks.append(
                build_merge_checks(
                    asset,
                    source_rows=self.source_rows,
                    every_row=self.every_row,
                    row_count_change=None if change is None else (change.lowest, change.highest),
                    blocking=blocking.merges,
                    severity=severity,
                    **arguments,
                )
            )
        return checks

    def _checks_rows(self) -> bool:
        return bool(self.unique_key or self.no_nulls or self.table_schema or self.changed_within)

    def _checks_merges(self) -> bool:
        return self.source_rows or self.row_count_change is not None

    def _blocking(self) -> _Blocking:
        """Return which checks block."""
        if isinstance(self.blocking, bool):
            return _Blocking(self.blocking, self.blocking)
        # A name of a check that is not asked for is left to those that are, which refuse it.
        merges = [
            name
            for name in self.blocking
            if not self._checks_rows() or (name in CHECKS_OF_MERGES and self._checks_merges())
        ]
        rows = [name for name in self.blocking if name not in merges]
        return _Blocking(merges, rows)
