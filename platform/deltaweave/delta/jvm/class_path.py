"""Which jars of the session's JVM hold a class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jars_with(spark: SparkSession, name: str) -> list[str]:
    """Return the URLs of the jars or directories with a class; the JVM takes it from the first.

    Args:
        spark: The session.
        name: The full name of a class, e.g. `io.delta.tables.DeltaTable`.
    """
    view: Any = spark.sparkContext._jvm  # also of a session whose releases are refused
    loader = view.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    file = name.replace(".", "/") + ".class"
    found = view.java.util.Collections.list(loader.getResources(file))
    urls = [str(url.toString()) for url in found]
    return list(dict.fromkeys(url.removesuffix(file).strip("/!") for url in urls))
