"""Actions of Delta's log as JSON: a few of them are read and made without a Spark query.

The fields are those of the protocol's actions (Delta protocol, section "Actions"). Delta's own
mapper reads and writes them, as it does in the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

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


def to_json(view: JavaObject, objects: JavaObject) -> list[Action]:
    """A Scala Seq of a few actions, or of other case classes, as parsed JSON."""
    text = view.java.io.StringWriter()
    _mapper(view).writeValue(text, objects)
    actions: list[Action] = json.loads(jvm_.text_of(text.getBuffer()))
    return actions


def from_json(view: JavaObject, kind: str, actions: Sequence[Action]) -> JavaObject:
    """A Java list of Delta's case classes of one kind, e.g. `actions.AddFile`."""
    mapper = _mapper(view)
    # Delta's own class loader finds them, even if its jars were added to a running JVM.
    loader = jvm_.singleton(view.org.apache.spark.sql.delta.util, "JsonUtils").getClass()
    kind_of = loader.getClassLoader().loadClass(f"org.apache.spark.sql.delta.{kind}")
    types = mapper.getTypeFactory()
    a_list = types.constructCollectionType(view.java.util.ArrayList().getClass(), kind_of)
    return mapper.readValue(json.dumps(actions), a_list)


def json_map(view: JavaObject, items: Mapping[str, int | str]) -> JavaObject:
    """A Scala immutable Map of numbers and texts; a few py4j calls for any number."""
    java_map = _mapper(view).readValue(json.dumps(items), view.java.util.HashMap().getClass())
    return jvm_.scala_map_of(view, java_map)


def removal(add: Action, timestamp_ms: int) -> Action:
    """The RemoveFile that takes a file out of the table, with the fields that it needs."""
    return {
        **{name: add[name] for name in KEPT_BY_REMOVAL if name in add},
        "deletionTimestamp": timestamp_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
    }


def _mapper(view: JavaObject) -> JavaObject:
    return jvm_.singleton(view.org.apache.spark.sql.delta.util, "JsonUtils").mapper()
