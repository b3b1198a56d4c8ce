"""Merges of partitions in order: an older one never overwrites what a newer one wrote.

A merge puts its partitions into its own commit as application ids, whose version orders them:

| application id | version |
| --- | --- |
| `deltaweave/order/<asset>#<partition>` | of the table, after the one that the merge read |
| `deltaweave/order/<asset>` | the same: the lease, which must still hold at the commit |

A run of a partition that is older than a merged one is refused before it writes. If two concurrent
runs both find that their partition is the newest, Delta refuses the second commit by the lease. The
second run then tries again and finds what the first one merged.

RESTORE and REPLACE take the rows of partitions back and leave their application ids. These do not
count, and the next run sets their version to -1 (`partition_records`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from dagster_deltaweave.io_manager.earlier_runs import EarlierRuns
from dagster_deltaweave.io_manager.run_retry import retry_run_if_transient
from dagster_deltaweave.logs import NOTHING, order_id, records_id, taken_back
from dagster_deltaweave.partitions import (
    ORDER_TAG,
    Positions,
    newest_first,
    output_is_full_refresh,
    output_partition_keys,
    partition_positions,
)
from dagster_deltaweave.tables import MergeDeclaration
from deltaweave import Lease
from deltaweave.changes.lineage import LogOf
from deltaweave.delta.commit import is_unwritten
from deltaweave.errors import OutOfOrderError

if TYPE_CHECKING:
    from dagster import AssetKey, OutputContext

    from dagster_deltaweave.io_manager.run_options import RunOptions
    from dagster_deltaweave.tables import TableDeclaration, TableLocator
    from deltaweave import Table

_ANY = "any"


@dataclass(frozen=True)
class MergedPartitions:
    """Which partitions were merged into a version of a table.

    Attributes:
        lease: Application id of the order.
        held: The lease's version in the table, -1 for none.
        version: The table's version, -1 if there is no table yet.
        merged: Partition to the version of its own application id.
        positions: Gives a partition's position.
    """

    lease: str
    held: int
    version: int
    merged: Mapping[str, int]
    positions: Positions

    @classmethod
    def of(cls, asset: AssetKey, table: Table, positions: Positions) -> MergedPartitions:
        """Read which partitions were merged into the newest version."""
        lease = order_id(asset)
        if not table.exists():
            return cls(lease, -1, -1, {}, positions)
        snapshot = table.snapshot()
        applied = snapshot.applied_versions(lease)
        if lease not in applied:
            return cls(lease, -1, snapshot.version, {}, positions)
        mark, records = f"{lease}#", records_id(snapshot.id, asset)
        looked = snapshot.last_applied(records)
        back = taken_back(LogOf(snapshot), snapshot.version, records, mark, looked=looked)
        merged = {
            name.removeprefix(mark): version
            for name, version in applied.items()
            if name.startswith(mark) and version != NOTHING and name not in back
        }
        return cls(lease, applied[lease], snapshot.version, merged, positions)

    @property
    def newest(self) -> str | None:
        """The newest partition, or None."""
        return next(newest_first(self.merged, self.positions), None)

    def newer_than(self, partitions: Collection[str]) -> list[str]:
        """Return other merged partitions that are newer than the oldest of these, newest first."""
        earliest = min(map(self.positions, partitions))
        in_order = newest_first(self.merged, self.positions)
        newer = takewhile(lambda key: self.positions(key) > earliest, in_order)
        return [key for key in newer if key not in partitions]

    def lease_of(self, partitions: Sequence[str], *, starts_over: bool = False) -> Lease:
        """Return the lease of these partitions: what must hold at the commit, and transaction ids.

        Args:
            partitions: The partitions.
            starts_over: Whether the order continues from them even if newer ones were merged.
        """
        newest = None if starts_over or self.newest is None else self.positions(self.newest)
        newer = [key for key in partitions if newest is None or self.positions(key) > newest]
        # If none is newer, a concurrent merge of another such partition does no harm.
        names = [self.lease, *(f"{self.lease}#{key}" for key in newer)] if newer else []
        return Lease(self.lease, self.held, dict.fromkeys(names, self.version + 1))


def lease_of_run(
    context: OutputContext,
    table: Table,
    declaration: MergeDeclaration,
    partitions: Sequence[str],
    wait_seconds: float,
) -> Lease | None:
    """Return the lease of a run's merge; None if order does not matter.

    The run waits here until the runs of older partitions have ended.

    Args:
        context: The context of the asset's output.
        table: The asset's table.
        declaration: How it is merged.
        partitions: The run's partitions.
        wait_seconds: How long to wait for a run of an older partition, in s.

    Raises:
        OutOfOrderError: A newer partition was merged, or an older one was not and its run is not in
            progress.
    """
    positions = _positions(context, declaration, partitions)
    if positions is None:
        return None
    merged, is_any = None, _is_any(context)
    if not is_any:
        merged = _wait(context, table, positions, partitions, wait_seconds, has_rows=True)
    merged = merged or MergedPartitions.of(context.asset_key, table, positions)
    if not is_any:
        _refuse_older(merged, partitions, table.path_or_name)
    return merged.lease_of(partitions, starts_over=is_any)


def wait_before_function(
    context: OutputContext, tables: TableLocator, options: RunOptions, *, has_inputs: bool
) -> None:
    """Wait for older partitions already before the asset's function is called.

    A run out of order is not refused yet: its function may return None.

    Args:
        context: The context of the asset's output.
        tables: Finds the asset's table.
        options: How the run writes the asset.
        has_inputs: Whether its inputs are loaded.

    Raises:
        WaitsForOlder: Dagster is to call it later.
        OutOfOrderError: The run has waited long enough.
    """
    partitions, declaration = output_partition_keys(context), options.declaration
    positions = _positions(context, declaration, partitions)
    if positions is None or output_is_full_refresh(context) or _is_any(context):
        return
    with retry_run_if_transient(declaration.retries, context):
        table = tables.table(context.asset_key, declaration)
        seconds = options.wait_seconds
        _wait(context, table, positions, partitions, seconds, has_rows=False, has_inputs=has_inputs)


def _is_any(context: OutputContext) -> bool:
    return context.step_context.dagster_run.tags.get(ORDER_TAG) == _ANY


def _wait(
    context: OutputContext,
    table: Table,
    positions: Positions,
    partitions: Sequence[str],
    wait_seconds: float,
    *,
    has_rows: bool,
    has_inputs: bool = True,
) -> MergedPartitions | None:
    """Wait for older partitions; return what was merged at the last look, if one was needed."""
    name, merged = table.path_or_name, None

    def newest() -> str | None:
        nonlocal merged
        merged = MergedPartitions.of(context.asset_key, table, positions)
        if has_rows:
            _refuse_older(merged, partitions, name)
        return merged.newest or _newest_materialized(context, table, positions, partitions)

    earlier = EarlierRuns(context, name, partitions, positions, wait_seconds)
    earlier.wait(newest, has_rows=has_rows, has_inputs=has_inputs)
    return merged


def marks_of_refreshed(
    context: OutputContext,
    table: Table,
    declaration: TableDeclaration,
    partitions: Sequence[str],
    *,
    is_of_all: bool,
) -> Mapping[str, int]:
    """Return the transaction ids that record a rebuilt table's partitions as merged."""
    positions = _positions(context, declaration, partitions)
    if positions is None:
        return {}
    merged = MergedPartitions.of(context.asset_key, table, positions)
    return merged.lease_of(partitions, starts_over=is_of_all).marks


