"""Loads the inputs of assets: an upstream's table, its partitions, or what changed in it.

The metadata of an input may ask for some columns, or for a version of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import (
    AllPartitionMapping,
    AssetsDefinition,
    DagsterInvariantViolationError,
    InputContext,
    OpDefinition,
)
from pyspark.sql.types import StructType

from dagster_deltaweave.io_manager.frames import TypeHandler, as_annotated, handler_of_type
from dagster_deltaweave.io_manager.target_table import name_folding
from dagster_deltaweave.io_manager.transaction_ids import applied_version
from dagster_deltaweave.metadata import TABLE_ID, data_version_of, newest_materialization
from dagster_deltaweave.partitions import NO_ROW_PREDICATE, is_refresh, partition_predicate
from dagster_deltaweave.tables import (
    READ_CHANGED,
    READ_METADATA_KEY,
    READ_TOUCHED,
    MergeOnReadDeclaration,
    TableDeclaration,
    TableLocation,
    TableLocator,
    entry_value,
    load_merge_on_read,
    partition_expr_in,
    table_location,
)
from deltaweave.changes.table_columns import declared_columns
from deltaweave.delta.jvm import parsed_expression, translated
from deltaweave.errors import NOTHING_READ, SourceError
from deltaweave.identifiers import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import ChangedRows, Table, TouchedRows


COLUMNS = "columns"
"""Metadata key of an input, Dagster's own: names of the columns that it has."""

READ_VERSION = "deltaweave/version"
"""Metadata key of an input: the version of the table that it reads."""


@dataclass(frozen=True)
class InputOptions:
    """The options of one input.

    Attributes:
        name: The input's name, for error messages.
        table: The table's name, for error messages.
        columns: The columns that the input has, in this order; None for all.
        version: The table version to read; None for the newest.
    """

    name: str
    table: str
    columns: tuple[str, ...] | None = None
    version: int | None = None

    def refuse_if_given(self, why: str) -> None:
        """Raise a SourceError if a version or columns are given where neither makes sense."""
        given = {COLUMNS: self.columns, READ_VERSION: self.version}
        for key, value in given.items():
            if value is not None:
                raise self._input_error(
                    f"{key} cannot be followed, because {why}", f"Leave {key} out."
                )

    def select(self, rows: DataFrame) -> DataFrame:
        """Select the columns that are asked for."""
        if self.columns is None:
            return rows
        folded = name_folding(rows.sparkSession)
        known = set(map(folded, rows.columns))
        missing = [name for name in self.columns if folded(name) not in known]
        if missing:
            raise self._input_error(
                f"the table lacks the columns {', '.join(missing)}",
                f"It has {', '.join(rows.columns)}.",
            )
        return rows.select(*(column(name) for name in self.columns))

    def _input_error(self, problem: str, hint: str) -> SourceError:
        return SourceError(
            f"the metadata of the input {self.name} is invalid: {problem}.",
            table=self.table,
            operation="READ",
            state=NOTHING_READ,
            hint=hint,
        )


def input_options(metadata: Mapping[str, Any], name: str, table: str) -> InputOptions:
    """Read the options in the metadata of an input."""
    asked = InputOptions(name, table)
    columns, version = (entry_value(metadata, key) for key in (COLUMNS, READ_VERSION))
    if columns is not None and (
        not isinstance(columns, (list, tuple))
        or not columns
        or not all(isinstance(each, str) for each in columns)
    ):
        raise asked._input_error(
            f"{COLUMNS} is {columns!r}", 'Give the names as a list: {"columns": ["id", "state"]}.'
        )
    if version is not None and (
        isinstance(version, bool) or not isinstance(version, int) or version < 0
    ):
        raise asked._input_error(
            f"{READ_VERSION} is {version!r}", "Give the number of a version, as 0 or 12."
        )
    return InputOptions(name, table, None if columns is None else tuple(columns), version)


def load_input(context: InputContext, tables: TableLocator, handlers: Sequence[TypeHandler]) -> Any:
    """Load the rows that an input asks for: a table, partitions of it, or its changes."""
    upstream = context.upstream_output
    metadata = (upstream.definition_metadata if upstream else None) or {}
    location = table_location(metadata, asset=context.asset_key.to_user_string())
    table = tables.table(context.asset_key, location)
    name = context.name if context.has_input_name else context.asset_key.to_user_string()
    own = context.definition_metadata or {}
    asked = input_options(own, name, table.path_or_name)
    rows = _input_rows(location, context, tables, table, asked)
    if rows is not None:
        typing_type = context.dagster_type.typing_type
        rows, handler = asked.select(rows), handler_of_type(handlers, typing_type)
        # Inputs of other types than Spark's are computed here.
        with translated(table.path_or_name, operation="READ", otherwise=SourceError):
            if handler is not None:
                return handler.load_input(context, rows)
            return as_annotated(rows, typing_type, what=name)
    read = own[READ_METADATA_KEY]
    asked.refuse_if_given(f"{READ_METADATA_KEY} reads what changed since the last run")
    if read not in (READ_TOUCHED, READ_CHANGED):
        raise SourceError(
            f"the input {name} asks for {READ_METADATA_KEY}={read!r}; known are "
            f"{READ_TOUCHED!r} and {READ_CHANGED!r}.",
            table=table.path_or_name,
            operation="READ",
        )
    return _unapplied(context, tables, table, read)


