"""The transaction of a merge: it lists and reads files, writes rows, and commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from deltaweave.delta.commit.commit_call import Committed, committed, replacement_shown
from deltaweave.delta.commit.partition_times import check_partition_times, with_true_times
from deltaweave.delta.commit.table_lock import TableLock
from deltaweave.delta.commit.transaction_ids import last_applied, transaction_id
from deltaweave.delta.commit.written_files import OwnFiles, WrittenFiles, compaction, written_files
from deltaweave.delta.jvm import (
    DeltaLog,
    DeltaSnapshot,
    DeltaTransaction,
    Expression,
    JavaObject,
    Jvm,
    is_on,
    suppress_cleanup_errors,
    translated,
)
from deltaweave.delta.log import (
    FileList,
    TableMetadata,
    TableSnapshot,
    actions,
    in_partitions,
    refuse_unsupported,
)
from deltaweave.delta.releases import string_prefix_length
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.identifiers import column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METRIC = "org.apache.spark.sql.execution.metric.SQLMetric"


def merge_operation(merge: ResolvedMerge) -> JavaObject:
    """Build Delta's `Merge` operation, with the condition and clauses that the history shows."""
    jvm = Jvm.of(merge.spark)
    operations = jvm.delta.DeltaOperations
    predicate = Jvm.singleton(operations, "MergePredicate")

    def predicates(kind: str) -> JavaObject:
        return jvm.seq([predicate.apply(clause.node) for clause in merge.of_kind(kind)])

    empty = jvm.option(None)
    return operations.Merge(
        jvm.option(merge.condition_expression),
        empty,
        empty,
        empty,
        predicates("matched"),
        predicates("not_matched"),
        predicates("not_matched_by_source"),
    )


def tags_of_merge(spark: SparkSession, snapshot: DeltaSnapshot) -> JavaObject:
    """Return the commit's tags: for tables that track rows, whether the rows kept their ids."""
    jvm = Jvm.of(spark)
    row_tracking = Jvm.singleton(jvm.delta, "RowTracking")
    return row_tracking.addPreservedRowTrackingTagIfNotSet(snapshot, jvm.scala_map({}))


def sql_metrics(spark: SparkSession, metrics: Mapping[str, int]) -> JavaObject:
    """Build the SQL metrics from which Delta writes the history, by name.

    A few calls make and set any number of them.
    """
    jvm = Jvm.of(spark)

    def new_metric() -> JavaObject:
        context = spark.sparkContext._jsc.sc()
        utils = Jvm.singleton(jvm.sql.execution.metric, "SQLMetrics")
        return jvm.function_of_text(utils, "createMetric", context)

    def set_metric() -> JavaObject:
        number = jvm.java.lang.Long.TYPE
        return jvm.setter(_METRIC, "set", number)

    listed = list(metrics)
    names = jvm.made_once(f"texts {listed}", lambda: jvm.texts(listed))
    created = names.map(jvm.made_once("a new metric", new_metric))
    numbers = actions.json_numbers(spark, list(metrics.values()))
    values = jvm.map_of_pairs(created, jvm.scala_buffer(numbers))
    jvm.java_map(values).forEach(jvm.made_once("the value of a metric", set_metric))
    return jvm.map_of_pairs(names, created)


