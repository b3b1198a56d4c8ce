"""The commits of a Delta table, read from its log without Spark, and the tables below a directory.

Only commits after a known version are read, one by one, so that a look at a table of a million
files costs a few small reads. `last_change` and `version_with_rows_of` use Spark instead: they find
the commits that changed rows, which upkeep does not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_deltaweave.storage import file_system, local_path, redacted, without_query
from deltaweave.delta.commit import made_unwritten
from deltaweave.delta.log import (
    Commit,
    FileChanges,
    commit_from,
    file_changes_from,
    newest_checkpoint,
)
from deltaweave.errors import CommitConflictError, SourceError
from deltaweave.identifiers import table_name

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import Row

    from deltaweave import Table


NUM_READERS = 16
"""How many files of a log are read at once."""

_MAPPED = "col-"
"""The prefix of the physical names of mapped columns; columns from before keep their name."""


@dataclass(frozen=True)
class Position:
    """A version of a table; its time distinguishes it from the same version of a replaced table.

    Attributes:
        timestamp: The time of the commit, in ms since 1970: as the commit says or, without a time
            in it, the modification time of its file.
    """

    version: int
    timestamp: int


@dataclass(frozen=True)
class LoggedCommit:
    """One commit of a table.

    Attributes:
        operation: Delta's name of the operation, e.g. `MERGE`; empty if the writer gave none.
        engine: The writer's own name; empty if the writer gave none.
        metrics: The operation's metrics, as the writer wrote them.
        changes_data: Whether rows were added or removed. A commit that only rearranges rows, such
            as OPTIMIZE, or that touches no file does not.
        partitions: Partition values, by column, of the files that added or removed rows. For a
            table with column mapping, columns have their physical names; see
            `LogReader.with_column_names`.
        table_id: Delta's id of the table, if the commit has the table's metadata; otherwise empty.
    """

    position: Position
    operation: str
    engine: str
    metrics: Mapping[str, str]
    user_metadata: str | None
    changes_data: bool
    partitions: frozenset[tuple[tuple[str, str | None], ...]]
    table_id: str = ""

    @property
    def version(self) -> int:
        """The version that the commit created."""
        return self.position.version


def commit_file(version: int) -> str:
    """Return the name of the log's file with the commit of a version."""
    return f"{version:020}.json"


