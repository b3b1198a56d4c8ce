"""Actions of Delta's log as JSON, made and read without a Spark query, and where their files are.

The fields are those of the protocol's actions (Delta protocol, section "Actions"). Delta's own
mapper reads and writes them, as it does in the log. Paths of files are decoded and made absolute,
so that they can be compared. `TableMetadata` is the action of a table's columns and properties.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from deltaweave.delta.jvm import DeltaLog, DeltaMetadata, JavaObject, Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LogAction = dict[str, Any]

# Spark reads more actions than these as rows; their text would be long.
FEW = 1_000


KEPT_BY_REMOVAL = (
    "path",
    "partitionValues",
    "size",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "stats",
    "backReference",
)
"""Fields of an AddFile that its RemoveFile has too."""

_SCHEME = "^([A-Za-z][A-Za-z0-9+.-]*):/"


def to_json(spark: SparkSession, objects: JavaObject) -> Any:
    """Parse Delta's actions or other case classes, one or a Scala Seq of a few, as JSON."""
    text = Jvm.of(spark).java.io.StringWriter()
    _mapper(spark).writeValue(text, objects)
    return json.loads(Jvm.text_of(text.getBuffer()))


def from_json(spark: SparkSession, kind: str, actions: Sequence[LogAction]) -> JavaObject:
    """Build a Java list of Delta's case classes of one kind, e.g. `actions.AddFile`."""
    mapper, jvm = _mapper(spark), Jvm.of(spark)

    def a_list() -> JavaObject:
        kind_of = jvm.class_of_delta(f"org.apache.spark.sql.delta.{kind}")
        lists = jvm.class_of_delta("java.util.ArrayList")
        return mapper.getTypeFactory().constructCollectionType(lists, kind_of)

    return mapper.readValue(json.dumps(actions), jvm.made_once(f"a list of {kind}", a_list))


def read_line(spark: SparkSession) -> JavaObject:
    """Build a Scala function that reads a line of a commit as one of Delta's actions."""
    return Jvm.of(spark).static_function("org.apache.spark.sql.delta.actions.Action", "fromJson")


def encoder(spark: SparkSession, action: str) -> JavaObject:
    """Return Spark's encoder of an action, e.g. `addFile`."""
    implicits = Jvm.singleton(Jvm.of(spark).delta.implicits, "package")
    return getattr(implicits, f"{action}Encoder")()


def collected_actions(rows: DataFrame, action: str) -> JavaObject:
    """Collect rows of an action's fields as a Java list of such actions, e.g. `addFile`."""
    return getattr(rows._jdf, "as")(encoder(rows.sparkSession, action)).collectAsList()


def json_map(spark: SparkSession, items: Mapping[str, int | str]) -> JavaObject:
    """Build a Scala immutable Map of numbers and texts; a few py4j calls for any number."""
    jvm = Jvm.of(spark)
    maps = jvm.class_of_delta("java.util.HashMap")
    return jvm.scala_map_of(_mapper(spark).readValue(json.dumps(items), maps))


def json_numbers(spark: SparkSession, numbers: Sequence[int]) -> JavaObject:
    """Build a Java list of numbers, boxed by their size; one py4j call for any number."""
    lists = Jvm.of(spark).class_of_delta("java.util.ArrayList")
    return _mapper(spark).readValue(json.dumps(numbers), lists)


def removal(add: LogAction, timestamp_ms: int) -> LogAction:
    """Build the RemoveFile that takes a file out of the table, with the fields that it needs."""
    return {
        **{name: add[name] for name in KEPT_BY_REMOVAL if name in add},
        "deletionTimestamp": timestamp_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
    }


def _mapper(spark: SparkSession) -> JavaObject:
    utils = Jvm.singleton(Jvm.of(spark).delta.util, "JsonUtils")
    return Jvm.of(spark).made_once("Delta's mapper of JSON", utils.mapper)


def commit_name(version: int) -> str:
    """Return the name of the log's file with a version's commit."""
    return f"{version:020}.json"


def commit_file(log: DeltaLog, version: int) -> JavaObject:
    """Return Hadoop's path of the log's file with a version's commit."""
    return log.logPath().suffix(f"/{commit_name(version)}")


def decoded_location(path: str) -> str:
    """Decode an absolute path, with `scheme:///x` written as `scheme:/x`.

    Writers encode differently ("ü" as it is, or as %C3%BC), so names are compared decoded.
    """
    return re.sub(_SCHEME + "{3,}", r"\1:/", unquote(path))


def has_plain_spelling(location: str) -> bool:
    """Return whether `_metadata.file_path` spells a decoded location as it is, and only so.

    Others are compared decoded, or not at all: Spark encodes a blank, and leaves "ü" and "(".
    """
    return re.fullmatch(r"[A-Za-z0-9_.:/=-]+", location) is not None


def absolute_location(path: str, path_of_table: str) -> str:
    """Return the `decoded_location` of a file by its path in the log."""
    path = decoded_location(path)
    is_absolute = path.startswith("/") or re.match(_SCHEME, path)
    return path if is_absolute else f"{path_of_table.rstrip('/')}/{path}"


def decoded(path: Column) -> Column:
    """Build `decoded_location` as a Column."""
    # url_decode would also turn "+" into a space; in paths it is a plus.
    path = F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, _SCHEME + "{3,}", "$1:/")


def location_in(path_of_table: str) -> Column:
    """Build `absolute_location` of the column `path`, as a Column."""
    path = decoded(F.col("path"))
    is_absolute = path.rlike(_SCHEME) | path.startswith("/")
    return F.when(is_absolute, path).otherwise(
        F.concat(F.lit(path_of_table.rstrip("/") + "/"), path)
    )


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
        return TableMetadata.of_action(to_json(spark, metadata))

    @staticmethod
    def of_action(fields: LogAction) -> TableMetadata:
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
