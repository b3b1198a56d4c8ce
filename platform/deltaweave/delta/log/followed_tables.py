"""Tables that are followed: the files of a version, brought up to date by the commits since.

Delta lists the files of each new version in a job over the whole log. A checksum lists up to 50 of
them. Here they are kept with the version they are of. For a later version, the commits since are
read and replayed by Delta's own rules.

What is kept counts only where it is certainly of the same table: the commit of its version is
still the one that it was, the last commit read is that of the wanted version, and the numbers of
files and bytes are those of that version's checksum. Otherwise Delta is asked, as if nothing was
kept.

The lists are kept in the driver's JVM, so that all processes of a warm driver share them. The JVM
lets them go where its memory is short.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.delta.jvm import SPARK_ERRORS, JavaObject, Jvm
from deltaweave.delta.log import actions
from deltaweave.delta.log.checksum import Checksum, names_commit
from deltaweave.delta.log.file_paths import commit_file
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


class _Kept(NamedTuple):
    """The files of a version.

    Attributes:
        version: The version.
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
    """Follow a table from this version on, if that can be, and if no later one is kept.

    Args:
        version: The checksum of the version.
        files: Scala Seq of all of its AddFiles.
    """
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
