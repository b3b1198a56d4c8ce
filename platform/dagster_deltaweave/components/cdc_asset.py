"""A table of change events declared in YAML: `dagster_deltaweave.CdcAssetComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from dagster import AssetsDefinition, scaffold_with
from pydantic import Field

from dagster_deltaweave.assets import cdc_asset
from dagster_deltaweave.components.merge_sources import function_of_source
from dagster_deltaweave.components.table_component import (
    AttributesScaffolder,
    Duration,
    TableComponent,
)


class EventTableComponent(TableComponent):
    """What tables of change events have in common."""

    keys: Annotated[Sequence[str], Field(description="Columns that identify a row.")]
    sequence_by: Annotated[str, Field(description="SQL that orders the events of a key.")]
    apply_as_deletes: Annotated[
        str | None, Field(description="SQL condition of events that delete their key's row.")
    ] = None
    apply_as_truncates: Annotated[
        str | None, Field(description="SQL condition of events that delete all older rows.")
    ] = None
    ignore_null_updates: Annotated[
        bool, Field(description="Whether nulls leave columns as they are.")
    ] = False
    present_columns: Annotated[
        str | None, Field(description="Column with the names of the columns that an event sets.")
    ] = None
    column_list: Annotated[
        Sequence[str] | None, Field(description="Columns of the events that the table has.")
    ] = None
    except_column_list: Annotated[
        Sequence[str] | None, Field(description="Exclude these event columns from the table.")
    ] = None
    message_column: Annotated[
        str | None, Field(description="Column with the message of each event.")
    ] = None
    rescued: Annotated[
        bool | str,
        Field(
            description="Whether events that cannot be applied go to a table of their own, or it."
        ),
    ] = False
    late_by: Annotated[
        Duration | None, Field(description="How long deletes are remembered; by default 7 days.")
    ] = None
    table: Annotated[str | None, Field(description="Path or catalog name of the table.")] = None

    def _event_arguments(self) -> dict[str, Any]:
        """Return the arguments that the decorators of change events share, and Dagster's."""
        late_by = {} if self.late_by is None else {"late_by": self.late_by.timedelta()}
        return {
            "keys": self.keys,
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
            "apply_as_truncates": self.apply_as_truncates,
            "ignore_null_updates": self.ignore_null_updates,
            "present_columns": self.present_columns,
            "column_list": self.column_list,
            "except_column_list": self.except_column_list,
            "message_column": self.message_column,
            "rescued": self.rescued,
            **late_by,
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
class CdcAssetComponent(EventTableComponent):
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

    stored_as_scd_type: Annotated[
        Literal[1, 2], Field(description="1 for current rows, 2 for histories.")
    ] = 1
    track_history_column_list: Annotated[
        Sequence[str] | None, Field(description="Columns whose change begins a version.")
    ] = None
    track_history_except_column_list: Annotated[
        Sequence[str] | None, Field(description="Columns whose change begins none.")
    ] = None

    def asset_definitions(self) -> Sequence[AssetsDefinition]:
        """Build the asset of change events that the attributes declare."""
        decorate = cdc_asset(
            stored_as_scd_type=self.stored_as_scd_type,
            track_history_column_list=self.track_history_column_list,
            track_history_except_column_list=self.track_history_except_column_list,
            **self._event_arguments(),
        )
        return [decorate(function_of_source(self.source))]