def _positions(
    context: OutputContext, declaration: TableDeclaration, partitions: Sequence[str]
) -> Positions | None:
    if not (isinstance(declaration, MergeDeclaration) and declaration.needs_order and partitions):
        return None
    positions = partition_positions(context.asset_partitions_def, context.step_context.instance)
    if positions is None:
        return None
    # A dynamic partition may be deleted while its run waits, and then has no position any more.
    own = {key: positions(key) for key in partitions}
    return lambda key: own[key] if key in own else positions(key)


def _newest_materialized(
    context: OutputContext, table: Table, positions: Positions, partitions: Sequence[str]
) -> str | None:
    """Return the newest partition before the run's that a release without order merged, or None.

    The run does not wait for runs that failed before that partition, perhaps years ago.
    """
    if not table.exists() or is_unwritten(table.snapshot()):
        return None
    earliest = min(map(positions, partitions))
    keys = context.step_context.instance.get_materialized_partitions(context.asset_key)
    older = [key for key in keys if (at := positions(key)) is not None and at < earliest]
    return max(older, key=positions, default=None)


def _refuse_older(merged: MergedPartitions, partitions: Sequence[str], table: str) -> None:
    newer = merged.newer_than(partitions)
    if not newer:
        return
    partition = min(partitions, key=merged.positions)
    raise OutOfOrderError(
        f"partition {newer[0]}, which is newer than {partition}, was merged before it: it is in "
        f"the table since version {merged.merged[newer[0]]} or a later one. Older rows would "
        "replace newer ones.",
        partition=partition,
        others=newer,
        table=table,
        version=merged.version,
        hint=f"To merge {partition} all the same, run it with the tag {ORDER_TAG}: {_ANY}, and "
        "then the newer partitions again, in order; or rebuild the table by a full refresh. "
        "Declare sequence_by= where a column of the rows says which is newer, and order='any' "
        "where order does not matter.",
    )
