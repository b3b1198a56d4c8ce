"""The partitions and tags of runs: which ones, under way, or still to be made by backfills.

Dagster's run tags name one partition or a range; `deltaweave/partitions` names any partitions:

>>> partition_tags(["2026-01", "2026-05"])
{'deltaweave/partitions': '["2026-01", "2026-05"]'}
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterError,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    EventRecordsFilter,
    OpExecutionContext,
    OutputContext,
    PartitionKeyRange,
    PartitionsDefinition,
    RunRecord,
    partition_loading_context,
)

from dagster_deltaweave.dagster_private import (
    BACKFILL_ID_TAG,
    BULK_ACTION_TERMINAL_STATUSES,
    NOT_FINISHED_STATUSES,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    RANGE_TAGS,
    AssetBackfillData,
    BulkActionsFilter,
    BulkActionStatus,
    CheckError,
    PartitionBackfill,
)
from deltaweave.errors import StatementError

PARTITIONS = "deltaweave/partitions"
"""Run tag that lists partitions, adjacent or not: `a,c,f`, or a JSON list of strings."""

HIDDEN = ".dagster/deltaweave."
"""Prefix of run tags that Dagster's pages hide; read such a tag with `written_tag`."""


def hidden_tag(name: str) -> str:
    """Return the name of a tag that Dagster's pages hide.

    >>> hidden_tag("deltaweave/attempt")
    '.dagster/deltaweave.attempt'
    """
    return HIDDEN + name.removeprefix("deltaweave/")


WAITED_TAG = hidden_tag("deltaweave/waited_for")
"""Run tag: the older partition that made a run fail; see `wrote`."""

ATTEMPT_TAG = hidden_tag("deltaweave/attempt")
"""Run tag: the number of the run among those that the sensor requested for its delivery."""

RECORDED_TAG = hidden_tag("deltaweave/recorded")
"""Run tag of earlier releases: some table records what this run merged; see `recorded_tag`."""

HELD_TAG = hidden_tag("deltaweave/held")
"""Run tag: the assets whose tables held the delivery when the sensor requested the run."""

NO_TABLE = "nothing"
"""Value of a run's `recorded_tag` if the asset returned None and had no table to record it."""

FIRST_ATTEMPT_TAG = hidden_tag("deltaweave/first_attempt")
"""Run tag: the run whose work this one repeats; see `wrote`."""

FULL_REFRESH_TAG = "deltaweave/full_refresh"
"""Run tag: `true` makes the run rebuild its tables."""

DELIVERY_TAG = hidden_tag("deltaweave/delivery")
"""Run tag: the delivery that the run applies; people give it by its `shown_name`."""

IDENTITY_TAG = hidden_tag("deltaweave/fingerprint")
"""Run tag that identifies the delivery among those of its partition."""

SOURCE_TABLE_TAG = hidden_tag("deltaweave/source_table")
"""Run tag: the digest of the id of the source table for whose change the run was requested."""

SOURCE_VERSION_TAG = "deltaweave/source_version"
"""Run tag: the version of the source table for which the run was requested."""

ORDER_TAG = "deltaweave/order"
"""Run tag: `any` lets the run merge its partition even if newer ones were merged."""


def partition_tags(partitions: Iterable[str]) -> dict[str, str]:
    """Return the tags of one run for these partitions, which need not be adjacent.

    Give them to a run without Dagster's own partition: `RunRequest(tags=partition_tags(…))`,
    `dagster job launch --tags`. In such a run, an asset cannot load inputs that are partitioned
    assets with the same partitions, because Dagster reads them from the run's own tags.
    """
    return {PARTITIONS: json.dumps(list(partitions))}


def recorded_tag(asset: AssetKey) -> str:
    """Return the tag of a run whose partitions the table of an asset records; see `wrote`.

    Dagster limits the length and the letters of a tag's name, so a digest stands for the key.
    """
    digest = hashlib.sha256(asset.to_string().encode()).hexdigest()[:16]
    return f"{RECORDED_TAG}.{digest}"


def held_assets(tags: Mapping[str, str]) -> frozenset[AssetKey]:
    """Return the assets of a run whose tables held its delivery when the sensor requested it.

    The function of a step makes all its assets, also those.
    """
    return frozenset(map(AssetKey.from_user_string, json.loads(tags.get(HELD_TAG, "[]"))))


