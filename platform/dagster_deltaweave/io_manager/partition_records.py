"""What a run's commit records of its partitions, so that the table says that it holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_deltaweave.io_manager.start_version import run_created_ms
from dagster_deltaweave.logs import order_id, record_of, records_id, records_of_merge
from dagster_deltaweave.partitions import IDENTITY_TAG, output_partition_keys
from deltaweave import Lease
from deltaweave.changes.lineage import LogOf

if TYPE_CHECKING:
    from dagster import OutputContext

    from deltaweave import Table


def record_nothing_merged(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that there was nothing to merge of the run's partitions, so that they count."""
    recorded = partition_records(context, table, output_partition_keys(context))
    if recorded:
        # A merge that changes nothing is no change of rows to those who read the log.
        nothing = table.merge(table.spark.range(0), "false").when_matched_delete()
        nothing.execute(lease=Lease(None, -1, recorded))
    return {}


def partition_records(
    context: OutputContext, table: Table, partitions: Sequence[str]
) -> dict[str, int]:
    """The application ids and versions by which the commit says that it merged the partitions."""
    if not partitions:
        return {}
    snapshot, tags = table.snapshot(), context.step_context.dagster_run.tags
    delivery = tags.get(IDENTITY_TAG) if len(partitions) == 1 else None
    # Not when the step began: an earlier step of the run may have read what had landed.
    record = record_of(delivery, run_created_ms(context) * 1_000_000)
    records = records_id(snapshot.id, context.asset_key)
    merged = dict.fromkeys(partitions, record)
    return records_of_merge(
        LogOf(snapshot),
        snapshot.version,
        records,
        merged,
        looked=snapshot.last_applied(records),
        order=order_id(context.asset_key),
    )
