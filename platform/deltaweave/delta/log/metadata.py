"""A table's metadata: its columns and properties, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from deltaweave.delta.jvm import DeltaMetadata
from deltaweave.delta.log import actions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY_INDEX_PROPERTY = "deltaweave.keyIndex"
"""The table property that names the column of the key index."""

_NO_COLUMNS = '{"type":"struct","fields":[]}'
_CHANGE_FEED = "delta.enableChangeDataFeed"
_COLUMN_MAPPING = "delta.columnMapping"
_TYPE_CHANGES = "delta.typeChanges"


@dataclass(frozen=True)
class TableMetadata:
    """The action `metaData` (Delta protocol, section "Change Metadata").

    Attributes:
        id: Delta's id of the table; a new table in the same place has another id.
        created_at_ms: When the table with this id was created, in ms since 1970, or None.
        schema_text: The columns, as Spark's JSON.
        partition_columns: The names of the partition columns, in order.
    """

    id: str
    created_at_ms: int | None
    schema_text: str
    partition_columns: Sequence[str]
    properties: Mapping[str, str]

    @staticmethod
    def of(spark: SparkSession, metadata: DeltaMetadata) -> TableMetadata:
        """Read Delta's `Metadata`; a few py4j calls."""
        return TableMetadata.of_action(actions.to_json(spark, metadata))

    @staticmethod
    def of_action(fields: actions.LogAction) -> TableMetadata:
        """Read the action as the log has it."""
        return TableMetadata(
            fields["id"],
            fields.get("createdTime"),
            fields.get("schemaString") or _NO_COLUMNS,
            fields.get("partitionColumns") or [],
            fields.get("configuration") or {},
        )

    @cached_property
    def schema(self) -> StructType:
        """The columns."""
        return StructType.fromJson(json.loads(self.schema_text))

    @property
    def indexed_column(self) -> str | None:
        """The column of the table's key index, if it has one."""
        return self.properties.get(KEY_INDEX_PROPERTY)

    @cached_property
    def widened_decimals(self) -> frozenset[str]:
        """The columns that are decimals, or have such fields, and were of another type before.

        Spark's filters on Parquet files convert a decimal to the type that the file has at the same
        scale, where it may overflow: they skip row groups that hold the row, or fail.
        """
        if _TYPE_CHANGES not in self.schema_text:
            return frozenset()
        return frozenset(field.name for field in self.schema if _is_widened_decimal(field))

    def fields_at(self, path: Sequence[str]) -> list[StructField]:
        """Return the fields on the path to a column or nested field, outermost first."""
        found: list[StructField] = []
        within: DataType = self.schema
        for name in path:
            assert isinstance(within, StructType), "only structs have fields"
            found.append(within[name])
            within = found[-1].dataType
        return found

    def physical_path(self, path: Sequence[str]) -> tuple[str, ...]:
        """Return the path of a column or nested field in files and statistics."""
        return tuple(map(physical_name, self.fields_at(path)))

    @property
    def keeps_change_feed(self) -> bool:
        """Whether changes are recorded for the table's change data feed."""
        return self.is_on(_CHANGE_FEED)

    def is_on(self, name: str) -> bool:
        """Return whether a property is set to true."""
        return self.properties.get(name, "").lower() == "true"

    @property
    def column_mapping(self) -> str:
        """How files name columns (Delta protocol, "Column Mapping"): `none`, `name` or `id`."""
        return self.properties.get(f"{_COLUMN_MAPPING}.mode", "none").lower()

    @property
    def _is_mapped(self) -> bool:
        return self.column_mapping in ("name", "id")

    @property
    def has_unused_names(self) -> bool:
        """Whether columns have names for files that no reader uses, as a defect of Delta left them.

        See DeltaColumnMapping.verifyAndUpdateMetadataChange in Delta's source.
        """
        return not self._is_mapped and f"{_COLUMN_MAPPING}.physicalName" in self.schema_text

    @property
    def has_random_directories(self) -> bool:
        """Whether new files lie in directories of random names, not in those of partitions."""
        return self._is_mapped or self.is_on("delta.randomizeFilePrefixes")


def _is_widened_decimal(field: StructField) -> bool:
    if isinstance(field.dataType, StructType):
        return any(map(_is_widened_decimal, field.dataType))
    return isinstance(field.dataType, DecimalType) and _TYPE_CHANGES in (field.metadata or {})


def physical_name(field: StructField) -> str:
    """Return what files and statistics call a column or nested field."""
    return str((field.metadata or {}).get(f"{_COLUMN_MAPPING}.physicalName", field.name))