def written_tag(tags: Mapping[str, str], name: str) -> str | None:
    """Return the value of a hidden tag, or None; earlier releases and people do not hide it.

    >>> written_tag({"deltaweave/attempt": "2"}, ".dagster/deltaweave.attempt")
    '2'
    """
    return tags.get(name, tags.get(shown_name(name)))


def tags_of_run(run: DagsterRun, instance: DagsterInstance) -> Mapping[str, str]:
    """Return the tags of a run, and the delivery's tags of the run that it re-executes.

    Dagster's pages cannot copy hidden tags to a run that re-executes selected steps.
    """
    tags, before = dict(run.tags), run
    while written_tag(tags, DELIVERY_TAG) is None and before.parent_run_id is not None:
        parent = instance.get_run_by_id(before.parent_run_id)
        if parent is None or tags_of_partitions(parent) != tags_of_partitions(run):
            break
        hidden = {name: value for name, value in parent.tags.items() if name.startswith(HIDDEN)}
        tags, before = hidden | tags, parent
    return tags


def parent_of(run: DagsterRun) -> str | None:
    """Return the id of the run that a run executes again, also without the tag that names it."""
    # Runs that Python executes again have no tag, and people may give some run the tag alone.
    return run.parent_run_id or run.tags.get(PARENT_RUN_ID_TAG)


def tags_of_partitions(run: DagsterRun) -> dict[str, str]:
    """Return the tags that name the partitions of a run."""
    names = (PARTITION_NAME_TAG, *RANGE_TAGS, PARTITIONS)
    return {name: run.tags[name] for name in names if name in run.tags}


def shown_name(name: str) -> str:
    """Return the name that a hidden tag has in earlier releases and by hand."""
    return f"deltaweave/{name.removeprefix(HIDDEN)}"


def by_run(run_id: str, value: str = "") -> str:
    """Return a tag's value with the run that wrote it, because Dagster copies tags to retries."""
    return f"{value} (run {run_id})".strip()


def wrote(run: DagsterRun, tag: str) -> bool:
    """Return whether the run itself has written the tag."""
    value = written_tag(run.tags, tag) or ""
    # Earlier releases did not name the run, and a retry may have such a tag of the run before.
    is_unnamed = value and "(run " not in value and run.parent_run_id is None
    return bool(is_unnamed) or value.endswith(by_run(run.run_id))


def is_full_refresh(context: AssetExecutionContext | OpExecutionContext) -> bool:
    """Return whether this run rebuilds its tables, so that the function must return everything.

    Args:
        context: The context of an asset's function, or of an op in a graph asset; in unit tests
            also that of `build_asset_context(run_tags=…)`.
    """
    return is_refresh(_run_tags(context))


def is_refresh(tags: Mapping[str, str]) -> bool:
    """Return whether a run with these tags rebuilds its tables."""
    return tags.get(FULL_REFRESH_TAG, "").lower() == "true"


def partition_keys(context: AssetExecutionContext | OpExecutionContext) -> list[str]:
    """Return the partitions that this run is for: one, a range, or those that its tag lists.

    Args:
        context: The context of an asset's function, or of an op in a graph asset; in unit tests
            also that of `build_asset_context(partition_key=…)`, of a range or of run tags, or of
            `build_op_context`.

    Raises:
        StatementError: The tag names a partition that the asset does not have, or the run also has
            Dagster's own partition or range.
    """
    own = list(context.partition_keys) if context.has_partition_key_range else []
    if context.has_partition_key:
        own = [context.partition_key]
    tags = _run_tags(context)
    try:
        definition = context.assets_def
    except DagsterError:  # an op of a job, or a graph asset's op in a unit test
        is_listed = PARTITIONS in tags and not own
        return _keys_in_tag(tags[PARTITIONS], context.op_def.name) if is_listed else own
    names = ", ".join(sorted(key.to_user_string() for key in definition.keys))
    return _listed(tags, own, definition.partitions_def, names, context.instance)


def output_partition_keys(context: OutputContext) -> list[str]:
    """Return the partitions of an asset's output, as `partition_keys` does for its context."""
    own = list(context.asset_partition_keys) if context.has_asset_partitions else []
    step = context.step_context
    definition = context.asset_spec.partitions_def
    name = context.asset_key.to_user_string()
    return _listed(step.dagster_run.tags, own, definition, name, step.instance)


