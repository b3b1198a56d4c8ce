"""Tables that are followed: the files of a version, brought up to date by the commits since.

Delta lists a version's files in a job over the whole log, and its checksum (Delta protocol, section
"Version Checksum File") up to 50 of them. Here they are kept in the driver's JVM, as long as its
memory allows. They are used if the commits since, replayed by Delta's rules, lead to the wanted
version's commit, and to the numbers of files and bytes in its checksum. Otherwise Delta is asked.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.delta.jvm import SPARK_ERRORS, DeltaLog, JavaObject, Jvm, is_on
from deltaweave.delta.log import actions
from deltaweave.delta.log.actions import commit_file, commit_name
from deltaweave.delta.releases import log_replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files of a table that is followed. With their statistics, so many take some 20 MB of the JVM."""

# Commits to read for a version, and their bytes; with more, Delta's job is as fast.
_MAX_COMMITS = 20
_MAX_BYTES = 16 * 1024 * 1024
# State reconstruction gives such a path a scheme, and conflicts are found by the paths.
_PATH_WITHOUT_SCHEME = r'"path"\s*:\s*"\\?/'

_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"
_RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class Checksum:
    """The checksum of a version.

    Writers need not write one, and do not replace one that is left over from a commit that somebody
    deleted. So what it lists counts only if it names the commit that its version has in the log.

    Attributes:
        data_path: Where the table's data is.
        checksum: Delta's VersionChecksum.
    """

    spark: SparkSession
    log: DeltaLog
    data_path: str
    version: int
    checksum: JavaObject

    @cached_property
    def commit(self) -> str | None:
        """The id of the commit that it names, which no other commit has; None if it names none."""
        option = str(self.checksum.txnId().toString())  # a call less than by its methods
        return None if option == "None" else option.removeprefix("Some(").removesuffix(")")

    @cached_property
    def num_files(self) -> int:
        """How many data files there are."""
        return int(self.checksum.numFiles())

    @property
    def size_in_bytes(self) -> int:
        """The total size of the data files, in bytes."""
        return int(self.checksum.tableSizeBytes())

    @property
    def files(self) -> JavaObject | None:
        """The AddFiles, a Scala Seq; None if they are not listed. Writers list up to 50."""
        if not is_on(self.spark, _FILES_IN_CHECKSUM, otherwise=True):
            return None
        listed = self.checksum.allFiles()
        if not listed.isDefined() or not self.is_of_its_version:
            return None
        files = listed.get()
        return files if files.size() == self.num_files else None

    @property
    def ids(self) -> Mapping[str, int] | None:
        """The newest version of each application id; None if they are not listed.

        Writers list up to 100. Where the table forgets ids after a time, its log has the rest.
        """
        listed = self.checksum.setTransactions()
        if not listed.isDefined() or not self.is_of_its_version:
            return None
        metadata = self.checksum.metadata()
        if metadata is None or metadata.configuration().contains(_RETENTION):
            return None
        return versions_by_id(self.spark, listed.get())

    @cached_property
    def is_of_its_version(self) -> bool:
        """Whether it names the commit that its version has in the log."""
        return self.commit is not None and self.has_commit(self.version, self.commit)

    def has_commit(self, version: int, commit: str) -> bool:
        """Return whether a version of the table was made by a commit, by the log."""
        try:
            first_line = self._first_line(version)  # where Delta's writers put the commit's id
        except (OSError, ValueError, *SPARK_ERRORS) as error:  # e.g. it was cleaned up
            logger.info("%s: commit %d cannot be read: %s", self.data_path, version, error)
            return False
        return names_commit(first_line, commit)

    def _first_line(self, version: int) -> str:
        if self.data_path.startswith("file:"):  # that saves calls of the JVM
            directory = os.path.join(self.data_path.removeprefix("file:"), "_delta_log")
            with open(os.path.join(directory, commit_name(version)), encoding="utf-8") as file:
                return file.readline()
        path, settings = commit_file(self.log, version), self.log.newDeltaHadoopConf()
        lines = self.log.store().readAsIterator(path, settings)
        try:
            return str(lines.next())
        finally:
            lines.close()


def names_commit(first_line: str, commit: str) -> bool:
    """Return whether the first line of a commit names it by its id."""
    return f'"txnId":"{commit}"' in first_line


