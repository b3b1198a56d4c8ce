"""The target's rows in chosen files, with the attributes that the statement uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import FileList
from deltaweave.delta.scan.metadata_column import file_metadata
from deltaweave.delta.scan.row_index import read_with_row_index
from deltaweave.delta.scan.row_tracking import TrackedColumn
from deltaweave.delta.statement import ResolvedMerge, may_lose_days
from deltaweave.identifiers import back_quoted


def target_plan(
    transaction: Transaction,
    files: FileList,
    columns: Sequence[str] | None = None,
    *,
    file_column: str | None = None,
    row_column: str | None = None,
    row_index_column: str | None = None,
    tracked: Iterable[TrackedColumn] = (),
) -> DataFrame:
    """Read the rows of exactly these files at the transaction's snapshot.

    A Project of aliases gives every column the attribute id that it has in the statement's target,
    so that the statement's conditions and values can be evaluated over the result. Columns that
    Parquet would compare with days that its filters lack are read without filters.

    Args:
        transaction: The merge's transaction.
        files: The files to read.
        columns: The target columns to keep; None keeps all.
        file_column: If given, a string column of this name holds the file's path as
            `_metadata.file_path` gives it: absolute and percent-encoded.
        row_column: If given, a bigint column of this name tells the rows apart.
        row_index_column: If given, a bigint column of this name holds each row's position in its
            file.
        tracked: Columns of row tracking to read too.
    """
    merge = transaction.merge
    base = (
        transaction.read(files)
        if row_index_column is None
        else read_with_row_index(transaction, files)
    )
    output = merge.target_plan.output()
    places = {name: place for place, name in enumerate(merge.target_schema.names)}
    wanted = [name for name in places if columns is None or name in columns]
    extra = {}
    if file_column is not None:
        extra[file_column] = file_metadata(base, "file_path")
    if row_column is not None:
        extra[row_column] = jvm_.unique_number(merge.spark)
    if row_index_column is not None:
        extra[row_index_column] = file_metadata(base, "row_index")
    for column in tracked:
        extra[column.name] = file_metadata(base, column.read_from)
    further = [jvm_.aliased(value, name) for name, value in extra.items()]
    selected = base.select(*map(back_quoted, wanted), *further)
    attributes = [output.apply(places[name]) for name in wanted]
    return with_ids_of(merge, selected, attributes, unfiltered=_unfiltered(transaction, wanted))


def _unfiltered(transaction: Transaction, names: Sequence[str]) -> list[int]:
    """Return the indexes of the columns that Parquet must not filter."""
    merge, partitioned_by = transaction.merge, transaction.table.partition_columns
    places = [
        place
        for place, name in enumerate(names)
        if may_lose_days(merge.target_schema[name].dataType) and name not in partitioned_by
    ]
    return places if places and merge.may_filter_by_lost_days else []


def with_ids_of(
    merge: ResolvedMerge,
    selected: DataFrame,
    attributes: Sequence[JavaObject],
    unfiltered: Sequence[int] = (),
) -> DataFrame:
    """Give the first columns of the rows the ids of the statement's attributes.

    Args:
        merge: The merge.
        selected: The rows.
        attributes: The statement's attributes.
        unfiltered: Indexes of columns whose filters Spark must not pass to the scan.
    """
    view = jvm_.jvm(merge.spark)
    catalyst = view.org.apache.spark.sql.catalyst
    plan = selected._jdf.queryExecution().analyzed()
    output = list(jvm_.iterate(plan.output()))
    none, no_names = jvm_.option(view, None), jvm_.seq(view, [])
    columns: list[JavaObject] = []
    for place, (attribute, column) in enumerate(zip(attributes, output, strict=False)):
        value, metadata = column, none
        if place in unfiltered:
            value, metadata = _hidden(view, column), jvm_.option(view, column.metadata())
        columns.append(
            catalyst.expressions.Alias(
                value, attribute.name(), attribute.exprId(), no_names, metadata, no_names
            )
        )
    columns += output[len(attributes) :]
    project = catalyst.plans.logical.Project(jvm_.seq(view, columns), plan)
    return jvm_.data_frame_of_plan(merge.spark, project)


def _hidden(view: JavaObject, column: JavaObject) -> JavaObject:
    """Wrap a column in an expression that returns it unchanged and that no scan takes for one."""
    expressions, is_nullable = view.org.apache.spark.sql.catalyst.expressions, column.nullable()
    return expressions.KnownNullable(column) if is_nullable else expressions.KnownNotNull(column)