def lists_partitions(context: OutputContext) -> bool:
    """Return whether the run's tag lists the partitions, which Dagster then does not know."""
    is_partitioned = context.asset_spec.partitions_def is not None
    return is_partitioned and PARTITIONS in context.step_context.dagster_run.tags


def output_is_full_refresh(context: OutputContext) -> bool:
    """Return whether an asset's output rebuilds its table, as `is_full_refresh` for its context."""
    return is_refresh(context.step_context.dagster_run.tags)


def covers_all_partitions(context: OutputContext, keys: Sequence[str]) -> bool:
    """Return whether these are all partitions of the asset; also true if it has none.

    A window that has opened since the run was created has no rows until a run materializes it.
    """
    step, definition = context.step_context, context.asset_spec.partitions_def
    if definition is None:
        return True
    store, run = step.instance, step.dagster_run
    record = store.get_run_record_by_id(run.root_run_id or run.run_id)
    created = record.create_timestamp if record else None
    with partition_loading_context(created, store):
        left = set(definition.get_partition_keys()).difference(keys)
    if left or not keys:
        return False
    now_known = definition.get_partition_keys(dynamic_partitions_store=store)
    opened = set(now_known).difference(keys)
    return not opened or opened.isdisjoint(store.get_materialized_partitions(context.asset_key))


def _run_tags(context: AssetExecutionContext | OpExecutionContext) -> Mapping[str, str]:
    try:
        return context.run.tags
    except DagsterError:  # called without a run, as unit tests do
        is_of_asset = isinstance(context, AssetExecutionContext)
        return (context.op_execution_context if is_of_asset else context).run_tags


def _listed(
    tags: Mapping[str, str],
    own: list[str],
    definition: PartitionsDefinition[str] | None,
    asset: str,
    instance: DagsterInstance,
) -> list[str]:
    # An asset without partitions may be in the same run as one with partitions.
    if PARTITIONS not in tags or definition is None:
        return own
    keys = _keys_in_tag(tags[PARTITIONS], asset)
    if own:
        raise _wrong_list("the run also has a partition or range of Dagster's own.", asset)
    known = set(definition.get_partition_keys(dynamic_partitions_store=instance))
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise _wrong_list(f"the asset has no partition {', '.join(unknown)}.", asset)
    return keys


def _keys_in_tag(text: str, asset: str) -> list[str]:
    if not text.lstrip().startswith("["):
        keys: Any = [key.strip() for key in text.split(",")]
    else:
        try:
            keys = json.loads(text)
        except json.JSONDecodeError:
            keys = None
    if not keys or not all(isinstance(key, str) and key for key in keys):
        raise _wrong_list(f"{text!r} is not a list of partitions.", asset)
    return list(dict.fromkeys(keys))


def _wrong_list(problem: str, asset: str) -> StatementError:
    return StatementError(
        f"the run's tag {PARTITIONS} cannot be followed: {problem}",
        table=asset,
        operation="choosing partitions",
        hint="List existing partitions (a,c,f, or a JSON list) in a run without one of its own.",
    )


# Dagster launches the retry of a failed run within seconds. If its daemon is off, or the job was
# deleted, the run keeps the tag that promises a retry.
_SECONDS_UNTIL_RETRY = 600


def is_under_way(record: RunRecord, instance: DagsterInstance) -> bool:
    """Return whether a run is queued, runs, or will be retried by Dagster."""
    run = record.dagster_run
    if not run.is_complete_and_waiting_to_retry:
        return run.status in NOT_FINISHED_STATUSES
    if BACKFILL_ID_TAG in run.tags:
        backfill = instance.get_backfill(run.tags[BACKFILL_ID_TAG])
        if backfill is None or backfill.status in BULK_ACTION_TERMINAL_STATUSES:
            return False  # the daemon does not try it again either
    return time.time() - ended_at(record) < _SECONDS_UNTIL_RETRY


def ended_at(record: RunRecord) -> float:
    """Return when an ended run ended, in s since 1970; if unknown, when it last changed."""
    # Runs that ended without an event, and storages of Dagster of 2021, have no end time.
    return record.end_time or record.update_timestamp.timestamp()