@dataclass(eq=False)
class Transaction:
    """A merge's transaction: Delta's OptimisticTransaction and the snapshot it reads.

    It registers what the merge reads, so that Delta's conflict check sees it. Otherwise, two
    concurrent upserts could both insert a key.

    Attributes:
        own_files: The files that it writes.
    """

    merge: ResolvedMerge
    log: DeltaLog
    transaction: DeltaTransaction
    own_files: OwnFiles
    _evolved: TableMetadata | None = field(default=None, init=False, repr=False)

    @cached_property
    def codec(self) -> str:
        """The codec of new Parquet files, as the session sets it."""
        return self.merge.spark.conf.get("spark.sql.parquet.compression.codec") or ""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this Delta's active transaction on this thread while the block runs."""
        delta = Jvm.of(self.merge.spark).delta
        transactions = Jvm.singleton(delta, "OptimisticTransaction")
        transactions.setActive(self.transaction)
        try:
            yield
        finally:
            with suppress_cleanup_errors("the active transaction"):
                transactions.clearActive()

    def translated(self) -> AbstractContextManager[None]:
        """Translate the errors of a block; they name the target and the version that is read."""
        return translated(self.merge.table, version=self.version)

    @cached_property
    def snapshot(self) -> JavaObject:
        """The snapshot the transaction reads."""
        return self.transaction.snapshot()

    @property
    def version(self) -> int:
        """The version the transaction reads."""
        return self.table.version

    @property
    def data_path(self) -> str:
        """Where the table's data is."""
        return self.table.data_path

    @cached_property
    def directory(self) -> JavaObject:
        """The table's directory, as Hadoop's path."""
        return self.log.dataPath()

    @cached_property
    def hadoop_settings(self) -> JavaObject:
        """Hadoop's configuration with which the table's files are opened."""
        return self.log.newDeltaHadoopConf()

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata as it will be after the commit, as `evolve_schema` changed it."""
        return self.table.metadata if self._evolved is None else self._evolved

    @property
    def partition_columns(self) -> list[str]:
        """The table's partition columns, in order."""
        return list(self.metadata.partition_columns)

    @cached_property
    def table(self) -> TableSnapshot:
        """The version of the table that the transaction reads."""
        return TableSnapshot(self.merge.spark, self.log, self.snapshot)

    @property
    def string_prefix_length(self) -> int:
        """How many characters of a string the statistics of the table's files keep."""
        return string_prefix_length(self.merge.spark, self.transaction.metadata())

    @property
    def changes_metadata(self) -> bool:
        """Whether the transaction changes the table's metadata, e.g. by schema evolution."""
        return self.metadata != self.table.metadata

    def num_records(self, files: FileList) -> int:
        """Return the number of rows in the files: from statistics, or counted if one has none."""
        if files.num_records is not None:
            return files.num_records
        with self.translated():
            return self.read(files).count()

    def read(self, files: FileList) -> DataFrame:
        """Read the rows of these files at the transaction's snapshot."""
        return self.table.read_files(files)

    def last_applied(self, application_id: str) -> int:
        """Return the newest version that an application id committed to the target, or -1."""
        return last_applied(self.transaction, self.table, application_id)

    @property
    def statistics_schema(self) -> str:
        """Delta's schema of the statistics of a new file, as Spark's JSON."""
        return str(self.snapshot.statsSchema().json())

    def files_in_partitions(
        self, files: FileList, predicates: Sequence[Expression]
    ) -> set[str] | None:
        """Return the paths of the files whose partitions can satisfy all predicates; without a job.

        None where a predicate reads more than partition columns.
        """
        return in_partitions(files, self.snapshot.metadata().partitionSchema(), predicates)

    def evolve_schema(self) -> None:
        """Put the evolved schema into the transaction, where the statement or session allows it."""
        node = self.merge.node
        if not node.canMergeSchema():
            return
        metadata = self.transaction.metadata()
        migrated = node.migratedSchema()
        schema = migrated.get() if migrated.isDefined() else self.merge.target_plan.schema()
        with self.translated():
            node.updateMetadata(
                self.merge.spark._jsparkSession,
                self.transaction,
                schema,
                metadata.partitionColumns(),
                metadata.configuration(),
                False,
                False,
            )
        evolved = self.transaction.metadata()
        if not evolved.equals(metadata):
            self._evolved = TableMetadata.of(self.merge.spark, evolved)

    def candidate_files(self, predicates: Sequence[Expression]) -> FileList:
        """Return the files that can hold a row of all predicates; register them as read."""
        spark = self.merge.spark
        jvm = Jvm.of(spark)

        def any_row() -> JavaObject:
            literals = Jvm.singleton(jvm.catalyst.expressions, "Literal")
            return jvm.seq([literals.TrueLiteral()])

        all_of_it = jvm.made_once("a predicate of any row", any_row)
        wanted = jvm.seq(predicates) if predicates else all_of_it
        files = self._known_files(predicates)
        if files is None:
            chosen = self.transaction.filterFiles(wanted, True)
            return FileList(self.merge.spark, chosen, self.data_path)
        # The same as filterFiles, without its job over the log.
        self.transaction.trackReadPredicates(wanted, False, True)
        self.transaction.trackFilesRead(files.files)
        return files

    def _known_files(self, predicates: Sequence[Expression]) -> FileList | None:
        """Return the files that can satisfy all predicates; None if only Delta knows them."""
        if not predicates:
            return self.table.file_list() if self.table.has_few_files else None
        files = self.table.listed_files()
        chosen = None if files is None else self.files_in_partitions(files, predicates)
        return None if files is None or chosen is None else files.with_paths(chosen)

    def refuse_unsupported(self) -> None:
        """Refuse a table that the engine does not write.

        Raises:
            UnsupportedFeatureError: The table has features that the engine does not support.
            StatementError: See `check_partition_times`.
        """
        refuse_unsupported(self.table, table=self.merge.table)
        metadata = self.transaction.metadata()
        check_partition_times(self.merge.spark, metadata, table=self.merge.table, operation="MERGE")

    def write(self, rows: DataFrame) -> WrittenFiles:
        """Write rows of the (evolved) schema as new data files, and check constraints.

        Raises:
            ConstraintViolationError: A row breaks a constraint.
            StatementError: See `with_true_times`.
        """
        partition_columns = self.partition_columns
        if partition_columns and self._repartitions_before_write():
            rows = rows.repartition(*[column(name) for name in partition_columns])
        with self.translated(), self.own_files.named():
            written = self.transaction.writeFiles(rows._jdf)
            written = with_true_times(rows, self.own_files, written)
        return written_files(self.merge.spark, written, self.data_path)

    def _repartitions_before_write(self) -> bool:
        """Return whether rows are shuffled by partition before they are written."""
        jvm = Jvm.of(self.merge.spark)
        configuration = self.merge.spark._jsparkSession.sessionState().conf()
        write = Jvm.singleton(jvm.delta.files, "TransactionalWrite")
        key = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"
        return is_on(self.merge.spark, key, otherwise=True) and not write.shouldOptimizeWrite(
            self.transaction.metadata(), configuration
        )

    def commit(
        self,
        *,
        removed: FileList,
        marked: JavaObject | None,
        written: WrittenFiles | None,
        metrics: Mapping[str, int],
        transaction_ids: Mapping[str, int],
        held: TableLock | None = None,
    ) -> Committed:
        """Commit as one `MERGE` operation, with its metrics for the history.

        Args:
            marked: Scala Seq of the actions that put deletion vectors in place.

        Returns:
            The version, or None where Delta found nothing to commit.

        Raises:
            CommitConflictError: Another commit changed what this merge read.
            CommitStateUnknownError: The commit failed, and whether it landed is unknown.
        """
        jvm = Jvm.of(self.merge.spark)
        listed = jvm.java.util.ArrayList()
        for each in transaction_ids.items():
            listed.add(transaction_id(jvm, *each))
        listed.addAll(removed.removals())
        if marked is not None:
            listed.addAll(jvm.java_list(marked))
        if written is not None:
            listed.addAll(jvm.java_list(written.actions))
        with self.translated():
            self.transaction.registerSQLMetrics(
                self.merge.spark._jsparkSession, sql_metrics(self.merge.spark, metrics)
            )
            tags = tags_of_merge(self.merge.spark, self.snapshot)
            arguments = (jvm.seq_of(listed), merge_operation(self.merge), tags)

        def commit() -> int | None:
            version = self.transaction.commitIfNeeded(*arguments)
            return int(version.get()) if version.isDefined() else None

        with self.own_files.committing():
            return committed(
                self.transaction, commit, self.table, table=self.merge.table, held=held
            )

    def recache(self) -> None:
        """Refresh cached queries that read the target."""
        session = self.merge.spark._jsparkSession
        session.sharedState().cacheManager().recacheByPlan(session, self.merge.target_plan)

    def record_event(self, statistics: Mapping[str, int | str]) -> None:
        """Record the `delta.dml.merge.stats` event."""
        jvm = Jvm.of(self.merge.spark)
        self.transaction.recordDeltaEvent(
            self.log,
            "delta.dml.merge.stats",
            jvm.scala_map({}),
            actions.json_map(self.merge.spark, statistics),
            jvm.option(None),
        )


