"""Creates empty tables, and replaces those whose first write failed.

If the write for which a table was created fails, the empty table stays, with the columns of the
failed rows. Removing it is not safe, because another writer may have found it. Instead, a
transaction replaces its schema. It reads the version to which nothing was committed, so Delta's
conflict check sees other commits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import uuid4

from pyspark.sql.types import StructType
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from deltaweave.delta.commit.table_lock import TableLock, alone_on_local_disk, local_directory
from deltaweave.delta.jvm import JavaObject, Jvm
from deltaweave.delta.log import TableLog, TableSnapshot, location_of_new_table
from deltaweave.delta.releases import replace_operation
from deltaweave.errors import (
    LOG_WITHOUT_VERSIONS,
    NOTHING_WRITTEN,
    AccessDeniedError,
    CommitConflictError,
    DeltaweaveError,
    NotADeltaTableError,
    StatementError,
)
from deltaweave.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UNWRITTEN = "deltaweave.unwrittenAtVersion"

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


def retried_after_creation(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Repeat a function while another caller creates the same table.

    A location that holds other files looks the same, so give up within two seconds.
    """
    return retry(
        retry=retry_if_exception(_met_another_creator),
        stop=stop_after_attempt(5),
        wait=wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )(function)


def _met_another_creator(error: BaseException) -> bool:
    """Return whether Delta met the log of another creator, empty or with its first commit."""
    return isinstance(error, (CommitConflictError, NotADeltaTableError)) or (
        isinstance(error, DeltaweaveError)
        and error.error_class
        in ("DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION", LOG_WITHOUT_VERSIONS)
    )


@dataclass(frozen=True)
class WantedTable:
    """The table that a caller wants.

    Attributes:
        columns: Its columns, as a StructType or as DDL.
        cluster_by: Its clustering columns.
        for_a_write: Whether it is created for a write that follows.
        description: What it holds, for people; None for nothing.
    """

    columns: StructType | str
    partition_by: Sequence[str]
    properties: Mapping[str, str]
    cluster_by: Sequence[str]
    for_a_write: bool
    description: str | None = None

    @cached_property
    def schema(self) -> StructType:
        """The columns of the wanted table."""
        if isinstance(self.columns, StructType):
            return self.columns
        schema = StructType.fromDDL(self.columns)
        assert isinstance(schema, StructType)  # it is annotated with the wider DataType
        return schema

    def properties_at(self, version: int) -> dict[str, str]:
        """Return the properties of the new table; one marks that nothing was committed since."""
        flags = {_UNWRITTEN: str(version)} if self.for_a_write else {}
        return {**self.properties, **flags}


def create_table(
    spark: SparkSession, wanted: WantedTable, *, path: str | None, parts: Sequence[str]
) -> None:
    """Create a table unless there is one.

    Args:
        path: Its path; None for a table of the catalog.
        parts: The parts of its name in SQL.

    Raises:
        StatementError: The name means another catalog than Spark's own, or SQL cannot hold it.
    """
    from delta.tables import DeltaTable

    for part in parts:
        quoted(part)  # which refuses what SQL cannot name afterwards
    location_path = _new_location(spark, path, parts)
    # Delta's builder takes no name of a catalog: `_new_location` has checked that it is Spark's.
    name = ".".join(map(quoted, parts[-2:]))
    created = DeltaTable.createIfNotExists(spark).addColumns(wanted.schema)
    created = created.tableName(name) if path is None else created.location(path)
    if wanted.partition_by:
        created = created.partitionedBy(*wanted.partition_by)
    if wanted.cluster_by:
        created = created.clusterBy(*wanted.cluster_by)
    if wanted.description:
        created = created.comment(wanted.description)
    for key, value in wanted.properties_at(0).items():
        created = created.property(key, value)
    with _alone_in(spark, location_path, path or ".".join(parts)):
        created.execute()


def create_from(rows: DataFrame, path: str) -> bool:
    """Create a table from rows; return False if there is one by now.

    Other files may be there, of a creation that was killed. Where there is no lock, another
    creator's commit conflicts with this one, or the rows are appended to its table.
    """
    spark = rows.sparkSession
    # A transaction id of its own keeps the session's from the write, and skips none.
    transaction_id = {"txnAppId": f"deltaweave-{uuid4()}", "txnVersion": "0"}
    with _alone_in(spark, _new_location(spark, path, ()), path):
        if TableLog.of(spark, ["delta", path]).exists:
            return False
        rows.write.format("delta").mode("append").options(**transaction_id).save(path)
    return True


