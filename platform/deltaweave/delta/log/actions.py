"""Actions of Delta's log as JSON: a few of them are read and made without a Spark query.

The fields are those of the protocol's actions (Delta protocol, section "Actions"). Delta's own
mapper reads and writes them, as it does in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaweave.delta.jvm import JavaObject, Jvm

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
    text = Jvm.of(spark).java.io.StringWriter()
    _mapper(spark).writeValue(text, objects)
    return json.loads(Jvm.text_of(text.getBuffer()))


def from_json(spark: SparkSession, kind: str, actions: Sequence[Action]) -> JavaObject:
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


def json_map(spark: SparkSession, items: Mapping[str, int | str]) -> JavaObject:
    """Build a Scala immutable Map of numbers and texts; a few py4j calls for any number."""
    jvm = Jvm.of(spark)
    maps = jvm.class_of_delta("java.util.HashMap")
    return jvm.scala_map_of(_mapper(spark).readValue(json.dumps(items), maps))


def json_numbers(spark: SparkSession, numbers: Sequence[int]) -> JavaObject:
    """Build a Java list of numbers, boxed by their size; one py4j call for any number."""
    lists = Jvm.of(spark).class_of_delta("java.util.ArrayList")
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
    utils = Jvm.singleton(Jvm.of(spark).delta.util, "JsonUtils")
    return Jvm.of(spark).made_once("Delta's mapper of JSON", utils.mapper)
