"""The IO manager that stores an asset's output by merging it, and loads tables or touched rows."""

# No `from __future__ import annotations`: Dagster takes the annotation of `spark` as a class.

from typing import TYPE_CHECKING
from uuid import uuid4

from dagster import (
    AssetKey,
    ConfigurableIOManager,
    InputContext,
    OutputContext,
    ResourceDependency,
    RetryRequested,
)
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

import deltaweave
from dagster_deltaweave import observations
from dagster_deltaweave.changes import READ, TOUCHED, Changes, application_id, touched_upstreams
from dagster_deltaweave.declaration import MergeDeclaration, declaration_in, declaration_of
from dagster_deltaweave.history import last_change
from dagster_deltaweave.recording import record_data_version, record_merge
from dagster_deltaweave.spark import SparkResource
from deltaweave.errors import CommitConflictError, DeltaweaveError, SourceError, Transient

if TYPE_CHECKING:
    from deltaweave import MergePlan, MergeResult, Table, TouchedRows

_SECONDS_BEFORE_RETRY = 5


class SparkDeltaIOManager(ConfigurableIOManager):
    """Stores the output of a merge asset by merging it into the asset's Delta table.

    A table that does not exist is created first. An output of None is stored as nothing: the
    function found no changes. On any error the table is as it was.

    As an input, an asset is its whole table, as a lazy DataFrame. Partitions of a merge asset are
    partitions of the changes and not of the table, so they choose no part of it. Where the input's
    metadata says `{"deltaweave/read": "touched"}`, it is a `deltaweave.TouchedRows` over only the
    files touched since the version that the downstream table last applied.
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

    def table(self, key: AssetKey, declaration: MergeDeclaration | None = None) -> "Table":
        """The table of an asset: where its declaration says, or under the root at its key."""
        declared = declaration.table if declaration else None
        path = "/".join([self.root.rstrip("/"), *key.path])
        return deltaweave.Table(self.spark.session, declared or path)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Merge the changes that the asset function returned, and record what the merge did."""
        if obj is None:
            context.log.info("The asset returned None: there is nothing to merge.")
            table = self.table(context.asset_key, declaration_in(context.definition_metadata))
            if table.exists():
                record_data_version(context, last_change(table).version)
            return
        declaration = declaration_of(context)
        changes = _as_changes(obj, context.asset_key)
        table = self.table(context.asset_key, declaration)
        try:
            idempotency = _idempotency(context, changes, table)
            _create_if_missing(table, declaration, changes)
            for link in observations.spark_ui_metadata(table.spark).values():
                context.log.info(f"The merge's jobs are in the Spark UI: {link.value}")
            plan = _plan(table, declaration, changes) if self.explain else None
            if plan is not None:
                context.log.info(f"Before the merge:\n{plan}")
            result = _merge(table, declaration, changes, idempotency)
        except DeltaweaveError as error:
            if isinstance(error, Transient) and declaration.retries:
                raise RetryRequested(declaration.retries, _SECONDS_BEFORE_RETRY) from error
            raise
        target = observations.sql_name(table.path_or_name)
        record_merge(
            context,
            self,
            table,
            changes,
            lambda source: declaration.statement(target, source),
            result,
            plan,
        )

    def load_input(self, context: InputContext) -> "DataFrame | TouchedRows":
        """The upstream asset's table, or its touched rows where the input asks for them."""
        upstream = context.upstream_output
        metadata = upstream.definition_metadata if upstream else {}
        table = self.table(context.asset_key, declaration_in(metadata))
        read = context.definition_metadata.get(READ)
        if read is None:
            return table.read()
        if read != TOUCHED:
            raise SourceError(
                f"the input {context.name} asks for {READ}={read!r}; only {TOUCHED!r} is known.",
                table=table.path_or_name,
                operation="READ",
            )
        return self._touched_rows(context, table)

    def _touched_rows(self, context: InputContext, table: "Table") -> "TouchedRows":
        definition = context.step_context.assets_def
        if definition is None:
            raise SourceError(
                "only an asset can read touched rows: they are those its own table lacks.",
                table=table.path_or_name,
                operation="READ",
            )
        key = definition.key
        downstream = self.table(key, declaration_in(definition.metadata_by_key[key]))
        after = _last_applied(downstream, application_id(context.asset_key, key))
        touched = table.touched_rows(after)
        context.log.info(
            f"{key.to_user_string()} has applied {context.asset_key.to_user_string()} up to "
            f"version {after}; up to version {touched.until} there are {touched.added_files} files "
            f"added and {touched.removed_files} removed."
        )
        return touched


