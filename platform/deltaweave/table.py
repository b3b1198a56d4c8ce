"""The front door: a Delta table by path or name, and what changed between two of its versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave._validation import check_choice, refuse_credentials
from deltaweave.delta.commit import (
    WantedTable,
    Write,
    WriteResult,
    alone_on_local_disk,
    check_partition_times,
    create_table,
    is_unwritten_and_differs,
    recreate_empty,
    retried_after_creation,
    rewritable_partitions,
    run_command,
    write_rows,
)
from deltaweave.delta.jvm import (
    check_is_classic,
    check_is_data_frame,
    check_is_path_or_name,
    own_session,
    refuse_lenient_reads,
    translated,
)
from deltaweave.delta.log import (
    KEY_INDEX_PROPERTY,
    FileLayout,
    KeyOverlap,
    TableLog,
    TableSnapshot,
    absolute_path,
    bounded_columns,
    key_overlaps,
    location_of_new_table,
    strict,
    version_at,
)
from deltaweave.delta.statement import name_parts
from deltaweave.engine.file_upkeep import (
    compute_missing_statistics,
    count_floating_bounds,
    rewrite_floating_bounds,
)
from deltaweave.engine.prune import wanted_index
from deltaweave.errors import (
    LOG_WITHOUT_VERSIONS,
    DeltaweaveError,
    NotADeltaTableError,
    SourceError,
    StatementError,
    TableNotFoundError,
)
from deltaweave.identifiers import is_path, quoted, string_token
from deltaweave.statements import MergeBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class Table:
    """A Delta table, by path or by catalog name.

    Each method looks at the table as it is when it is called. Methods that need the table raise a
    `NotADeltaTableError` or a `TableNotFoundError` where there is none; those that take a version
    raise a `TableNotFoundError` where the log does not hold it.

    Args:
        spark: A Delta-enabled session.
        path_or_name: A path if it contains a slash, otherwise a name, e.g. `"sales.orders"`, which
            means what it means in SQL: `"catalog.sales.orders"` is in that catalog. A relative path
            is below the session's directory. A name of the form ``delta.`/path` `` is a path too.

    Raises:
        StatementError: The path is a URI that holds credentials.
    """

    def __init__(self, spark: SparkSession, path_or_name: str) -> None:
        check_is_classic(spark)
        check_is_path_or_name(path_or_name)
        refuse_credentials(path_or_name)
        if is_path(path_or_name):
            path_or_name = absolute_path(spark, path_or_name)
        self.spark = spark
        self.path_or_name = path_or_name
        if is_path(path_or_name):
            self._parts = ["delta", path_or_name]
        else:
            self._parts = name_parts(spark, path_or_name)

    def __repr__(self) -> str:
        return f"Table({self.path_or_name!r})"

    def named_with(self, ending: str) -> Table:
        """Return the table whose path or name is this one's with an ending."""
        if self._is_path:
            return Table(self.spark, self._parts[1].rstrip("/") + ending)
        *catalog, name = self._parts
        return Table(self.spark, ".".join(map(quoted, [*catalog, name + ending])))

    def exists(self) -> bool:
        """Return whether there is a Delta table here now, whoever created or removed it."""
        try:
            with translated(self.path_or_name, operation="opening"):
                return self._log().exists
        except TableNotFoundError:
            return False
        except DeltaweaveError as error:
            if error.error_class == LOG_WITHOUT_VERSIONS:
                return False
            raise

    @retried_after_creation
    def create_if_missing(
        self,
        schema: StructType | str,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        cluster_by: Sequence[str] = (),
        *,
        for_a_write: bool = False,
        description: str | None = None,
    ) -> bool:
        """Create an empty table if there is none; an existing table stays as it is.

        If several callers do so at once, one of them creates it.

        Args:
            schema: Its columns, as a StructType or as DDL such as `"k INT, v STRING"`.
            partition_by: Its partition columns.
            properties: Its table properties.
            cluster_by: Its clustering columns (liquid clustering); not with partition columns.
            for_a_write: Whether it is created for a write that follows, with the columns of its
                rows. If that write fails, the empty table stays. As long as nothing was committed
                to it, the next caller with this option and other columns or partitions replaces it.
                A commit of another writer at that moment conflicts with it, whichever comes first.
                A clustered table is not replaced.
            description: What it holds, for people: its comment in SQL.

        Returns:
            Whether there was none; for callers at the same moment this may be true more than once.
        """
        wanted = WantedTable(
            schema, partition_by, properties or {}, cluster_by, for_a_write, description
        )
        if not self.exists():
            with translated(self.path_or_name, operation="creation", commits=True):
                path = self._parts[1] if self._is_path else None
                create_table(self.spark, wanted, path=path, parts=self._parts)
            return True
        existing = self.snapshot()
        if is_unwritten_and_differs(existing, wanted):
            with translated(self.path_or_name, operation="creation", commits=True):
                recreate_empty(existing, wanted)
        return False

    def location(self) -> str:
        """Return where the table's data is, e.g. `file:/lake/orders`."""
        return self._log().data_path

    def planned_location(self) -> str:
        """Return where the table's data is or would be, if it were created now; not escaped.

        Raises:
            StatementError: No table can be created there: it is in another catalog, say.
        """
        if self._is_path or self.exists():
            return self.location()
        with translated(self.path_or_name, operation="creation"):
            return str(location_of_new_table(self.spark, self._parts).toString())

    def version(self) -> int:
        """Return the table's newest version."""
        return self.snapshot().version

    def version_at(self, time: datetime) -> int | None:
        """Return the newest version that was committed at this time or before, or None.

        Args:
            time: The time, with its time zone.
        """
        self.snapshot()  # if there is no table, the error names it
        return version_at(self.spark, self._name, time)

    def setting(self, name: str) -> str | None:
        """Return a table property's value as text, or None if it is not set."""
        return self.snapshot().setting(name)

    def partition_columns(self) -> list[str]:
        """Return the names of the table's partition columns."""
        return self.snapshot().partition_columns

    def id(self) -> str:
        """Return Delta's id of the table; a new table in the same place has another id."""
        return self.snapshot().id

    def read(self, version: int | None = None) -> DataFrame:
        """Read the table's rows, at the newest version or at the one given.

        The query fails at files that it cannot read, also where a setting of the session
        (`spark.sql.files.ignoreCorruptFiles`, `ignoreMissingFiles`) makes Spark pass over them,
        unless the setting is turned on after this call: rows of the newest version are then read
        as the setting says.

        Args:
            version: The version to read; None for the newest.

        Returns:
            The table's columns, partition columns among them. No row is read before an action.
        """
        if version is not None:
            return self.snapshot(version).read()
        if self._is_path:
            self.snapshot()  # if there is no table, the error names it
            return strict(self.spark.read.format("delta").load(self._parts[1]))
        return strict(self.spark.table(self._name))

    def row_count(self) -> int:
        """Return the number of rows of the newest version, without those marked as deleted.

        It comes from the log's statistics; if a file has none, a Spark query counts all rows.
        """
        snapshot = self.snapshot()
        known = snapshot.num_records()
        return snapshot.read().count() if known is None else known

    def layout(self, small_file_bytes: int) -> FileLayout:
        """Return how the table's rows are spread over its files, by the log alone: one Spark job.

        Args:
            small_file_bytes: The size, in bytes, below which a file counts as small.
        """
        return self.snapshot().layout(small_file_bytes)

    def key_overlaps(self, columns: Sequence[str], version: int | None = None) -> list[KeyOverlap]:
        """Return in how many files a merge has to look for a key, by the log alone.

        It takes a Spark job or two over the file list, or none for a few files. The driver holds
        the list with its statistics, about a kilobyte for each file.

        Args:
            columns: Columns to look at, each on its own; without any, nothing is read.
            version: The version to look at; by default the newest.

        Raises:
            StatementError: There is no such column, or statistics do not bound its type.
        """
        if not columns:
            return []
        snapshot = self.snapshot(version)
        names = bounded_columns(snapshot.schema, columns, self.path_or_name)
        return key_overlaps(snapshot, snapshot.file_list(), names)

    def is_clustered(self) -> bool:
        """Return whether the table has clustering columns, by which OPTIMIZE arranges its rows."""
        return self.snapshot().is_clustered()

    def retention(self) -> timedelta:
        """Return how long the table keeps removed files before VACUUM deletes them."""
        return self.snapshot().retention()

    def files(self) -> DataFrame:
        """Return the data files of the newest version, one row each.

        The columns are the fields of the log's AddFile action (Delta protocol, "Add File and Remove
        File"): `path`, `partitionValues`, `size` in bytes, `modificationTime` in ms, `stats`, ….
        """
        return self.snapshot().files

    def history(self) -> DataFrame:
        """Return the table's commits, the newest first, with the columns of `DESCRIBE HISTORY`."""
        self.snapshot()  # if there is no table, the error names it
        with translated(self.path_or_name, operation="reading the history"):
            return self.spark.sql(f"DESCRIBE HISTORY {self._name}")

    def last_applied(self, application_id: str, version: int | None = None) -> int | None:
        """Return the newest version that was committed with this application id, or None.

        Args:
            application_id: The application id of a transaction id.
            version: The version of this table to look at; by default the newest.
        """
        return self.snapshot(version).last_applied(application_id)

    def touched_rows(self, after: int | None, until: int | None = None) -> TouchedRows:
        """Read the rows of only those files by which two versions differ.

        Args:
            after: The older version, or None for everything.
            until: The newer version, or None for the newest.

        Raises:
            TableNotFoundError: The log no longer holds one of the versions.
        """
        older = None if after is None else self.snapshot(after)
        return _touched_rows(older, self.snapshot(until))

    def changed_rows(self, after: int | None, until: int | None = None) -> ChangedRows:
        """Read exactly the rows by which two versions differ, from the change data feed.

        Args:
            after: The older version, or None for everything.
            until: The newer version, or None for the newest.

        Raises:
            SourceError: The table keeps no change data feed.
        """
        return _changed_rows(after, self.snapshot(until), table=self.path_or_name)

    def write(  # noqa: PLR0913 - the public options
        self,
        rows: DataFrame,
        mode: Literal["append", "overwrite"],
        *,
        replace_where: str | None = None,
        with_schema_evolution: bool = False,
        applied: Mapping[str, int] | None = None,
        once: bool = False,
        applied_before: int | None = None,
        recorded: Mapping[str, int] | None = None,
        computed_from: int | None = None,
        reads_all: bool = True,
        check: Callable[[], None] | None = None,
    ) -> WriteResult:
        """Write rows as they are into this existing table, in one commit.

        Args:
            rows: The rows, with this table's columns by name.
            mode: `append`, or `overwrite` to replace all rows or those of the predicate.
            replace_where: SQL predicate of the rows that are replaced; all new rows must satisfy
                it. Only with `overwrite`.
            with_schema_evolution: Whether new columns of the rows are added to this table.
            applied: Application ids and versions, put into the same commit. Without any, the id
                that the session sets for its writes counts, if it does: the rows are written once.
            once: Whether to do nothing if the table holds all of `applied` already.
            applied_before: With `once` and one id, as in `deltaweave.merge`.
            recorded: Further ids for the same commit, which do not matter to `once`.
            computed_from: The version of this table that the rows were computed from. The
                transaction reads all of that version, so a commit after it that adds or removes a
                file, or changes the schema, fails this write. None if the rows were not computed
                from this table.
            reads_all: With `computed_from`, whether the rows were computed from all of that
                version, or only from the rows that they replace. In the second case, only later
                commits that change rows of the predicate fail this write, as far as partition
                columns show.
            check: Called right before the commit. If it raises, nothing is committed.

        Returns:
            What was committed; an error after the commit is in its `warnings`.

        Raises:
            CommitConflictError: Another commit changed what this one read, or came after
                `computed_from`; nothing was committed. Compute the rows again.
            CommitStateUnknownError: The commit failed, and whether it landed is unknown.
            TableNotFoundError: The log does not hold the version `computed_from`.
            DeltaweaveError: Another subclass that says what happened; nothing was committed.
        """
        check_is_data_frame(rows, "rows", table=self.path_or_name, operation="writing")
        check_choice(
            "mode", mode, ("append", "overwrite"), table=self.path_or_name, operation="writing"
        )
        if applied_before is not None and not (once and applied):
            raise StatementError(
                "applied_before needs once and a pair in applied.", table=self.path_or_name
            )
        if replace_where is not None and mode != "overwrite":
            raise StatementError("replace_where needs the mode overwrite.", table=self.path_or_name)
        self.snapshot()  # if there is no table, the error names it
        write = Write(
            table=self.path_or_name,
            overwrite=mode == "overwrite",
            replace_where=replace_where,
            with_schema_evolution=with_schema_evolution,
            applied=applied or {},
            once=once,
            applied_before=applied_before,
            recorded=recorded or {},
            computed_from=computed_from,
            reads_all=reads_all,
            check=check,
        )
        return write_rows(self._log().log, rows, write)

    def compute_missing_statistics(self) -> int:
        """Compute the statistics of data files that have none; return how many files had none.

        Without statistics, no merge and no query can skip a file.

        Raises:
            CommitConflictError: One of the files left the table meanwhile; nothing was committed.
        """
        self.snapshot()  # if there is no table, the error names it
        with translated(self.path_or_name, operation="computing statistics"):
            return compute_missing_statistics(self.spark, self._log().log)

    def count_floating_bounds(self) -> int | None:
        """Count the data files by whose footers readers may miss rows with NaN.

        Merges of earlier releases wrote such files (docs/guarantees.md, "What files promise").
        Tasks read the footers of files that the engine wrote, if the table has floating columns.
        Return None if they cannot: executors lack pyarrow, or Arrow does not see the store.
        """
        table = self.snapshot()
        with translated(self.path_or_name, operation="reading footers"):
            return count_floating_bounds(table)

    def rewrite_floating_bounds(self) -> int | None:
        """Rewrite these data files; return how many there were. No row changes.

        Return None if tasks cannot read footers (see `count_floating_bounds`).

        Raises:
            CommitConflictError: One of the files left the table meanwhile. It stays as it is; files
                of earlier commits of this call are rewritten. Run it again.
        """
        table = self.snapshot()
        with translated(self.path_or_name, operation="rewriting files", commits=True):
            return rewrite_floating_bounds(table, self._log().log)

    def indexed_column(self) -> str | None:
        """Return the column of the table's key index (`index_keys`), or None."""
        return self.snapshot().metadata.indexed_column

    def index_keys(self, column: str | None = None) -> int:
        """Index a key column, so that merges read only files that may hold the source's keys.

        It pays off for keys without an order in the files, such as UUIDs; for others, statistics
        prune as well. The index is a small Delta table in the table's directory, of some 2.5 bytes
        for each row. Merges add the files that they write, which takes about half a second, and
        sometimes files of other writers. Files that are not in the index are read. To stop
        indexing, unset the table property `deltaweave.keyIndex`.

        Args:
            column: A column of whole numbers, strings (not CHAR or VARCHAR) or dates; by default
                the column that is indexed already.

        Returns:
            The number of files that were indexed now; files in the index are not indexed again.

        Raises:
            StatementError: There is no such column, or its type cannot be indexed.
        """
        column = column or self.indexed_column() or ""
        index = wanted_index(self.snapshot(), column, self.path_or_name)
        with translated(self.path_or_name, operation="indexing keys", commits=True):
            if index.table.metadata.indexed_column != index.column:
                name = string_token(index.column)
                with self._alone("indexing keys"):
                    self.spark.sql(
                        f"ALTER TABLE {self._name} "
                        f"SET TBLPROPERTIES ('{KEY_INDEX_PROPERTY}' = {name})"
                    )
            return replace(index, table=self.snapshot()).catch_up()

    def merge(
        self,
        source_df: DataFrame,
        on: str | Column,
        source_alias: str = "s",
        target_alias: str = "t",
        with_schema_evolution: bool = False,
        idempotency: tuple[str, int] | None = None,
    ) -> MergeBuilder:
        """Begin a merge of `source_df` into this table; add clauses, then `execute`.

        Args:
            source_df: The source rows.
            on: The match condition, e.g. `"t.k = s.k"`.
            source_alias: What conditions and values call the source.
            target_alias: What they call this table.
            with_schema_evolution: Whether new source columns are added to this table.
            idempotency: See `deltaweave.merge`.
        """
        check_is_data_frame(source_df, "source_df", table=self.path_or_name, operation="MERGE")
        return MergeBuilder(
            source_df,
            on,
            table=self.path_or_name,
            target_parts=self._parts,
            source_alias=source_alias,
            target_alias=target_alias,
            with_schema_evolution=with_schema_evolution,
            idempotency=idempotency,
        )

    def delete(self, condition: str) -> None:
        """Delete rows by Delta's own DELETE; conditions on partitions need only the log.

        Args:
            condition: SQL condition of the rows.

        Raises:
            SettingError: Spark passes over files that it cannot read.
        """
        refuse_lenient_reads(self.spark, self.path_or_name, "DELETE")
        metadata = self.snapshot().snapshot.metadata()
        check_partition_times(self.spark, metadata, table=self.path_or_name, operation="DELETE")
        with (
            translated(self.path_or_name, operation="DELETE", commits=True),
            self._alone("DELETE"),
            own_session(self.spark, filters_exactly=True) as own,
        ):
            run_command(self.spark, f"DELETE FROM {self._name} WHERE {condition}", own=own)

    def compact(self) -> None:
        """Compact small files by Delta's own OPTIMIZE.

        It may take long, so it does not hold the lock that commits to a local disk hold: let no
        other process write this table meanwhile, if it lies there. Partitions by TIMESTAMP in the
        second hour of one wall-clock time are left alone, unless the session's zone has no such
        hours: Delta would put their rows into the first.

        Raises:
            SettingError: Spark passes over files that it cannot read.
        """
        with translated(self.path_or_name, operation="OPTIMIZE", commits=True):
            where = rewritable_partitions(self.snapshot())
            self.spark.sql(f"OPTIMIZE {self._name}{where}")

    def _alone(self, operation: str) -> AbstractContextManager[None]:
        """Hold the lock of its directory, where that is on a disk."""
        return alone_on_local_disk(
            self.spark, self.location(), table=self.path_or_name, operation=operation
        )

    @property
    def _is_path(self) -> bool:
        return len(self._parts) == 2 and self._parts[0].lower() == "delta"

    @property
    def _name(self) -> str:
        return ".".join(map(quoted, self._parts))

    def _log(self) -> TableLog:
        return TableLog.of(self.spark, self._parts)

    def snapshot(self, version: int | None = None) -> TableSnapshot:
        """Read a version of the table, by default the newest, with its files and metadata."""
        log = self._log()
        newest = log.latest()
        if newest.version < 0:
            raise NotADeltaTableError.at(self.path_or_name)
        return newest if version is None else log.at_version(version, newest)


