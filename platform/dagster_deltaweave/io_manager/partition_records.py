"""What a run's commit records of its partitions, so that the table says that it holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_deltaweave.io_manager.start_version import run_created_ms
from dagster_deltaweave.logs import (
    order_id,
    record_of,
    records_id,
    records_of_merge,
    taken_back,
)
from dagster_deltaweave.partitions import IDENTITY_TAG, output_partition_keys
from dagster_deltaweave.run_mark import mark_commits_with_run
from deltaweave import Lease
from deltaweave.changes.lineage import LogOf

if TYPE_CHECKING:
    from dagster import OutputContext

    from deltaweave import Table


def record_nothing_merged(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that there was nothing to merge of the run's partitions, so that they count."""
    _commit_alone(context, table, partition_records(context, table, output_partition_keys(context)))
    return {}


def record_applied_before(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that the run's partitions were merged before, unless the table's records say so.

    They do not if a release merged them that recorded nothing, or if the record came after them
    and a RESTORE took it back alone.
    """
    partitions, snapshot = output_partition_keys(context), table.snapshot()
    records = records_id(snapshot.id, context.asset_key)
    held = snapshot.applied_versions(records)
    looked = held.get(records)
    back = taken_back(LogOf(snapshot), snapshot.version, records, f"{records}#", looked=looked)
    recorded = partition_records(context, table, partitions)
    is_of_delivery = _delivery(context, partitions) is not None
    if any(
        name in back or held.get(name, 0) <= 0 or (is_of_delivery and held[name] != recorded[name])
        for name in (f"{records}#{partition}" for partition in partitions)
    ):
        _commit_alone(context, table, recorded)
    return {}


def _commit_alone(context: OutputContext, table: Table, recorded: Mapping[str, int]) -> None:
    if recorded:
        # A merge that changes nothing is no change of rows to those who read the log.
        nothing = table.merge(table.spark.range(0), "false").when_matched_delete()
        with mark_commits_with_run(table.spark, context.run_id):
            nothing.execute(lease=Lease(None, -1, recorded))


def _delivery(context: OutputContext, partitions: Sequence[str]) -> str | None:
    """The delivery that the run applies, if its tag names one."""
    tags = context.step_context.dagster_run.tags
    return tags.get(IDENTITY_TAG) if len(partitions) == 1 else None


def partition_records(
    context: OutputContext, table: Table, partitions: Sequence[str]
) -> dict[str, int]:
    """The application ids and versions by which the commit says that it merged the partitions."""
    if not partitions:
        return {}
    snapshot = table.snapshot()
    # Not when the step began: an earlier step of the run may have read what had landed.
    record = record_of(_delivery(context, partitions), run_created_ms(context) * 1_000_000)
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
