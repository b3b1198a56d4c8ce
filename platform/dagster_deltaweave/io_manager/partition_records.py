"""What a run's commit records of its partitions, so that the table says that it holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_deltaweave.io_manager.start_version import run_created_ms
from dagster_deltaweave.landing import directory_of
from dagster_deltaweave.logs import (
    order_id,
    record_of,
    recorded_name,
    records_id,
    records_of_merge,
)
from dagster_deltaweave.partitions import (
    IDENTITY_TAG,
    RECORDED_TAG,
    by_run,
    output_partition_keys,
    tags_of_run,
    written_tag,
)
from dagster_deltaweave.run_mark import mark_commits_with_run
from deltaweave import Lease
from deltaweave.changes.lineage import LogOf
from deltaweave.errors import CommitConflictError

if TYPE_CHECKING:
    from dagster import OutputContext

    from deltaweave import Table

_ATTEMPTS = 10


def record_nothing_merged(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that there was nothing to merge of the run's partitions, so that they count."""
    recorded = partition_records(context, table, output_partition_keys(context))
    if recorded:
        _commit_alone(context, table, Lease(None, -1, recorded))
    return {}


def record_applied_before(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that the run's partitions were merged before, unless the table's records say so.

    They do not if a release merged them that recorded nothing, or if the record came after them
    and a RESTORE took it back alone.
    """
    recorded = partition_records(context, table, output_partition_keys(context))
    held = table.snapshot().applied_versions("deltaweave/merged/")
    is_of_delivery = written_tag(_tags(context), IDENTITY_TAG) is not None
    for name, record in recorded.items():
        known = held.get(name, -1)
        if "#" in name and (known <= 0 or (is_of_delivery and known != record)):
            _commit_alone(context, table, Lease(None, -1, recorded))
            break
    return {}


def partition_records(
    context: OutputContext, table: Table, partitions: Sequence[str]
) -> dict[str, int]:
    """Return the transaction ids by which the commit records that it merged the partitions.

    What a RESTORE took back is recorded first, by a commit of its own. Together with the rows of
    this run, it would take back what another run of such a partition commits before this one.

    Raises:
        CommitConflictError: Other runs commit their partitions without a pause.
    """
    if not partitions:
        return {}
    tags = _tags(context)
    delivery = written_tag(tags, IDENTITY_TAG) if len(partitions) == 1 else None
    # Not when the step began: an earlier step of the run may have read what had landed.
    record = record_of(delivery, run_created_ms(context) * 1_000_000)
    for attempt in range(_ATTEMPTS):
        snapshot = table.snapshot()
        records = records_id(snapshot.id, context.asset_key)
        looked, order = snapshot.last_applied(records), order_id(context.asset_key)
        log, version = LogOf(snapshot), snapshot.version
        taken = records_of_merge(log, version, records, {}, looked=looked, order=order)
        if taken.keys() == {records}:
            break
        try:
            lease = Lease(records, -1 if looked is None else looked, taken)
            _commit_alone(context, table, lease)
        except CommitConflictError:  # another run has recorded its partitions meanwhile
            if attempt == _ATTEMPTS - 1:
                raise
    # Before the commit: of a run that fails, nobody takes it for a merge.
    context.step_context.instance.add_run_tags(
        context.run_id, {RECORDED_TAG: by_run(context.run_id)}
    )
    directory = directory_of(tags) if delivery else ""
    names = [recorded_name(each, directory) for each in partitions]
    return {**{f"{records}#{each}": record for each in names}, records: version}


def _tags(context: OutputContext) -> Mapping[str, str]:
    return tags_of_run(context.step_context.dagster_run, context.step_context.instance)


def _commit_alone(context: OutputContext, table: Table, lease: Lease) -> None:
    """Commit a lease's transaction ids by a merge without rows."""
    # It is no change of rows to those who read the log.
    nothing = table.merge(table.spark.range(0), "false").when_matched_delete()
    with mark_commits_with_run(table.spark, context.run_id):
        nothing.execute(lease=lease)
