"""The transaction ids that a run commits with its rows, so that nothing is applied twice.

A transaction id is an application id with a version. The merge reads it in its own transaction, and
Delta refuses the commit if another commit with the same id won since then. The commit also records
the run's partitions. `docs/internals/transaction-ids.md` lists all ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, starmap
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterInstance, DagsterRun, RunsFilter

from dagster_deltaweave.dagster_private import (
    ASSET_RESUME_RETRY_TAG,
    BACKFILL_ID_TAG,
    PARENT_BACKFILL_ID_TAG,
)
from dagster_deltaweave.io_manager.target_table import run_created_ms
from dagster_deltaweave.landing import Landing
from dagster_deltaweave.logs import (
    NOTHING,
    order_id,
    partition_id,
    record_of,
    recorded_name,
    recorded_names,
    records_id,
    records_of_merge,
    taken_back,
)
from dagster_deltaweave.partitions import (
    DELIVERY_TAG,
    FIRST_ATTEMPT_TAG,
    FULL_REFRESH_TAG,
    IDENTITY_TAG,
    by_run,
    output_partition_keys,
    parent_of,
    planned_assets,
    recorded_tag,
    shown_name,
    tags_of_partitions,
    tags_of_run,
    written_tag,
    wrote,
)
from dagster_deltaweave.spark import tag_commits_with_run
from dagster_deltaweave.tables import (
    application_id,
)
from deltaweave import Lease, Table
from deltaweave.changes.restores import LogOf, newest_in_line
from deltaweave.delta.commit import TransactionId
from deltaweave.errors import NOTHING_WRITTEN, CommitConflictError, SourceError, StatementError

if TYPE_CHECKING:
    from dagster import OutputContext

    from dagster_deltaweave.io_manager.output import Output


_GREATEST_LONG = 2**63 - 1
_ATTEMPTS = 10


@dataclass(frozen=True)
class RunIds:
    """The transaction ids that a run commits with its rows, and those of its partitions.

    Attributes:
        applied: Application id to version, of what the rows apply.
        before: The version that the table must have for the single id, -1 for none; None for any.
    """

    context: OutputContext
    table: Table
    partitions: Sequence[str]
    applied: Mapping[str, int] = field(default_factory=dict)
    before: int | None = None

    @property
    def single(self) -> TransactionId | None:
        """The one transaction id of a merge, if it has one."""
        return next(starmap(TransactionId, self.applied.items()), None)

    def are_in_table(self) -> bool:
        """Return whether the table already holds what the rows apply, so nothing is left to do."""
        if not self.applied or not self.table.exists():
            return False
        held = [(self.table.last_applied(name), version) for name, version in self.applied.items()]
        return all(applied is not None and applied >= version for applied, version in held)

    def of_partitions(self) -> dict[str, int]:
        """Return the transaction ids by which the commit records that it merged the partitions.

        What a RESTORE took back is recorded first, by a commit of its own. In the commit of this
        run's rows, that record would come after what another run of such a partition may have
        merged in between, and undo it.
        """
        context, partitions = self.context, self.partitions
        if not partitions:
            return {}
        tags = tags_of_output(context)
        delivery = written_tag(tags, IDENTITY_TAG) if len(partitions) == 1 else None
        # The time of the run, because an earlier step of it may have read what had landed.
        record = record_of(delivery, run_created_ms(context) * 1_000_000)
        own = self._with_restores_recorded()
        # The tag may come before the commit: it counts only for runs that succeed.
        tag_as_recorded(context)
        landing = Landing.of_run(tags) if delivery else Landing()
        names = [recorded_name(each, landing) for each in partitions]
        merged = {f"{own.application_id}#{each}": record for each in names}
        return {**merged, own.application_id: own.version}

    def _with_restores_recorded(self) -> TransactionId:
        """Record what a RESTORE undid; return the id of the records, and the version read."""
        table, key = self.table, self.context.asset_key
        for attempt in range(_ATTEMPTS):
            snapshot = table.snapshot()
            records = records_id(snapshot.id, key)
            looked, order = snapshot.last_applied(records), order_id(key)
            log, version = LogOf(snapshot), snapshot.version
            taken = records_of_merge(log, version, records, {}, looked=looked, order=order)
            if taken.keys() == {records}:
                break
            try:
                self._commit(Lease(records, -1 if looked is None else looked, taken))
            except CommitConflictError:  # another run has just recorded its partitions
                if attempt == _ATTEMPTS - 1:
                    raise
        return TransactionId(records, version)

    def record_nothing_merged(self) -> dict[str, Any]:
        """Commit that the run's partitions had no rows, so that they count as merged."""
        if recorded := self.of_partitions():
            self._commit(Lease(None, -1, recorded))
        return {}

    def record_applied_before(self) -> dict[str, Any]:
        """Commit that the run's partitions were merged before, unless the table's records say so.

        The records lack them if an earlier release merged them, or if a RESTORE undid the record
        alone. What a RESTORE has undone since the run found it in the table is not recorded.
        """
        if not is_known(self.table, self.applied):
            return {}
        recorded = self.of_partitions()
        held = self.table.snapshot().applied_versions("deltaweave/merged/")
        is_of_delivery = written_tag(tags_of_output(self.context), IDENTITY_TAG) is not None
        for name, record in recorded.items():
            known = held.get(name, -1)
            if "#" in name and (known <= 0 or (is_of_delivery and known != record)):
                self._commit(Lease(None, -1, recorded))
                if not is_known(self.table, self.applied):
                    # A commit without rows does not conflict with a RESTORE that came before it.
                    names = (each for each in recorded if "#" in each)
                    self._commit(Lease(None, -1, dict.fromkeys(names, NOTHING)))
                break
        return {}

    def _commit(self, lease: Lease) -> None:
        """Commit a lease's transaction ids by a merge without rows."""
        # Readers of the log see that it changes no rows.
        nothing = self.table.merge(self.table.spark.range(0), "false").when_matched_delete()
        with tag_commits_with_run(self.table.spark, self.context.run_id):
            nothing.execute(lease=lease)


