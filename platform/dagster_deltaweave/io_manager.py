"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    ConfigurableIOManager,
    DagsterInvariantViolationError,
    InputContext,
    OutputContext,
    ResourceDependency,
    RetryRequested,
)
from pydantic import Field, field_validator

import deltaweave
from dagster_deltaweave import (
    frames,
    ingestion,
    merge_on_read,
    observations,
    run_partitions,
    storing,
)
from dagster_deltaweave.applied import Marks, marks_of_refresh, marks_of_run
from dagster_deltaweave.changes import (
    CHANGED,
    READ,
    TOUCHED,
    Changes,
    application_id,
    touched_upstreams,
)
from dagster_deltaweave.declaration import (
    PARTITION_EXPR,
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    WriteDeclaration,
    table_declaration,
)
from dagster_deltaweave.recording import (
    record_data_version,
    record_merge,
    record_unchanged,
    record_write,
)
from dagster_deltaweave.run_mark import marked
from dagster_deltaweave.schema_policy import prepare_table
from dagster_deltaweave.spark import SparkResource
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
    does not exist is created first. An output of None is stored as nothing. On any error the
    table is as it was.

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
        return declared or "/".join([self.root.rstrip("/"), *key.path])

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store what the asset function returned, and record what storing it did."""
        if obj is None:
            context.log.info("The asset returned None: nothing is written.")
            declared = _declaration_in(context.definition_metadata, context.asset_key)
            table = self.table(context.asset_key, declared)
            if isinstance(declared, MergeOnReadDeclaration):
                record_data_version(context, merge_on_read.opened(self, declared).newest_batch())
            elif table.exists():
                record_unchanged(context, table)
            return
        declaration = _declared(context)
        changes = self._as_changes(obj, context.asset_key)
        table = self.table(context.asset_key, declaration)
        partitions = run_partitions.output_partition_keys(context)
        try:
            with marked(table.spark, context.run_id):
                if run_partitions.output_is_full_refresh(context):
                    metadata = _rebuild(context, table, declaration, changes, partitions)
                else:
                    metadata = _add(context, self, table, declaration, changes, partitions)
        except DeltaweaveError as error:
            if isinstance(error, Transient) and declaration.retries:
                raise RetryRequested(declaration.retries, _SECONDS_BEFORE_RETRY) from error
            raise
        if table.exists():  # a first batch without events made none
            version = metadata.get(observations.TABLE_VERSION)
            metadata = {**observations.table_metadata(table, version), **metadata}
        context.add_output_metadata(metadata)
        if run_partitions.lists_partitions(context):
            # Dagster records by itself only a partition or range that its own tags name.
            for partition in partitions:
                context.log_event(AssetMaterialization(context.asset_key, partition=partition))

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
            if downstream.exists():
                after = downstream.last_applied(application_id(context.asset_key, key))
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
    predicate = run_partitions.partition_predicate(
        context.asset_partitions_def,
        context.asset_partition_keys,
        getattr(expression, "value", expression),
        table=table.path_or_name,
    )
    context.log.info(f"Reads {context.asset_key.to_user_string()} where {predicate}.")
    return rows.where(predicate)


def _add(
    context: OutputContext,
    tables: SparkDeltaIOManager,
    table: "Table",
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> dict[str, Any]:
    """Merge or write the changes; the metadata of what that did."""
    marks = marks_of_run(
        context.asset_key,
        declaration,
        changes,
        upstreams=_upstreams(context),
        partitions=partitions,
        tags=context.step_context.dagster_run.tags,
    )
    if isinstance(declaration, MergeDeclaration):
        prepare_table(table, declaration, changes.rows)
        for link in observations.spark_ui_metadata(table.spark).values():
            context.log.info(f"The merge's jobs are in the Spark UI: {link.value}")
        plan = storing.explain(table, declaration, changes.rows) if tables.explain else None
        if plan is not None:
            context.log.info(f"Before the merge:\n{plan}")
        result = storing.merge(table, declaration, changes.rows, marks)
        statement = storing.statement_over(table, declaration, changes.rows)
        return record_merge(context, tables, table, changes, partitions, statement, result, plan)
    if isinstance(declaration, ChangesDeclaration):
        result = storing.apply(table, declaration, changes.rows, marks)
        return record_merge(context, tables, table, changes, partitions, None, result)
    if isinstance(declaration, MergeOnReadDeclaration):
        return ingestion.ingest(context, tables, declaration, changes.rows, marks.pair)
    assert isinstance(declaration, WriteDeclaration)
    predicate = _replaced(context, table, declaration, partitions)
    prepare_table(table, declaration, changes.rows)
    written = storing.write(table, declaration, changes.rows, predicate, marks)
    return record_write(context, table, written, declaration.mode, predicate, partitions)


def _rebuild(
    context: OutputContext,
    table: "Table",
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> dict[str, Any]:
    """Rebuild the table, or those of its rows that are the run's partitions."""
    storing.check_can_be_rebuilt(table, declaration)
    marks: Marks = marks_of_refresh(
        context.asset_key,
        declaration,
        changes,
        upstreams=_upstreams(context),
        partitions=partitions,
    )
    predicate = None
    if not run_partitions.covers_all(context, partitions):
        # Without an expression this is an error: the other partitions' rows would be lost.
        predicate = _predicate(context, table, declaration, partitions)
    prepare_table(table, declaration, changes.rows)
    written = storing.rebuild(table, declaration, changes.rows, predicate, marks)
    return record_write(context, table, written, "full refresh", predicate, partitions)


def _upstreams(context: OutputContext) -> list[AssetKey]:
    definition = context.step_context.assets_def
    return touched_upstreams(definition) if definition else []


def _replaced(
    context: OutputContext,
    table: "Table",
    declaration: WriteDeclaration,
    partitions: Sequence[str],
) -> str | None:
    """The predicate of the rows that a write replaces; None for all rows of the table or none."""
    if declaration.mode == "append":
        return None
    if declaration.replace_where is not None:
        return declaration.replace_where
    if declaration.mode == "overwrite" and context.asset_spec.partitions_def is None:
        return None
    return _predicate(context, table, declaration, partitions)


def _predicate(
    context: OutputContext,
    table: "Table",
    declaration: TableDeclaration,
    partitions: Sequence[str],
) -> str:
    return run_partitions.partition_predicate(
        context.asset_spec.partitions_def,
        partitions,
        declaration.partition_expr,
        table=table.path_or_name,
    )
