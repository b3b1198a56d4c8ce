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
from deltaweave.delta.statement import ResolvedMerge
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
    """The rows of exactly these files at the transaction's snapshot.

    A Project of aliases gives every column the attribute id that it has in the statement's target,
    so that the statement's conditions and values can be evaluated over the result.

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
    return with_ids_of(merge, selected, [output.apply(places[name]) for name in wanted])


def with_ids_of(
    merge: ResolvedMerge, selected: DataFrame, attributes: Sequence[JavaObject]
) -> DataFrame:
    """The rows, whose first columns have the ids of the statement's attributes."""
    view = jvm_.jvm(merge.spark)
    catalyst = view.org.apache.spark.sql.catalyst
    plan = selected._jdf.queryExecution().analyzed()
    output = list(jvm_.iterate(plan.output()))
    none, no_names = jvm_.option(view, None), jvm_.seq(view, [])
    columns: list[JavaObject] = []
    for attribute, column in zip(attributes, output, strict=False):
        columns.append(
            catalyst.expressions.Alias(
                column, attribute.name(), attribute.exprId(), no_names, none, no_names
            )
        )
    columns += output[len(attributes) :]
    project = catalyst.plans.logical.Project(jvm_.seq(view, columns), plan)
    return jvm_.data_frame_of_plan(merge.spark, project)
