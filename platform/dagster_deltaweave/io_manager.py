"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetsDefinition,
    ConfigurableIOManager,
    DagsterInvariantViolationError,
    InputContext,
    MetadataValue,
    OutputContext,
    ResourceDependency,
    RetryRequested,
)
from pydantic import Field, field_validator

import deltaweave
from dagster_deltaweave import (
    frames,
    merge_on_read,
    run_partitions,
)
from dagster_deltaweave.after_commit import (
    AfterCommit,
    record_listed_partitions,
    table_metadata,
)
from dagster_deltaweave.applied import applied_version
from dagster_deltaweave.changes import (
    CHANGED,
    READ,
    TOUCHED,
    Changes,
)
from dagster_deltaweave.declaration import (
    PARTITION_EXPR,
    MergeOnReadDeclaration,
    TableDeclaration,
    table_declaration,
)
from dagster_deltaweave.output_storage import add_output, rebuild_with_output
from dagster_deltaweave.partition_predicate import NO_ROW, partition_predicate
from dagster_deltaweave.recording import (
    record_data_version,
    record_unchanged,
)
from dagster_deltaweave.run_mark import marked
from dagster_deltaweave.spark import SparkResource
from dagster_deltaweave.table_paths import check_parents, check_places, path_under, problem_of_key
from deltaweave.errors import DeltaweaveError, SourceError, StatementError, Transient
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import ChangedRows, Table, TouchedRows

_SECONDS_BEFORE_RETRY = 5


class SparkDeltaIOManager(ConfigurableIOManager):
    """Stores the output of an asset in its Delta table, and loads tables as inputs.

    An output is a DataFrame of Spark, pandas or Polars, or Arrow's table or record batches. It is
    merged where the asset is a `@merge_asset`, applied where it is a `@cdc_asset`; for other assets
    the metadata `deltaweave/write` says how it is written: `append`, `overwrite`, `replace_where`
    or `merge`. Where an asset is partitioned, the last three write the run's partitions alone, by
    `partition_expr`; without it they are refused, never widened to the whole table. A table that
    does not exist is created first. An output of None is stored as nothing, which the log and the
    metadata say; of a full refresh it is refused. On any error the table is as it was. Once the
    rows are committed nothing fails the run: what could not be recorded is a warning in its log and
    in the metadata `deltaweave/warnings`.

    A write that replaces rows fails with a conflict, and the run tries again, where another commit
    changed those rows since the asset's function began.

    As an input, an asset is its table, as the type that the input is annotated with: without an
    annotation a lazy Spark DataFrame. Where the upstream has `partition_expr`, it is only the
    partitions that belong to the run's. Where the input's metadata says `deltaweave/read`, it is
    what changed since the version that the downstream table last applied: with `touched` the
    `deltaweave.TouchedRows` of the files touched since, with `changes` the `deltaweave.ChangedRows`
    of the upstream's change data feed.

    The assets of a merge-on-read table are loaded as its rows with all changes, its base, or its
    change events; `deltaweave/where` in the input's metadata is a condition of keys for the first.
    """

    root: str = Field(
        description="Path or URI under which the tables lie, each at its asset key: <root>/<key>."
    )
    explain: bool = Field(
        default=False,
        description=(
            "Whether each merge is explained before it runs, in the run's log and as metadata. "
            "The source is then evaluated once more than the merge does."
        ),
    )
    spark: ResourceDependency[SparkResource]

    @field_validator("root")
    @classmethod
    def _holds_no_credentials(cls, root: str) -> str:
        refuse_credentials(root, operation="configuration")
        return root

    def table(self, key: AssetKey, declaration: TableDeclaration | None = None) -> "Table":
        """The table of an asset: where its declaration says, or under the root at its key."""
        return deltaweave.Table(self.spark.session, self.path_or_name(key, declaration))

    def path_or_name(self, key: AssetKey, declaration: TableDeclaration | None = None) -> str:
        """Where the table of an asset is; asks for no session."""
        declared = declaration.table if declaration else None
        return declared or path_under(self.root, key)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what the asset function returned, and record what storing it did."""
        if obj is None:
            self._store_nothing(context)
            return
        declaration = _declared(context)
        changes = self._as_changes(obj, context.asset_key)
        table = self.table(context.asset_key, declaration)
        self._check_place(context, table, declaration)
        partitions = run_partitions.output_partition_keys(context)
        try:
            with marked(table.spark, context.run_id):
                if run_partitions.output_is_full_refresh(context):
                    stored = rebuild_with_output(context, table, declaration, changes, partitions)
                else:
                    stored = add_output(context, self, table, declaration, changes, partitions)
        except DeltaweaveError as error:
            if isinstance(error, Transient) and declaration.retries:
                raise RetryRequested(declaration.retries, _SECONDS_BEFORE_RETRY) from error
            raise
        after = AfterCommit(context, list(stored.warnings))
        after.attempt("the data version", lambda: stored.record_version(context))
        metadata = after.attempt("what was recorded of it", stored.record)
        of_table = after.attempt("the table's metadata", lambda: table_metadata(table, metadata))
        after.add_metadata({**of_table, **metadata})
        record_listed_partitions(context, partitions)

    def _check_place(
        self, context: OutputContext, table: "Table", declaration: TableDeclaration
    ) -> None:
        """Refuse a table in a place where another one's data is.

        Raises:
            StatementError: It lies in another's, around it, or is to be made there.
        """
        is_made = table.exists()
        check_places(context, self.path_or_name, is_made=is_made)
        if not is_made and declaration.table is None:
            check_parents(
                self.root,
                context.asset_key,
                lambda path: deltaweave.Table(table.spark, path).exists(),
            )

    def _store_nothing(self, context: OutputContext) -> None:
        """Record that there was nothing to store, for each of the run's partitions.

        Raises:
            StatementError: The run is a full refresh: a table without rows is not meant.
        """
        declared = _declaration_in(context.definition_metadata, context.asset_key)
        if declared is not None and run_partitions.output_is_full_refresh(context):
            raise StatementError(
                "the asset returned None, of which no table can be rebuilt.",
                table=self.path_or_name(context.asset_key, declared),
                operation="full refresh",
                hint="Return all rows, or a DataFrame without rows to empty the table; or run it "
                f"without the tag {run_partitions.FULL_REFRESH}.",
            )
        context.log.info("The asset returned None: nothing is written.")
        if isinstance(declared, MergeOnReadDeclaration):
            record_data_version(context, merge_on_read.opened(self, declared).newest_batch())
        elif declared is not None or problem_of_key(context.asset_key) is None:
            table = self.table(context.asset_key, declared)
            if table.exists():
                record_unchanged(context, table)
        if declared is not None:
            nothing = MetadataValue.text("nothing: the asset returned None")
            context.add_output_metadata({"write/mode": nothing})
            record_listed_partitions(context, run_partitions.output_partition_keys(context))

    def load_input(self, context: InputContext) -> Any:
        """The upstream asset's table, its partitions, or what changed, as the input asks."""
        upstream = context.upstream_output
        metadata = (upstream.definition_metadata if upstream else None) or {}
        declaration = _declaration_in(metadata, context.asset_key)
        table = self.table(context.asset_key, declaration)
        name = context.name if context.has_input_name else context.asset_key.to_user_string()
        read = (context.definition_metadata or {}).get(READ)
        if isinstance(declaration, MergeOnReadDeclaration) and declaration.part != "changes":
            rows = merge_on_read.load(self, declaration, context.definition_metadata or {})
            return frames.as_annotated(rows, context.dagster_type.typing_type, what=name)
        if read is None:
            return frames.as_annotated(
                _partitions_of(context, table, metadata.get(PARTITION_EXPR)),
                context.dagster_type.typing_type,
                what=name,
            )
        if read not in (TOUCHED, CHANGED):
            raise SourceError(
                f"the input {name} asks for {READ}={read!r}; known are {TOUCHED!r} and "
                f"{CHANGED!r}.",
                table=table.path_or_name,
                operation="READ",
            )
        return self._unapplied(context, table, read)

    def _unapplied(
        self, context: InputContext, table: "Table", read: str
    ) -> "TouchedRows | ChangedRows":
        definition = _downstream(context)
        if definition is None:
            raise SourceError(
                f"only an asset can read {read} rows: they are those its own table lacks.",
                table=table.path_or_name,
                operation="READ",
            )
        key = definition.key
        after = None
        if not run_partitions.is_refresh(context.step_context.dagster_run.tags):
            declaration = _declaration_in(definition.metadata_by_key[key], key)
            downstream = self.table(key, declaration)
            after = applied_version(context.asset_key, table, key, downstream)
        what = table.touched_rows(after) if read == TOUCHED else table.changed_rows(after)
        context.log.info(
            f"{key.to_user_string()} has applied {context.asset_key.to_user_string()} up to "
            f"version {after}, and reads its {read} rows up to version {what.until}."
        )
        return what

    def _as_changes(self, output: object, key: AssetKey) -> Changes:
        changes = output if isinstance(output, Changes) else Changes(output)
        rows = frames.to_spark(self.spark.session, changes.rows)
        if rows is None:
            raise SourceError(
                f"the asset function returned {type(changes.rows).__name__}, which is no table.",
                table=key.to_user_string(),
                hint=f"Return {frames.KNOWN}, or such as Changes, or None for no changes.",
            )
        return Changes(rows, changes.applied)