def versions_by_id(spark: SparkSession, transactions: JavaObject) -> Mapping[str, int]:
    """Return the newest version of each application id, by all SetTransactions (a Scala Seq)."""
    return {each["appId"]: each["version"] for each in actions.to_json(spark, transactions)}


class _Kept(NamedTuple):
    """The files of a version.

    Attributes:
        commit: The id of the commit that made it.
        files: Scala Seq of all of its AddFiles.
    """

    version: int
    commit: str
    files: JavaObject


def known_files(version: Checksum) -> JavaObject | None:
    """Return a version's AddFiles, a Scala Seq, by its checksum and what is kept.

    No job runs. None if the table is not followed.
    """
    kept = _kept(version)
    commit = version.commit
    if kept is None or commit is None or not version.is_of_its_version:
        return None
    if kept.version == version.version:
        return kept.files if kept.commit == commit else None
    if not 0 < version.version - kept.version <= _MAX_COMMITS:
        return None
    try:
        files = _replayed(kept, version, commit)
    except SPARK_ERRORS as error:  # e.g. a commit that log cleanup has deleted
        logger.info("%s: its commits cannot be read: %s", version.data_path, error)
        return None
    if files is not None:
        _keep_unless_later(version, _Kept(version.version, commit, files))
    return files


def follow(version: Checksum, files: JavaObject) -> None:
    """Follow a table from this version on, if that can be, and if no later one is kept."""
    commit = version.commit
    if commit is not None and version.is_of_its_version and _fit(files, version):
        _keep_unless_later(version, _Kept(version.version, commit, files))


def _replayed(kept: _Kept, version: Checksum, commit: str) -> JavaObject | None:
    """Replay the commits up to a later version; None if they do not lead there."""
    # The kept version is still one of the table, which may have been recreated.
    if not version.has_commit(kept.version, kept.commit):
        return None
    spark, log = version.spark, version.log
    jvm = Jvm.of(spark)
    without_scheme = jvm.java.util.regex.Pattern.compile(_PATH_WITHOUT_SCHEME).asPredicate()
    settings = log.newDeltaHadoopConf()
    disk = log.logPath().getFileSystem(settings)
    replay = log_replay(spark)
    replay.append(kept.version, kept.files.iterator())
    num_bytes, first_line = 0, ""
    for number in range(kept.version + 1, version.version + 1):
        path = commit_file(log, number)
        num_bytes += disk.getFileStatus(path).getLen()
        if num_bytes > _MAX_BYTES:
            return None
        lines = log.store().read(path, settings)
        if jvm.java_list(lines).stream().anyMatch(without_scheme):
            return None
        replay.append(number, lines.iterator().map(actions.read_line(spark)))
        first_line = str(lines.head())
    files = replay.allFiles()
    return files if names_commit(first_line, commit) and _fit(files, version) else None


def _fit(files: JavaObject, version: Checksum) -> bool:
    """Return whether AddFiles are few, and as many and as large as in the version's checksum."""
    if version.num_files > MAX_FILES or files.size() != version.num_files:
        return False
    spark = version.spark
    sizes = files.map(Jvm.of(spark).function("org.apache.spark.sql.delta.actions.AddFile", "size"))
    numbers = Jvm.singleton(Jvm.of(spark).scala.math, "Numeric$LongIsIntegral")
    return bool(sizes.sum(numbers) == version.size_in_bytes)


def _kept(version: Checksum) -> _Kept | None:
    """Return what is kept of a table, if the JVM still holds it."""
    values = _all_kept(version.spark).get(_name(version))
    return None if values is None else _Kept(*values)


def _keep_unless_later(version: Checksum, new: _Kept) -> None:
    """Keep the files of a version, unless those of a later one of the same table are kept."""
    kept = _kept(version)
    is_later = kept is not None and kept.version > new.version
    if kept is not None and is_later and version.has_commit(kept.version, kept.commit):
        return
    values = Jvm.of(version.spark).java.util.ArrayList()
    for value in new:
        values.add(value)
    _all_kept(version.spark).put(_name(version), values)


def _all_kept(spark: SparkSession) -> JavaObject:
    """Return Spark's map of values that may be computed again, which holds them softly."""
    return spark._jsc.sc().env().hadoopJobMetadata()


def _name(version: Checksum) -> str:
    return f"deltaweave: files of {version.data_path}"
