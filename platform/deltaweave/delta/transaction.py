"""One optimistic transaction on a table: files read, rows planned, files written, commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.committing import Committed, committed
from deltaweave.delta.failures import condition_and_state, delta_error, letting_go, translated
from deltaweave.delta.file_list import FileList, total_size
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.own_files import OwnFiles
from deltaweave.delta.snapshot import TableSnapshot
from deltaweave.identifiers import column

_FEW_FILES = 1_000


@dataclass(frozen=True)
class WrittenFiles:
    """What a write left on storage; nothing of it is in the table before the commit.

    Attributes:
        actions: Scala Seq of the AddFile and AddCDCFile actions.
        files: The data files.
        num_change_files: How many files of the change feed there are.
        change_file_bytes: Their total size, in bytes.
    """

    actions: JavaObject
    files: FileList
    num_change_files: int = 0
    change_file_bytes: int = 0

    @classmethod
    def of(cls, files: FileList) -> WrittenFiles:
        """Data files alone."""
        return cls(files.files, files)

    def __len__(self) -> int:
        return len(self.files)

    def and_also(self, other: WrittenFiles) -> WrittenFiles:
        """These files and those of another write."""
        return WrittenFiles(
            self.actions.appendedAll(other.actions),
            self.files.and_also(other.files),
            self.num_change_files + other.num_change_files,
            self.change_file_bytes + other.change_file_bytes,
        )


@dataclass(frozen=True)
class Transaction:
    """A merge's transaction: Delta's OptimisticTransaction and the snapshot it reads.

    What a merge reads is registered with it, so that Delta's conflict check sees it: without that,
    two concurrent upserts could both insert a key.
    """

    merge: ResolvedMerge
    log: JavaObject
    transaction: JavaObject

    @cached_property
    def own_files(self) -> OwnFiles:
        """The files that it writes."""
        return OwnFiles(self.merge.spark, self.log, self.transaction)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let Delta know of the transaction on this thread, while the block runs."""
        delta = jvm_.jvm(self.merge.spark).org.apache.spark.sql.delta
        transactions = jvm_.singleton(delta, "OptimisticTransaction")
        transactions.setActive(self.transaction)
        try:
            yield
        finally:
            with letting_go("the active transaction"):
                transactions.clearActive()

    @property
    def snapshot(self) -> JavaObject:
        """The snapshot the transaction reads."""
        return self.transaction.snapshot()

    @property
    def version(self) -> int:
        """The version the transaction reads."""
        return int(self.snapshot.version())

    @property
    def data_path(self) -> str:
        """Where the table's data is."""
        return self.table.data_path

    @property
    def partition_columns(self) -> list[str]:
        """The table's partition columns, in order."""
        return list(jvm_.iterate(self.transaction.metadata().partitionColumns()))

    @cached_property
    def table(self) -> TableSnapshot:
        """The version of the table that the transaction reads."""
        return TableSnapshot(self.merge.spark, self.log, self.snapshot)

    @property
    def string_prefix_length(self) -> int:
        """How many characters of a string the statistics of the table's files keep."""
        spark = self.merge.spark
        statistics = jvm_.jvm(spark).org.apache.spark.sql.delta.stats
        return int(
            jvm_.singleton(statistics, "StatsCollectionUtils").getDataSkippingStringPrefixLength(
                spark._jsparkSession, self.transaction.metadata()
            )
        )

    @property
    def num_files(self) -> int:
        """How many data files the table has."""
        checksum = self.snapshot.checksumOpt()
        return int(
            checksum.get().numFiles() if checksum.isDefined() else self.snapshot.numOfFiles()
        )

    @property
    def size_in_bytes(self) -> int:
        """Their total size, in bytes."""
        checksum = self.snapshot.checksumOpt()
        return int(
            checksum.get().tableSizeBytes() if checksum.isDefined() else self.snapshot.sizeInBytes()
        )

    @property
    def changes_metadata(self) -> bool:
        """Whether the transaction changes the table's metadata, e.g. by schema evolution."""
        return not self.transaction.metadata().equals(self.snapshot.metadata())

    def num_records(self, files: FileList) -> int:
        """Rows in the files: by their statistics or, where a file has none, by counting them."""
        if files.num_records is not None:
            return files.num_records
        with translated(self.merge.table, version=self.version):
            return self.read(files).count()

    def read(self, files: FileList) -> DataFrame:
        """The rows of these files at the transaction's snapshot."""
        return self.table.read_files(files)

    @property
    def keeps_change_feed(self) -> bool:
        """Whether changes are to be recorded for the table's change data feed."""
        setting = self.transaction.metadata().configuration().get("delta.enableChangeDataFeed")
        return bool(setting.isDefined() and setting.get().lower() == "true")

    def last_applied(self, application_id: str) -> int:
        """The newest version that application id committed here, or -1."""
        return int(self.transaction.txnVersion(application_id))

    def ambiguous_match(self) -> tuple[str, str, str | None]:
        """Delta's message, error class and SQLSTATE for an ambiguous match (M4)."""
        spark = self.merge.spark
        error = delta_error(
            jvm_.jvm(spark),
            "multipleSourceRowMatchingTargetRowInMergeException",
            spark._jsparkSession,
        )
        return (error.getMessage(), *condition_and_state(error))

    def evolve_schema(self) -> None:
        """Put the evolved schema into the transaction, where the statement or session allows it."""
        node = self.merge.node
        if not node.canMergeSchema():
            return
        metadata = self.transaction.metadata()
        migrated = node.migratedSchema()
        schema = migrated.get() if migrated.isDefined() else node.target().schema()
        with translated(self.merge.table, version=self.version):
            node.updateMetadata(
                self.merge.spark._jsparkSession,
                self.transaction,
                schema,
                metadata.partitionColumns(),
                metadata.configuration(),
                False,
                False,
            )

    def candidate_files(self, predicates: Sequence[JavaObject]) -> FileList:
        """The files that can hold a row that satisfies all predicates, registered as read (C1)."""
        view = jvm_.jvm(self.merge.spark)
        expressions = view.org.apache.spark.sql.catalyst.expressions
        everything = jvm_.singleton(expressions, "Literal").TrueLiteral()
        wanted = jvm_.seq(view, predicates or [everything])
        if predicates or not self._lists_all_files_quickly():
            files = self.transaction.filterFiles(wanted, True)
            return FileList(self.merge.spark, files, self.data_path)
        # What filterFiles does, without the totals of the whole state that it computes besides.
        listed = self.table.file_list()
        self.transaction.trackReadPredicates(wanted, False, True)
        self.transaction.trackFilesRead(listed.files)
        return listed

    def _lists_all_files_quickly(self) -> bool:
        """Whether the table is known to have few files; they come with all of their statistics."""
        checksum = self.snapshot.checksumOpt()
        return bool(checksum.isDefined() and checksum.get().numFiles() <= _FEW_FILES)

    def write(self, rows: DataFrame) -> WrittenFiles:
        """Write rows of the table's (evolved) schema as new data files, constraints checked.

        Raises:
            ConstraintViolationError: A row breaks a constraint.
        """
        partition_columns = self.partition_columns
        if partition_columns and self._repartitions_before_write():
            rows = rows.repartition(*[column(name) for name in partition_columns])
        with translated(self.merge.table, version=self.version), self.own_files.named():
            actions = self.transaction.writeFiles(rows._jdf)
        return self._written(actions)

    def _written(self, actions: JavaObject) -> WrittenFiles:
        """Tell data files from files of the change feed, which Delta's writer puts last."""
        spark = self.merge.spark
        first, last = 0, int(actions.size())
        while first < last:
            middle = (first + last) // 2
            if actions.apply(middle).getClass().getSimpleName() == "AddCDCFile":
                last = middle
            else:
                first = middle + 1
        change_files = actions.drop(first)
        return WrittenFiles(
            actions,
            FileList(spark, actions.take(first), self.data_path),
            int(change_files.size()),
            total_size(spark, change_files) if change_files.size() else 0,
        )

    def _repartitions_before_write(self) -> bool:
        """Whether rows are brought together by partition first (document row M6)."""
        view = jvm_.jvm(self.merge.spark)
        configuration = self.merge.spark._jsparkSession.sessionState().conf()
        write = jvm_.singleton(view.org.apache.spark.sql.delta.files, "TransactionalWrite")
        key = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"
        return self.merge.spark.conf.get(key, "true") == "true" and not write.shouldOptimizeWrite(
            self.transaction.metadata(), configuration
        )

    def commit(
        self,
        *,
        removed: FileList,
        marked: JavaObject | None,
        written: WrittenFiles | None,
        metrics: Mapping[str, int],
        idempotency: tuple[str, int] | None,
    ) -> Committed:
        """Commit as one `MERGE` operation, with its metrics for the history.

        Args:
            removed: Files that leave the table.
            marked: Scala Seq of the actions that put deletion vectors in place.
            written: New files.
            metrics: Delta's metrics by name.
            idempotency: An (application id, version) pair for the same commit.

        Returns:
            The version, or None where Delta found nothing to commit.

        Raises:
            CommitConflictError: Another commit changed what this merge read.
            CommitStateUnknownError: It failed, and it cannot be told whether it landed.
        """
        view = jvm_.jvm(self.merge.spark)
        actions = view.java.util.ArrayList()
        if idempotency is not None:
            now = jvm_.option(view, view.java.lang.System.currentTimeMillis())
            actions.add(
                view.org.apache.spark.sql.delta.actions.SetTransaction(
                    idempotency[0], idempotency[1], now
                )
            )
        actions.addAll(removed.removals())
        if marked is not None:
            actions.addAll(jvm_.java_list(view, marked))
        if written is not None:
            actions.addAll(jvm_.java_list(view, written.actions))
        with translated(self.merge.table, version=self.version):
            self.transaction.registerSQLMetrics(
                self.merge.spark._jsparkSession, self._sql_metrics(metrics)
            )
            arguments = (jvm_.seq_of(view, actions), self._operation(), self._tags())

        self.own_files.is_committing = True

        def commit() -> int | None:
            version = self.transaction.commitIfNeeded(*arguments)
            return int(version.get()) if version.isDefined() else None

        return committed(
            self.merge.spark, self.log, self.transaction, commit, table=self.merge.table
        )

    def _operation(self) -> JavaObject:
        view = jvm_.jvm(self.merge.spark)
        operations = view.org.apache.spark.sql.delta.DeltaOperations
        predicate = jvm_.singleton(operations, "MergePredicate")

        def predicates(kind: str) -> JavaObject:
            return jvm_.seq(
                view, [predicate.apply(clause.node) for clause in self.merge.of_kind(kind)]
            )

        empty = jvm_.option(view, None)
        return operations.Merge(
            jvm_.option(view, self.merge.node.condition()),
            empty,
            empty,
            empty,
            predicates("matched"),
            predicates("not_matched"),
            predicates("not_matched_by_source"),
        )

    def _tags(self) -> JavaObject:
        """The commit's tags: whether rows kept their ids, for tables that track rows."""
        view = jvm_.jvm(self.merge.spark)
        row_tracking = jvm_.singleton(view.org.apache.spark.sql.delta, "RowTracking")
        return row_tracking.addPreservedRowTrackingTagIfNotSet(
            self.snapshot, jvm_.scala_map(view, {})
        )

    def _sql_metrics(self, metrics: Mapping[str, int]) -> JavaObject:
        view = jvm_.jvm(self.merge.spark)
        sql_metrics = view.org.apache.spark.sql.execution.metric.SQLMetrics
        context = self.merge.spark.sparkContext._jsc.sc()
        registered = {}
        for name, value in metrics.items():
            metric = sql_metrics.createMetric(context, name)
            if value:
                metric.set(value)
            registered[name] = metric
        return jvm_.scala_map(view, registered)

    def recache(self) -> None:
        """Let cached queries over the target see the new rows (document row M1)."""
        session = self.merge.spark._jsparkSession
        session.sharedState().cacheManager().recacheByPlan(session, self.merge.node.target())

    def record_event(self, statistics: Mapping[str, int | str]) -> None:
        """Record the `delta.dml.merge.stats` event."""
        view = jvm_.jvm(self.merge.spark)
        self.transaction.recordDeltaEvent(
            self.log,
            "delta.dml.merge.stats",
            jvm_.scala_map(view, {}),
            jvm_.scala_map(view, statistics),
            jvm_.option(view, None),
        )


@contextmanager
def transaction_on(merge: ResolvedMerge) -> Iterator[Transaction]:
    """A transaction on the target at its newest version, active on this thread meanwhile.

    While it is active, Delta reads the target at the same version where the source reads it too
    (a self-merge), and registers those reads.
    """
    view = jvm_.jvm(merge.spark)
    log = merge.node.targetFileIndex().deltaLog()
    with translated(merge.table):
        transaction = log.startTransaction(merge.node.catalogTable(), jvm_.option(view, None))
    # New values of identity columns raise these columns' marks in the same commit.
    transaction.setTrackHighWaterMarks(merge.node.trackHighWaterMarks())
    begun = Transaction(merge, log, transaction)
    with begun.active(), begun.own_files.deleted_unless_committed():
        yield begun
