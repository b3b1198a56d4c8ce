"""Source partitions that land as directories of files.

- `listing`: lists the partitions in a landing directory as `Delivery`, each with its fingerprint.
- `landing_look`: which deliveries are complete, and the sensor's cursor.
- `source_partition`: reads a partition with Spark and checks its schema and its lines of text.
- `read_delivery`: makes sure that a run reads the delivery that its tag names.
"""

from __future__ import annotations

from dagster_deltaweave.landing.landing_look import (
    SECOND_IN_NS,
    LandingCursor,
    LandingLook,
    groups,
    is_whole_second,
    look_at_landing,
)
from dagster_deltaweave.landing.listing import Delivery, hive_value, list_deliveries, partition_path
from dagster_deltaweave.landing.read_delivery import (
    directory_name,
    directory_of,
    landing_tag,
    rows_of_delivery,
)
from dagster_deltaweave.landing.source_partition import (
    literal_path,
    read_source_partition,
    schema_as_struct,
    schema_differences,
)

__all__ = [
    "SECOND_IN_NS",
    "Delivery",
    "LandingCursor",
    "LandingLook",
    "directory_name",
    "directory_of",
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
