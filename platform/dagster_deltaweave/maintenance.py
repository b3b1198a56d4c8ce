"""Jobs and schedules that maintain Delta tables, with a step for each table and operation.

Pending changes of a merge-on-read table are merged when a `RematerializationPolicy` says so.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetObservation,
    DagsterInvalidDefinitionError,
    DefaultScheduleStatus,
    DependencyDefinition,
    GraphDefinition,
    In,
    JobDefinition,
    MetadataValue,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    ResourceDefinition,
    ScheduleDefinition,
    in_process_executor,
    op,
)

from dagster_deltaweave.io_manager import retry_run_if_transient, shows_errors_first
from dagster_deltaweave.logs import PendingChanges
from dagster_deltaweave.spark import tag_commits_with_run
from dagster_deltaweave.tables import AssetOrKey, NamedAsset
from deltaweave._validation import counted
from deltaweave.maintenance import OPERATIONS, Done, UpkeepPolicy

if TYPE_CHECKING:
    from deltaweave import Table

__all__ = [
    "OPERATIONS",
    "RematerializationPolicy",
    "UpkeepPolicy",
    "build_upkeep_job",
    "build_upkeep_schedule",
]


@dataclass(frozen=True)
class RematerializationPolicy:
    """How much may be pending before the base is rematerialized; None for any.

    Attributes:
        rows: Events.
        size_in_bytes: Size of their files.
        batches: Batches; every reader reads at least one file for each.
        age: Time since the oldest batch was appended.
        fraction_of_base: Size of the changes as a fraction of the base's.
        broadcast_limit_bytes: Size in memory up to which the changes can be broadcast, as in
            `MergeOnReadTable`. Above it, each read shuffles the base.
        expansion: How many times larger rows are in memory than in their files; it estimates the
            size in memory.
    """

    rows: int | None = None
    size_in_bytes: int | None = None
    batches: int | None = 1_000
    age: timedelta | None = timedelta(days=1)
    fraction_of_base: float | None = 0.25
    broadcast_limit_bytes: int | None = 2**30
    expansion: float = 4

    def reason(self, pending: PendingChanges) -> str | None:
        """Return a sentence on why the base is due to be rematerialized; None if it is not."""
        reasons = self._reasons(pending) if pending.batches else []
        return f"{'; '.join(reasons)}." if reasons else None

    def _reasons(self, pending: PendingChanges) -> list[str]:
        fraction = pending.fraction_of_base
        in_memory = int(pending.size_in_bytes * self.expansion)
        reasons = []
        if self.rows is not None and pending.rows >= self.rows:
            rows = counted(pending.rows, "row is", "rows are")
            reasons.append(f"{rows} pending, the limit is {self.rows:,}")
        if self.size_in_bytes is not None and pending.size_in_bytes >= self.size_in_bytes:
            reasons.append(
                f"{pending.size_in_bytes:,} bytes are pending, the limit is {self.size_in_bytes:,}"
            )
        if self.batches is not None and pending.batches >= self.batches:
            batches = counted(pending.batches, "batch is", "batches are")
            reasons.append(f"{batches} pending, the limit is {self.batches:,}")
        if self.age is not None and pending.age >= self.age:
            seconds = timedelta(seconds=int(pending.age.total_seconds()))
            reasons.append(f"a batch has been pending for {seconds}, the limit is {self.age}")
        if self.fraction_of_base is not None:
            if fraction is None:
                reasons.append("the base is empty")
            elif fraction >= self.fraction_of_base:
                allowed = f"{self.fraction_of_base:.1%}"
                reasons.append(f"{fraction:.1%} of the base are pending, the limit is {allowed}")
        if self.broadcast_limit_bytes is not None and in_memory > self.broadcast_limit_bytes:
            reasons.append(
                f"some {in_memory:,} bytes in memory are too many to be sent to every task "
                f"({self.broadcast_limit_bytes:,})"
            )
        return reasons


_RETRIES = 3


def build_upkeep_schedule(  # noqa: PLR0913 - the public options
    *,
    name: str,
    tables: AssetOrKey | Sequence[AssetOrKey],
    cron_schedule: str,
    operations: Sequence[str] = tuple(OPERATIONS),
    policy: UpkeepPolicy | None = None,
    execution_timezone: str = "UTC",
    io_manager_key: str | None = None,
    default_status: DefaultScheduleStatus = DefaultScheduleStatus.STOPPED,
) -> ScheduleDefinition:
    """Build a schedule of `build_upkeep_job`; its job is `<name>_job`.

    Args:
        name: Name of the schedule.
        tables: As in `build_upkeep_job`.
        cron_schedule: When the job runs.
        operations: As in `build_upkeep_job`.
        policy: As in `build_upkeep_job`.
        execution_timezone: The time zone of `cron_schedule`.
        io_manager_key: As in `build_upkeep_job`.
        default_status: Whether the schedule starts by itself.
    """
    named: Any = NamedAsset.each_of(tables, f"upkeep schedule {name}", io_manager_key)
    return ScheduleDefinition(
        name=name,
        job=build_upkeep_job(
            name=f"{name}_job",
            tables=named,
            operations=operations,
            policy=policy,
        ),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Upkeep of {', '.join(each.name for each in named)}.",
    )


def build_upkeep_job(
    *,
    name: str,
    tables: AssetOrKey | Sequence[AssetOrKey],
    operations: Sequence[str] = tuple(OPERATIONS),
    policy: UpkeepPolicy | None = None,
    io_manager_key: str | None = None,
) -> JobDefinition:
    """Build a job that maintains the tables of merge assets.

    `optimize` compacts small files (OPTIMIZE), by the table's clustering if it has one. `purge`
    rewrites files with rows marked deleted (REORG … APPLY (PURGE)). `floating_bounds` rewrites
    files of earlier releases by which readers may miss NaN. `statistics` computes the
    statistics of files that have none. `index_keys` indexes files that other writers added, if the
    table has a key index (`Table.index_keys`). `vacuum` deletes the files that no kept version
    needs, never earlier than the table's own retention allows. Each operation runs only if the
    policy says that the table needs it; if not, it says so. `optimize`, `purge` and `vacuum` also
    cover the table's side tables (remembered deletes and events, key filters), if they need it.

    Each operation is one op for each table, after the previous one, in the pool of the table's
    asset. So upkeep and merges of one table take turns if Dagster limits the pool. An observation
    of the asset records what was done and the state of the table's files before.

    Args:
        name: Name of the job.
        tables: The assets whose tables are maintained: definitions, specs or keys.
        operations: The operations, in order; by default all, in the order above.
        policy: When a table needs an operation; by default `UpkeepPolicy()`.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the tables; by default
            that of each asset, or `io_manager` if only its key is given.

    Raises:
        DagsterInvalidDefinitionError: There is no table or operation, or it is not known.
    """
    if not operations:
        raise DagsterInvalidDefinitionError(f"upkeep job {name}: its list of operations is empty.")
    for operation in operations:
        if operation not in OPERATIONS:
            raise DagsterInvalidDefinitionError(
                f"upkeep job {name}: {operation!r} is none of {', '.join(OPERATIONS)}."
            )
    named = NamedAsset.each_of(tables, f"upkeep job {name}", io_manager_key)
    named = _with_own_keys(named)
    bound = _bound_resources(named, name)
    alike = Counter(each.identifier for each in named)
    ops = [
        [
            _upkeep_op(
                table, operation, policy or UpkeepPolicy(), is_alone=alike[table.identifier] == 1
            )
            for operation in operations
        ]
        for table in named
    ]
    graph = GraphDefinition(
        name=name,
        description="Keeps the tables' files, statistics and key indexes.",
        node_defs=[each for table_ops in ops for each in table_ops],
        dependencies={
            later.name: {"after": DependencyDefinition(earlier.name)}
            for table_ops in ops
            for earlier, later in pairwise(table_ops)
        },
    )
    # One JVM for all tables.
    return graph.to_job(executor_def=in_process_executor, resource_defs=bound)


def _with_own_keys(tables: Sequence[NamedAsset]) -> list[NamedAsset]:
    """Give bound IO managers a key of their own where `Definitions` is to provide another table's.

    In a job that has resources, it provides no other key than `io_manager`.
    """
    if all(each.resource_defs or each.io_manager_key != "io_manager" for each in tables):
        return list(tables)
    return [
        replace(
            each,
            io_manager_key="bound_io_manager",
            is_manager_given=True,
            resource_defs=_with_bound_key(each.resource_defs),
        )
        if "io_manager" in each.resource_defs
        else each
        for each in tables
    ]


def _with_bound_key(bound: Mapping[str, ResourceDefinition]) -> dict[str, ResourceDefinition]:
    return {"bound_io_manager" if key == "io_manager" else key: bound[key] for key in bound}


def _bound_resources(tables: Sequence[NamedAsset], job: str) -> dict[str, ResourceDefinition]:
    """Return the resources that are bound to the tables' assets, for the job.

    Raises:
        DagsterInvalidDefinitionError: Another table needs another resource of that key, or may.
    """
    bound = {key: made for each in tables for key, made in each.resource_defs.items()}
    managers = {each.io_manager_key for each in tables}
    for key, made in bound.items():
        # What an IO manager needs is unknown until it is bound.
        others = [
            each.name
            for each in tables
            if each.resource_defs.get(key) is not made
            and (key == each.io_manager_key or (key not in managers and _may_need(each, key)))
        ]
        if others:
            raise DagsterInvalidDefinitionError(
                f"upkeep job {job}: the resource {key} that is bound to an asset is not that of "
                f"{', '.join(others)}. Take one for all, or give each of them a job."
            )
    return bound


def _may_need(table: NamedAsset, key: str) -> bool:
    bound = table.resource_defs
    return not bound or any(
        key in each.get_required_resource_keys(bound) for each in bound.values()
    )


def _upkeep_op(
    table: NamedAsset, operation: str, policy: UpkeepPolicy, *, is_alone: bool
) -> OpDefinition:
    """Build the op of an operation; `is_alone` if no other table's op would have its name."""
    key = table.key
    identifier = table.identifier if is_alone else table.digested_identifier
    table.declared_location("upkeep")  # refuses a view
    keep = OPERATIONS[operation]

    @op(
        name=f"{operation}_{identifier}",
        description=f"{operation.replace('_', ' ').capitalize()}: {table.name}.",
        ins={"after": In(Nothing)},
        required_resource_keys={table.io_manager_key},
        pool=table.pool,
    )
    @shows_errors_first
    def upkeep(context: OpExecutionContext) -> None:
        delta_table = table.table(context, key, "upkeep")
        if not delta_table.exists():
            context.log.info(f"There is no table at {delta_table.path_or_name} yet.")
            return
        with (
            retry_run_if_transient(_RETRIES),
            tag_commits_with_run(delta_table.spark, context.run_id),
        ):
            _observe(context, key, delta_table, keep(delta_table, policy))

    return upkeep


def _observe(context: OpExecutionContext, key: AssetKey, table: "Table", done: Done) -> None:
    """Record an operation in the run's log and as an observation of the asset."""
    context.log.info(f"{table.path_or_name}: {done.description}.")
    numbers = {f"upkeep/{name}": value for name, value in done.numbers.items()}
    metadata = {
        name: MetadataValue.int(value) if isinstance(value, int) else MetadataValue.float(value)
        for name, value in {**numbers, "upkeep/version": table.version()}.items()
    }
    context.log_event(
        AssetObservation(asset_key=key, description=done.description, metadata=metadata)
    )
