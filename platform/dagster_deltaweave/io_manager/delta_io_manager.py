"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dagster import (
    ConfigurableIOManager,
    ConfigurableResource,
    DagsterInvariantViolationError,
    FilesystemIOManager,
    InitResourceContext,
    InputContext,
    IOManager,
    OpExecutionContext,
    OutputContext,
    ResourceDependency,
)
from pydantic import Field, PrivateAttr, field_validator
from pyspark.sql import DataFrame

from dagster_deltaweave.io_manager.frames import (
    TypeHandler,
    changes_of_output,
    handler_of_value,
    is_by_partition,
    kept_for_readers,
    to_spark,
    without_empty_partitions,
)
from dagster_deltaweave.io_manager.loading import load_input
from dagster_deltaweave.io_manager.merge_order import wait_before_function
from dagster_deltaweave.io_manager.output import (
    Output,
    RunOptions,
    declaration_of,
    declared_write,
    record_stored,
    with_mode_of_output,
    with_tags,
)
from dagster_deltaweave.io_manager.step_attempts import (
    StepAttempt,
    attempt_of_step,
    error_shown_first,
    retry_run_if_transient,
    wait_before_inputs,
)
from dagster_deltaweave.io_manager.stores import (
    rebuild,
    store,
    store_held,
    store_nothing,
)
from dagster_deltaweave.io_manager.target_table import TargetTable
from dagster_deltaweave.partitions import (
    output_is_full_refresh,
    output_partition_keys,
)
from dagster_deltaweave.spark import SparkResource, tag_commits_with_run
from dagster_deltaweave.tables import (
    AssetOrKey,
    MergeDeclaration,
    NamedAsset,
    Namespace,
    TableLocator,
)
from deltaweave._validation import check_given_location
from deltaweave.delta.commit import without_session_transaction_id
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from deltaweave import Table


class OpOutputs:
    """Keeps the outputs of ops that are not assets, in files, as Dagster's default IO manager does.

    A Spark DataFrame cannot be written to such a file: it stays in the run's process, and so does a
    list, tuple or dict with one.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, ...], Any] = {}
        self._of_graphs: dict[tuple[str, str, str], Callable[[], Any]] = {}

    def keep(self, context: OutputContext, value: object) -> None:
        """Keep an op's output for the ops that take it."""
        output = tuple(context.get_identifier())
        # Drop what an earlier attempt of the op returned, in a file or not.
        self._frames.pop(output, None)
        if _has_frame(value):
            self._frames[output] = value
            Path(_directory(context), *output).unlink(missing_ok=True)
        else:
            self._file_io_manager(context).handle_output(context, value)

    def keep_in_graph(
        self, context: OutputContext, value: object, handlers: Sequence[TypeHandler] = ()
    ) -> object:
        """Keep the stored output of an op of a graph asset, for the other ops of the graph.

        Returns:
            The value to store: what can be read once is another value for each of its readers.
        """
        if len(context.step_context.node_handle.path) > 1:
            value, self._of_graphs[_output_key(context)] = kept_for_readers(value, handlers)
        return value

    def in_graph(self, context: InputContext) -> tuple[Any, ...]:
        """Return the one output of an op of this graph asset; none for another asset's table."""
        output = context.upstream_output
        if output is None:
            return ()
        try:
            own, key = context.step_context.node_handle.path, _output_key(output)
        except DagsterInvariantViolationError:  # no step of this run, or no run at all
            return ()
        if len(own) == 1 or key[1].split(".")[0] != own[0]:
            return ()
        if key not in self._of_graphs:
            raise _not_here(output)
        return (self._of_graphs[key](),)

    def load(self, context: InputContext) -> Any:
        """Load the output that an op's input takes."""
        output = context.upstream_output
        assert output is not None
        kept = self._frames.get(tuple(output.get_identifier()))
        if kept is not None:
            return kept
        try:
            return self._file_io_manager(context).load_input(context)
        except FileNotFoundError as error:
            raise _not_here(output) from error

    def clear(self) -> None:
        """Release the outputs of a run that has ended."""
        self._frames.clear()
        self._of_graphs.clear()

    def _file_io_manager(self, context: InputContext | OutputContext) -> IOManager:
        return FilesystemIOManager(base_dir=_directory(context)).create_io_manager(None)  # type: ignore[arg-type]


def _directory(context: InputContext | OutputContext) -> str:
    return context.step_context.instance.storage_directory()


def _not_here(output: OutputContext) -> SourceError:
    return SourceError(
        f"the output {output.name} of the op {output.step_key} is not there: it stays in the "
        "process of the step that returned it.",
        operation="READ",
        state="This step wrote nothing.",
        hint="Run the job on the in-process executor, as a whole.",
    )