def _input_rows(
    location: TableLocation,
    context: InputContext,
    tables: TableLocator,
    table: Table,
    asked: InputOptions,
) -> DataFrame | None:
    """Return the rows of a table that an input asks for; None for an input of changes."""
    metadata = context.definition_metadata or {}
    if isinstance(location, MergeOnReadDeclaration) and location.part != "changes":
        replace(asked, columns=None).refuse_if_given(
            "rows that are merged on read are those of two tables"
        )
        return load_merge_on_read(tables, location, metadata)
    if metadata.get(READ_METADATA_KEY) is not None:
        return None
    rows = _missing_table(context, table, location, asked.version)
    return _partitions_of(context, table, asked.version) if rows is None else rows


def _unapplied(
    context: InputContext, tables: TableLocator, table: Table, read: str
) -> TouchedRows | ChangedRows:
    definition = _downstream(context)
    problem = _why_not_unapplied(definition, read)
    if definition is None or problem is not None:
        raise SourceError(
            f"{problem}.",
            table=table.path_or_name,
            operation="READ",
            hint="Read them in an asset of one function and one table.",
        )
    key = definition.key
    after = None
    if not is_refresh(context.step_context.dagster_run.tags):
        location = table_location(definition.metadata_by_key[key], asset=key.to_user_string())
        downstream = _own_tables(context, definition, tables).table(key, location)
        after = applied_version(context.asset_key, table, key, downstream)
    what = table.touched_rows(after) if read == READ_TOUCHED else table.changed_rows(after)
    context.log.info(
        f"{key.to_user_string()} has applied {context.asset_key.to_user_string()} up to "
        f"version {after}, and reads its {read} rows up to version {what.until}."
    )
    return what


def _why_not_unapplied(definition: AssetsDefinition | None, read: str) -> str | None:
    """Return why an input cannot have just the rows that its asset's table lacks, or None."""
    if definition is None:
        return f"only an asset can read {read} rows: they are those its own table lacks"
    if not isinstance(definition.node_def, OpDefinition):
        return (
            f"an op of a graph asset cannot read {read} rows: its run does not record what it has "
            "applied"
        )
    if len(definition.keys) > 1:
        names = ", ".join(sorted(key.to_user_string() for key in definition.keys))
        return (
            f"a function of several tables ({names}) cannot read {read} rows: each of them may "
            "lack others"
        )
    return None


def _own_tables(
    context: InputContext, definition: AssetsDefinition, otherwise: TableLocator
) -> TableLocator:
    """Return the locator of the loading asset's own IO manager; the upstream may have another."""
    name = definition.get_io_manager_key_for_asset_key(definition.key)
    manager = getattr(context.step_context.resources, name, None)
    return getattr(manager, "locator", otherwise)


def _downstream(context: InputContext) -> AssetsDefinition | None:
    """Return the loading asset; None in an op, or if a value is loaded outside of a run."""
    try:
        return context.step_context.assets_def
    except DagsterInvariantViolationError:
        return None


def _missing_table(
    context: InputContext, table: Table, location: TableLocation, version: int | None
) -> DataFrame | None:
    """Return no rows for a table that need not exist yet; None for any other table.

    An asset that reads its own earlier partitions finds none before its first run, and an asset
    that declares its columns need not have run. A table that a run recorded was lost: reading it
    is an error.
    """
    if version is not None or table.exists() or was_recorded(context):
        return None
    schema = location.schema if isinstance(location, TableDeclaration) else None
    downstream = _downstream(context)
    if schema is None:
        is_own = downstream is not None and context.asset_key in downstream.keys
        has_none = context.has_asset_partitions and not context.asset_partition_keys
        if not (is_own or has_none):
            return None  # the error says that there is no such table
        schema = StructType([])
    context.log.info(
        f"Reads no row of {context.asset_key.to_user_string()}: there is no table yet."
    )
    return table.spark.createDataFrame([], declared_columns(schema))


def was_recorded(context: InputContext) -> bool:
    """Return whether the newest materialization of the asset had a table."""
    try:
        instance = context.step_context.instance
    except DagsterInvariantViolationError:  # a value is loaded outside of a run
        instance = context.instance
    made = newest_materialization(instance, context.asset_key)
    return made is not None and (TABLE_ID in made.metadata or data_version_of(made) is not None)


def _reads_all(context: InputContext) -> bool:
    """Return whether an input is the whole table, also its rows of no partition."""
    try:
        downstream = context.step_context.assets_def
    except DagsterInvariantViolationError:  # outside of a run, a partition is asked for by its key
        return False
    if downstream is None:  # an op of a job, for which Dagster lists all partitions
        return True
    mapping = downstream.get_partition_mapping_for_dep(context.asset_key)
    is_of_all = mapping is None or isinstance(mapping, AllPartitionMapping)
    return downstream.partitions_def is None and is_of_all


def _partitions_of(context: InputContext, table: Table, version: int | None) -> DataFrame:
    """Return the rows of the run's partitions, or all if partitions are not parts of the table."""
    rows, upstream = table.read(version), context.upstream_output
    expression = partition_expr_in((upstream.definition_metadata if upstream else None) or {})
    if expression is None or not context.has_asset_partitions or _reads_all(context):
        return rows
    keys = context.asset_partition_keys
    if not keys:
        # The partition mapping may give none, e.g. for the first partition of one with an offset.
        context.log.info(f"Reads no row of {context.asset_key.to_user_string()}: no partition.")
        return rows.where(NO_ROW_PREDICATE)
    predicate = partition_predicate(
        context.asset_partitions_def,
        keys,
        expression,
        table=table.path_or_name,
        rows=rows,
    )
    context.log.info(f"Reads {context.asset_key.to_user_string()} where {predicate}.")
    return rows.where(parsed_expression(rows.sparkSession, predicate))
