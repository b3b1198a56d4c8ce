"""What differs between the tested releases of Spark and Delta: a function for each difference.

Each function calls what the session's release has; its docstring names the release that changed it.
`deltaweave._session` lists the pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltaweave.delta.jvm import (
    DeltaLog,
    DeltaMetadata,
    DeltaSnapshot,
    DeltaTransaction,
    Expression,
    JavaObject,
    Jvm,
    has_local_master,
    is_on,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_WRITES_TIMES_IN_UTC = "spark.databricks.delta.write.utcTimestampPartitionValues"
_STRING_PREFIX_LENGTH = "spark.databricks.io.skipping.stringPrefixLength"
_DEFAULT_STRING_PREFIX_LENGTH = "32"


def arrow_type(spark: SparkSession, data_type: DataType) -> pyarrow.DataType:
    """Return the Arrow type in which PySpark keeps values of a type; timestamps are in UTC.

    Since Spark 4.2, PySpark takes the zone of timestamps. Earlier releases took UTC.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    in_utc: dict[str, Any] = {"timezone": "UTC"} if Jvm.of(spark).spark_line >= (4, 2) else {}
    return to_arrow_type(data_type, **in_utc)


def update_action(
    spark: SparkSession, condition: Expression, assignments: JavaObject
) -> JavaObject:
    """Build an UPDATE clause before analysis, from a Scala Option and a Scala Seq.

    Since Spark 4.1, the clause records whether it was a star.
    """
    plans = Jvm.of(spark).catalyst.plans.logical
    of_a_star = (False,) if Jvm.of(spark).spark_line >= (4, 1) else ()
    return plans.UpdateAction(condition, assignments, *of_a_star)


def log_replay(spark: SparkSession) -> JavaObject:
    """Build an empty replay of the log in memory that keeps application ids of any age.

    Until Delta 4.0, a replay always asked which removals to keep.
    """
    jvm = Jvm.of(spark)
    any_age = jvm.option(None)
    kept_since = any_age if jvm.delta_line >= (4, 1) else 0
    return jvm.delta.actions.InMemoryLogReplay(kept_since, any_age)


def snapshot_at(spark: SparkSession, log: DeltaLog, version: int) -> JavaObject:
    """Read the snapshot at a version that the log has.

    Since Delta 4.1, a catalog may be asked for it too.
    """
    none = Jvm.of(spark).option(None)
    enforces_time_travel = (True,) if Jvm.of(spark).delta_line >= (4, 1) else ()
    return log.getSnapshotAt(version, none, none, *enforces_time_travel)


def reads_cached_rows(node: JavaObject, rows: DataFrame) -> bool:
    """Return whether Spark would read a part of the rows from its cache.

    Since Delta 4.1, Delta's node answers that.

    Args:
        node: Delta's resolved MERGE node.
    """
    if Jvm.of(rows.sparkSession).delta_line >= (4, 1):
        return bool(node.planContainsCachedRelation(rows._jdf))
    leaves = rows._jdf.queryExecution().withCachedData().collectLeaves()
    return any(
        leaf.getClass().getSimpleName() == "InMemoryRelation" for leaf in Jvm.iterate(leaves)
    )


def write_operation(spark: SparkSession, mode: JavaObject, predicate: Expression) -> JavaObject:
    """Build the operation of an append or overwrite; the predicate is a Scala Option of text.

    Newer releases of Delta record more of it in the history.
    """
    jvm = Jvm.of(spark)
    delta = jvm.delta_line
    number = 1 if delta < (4, 1) else 4 if delta < (4, 3) else 6
    none = jvm.option(None)
    operations = jvm.delta.DeltaOperations
    return operations.Write(mode, none, predicate, *[none] * number)


def replace_operation(spark: SparkSession, metadata: DeltaMetadata) -> JavaObject:
    """Build the operation that replaces a table by an empty one with other metadata.

    Since Delta 4.1, the history records more of it.
    """
    jvm = Jvm.of(spark)
    number = 2 if jvm.delta_line < (4, 1) else 7
    nothing = [jvm.option(None)] * number
    operations = jvm.delta.DeltaOperations
    return operations.ReplaceTable(metadata, False, False, False, *nothing)


def write_command(spark: SparkSession, *arguments: JavaObject) -> JavaObject:
    """Build Delta's write command: log, mode, options, partition columns, configuration, rows.

    Since Delta 4.3, the command records whether saveAsTable began it.
    """
    commands = Jvm.of(spark).delta.commands
    by_save_as_table = (False,) if Jvm.of(spark).delta_line >= (4, 3) else ()
    return commands.WriteIntoDelta(*arguments, *by_save_as_table)


