"""A version's checksum, whose lists save jobs over the log.

See the Delta protocol, section "Version Checksum File". Writers need not write one, and do not
replace one that is left over from a commit that somebody deleted. So what it lists counts only if
it names the commit that its version has in the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from deltaweave.delta.jvm import SPARK_ERRORS, DeltaLog, JavaObject, is_on
from deltaweave.delta.log import actions
from deltaweave.delta.log.file_paths import commit_file, commit_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"
_RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class Checksum:
    """The checksum of a version.

    Attributes:
        spark: The session.
        log: Delta's log of the table.
        data_path: Where the table's data is.
        version: The version.
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
