"""Converts rows between Spark and the type that an asset's function takes or returns.

It imports pandas and Arrow only for values or annotations of their types. It never imports Polars,
which is optional, but uses it if the deployment has imported it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from deltaweave.errors import SourceError

KNOWN = (
    "pyspark.sql.DataFrame, pandas.DataFrame, pyarrow.Table, pyarrow.RecordBatchReader, "
    "polars.DataFrame and polars.LazyFrame"
)


def to_spark(spark: SparkSession, rows: Any) -> DataFrame | None:
    """Convert rows to a Spark DataFrame; None if their type is unknown.

    Rows of other types go through the driver's memory as Arrow.
    """
    if isinstance(rows, DataFrame):
        return rows
    arrow = _arrow(rows)
    return None if arrow is None else spark.createDataFrame(arrow)


def _arrow(rows: Any) -> Any:
    """Convert rows to an Arrow table; None if their type is unknown."""
    module = type(rows).__module__.split(".")[0]
    if module == "polars":
        return _polars_to_arrow(rows)
    if module not in ("pandas", "pyarrow"):
        return None
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    import pandas as pd

    if isinstance(rows, pd.DataFrame):
        return pa.Table.from_pandas(rows, preserve_index=False)
    return None


def _polars_to_arrow(rows: Any) -> Any:
    import polars as pl

    if isinstance(rows, pl.LazyFrame):
        try:
            rows = rows.collect()
        except pl.exceptions.PolarsError as error:
            raise SourceError(
                f"the asset's LazyFrame cannot be computed: {error}",
                operation="storing",
                hint="Call collect() on it in the asset's function to see which step fails.",
            ) from error
    # Spark reads neither Polars' string views nor its dictionaries, but it reads the oldest layout.
    return (
        rows.to_arrow(compat_level=pl.CompatLevel.oldest())
        if isinstance(rows, pl.DataFrame)
        else None
    )


def as_annotated(rows: DataFrame, annotation: Any, *, what: str) -> Any:
    """Convert rows to the type that the input is annotated with; else to a lazy DataFrame.

    Args:
        rows: The rows.
        annotation: The input's type.
        what: The input's name for the error message.

    Raises:
        SourceError: Tables cannot be loaded as this type.
    """
    if annotation in (Any, object, None) or annotation is DataFrame:
        return rows
    for is_it, converted in _CONVERSIONS:
        if is_it(annotation):
            return converted(rows, annotation)
    raise SourceError(
        f"the input {what} is annotated {getattr(annotation, '__name__', annotation)}, which no "
        "table is loaded as.",
        operation="READ",
        hint=f"The supported types are {KNOWN}.",
    )


def _is_in(module: str, *names: str) -> Callable[[Any], bool]:
    """Return whether a type is from a module; no value has types of a module not imported."""

    def is_it(annotation: Any) -> bool:
        loaded = sys.modules.get(module)
        return loaded is not None and any(
            annotation is getattr(loaded, name, None) for name in names
        )

    return is_it


def _to_pandas(rows: DataFrame, _: Any) -> Any:
    with warnings.catch_warnings():
        # pyspark warns of an error, with Java's stack trace, and raises it, too.
        warnings.filterwarnings("ignore", "toPandas attempted Arrow optimization")
        return rows.toPandas()


def _to_polars(rows: DataFrame, annotation: Any) -> Any:
    import polars as pl

    frame = pl.DataFrame(rows.toArrow())
    return frame.lazy() if annotation is pl.LazyFrame else frame


_CONVERSIONS: tuple[tuple[Callable[[Any], bool], Callable[[DataFrame, Any], Any]], ...] = (
    # DataFrame or a parent of it: Spark has classic and Connect subclasses.
    (lambda kind: isinstance(kind, type) and issubclass(DataFrame, kind), lambda rows, _: rows),
    (lambda kind: isinstance(kind, type) and issubclass(kind, DataFrame), lambda rows, _: rows),
    (_is_in("pandas", "DataFrame"), _to_pandas),
    (_is_in("pyarrow", "Table"), lambda rows, _: rows.toArrow()),
    (_is_in("pyarrow", "RecordBatchReader"), lambda rows, _: rows.toArrow().to_reader()),
    (_is_in("polars", "DataFrame", "LazyFrame"), _to_polars),
)
