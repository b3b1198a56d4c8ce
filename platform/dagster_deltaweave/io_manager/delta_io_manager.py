"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from dagster import (
    ConfigurableIOManager,
    InitResourceContext,
    InputContext,
    MetadataValue,
    OutputContext,
    ResourceDependency,
)
from pydantic import Field, PrivateAttr, field_validator

from dagster_deltaweave.io_manager import frames
from dagster_deltaweave.io_manager.after_commit import (
    AfterCommit,
    metadata_as_recorded,
    record_listed_partitions,
)
from dagster_deltaweave.io_manager.loading import load_input
from dagster_deltaweave.io_manager.merge_order import wait_before_function
from dagster_deltaweave.io_manager.op_outputs import OpOutputs
from dagster_deltaweave.io_manager.output_rows import changes_of_output, without_empty_partitions
from dagster_deltaweave.io_manager.partition_records import (
    record_applied_before,
    record_nothing_merged,
)
from dagster_deltaweave.io_manager.run_options import (
    RunOptions,
    declaration_of,
    declared_write,
    with_mode_of_output,
    with_tags,
)
from dagster_deltaweave.io_manager.run_retry import retry_run_if_transient
from dagster_deltaweave.io_manager.schema_policy import stating_empty_table
from dagster_deltaweave.io_manager.stored_output import add_output, rebuild_with_output
from dagster_deltaweave.io_manager.table_location import check_location
from dagster_deltaweave.io_manager.type_handlers import TypeHandler, handler_of_value
from dagster_deltaweave.metadata import in_order, record_data_version, record_unchanged
from dagster_deltaweave.partitions import (
    FULL_REFRESH_TAG,
    output_is_full_refresh,
    output_partition_keys,
)
from dagster_deltaweave.run_mark import mark_commits_with_run
from dagster_deltaweave.spark import SparkResource
from dagster_deltaweave.tables import (
    MergeOnReadDeclaration,
    Namespace,
    TableDeclaration,
    TableLocator,
    TablePlace,
    open_merge_on_read,
    table_place,
)
from deltaweave.delta.commit import without_session_pair
from deltaweave.errors import DeltaweaveError, StatementError
from deltaweave.locations import check_given_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import Table


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

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Let go of what ops of the run returned."""
        self._of_ops.forget()

    def wait_for_older(self, context: OutputContext) -> None:
        """Wait for the runs of older partitions, before the asset's function runs."""
        wait_before_function(context, self.locator, self._options(context))

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what the asset function returned, and record the result."""
        if not context.has_asset_key:
            self._of_ops.keep(context, obj)
            return
        self._of_ops.keep_in_graph(context, obj)
        partitions = output_partition_keys(context)
        obj = without_empty_partitions(obj, partitions)
        if obj is None:
            if declaration_of(context) is not None:
                self._options(context)  # refuses tags that are wrong
            self._store_nothing(context)
            return
        options = self._options(context)
        declaration = options.declaration
        changes = changes_of_output(
            lambda value: self._rows_of(context, value), obj, context.asset_key, partitions
        )
        table = self.locator.table(context.asset_key, declaration)
        declaration = check_location(context, self.locator, table, declaration)
        with (
            retry_run_if_transient(declaration.retries, context),
            mark_commits_with_run(table.spark, context.run_id),
            stating_empty_table(table),
            without_session_pair(),  # which the function may have set for a write of its own
        ):
            if output_is_full_refresh(context):
                stored = rebuild_with_output(context, table, declaration, changes, partitions)
            else:
                stored = add_output(
                    context,
                    self.locator,
                    table,
                    declaration,
                    changes,
                    partitions,
                    explain=options.explain,
                    wait_seconds=options.wait_seconds,
                )
        after = AfterCommit(context, list(stored.warnings))
        if stored.was_applied_before:
            after.attempt("what it merged before", lambda: record_applied_before(context, table))
        after.attempt("the data version", lambda: stored.record_version(context))
        metadata = after.attempt("what was recorded of it", stored.record)
        of_table = after.attempt(
            "the table's metadata", lambda: metadata_as_recorded(table, metadata)
        )
        after.add_metadata(in_order(metadata, of_table))
        record_listed_partitions(context, partitions)

    def _rows_of(self, context: OutputContext, value: object) -> "DataFrame | None":
        """Return the rows of a value; None if its type is unknown."""
        if (handler := handler_of_value(self.type_handlers(), value)) is not None:
            return handler.handle_output(context, value, self.spark.session)
        return frames.to_spark(self.spark.session, value)

    def _options(self, context: OutputContext) -> RunOptions:
        """Return how this run writes the asset: as declared, as changed by the run's tags."""
        declaration = declared_write(context, self.mode)
        if declaration_of(context) is None:
            declaration = with_mode_of_output(declaration, context)
        declared = RunOptions(declaration, self.explain, self.order_wait_seconds)
        tags = context.step_context.dagster_run.tags
        return with_tags(declared, tags, context.asset_key.to_user_string())

    def _store_nothing(self, context: OutputContext) -> None:
        """Record that there was nothing to store, for each of the run's partitions.

        Raises:
            StatementError: The run is a full refresh, where None does not mean an empty table.
        """
        declared = declaration_of(context)
        if declared is not None and output_is_full_refresh(context):
            raise StatementError(
                "the asset returned None, and no table can be rebuilt from None.",
                table=self.locator.path_or_name(context.asset_key, declared),
                operation="full refresh",
                hint="Return all rows, or a DataFrame without rows to empty the table; or run it "
                f"without the tag {FULL_REFRESH_TAG}.",
            )
        context.log.info("The asset returned None: nothing is written.")
        if isinstance(declared, MergeOnReadDeclaration):
            record_data_version(context, open_merge_on_read(self.locator, declared).newest_batch())
        elif (table := self._table_if_there(context)) is not None:
            after = AfterCommit(context, [])
            after.attempt("this run", lambda: record_nothing_merged(context, table))
            if after.warnings:
                after.add_metadata({})
            record_unchanged(context, table)
        if declared is not None:
            nothing = MetadataValue.text("nothing: the asset returned None")
            context.add_output_metadata({"write/mode": nothing})
            record_listed_partitions(context, output_partition_keys(context))

    def _table_if_there(self, context: OutputContext) -> "Table | None":
        """Return the table of an asset whose function returned None; None if there is no table."""
        key = context.asset_key
        place: TablePlace | None = None
        try:
            place = table_place(context.definition_metadata, asset=key.to_user_string())
            table = self.locator.table(key, place) if self.locator.is_known(place) else None
            return table if table is not None and table.exists() else None
        except DeltaweaveError:
            if isinstance(place, TableDeclaration):
                raise
            return None  # an asset that declares no table needs no place for one

    def load_input(self, context: InputContext) -> Any:
        """Load the upstream asset's table, its partitions, or what changed, as the input asks."""
        if not context.has_asset_key:
            return self._of_ops.load(context)
        if within := self._of_ops.in_graph(context):
            return within[0]
        return load_input(context, self.locator, self.type_handlers())
