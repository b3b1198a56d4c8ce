"""What a run records after its commit; no error there fails the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster import AssetMaterialization, OutputContext

from dagster_deltaweave.metadata import TABLE_VERSION, table_metadata, warnings_metadata
from dagster_deltaweave.partitions import lists_partitions

if TYPE_CHECKING:
    from deltaweave import Table


@dataclass(frozen=True)
class AfterCommit:
    """Recording after the commit: errors become warnings, because a retry would apply rows twice.

    Attributes:
        context: The context of the asset's output.
        warnings: A sentence for each failure so far.
    """

    context: OutputContext
    warnings: list[str] = field(default_factory=list)

    def attempt(self, what: str, recorded: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Call a recording function; if it fails, note a warning and return an empty mapping."""
        try:
            return recorded()
        except Exception as error:
            self.warnings.append(f"{what} is left out: {error}")
            return {}

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add the metadata, and the warnings to it and to the run's log."""
        shown = {**metadata, **warnings_metadata(self.warnings)}
        try:
            self.context.add_output_metadata(shown)
        except Exception as error:
            self.warnings.append(f"the metadata is left out: {error}")
        for warning in self.warnings:
            self.context.log.warning(f"The rows are committed, with a warning: {warning}")


def metadata_as_recorded(table: Table, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of the recorded version; of the newest version if none was recorded."""
    if not table.exists():  # a first batch without events creates no table
        return {}
    return table_metadata(table, recorded.get(TABLE_VERSION))


def record_listed_partitions(context: OutputContext, partitions: Sequence[str]) -> None:
    """Record the run's partitions if its tags list them."""
    if lists_partitions(context):
        # Dagster itself records only a partition or range that its own tags name.
        for partition in partitions:
            context.log_event(AssetMaterialization(context.asset_key, partition=partition))
