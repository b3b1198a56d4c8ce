"""Tables that this driver follows: files and application ids of a version, brought up to date.

Delta finds out both in jobs over the whole log, for each new version, unless its checksum lists
them: up to 50 files and 100 application ids. Here they are kept with the version they are of.
For a later version, the commits since are read and replayed by Delta's own rules.

What is kept counts only where it is certainly of the same table: the commit of its version is
still the one that it was, the last commit read is that of the wanted version, and the numbers of
files and bytes are those of that version's checksum. Otherwise Delta is asked, as if nothing was
kept.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import SPARK_ERRORS, JavaObject
from deltaweave.delta.log import actions
from deltaweave.delta.log.checksum import Checksum, applied
from deltaweave.delta.log.file_list import FileList
from deltaweave.delta.releases import log_replay

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files of a table that is followed. With their statistics, so many take some 20 MB."""

# Files of all followed tables together; of the least recently used ones, nothing is kept.
_MAX_FILES_OF_ALL = 2 * MAX_FILES
# Commits to read for a version, and their bytes; with more, Delta's jobs are as fast.
_MAX_COMMITS = 20
_MAX_BYTES = 16 * 1024 * 1024
# Commits after which a replay, which also keeps what was removed, begins anew.
_MAX_REPLAYED = 100


@dataclass(frozen=True)
class TableState:
    """What is known of a version.

    Attributes:
        files: Its data files, with their statistics.
        applied: The newest version of each application id.
    """

    files: FileList
    applied: Mapping[str, int]


@dataclass(frozen=True)
class Version:
    """A version of a table, as its snapshot has it.

    Attributes:
        spark: The session.
        log: Delta's log of the table.
        number: The version.
        checksum: Its checksum.
        data_path: Where the table's data is.
    """

    spark: SparkSession
    log: JavaObject
    number: int
    checksum: Checksum
    data_path: str


def known_state(version: Version) -> TableState | None:
    """What is known of a version; no job runs. None if the table is not followed up to it."""
    followed = _tables(version.spark).of(version.data_path)
    return None if followed is None else followed.at(version)


def follow(version: Version, snapshot: JavaObject) -> TableState | None:
    """Follow a table from this version on; jobs over the log find out what its checksum omits.

    Args:
        version: The version.
        snapshot: Delta's snapshot of it.

    Returns:
        What is known now; None if the table cannot be followed.
    """
    checksum = version.checksum
    if checksum.commit is None or checksum.num_files > MAX_FILES:
        return None
    files = checksum.files
    if files is None:
        files = all_files(version.spark, snapshot)
    transactions = checksum.transactions
    if transactions is None:
        transactions = snapshot.setTransactions()
    followed = _Followed(version, checksum.commit, files, transactions)
    state = followed.at(version)
    if state is not None:
        _tables(version.spark).put(version.data_path, followed)
    return state


def all_files(spark: SparkSession, snapshot: JavaObject) -> JavaObject:
    """All AddFiles of a snapshot, a Scala Seq, by a job over the log."""
    return jvm_.seq_of(jvm_.jvm(spark), snapshot.allFiles().collectAsList())


