"""The transaction ids that a run commits with its rows, so that nothing is applied twice.

Delta itself guarantees this for concurrent merges: it refuses the later commit if the earlier one
changed or added files that the later merge read. So no update is lost and no key is inserted twice,
with or without a pool. But Delta does not keep a later run from merging the same changes again, or
from merging rows that were computed before an earlier run. For that, the commit of the rows
includes a mark: a transaction identifier of the Delta protocol, which is an application id with a
version. The commit path reads it in its own transaction, and Delta refuses the commit if another
commit with the same id won since then.

| what is applied | application id | version |
| --- | --- | --- |
| a partition | `<asset>#<partition>` | 0 |
| a delivery identified by a time | `<asset>#<partition>` | the time |
| any other delivery | `<asset>#<partition>@<delivery>` | 0 |
| versions of an upstream table | `<upstream>→<asset>@<id of that table>` | the newest |
| rows that a run appends | `deltaweave/run/<run>/<asset>` | 0 |
| one of the first three that a RESTORE took back | `deltaweave/again/<number>/<its id>` | its |

Earlier releases left out the upstream table's id; their transaction ids count if the table is older
than they are. An asset that changes from `idempotent_by="partition"` to `"delivery"` applies the
deliveries of its partitions once more, because the ids of partitions do not say which deliveries
they were.

RESTORE and REPLACE leave a table's application ids as they are, so what they undid would count as
applied. It is applied again under `deltaweave/again/<number>/<id>`. If two runs do so at once,
Delta refuses the second because the first committed the new id; under the old id, it would not
notice.

The commit also records the run's partitions, so that the table says which it holds
(`logs/held_partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun

from dagster_deltaweave.dagster_private import PARENT_RUN_ID_TAG
from dagster_deltaweave.io_manager.target_table import run_created_ms
from dagster_deltaweave.landing import directory_of
from dagster_deltaweave.logs import (
    NOTHING,
    order_id,
    record_of,
    recorded_name,
    records_id,
    records_of_merge,
)
from dagster_deltaweave.partitions import (
    DELIVERY_TAG,
    FULL_REFRESH_TAG,
    IDENTITY_TAG,
    RECORDED_TAG,
    by_run,
    output_partition_keys,
    shown_name,
    tags_of_run,
    written_tag,
)
from dagster_deltaweave.run_mark import mark_commits_with_run
from dagster_deltaweave.tables import (
    Changes,
    TableDeclaration,
    application_id,
)
from deltaweave import Lease, Table
from deltaweave.changes.lineage import LogOf, newest_in_line
from deltaweave.errors import NOTHING_WRITTEN, CommitConflictError, SourceError, StatementError

if TYPE_CHECKING:
    from dagster import OutputContext


_GREATEST_LONG = 2**63 - 1


@dataclass(frozen=True)
class Marks:
    """The transaction ids that record what a run's rows apply.

    Attributes:
        pairs: Application id to version.
        before: The version that the table must have for the single id, -1 for none; None for any.
    """

    pairs: Mapping[str, int] = field(default_factory=dict)
    before: int | None = None

    @property
    def pair(self) -> tuple[str, int] | None:
        """The one pair of a merge, if it has one."""
        return next(iter(self.pairs.items()), None)

    def are_in(self, table: Table) -> bool:
        """Return whether a table already holds what the rows apply, so nothing is left to do."""
        if not self.pairs or not table.exists():
            return False
        held = [(table.last_applied(name), version) for name, version in self.pairs.items()]
        return all(applied is not None and applied >= version for applied, version in held)


def marks_of_run(
    asset: AssetKey,
    declaration: TableDeclaration,
    changes: Changes,
    *,
    table: Table,
    upstreams: Sequence[AssetKey],
    partitions: Sequence[str],
    tags: Mapping[str, str],
    first_attempt: Callable[[], str],
) -> Marks:
    """Return the transaction ids of a run that adds to its table.

    Args:
        asset: The asset.
        declaration: The declaration of the asset's table.
        changes: What its function returned.
        table: The asset's table.
        upstreams: Upstreams that it reads by touched or changed rows alone: at most one.
        partitions: The run's partitions.
        tags: The run's tags.
        first_attempt: Gives the id of the run that made the first attempt at what this run does.

    Raises:
        SourceError: The function did not hand back the touched rows that it applied.
        StatementError: This run cannot keep the declared idempotency.
    """
    of_upstream = _of_upstream(asset, changes, upstreams, table)
    if declaration.idempotent_by is not None:
        if of_upstream.pairs:
            raise _not_idempotent(asset, "touched or changed rows are applied once by themselves.")
        pair = _pair(asset, declaration, partitions, tags)
        if declaration.applies_again_after_restore:
            pair = pair_in_line(table, pair)
        return Marks(dict([pair]))
    if of_upstream.pairs:
        return of_upstream
    if declaration.adds_only:
        # If a run was killed after its commit and is executed again, it appends nothing twice.
        return Marks({f"deltaweave/run/{first_attempt()}/{asset.to_user_string()}": 0})
    return Marks()


def marks_of_refresh(
    asset: AssetKey,
    declaration: TableDeclaration,
    changes: Changes,
    *,
    table: Table,
    upstreams: Sequence[AssetKey],
    partitions: Sequence[str],
    is_of_all: bool,
) -> Marks:
    """Return the transaction ids of a run that rebuilds its table and applies all its partitions.

    Args:
        asset: The asset.
        declaration: The declaration of the asset's table.
        changes: What its function returned.
        table: The asset's table.
        upstreams: Upstreams that it reads by touched or changed rows alone: at most one.
        partitions: The run's partitions.
        is_of_all: Whether these are all of the asset's partitions, or it has none.

    Raises:
        SourceError: The function did not hand back the touched rows that it applied.
        StatementError: It is unknown what was applied.
    """
    if declaration.idempotent_by == "delivery":
        raise _not_idempotent(
            asset,
            "a full refresh cannot know which deliveries its function read.",
            "Declare idempotent_by='partition' to rebuild it, or rebuild it into a new table.",
        )
    if upstreams and not is_of_all:
        raise StatementError(
            "a full refresh of some partitions cannot be recorded: the applied version of "
            f"{upstreams[0].to_user_string()} counts for all partitions, and what its table "
            "changed since the last run would never reach the others.",
            table=table.path_or_name,
            operation="full refresh",
            state=NOTHING_WRITTEN,
            hint="Refresh all partitions in one run.",
        )
    if declaration.idempotent_by is None:
        return _of_upstream(asset, changes, upstreams, table)
    if not partitions:
        raise _not_idempotent(asset, "the full refresh names no partition.")
    return Marks({_partition_id(asset, partition): 0 for partition in partitions})


def applied_version(
    upstream: AssetKey, upstream_table: Table, asset: AssetKey, table: Table
) -> int | None:
    """Return the upstream version up to which a table has applied its upstream; None for none.

    Args:
        upstream: The upstream asset.
        upstream_table: The upstream's table.
        asset: The asset that applies it.
        table: The asset's table; it may be missing.

    Raises:
        SourceError: The applied versions belong to an earlier table in the upstream's place.
    """
    if not table.exists():
        return None
    source, target = upstream_table.snapshot(), table.snapshot()
    applied = target.last_applied(application_id(upstream, asset, source.id))
    if applied is not None:
        return applied
    earlier = application_id(upstream, asset)
    if any(each.startswith(f"{earlier}@") for each in target.applied_versions()):
        raise _recreated(upstream, upstream_table, asset)
    applied = target.last_applied(earlier)
    if applied is None:
        return None
    marked, created = target.applied_at_ms(earlier), source.created_at_ms
    if applied > source.version or (marked and created and created > marked):
        raise _recreated(upstream, upstream_table, asset)
    return applied


def _recreated(upstream: AssetKey, table: Table, asset: AssetKey) -> SourceError:
    name, of = asset.to_user_string(), upstream.to_user_string()
    return SourceError(
        f"the table of {of} was recreated since {name} applied its versions. {name} may still hold "
        "rows of the old table, so the rows of the new one can neither be skipped nor added.",
        table=table.path_or_name,
        operation="READ",
        state=f"Nothing was read, and {name} is as it was.",
        hint=f"Rebuild {name} from the new table: run it with the tag {FULL_REFRESH_TAG}: true.",
    )


def _of_upstream(
    asset: AssetKey, changes: Changes, upstreams: Sequence[AssetKey], table: Table
) -> Marks:
    """Return the transaction id with which touched rows are applied exactly once, if any are."""
    applied = changes.applied
    if not upstreams and applied is None:
        return Marks()
    if not upstreams or applied is None:
        raise SourceError(
            "it reads touched rows, but the function did not hand back which."
            if upstreams
            else "the function says that it applied touched rows, but no input reads any.",
            table=asset.to_user_string(),
            hint="Return Changes(rows, applied=<the touched rows that the input gave>).",
        )
    mark = application_id(upstreams[0], asset, applied.table_id)
    before = -1
    if applied.after is not None:
        # A mark of an earlier release has another id, and there is none with this one yet.
        if _has_mark(table, mark):
            before = applied.after
        elif not _has_mark(table, application_id(upstreams[0], asset)):
            raise _gap_error(upstreams[0], asset, table, applied.after)
    return Marks({mark: applied.until}, before)


def _has_mark(table: Table, name: str) -> bool:
    return table.exists() and table.last_applied(name) is not None


def _gap_error(upstream: AssetKey, asset: AssetKey, table: Table, after: int) -> SourceError:
    name, of = asset.to_user_string(), upstream.to_user_string()
    return SourceError(
        f"{name} read what {of} changed after version {after}, but its table has not applied what "
        "was before: it was moved or recreated meanwhile.",
        table=table.path_or_name,
        operation="writing",
        state=NOTHING_WRITTEN,
        hint="Run it again: it reads what its table lacks.",
    )


def _pair(
    asset: AssetKey,
    declaration: TableDeclaration,
    partitions: Sequence[str],
    tags: Mapping[str, str],
) -> tuple[str, int]:
    if len(partitions) > 1:
        raise _not_idempotent(
            asset,
            f"the run has {len(partitions)} partitions, and a commit records one.",
            "Run them one by one: backfill with BackfillPolicy.multi_run(1).",
        )
    if declaration.idempotent_by == "partition":
        if not partitions:
            raise _not_idempotent(asset, "the run has no partition.")
        return _partition_id(asset, partitions[0]), 0
    delivery = written_tag(tags, DELIVERY_TAG)
    if not delivery:
        raise _not_idempotent(
            asset,
            f"the run has no tag {shown_name(DELIVERY_TAG)}.",
            "Let the sensor request it, or give the run the tag of the delivery it applies.",
        )
    of_what = _partition_id(asset, partitions[0]) if partitions else asset.to_user_string()
    # Times increase, so a delivery older than the applied one is over. Other names have no order.
    return (of_what, int(delivery)) if _is_time(delivery) else (f"{of_what}@{delivery}", 0)


def _is_time(delivery: str) -> bool:
    """Return whether the name is a time, and not a digest that happens to have no letter.

    A digest has 20 characters. The greatest Long, which is the greatest version, has 19.
    """
    is_number = delivery.isascii() and delivery.isdecimal() and len(delivery) < 20
    return is_number and str(int(delivery)) == delivery and int(delivery) <= _GREATEST_LONG


def _partition_id(asset: AssetKey, partition: str) -> str:
    return f"{asset.to_user_string()}#{partition}"


def _not_idempotent(asset: AssetKey, problem: str, hint: str | None = None) -> StatementError:
    return StatementError(
        f"idempotent_by cannot be kept: {problem}", table=asset.to_user_string(), hint=hint
    )


def pair_in_line(table: Table, pair: tuple[str, int]) -> tuple[str, int]:
    """Return a pair with an id whose version in the table, if any, counts.

    An id does not count if a RESTORE or REPLACE undid the commit that holds it. Where the log no
    longer shows what a RESTORE undid, it counts: nothing is applied twice.

    Args:
        table: The table, which may be missing.
        pair: The application id and version that record what the run applies.
    """
    name, version = pair
    if not table.exists():
        return pair
    snapshot = table.snapshot()
    for number in count(1):
        held = snapshot.last_applied(name)
        if held is None or held < version:
            break
        found = newest_in_line(snapshot, name, is_alone=True)
        in_line = -1 if found.version is None else found.version
        if found.unknown_since is not None or in_line >= version:
            break
        name = f"deltaweave/again/{number}/{pair[0]}"
    return name, version


def is_known(table: Table, pairs: Mapping[str, int]) -> bool:
    """Return whether the log still says that what has these ids and versions is in the table."""
    snapshot = table.snapshot()
    for name, version in pairs.items():
        found = newest_in_line(snapshot, name, is_alone=True)
        if found.unknown_since is not None or found.version is None or found.version < version:
            return False
    return True


_ATTEMPTS = 10


def record_nothing_merged(context: OutputContext, table: Table) -> dict[str, Any]:
    """Commit that there was nothing to merge of the run's partitions, so that they count."""
    recorded = partition_records(context, table, output_partition_keys(context))
    if recorded:
        _commit_alone(context, table, Lease(None, -1, recorded))
    return {}