def tracked_metadata(spark: SparkSession, owner: str, name: str) -> JavaObject:
    """Build the Metadata by which Delta's writer accepts a column of row ids or versions.

    Since Delta 4.1, such a column may have a field id for Iceberg. Tables that want one are refused
    (`log.features`).

    Args:
        owner: Delta's object of the kind: `RowId` or `RowCommitVersion`.
    """
    found = Jvm.singleton(Jvm.of(spark).delta, owner)
    has_field_id = (False,) if Jvm.of(spark).delta_line >= (4, 1) else ()
    return found.columnMetadata(name, *has_field_id)


def string_prefix_length(spark: SparkSession, metadata: DeltaMetadata) -> int:
    """Return how many characters of a text the statistics of new files keep.

    Since Delta 4.1, the table's metadata may set it. Earlier releases took the session's setting.
    """
    if Jvm.of(spark).delta_line < (4, 1):
        default = _DEFAULT_STRING_PREFIX_LENGTH
        return int(spark.conf.get(_STRING_PREFIX_LENGTH, default) or default)
    statistics = Jvm.of(spark).delta.stats
    utils = Jvm.singleton(statistics, "StatsCollectionUtils")
    return int(utils.getDataSkippingStringPrefixLength(spark._jsparkSession, metadata))


def actions_of_vectors(
    spark: SparkSession, marked: JavaObject, snapshot: DeltaSnapshot, string_prefix_length: int
) -> JavaObject:
    """Build the actions that put deletion vectors in place, a Scala Seq, and a Map of counts.

    Since Delta 4.1, that takes the number of characters that statistics keep.

    Args:
        marked: A Scala Seq of Delta's files with their new vectors.
        string_prefix_length: How many characters of a text statistics keep.
    """
    commands = Jvm.of(spark).delta.commands
    helper = Jvm.singleton(commands, "DMLWithDeletionVectorsHelper")
    kept = (string_prefix_length,) if Jvm.of(spark).delta_line >= (4, 1) else ()
    return helper.processUnmodifiedData(spark._jsparkSession, marked, snapshot, *kept)


def check_type_widening(
    spark: SparkSession, before: JavaObject, transaction: DeltaTransaction
) -> None:
    """Raise Delta's conflict if type widening was switched on or off meanwhile.

    Since Delta 4.4, the error names the table.

    Args:
        before: What has protocol and metadata as they were when the statement was resolved.
        transaction: Delta's transaction, which has both as they are now.
    """
    delta = Jvm.of(spark).delta
    Jvm.singleton(delta, "TypeWidening").ensureFeatureConsistentlyEnabled(
        before.protocol(),
        before.metadata(),
        transaction.protocol(),
        transaction.metadata(),
        *_table_name(spark, transaction),
    )


def metadata_changed(spark: SparkSession, transaction: DeltaTransaction) -> JavaObject:
    """Build Delta's exception for a table whose metadata another commit has changed.

    Since Delta 4.4, the error names the table.
    """
    jvm = Jvm.of(spark)
    arguments = (*_table_name(spark, transaction), jvm.option(None))
    return jvm.delta_error("metadataChangedException", *arguments)


def _table_name(spark: SparkSession, transaction: DeltaTransaction) -> tuple[str, ...]:
    return (transaction.tableNameOrPath(),) if Jvm.of(spark).delta_line >= (4, 4) else ()


def files_may_hold_partition_columns(spark: SparkSession) -> bool:
    """Return whether a table has the property `delta.writePartitionColumnsToParquet`.

    Since Delta 4.4, data files hold partition columns too, unless the property is off.
    """
    return Jvm.of(spark).delta_line >= (4, 4)


def partition_times_are_kept(spark: SparkSession) -> bool:
    """Return whether times become partition values as they are, in the session's zone.

    Spark names a directory by the session's zone. Delta 4.0 takes the name for a time of the JVM's
    zone, and so do 4.1 to 4.3 if partition values are not written in UTC. Up to 4.1, a write cannot
    name its files either, by which those of the second of two hours with one name are found.

    Of two hours with one name, the second may be refused. The zone of executors on other machines
    is not known: there, they are taken not to be kept.
    """
    release = Jvm.of(spark).delta_line
    if release >= (4, 4):
        return True
    finds_files = release >= (4, 2)
    if finds_files and is_on(spark, _WRITES_TIMES_IN_UTC, otherwise=True):
        return True
    if not has_local_master(spark):
        return False
    rules = Jvm.of(spark).zone_rules(spark._jsparkSession)
    of_jvm = Jvm.of(spark).java.time.ZoneId.systemDefault().getRules()
    return bool(rules.equals(of_jvm) and (finds_files or rules.isFixedOffset()))