def _declared(context: OutputContext) -> TableDeclaration:
    """How the asset's table is written.

    Raises:
        StatementError: Nothing says it.
    """
    declaration = _declaration_in(context.definition_metadata, context.asset_key)
    if declaration is None:
        raise StatementError(
            "its asset declares no merge and no other way to write, so its output cannot be "
            "stored.",
            table=context.asset_key.to_user_string(),
            hint="Declare the asset with @merge_asset, give it the metadata deltaweave/write, or "
            "let it return None.",
        )
    return declaration


def _declaration_in(metadata: Mapping[str, Any], key: AssetKey) -> TableDeclaration | None:
    return table_declaration(metadata, asset=key.to_user_string())


def _downstream(context: InputContext) -> AssetsDefinition | None:
    """The asset that loads; none in an op, and where a value is loaded outside of any run."""
    try:
        return context.step_context.assets_def
    except DagsterInvariantViolationError:
        return None


def _partitions_of(context: InputContext, table: "Table", expression: Any) -> "DataFrame":
    """The rows of the partitions that belong to the run's; all where partitions are no rows."""
    rows = table.read()
    if expression is None or not context.has_asset_partitions:
        return rows
    downstream = _downstream(context)
    if downstream is not None and downstream.partitions_def is None:
        return rows
    keys = context.asset_partition_keys
    if not keys:
        # None are mapped to the run's, as of the first partition where the mapping has an offset.
        context.log.info(f"Reads no row of {context.asset_key.to_user_string()}: no partition.")
        return rows.where(NO_ROW)
    predicate = partition_predicate(
        context.asset_partitions_def,
        keys,
        getattr(expression, "value", expression),
        table=table.path_or_name,
        rows=rows,
    )
    context.log.info(f"Reads {context.asset_key.to_user_string()} where {predicate}.")
    return rows.where(predicate)
