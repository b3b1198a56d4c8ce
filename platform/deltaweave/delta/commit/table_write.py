"""Commits that are no merge: appends, overwrites, and files rewritten without a change of rows.

Delta's own writer writes the files and checks schema, constraints and the predicate. The commit is
made here, so that it can hold any number of transaction identifiers (Delta protocol, "Transaction
Identifiers").

Rows get the types of the table's columns, as an INSERT casts them. Spark casts the fields of a
struct by position, whatever their names. So they are put in the table's order first, at every
depth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from deltaweave.delta.commit.commit_call import AfterCommit, Committed, committed
from deltaweave.delta.commit.partition_times import check_partition_times, with_true_times
from deltaweave.delta.commit.transaction import tags_of_merge
from deltaweave.delta.commit.transaction_ids import (
    OF_A_PART,
    TransactionId,
    is_applied,
    last_applied,
    reset_session_transaction_id,
    session_transaction_id,
    transaction_id,
)
from deltaweave.delta.commit.written_files import OwnFiles
from deltaweave.delta.jvm import (
    DeltaLog,
    DeltaTransaction,
    JavaObject,
    Jvm,
    do_apart,
    in_session,
    own_session,
    reads_leniently,
    refuse_lenient_reads,
    suppress_cleanup_errors,
    translated,
)
from deltaweave.delta.log import FileList, TableLog, TableSnapshot, collected_actions
from deltaweave.delta.releases import write_command, write_operation
from deltaweave.delta.statement import spark_schema
from deltaweave.errors import StatementError
from deltaweave.identifiers import column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def assigned(rows: DataFrame, transaction: DeltaTransaction, *, may_evolve: bool) -> DataFrame:
    """Cast the rows to the table's types as an INSERT does; values that do not fit fail.

    Not cast are columns that the table lacks, types that cannot be assigned and structs with fields
    of other names (Delta's writer refuses them by name), and types to which the table may widen.

    Args:
        may_evolve: Whether the rows may add columns to the table, and widen types.
    """
    spark = rows.sparkSession
    jvm = Jvm.of(spark)
    expressions = jvm.catalyst.expressions
    cast = Jvm.singleton(expressions, "Cast")
    ansi = Jvm.singleton(expressions, "EvalMode").ANSI()
    metadata = transaction.metadata()
    widening = metadata.configuration().get("delta.enableTypeWidening")
    may_widen = may_evolve and widening.isDefined() and widening.get() == "true"
    rows, with_other_fields = _with_fields_in_order(rows, metadata.schema())
    wanted = {field.name().lower(): field.dataType() for field in metadata.schema().fields()}

    def value(field: JavaObject) -> Column:
        own, name = column(field.name()), field.name()
        given, target = field.dataType(), wanted.get(name.lower())
        if (
            target is None
            or given.equals(target)
            or name.lower() in with_other_fields
            or (may_widen and cast.canUpCast(target, given))
            or not cast.canANSIStoreAssign(given, target)
        ):
            return own
        nothing = jvm.option(None)
        of_target = expressions.Cast(jvm.expression_of(own), target, nothing, ansi)
        return jvm.column_of(of_target).alias(name)

    return rows.select([value(field) for field in rows._jdf.schema().fields()])


class _OrderedRows(NamedTuple):
    """Rows with the fields of structs in the order of a table's.

    Attributes:
        others: Names in lower case of columns with structs of other fields, as they are.
    """

    rows: DataFrame
    others: set[str]


def _with_fields_in_order(rows: DataFrame, schema: JavaObject) -> _OrderedRows:
    """Put the fields of structs in the order of a table's."""
    table = spark_schema(rows.sparkSession, schema)
    wanted = {field.name.lower(): field.dataType for field in table}
    fields, others = [], set[str]()
    for field in rows.schema:
        target = wanted.get(field.name.lower())
        kind = field.dataType if target is None else _ordered(field.dataType, target)
        if kind is None:
            others.add(field.name.lower())
        kind = kind or field.dataType
        fields.append(StructField(field.name, kind, field.nullable, field.metadata))
    types = [field.dataType for field in rows.schema]
    is_in_order = [field.dataType for field in fields] == types
    return _OrderedRows(rows if is_in_order else rows.to(StructType(fields)), others)


def _ordered(given: DataType, wanted: DataType) -> DataType | None:
    """Put the fields of a type's structs in another's order; None if their names differ."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        by_name = {field.name.lower(): field for field in given}
        if len(by_name) != len(given) or by_name.keys() != {field.name.lower() for field in wanted}:
            return None
        fields = []
        for target in wanted:
            field = by_name[target.name.lower()]
            kind = _ordered(field.dataType, target.dataType)
            if kind is None:
                return None
            fields.append(StructField(field.name, kind, field.nullable, field.metadata))
        return StructType(fields)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        element = _ordered(given.elementType, wanted.elementType)
        return None if element is None else ArrayType(element, given.containsNull)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        key = _ordered(given.keyType, wanted.keyType)
        value = _ordered(given.valueType, wanted.valueType)
        if key is None or value is None:
            return None
        return MapType(key, value, given.valueContainsNull)
    return given


@dataclass(frozen=True)
class WriteResult:
    """What a write committed.

    Attributes:
        version: The version it made, or None where all of its identifiers were applied before.
        metrics: Delta's metrics of the write by their names, e.g. `numOutputRows`.
        warnings: What failed after the commit, a sentence each. The commit stands.
    """

    version: int | None
    metrics: Mapping[str, int]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Write:
    """The options of a write into an existing table; see `Table.write`."""

    table: str
    overwrite: bool
    replace_where: str | None = None
    with_schema_evolution: bool = False
    applied: Mapping[str, int] = dataclasses.field(default_factory=dict)
    once: bool = False
    applied_before: int | None = None
    recorded: Mapping[str, int] = dataclasses.field(default_factory=dict)
    computed_from: int | None = None
    reads_all: bool = True
    check: Callable[[], None] | None = None

    @property
    def operation(self) -> str:
        """What messages call the write."""
        return "overwriting" if self.overwrite else "append"

    @property
    def options(self) -> dict[str, str]:
        """Delta's options of the write.

        Raises:
            StatementError: The predicate is empty.
        """
        # A session that overwrites partitions dynamically would leave the other partitions' rows.
        options = {
            "mergeSchema": str(self.with_schema_evolution),
            "partitionOverwriteMode": "static",
            **OF_A_PART,
        }
        if self.replace_where is not None:
            options["replaceWhere"] = _checked_predicate(self.replace_where, self.table)
        return options


def write_rows(log: DeltaLog, rows: DataFrame, write: Write) -> WriteResult:
    """Write rows into an existing table; see `Table.write`.

    Without transaction ids in its options, a write takes the one of the session, if any.
    """
    # Names in the predicate are names, and Delta finds all rows that it holds for.
    exactly = write.replace_where is not None
    with own_session(rows.sparkSession, filters_exactly=exactly) as own:
        rows = in_session(rows, own)
        of_session = None if write.applied else session_transaction_id(own, table=write.table)
        if of_session is None:
            return _write_once(log, rows, write)
        result = _write_once(log, rows, replace(write, applied=dict([of_session]), once=True))
        afterwards = AfterCommit(write.table, result.version, list(result.warnings))
        with afterwards.step("resetting the session's transaction id"):
            reset_session_transaction_id(own)
        return replace(result, warnings=tuple(afterwards.warnings))


def _write_once(log: DeltaLog, rows: DataFrame, write: Write) -> WriteResult:
    spark = rows.sparkSession
    options = write.options
    delta = Jvm.of(spark).delta
    active = Jvm.singleton(delta, "OptimisticTransaction")
    with translated(write.table, operation=write.operation, version=write.computed_from):
        transaction = _transaction(spark, log, write)
        table = TableSnapshot(spark, log, transaction.snapshot())
        if _is_done(transaction, table, write):
            return WriteResult(None, {})
        if _reads_leniently(rows, transaction, write):
            refuse_lenient_reads(spark, write.table, write.operation)
        active.setActive(transaction)
        try:
            done = _written_and_committed(table, transaction, rows, write, options)
        finally:
            with suppress_cleanup_errors("the active transaction"):
                active.clearActive()
    metrics: dict[str, int] = {}
    afterwards = AfterCommit(write.table, done.version, list(done.warnings))
    with afterwards.step("reading its metrics"):
        metrics = _metrics(transaction)
    return WriteResult(done.version, metrics, tuple(afterwards.warnings))


def _reads_leniently(rows: DataFrame, transaction: DeltaTransaction, write: Write) -> bool:
    """Return whether Delta would rewrite files, and pass over what it cannot read of them.

    It does not where whole partitions are replaced.
    """
    if write.replace_where is None or not reads_leniently(rows.sparkSession):
        return False
    replaced = rows.where(write.replace_where)._jdf.queryExecution().analyzed().condition()
    columns = [each.name() for each in Jvm.iterate(replaced.references().toSeq())]
    partitions = {name.lower() for name in Jvm.iterate(transaction.metadata().partitionColumns())}
    return not {name.lower() for name in columns} <= partitions


def _is_done(transaction: DeltaTransaction, table: TableSnapshot, write: Write) -> bool:
    """Return whether the table holds all transaction ids already, so that nothing is written.

    Raises:
        CommitConflictError: The table lacks the version that the rows were computed from.
    """
    are_applied = [
        is_applied(
            TransactionId(application_id, version),
            last_applied(transaction, table, application_id),
            write.applied_before if write.once else None,
            table=write.table,
            version=table.version,
        )
        for application_id, version in write.applied.items()
    ]
    return write.once and bool(are_applied) and all(are_applied)


def _written_and_committed(
    table: TableSnapshot,
    transaction: DeltaTransaction,
    rows: DataFrame,
    write: Write,
    options: Mapping[str, str],
) -> Committed:
    """Write the rows by Delta's writer, and commit what it wrote together with the ids."""
    spark = table.spark
    jvm, session = Jvm.of(spark), spark._jsparkSession
    delta, nothing = jvm.delta, jvm.option(None)
    modes = jvm.sql.SaveMode
    mode = modes.Overwrite if write.overwrite else modes.Append
    metadata = transaction.metadata()
    check_partition_times(spark, metadata, table=write.table, operation=write.operation)
    own_files = OwnFiles(spark, table.log, transaction)
    with own_files.deleted_unless_committed():
        written = assigned(rows, transaction, may_evolve=write.with_schema_evolution)
        writer = write_command(
            spark,
            table.log,
            mode,
            delta.DeltaOptions(jvm.scala_map(options), session.sessionState().conf()),
            metadata.partitionColumns(),
            jvm.scala_map({}),
            written._jdf,
            nothing,
            nothing,
        )
        with own_files.named():
            data = writer.writeAndReturnCommitData(transaction, session, nothing, False)
            of_write = with_true_times(written, own_files, data.actions())
        id_action = jvm.class_of_delta("org.apache.spark.sql.delta.actions.SetTransaction")
        of_write = of_write.filterNot(jvm.instances_of(id_action))
        actions = jvm.java.util.ArrayList()
        actions.addAll(jvm.java_list(of_write))
        for name, version in {**write.recorded, **write.applied}.items():
            actions.add(transaction_id(jvm, name, version))
        made = write_operation(spark, mode, jvm.option(write.replace_where))
        arguments = (jvm.seq_of(actions), made, data.stringTags())
        if write.check is not None:
            do_apart(spark, write.check)
        with own_files.committing():
            return committed(
                transaction,
                lambda: int(transaction.commit(*arguments)),
                table,
                table=write.table,
                operation=write.operation,
            )


def _transaction(spark: SparkSession, log: DeltaLog, write: Write) -> JavaObject:
    """Begin a transaction at the newest version, or at the one that the rows were computed from."""
    jvm = Jvm.of(spark)
    nothing = jvm.option(None)
    if write.computed_from is None:
        return log.startTransaction(nothing, nothing)
    snapshot = TableLog(spark, log).at_version(write.computed_from).snapshot
    transaction = log.startTransaction(nothing, jvm.option(snapshot))
    if write.reads_all:
        # Otherwise, Delta treats appends as blind, and assumes that an overwrite read only the rows
        # that it replaces.
        transaction.readWholeTable()
    return transaction


def _checked_predicate(replace_where: str, table: str) -> str:
    if not replace_where.strip():
        raise StatementError(
            "the predicate of the rows to replace is empty.",
            table=table,
            operation="overwriting",
            hint="Say which rows are replaced, or overwrite the whole table on purpose.",
        )
    return replace_where


def _metrics(transaction: DeltaTransaction) -> dict[str, int]:
    metrics = transaction.commitInfo().operationMetrics()
    if not metrics.isDefined():
        return {}
    return {str(each._1()): int(each._2()) for each in Jvm.iterate(metrics.get())}


_REWRITING = "rewriting files"


def rewrite_files(spark: SparkSession, log: DeltaLog, paths: DataFrame) -> int:
    """Rewrite files as OPTIMIZE does: rows marked deleted go, the others keep their ids.

    Args:
        paths: The files' `path` in the log; those that left the table are passed over.

    Returns:
        The number of files that were rewritten; without any, nothing is committed.

    Raises:
        CommitConflictError: One of the files left the table meanwhile (by `translated`).
        StatementError: See `check_partition_times`.
    """
    jvm = Jvm.of(spark)
    none = jvm.option(None)
    transaction = log.startTransaction(none, none)
    table = TableSnapshot(spark, log, transaction.snapshot())
    files = table.files_of(paths)
    if not len(files):
        return 0
    check_partition_times(
        spark, transaction.metadata(), table=table.data_path, operation=_REWRITING
    )
    own_files = OwnFiles(spark, log, transaction)
    with own_files.deleted_unless_committed():
        transaction.trackFilesRead(files.files)
        changes = jvm.java.util.ArrayList(files.removals(data_change=False))
        changes.addAll(_rewritten(table, files, own_files))
        # Delta's name for a command that rewrites some files.
        operation = jvm.delta.DeltaOperations.Reorg(jvm.seq([]), False)
        arguments = (jvm.seq_of(changes), operation, tags_of_merge(spark, table.snapshot))
        with own_files.committing():
            committed(
                transaction,
                lambda: int(transaction.commitIfNeeded(*arguments).get()),
                table,
                table=table.data_path,
                operation=_REWRITING,
            )
    return len(files)


def _rewritten(table: TableSnapshot, files: FileList, own_files: OwnFiles) -> JavaObject:
    """Rewrite the files' rows, and return a Java list of the AddFile actions."""
    jvm = Jvm.of(table.spark)
    row_tracking = Jvm.singleton(jvm.delta, "RowTracking")
    tracked = row_tracking.preserveRowTrackingColumns(table.read_files(files)._jdf, table.snapshot)
    rows = jvm.data_frame(tracked)
    none, nothing = jvm.option(None), jvm.seq([])
    with own_files.named():
        written = own_files.transaction.writeFiles(rows._jdf, none, True, nothing)
        written = with_true_times(rows, own_files, written)
    adds = FileList(table.spark, written, table.data_path).data_frame
    adds = adds.withColumn("dataChange", F.lit(False)).select(adds.columns)
    return collected_actions(adds, "addFile")
