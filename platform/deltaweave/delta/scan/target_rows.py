"""The target's rows in chosen files, with the attributes that the statement uses.

In a table that tracks its rows (Delta protocol, "Row Tracking"), every row has an id and the
version of the commit that last changed it. Both follow from the row's file and its position there,
unless the file stores them in two extra columns, named by the table's properties. A merge stores
both for the rows it copies, and only the id for rows it updates. Inserted rows get new ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame

from deltaweave.delta.commit import Transaction
from deltaweave.delta.jvm import Expression, JavaObject, Jvm, aliased, unique_number
from deltaweave.delta.log import FileList
from deltaweave.delta.releases import tracked_metadata
from deltaweave.delta.statement import ResolvedMerge, may_lose_days
from deltaweave.identifiers import back_quoted

METADATA_COLUMN = "_metadata"


def file_metadata(scan: DataFrame, field: str) -> Column:
    """Return a field of Spark's metadata column, even if the table has a column of that name.

    `_metadata.file_path` would then read a field of the table's own column. Spark renames its
    metadata column in this case, and still finds it by its original name.

    Args:
        scan: The rows of a table's files.
        field: E.g. `file_path` (absolute, percent-encoded) or `row_index`.
    """
    return Column(scan._jdf.metadataColumn(METADATA_COLUMN).getField(field))


def read_with_row_index(transaction: Transaction, files: FileList) -> DataFrame:
    """Read the rows of these files at the transaction's snapshot, with `_metadata.row_index`."""
    spark = transaction.merge.spark
    jvm = Jvm.of(spark)
    delta = jvm.delta
    rows = transaction.read(files)
    protocol, metadata = transaction.snapshot.protocol(), transaction.snapshot.metadata()
    utils = Jvm.singleton(delta.commands, "DeletionVectorUtils")
    if utils.deletionVectorsReadable(protocol, metadata):
        return rows
    # The same scan, in the format of a table with deletion vectors.
    datasources = jvm.sql.execution.datasources
    scan = rows._jdf.queryExecution().analyzed().relation()
    vectors = Jvm.singleton(delta, "DeletionVectorsTableFeature")
    with_vectors = Jvm.singleton(delta.actions, "Protocol").apply(3, 7).withFeature(vectors)
    file_format = delta.DeltaParquetFileFormat(
        protocol.merge(jvm.seq([with_vectors])),
        metadata,
        False,
        False,
        True,
        jvm.option(None),
        False,
    )
    relation = datasources.HadoopFsRelation(
        scan.location(),
        scan.partitionSchema(),
        scan.dataSchema(),
        scan.bucketSpec(),
        file_format,
        scan.options(),
        scan.sparkSession(),
    )
    plan = Jvm.singleton(datasources, "LogicalRelation").apply(relation, False)
    return jvm.data_frame_of_plan(plan)


ROW_TRACKING_ENABLED = "delta.enableRowTracking"
_ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


@dataclass(frozen=True)
class TrackedColumn:
    """A column in which files store row ids or row commit versions.

    Attributes:
        name: The column's name in the table's files (bigint, null where the file's own value
            holds).
        read_from: The field of Spark's metadata column with its value in a scan.
        metadata: Makes Delta's writer accept the column, although it is not in the schema.
    """

    name: str
    read_from: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class TrackedColumns:
    """The two columns of a table that tracks its rows."""

    row_id: TrackedColumn
    commit_version: TrackedColumn

    def __iter__(self) -> Any:
        return iter((self.row_id, self.commit_version))


def tracked_columns(transaction: Transaction) -> TrackedColumns | None:
    """Return the columns of row ids and commit versions; None if the table does not track rows."""
    metadata = transaction.table.metadata
    if not metadata.is_on(ROW_TRACKING_ENABLED):
        return None

    def column(setting: str, owner: str, field: str) -> TrackedColumn:
        name = metadata.properties[setting]
        accepted = tracked_metadata(transaction.merge.spark, owner, name)
        return TrackedColumn(name, field, json.loads(accepted.json()))

    return TrackedColumns(
        row_id=column(_ROW_ID_COLUMN, "RowId", "row_id"),
        commit_version=column(_COMMIT_VERSION_COLUMN, "RowCommitVersion", "row_commit_version"),
    )


