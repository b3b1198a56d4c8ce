"""Where the data files of a table lie, as pyarrow opens them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave.delta.files import settings_for_arrow
from deltaweave.engine.tasks import Disk, ObjectStore, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaweave.delta.jvm import JavaObject


def storage_of(
    spark: SparkSession, directory: JavaObject, configuration: JavaObject
) -> Storage | None:
    """The storage of a table in a directory; None if Python does not open it.

    Args:
        spark: The session.
        directory: Hadoop's path of the table.
        configuration: Hadoop's settings for it.
    """
    if str(directory.toString()).startswith("file:"):
        return Disk()
    settings = settings_for_arrow(spark, directory, configuration)
    return None if isinstance(settings, str) else ObjectStore(settings)
