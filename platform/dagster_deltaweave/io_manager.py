"""The IO manager that stores assets as Delta tables, and loads tables, partitions and changes."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetMaterialization,
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
    ingestion,
    merge_on_read,
    observations,
    run_partitions,
    storing,
)
from dagster_deltaweave.applied import applied_version, marks_of_refresh, marks_of_run
from dagster_deltaweave.changes import (
    CHANGED,
    READ,
    TOUCHED,
    Changes,
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
from dagster_deltaweave.partition_predicate import NO_ROW, partition_predicate
from dagster_deltaweave.read_delivery import rows_of_delivery
from dagster_deltaweave.recording import (
    record_data_version,
    record_merge,
    record_unchanged,
    record_write,
)
from dagster_deltaweave.run_mark import marked
from dagster_deltaweave.schema_policy import prepare_table, rows_of_table
from dagster_deltaweave.spark import SparkResource
from dagster_deltaweave.start_version import start_of_write
from dagster_deltaweave.table_paths import check_parents, check_places, path_under, problem_of_key
from deltaweave.errors import DeltaweaveError, SourceError, StatementError, Transient
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import ChangedRows, MergePlan, MergeResult, Table, TouchedRows, WriteResult

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
                    stored = _rebuild(context, table, declaration, changes, partitions)
                else:
                    stored = _add(context, self, table, declaration, changes, partitions)
        except DeltaweaveError as error:
            if isinstance(error, Transient) and declaration.retries:
                raise RetryRequested(declaration.retries, _SECONDS_BEFORE_RETRY) from error
            raise
        after = _AfterCommit(context, list(stored.warnings))
        after.attempt("the data version", lambda: stored.record_version(context))
        metadata = after.attempt("what was recorded of it", stored.record)
        of_table = after.attempt("the table's metadata", lambda: _table_metadata(table, metadata))
        after.add_metadata({**of_table, **metadata})
        _record_listed_partitions(context, partitions)

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
            _record_listed_partitions(context, run_partitions.output_partition_keys(context))

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


@dataclass(frozen=True)
class _Stored:
    """What was committed, and how it is recorded.

    Attributes:
        version: The version that was committed; None where none was, or it is not known.
        record: Records it; gives the metadata of the materialization.
        warnings: What failed after the commit already.
    """

    version: int | None
    record: Callable[[], Mapping[str, Any]]
    warnings: Sequence[str] = ()

    def record_version(self, context: OutputContext) -> dict[str, Any]:
        """Make the version the data version, which recording all else may do better."""
        if self.version is not None:
            record_data_version(context, self.version)
        return {}


@dataclass(frozen=True)
class _AfterCommit:
    """What is done once rows are committed: no error of it fails the run, which would apply again.

    Attributes:
        context: The context of the asset's output.
        warnings: What failed so far, a sentence each.
    """

    context: OutputContext
    warnings: list[str] = field(default_factory=list)

    def attempt(self, what: str, recorded: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What this gives, or nothing where it fails."""
        try:
            return recorded()
        except Exception as error:
            self.warnings.append(f"{what} is left out: {error}")
            return {}

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add the metadata, and the warnings to it and to the run's log."""
        shown = dict(metadata)
        if self.warnings:
            shown["deltaweave/warnings"] = MetadataValue.text("\n".join(self.warnings))
        try:
            self.context.add_output_metadata(shown)
        except Exception as error:
            self.warnings.append(f"the metadata is left out: {error}")
        for warning in self.warnings:
            self.context.log.warning(f"The rows are committed, but {warning}")


