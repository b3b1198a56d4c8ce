"""A landing sensor declared in YAML: `dagster_deltaweave.LandingSensorComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from dagster import (
    AssetKey,
    AssetSelection,
    AssetSpec,
    Component,
    ComponentLoadContext,
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
)
from dagster_deltaweave.sensors import build_partition_sensor


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
        """The sensor, and the external asset if it has one."""
        keys = [self.assets] if isinstance(self.assets, AssetKey) else self.assets
        partitions_def = declared_assets(context, keys[0])[0].partitions_def
        if partitions_def is None:
            raise ValueError(
                f"{keys[0].to_user_string()} has no partitions: a landing sensor requests a "
                "run for each. Give it dynamic_partitions or a partitions_def."
            )
        sensor = build_partition_sensor(
            name=self.name,
            target=AssetSelection.assets(*keys),
            directory=self.directory,
            partitions_def=partitions_def,
            landing_asset=self.landing_asset,
            marker=self.marker,
            suffix=self.suffix,
            max_requests_per_tick=self.max_requests_per_tick,
            max_lateness_seconds=self.max_lateness_seconds,
            attempts=self.attempts,
            retry_after_seconds=self.retry_after_seconds,
            minimum_interval_seconds=self.minimum_interval_seconds,
            default_status=(
                DefaultSensorStatus.RUNNING if self.running else DefaultSensorStatus.STOPPED
            ),
            description=self.description,
            metadata=self.metadata,
            owners=self.owners,
            tags=self.tags,
            run_tags=self.run_tags,
        )
        landing = []
        if self.landing_asset is not None:
            landing.append(AssetSpec(self.landing_asset, partitions_def=partitions_def))
        return Definitions(assets=landing, sensors=[sensor])