def planned_assets(instance: DagsterInstance, run: DagsterRun) -> frozenset[AssetKey]:
    """Return the assets that a run is to materialize."""
    # A run that executes some steps again has the asset selection of the one before.
    if run.asset_selection is not None and run.step_keys_to_execute is None:
        return frozenset(run.asset_selection)
    # A run of a whole job names no assets, but its planned materializations are recorded.
    planned = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    events = instance.get_records_for_run(run.run_id, of_type=planned).records
    return frozenset(each.asset_key for each in events if each.asset_key)


def partitions_of_run(
    run: DagsterRun, partitions_def: PartitionsDefinition[str], instance: DagsterInstance
) -> Sequence[str]:
    """Return the partitions that a run's tags name: one, a range, or a list; empty if none."""
    if PARTITION_NAME_TAG in run.tags:
        return [run.tags[PARTITION_NAME_TAG]]
    first, last = (run.tags.get(tag) for tag in RANGE_TAGS)
    if first is not None and last is not None:
        # A range of a multi-dimensional partition is a range in each dimension.
        with (
            suppress(DagsterError, CheckError, ValueError),  # a key that was deleted
            partition_loading_context(dynamic_partitions_store=instance),
        ):
            keys = partitions_def.get_partition_keys_in_range(PartitionKeyRange(first, last))
            return list(map(str, keys))
    text = run.tags.get(PARTITIONS, "")
    if not text.lstrip().startswith("["):
        return [each.strip() for each in text.split(",") if each.strip()]
    try:
        return [str(each) for each in json.loads(text)]
    except ValueError:  # the run fails for this
        return []


class UnmergedAttempt(NamedTuple):
    """A partition that was not materialized since its last run was created."""

    partition: str
    run_id: str


def unmerged_attempts(instance: DagsterInstance, asset: AssetKey) -> list[UnmergedAttempt]:
    """Return each partition not materialized since its last run was created, with that run."""
    storage = instance.event_log_storage
    found = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        asset
    )
    # The partition is None for a run without one, e.g. from before the asset had partitions.
    attempts = {each: run_id for each, (run_id, _) in found.items() if each}
    if storage.supports_partition_subset_in_asset_materialization_planned_events:
        attempts |= _unmerged_of_subsets(instance, asset)
    return [UnmergedAttempt(each, run_id) for each, run_id in attempts.items()]


_PLANS_LOOKED_AT = 10_000


def _unmerged_of_subsets(instance: DagsterInstance, asset: AssetKey) -> dict[str, str]:
    """Return the unmerged partitions of plans that name sets of partitions, with their last runs.

    With the environment variable DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS, Dagster plans a
    run's partitions by one event, also a single one, which its storage's own query leaves out.
    """
    storage, newest = instance.event_log_storage, dict[str, tuple[str, int]]()
    planned = EventRecordsFilter(DagsterEventType.ASSET_MATERIALIZATION_PLANNED, asset_key=asset)
    for record in storage.get_event_records(planned, limit=_PLANS_LOOKED_AT):
        event = record.event_log_entry.dagster_event
        subset = event and event.asset_materialization_planned_data.partitions_subset
        for each in subset.get_partition_keys() if subset else ():
            newest.setdefault(each, (record.run_id, record.storage_id))
    materialized = DagsterEventType.ASSET_MATERIALIZATION
    merged = storage.get_latest_storage_id_by_partition(asset, materialized)
    return {each: run for each, (run, at) in newest.items() if merged.get(each, -1) < at}


def backfills_in_progress(instance: DagsterInstance) -> Sequence[PartitionBackfill]:
    """Return the backfills that go on: not those that are cancelled, have failed or have ended."""
    going_on = BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
    return instance.get_backfills(filters=going_on)


def left_of_assets(data: AssetBackfillData, asset: AssetKey) -> Iterator[str]:
    """Yield the partitions of an asset for which a backfill of assets has still to make runs."""
    targets = data.target_subset.partitions_subsets_by_asset_key
    if asset not in targets:
        return
    left = targets[asset]
    for done in (
        data.materialized_subset,
        data.failed_and_downstream_subset,
        data.requested_subset,
    ):
        if asset in done.partitions_subsets_by_asset_key:
            left -= done.get_partitions_subset(asset)  # whole windows, where partitions are times
    yield from left.get_partition_keys()


def left_of_job(backfill: PartitionBackfill) -> Sequence[str]:
    """Return the partitions for which a backfill of a job has still to make runs."""
    names = list(backfill.partition_names or ())
    last = backfill.last_submitted_partition_name
    return names[names.index(last) + 1 :] if last in names else names
