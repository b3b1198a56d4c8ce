"""Source partitions that land as directories of files.

- `listing`: lists the partitions in a landing directory as `Delivery`, each with its fingerprint;
  which of them are complete, and the sensor's cursor.
- `source_partition`: reads a partition with Spark, checks its schema and its lines of text, and
  makes sure that it is the delivery that the run's tag names.
"""

from __future__ import annotations

from dagster_deltaweave.landing.listing import (
    SECOND_IN_NS,
    Delivery,
    LandingCursor,
    LandingLook,
    groups,
    hive_value,
    is_whole_second,
    list_deliveries,
    look_at_landing,
    partition_path,
)
from dagster_deltaweave.landing.source_partition import (
    Landing,
    landing_tag,
    literal_path,
    read_source_partition,
    rows_of_delivery,
    schema_as_struct,
    schema_differences,
)

__all__ = [
    "SECOND_IN_NS",
    "Delivery",
    "Landing",
    "LandingCursor",
    "LandingLook",
    "groups",
    "hive_value",
    "is_whole_second",
    "landing_tag",
    "list_deliveries",
    "literal_path",
    "look_at_landing",
    "partition_path",
    "read_source_partition",
    "rows_of_delivery",
    "schema_as_struct",
    "schema_differences",
]