def _has_frame(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_frame, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_frame, value))
    return isinstance(getattr(value, "rows", value), DataFrame)  # also such as Changes


def _output_key(output: OutputContext) -> tuple[str, str, str]:
    return output.run_id, output.step_key, output.name


class SparkDeltaIOManager(ConfigurableIOManager):
    """Stores the output of an asset in its Delta table, and loads tables as inputs.

    An output is a DataFrame of Spark, pandas or Polars, or Arrow's table or record batches; of a
    run of several partitions also `{partition key: such rows, or None}`. A subclass adds further
    types by `type_handlers`. For a `@merge_asset` it is merged, and for a `@cdc_asset` it is
    applied. For other assets the metadata `deltaweave/write` says how it is written: `append`,
    `overwrite`, `replace_where` or `merge`; without it, `mode` does. If the asset is partitioned,
    all but `append` write only the run's partitions, by `partition_expr`, and are refused without
    it. For an asset without that metadata, an output's own metadata `mode` decides for one run.
    Outputs of ops that are not assets are kept as by Dagster's default IO manager.

    A table that does not exist is created first. If the output is None, nothing is written, and the
    log and the metadata say so; a partition of None, or that is left out, keeps its rows. In a full
    refresh, both are refused. On any error no row is written; a table that was created stays empty.
    Once the rows are committed, nothing fails the run: what could not be recorded is a warning in
    its log and in the metadata `deltaweave/warnings`.

    If another commit changed rows since the asset's function began, a write that replaces these
    rows fails with a conflict, and the run tries again.

    As an input, an asset is its table, as the type that the input is annotated with; without an
    annotation, as a lazy Spark DataFrame. If the upstream has `partition_expr`, the input has only
    the partitions that its partition mapping gives: those that belong to the run's, or those that
    it names for an asset without partitions. An input without partitions is empty; so is one whose
    table is still to be made, if the asset declares its columns or loads itself.

    If the input's metadata has `deltaweave/read`, the input has what changed since the version that
    the downstream table last applied: with `touched` the `deltaweave.TouchedRows` of the files
    touched since, with `changes` the `deltaweave.ChangedRows` of the upstream's change data feed.

    The metadata `columns` of an input names the columns that it has, and `deltaweave/version` the
    version of the table that it reads.

    The tags of a run change how it writes, for this run alone: `deltaweave/schema_policy`,
    `deltaweave/retries`, `deltaweave/explain` and `deltaweave/order_wait_seconds`. Invalid values
    are refused before anything is written.

    The assets of a merge-on-read table are loaded as its rows with all changes, its base, or its
    change events. For the first, `deltaweave/where` in the input's metadata is a condition of keys.
    """

    root: str = Field(
        description="Path or URI under which the tables lie, each at its asset key: <root>/<key>."
    )
    # pydantic has a method `schema`; Dagster's own IO managers name the field so, too.
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description=(
            "Schema (database) of the tables of assets whose metadata has no `schema`. Each table "
            "is then <schema>.<last part of the key> and not under the root."
        ),
    )
    catalog: str | None = Field(
        default=None,
        description=(
            "Catalog of the tables of assets whose metadata has no `catalog`. An asset without any "
            "`schema` then has that of its key's prefix."
        ),
    )
    mode: Literal["overwrite", "append", "error"] = Field(
        default="overwrite",
        description=(
            "How an asset is stored that declares nothing, as a plain `@dg.asset`: `overwrite` "
            "replaces its table, or, if it is partitioned, the run's partitions by its "
            "`partition_expr`; `append` adds rows; `error` refuses it."
        ),
    )
    explain: bool = Field(
        default=False,
        description=(
            "Whether each merge is explained before it runs, in the run's log and as metadata. "
            "The source is then evaluated once more than the merge does."
        ),
    )
    order_wait_seconds: int = Field(
        default=3600,
        description=(
            "How long a run waits for one run of an older partition to end before it fails, in s."
        ),
    )
    spark: ResourceDependency[SparkResource]

    @field_validator("root")
    @classmethod
    def _is_a_location(cls, root: str) -> str:
        check_given_location(root, operation="configuration")
        return root

    @field_validator("schema_", "catalog")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError("A name is empty: leave it out, or name one.")
        return name

    @property
    def locator(self) -> TableLocator:
        """Finds the tables."""
        return TableLocator(self.root, self.spark, Namespace(self.catalog, self.schema_))

    @staticmethod
    def type_handlers() -> Sequence[TypeHandler]:
        """Return handlers of further types than these, for a subclass to add."""
        return ()

    _of_ops: OpOutputs = PrivateAttr(default_factory=OpOutputs)
    _have_waited: set[StepAttempt] = PrivateAttr(default_factory=set)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Release the outputs of the run's ops."""
        self._of_ops.clear()
        self._have_waited.clear()

    def wait_for_older(self, context: OutputContext, *, has_inputs: bool = True) -> None:
        """Wait for the runs of older partitions, before the asset's function runs.

        An attempt of a step looks for them once: before it loads its first input from a table, or
        before the function. `has_inputs` says whether the step has loaded its inputs.
        """
        attempt = attempt_of_step(context)
        is_merged = isinstance(declaration_of(context), MergeDeclaration)
        if not is_merged or attempt in self._have_waited:
            return
        options = self._run_options(context)
        wait_before_function(context, self.locator, options, has_inputs=has_inputs)
        self._have_waited.add(attempt)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what the asset function returned, and record the result."""
        with error_shown_first(context):
            self._handle_output(context, obj)

    def _handle_output(self, context: OutputContext, obj: object) -> None:
        if not context.has_asset_key:
            self._of_ops.keep(context, obj)
            return
        handlers = self.type_handlers()
        value: Any = self._of_ops.keep_in_graph(context, obj, handlers)
        is_rebuilt = output_is_full_refresh(context)
        if not is_rebuilt and store_held(context, self.locator):
            return
        partitions = output_partition_keys(context)
        # An empty dict of a run without partitions is refused as what is not a table.
        by_partition = is_by_partition(value, handlers) and bool(value or partitions)
        if by_partition:
            value = without_empty_partitions(value, context.asset_key, partitions)
        if value is None:
            if declaration_of(context) is not None:
                self._run_options(context)  # refuses invalid tags
            store_nothing(context, self.locator)
            return
        options = self._run_options(context)
        to_rows = partial(self._rows_of, context)
        changes = changes_of_output(to_rows, value, context.asset_key, by_partition=by_partition)
        target = TargetTable.open(context, self.locator, options.declaration)
        output = Output(
            target=target,
            tables=self.locator,
            changes=changes,
            rows=changes.rows,
            partitions=partitions,
            options=options,
        )
        with (
            retry_run_if_transient(target.declaration.retries, context),
            tag_commits_with_run(target.table.spark, context.run_id),
            target.stating_empty_table(),
            without_session_transaction_id(),  # the function may have set one for its own write
        ):
            stored = rebuild(output) if is_rebuilt else store(output)
        record_stored(output, stored)

    def _rows_of(self, context: OutputContext, value: object) -> "DataFrame | None":
        """Return the rows of a value; None if its type is unknown."""
        if (handler := handler_of_value(self.type_handlers(), value)) is not None:
            return handler.handle_output(context, value, self.spark.session)
        return to_spark(self.spark.session, value)

    def _run_options(self, context: OutputContext) -> RunOptions:
        """Return how this run writes the asset: as declared, as changed by the run's tags."""
        declaration = declared_write(context, self.mode)
        if declaration_of(context) is None:
            declaration = with_mode_of_output(declaration, context)
        declared = RunOptions(declaration, self.explain, self.order_wait_seconds)
        tags = context.step_context.dagster_run.tags
        return with_tags(declared, tags, context.asset_key.to_user_string())

    def load_input(self, context: InputContext) -> Any:
        """Load the upstream asset's table, its partitions, or what changed, as the input asks."""
        with error_shown_first(context):
            wait_before_inputs(context)
            if not context.has_asset_key:
                return self._of_ops.load(context)
            if within := self._of_ops.in_graph(context):
                return within[0]
            return load_input(context, self.locator, self.type_handlers())