def record_applied_before(
    context: OutputContext, table: Table, applied: Mapping[str, int]
) -> dict[str, Any]:
    """Commit that the run's partitions were merged before, unless the table's records say so.

    They do not if a release merged them that recorded nothing, or if the record came after them
    and a RESTORE took it back alone. Nothing is recorded of what a RESTORE has taken back since the
    run found it in the table.

    Args:
        context: The context of the asset's output.
        table: The asset's table.
        applied: The transaction ids of what was merged before.
    """
    if not is_known(table, applied):
        return {}
    recorded = partition_records(context, table, output_partition_keys(context))
    held = table.snapshot().applied_versions("deltaweave/merged/")
    is_of_delivery = written_tag(_tags(context), IDENTITY_TAG) is not None
    for name, record in recorded.items():
        known = held.get(name, -1)
        if "#" in name and (known <= 0 or (is_of_delivery and known != record)):
            _commit_alone(context, table, Lease(None, -1, recorded))
            if not is_known(table, applied):
                # A commit without rows does not conflict with a RESTORE that came before it.
                names = (each for each in recorded if "#" in each)
                _commit_alone(context, table, Lease(None, -1, dict.fromkeys(names, NOTHING)))
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


def first_attempt(instance: DagsterInstance, run: DagsterRun, key: AssetKey) -> str:
    """Return the id of the run that first attempted what this run does.

    If the step that materialized the asset succeeded in the parent run, a re-execution brings new
    rows. If that step failed after it, by another output or a kill, the re-execution repeats all of
    it.
    """
    run_id = run.run_id
    while parent := run.tags.get(PARENT_RUN_ID_TAG):
        if _steps_that_made(instance, parent, key) & _steps_that_succeeded(instance, parent):
            break
        run_id, before = parent, instance.get_run_by_id(parent)
        if before is None:
            break
        run = before
    return run_id


def _steps_that_made(instance: DagsterInstance, run_id: str, key: AssetKey) -> set[str | None]:
    made = instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    entries = [record.event_log_entry for record in made.records]
    return {
        entry.step_key
        for entry in entries
        if entry.asset_materialization and entry.asset_materialization.asset_key == key
    }


def _steps_that_succeeded(instance: DagsterInstance, run_id: str) -> set[str | None]:
    done = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_SUCCESS)
    return {record.event_log_entry.step_key for record in done.records}