def records_delivery(context: OutputContext, table: Table) -> bool:
    """Return whether the table's own record says that it holds the delivery that a run is for."""
    tags, partitions = tags_of_output(context), output_partition_keys(context)
    identity = written_tag(tags, IDENTITY_TAG)
    if identity is None or len(partitions) != 1 or not table.exists():
        return False
    snapshot = table.snapshot()
    records = records_id(snapshot.id, context.asset_key)
    names = recorded_names(partitions[0], Landing.of_run(tags))
    recorded = {each: snapshot.last_applied(each) for each in (f"{records}#{n}" for n in names)}
    record = record_of(identity, 0)
    if record not in recorded.values():
        return False
    log, looked = LogOf(snapshot), snapshot.last_applied(records)
    back = taken_back(log, snapshot.version, records, tuple(recorded), looked=looked)
    standing = [each for name, each in recorded.items() if (each or 0) > 0 and name not in back]
    return standing[:1] == [record]


def tag_as_recorded(context: OutputContext, value: str = "") -> None:
    """Write the run's tag that its asset's table records its partitions; see `recorded_tag`."""
    tag = {recorded_tag(context.asset_key): by_run(context.run_id, value)}
    context.step_context.instance.add_run_tags(context.run_id, tag)


def ids_of_run(output: Output) -> RunIds:
    """Return the transaction ids of a run that adds to its table."""
    key, table, declaration = output.context.asset_key, output.table, output.declaration
    ids = _ids_of_upstream(output)
    if declaration.idempotent_by is not None:
        if ids.applied:
            raise _not_idempotent(key, "touched or changed rows are applied once by themselves.")
        own = _id_of_partition_or_delivery(output)
        if declaration.applies_again_after_restore:
            own = id_in_line(table, own)
        return replace(ids, applied=dict([own]))
    if not ids.applied and declaration.adds_only:
        # A run that was killed after its commit appends nothing twice when it is executed again.
        step = output.context.step_context
        first = first_attempt(step.instance, step.dagster_run)
        own = TransactionId(f"deltaweave/run/{first}/{key.to_user_string()}", 0)
        return replace(ids, applied=dict([id_in_line(table, own)]))
    return ids


def ids_of_refresh(output: Output, *, is_of_all: bool) -> RunIds:
    """Return the transaction ids of a run that rebuilds its table from all its partitions."""
    key, idempotent_by = output.context.asset_key, output.declaration.idempotent_by
    upstreams, partitions = output.upstreams, output.partitions
    if idempotent_by == "delivery":
        raise _not_idempotent(
            key,
            "a full refresh cannot know which deliveries its function read.",
            "Declare idempotent_by='partition' to rebuild it, or rebuild it into a new table.",
        )
    if upstreams and not is_of_all:
        raise StatementError(
            "a full refresh of some partitions cannot be recorded: the applied version of "
            f"{upstreams[0].to_user_string()} counts for all partitions, and what its table "
            "changed since the last run would never reach the others.",
            table=output.table.path_or_name,
            operation="full refresh",
            state=NOTHING_WRITTEN,
            hint="Refresh all partitions in one run.",
        )
    if idempotent_by is None:
        return _ids_of_upstream(output)
    if not partitions:
        raise _not_idempotent(key, "the full refresh names no partition.")
    applied = {partition_id(key, partition): 0 for partition in partitions}
    return RunIds(output.context, output.table, partitions, applied)


