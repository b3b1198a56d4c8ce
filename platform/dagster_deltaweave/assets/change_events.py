"""Tables as assets whose functions return change events.

- `@cdc_asset`: the table is kept current by events in any order.
- `@merge_on_read_asset`: three assets for a table whose changes are appended now, merged later.
- `build_stream_job`: a job whose run keeps the stream of such a table running.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AutomationCondition,
    DagsterInvalidDefinitionError,
    DataVersion,
    MaterializeResult,
    MetadataValue,
    asset,
    define_asset_job,
    in_process_executor,
)

from dagster_deltaweave.assets.table_asset import (
    ASSET_KINDS,
    DagsterArguments,
    asset_key,
    table_asset,
)
from dagster_deltaweave.io_manager import (
    STREAM_TAG,
    Recording,
    StreamRun,
    observe_pending,
    retry_run_if_transient,
)
from dagster_deltaweave.logs import pending_changes
from dagster_deltaweave.metadata import keep_view_fresh, table_metadata
from dagster_deltaweave.spark import tag_commits_with_run
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    CurrentTableOptions,
    IdempotentBy,
    MergeOnReadArguments,
    MergeOnReadAssets,
    MergeOnReadDeclaration,
    TableLocator,
    declaration_metadata,
    merge_on_read_locations,
    merge_on_read_tables,
    open_merge_on_read,
    problem_of_table_key,
    run_locator,
)
from deltaweave._validation import choice_problem, keys_problem, options_of
from deltaweave.changes.merge_on_read import RematerializationStrategy
from deltaweave.identifiers import is_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dagster_deltaweave.dagster_private import UnresolvedAssetJobDefinition


_VIEW_KINDS: Set[str] = frozenset({"spark", "deltalake", "view"})


def cdc_asset(  # noqa: PLR0913 - the public options
    *,
    keys: Sequence[str],
    sequence_by: str,
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: bool = False,
    present_columns: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    message_column: str | None = None,
    rescued: str | bool = False,
    stored_as_scd_type: Literal[1, 2] = 1,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    late_by: timedelta = timedelta(days=7),
    table: str | None = None,
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    kinds: Set[str] = ASSET_KINDS,
    pool: str | None = None,
    **arguments: "Unpack[DagsterArguments]",
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Declare an asset whose function returns change events, which `apply_changes` applies.

    A run may apply events again, late, or from several partitions in any order: the table is always
    the same. So no event has to be marked as applied, and a failed run can be repeated unchanged.

    >>> @cdc_asset(keys=["id"], sequence_by="lsn", apply_as_deletes="op = 'd'",
    ...            except_column_list=["op", "lsn"])
    ... def customers(spark: SparkResource) -> DataFrame:
    ...     return spark.session.read.parquet("landing/customers")

    Args:
        keys: Columns that identify a row. `deltaweave.apply_changes` describes this argument and
            the next ones, up to `late_by`.
        sequence_by: SQL expression that orders the events of a key.
        apply_as_deletes: SQL condition of events that delete their key's row.
        apply_as_truncates: SQL condition of events that delete all older rows.
        ignore_null_updates: Whether nulls leave columns as they are.
        present_columns: Column with the names of the columns that an event sets.
        column_list: Columns of the events that are columns of the table.
        except_column_list: Columns of the events that are not.
        message_column: Column with the message of each event; not a column of the table.
        rescued: Whether events that cannot be applied are put into a table of their own: its path
            or name, or True for the table's with `_rescued` appended. By default they are errors.
        stored_as_scd_type: 1 for current rows, 2 for histories.
        track_history_column_list: Columns whose change begins a version.
        track_history_except_column_list: Columns whose change begins none.
        late_by: How long deletes are remembered.
        table: The table's path or catalog name; by default the IO manager's root and asset key.
        retries: How often a run tries again after a transient error.
        name: The asset's name; by default the function's.
        key_prefix: Prefix of the asset key.
        metadata: Further metadata of the definition.
        kinds: Kinds the UI shows.
        pool: The concurrency pool; by default one for each table.
        arguments: All other arguments of `dagster.asset`, with the same meaning.
    """
    options_given = locals()

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        asset_name = name or function.__name__
        problem = keys_problem(keys) or choice_problem(
            "stored_as_scd_type", str(stored_as_scd_type), ("1", "2")
        )
        if problem is None and not table:
            problem = problem_of_table_key(asset_key(key_prefix, asset_name))
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"cdc asset {asset_name}: {problem}")
        options = options_of(CurrentTableOptions, {**options_given, "keys": tuple(keys)})
        declaration = ChangesDeclaration(table=table, retries=retries, options=options)
        return table_asset(
            function,
            declaration,
            {
                **arguments,
                "name": asset_name,
                "key_prefix": key_prefix,
                "metadata": metadata,
                "kinds": kinds,
                "pool": pool,
            },
        )

    return decorate


