"""Which files lie in partitions that can satisfy a predicate, found without a job."""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.file_list import FileList


def in_partitions(
    files: FileList, partition_schema: JavaObject, predicates: Sequence[JavaObject]
) -> set[str] | None:
    """Return the paths of the files whose partitions can satisfy all predicates.

    None if one reads other columns than partition columns.
    """
    names = {field["name"] for field in json.loads(partition_schema.json())["fields"]}
    for predicate in predicates:
        if not {attribute.name() for attribute in jvm_.iterate(predicate.references())} <= names:
            return None
    view = jvm_.jvm(files.spark)
    chosen = view.org.apache.spark.sql.delta.DeltaLog.filterFileList(
        partition_schema,
        files.data_frame._jdf,
        jvm_.seq(view, predicates),
        jvm_.seq(view, []),
        True,
    )
    return {row["path"] for row in jvm_.data_frame(files.spark, chosen).select("path").collect()}