@dataclass(frozen=True)
class TouchedRows:
    """The rows of the data files by which two versions of a table differ.

    Sums over `added` minus sums over `removed` are the exact change of any additive aggregate
    between the two versions, whatever commits lie between.

    Attributes:
        added: Rows of the files that only `until` has.
        removed: Rows of the files that only `after` has; empty if `after` is None.
        after: The older version, or None for the state before the first.
        until: The newer version.
        added_files: How many files `added` reads.
        removed_files: How many files `removed` reads.
        table_id: Delta's id of the table; a new table in its place has another id.
    """

    added: DataFrame
    removed: DataFrame
    after: int | None
    until: int
    added_files: int
    removed_files: int
    table_id: str


@dataclass(frozen=True)
class ChangedRows:
    """Exactly the rows by which the commits between two versions of a table changed it.

    Attributes:
        rows: The table's columns, and those of Delta's change data feed: `_change_type` (`insert`,
            `delete`, `update_preimage`, `update_postimage`), `_commit_version` and
            `_commit_timestamp`. Where `after` is None, every row of `until` as an insert.
        after: The older version, or None for the state before the first.
        until: The newer version.
        table_id: Delta's id of the table; a new table in its place has another id.
    """

    rows: DataFrame
    after: int | None
    until: int
    table_id: str


