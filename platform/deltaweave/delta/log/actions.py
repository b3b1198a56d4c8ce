"""Actions of Delta's log as JSON: a few of them are read and made without a Spark query.

The fields are those of the protocol's actions (Delta protocol, section "Actions"). Delta's own
mapper reads and writes them, as it does in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Action = dict[str, Any]

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


def to_json(spark: SparkSession, objects: JavaObject) -> Any:
    """Parse Delta's actions or other case classes, one or a Scala Seq of a few, as JSON."""
    text = jvm_.jvm(spark).java.io.StringWriter()
    _mapper(spark).writeValue(text, objects)
    return json.loads(jvm_.text_of(text.getBuffer()))


def from_json(spark: SparkSession, kind: str, actions: Sequence[Action]) -> JavaObject:
    """Build a Java list of Delta's case classes of one kind, e.g. `actions.AddFile`."""
    mapper = _mapper(spark)

    def a_list() -> JavaObject:
        kind_of = jvm_.class_of_delta(spark, f"org.apache.spark.sql.delta.{kind}")
        lists = jvm_.class_of_delta(spark, "java.util.ArrayList")
        return mapper.getTypeFactory().constructCollectionType(lists, kind_of)

    return mapper.readValue(json.dumps(actions), jvm_.made_once(spark, f"a list of {kind}", a_list))


def read_line(spark: SparkSession) -> JavaObject:
    """Build a Scala function that reads a line of a commit as one of Delta's actions."""
    return jvm_.static_function(spark, "org.apache.spark.sql.delta.actions.Action", "fromJson")


def encoder(spark: SparkSession, action: str) -> JavaObject:
    """Return Spark's encoder of an action, e.g. `addFile`."""
    implicits = jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta.implicits, "package")
    return getattr(implicits, f"{action}Encoder")()


def json_map(spark: SparkSession, items: Mapping[str, int | str]) -> JavaObject:
    """Build a Scala immutable Map of numbers and texts; a few py4j calls for any number."""
    view = jvm_.jvm(spark)
    maps = jvm_.class_of_delta(spark, "java.util.HashMap")
    return jvm_.scala_map_of(view, _mapper(spark).readValue(json.dumps(items), maps))


def json_numbers(spark: SparkSession, numbers: Sequence[int]) -> JavaObject:
    """Build a Java list of numbers, boxed by their size; one py4j call for any number."""
    lists = jvm_.class_of_delta(spark, "java.util.ArrayList")
    return _mapper(spark).readValue(json.dumps(numbers), lists)


def removal(add: Action, timestamp_ms: int) -> Action:
    """Build the RemoveFile that takes a file out of the table, with the fields that it needs."""
    return {
        **{name: add[name] for name in KEPT_BY_REMOVAL if name in add},
        "deletionTimestamp": timestamp_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
    }


def _mapper(spark: SparkSession) -> JavaObject:
    utils = jvm_.singleton(jvm_.jvm(spark).org.apache.spark.sql.delta.util, "JsonUtils")
    return jvm_.made_once(spark, "Delta's mapper of JSON", utils.mapper)
