"""Rows of the change data feed, written in the same job as the table's rows.

Delta's writer puts rows whose `_change_type` is null into the table's files, and all others into
change files. So each change becomes several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.identifiers import column

CHANGE_TYPE = "_change_type"

_ROW = "_row_"
_BEFORE = "_before_"
_AFTER = "_after_"
_ENTRIES = "_entries_"


def recorded(
    rows: DataFrame,
    names: Sequence[str],
    before: Sequence[Column],
    after: Sequence[Column],
    *,
    is_update: Column,
    is_delete: Column,
) -> DataFrame:
    """Return the table's rows and the feed's rows of joined target rows.

    An update gives a row of the table, a pre-image and a post-image. A delete gives a row of the
    feed, and an unmodified row one of the table.

    Args:
        rows: The joined rows.
        names: Names of the table's columns.
        before: The columns' values before the merge.
        after: Their values after it.
        is_update: Whether a row is updated.
        is_delete: Whether a row is deleted.
    """
    # A projection of their own computes both images once, since values may be random.
    images = rows.select(
        _struct(names, before).alias(_BEFORE),
        _struct(names, after).alias(_AFTER),
        is_update.alias("_is_update_"),
        is_delete.alias("_is_delete_"),
    )
    entries = (
        F.when(
            F.col("_is_update_"),
            F.array(
                _entry(_AFTER, None),
                _entry(_BEFORE, "update_preimage"),
                _entry(_AFTER, "update_postimage"),
            ),
        )
        .when(F.col("_is_delete_"), F.array(_entry(_BEFORE, "delete")))
        .otherwise(F.array(_entry(_BEFORE, None)))
    )
    return _spread(images, names, entries)


def recorded_inserts(inserts: DataFrame) -> DataFrame:
    """Return inserted rows as the table's rows and as the feed's."""
    names = inserts.columns
    columns = [column(name) for name in names]
    rows = inserts.select(_struct(names, columns).alias(_AFTER))
    return _spread(rows, names, F.array(_entry(_AFTER, None), _entry(_AFTER, "insert")))


def _struct(names: Sequence[str], values: Sequence[Column]) -> Column:
    return F.struct(*[value.alias(name) for name, value in zip(names, values, strict=True)])


def _entry(image: str, change_type: str | None) -> Column:
    return F.struct(F.col(image).alias(_ROW), F.lit(change_type).cast("string").alias(CHANGE_TYPE))


def _spread(rows: DataFrame, names: Sequence[str], entries: Column) -> DataFrame:
    entry = rows.select(F.explode(entries).alias(_ENTRIES))
    columns = [column(_ENTRIES, _ROW, name).alias(name) for name in names]
    return entry.select(*columns, column(_ENTRIES, CHANGE_TYPE).alias(CHANGE_TYPE))
