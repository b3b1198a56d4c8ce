"""Finds the catalog that a table's name means, as Spark finds it for SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def log_by_name(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
    """Open Delta's log of the table with this name, in whatever catalog it is.

    Raises:
        NotADeltaTableError: The catalog's table is no Delta table.
        StatementError: There is no such catalog, the name has too many parts, or in SQL it means a
            temporary view.
        Py4JJavaError: There is no such table, and Spark says so.
    """
    view = jvm_.jvm(spark)
    _refuse_temporary_view(spark, parts)
    catalog, identifier = _resolved(spark, parts)
    if _is_of_session(spark, catalog):
        found = spark._jsparkSession.sessionState().catalog()
        table = found.getTableMetadata(_in_session_catalog(spark, parts, identifier))
        return view.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    table = jvm_.singleton(view.org.apache.spark.sql.connector.catalog, "CatalogV2Util").getTable(
        catalog, identifier, jvm_.option(view, None), jvm_.option(view, None)
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


def place_of_new_table(spark: SparkSession, parts: Sequence[str]) -> JavaObject:
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
    return jvm_.jvm(spark).org.apache.hadoop.fs.Path(location)


def _resolved(spark: SparkSession, parts: Sequence[str]) -> tuple[JavaObject, JavaObject]:
    """Return the catalog of a name, and its identifier there (namespace and name)."""
    names = jvm_.seq(jvm_.jvm(spark), parts)
    analyzer = spark._jsparkSession.sessionState().analyzer()
    with jvm_.active(spark):  # catalogs are configured in the settings of the active session
        found = analyzer.CatalogAndIdentifier().unapply(names).get()
    return found._1(), found._2()


def _is_of_session(spark: SparkSession, catalog: JavaObject) -> bool:
    """Return whether a catalog is Spark's own.

    Its name does not show it: others of Delta's class have the name of what they delegate to.
    """
    manager = spark._jsparkSession.sessionState().catalogManager()
    with jvm_.active(spark):
        return bool(catalog.equals(manager.v2SessionCatalog()))


def _in_session_catalog(
    spark: SparkSession, parts: Sequence[str], identifier: JavaObject
) -> JavaObject:
    """Build the TableIdentifier of a name in Spark's own catalog with a namespace of one part."""
    view, namespace = jvm_.jvm(spark), list(identifier.namespace())
    if len(namespace) > 1:
        raise errors.StatementError(
            f"there is no catalog {namespace[0]!r}.",
            table=".".join(parts),
            operation="opening",
            state=errors.NOTHING_DONE,
            hint="Configure spark.sql.catalog for it, or name a table as database.table.",
        )
    database = jvm_.option(view, namespace[0] if namespace else None)
    return view.org.apache.spark.sql.catalyst.TableIdentifier(
        identifier.name(), database, jvm_.option(view, None)
    )