class _Followed:
    """A table that is followed. Threads take turns."""

    def __init__(
        self, version: Version, commit: str, files: JavaObject, transactions: JavaObject
    ) -> None:
        self._turn = threading.Lock()
        self._number, self._commit = version.number, commit
        self._replay = _new_replay(version.spark, version.number, files, transactions)
        self._num_replayed = 0
        self._state = self._checked(version)

    @property
    def num_files(self) -> int:
        """How many files are kept."""
        state = self._state
        return 0 if state is None else len(state.files)

    def at(self, version: Version) -> TableState | None:
        """What is known of a version; None if that is nothing."""
        commit = version.checksum.commit
        with self._turn:
            if self._state is None or commit is None or version.number < self._number:
                return None
            if version.number > self._number:
                self._state = self._replayed(version, commit)
                self._number, self._commit = version.number, commit
            elif commit != self._commit:
                self._state = None
            if self._state is None:
                self._replay = None
                return None
            return TableState(self._state.files.seen_by(version.spark), self._state.applied)

    def _replayed(self, version: Version, commit: str) -> TableState | None:
        """The state at a later version; None if the commits up to it cannot be followed."""
        since = version.number - self._number
        if since > _MAX_COMMITS:
            return None
        try:
            if not self._is_still_there(version) or not self._append(version, commit):
                return None
            state = self._checked(version)
        except SPARK_ERRORS as error:  # e.g. a commit that log cleanup has deleted
            logger.info("%s: its commits cannot be read: %s", version.data_path, error)
            return None
        self._num_replayed += since
        if state is not None and self._num_replayed > _MAX_REPLAYED:
            replay, self._num_replayed = self._replay, 0
            files, transactions = replay.allFiles(), replay.getTransactions()
            self._replay = _new_replay(version.spark, version.number, files, transactions)
        return state

    def _is_still_there(self, version: Version) -> bool:
        """Whether the kept version is still one of the table, which may have been made anew."""
        none = jvm_.option(jvm_.jvm(version.spark), None)
        checksum = Checksum.of(version.spark, version.log.readChecksum(self._number, none))
        return checksum is not None and checksum.commit == self._commit

    def _append(self, version: Version, commit: str) -> bool:
        """Replay the commits up to a version; False if they are too big or end with another one."""
        spark, log = version.spark, version.log
        names = jvm_.jvm(spark).org.apache.spark.sql.delta.util.FileNames
        settings = log.newDeltaHadoopConf()
        directory = log.logPath()
        disk = directory.getFileSystem(settings)
        num_bytes, first_line = 0, ""
        for number in range(self._number + 1, version.number + 1):
            path = names.unsafeDeltaFile(directory, number)
            num_bytes += disk.getFileStatus(path).getLen()
            if num_bytes > _MAX_BYTES:
                return False
            lines = log.store().read(path, settings)
            self._replay.append(number, lines.iterator().map(actions.read_line(spark)))
            first_line = str(lines.head())
        return f'"txnId":"{commit}"' in first_line

    def _checked(self, version: Version) -> TableState | None:
        """The state that was replayed; None if the version's checksum says otherwise."""
        listed, checksum = self._replay.allFiles(), version.checksum
        if listed.size() != checksum.num_files or listed.size() > MAX_FILES:
            return None
        files = FileList(version.spark, listed, version.data_path, have_statistics=True)
        if files.size_in_bytes != checksum.size_in_bytes:
            return None
        return TableState(files, applied(version.spark, self._replay.getTransactions()))


def _new_replay(
    spark: SparkSession, number: int, files: JavaObject, transactions: JavaObject
) -> JavaObject:
    """Delta's replay of a log, with the files and application ids of a version."""
    replay = log_replay(spark)
    replay.append(number - 1, files.iterator())
    replay.append(number, transactions.iterator())
    return replay


class _Tables:
    """The followed tables of a SparkContext, the one that was asked for last at the end."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._by_path: OrderedDict[str, _Followed] = OrderedDict()

    def of(self, data_path: str) -> _Followed | None:
        with self._turn:
            if data_path in self._by_path:
                self._by_path.move_to_end(data_path)
            return self._by_path.get(data_path)

    def put(self, data_path: str, followed: _Followed) -> None:
        """Follow a table, and no longer those that were not asked for, if files are too many."""
        with self._turn:
            self._by_path.pop(data_path, None)
            num_files = followed.num_files
            for path, other in reversed(list(self._by_path.items())):
                num_files += other.num_files
                if num_files > _MAX_FILES_OF_ALL:
                    del self._by_path[path]
            self._by_path[data_path] = followed


_FOLLOWED: WeakKeyDictionary[SparkContext, _Tables] = WeakKeyDictionary()


def _tables(spark: SparkSession) -> _Tables:
    return _FOLLOWED.setdefault(spark.sparkContext, _Tables())
