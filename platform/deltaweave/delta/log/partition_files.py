"""Which files lie in partitions that can satisfy a predicate, found without a job."""

from __future__ import annotations

import json

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.file_list import FileList


def reads_partitions_alone(partition_schema: JavaObject, predicate: JavaObject) -> bool:
    """Whether a predicate reads no other columns than partition columns."""
    names = {field["name"] for field in json.loads(partition_schema.json())["fields"]}
    return {attribute.name() for attribute in jvm_.iterate(predicate.references())} <= names


def in_partitions(files: FileList, partition_schema: JavaObject, predicate: JavaObject) -> set[str]:
    """The paths of those of the files whose partitions can satisfy a predicate over them alone."""
    view = jvm_.jvm(files.spark)
    chosen = view.org.apache.spark.sql.delta.DeltaLog.filterFileList(
        partition_schema,
        files.data_frame._jdf,
        jvm_.seq(view, [predicate]),
        jvm_.seq(view, []),
        True,
    )
    return {row["path"] for row in jvm_.data_frame(files.spark, chosen).select("path").collect()}
