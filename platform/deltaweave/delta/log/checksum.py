"""What a version's checksum says of it, which saves jobs over the log.

See the Delta protocol, section "Version Checksum File". Writers need not write one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log import actions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES_IN_CHECKSUM = "spark.databricks.delta.allFilesInCrc.enabled"


@dataclass(frozen=True)
class Checksum:
    """The checksum of a version: Delta's VersionChecksum."""

    spark: SparkSession
    checksum: JavaObject

    @staticmethod
    def of(spark: SparkSession, found: JavaObject) -> Checksum | None:
        """The checksum in a Scala Option, if there is one."""
        return Checksum(spark, found.get()) if found.isDefined() else None

    @property
    def commit(self) -> str | None:
        """The id of the commit that made it, which no other commit has; None if unknown."""
        found = self.checksum.txnId()
        return str(found.get()) if found.isDefined() else None

    @cached_property
    def num_files(self) -> int:
        """How many data files there are."""
        return int(self.checksum.numFiles())

    @property
    def size_in_bytes(self) -> int:
        """Their total size, in bytes."""
        return int(self.checksum.tableSizeBytes())

    @property
    def files(self) -> JavaObject | None:
        """The AddFiles, a Scala Seq; None if they are not listed. Writers list up to 50."""
        if not jvm_.is_on(self.spark, _FILES_IN_CHECKSUM, otherwise=True):
            return None
        listed = self.checksum.allFiles()
        if not listed.isDefined():
            return None
        files = listed.get()
        return files if files.size() == self.num_files else None

    @property
    def transactions(self) -> JavaObject | None:
        """The SetTransactions, a Scala Seq; None if they are not listed. Writers list up to 100."""
        listed = self.checksum.setTransactions()
        return listed.get() if listed.isDefined() else None


def applied(spark: SparkSession, transactions: JavaObject) -> Mapping[str, int]:
    """The newest version of each application id, by all SetTransactions (Scala Iterable)."""
    return {each["appId"]: each["version"] for each in actions.to_json(spark, transactions)}
