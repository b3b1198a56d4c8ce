"""Whether new rows break a constraint, as a column beside their values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def with_broken(
    rows: DataFrame,
    values: str,
    names: Sequence[str],
    conditions: Sequence[Column],
    broken: str,
) -> DataFrame:
    """Add to the rows whether one of the conditions is false or null for the values.

    Args:
        rows: Rows with none but the engine's own columns.
        values: The column with the values (struct of `v0`, `v1`, … in the order of the names).
        names: The names by which the conditions know them.
        conditions: At least one.
        broken: The name of the new column (boolean).
    """
    kept = rows.columns
    named = [F.col(f"{values}.v{i}").alias(name) for i, name in enumerate(names)]
    holds = reduce(and_, [F.coalesce(each, F.lit(False)) for each in conditions])
    return rows.select(*kept, *named).select(*kept, (~holds).alias(broken))