def base_asset(
    declaration: MergeOnReadDeclaration,
    strategy: RematerializationStrategy,
    arguments: DagsterArguments,
    metadata: Mapping[str, Any] | None,
    kinds: Set[str],
) -> AssetsDefinition:
    """Build the base asset, whose materialization merges the pending changes into it."""
    io_manager_key = arguments["io_manager_key"] or "io_manager"
    view_name = declaration.view.path[-1]

    def rematerialize(context: AssetExecutionContext) -> MaterializeResult[Any]:
        tables = run_locator(context.resources, io_manager_key)
        return _rematerialize(context, tables, declaration.at(context.asset_key), strategy)

    return table_asset(
        rematerialize,
        declaration,
        {
            **arguments,
            "description": f"{view_name} as it was when its changes were last merged.",
            "required_resource_keys": {io_manager_key},
            "name": declaration.base.path[-1],
            "key_prefix": list(declaration.view.path[:-1]) or None,
            "metadata": metadata,
            "kinds": kinds,
            "pool": None,
        },
    )


def view_asset(
    declaration: MergeOnReadDeclaration,
    arguments: DagsterArguments,
    metadata: Mapping[str, Any] | None,
) -> AssetsDefinition:
    """Build the view asset: it has no table, and materializing it records what is pending."""
    io_manager_key = arguments["io_manager_key"] or "io_manager"

    def look(context: AssetExecutionContext) -> MaterializeResult[Any]:
        tables = run_locator(context.resources, io_manager_key)
        at = merge_on_read_locations(tables, declaration.at(context.asset_key))
        pending = pending_changes(at)
        if pending is None:
            context.log.info("Nothing was appended yet.")
            return MaterializeResult()
        return MaterializeResult(
            metadata=pending.metadata(), data_version=DataVersion(str(pending.newest_batch))
        )

    arguments = {**arguments, "required_resource_keys": {io_manager_key}}
    # Not `table_asset`: a view writes no table, so it needs no pool.
    definition: AssetsDefinition = asset(
        name=declaration.view.path[-1],
        key_prefix=list(declaration.view.path[:-1]) or None,
        metadata={**(metadata or {}), **declaration_metadata(declaration)},
        kinds=set(_VIEW_KINDS),
        **arguments,
    )(look)
    return definition


def _rematerialize(
    context: AssetExecutionContext,
    tables: TableLocator,
    declaration: MergeOnReadDeclaration,
    strategy: RematerializationStrategy,
) -> MaterializeResult[Any]:
    """Rematerialize the base, and delete the changes that have been in it for long enough."""
    table = open_merge_on_read(tables, declaration)
    if not table.base.exists():
        context.log.info("Nothing was appended yet.")
        return MaterializeResult()
    after, at = Recording(context), merge_on_read_locations(tables, declaration)
    with tag_commits_with_run(table.spark, context.run.run_id):
        with retry_run_if_transient(declaration.retries):
            done = table.rematerialize(strategy)
        purged = after.attempt("the purge", lambda: {"batch": table.purge()})
    version = done.version if done else None
    described = after.attempt("the table's metadata", lambda: table_metadata(table.base, version))
    metadata: dict[str, Any] = {
        "rematerialize/strategy": MetadataValue.text(done.strategy if done else "none")
    }
    if purged:
        metadata["rematerialize/purged_batch"] = MetadataValue.int(purged["batch"])
    if version is not None:
        metadata["rematerialize/version"] = MetadataValue.int(version)
    pending = after.attempt("what is pending", lambda: observe_pending(context, declaration, at))
    merged = after.attempt("the data version", lambda: {"batch": str(table.merged_batch())})
    if merged:
        after.attempt(
            "the view",
            lambda: keep_view_fresh(context, declaration, merged["batch"], pending),
        )
    after.add_metadata({**described, **metadata, **pending})
    return MaterializeResult(data_version=DataVersion(merged["batch"]) if merged else None)


