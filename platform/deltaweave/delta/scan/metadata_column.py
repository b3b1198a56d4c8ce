"""Spark's metadata column of a scan: each row's file, position in the file, and row id."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

METADATA_COLUMN = "_metadata"


def file_metadata(scan: DataFrame, field: str) -> Column:
    """Return a field of Spark's metadata column, even if the table has a column of that name.

    `_metadata.file_path` would then read a field of the table's own column. Spark renames its
    metadata column in this case, and still finds it by its original name.

    Args:
        scan: The rows of a table's files.
        field: E.g. `file_path` (absolute, percent-encoded) or `row_index`.
    """
    return Column(scan._jdf.metadataColumn(METADATA_COLUMN).getField(field))