def _touched_rows(older: TableSnapshot | None, newer: TableSnapshot) -> TouchedRows:
    """Read the rows of only those files by which two versions differ; see `Table.touched_rows`."""
    if older is None:
        all_rows = newer.read_whole()
        files = newer.num_files
        return TouchedRows(all_rows, all_rows.limit(0), None, newer.version, files, 0, newer.id)
    added, removed = newer.files_not_in(older), older.files_not_in(newer)
    return TouchedRows(
        added=newer.read_files(added),
        removed=older.read_files(removed),
        after=older.version,
        until=newer.version,
        added_files=len(added),
        removed_files=len(removed),
        table_id=newer.id,
    )


def _changed_rows(after: int | None, newer: TableSnapshot, *, table: str) -> ChangedRows:
    """Read the change data feed between two versions; see `Table.changed_rows`."""
    if not newer.metadata.keeps_change_feed:
        raise SourceError(
            "the table keeps no change data feed, so what changed cannot be read.",
            table=table,
            operation="READ",
            version=newer.version,
            hint="Set its property delta.enableChangeDataFeed to true, or read its touched rows.",
        )
    if after is None:
        rows = newer.read().select(
            "*",
            F.lit("insert").alias("_change_type"),
            F.lit(newer.version).cast("long").alias("_commit_version"),
            F.current_timestamp().alias("_commit_timestamp"),
        )
        return ChangedRows(rows, None, newer.version, newer.id)
    with translated(table, operation="READ", version=newer.version, otherwise=SourceError):
        # Delta refuses a range that begins after the newest version.
        rows = newer.read_change_feed(min(after + 1, newer.version))
        rows = rows if after < newer.version else rows.limit(0)
    return ChangedRows(rows, after, newer.version, newer.id)
