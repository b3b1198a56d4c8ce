"""Tables that this process follows: the files of a version, brought up to date by later commits.

Delta lists the files of each new version in a job over the whole log. A checksum lists up to 50 of
them. Here they are kept with the version they are of. For a later version, the commits since are
read and replayed by Delta's own rules.

What is kept counts only where it is certainly of the same table: the commit of its version is
still the one that it was, the last commit read is that of the wanted version, and the numbers of
files and bytes are those of that version's checksum. Otherwise Delta is asked, as if nothing was
kept.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import SPARK_ERRORS, JavaObject
from deltaweave.delta.log import actions
from deltaweave.delta.log.checksum import Checksum, names_commit
from deltaweave.delta.log.file_paths import commit_file
from deltaweave.delta.releases import log_replay

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files of a table that is followed. With their statistics, so many take some 20 MB of the JVM."""

# Files of all followed tables together, with those removed since; tables that were not asked for
# are forgotten.
_MAX_FILES_OF_ALL = 2 * MAX_FILES
# Commits to read for a version, and their bytes; with more, Delta's job is as fast.
_MAX_COMMITS = 20
_MAX_BYTES = 16 * 1024 * 1024
# Actions after which a replay begins anew, since it also keeps the files that were removed; in
# larger tables, as many as there are files.
_MAX_REPLAYED = 1_000
# State reconstruction gives such a path a scheme, and conflicts are told by the paths.
_PATH_WITHOUT_SCHEME = r'"path"\s*:\s*"\\?/'


def known_files(version: Checksum) -> JavaObject | None:
    """Scala Seq of all AddFiles of a version, by its checksum and what this process knows.

    No job runs. None if the table is not followed.
    """
    tables = _tables(version.spark)
    followed = tables.of(version.data_path)
    if followed is None or not version.is_of_its_version:
        return None
    files = followed.at(version)
    tables.forget_some()  # the table may have grown
    return files


def follow(version: Checksum, files: JavaObject) -> None:
    """Follow a table from this version on, if that can be.

    Args:
        version: The checksum of the version.
        files: Scala Seq of all of its AddFiles.
    """
    commit = version.commit
    if commit is not None and version.is_of_its_version and _fit(files, version):
        _tables(version.spark).put(version, _Followed(version, commit, files))


class _Followed:
    """A table that is followed. Threads take turns."""

    def __init__(self, version: Checksum, commit: str, files: JavaObject) -> None:
        self._turn = threading.Lock()
        self.table_id, self.number, self._commit = version.table_id, version.version, commit
        self._replay = _new_replay(version.spark, version.version, files)
        self._num_replayed, self.num_files = 0, version.num_files
        self._files: JavaObject | None = files

    @property
    def num_kept(self) -> int:
        """How many files are kept, with those removed since."""
        return self.num_files + self._num_replayed

    @property
    def is_lost(self) -> bool:
        """Whether nothing is known any more."""
        return self._files is None

    def at(self, version: Checksum) -> JavaObject | None:
        """The files of a version; None if they are not known."""
        commit = version.commit
        with self._turn:
            if self._files is None or commit is None or version.version < self.number:
                return None
            if version.version > self.number:
                self._files = self._replayed(version, commit)
                self.number, self._commit = version.version, commit
                self.num_files = version.num_files
            elif commit != self._commit:
                self._files = None
            if self._files is None:
                self._replay = None
            return self._files

    def _replayed(self, version: Checksum, commit: str) -> JavaObject | None:
        """The files at a later version; None if the commits up to it cannot be followed."""
        if version.version - self.number > _MAX_COMMITS:
            return None
        try:
            # The kept version is still one of the table, which may have been made anew.
            is_there = version.has_commit(self.number, self._commit)
            if not is_there or not self._append(version, commit):
                return None
            files = self._replay.allFiles()
            if not _fit(files, version):
                return None
        except SPARK_ERRORS as error:  # e.g. a commit that log cleanup has deleted
            logger.info("%s: its commits cannot be read: %s", version.data_path, error)
            return None
        if self._num_replayed > max(_MAX_REPLAYED, version.num_files):
            self._replay = _new_replay(version.spark, version.version, files)
            self._num_replayed = 0
        return files

    def _append(self, version: Checksum, commit: str) -> bool:
        """Replay the commits up to a version; False if that cannot be done, or gives another."""
        spark, log = version.spark, version.log
        view = jvm_.jvm(spark)
        without_scheme = view.java.util.regex.Pattern.compile(_PATH_WITHOUT_SCHEME).asPredicate()
        settings = log.newDeltaHadoopConf()
        disk = log.logPath().getFileSystem(settings)
        num_bytes, first_line = 0, ""
        for number in range(self.number + 1, version.version + 1):
            path = commit_file(log, number)
            num_bytes += disk.getFileStatus(path).getLen()
            if num_bytes > _MAX_BYTES:
                return False
            lines = log.store().read(path, settings)
            if jvm_.java_list(view, lines).stream().anyMatch(without_scheme):
                return False
            self._replay.append(number, lines.iterator().map(actions.read_line(spark)))
            self._num_replayed += int(lines.size())
            first_line = str(lines.head())
        return names_commit(first_line, commit)


def _fit(files: JavaObject, version: Checksum) -> bool:
    """Whether AddFiles are few, and as many and as large as the version's checksum says."""
    if version.num_files > MAX_FILES or files.size() != version.num_files:
        return False
    spark = version.spark
    sizes = files.map(jvm_.function(spark, "org.apache.spark.sql.delta.actions.AddFile", "size"))
    numbers = jvm_.singleton(jvm_.jvm(spark).scala.math, "Numeric$LongIsIntegral")
    return bool(sizes.sum(numbers) == version.size_in_bytes)


def _new_replay(spark: SparkSession, number: int, files: JavaObject) -> JavaObject:
    """Delta's replay of a log, with the files of a version."""
    replay = log_replay(spark)
    replay.append(number, files.iterator())
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

    def put(self, version: Checksum, followed: _Followed) -> None:
        """Follow a table, unless a later version of it is known."""
        with self._turn:
            known = self._by_path.get(version.data_path)
            is_later = known is not None and not known.is_lost and known.number > version.version
            if known is not None and is_later and known.table_id == version.table_id:
                return
            self._by_path.pop(version.data_path, None)
            self._by_path[version.data_path] = followed
        self.forget_some()

    def forget_some(self) -> None:
        """Forget what was lost and, if there are too many files, tables not asked for lately."""
        with self._turn:
            num_files = 0
            for path, followed in reversed(list(self._by_path.items())):
                num_files += followed.num_kept
                if followed.is_lost or num_files > _MAX_FILES_OF_ALL:
                    del self._by_path[path]


_FOLLOWED: WeakKeyDictionary[SparkContext, _Tables] = WeakKeyDictionary()


def _tables(spark: SparkSession) -> _Tables:
    return _FOLLOWED.setdefault(spark.sparkContext, _Tables())
