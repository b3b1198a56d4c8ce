"""Delta's log of a table, and the versions that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.snapshot import TableSnapshot, data_path
from deltaweave.delta.log.versions import at_version, delta_log, latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TableLog:
    """Delta's log of a table, which need not exist.

    Attributes:
        spark: The session that opened it.
        log: Delta's DeltaLog.
    """

    spark: SparkSession
    log: JavaObject

    @classmethod
    def of(cls, spark: SparkSession, parts: Sequence[str]) -> TableLog:
        """Open the log of the table that the name parts mean; `["delta", path]` means a path."""
        return cls(spark, delta_log(spark, list(parts)))

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table, by the log as it is now."""
        return self.latest().version >= 0

    @property
    def data_path(self) -> str:
        """Where the table's data is, e.g. `file:/lake/orders`, not percent-encoded."""
        return data_path(self.log)

    def latest(self) -> TableSnapshot:
        """Read the newest version; its number is -1 if there is no table."""
        return latest(self.spark, self.log)

    def at_version(self, version: int, newest: TableSnapshot | None = None) -> TableSnapshot:
        """Read a version of an existing table, whose newest version may be known already.

        Raises:
            TableNotFoundError: The log no longer holds, or never held, that version.
        """
        return at_version(self.spark, self.log, version, newest)