@dataclass(frozen=True)
class RowColumns:
    """Names of columns that say which row of the target a row is, where they are asked for.

    Attributes:
        file: A string column with the file's path as `_metadata.file_path` gives it: absolute and
            percent-encoded.
        row: A bigint column that tells the rows apart.
        row_index: A bigint column with each row's position in its file.
    """

    file: str | None = None
    row: str | None = None
    row_index: str | None = None


_NO_ROW_COLUMNS = RowColumns()


def target_plan(
    transaction: Transaction,
    files: FileList,
    columns: Sequence[str] | None = None,
    *,
    added: RowColumns = _NO_ROW_COLUMNS,
    tracked: Iterable[TrackedColumn] = (),
) -> DataFrame:
    """Read the rows of exactly these files at the transaction's snapshot.

    A Project of aliases gives every column the attribute id that it has in the statement's target,
    so that the statement's conditions and values can be evaluated over the result. Columns that are
    compared with days that Spark's filters on Parquet files lack are read without filters.

    Args:
        columns: The target columns to keep; None keeps all.
        tracked: Columns of row tracking to read too.
    """
    merge = transaction.merge
    base = (
        transaction.read(files)
        if added.row_index is None
        else read_with_row_index(transaction, files)
    )
    output = merge.target_plan.output()
    indexes = {name: index for index, name in enumerate(merge.target_schema.names)}
    wanted = [name for name in indexes if columns is None or name in columns]
    extra = {}
    if added.file is not None:
        extra[added.file] = file_metadata(base, "file_path")
    if added.row is not None:
        extra[added.row] = unique_number(merge.spark)
    if added.row_index is not None:
        extra[added.row_index] = file_metadata(base, "row_index")
    for column in tracked:
        extra[column.name] = file_metadata(base, column.read_from)
    further = [aliased(value, name) for name, value in extra.items()]
    selected = base.select(*map(back_quoted, wanted), *further)
    attributes = [output.apply(indexes[name]) for name in wanted]
    return with_attribute_ids(
        merge, selected, attributes, unfiltered=_unfiltered(transaction, wanted)
    )


def _unfiltered(transaction: Transaction, names: Sequence[str]) -> list[int]:
    """Return the indexes of the columns that Parquet must not filter."""
    merge, table = transaction.merge, transaction.table
    days = {
        name
        for name in names
        if may_lose_days(merge.target_schema[name].dataType) and name not in table.partition_columns
    }
    if not days or not merge.may_filter_by_lost_days:
        return []
    return [index for index, name in enumerate(names) if name in days]


def with_attribute_ids(
    merge: ResolvedMerge,
    selected: DataFrame,
    attributes: Sequence[Expression],
    unfiltered: Sequence[int] = (),
) -> DataFrame:
    """Give the first columns of the rows the ids of the statement's attributes.

    Args:
        unfiltered: Indexes of columns whose filters Spark must not pass to the scan.
    """
    jvm = Jvm.of(merge.spark)
    catalyst = jvm.catalyst
    plan = selected._jdf.queryExecution().analyzed()
    output = list(Jvm.iterate(plan.output()))
    none, no_names = jvm.option(None), jvm.seq([])
    columns: list[JavaObject] = []
    for index, (attribute, column) in enumerate(zip(attributes, output, strict=False)):
        value, metadata = column, none
        if index in unfiltered:
            value, metadata = _hidden(jvm, column), jvm.option(column.metadata())
        columns.append(
            catalyst.expressions.Alias(
                value, attribute.name(), attribute.exprId(), no_names, metadata, no_names
            )
        )
    columns += output[len(attributes) :]
    project = catalyst.plans.logical.Project(jvm.seq(columns), plan)
    return jvm.data_frame_of_plan(project)


def _hidden(jvm: Jvm, column: JavaObject) -> JavaObject:
    """Wrap a column in an expression that returns it unchanged and that no scan takes for one."""
    expressions, is_nullable = jvm.catalyst.expressions, column.nullable()
    return expressions.KnownNullable(column) if is_nullable else expressions.KnownNotNull(column)
