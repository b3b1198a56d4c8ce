"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dagster import (
    ConfigurableIOManager,
    InitResourceContext,
    InputContext,
    OutputContext,
    ResourceDependency,
)
from pydantic import Field, PrivateAttr, field_validator

from dagster_deltaweave.io_manager.frames import (
    TypeHandler,
    changes_of_output,
    handler_of_value,
    to_spark,
    without_empty_partitions,
)
from dagster_deltaweave.io_manager.loading import load_input
from dagster_deltaweave.io_manager.merge_order import wait_before_function
from dagster_deltaweave.io_manager.op_outputs import OpOutputs
from dagster_deltaweave.io_manager.output import Output, record_stored
from dagster_deltaweave.io_manager.run_options import (
    RunOptions,
    declaration_of,
    declared_write,
    with_mode_of_output,
    with_tags,
)
from dagster_deltaweave.io_manager.run_retry import retry_run_if_transient
from dagster_deltaweave.io_manager.step_waits import attempt_of_step, wait_before_inputs
from dagster_deltaweave.io_manager.stores import rebuild, store, store_nothing
from dagster_deltaweave.io_manager.target_table import check_location, stating_empty_table
from dagster_deltaweave.partitions import output_is_full_refresh, output_partition_keys
from dagster_deltaweave.run_mark import mark_commits_with_run
from dagster_deltaweave.spark import SparkResource
from dagster_deltaweave.tables import MergeDeclaration, Namespace, TableLocator
from deltaweave._validation import check_given_location
from deltaweave.delta.commit import without_session_pair

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SparkDeltaIOManager(ConfigurableIOManager):
    """Stores the output of an asset in its Delta table, and loads tables as inputs.

    An output is a DataFrame of Spark, pandas or Polars, or Arrow's table or record batches; of a
    run of several partitions also `{partition key: such rows, or None}`. A subclass adds further
    types by `type_handlers`. For a `@merge_asset` it is merged, and for a `@cdc_asset` it is
    applied. For other assets the metadata `deltaweave/write` says how it is written: `append`,
    `overwrite`, `replace_where` or `merge`; without it, `mode` does. If the asset is partitioned,
    all but `append` write only the run's partitions, by `partition_expr`, and are refused without
    it. Of an asset without that metadata, an output's own metadata `mode` says it for one run.
    Outputs of ops that are no assets are kept as Dagster's default IO manager does.

    A table that does not exist is created first. If the output is None, nothing is written, and the
    log and the metadata say so; in a full refresh, None is refused. On any error no row is written;
    a table that was created stays, empty. Once the rows are committed, nothing fails the run: what
    could not be recorded is a warning in its log and in the metadata `deltaweave/warnings`.

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
    `deltaweave/retries`, `deltaweave/explain` and `deltaweave/order_wait_seconds`. What makes no
    sense is refused before anything is written.

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
    _have_waited: set[tuple[str, str, int, str]] = PrivateAttr(default_factory=set)

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Let go of what ops of the run returned."""
        self._of_ops.forget()
        self._have_waited.clear()

    def wait_for_older(self, context: OutputContext, *, has_inputs: bool = True) -> None:
        """Wait for the runs of older partitions, before the asset's function runs.

        An attempt of a step looks for them once: before it loads its first input from a table, or
        before the function.

        Args:
            context: The context of the asset's output.
            has_inputs: Whether the step has loaded its inputs.
        """
        attempt = attempt_of_step(context)
        is_merged = isinstance(declaration_of(context), MergeDeclaration)
        if not is_merged or attempt in self._have_waited:
            return
        options = self._options(context)
        wait_before_function(context, self.locator, options, has_inputs=has_inputs)
        self._have_waited.add(attempt)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what the asset function returned, and record the result."""
        if not context.has_asset_key:
            self._of_ops.keep(context, obj)
            return
        self._of_ops.keep_in_graph(context, obj)
        partitions = output_partition_keys(context)
        value = without_empty_partitions(obj, partitions)
        if value is None:
            if declaration_of(context) is not None:
                self._options(context)  # refuses tags that are wrong
            store_nothing(context, self.locator)
            return
        options = self._options(context)
        to_rows = partial(self._rows_of, context)
        changes = changes_of_output(to_rows, value, context.asset_key, partitions)
        table = self.locator.table(context.asset_key, options.declaration)
        declaration = check_location(context, self.locator, table, options.declaration)
        output = Output(
            context=context,
            tables=self.locator,
            table=table,
            changes=changes,
            rows=changes.rows,
            partitions=partitions,
            explain=options.explain,
            wait_seconds=options.wait_seconds,
        )
        with (
            retry_run_if_transient(declaration.retries, context),
            mark_commits_with_run(table.spark, context.run_id),
            stating_empty_table(table),
            without_session_pair(),  # which the function may have set for a write of its own
        ):
            is_rebuilt = output_is_full_refresh(context)
            stored = rebuild(declaration, output) if is_rebuilt else store(declaration, output)
        record_stored(output, stored)

    def _rows_of(self, context: OutputContext, value: object) -> "DataFrame | None":
        """Return the rows of a value; None if its type is unknown."""
        if (handler := handler_of_value(self.type_handlers(), value)) is not None:
            return handler.handle_output(context, value, self.spark.session)
        return to_spark(self.spark.session, value)

    def _options(self, context: OutputContext) -> RunOptions:
        """Return how this run writes the asset: as declared, as changed by the run's tags."""
        declaration = declared_write(context, self.mode)
        if declaration_of(context) is None:
            declaration = with_mode_of_output(declaration, context)
        declared = RunOptions(declaration, self.explain, self.order_wait_seconds)
        tags = context.step_context.dagster_run.tags
        return with_tags(declared, tags, context.asset_key.to_user_string())

    def load_input(self, context: InputContext) -> Any:
        """Load the upstream asset's table, its partitions, or what changed, as the input asks."""
        wait_before_inputs(context)
        if not context.has_asset_key:
            return self._of_ops.load(context)
        if within := self._of_ops.in_graph(context):
            return within[0]
        return load_input(context, self.locator, self.type_handlers())