def merge_on_read_asset(  # noqa: PLR0913 - the public options
    *,
    keys: Sequence[str],
    sequence_by: str,
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    inserts: str | None = None,
    ignore_null_updates: bool = False,
    present_columns: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    message_column: str | None = None,
    rescued: str | bool = False,
    partition_by: Sequence[str] = (),
    late_by: timedelta = timedelta(days=7),
    keep_merged_for: timedelta = timedelta(hours=1),
    broadcast_limit_bytes: int = 2**30,
    strategy: RematerializationStrategy = "auto",
    idempotent_by: IdempotentBy | None = None,
    table: str | None = None,
    changes_table: str | None = None,
    checkpoint: str | None = None,
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    kinds: Set[str] = ASSET_KINDS,
    pool: str | None = None,
    base_automation_condition: AutomationCondition[AssetKey] | None = None,
    view_automation_condition: AutomationCondition[AssetKey] | None = None,
    **arguments: "Unpack[DagsterArguments]",
) -> Callable[[Callable[..., Any]], MergeOnReadAssets]:
    """Declare a merge-on-read table, whose function returns change events, as three assets.

    - `<name>_changes` holds what the function returns. A DataFrame is appended as one batch, once
      for each run even if the run is retried. Of a streaming DataFrame, all that is available now
      is appended, each micro-batch once (`build_stream_job` keeps the stream running).
    - `<name>_base` is the table into which the changes are merged. Materializing it merges all
      changes, then deletes those that have been in it for `keep_merged_for`.
    - `<name>` is the view that downstream assets read: a lazy DataFrame of the rows as of now;
      `AssetIn(metadata={"deltaweave/where": "id < 10"})` asks for those of some keys. It has no
      data of its own. Materializing it records what is pending, by the logs and without Spark. Its
      data version is the newest batch, so that merging makes nothing downstream stale.

    They are three assets, and not one with three outputs, because different runs materialize them
    at different times: changes each minute, the base by a sensor or each night. So changes and base
    have a pool each: no two runs append at once, and no two runs merge at once (nor do a merge and
    an upkeep of the base), but a run that appends never waits for a run that merges.

    >>> @merge_on_read_asset(keys=["id"], sequence_by="version", apply_as_deletes="op = 'd'",
    ...                      except_column_list=["op", "version"])
    ... def orders(spark: SparkResource) -> DataFrame:
    ...     return spark.session.readStream.format("delta").load("/lake/order_events")

    Args:
        keys: Columns that identify a row. `deltaweave.MergeOnReadTable` describes this argument and
            the next ones, up to `broadcast_limit_bytes`.
        sequence_by: SQL expression that orders the events of a key.
        apply_as_deletes: SQL condition of events that delete their key's row.
        apply_as_truncates: SQL condition of events that delete all older rows.
        inserts: SQL condition of events that insert; `MergeOnReadTable` says what this promises.
        ignore_null_updates: Whether nulls leave columns as they are.
        present_columns: Column with the names of the columns that an event sets.
        column_list: Columns of the events that are columns of the table.
        except_column_list: Columns of the events that are not.
        message_column: Column with the message of each event; not a column of the table.
        rescued: Whether events that cannot be applied are put into a table of their own: its path
            or name, or True for the base's with `_rescued` appended. By default they are errors.
        partition_by: Partition columns of the base.
        late_by: How long deletes are remembered.
        keep_merged_for: How long changes are kept once they are in the base.
        broadcast_limit_bytes: Changes up to this measured size are broadcast.
        strategy: How the base is rematerialized: `merge`, `overwrite`, `replace_where`, or `auto`.
        idempotent_by: What is appended once: each `partition`, or each `delivery` of one; by
            default the batch of each run.
        table: The base's path; by default the IO manager's root and the key of `<name>_base`.
        changes_table: The changes' path; by default next to `table`, or root and key.
        checkpoint: Where Spark keeps the stream's progress; by default the changes' path with
            `_checkpoint` appended. Delete it together with the tables.
        retries: How often a run tries again after a transient error.
        name: The view's name; by default the function's.
        key_prefix: Prefix of the asset keys.
        metadata: Further metadata of the three assets.
        kinds: Kinds the UI shows of changes and base.
        pool: The concurrency pool of the changes; by default one for each table. The base always
            has a pool of its own.
        base_automation_condition: When the base is rematerialized, as by a sensor.
        view_automation_condition: When the view records what is pending.
        arguments: All other arguments of `dagster.asset`. `group_name`, `owners`, `tags` and
            `io_manager_key` (of a `SparkDeltaIOManager`) go to all three assets; `description` goes
            to the view, and is by default the function's docstring. The others go to the changes:
            `ins`, `deps`, `partitions_def`, `automation_condition`, …
    """
    options_given = locals()

    # More than 50 lines: it declares three assets.
    def decorate(function: Callable[..., Any]) -> MergeOnReadAssets:
        view_name = name or function.__name__
        view_key = asset_key(key_prefix, view_name)
        problem = _problem_of_merge_on_read(keys, strategy, idempotent_by, table, changes_table)
        problem = problem or problem_of_table_key(view_key)
        problem = problem or _problem_of_io_manager(arguments)
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"merge-on-read asset {view_name}: {problem}")
        changes_path = changes_table or (f"{table.rstrip('/')}_changes" if table else None)
        declared: dict[str, Any] = {
            "view": view_key,
            "base_path": table,
            "changes_path": changes_path,
            "checkpoint": checkpoint,
            "retries": retries,
            "idempotent_by": idempotent_by,
            "options": options_of(
                MergeOnReadArguments,
                {**options_given, "keys": tuple(keys), "partition_by": tuple(partition_by)},
            ),
        }
        shared_arguments: DagsterArguments = {
            "group_name": arguments.get("group_name"),
            "owners": arguments.get("owners"),
            "tags": arguments.get("tags"),
            "io_manager_key": arguments.get("io_manager_key") or "io_manager",
        }
        description = f"Changes to {view_name}, appended in batches."
        changes = table_asset(
            function,
            MergeOnReadDeclaration(part="changes", table=changes_path, **declared),
            {
                **arguments,
                **shared_arguments,
                "description": description,
                "name": f"{view_name}_changes",
                "key_prefix": key_prefix,
                "metadata": metadata,
                "kinds": kinds,
                "pool": pool,
            },
        )
        base = base_asset(
            MergeOnReadDeclaration(part="base", table=table, **declared),
            strategy,
            {
                **shared_arguments,
                "deps": [changes],
                "automation_condition": base_automation_condition,
            },
            metadata,
            kinds,
        )
        view = view_asset(
            MergeOnReadDeclaration(part="view", **declared),
            {
                **shared_arguments,
                "deps": [base, changes],
                "automation_condition": view_automation_condition,
                "description": arguments.get("description") or function.__doc__,
            },
            metadata,
        )
        return MergeOnReadAssets(changes, base, view)

    return decorate


