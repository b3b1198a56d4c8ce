"""Small Delta tables on disk, written by Spark and Delta alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltaweave.identifiers import quoted
from tests.generated_columns import create_generated, sql_can_create

Rows = Sequence[tuple[Any, ...]]


def frame(spark: SparkSession, rows: Rows, schema: str, *, files: int = 1) -> DataFrame:
    """The rows in order, in as many partitions as `files`, each with an equal share of them."""
    if files == 1:
        return spark.createDataFrame(list(rows), schema).coalesce(1)
    # Not a union: Spark 4.2 puts the single partitions of its children together.
    share = -(-len(rows) // files) or 1
    numbered = [(*row, place // share) for place, row in enumerate(rows)]
    shared = spark.createDataFrame(numbered, f"{schema}, _share_ INT")
    return shared.repartitionByRange(files, "_share_").drop("_share_")


def write_table(
    spark: SparkSession,
    path: str,
    rows: Rows,
    schema: str,
    *,
    ddl: str | None = None,
    files: int = 1,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    setup: Sequence[str] = (),
) -> None:
    """Write a Delta table whose first version (or second, where `ddl` is given) holds the rows.

    Args:
        spark: A Delta-enabled session.
        path: The table's folder.
        rows: Its rows.
        schema: Their columns, as DDL.
        ddl: The table's columns where they say more than `schema` (defaults, generated columns,
            NOT NULL) or where the table must be created by a statement.
        files: How many data files to write (of each partition, at most).
        partition_by: Partition columns.
        cluster_by: Liquid clustering columns.
        properties: Table properties.
        setup: Statements to run afterwards, with `{target}` for the table.
    """
    target = f"delta.{quoted(path)}"
    writer = frame(spark, rows, schema, files=files).write.format("delta")
    if ddl is None and not cluster_by:
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.options(**properties or {}).save(path)
    else:
        columns = ddl or schema
        if sql_can_create(columns):
            spark.sql(_create(target, columns, partition_by, cluster_by, properties or {}))
        else:
            create_generated(spark, path, columns, partition_by, properties or {})
        if rows:
            writer.mode("append").save(path)
    for statement in setup:
        spark.sql(statement.format(target=target))


def _create(
    target: str,
    ddl: str,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
) -> str:
    statement = f"CREATE TABLE {target} ({ddl}) USING delta"
    if partition_by:
        statement += f" PARTITIONED BY ({', '.join(map(quoted, partition_by))})"
    if cluster_by:
        statement += f" CLUSTER BY ({', '.join(cluster_by)})"
    if properties:
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        statement += f" TBLPROPERTIES ({pairs})"
    return statement