class LogReader:
    """The log of the table at a location, a path or a URI.

    Its methods raise an OSError if the storage cannot be read, and a ValueError if a file is not a
    valid commit.
    """

    def __init__(self, location: str | Path) -> None:
        self._store, base = file_system(location)
        self._directory = f"{base}/_delta_log"

    def after(self, position: Position, limit: int | None = None) -> list[LoggedCommit] | None:
        """Return the commits after a position, oldest first.

        Returns:
            The commits; None if the log does not continue from there: the table was recreated, or
            the log retention removed the commits in between.
        """
        holds = self.holds(position)
        if holds is False:
            return None
        commits = list(islice(self._commits_from(position.version + 1), limit))
        # Delta never cleans up the newest commit, so a deleted commit has successors.
        return None if holds is None and not commits else commits

    def holds(self, position: Position) -> bool | None:
        """Return whether the log has the commit at a position; None without one of the version."""
        commit = self._as_written(position.version)
        if commit is None:
            return None
        # Earlier releases kept the time 0 for a commit without a time.
        return position in (commit.position, self._dated(commit))

    def all(self, limit: int | None = None) -> list[LoggedCommit]:
        """Return the commits that the log still holds, oldest first; none if there is no table."""
        versions = self._versions()
        return list(islice(self._commits_from(versions[0]), limit)) if versions else []

    def newest_first(self) -> Iterator[LoggedCommit]:
        """Yield the commits that the log still holds, newest first."""
        for version in reversed(self._versions()):
            commit = self.commit(version)
            if commit is not None:
                yield commit

    def commit(self, version: int) -> LoggedCommit | None:
        """Return the commit of a version; None if the log lacks the commit."""
        commit = self._as_written(version)
        return None if commit is None else replace(commit, position=self._dated(commit))

    def _as_written(self, version: int) -> LoggedCommit | None:
        """Return the commit of a version, with the time 0 if its writer gave none."""
        name = commit_file(version)
        text = self.read_file(name)
        if text is None:
            return None
        try:
            return _commit(version, text)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name} holds no commit ({type(error).__name__}: {error})") from None

    def with_column_names(self, commits: list[LoggedCommit]) -> list[LoggedCommit]:
        """Replace physical names of partition columns in the commits by the columns' names.

        The names are in the log's newest schema. It is read only if Delta generated a physical
        name: a column from before column mapping has its original name as its physical one.
        """
        mapped = any(
            name.startswith(_MAPPED)
            for commit in commits
            for values in commit.partitions
            for name, _ in values
        )
        names = self._column_names() if mapped else {}
        return [_renamed(each, names) for each in commits] if names else commits

    def _column_names(self) -> dict[str, str]:
        """Map physical names of columns to their names, by the newest schema in the log."""
        metadata = self.metadata()
        fields = json.loads(metadata["schemaString"])["fields"] if metadata else ()
        physical = "delta.columnMapping.physicalName"
        return {field["metadata"].get(physical, field["name"]): field["name"] for field in fields}

    def metadata(self) -> Mapping[str, Any] | None:
        """Return the newest `metaData` action: in the commits since the checkpoint, else in it.

        From a checkpoint, these are its id, schema and description. None if there is no table.
        """
        checkpoint, names = newest_checkpoint(self._file_names())
        since = [each for each in self._versions() if each > checkpoint]
        with ThreadPoolExecutor(NUM_READERS) as readers:
            texts = readers.map(self.read_file, map(commit_file, reversed(since)))
            found = [_metadata_in_commit(text) for text in texts if text is not None]
        found += [self._metadata_in(name) for name in names]
        return next((each for each in found if each is not None), None)

    def _metadata_in(self, checkpoint: str) -> Mapping[str, Any] | None:
        if checkpoint.endswith(".json"):
            text = self.read_file(checkpoint)
            return None if text is None else _metadata_in_commit(text)
        import pyarrow as pa

        with self._store.open_input_file(f"{self._directory}/{checkpoint}") as file:
            try:
                return _metadata_of_checkpoint(file)
            except OSError:  # of the storage, or Arrow's for damaged pages
                file.seek(0)
                whole = pa.BufferReader(file.read())
        try:
            return _metadata_of_checkpoint(whole)
        except OSError as error:
            raise ValueError(f"{checkpoint} is damaged ({error})") from None

    def _file_names(self) -> list[str]:
        from pyarrow.fs import FileSelector

        infos = self._store.get_file_info(FileSelector(self._directory, allow_not_found=True))
        return [info.base_name for info in infos]

    def _commits_from(self, version: int) -> Iterator[LoggedCommit]:
        """Yield the commits from a version on; several are read at a time."""
        with ThreadPoolExecutor(NUM_READERS) as readers:
            # The first one is read alone, because usually there is none.
            commits = [self.commit(version)]
            while True:
                for commit in commits:
                    if commit is None:
                        return
                    yield commit
                    version += 1
                commits = list(readers.map(self.commit, range(version, version + NUM_READERS)))

    def _dated(self, commit: LoggedCommit) -> Position:
        """Return the position of a commit; if the commit has no time, its file's time is used."""
        if commit.position.timestamp:
            return commit.position
        path = f"{self._directory}/{commit_file(commit.version)}"
        [info] = self._store.get_file_info([path])
        return Position(commit.version, (info.mtime_ns or 0) // 1_000_000)

    def _versions(self) -> list[int]:
        """Return the versions whose commits exist, in order and without a gap up to the newest."""
        names = (name.split(".") for name in self._file_names())
        # Not the compacted ones, `<from>.<to>.compacted.json`, nor a checkpoint's.
        versions = sorted(
            int(name[0])
            for name in names
            if name[1:] == ["json"] and name[0].isdigit() and len(name[0]) == 20
        )
        first = next(
            (i for i in range(len(versions) - 1, 0, -1) if versions[i - 1] != versions[i] - 1), 0
        )
        return versions[first:]

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file of the log; None if the log lacks the file."""
        try:
            with self._store.open_input_stream(f"{self._directory}/{name}") as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None


def _renamed(commit: LoggedCommit, names: Mapping[str, str]) -> LoggedCommit:
    renamed = (
        tuple(sorted((names.get(name, name), value) for name, value in values))
        for values in commit.partitions
    )
    return replace(commit, partitions=frozenset(renamed))


def _metadata_of_checkpoint(file: Any) -> Mapping[str, Any] | None:
    from pyarrow import parquet

    actions = parquet.ParquetFile(file)
    if "metaData" not in actions.schema_arrow.names:
        return None
    names = [f"metaData.{each}" for each in ("id", "schemaString", "description")]
    column = actions.read(columns=names)["metaData"]
    return next((each for each in column.drop_null().to_pylist()), None)


def _metadata_in_commit(text: bytes) -> Mapping[str, Any] | None:
    """Return the `metaData` action among the actions of a commit or checkpoint."""
    for line in text.split(b"\n"):
        if b'"metaData"' in line:
            action: Mapping[str, Any] = json.loads(line)
            if "metaData" in action:
                found: Mapping[str, Any] = action["metaData"]
                return found
    return None


def _commit(version: int, text: bytes) -> LoggedCommit:
    info: dict[str, Any] = {}
    table_id = ""
    partitions = set()
    changes_data = False
    # Split only at this byte: other characters that Python treats as line ends are data.
    for line in text.split(b"\n"):
        if not line.strip():
            continue
        action = json.loads(line)
        info = action.get("commitInfo") or info
        table_id = (action.get("metaData") or {}).get("id") or table_id
        file = action.get("add") or action.get("remove")
        if file and file["dataChange"]:
            changes_data = True
            # The protocol lets a remove omit its partition, but current writers include it.
            partitions.add(tuple(sorted((file.get("partitionValues") or {}).items())))
    timestamp = info.get("inCommitTimestamp") or info.get("timestamp") or 0
    return LoggedCommit(
        position=Position(version, int(timestamp)),
        operation=info.get("operation") or "",
        engine=info.get("engineInfo") or "",
        metrics=info.get("operationMetrics") or {},
        user_metadata=info.get("userMetadata"),
        changes_data=changes_data,
        partitions=frozenset(partitions - {()}),
        table_id=table_id,
    )


_LOG = "_delta_log"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundTable:
    """A table, as its log describes it.

    Attributes:
        path: The names of the directories from the root to it.
        location: The table's path or URI.
        schema: The table's newest schema, as the JSON of Delta's log.
        description: The table's comment in SQL, or None.
    """

    path: tuple[str, ...]
    location: str
    schema: str
    description: str | None


def find_tables(
    root: str, levels: int, is_excluded: Callable[[tuple[str, ...]], bool]
) -> list[FoundTable]:
    """Find the tables below a root, in the order of their paths.

    Directories inside of a table are not looked at, nor are those whose name begins with `.` or
    `_`. A table whose log cannot be understood is left out, with a warning in the log.

    Raises:
        SourceError: The root does not exist, or the storage or a log cannot be read, also because
            it was removed meanwhile. A part of the tables is never taken for all of them.
        StatementError: The root is a URI that holds credentials.
    """
    store, base = file_system(root)
    local = local_path(root)
    start = without_query(root) if local is None else str(local.absolute())
    query = "" if local is not None or "?" not in root else f"?{root.partition('?')[2]}"
    try:
        return [
            table
            for directory, path in _logs_below(store, base, start, (), levels, is_excluded)
            if (table := _found_table(directory, path, query)) is not None
        ]
    except OSError as error:
        raise SourceError(
            f"it cannot be listed: {redacted(error)}",
            table=without_query(root),
            operation="looking for tables",
            state="What was found before stays.",
            hint="Check the root, and that the storage can be read from here.",
        ) from None


def _logs_below(
    store: FileSystem,
    directory: str,
    location: str,
    path: tuple[str, ...],
    levels: int,
    is_excluded: Callable[[tuple[str, ...]], bool],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the locations and paths of directories with a log."""
    from pyarrow.fs import FileSelector, FileType

    infos = store.get_file_info(FileSelector(directory))
    names = sorted(info.base_name for info in infos if info.type == FileType.Directory)
    if _LOG in names:
        yield location, path
    elif len(path) < levels:
        for name in names:
            inner = (*path, name)
            if not name.startswith((".", "_")) and not is_excluded(inner):
                below = f"{location.rstrip('/')}/{name}"
                yield from _logs_below(
                    store, f"{directory}/{name}", below, inner, levels, is_excluded
                )


def _found_table(location: str, path: tuple[str, ...], query: str) -> FoundTable | None:
    if not path:
        _logger.warning("%s is a table itself: look in the directory above it.", location)
        return None
    try:
        metadata = LogReader(location + query).metadata() or {}
        schema, description = metadata.get("schemaString"), metadata.get("description")
    except OSError:
        raise
    except Exception as error:  # Arrow and logs of other writers raise many kinds
        _logger.warning("The log of %s is left out: %s", location, redacted(error))
        return None
    if not isinstance(schema, str):
        return None  # a log without a commit is not a table
    return FoundTable(path, location, schema, description or None)


class LogAt:
    """The log of the table at a path or URI, as `commit_lines` reads it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._log = LogReader(location)

    def commit(self, version: int) -> Commit | None:
        """Return the commit of a version, or None."""
        # The actions of files are many, and are not parsed.
        actions = self._actions(version, (b'"commitInfo"', b'"txn"'))
        return None if actions is None else commit_from(version, actions)

    def files(self, version: int) -> FileChanges | None:
        """Return the files that a commit changed, or None."""
        actions = self._actions(version, (b'"add"', b'"remove"'))
        return None if actions is None else file_changes_from(actions)

    def _actions(self, version: int, kinds: tuple[bytes, bytes]) -> list[dict[str, Any]] | None:
        """Return the actions of two kinds in a commit; None if the log lacks the commit."""
        text = self._log.read_file(commit_file(version))
        if text is None:
            return None
        return [
            json.loads(line) for line in text.split(b"\n") if any(kind in line for kind in kinds)
        ]


SAME_ROWS = frozenset(
    {
        "ADD CONSTRAINT",
        "CLUSTER BY",
        "COMPUTE STATS",
        "DOMAIN METADATA CLEANUP",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "OPTIMIZE",
        "REORG",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "VACUUM END",
        "VACUUM START",
    }
)
"""Operations in Delta's history that leave the table's rows as they were."""

_CREATED_EMPTY = "CREATE TABLE"
_CHANGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
COMMITS_AT_FIRST = 100
"""How many commits are read at first; each is a file of the log."""


@dataclass(frozen=True)
class LastChange:
    """The last commit that changed a table's rows, as far as its log shows.

    Attributes:
        version: The version that the commit created.
        committed_at: The time of the commit, in UTC.
        is_in_log: Whether the log still holds the commit. If all commits in the log left the rows
            as they were, this is the oldest of them, and the change is at least that old.
        newest: The newest version that was read: it has the rows of `version`.
    """

    version: int
    committed_at: datetime
    is_in_log: bool
    newest: int


def last_change(table: Table) -> LastChange:
    """Return the newest commit of a table that may have changed its rows.

    Raises:
        DeltaweaveError: There is no table.
    """
    table.version()  # raises an error with the table's name if there is none
    for commits, is_all in _growing_pages(table):
        for commit in commits:
            if not _left_rows(commit):
                return _change(commit, commits, is_in_log=True)
        if is_all:
            return _change(commits[-1], commits, is_in_log=False)
    raise AssertionError("the last commits are all of them")


def version_with_rows_of(table: Table, time_ms: int, known: Set[int] = frozenset()) -> int:
    """Return the newest version with the rows that the table had at a time.

    It is later than the version of that time if the commits since then left the rows as they were.
    If the newest version is not later than the time, this needs no Spark job. A commit counts as
    later if the storage may have rounded its time down to the second.

    `time_ms` is the time, in ms since 1970. `known` is versions whose commits count as if they had
    left the rows as they were, because the caller made them.

    Raises:
        CommitConflictError: There was no table then, and the commit that created it added rows.
        DeltaweaveError: There is no table.
    """
    newest = table.snapshot()
    if _latest(newest.committed_at_ms) <= time_ms:
        return newest.version
    commits: list[Row] = []
    for commits, _ in _growing_pages(table):
        if _latest(commits[-1].ms) <= time_ms:
            break
    since = [each for each in commits if _latest(each.ms) > time_ms]
    seen: int = since[-1].version - 1 if since else newest.version
    for commit in reversed(since):
        is_known = commit.version in known
        if seen == -1 and commit.operation != _CREATED_EMPTY and not is_known:
            raise _created_meanwhile(table, commit)
        if seen != -1 and not (is_known or _left_rows(commit)):
            break
        seen = commit.version
    return seen


def _latest(ms: int) -> int:
    """Return the latest possible time of a commit: object stores keep only whole seconds."""
    return ms + 999 if ms % 1000 == 0 else ms


def _created_meanwhile(table: Table, commit: Row) -> CommitConflictError:
    return CommitConflictError(
        f"another writer created the table with rows in the meantime, by {commit.operation}.",
        table=table.path_or_name,
        operation="writing",
        version=commit.version,
        hint="Run it again: it will see these rows.",
    )


class _NewestCommits(NamedTuple):
    """The newest commits of a history, and whether it has no others."""

    commits: list[Row]
    is_all: bool


def _growing_pages(table: Table) -> Iterator[_NewestCommits]:
    """Yield the newest commits, ten times as many in each step."""
    limit = COMMITS_AT_FIRST
    while True:
        commits = _newest_commits(table, limit)
        page = _NewestCommits(commits, is_all=len(commits) < limit)
        yield page
        if page.is_all:
            return
        limit *= 10  # each step reads again at most a tenth of its commits


def _newest_commits(table: Table, limit: int) -> list[Row]:
    history = table.spark.sql(f"DESCRIBE HISTORY {table_name(table.path_or_name)} LIMIT {limit}")
    # In ms, because Spark returns timestamps in local time, where one hour a year is ambiguous.
    moment = "unix_millis(timestamp) AS ms"
    properties = "operationParameters['properties'] AS properties"
    columns = ("version", moment, "operation", "operationMetrics", properties)
    return history.selectExpr(*columns).collect()


def _change(commit: Row, commits: list[Row], *, is_in_log: bool) -> LastChange:
    committed_at = datetime.fromtimestamp(commit.ms / 1000, timezone.utc)
    return LastChange(commit.version, committed_at, is_in_log, commits[0].version)


def _left_rows(commit: Row) -> bool:
    """Return whether a commit left the rows as they were, e.g. with a transaction id alone."""
    if commit.operation == "MERGE":
        metrics: Mapping[str, str] = commit.operationMetrics or {}
        return all(metrics.get(name) == "0" for name in _CHANGED)
    return commit.operation in SAME_ROWS or made_unwritten(
        commit.version, commit.operation, commit.properties
    )
