"""Finds Delta's log of a table by its path or name, and the versions that the log holds.

A name means the same catalog as in SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from deltaweave import errors
from deltaweave.delta.jvm import DeltaLog, JavaObject, Jvm, active, translated
from deltaweave.delta.log.snapshot import TableSnapshot, data_path
from deltaweave.delta.releases import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log_by_name(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
    """Open Delta's log of the table with this name, in whatever catalog it is.

    Raises:
        NotADeltaTableError: The catalog's table is no Delta table.
        StatementError: There is no such catalog, the name has too many parts, or in SQL it means a
            temporary view.
        Py4JJavaError: There is no such table, and Spark reports it.
    """
    jvm = Jvm.of(spark)
    _refuse_temporary_view(spark, parts)
    catalog, identifier = _resolved(spark, parts)
    if _is_of_session(spark, catalog):
        found = spark._jsparkSession.sessionState().catalog()
        table = found.getTableMetadata(_in_session_catalog(spark, parts, identifier))
        return jvm.delta.DeltaLog.forTable(spark._jsparkSession, table)
    table = Jvm.singleton(jvm.sql.connector.catalog, "CatalogV2Util").getTable(
        catalog, identifier, jvm.option(None), jvm.option(None)
    )
    if table.getClass().getSimpleName() != "DeltaTableV2":
        raise errors.NotADeltaTableError(
            f"it is no Delta table: its catalog gives a {table.getClass().getName()}.",
            table=".".join(parts),
            operation="opening",
            state=errors.NOTHING_DONE,
            hint="Name a Delta table.",
        )
    return table.deltaLog()


def _refuse_temporary_view(spark: SparkSession, parts: Sequence[str]) -> None:
    """Raise where SQL would take a view of the session for the table: it may be of another one."""
    found = spark._jsparkSession.sessionState().catalog()
    if len(parts) == 1 and found.getTempView(parts[0]).isDefined():
        raise errors.StatementError(
            "a temporary view of the session has this name, and in SQL the name means the view.",
            table=parts[0],
            operation="opening",
            hint="Name the table with its database, or drop the view.",
        )


def location_of_new_table(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
    """Return the location of a table that is created with this name, as Hadoop's Path.

    Raises:
        StatementError: The name means another catalog than Spark's own, or that is not the current
            one. Delta registers the tables that it creates in Spark's own catalog, where the name
            means another table, and then looks for them in the current one.
    """
    catalog, identifier = _resolved(spark, parts)
    if not _is_of_session(spark, catalog):
        raise errors.StatementError(
            "deltaweave creates no tables in other catalogs than spark_catalog: Delta registers "
            "new tables there, where the name means another table.",
            table=".".join(parts),
            operation="creation",
            hint="Create the table with the catalog's own tools; it can then be used by its name.",
        )
    # Delta gets the name without its catalog, and looks for it as SQL does.
    current, _ = _resolved(spark, parts[-2:])
    if not _is_of_session(spark, current):
        raise errors.StatementError(
            "deltaweave creates tables only where their name without a catalog means "
            "spark_catalog: Delta would create the table there and then look for it elsewhere.",
            table=".".join(parts),
            operation="creation",
            state=errors.NOTHING_DONE,
            hint="Run SET CATALOG spark_catalog first, or name the schema other than a catalog.",
        )
    found = spark._jsparkSession.sessionState().catalog()
    location = found.defaultTablePath(_in_session_catalog(spark, parts, identifier))
    # Not the text of the URI, which has escapes.
    return Jvm.of(spark).org.apache.hadoop.fs.Path(location)


def _resolved(spark: SparkSession, parts: Sequence[str]) -> tuple[JavaObject, JavaObject]:
    """Return the catalog of a name, and its identifier there (namespace and name)."""
    names = Jvm.of(spark).seq(parts)
    analyzer = spark._jsparkSession.sessionState().analyzer()
    with active(spark):  # catalogs are configured in the settings of the active session
        found = analyzer.CatalogAndIdentifier().unapply(names).get()
    return found._1(), found._2()


def _is_of_session(spark: SparkSession, catalog: JavaObject) -> bool:
    """Return whether a catalog is Spark's own.

    Its name does not show it: others of Delta's class have the name of what they delegate to.
    """
    manager = spark._jsparkSession.sessionState().catalogManager()
    with active(spark):
        return bool(catalog.equals(manager.v2SessionCatalog()))


def _in_session_catalog(
    spark: SparkSession, parts: Sequence[str], identifier: JavaObject
) -> JavaObject:
    """Build the TableIdentifier of a name in Spark's own catalog with a namespace of one part."""
    jvm, namespace = Jvm.of(spark), list(identifier.namespace())
    if len(namespace) > 1:
        raise errors.StatementError(
            f"there is no catalog {namespace[0]!r}.",
            table=".".join(parts),
            operation="opening",
            state=errors.NOTHING_DONE,
            hint="Configure spark.sql.catalog for it, or name a table as database.table.",
        )
    database = jvm.option(namespace[0] if namespace else None)
    return jvm.catalyst.TableIdentifier(identifier.name(), database, jvm.option(None))


def delta_log(spark: SparkSession, parts: list[str]) -> JavaObject:
    """Open Delta's log of the table with these name parts; `["delta", path]` is a path."""
    label = ".".join(parts)
    with translated(label, operation="opening"):
        if len(parts) == 2 and parts[0].lower() == "delta":
            logs = Jvm.of(spark).delta.DeltaLog
            return logs.forTable(spark._jsparkSession, parts[1])
        return log_by_name(spark, parts)


def latest(spark: SparkSession, log: DeltaLog) -> TableSnapshot:
    """Read the newest version of a table from its log; its number is -1 if there is no table.

    Delta's own `snapshot` and `tableExists` are what this JVM saw last.
    """
    empty = Jvm.of(spark).option(None)
    return TableSnapshot(spark, log, log.update(False, empty, empty))


def at_version(
    spark: SparkSession, log: DeltaLog, version: int, newest: TableSnapshot | None = None
) -> TableSnapshot:
    """Read a version of a table.

    Args:
        spark: The session.
        log: Delta's log of the table.
        version: The version.
        newest: The newest version, if it is known already.

    Raises:
        TableNotFoundError: The log no longer holds, or never held, that version.
    """
    newest = newest or latest(spark, log)
    if newest.version == version:
        return newest
    if version > newest.version:
        raise errors.TableNotFoundError(
            f"it has no version {version}; the newest is {newest.version}.",
            table=data_path(log),
            operation="reading a version",
        )
    with translated(data_path(log), operation="reading a version", version=version):
        return TableSnapshot(spark, log, snapshot_at(spark, log, version))


def version_at(spark: SparkSession, name: str, time: datetime) -> int | None:
    """Return the newest version that was committed at or before a time, or None.

    Args:
        spark: The session.
        name: The table's quoted name.
        time: The time, with its time zone.
    """
    history = spark.sql(f"DESCRIBE HISTORY {name}")
    row = history.where(F.col("timestamp") <= F.lit(time)).agg(F.max("version")).first()
    assert row is not None
    return None if row[0] is None else int(row[0])


@dataclass(frozen=True)
class TableLog:
    """Delta's log of a table, which need not exist.

    Attributes:
        spark: The session that opened it.
        log: Delta's DeltaLog.
    """

    spark: SparkSession
    log: DeltaLog

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