def _table_metadata(table: "Table", recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of the version that was recorded; of the newest where none was."""
    if not table.exists():  # a first batch without events made none
        return {}
    return observations.table_metadata(table, recorded.get(observations.TABLE_VERSION))


def _record_listed_partitions(context: OutputContext, partitions: Sequence[str]) -> None:
    if run_partitions.lists_partitions(context):
        # Dagster records by itself only a partition or range that its own tags name.
        for partition in partitions:
            context.log_event(AssetMaterialization(context.asset_key, partition=partition))


def _add(
    context: OutputContext,
    tables: SparkDeltaIOManager,
    table: "Table",
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> _Stored:
    """Merge or write the changes."""
    step = context.step_context
    tags = step.dagster_run.tags
    marks = marks_of_run(
        context.asset_key,
        declaration,
        changes,
        table=table,
        upstreams=_upstreams(context),
        partitions=partitions,
        tags=tags,
        first_attempt=lambda: ingestion.first_attempt(
            step.instance, step.dagster_run, context.asset_key
        ),
    )
    rows = changes.rows
    if declaration.idempotent_by == "delivery" and len(partitions) == 1:
        rows = rows_of_delivery(rows, partitions[0], tags, table=table.path_or_name)
    if isinstance(declaration, MergeDeclaration):
        prepare_table(table, declaration, rows)
        for link in observations.spark_ui_metadata(table.spark).values():
            context.log.info(f"The merge's jobs are in the Spark UI: {link.value}")
        plan = storing.explain(table, declaration, rows) if tables.explain else None
        if plan is not None:
            context.log.info(f"Before the merge:\n{plan}")
        result = storing.merge(table, declaration, rows, marks)
        statement = storing.statement_over(table, declaration, rows)
        return _merged(context, tables, table, changes, partitions, statement, result, plan)
    if isinstance(declaration, ChangesDeclaration):
        result = storing.apply(table, declaration, rows, marks)
        return _merged(context, tables, table, changes, partitions, None, result)
    if isinstance(declaration, MergeOnReadDeclaration):
        metadata = ingestion.ingest(context, tables, declaration, rows, marks.pair)
        return _Stored(None, lambda: metadata)
    assert isinstance(declaration, WriteDeclaration)
    predicate = _replaced(context, table, declaration, changes, partitions)
    prepare_table(table, declaration, rows)
    start = start_of_write(
        context, table, adds_only=declaration.mode == "append", predicate=predicate
    )
    written = storing.write(table, declaration, rows, predicate, marks, start)
    return _written(context, table, written, declaration.mode, predicate, partitions)


def _rebuild(
    context: OutputContext,
    table: "Table",
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> _Stored:
    """Rebuild the table, or those of its rows that are the run's partitions."""
    storing.check_can_be_rebuilt(table, declaration)
    marks = marks_of_refresh(
        context.asset_key,
        declaration,
        changes,
        table=table,
        upstreams=_upstreams(context),
        partitions=partitions,
    )
    predicate = None
    if not run_partitions.covers_all(context, partitions):
        # Without an expression this is an error: the other partitions' rows would be lost.
        predicate = _predicate(context, table, declaration, changes, partitions)
    prepare_table(table, declaration, changes.rows)
    start = start_of_write(context, table, predicate=predicate)
    written = storing.rebuild(table, declaration, changes.rows, predicate, marks, start)
    return _written(context, table, written, "full refresh", predicate, partitions)


def _merged(
    context: OutputContext,
    tables: SparkDeltaIOManager,
    table: "Table",
    changes: Changes,
    partitions: Sequence[str],
    statement: Callable[[str], str] | None,
    result: "MergeResult",
    plan: "MergePlan | None" = None,
) -> _Stored:
    return _Stored(
        result.version,
        lambda: record_merge(context, tables, table, changes, partitions, statement, result, plan),
        result.warnings,
    )


def _written(
    context: OutputContext,
    table: "Table",
    written: "WriteResult",
    how: str,
    predicate: str | None,
    partitions: Sequence[str],
) -> _Stored:
    return _Stored(
        written.version,
        lambda: record_write(context, table, written, how, predicate, partitions),
        written.warnings,
    )


def _upstreams(context: OutputContext) -> list[AssetKey]:
    definition = context.step_context.assets_def
    return touched_upstreams(definition) if definition else []


def _replaced(
    context: OutputContext,
    table: "Table",
    declaration: WriteDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> str | None:
    """The predicate of the rows that a write replaces; None for all rows of the table or none."""
    if declaration.mode == "append":
        return None
    if declaration.replace_where is not None:
        return declaration.replace_where
    if declaration.mode == "overwrite" and context.asset_spec.partitions_def is None:
        return None
    return _predicate(context, table, declaration, changes, partitions)


def _predicate(
    context: OutputContext,
    table: "Table",
    declaration: TableDeclaration,
    changes: Changes,
    partitions: Sequence[str],
) -> str:
    return partition_predicate(
        context.asset_spec.partitions_def,
        partitions,
        declaration.partition_expr,
        table=table.path_or_name,
        # Before a table is made: of columns that it will have.
        rows=table.read() if table.exists() else rows_of_table(declaration, changes.rows),
    )