class DeltaTableResource(ConfigurableResource["DeltaTableResource"]):
    """Gives code that reads or changes tables itself the `deltaweave.Table` of an asset.

    The session starts when a table is first asked for.

    >>> tables = DeltaTableResource(io_manager=io_manager)
    >>> tables.table("sales/orders").history()
    """

    io_manager: ResourceDependency[SparkDeltaIOManager]

    def table(self, asset: AssetOrKey) -> "Table":
        """Return the table of an asset.

        Args:
            asset: The asset, or its key (`sales/orders`). If the asset declares where its table is
                (`table=…`, `schema` in its metadata), give the asset: its key does not say so.

        Raises:
            StatementError: The asset is the view of a merge-on-read table, which has no table. Or
                it is a definition that this run's code location has not loaded under its own key.
        """
        named = NamedAsset.of(asset)
        location = named.declared_location("opening")
        context = _running_op()
        # A declared table does not depend on the key. A key alone may be another location's asset.
        if context is not None and named.metadata is not None and location.table is None:
            named.check_is_loaded(context, named.key, "opening")
        return self.io_manager.locator.table(named.key, location)


def _running_op() -> OpExecutionContext | None:
    """Return the context of the op that runs in this thread; None if none does."""
    try:
        return OpExecutionContext.get()
    except DagsterInvariantViolationError:
        return None
