"""Files as numbers: their indexes among some files, since their names are long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deltaweave.engine.columns import FILE, NUMBER

if TYPE_CHECKING:
    import pyarrow


def with_numbers(rows: DataFrame, files: Sequence[str]) -> DataFrame:
    """Add the file's `NUMBER`, as in `Pairs.changed_numbered`, to rows of some files."""
    return rows.join(F.broadcast(numbered_files(rows.sparkSession, files)), FILE)


def numbered_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Build a DataFrame of `NUMBER` (int) and `FILE` of the files."""
    import pyarrow as pa

    numbers = pa.array(range(len(files)), pa.int32())
    return spark.createDataFrame(pa.table({NUMBER: numbers, FILE: pa.array(files, pa.string())}))


def places_of_files(column: pyarrow.ChunkedArray, files: Sequence[str]) -> pyarrow.ChunkedArray:
    """Return the index (int32) among some files of each file of a column; null for other files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(files, pa.string())
    if not pa.types.is_dictionary(column.type):
        return pc.index_in(column, value_set=wanted)
    parts = [
        pc.index_in(part.dictionary, value_set=wanted).take(part.indices) for part in column.chunks
    ]
    return pa.chunked_array(parts, pa.int32())