def _problem_of_merge_on_read(
    keys: Sequence[str],
    strategy: str,
    idempotent_by: str | None,
    table: str | None,
    changes_table: str | None,
) -> str | None:
    """Return why a declared table is invalid, for its author; None if it is valid."""
    problem = (
        keys_problem(keys)
        or choice_problem("strategy", strategy, get_args(RematerializationStrategy))
        or choice_problem("idempotent_by", idempotent_by, (None, *get_args(IdempotentBy)))
    )
    if problem is not None:
        return problem
    for path in (table, changes_table):
        if path is not None and not is_path(path):
            return f"{path!r} is not a path: sensors and checks find the logs of tables by paths."
    return None


def _problem_of_io_manager(arguments: DagsterArguments) -> str | None:
    name = arguments.get("io_manager_key") or "io_manager"
    if name not in (arguments.get("resource_defs") or {}):
        return None
    return (
        f"resource_defs has {name}, which would be that of its changes alone. Give it to the "
        "Definitions, and name it by io_manager_key=."
    )


def build_stream_job(
    *,
    name: str,
    tables: MergeOnReadAssets | Sequence[MergeOnReadAssets],
    every: str = "10 seconds",
    run_for: timedelta | None = None,
    observe_every: timedelta = timedelta(seconds=30),
) -> "UnresolvedAssetJobDefinition":
    """Build a job whose run keeps the stream of a merge-on-read table running.

    Each micro-batch is appended once, and readers see it immediately, while the run continues. The
    base can be rematerialized at any time meanwhile. Observations of the changes record:

    - `stream/batch`: the number of the newest micro-batch in the stream.
    - `stream/rows`: events since the previous observation, in the last 100 micro-batches, which
      Spark remembers.
    - `stream/rows_per_second`: these events divided by the time since the previous observation.
    - `stream/processed_rows_per_second`: the rate at which the newest micro-batch was processed.
    - `stream/freshness_seconds`: 0 if the stream has appended all that it found and waits;
      otherwise the time since it began the micro-batch that it appended last.
    - `changes/…`: what is pending.

    With each observation of newly appended batches, the changes and the view are materialized, with
    the newest batch as their data version, so that what depends on them runs while this run lasts.

    A run that is terminated or killed leaves nothing incomplete: the next run continues from its
    checkpoint.

    Args:
        name: The job's name.
        tables: What `@merge_on_read_asset` returns of one table, whose function returns a
            streaming DataFrame.
        every: How often events are appended.
        run_for: How long the run lasts; by default until it is terminated.
        observe_every: The least time between two observations.
    """
    found = merge_on_read_tables(tables, f"stream job {name}")
    if len(found) > 1:
        raise DagsterInvalidDefinitionError(
            f"stream job {name}: its run keeps one stream running, so give each table a job."
        )
    changes: AssetsDefinition = found[0].changes
    run = StreamRun(
        every, run_for.total_seconds() if run_for else None, observe_every.total_seconds()
    )
    return define_asset_job(
        name,
        selection=AssetSelection.assets(changes),
        tags={STREAM_TAG: json.dumps(asdict(run))},
        executor_def=in_process_executor,
        description=f"Keeps the stream of {changes.key.to_user_string()} running.",
    )