def _new_location(spark: SparkSession, path: str | None, parts: Sequence[str]) -> JavaObject:
    """Return the directory in which Spark creates the table, as Hadoop's Path."""
    if path is None:
        return location_of_new_table(spark, parts)
    return Jvm.of(spark).org.apache.hadoop.fs.Path(path)


@contextmanager
def _alone_in(spark: SparkSession, location_path: JavaObject, table: str) -> Iterator[None]:
    """Hold the lock of a directory, which is made for it, and removed if the block fails."""
    files = location_path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    location = str(files.makeQualified(location_path).toString())
    directory = local_directory(location)
    if directory is not None:
        _refuse_unwritable(directory, table)
    ours = [] if directory is None else [directory, *directory.parents]
    ours = [each for each in ours if not os.path.exists(each)]
    try:
        with TableLock(spark, location, table=table, operation="creation") as lock:
            lock.take_for_creation(lambda: _make(files, location_path, table))
            yield
    except Exception:
        for each in ours:
            with suppress(OSError):  # another writer has put something there
                each.rmdir()
        raise


def _make(files: JavaObject, location_path: JavaObject, table: str) -> None:
    """Make a directory as Hadoop does, with the permissions that Delta's own directories have.

    Raises:
        AccessDeniedError: The file system refuses, as /proc does, whose directories seem writable.
    """
    if not files.mkdirs(location_path):
        raise AccessDeniedError(
            f"the directory {location_path.toString()} cannot be made: its file system refuses it.",
            table=table,
            operation="creation",
            state=NOTHING_WRITTEN,
            hint="Name a place on a disk that is mounted for writing, and that has room.",
        )


def _refuse_unwritable(directory: Path, table: str) -> None:
    """Refuse a place on a disk where this user can make no table, before anything is made there.

    Raises:
        AccessDeniedError: A directory on the way may not be written.
        StatementError: The path, or one above it, is a file.
    """
    existing = next(each for each in (directory, *directory.parents) if os.path.exists(each))
    about: dict[str, Any] = {"table": table, "operation": "creation"}
    about["state"] = NOTHING_WRITTEN
    if not existing.is_dir():
        raise StatementError(
            f"{existing} is a file, and not a directory.", hint="Name another place.", **about
        )
    if not os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        raise AccessDeniedError(
            f"the directory {existing} may not be written by the user who runs Spark "
            f"(uid {os.geteuid()}).",
            hint="Give that user the right to write there, or name another place.",
            **about,
        )


def is_unwritten(table: TableSnapshot) -> bool:
    """Return whether the table was created for a write, and nothing was committed since."""
    return table.setting(_UNWRITTEN) == str(table.version)


def made_unwritten(version: int, operation: str, properties: str | None) -> bool:
    """Return whether a commit replaced an empty table for a write, so that no rows changed.

    Args:
        properties: The table properties among the operation's parameters, as JSON.
    """
    is_replaced = operation == "REPLACE TABLE" and properties is not None
    return is_replaced and json.loads(properties or "{}").get(_UNWRITTEN) == str(version)


def is_unwritten_and_differs(table: TableSnapshot, wanted: WantedTable) -> bool:
    """Return whether the table was created for a write, is unwritten, and differs from the wanted.

    Never if either has clustering columns: such a table stays as it is.
    """
    if not wanted.for_a_write or not is_unwritten(table):
        return False
    if wanted.cluster_by or table.is_clustered():
        return False
    existing = [(field.name, field.dataType, field.nullable) for field in table.schema]
    columns = [(field.name, field.dataType, field.nullable) for field in wanted.schema]
    return existing != columns or table.partition_columns != list(wanted.partition_by)


def recreate_empty(table: TableSnapshot, wanted: WantedTable) -> None:
    """Give a version of a table, to which nothing was committed, the wanted columns.

    Raises:
        Py4JJavaError: Another writer committed to it meanwhile, and Delta reports a conflict.
    """
    jvm = Jvm.of(table.spark)
    delta = jvm.delta
    none = jvm.option(None)
    transaction = table.log.startTransaction(none, jvm.option(table.snapshot))
    transaction.readWholeTable()
    before = transaction.metadata()
    metadata = delta.actions.Metadata(
        before.id(),
        before.name(),
        before.description(),
        before.format(),
        wanted.schema.json(),
        jvm.seq(list(wanted.partition_by)),
        jvm.scala_map(wanted.properties_at(table.version + 1)),
        before.createdTime(),
    )
    transaction.updateMetadataForNewTableInReplace(metadata)
    operation = replace_operation(table.spark, metadata)
    name = str(before.name() or table.data_path)
    with alone_on_local_disk(table.spark, table.data_path, table=name, operation="replacement"):
        transaction.commit(jvm.seq([]), operation, jvm.scala_map({}))
