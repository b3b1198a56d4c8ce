"""Counts of pairs by file: pairs, matched and changed rows, and those of each clause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltaweave.delta.jvm import collected, grouped
from deltaweave.engine.columns import (
    CLAUSE,
    FILE,
    INSERTABLE,
    MATCHES,
    NO_CLAUSE,
    SOURCE_ROW,
    TARGET_ROW_ID,
)

if TYPE_CHECKING:
    import pyarrow


def counted(pairs: DataFrame, num_clauses: int, *, one_each: bool) -> pyarrow.Table:
    """Count pairs by Spark; see `Pairs.counts_per_file`."""
    of_source = {INSERTABLE: F.count_if(INSERTABLE)} if INSERTABLE in pairs.columns else {}
    if one_each:
        # Each row is one group: no shuffle is needed.
        rows = pairs.withColumn(MATCHES, F.col(SOURCE_ROW).isNotNull().cast("int"))
    else:
        # If a row may match repeatedly, one clause takes all of its pairs.
        of_pairs = [F.count(SOURCE_ROW).alias(MATCHES), F.max(CLAUSE).alias(CLAUSE)]
        of_pairs += [count.alias(name) for name, count in of_source.items()]
        rows = grouped(pairs, [FILE, TARGET_ROW_ID], of_pairs)
        of_source = {name: F.sum(name) for name in of_source}
    of_rows = [
        F.sum(MATCHES).alias("pairs"),
        F.count_if(F.col(MATCHES) > 0).alias("matched"),
        F.count_if(F.col(MATCHES) > 1).alias("ambiguous"),
        F.count_if(F.col(CLAUSE) != NO_CLAUSE).alias("changed"),
        *[F.count_if(F.col(CLAUSE) == i).alias(f"clause_{i}") for i in range(num_clauses)],
        *[count.alias("insertable") for count in of_source.values()],
    ]
    return collected(grouped(rows, [FILE], of_rows))


def counted_here(pairs: pyarrow.Table, num_clauses: int, *, one_each: bool) -> pyarrow.Table:
    """Count pairs on the driver, as `counted` does by Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_source = [INSERTABLE] if INSERTABLE in pairs.column_names else []
    pairs = pairs.append_column(MATCHES, pc.is_valid(pairs[SOURCE_ROW]).cast("int64"))
    if not one_each:
        sums = [MATCHES, *of_source]
        pairs = (
            pairs.group_by([FILE, TARGET_ROW_ID])
            .aggregate([(CLAUSE, "max"), *[(name, "sum") for name in sums]])
            .rename_columns({f"{CLAUSE}_max": CLAUSE, **{f"{name}_sum": name for name in sums}})
        )
    matches, clause = pairs[MATCHES], pairs[CLAUSE]
    columns = {
        "pairs": matches,
        "matched": pc.greater(matches, 0).cast("int64"),
        "ambiguous": pc.greater(matches, 1).cast("int64"),
        "changed": pc.not_equal(clause, NO_CLAUSE).cast("int64"),
        **{f"clause_{i}": pc.equal(clause, i).cast("int64") for i in range(num_clauses)},
    }
    if of_source:
        columns["insertable"] = pairs[INSERTABLE].cast("int64")
    counts = pa.table({FILE: pairs[FILE], **columns}).group_by(FILE)
    summed = counts.aggregate([(name, "sum") for name in columns])
    return summed.rename_columns({f"{name}_sum": name for name in columns})