# The protocol's domain of the row ids that were given out. Each commit of new rows raises it, and
# the transaction reads it again.
_ROW_IDS = "delta.rowTracking"


@contextmanager
def transaction_on(merge: ResolvedMerge) -> Iterator[Transaction]:
    """Open a transaction on the target's newest version, active on this thread in the block.

    While it is active, a source that reads the target too (a self-merge) reads the same version,
    and Delta registers its reads.

    Raises:
        TableReplacedError: The block failed, and the table's directory was deleted meanwhile.
    """
    jvm = Jvm.of(merge.spark)
    log = merge.target_log
    with translated(merge.table):
        transaction = log.startTransaction(merge.node.catalogTable(), jvm.option(None))
    # The same commit raises the high-water marks of identity columns.
    transaction.setTrackHighWaterMarks(merge.node.trackHighWaterMarks())
    started = Transaction(merge, log, transaction, OwnFiles(merge.spark, log, transaction))
    replacement = replacement_shown(
        started.table, started.own_files, table=merge.table, operation="MERGE"
    )
    with started.active(), started.own_files.deleted_unless_committed(), replacement:
        yield started


def transaction_after(lost: Transaction) -> Transaction:
    """Begin a transaction on the newest version to commit the files that a lost one wrote.

    It has read nothing yet: whoever uses it registers again what the merge reads. Values that Delta
    remembers of the written rows, as those of identity columns, stay with the one that lost.
    """
    merge, jvm = lost.merge, Jvm.of(lost.merge.spark)
    with lost.translated():
        started = lost.log.startTransaction(merge.node.catalogTable(), jvm.option(None))
        hook = compaction(merge.spark)
        # Delta's writer asked for it when it wrote the files.
        if lost.transaction.containsPostCommitHook(hook):
            started.registerPostCommitHook(hook)
    return Transaction(merge, lost.log, started, lost.own_files)


def is_same_table(before: TableSnapshot, after: TableSnapshot) -> bool:
    """Return whether a newer version has the same id, schema, properties and protocol.

    A statement that was resolved against the one then means the same for the other.
    """
    return (
        after.version >= before.version
        and bool(after.snapshot.metadata().equals(before.snapshot.metadata()))
        and bool(after.snapshot.protocol().equals(before.snapshot.protocol()))
    )


def has_same_domains(before: TableSnapshot, after: TableSnapshot) -> bool:
    """Return whether another version has the same domain metadata, e.g. clustering columns."""
    return _domains(before.snapshot) == _domains(after.snapshot)


def _domains(snapshot: DeltaSnapshot) -> dict[str, str]:
    domains = Jvm.iterate(snapshot.domainMetadata())
    known = {str(each.domain()): str(each.configuration()) for each in domains}
    known.pop(_ROW_IDS, None)
    return known
