"""Spark's metadata column of a scan: the file that each row is in, its place there, its row id."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

NAME = "_metadata"


def file_metadata(scan: DataFrame, field: str) -> Column:
    """A field of Spark's metadata column, whatever the table's own columns are called.

    `_metadata.file_path` would mean a field of the table's column of that name, if it has one:
    Spark then gives its own column another name, and finds it by the first.

    Args:
        scan: The rows of a table's files.
        field: E.g. `file_path` (absolute, percent-encoded) or `row_index`.
    """
    return scan.metadataColumn(NAME).getField(field)
