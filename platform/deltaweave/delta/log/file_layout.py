"""How the rows of a table are spread over its files, which upkeep goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import grouped, json_text
from deltaweave.delta.log.actions import Action
from deltaweave.delta.log.num_records import num_physical_rows, num_physical_rows_column, parsed


@dataclass(frozen=True)
class FileLayout:
    """How the rows of a version are spread over its files, by the log alone.

    Attributes:
        files: How many data files there are.
        size_in_bytes: Their total size.
        small_files: Files below a given size that share their partition with another such file.
            OPTIMIZE would compact them.
        unclustered_files: Files that were not clustered yet.
        rows: Rows in the files, those marked deleted included; files without statistics count as
            empty.
        deleted_rows: Rows marked deleted by deletion vectors.
        files_without_statistics: Files without a row count in the log.
    """

    files: int
    size_in_bytes: int
    small_files: int
    unclustered_files: int
    rows: int
    deleted_rows: int
    files_without_statistics: int


def layout_of(files: DataFrame, small_file_bytes: int) -> FileLayout:
    """Measure the layout of a version; one job.

    Args:
        files: Its data files, a row of AddFile's fields for each.
        small_file_bytes: Size below which a file is small.
    """
    small = F.count_if(F.col("size") < small_file_bytes)
    rows = num_physical_rows_column()
    of_partition = [
        F.count("*").alias("files"),
        F.sum("size").alias("size_in_bytes"),
        F.when(small > 1, small).otherwise(0).alias("small_files"),
        F.count_if(F.col("clusteringProvider").isNull()).alias("unclustered_files"),
        F.sum(rows).alias("rows"),
        F.sum("deletionVector.cardinality").alias("deleted_rows"),
        F.count_if(rows.isNull()).alias("files_without_statistics"),
    ]
    partitions = grouped(files, [json_text(F.col("partitionValues"))], of_partition)
    names = [each.name for each in fields(FileLayout)]
    row = partitions.agg(*[F.sum(name).alias(name) for name in names]).first()
    assert row is not None
    return FileLayout(**{name: int(row[name] or 0) for name in names})


def layout_in_log(adds: Sequence[Action], small_file_bytes: int) -> FileLayout:
    """Return the same by the files' AddFiles, without Spark."""
    small = Counter(
        tuple(sorted(add["partitionValues"].items()))
        for add in adds
        if add["size"] < small_file_bytes
    )
    rows = [num_physical_rows(parsed(add.get("stats"))) for add in adds]
    vectors = [add.get("deletionVector") or {} for add in adds]
    return FileLayout(
        files=len(adds),
        size_in_bytes=sum(add["size"] for add in adds),
        small_files=sum(files for files in small.values() if files > 1),
        unclustered_files=sum(add.get("clusteringProvider") is None for add in adds),
        rows=sum(each or 0 for each in rows),
        deleted_rows=sum(each.get("cardinality") or 0 for each in vectors),
        files_without_statistics=rows.count(None),
    )