def applied_version(
    upstream: AssetKey, upstream_table: Table, asset: AssetKey, table: Table
) -> int | None:
    """Return the upstream version up to which a table has applied its upstream; None for none."""
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
    applied_at, created = target.applied_at_ms(earlier), source.created_at_ms
    if applied > source.version or (applied_at and created and created > applied_at):
        raise _recreated(upstream, upstream_table, asset)
    return applied


def _recreated(upstream: AssetKey, table: Table, asset: AssetKey) -> SourceError:
    name, origin = asset.to_user_string(), upstream.to_user_string()
    return SourceError(
        f"the table of {origin} was recreated since {name} applied its versions. {name} may still "
        "hold rows of the old table, so the rows of the new one can neither be skipped nor added.",
        table=table.path_or_name,
        operation="READ",
        state=f"Nothing was read, and {name} is as it was.",
        hint=f"Rebuild {name} from the new table: run it with the tag {FULL_REFRESH_TAG}: true.",
    )


def _ids_of_upstream(output: Output) -> RunIds:
    """Return the transaction ids with which the run's touched rows are applied exactly once."""
    asset, table = output.context.asset_key, output.table
    upstreams, applied = output.upstreams, output.changes.applied
    ids = RunIds(output.context, table, output.partitions)
    if not upstreams and applied is None:
        return ids
    if not upstreams or applied is None:
        raise SourceError(
            "it reads touched rows, but the function did not hand back which."
            if upstreams
            else "the function says that it applied touched rows, but no input reads any.",
            table=asset.to_user_string(),
            hint="Return Changes(rows, applied=<the touched rows that the input gave>).",
        )
    name = application_id(upstreams[0], asset, applied.table_id)
    before = -1
    if applied.after is not None:
        # A table to which only an earlier release merged has the id of that release.
        if _has_id(table, name):
            before = applied.after
        elif not _has_id(table, application_id(upstreams[0], asset)):
            raise _gap_error(upstreams[0], asset, table, applied.after)
    return replace(ids, applied={name: applied.until}, before=before)


def _has_id(table: Table, name: str) -> bool:
    return table.exists() and table.last_applied(name) is not None


def _gap_error(upstream: AssetKey, asset: AssetKey, table: Table, after: int) -> SourceError:
    name, origin = asset.to_user_string(), upstream.to_user_string()
    return SourceError(
        f"{name} read what {origin} changed after version {after}, but its table has not applied "
        "what was before: it was moved or recreated meanwhile.",
        table=table.path_or_name,
        operation="writing",
        state=NOTHING_WRITTEN,
        hint="Run it again: it reads what its table lacks.",
    )


def _id_of_partition_or_delivery(output: Output) -> TransactionId:
    asset, partitions, tags = output.context.asset_key, output.partitions, output.tags
    if len(partitions) > 1:
        raise _not_idempotent(
            asset,
            f"the run has {len(partitions)} partitions, and a commit records one.",
            "Run them one by one: backfill with BackfillPolicy.multi_run(1).",
        )
    if output.declaration.idempotent_by == "partition":
        if not partitions:
            raise _not_idempotent(asset, "the run has no partition.")
        return TransactionId(partition_id(asset, partitions[0]), 0)
    delivery = written_tag(tags, DELIVERY_TAG)
    if not delivery:
        raise _not_idempotent(
            asset,
            f"the run has no tag {shown_name(DELIVERY_TAG)}.",
            "Let the sensor request it, or give the run the tag of the delivery it applies.",
        )
    name = partition_id(asset, partitions[0]) if partitions else asset.to_user_string()
    if not _is_time(delivery):
        return TransactionId(f"{name}@{delivery}", 0)
    landing, time = Landing.of_run(tags), int(delivery)
    earlier = _id_of_earlier_release(output.table, name, landing, time)
    return earlier or _id_by_time(output.table, name, time, landing)


def _id_of_earlier_release(
    table: Table, name: str, landing: Landing, time: int
) -> TransactionId | None:
    """Return the id, without a suffix, by which an earlier release applied a delivery, if any.

    Another suffix or a directory may have that id, too, so it counts for exactly its time.
    """
    own, earlier = recorded_names(name, landing)
    if own == earlier or not table.exists() or table.last_applied(own) is not None:
        return None
    return TransactionId(earlier, time) if table.last_applied(earlier) == time else None


def _id_by_time(table: Table, name: str, time: int, landing: Landing) -> TransactionId:
    """Return the id of a delivery that is named by its time, among those of its landing.

    Times increase, so an older delivery than the applied one counts as applied. Those of another
    landing have an order of their own. What a run by hand applied, or an earlier release, has an
    id without a directory.
    """
    if landing.directory and not (table.exists() and table.last_applied(name) == time):
        return TransactionId(recorded_name(name, landing), time)
    # A run by hand may name a delivery that a sensor's run applied.
    applied = table.snapshot().applied_versions(f"{name}\t") if table.exists() else {}
    those = [each for each, version in applied.items() if version == time]
    return TransactionId(those[0] if those else name, time)


