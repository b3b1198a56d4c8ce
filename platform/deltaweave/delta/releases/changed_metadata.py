"""Delta's errors for metadata that another commit changed: since 4.4 they name the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_type_widening(spark: SparkSession, then: JavaObject, transaction: JavaObject) -> None:
    """Raise Delta's conflict if type widening was switched on or off meanwhile.

    Args:
        spark: The session.
        then: What has protocol and metadata as they were when the statement was resolved.
        transaction: Delta's transaction, which has both as they are now.
    """
    delta = jvm_.jvm(spark).org.apache.spark.sql.delta
    jvm_.singleton(delta, "TypeWidening").ensureFeatureConsistentlyEnabled(
        then.protocol(),
        then.metadata(),
        transaction.protocol(),
        transaction.metadata(),
        *_name(spark, transaction),
    )


def metadata_changed(spark: SparkSession, transaction: JavaObject) -> JavaObject:
    """Build Delta's exception for a table whose metadata another commit has changed."""
    view = jvm_.jvm(spark)
    arguments = (*_name(spark, transaction), jvm_.option(view, None))
    return jvm_.delta_error(view, "metadataChangedException", *arguments)


def _name(spark: SparkSession, transaction: JavaObject) -> tuple[str, ...]:
    return (transaction.tableNameOrPath(),) if jvm_.delta_line(spark) >= (4, 4) else ()
