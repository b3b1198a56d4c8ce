"""An output of an asset: what is to be stored, what was stored, and what is recorded of it.

Once the rows are committed, no error fails the run, because a retry would apply them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster import AssetMaterialization

from dagster_deltaweave.metadata import (
    TABLE_VERSION,
    in_order,
    record_data_version,
    table_metadata,
    warnings_metadata,
)
from dagster_deltaweave.partitions import lists_partitions, tags_of_run
from dagster_deltaweave.tables import touched_upstreams

if TYPE_CHECKING:
    from dagster import AssetExecutionContext, AssetKey, OutputContext
    from pyspark.sql import DataFrame

    from dagster_deltaweave.io_manager.target_table import TargetTable
    from dagster_deltaweave.tables import Changes, TableDeclaration, TableLocator
    from deltaweave import Table


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a run stores in the table of an asset.

    Attributes:
        target: The asset's table, which may be missing, and how it is written.
        changes: What the asset's function returned.
        rows: The rows of `changes` that are written.
        explain: Whether a merge is explained before it runs.
        wait_seconds: How long a merge waits for one run of an older partition, in s.
    """

    target: TargetTable
    tables: TableLocator
    changes: Changes
    rows: DataFrame
    partitions: Sequence[str]
    explain: bool
    wait_seconds: float

    @property
    def context(self) -> OutputContext:
        """The context of the asset's output."""
        return self.target.context

    @property
    def table(self) -> Table:
        """The asset's table, which may be missing."""
        return self.target.table

    @property
    def declaration(self) -> TableDeclaration:
        """How the table is written."""
        return self.target.declaration

    @property
    def tags(self) -> Mapping[str, str]:
        """The run's tags."""
        step = self.context.step_context
        return tags_of_run(step.dagster_run, step.instance)

    @property
    def upstreams(self) -> list[AssetKey]:
        """The upstreams that the asset reads by touched or changed rows alone."""
        definition = self.context.step_context.assets_def
        return touched_upstreams(definition) if definition else []


@dataclass(frozen=True)
class Stored:
    """What was committed, and how it is recorded.

    Attributes:
        version: The committed version; None if there is none, or it is unknown.
        record: Records the commit and returns the metadata of the materialization.
        warnings: A sentence for each step after the commit that failed already.
        record_before: Records what the run applies, if the table held it before, so that nothing
            was committed; None otherwise.
    """

    version: int | None
    record: Callable[[], Mapping[str, Any]]
    warnings: Sequence[str] = ()
    record_before: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Recording:
    """Recording after the commit: errors become warnings, because a retry would apply rows twice.

    Attributes:
        warnings: A sentence for each failure so far.
    """

    context: OutputContext | AssetExecutionContext
    warnings: list[str] = field(default_factory=list)

    def attempt(
        self, what: str, recorded: Callable[[], Mapping[str, Any] | None]
    ) -> Mapping[str, Any]:
        """Call a recording function; if it fails, note a warning and return an empty mapping."""
        try:
            return recorded() or {}
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


def record_stored(output: Output, stored: Stored) -> None:
    """Record what was stored: its partitions, its data version, its metadata."""
    context, table = output.context, output.table
    after = Recording(context, list(stored.warnings))
    if stored.record_before is not None:
        after.attempt("what it merged before", stored.record_before)
    version = stored.version
    if version is not None:  # until `Stored.record` sets a more exact one
        after.attempt("the data version", lambda: record_data_version(context, version))
    metadata = after.attempt("what was recorded of it", stored.record)
    of_table = after.attempt("the table's metadata", lambda: _metadata_as_recorded(table, metadata))
    after.add_metadata(in_order(metadata, of_table))
    record_listed_partitions(context, output.partitions)


def record_listed_partitions(context: OutputContext, partitions: Sequence[str]) -> None:
    """Record the run's partitions if its tags list them."""
    if lists_partitions(context):
        # Dagster itself records only a partition or range that its own tags name.
        for partition in partitions:
            context.log_event(AssetMaterialization(context.asset_key, partition=partition))


def _metadata_as_recorded(table: Table, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of the recorded version; of the newest version if none was recorded."""
    if not table.exists():  # a first batch without events creates no table
        return {}
    return table_metadata(table, recorded.get(TABLE_VERSION))