def _is_time(delivery: str) -> bool:
    """Return whether the name is a time, and not a digest that happens to have no letter.

    A digest has 20 characters. The greatest Long, which is the greatest version, has 19.
    """
    is_number = delivery.isascii() and delivery.isdecimal() and len(delivery) < 20
    return is_number and str(int(delivery)) == delivery and int(delivery) <= _GREATEST_LONG


def _not_idempotent(asset: AssetKey, problem: str, hint: str | None = None) -> StatementError:
    return StatementError(
        f"idempotent_by cannot be kept: {problem}", table=asset.to_user_string(), hint=hint
    )


def id_in_line(table: Table, own: TransactionId) -> TransactionId:
    """Return a transaction id with an application id whose version in the table, if any, counts.

    An id does not count if a RESTORE or REPLACE undid the commit that holds it. Where the log no
    longer shows what a RESTORE undid, it counts: nothing is applied twice.
    """
    name, version = own
    if not table.exists():
        return own
    snapshot = table.snapshot()
    for number in count(1):
        held = snapshot.last_applied(name)
        if held is None or held < version:
            break
        newest = newest_in_line(snapshot, name, is_alone=True)
        in_line = -1 if newest.version is None else newest.version
        if newest.unknown_since is not None or in_line >= version:
            break
        name = f"deltaweave/again/{number}/{own.application_id}"
    return TransactionId(name, version)


def is_known(table: Table, ids: Mapping[str, int]) -> bool:
    """Return whether, by the log, the rows of these transaction ids are in the table."""
    snapshot = table.snapshot()
    for name, version in ids.items():
        held = newest_in_line(snapshot, name, is_alone=True)
        if held.unknown_since is not None or held.version is None or held.version < version:
            return False
    return True


def tags_of_output(context: OutputContext) -> Mapping[str, str]:
    """Return the tags of the run that stores an output."""
    return tags_of_run(context.step_context.dagster_run, context.step_context.instance)


def first_attempt(instance: DagsterInstance, run: DagsterRun) -> str:
    """Return the id of the first run that attempted the same work as this run.

    A run that is executed again after it succeeded brings new rows; after a failure, the
    re-execution repeats its work. What a deleted run did is unknown, so what follows it counts as
    new, unless a run asked before the deletion: a tag keeps its answer. People can give the tag.
    """
    own = instance.get_run_by_id(run.run_id) or run
    first = _first_attempt(instance, own)
    if first != own.run_id and not wrote(own, FIRST_ATTEMPT_TAG):
        instance.add_run_tags(own.run_id, {FIRST_ATTEMPT_TAG: by_run(own.run_id, first)})
    return first


def _first_attempt(instance: DagsterInstance, run: DagsterRun) -> str:
    if FIRST_ATTEMPT_TAG in run.tags and wrote(run, FIRST_ATTEMPT_TAG):
        return run.tags[FIRST_ATTEMPT_TAG].split(" ")[0]
    before = _run_before(instance, run)
    by_hand = shown_name(FIRST_ATTEMPT_TAG)
    given = run.tags.get(by_hand)
    if given and (before is None or before.tags.get(by_hand) != given):  # else Dagster copied it
        return given.split()[0]
    if before is None or before.is_success:
        return run.run_id
    return _first_attempt(instance, before)


def _run_before(instance: DagsterInstance, run: DagsterRun) -> DagsterRun | None:
    """Return the run that this one executes again; None without one, or if it was deleted.

    A backfill that executes another one again makes runs without a parent. For them it is the
    newest run that the other backfill made for exactly the same partitions. If the failed assets of
    that run were retried until a run succeeded, it is the latter.
    """
    if parent := parent_of(run):
        return instance.get_run_by_id(parent)
    backfill, partitions = run.tags.get(PARENT_BACKFILL_ID_TAG), tags_of_partitions(run)
    ends: dict[str | None, DagsterRun] = {}
    wanted = planned_assets(instance, run) if backfill is not None else frozenset()
    while backfill is not None:
        for each in instance.get_runs(RunsFilter(tags={BACKFILL_ID_TAG: backfill, **partitions})):
            if tags_of_partitions(each) != partitions:
                continue
            end = ends.get(each.run_id, each)
            if wanted <= planned_assets(instance, each):
                return end
            # Steps that are selected by hand keep the tag of a run that resumed assets.
            resumes_assets = ASSET_RESUME_RETRY_TAG in each.tags
            if end.is_success and (
                each.is_resume_retry or (resumes_assets and each.step_keys_to_execute is None)
            ):
                ends[each.parent_run_id] = end
        before = instance.get_backfill(backfill)  # which may have ended before it made the run
        backfill = before.tags.get(PARENT_BACKFILL_ID_TAG) if before else None
    return None