def _as_changes(output: object, key: AssetKey) -> Changes:
    changes = output if isinstance(output, Changes) else Changes(output)  # type: ignore[arg-type]
    if not isinstance(changes.rows, DataFrame):
        raise SourceError(
            f"the asset function returned {type(changes.rows).__name__}, no Spark DataFrame.",
            table=key.to_user_string(),
            hint="Return the changes as a DataFrame or as Changes, or None for no changes.",
        )
    return changes


def _idempotency(
    context: OutputContext, changes: Changes, table: "Table"
) -> tuple[str, int] | None:
    """The pair that makes applying touched rows exactly-once; None for all other changes."""
    definition = context.step_context.assets_def
    upstreams = touched_upstreams(definition) if definition else []
    if not upstreams and changes.applied is None:
        return None
    if not upstreams or changes.applied is None:
        raise SourceError(
            "it reads touched rows, but the function did not hand back which."
            if upstreams
            else "the function says it applied touched rows, but no input of it reads any.",
            table=context.asset_key.to_user_string(),
            hint="Return Changes(rows, applied=<the touched rows that the input gave>).",
        )
    pair = (application_id(upstreams[0], context.asset_key), changes.applied.until)
    applied = _last_applied(table, pair[0])
    # Another run applied a part of these touched rows since they were read: merging all of them
    # would count that part twice. Where it applied all of them, the pair itself skips the merge.
    if applied != changes.applied.after and (applied or 0) < pair[1]:
        raise CommitConflictError(
            f"another run applied {pair[0]} up to version {applied} meanwhile.",
            table=table.path_or_name,
            hint="Run it again: it will read what is left to apply.",
        )
    return pair


def _last_applied(table: "Table", application: str) -> int | None:
    return table.last_applied(application) if table.exists() else None


def _create_if_missing(table: "Table", declaration: MergeDeclaration, changes: Changes) -> None:
    schema: StructType | str | None = declaration.schema
    if schema is None:
        fields = changes.rows.drop(*declaration.except_columns).schema
        # That a column of these changes has no nulls promises nothing about later ones.
        schema = StructType([StructField(f.name, f.dataType, True, f.metadata) for f in fields])
    table.create_if_missing(schema, declaration.partition_by, declaration.properties)


def _plan(table: "Table", declaration: MergeDeclaration, changes: Changes) -> "MergePlan":
    """What the declared statement is expected to do."""
    spark = changes.rows.sparkSession
    view = f"explained_{uuid4().hex}"
    changes.rows.createOrReplaceTempView(view)
    try:
        target = observations.sql_name(table.path_or_name)
        return deltaweave.explain(spark, declaration.statement(target, view))
    finally:
        spark.catalog.dropTempView(view)


def _merge(
    table: "Table",
    declaration: MergeDeclaration,
    changes: Changes,
    idempotency: tuple[str, int] | None,
) -> "MergeResult":
    """Run the declared statement over a view of the changes; the view lives as long as it runs."""
    spark = changes.rows.sparkSession
    view = f"changes_{uuid4().hex}"
    target = observations.sql_name(table.path_or_name)
    changes.rows.createOrReplaceTempView(view)
    try:
        result = deltaweave.merge(
            spark, declaration.statement(target, view), idempotency=idempotency
        )
    finally:
        spark.catalog.dropTempView(view)
    return result
