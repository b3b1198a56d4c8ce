"""Converts rows between Spark and the type that an asset's function takes or returns.

Outputs of several partitions become one DataFrame. Users add further types by a `TypeHandler`.

pandas, Arrow and Polars, which is optional, are imported only for values or inputs of their types.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import NullType

from dagster_deltaweave.tables import Changes, ChangesOfPartitions
from deltaweave.delta.jvm import translated
from deltaweave.errors import SourceError

if TYPE_CHECKING:
    from dagster import AssetKey, InputContext, OutputContext
    from pyspark.sql.types import DataType


_logger = logging.getLogger(__name__)

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
        # What groupby and set_index leave in the index has a name; row numbers have none.
        named = [each for each in rows.index.names if each is not None and each not in rows.columns]
        rows = rows.reset_index(level=named) if named else rows
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


def kept_for_readers(
    value: Any, handlers: Sequence[TypeHandler] = ()
) -> tuple[Any, Callable[[], Any]]:
    """Return a value to read now, and a function that gives the value to each later reader.

    Record batches that can be read once are read into a table, which stays in memory. The function
    raises for other values that can be read once: they may be endless, or bigger than memory.
    """
    by_partition = is_by_partition(value, handlers)
    if by_partition and any(isinstance(each, Iterator) for each in value.values()):
        parts = {key: kept_for_readers(each) for key, each in value.items()}
        now = {key: rows for key, (rows, _) in parts.items()}
        return now, lambda: {key: again() for key, (_, again) in parts.items()}
    if isinstance(value, Changes):
        rows, rows_again = kept_for_readers(value.rows)
        return replace(value, rows=rows), lambda: replace(value, rows=rows_again())
    if not isinstance(value, Iterator):
        return value, lambda: value
    if type(value).__module__.split(".")[0] == "pyarrow":
        import pyarrow as pa

        if isinstance(value, pa.RecordBatchReader):
            table = value.read_all()
            return table.to_reader(), table.to_reader
    return value, partial(_refuse_read_once, type(value).__name__)


def _refuse_read_once(kind: str) -> None:
    raise SourceError(
        f"the {kind} that another op of the graph returned can be read once, and it was read when "
        "that op's table was stored.",
        operation="READ",
        state="This step wrote nothing.",
        hint=f"Return rows that can be read again, such as {KNOWN}.",
    )


def as_annotated(rows: DataFrame, annotation: Any, *, what: str) -> Any:
    """Convert rows to the type that the input is annotated with; else to a lazy DataFrame."""
    # DataFrame or a parent of it: Spark has classic and Connect subclasses.
    is_frame = isinstance(annotation, type) and (
        issubclass(DataFrame, annotation) or issubclass(annotation, DataFrame)
    )
    if is_frame or annotation in (Any, None):
        return rows
    name = getattr(annotation, "__name__", annotation)
    package = str(getattr(annotation, "__module__", "")).split(".")[0]
    convert = _CONVERSIONS.get(f"{package}.{name}")
    if convert is None:
        raise SourceError(
            f"the input {what} is annotated {name}, which no table is loaded as.",
            operation="READ",
            hint=f"The supported types are {KNOWN}.",
        )
    return convert(rows)


def _to_pandas(rows: DataFrame) -> Any:
    with warnings.catch_warnings():
        # pyspark would also show the error that it raises as a warning, with Java's stack trace.
        warnings.filterwarnings("ignore", "toPandas attempted Arrow optimization")
        return rows.toPandas()


def _to_polars(rows: DataFrame) -> Any:
    import polars as pl

    return pl.DataFrame(rows.toArrow())


_CONVERSIONS: Mapping[str, Callable[[DataFrame], Any]] = {
    "pandas.DataFrame": _to_pandas,
    "pyarrow.Table": lambda rows: rows.toArrow(),
    "pyarrow.RecordBatchReader": lambda rows: rows.toArrow().to_reader(),
    "polars.DataFrame": _to_polars,
    "polars.LazyFrame": lambda rows: _to_polars(rows).lazy(),
}
"""Type of an annotation, by its package and name, to the conversion."""


ToRows: TypeAlias = "Callable[[Any], DataFrame | None]"
"""Gives the rows of a value; None if its type is unknown."""


def is_by_partition(output: Any, handlers: Sequence[TypeHandler]) -> bool:
    """Return whether an output is rows by partition: a mapping that no handler stores as one."""
    return isinstance(output, Mapping) and handler_of_value(handlers, output) is None


def without_empty_partitions(
    output: Mapping[str, Any], asset: AssetKey, partitions: Sequence[str]
) -> Mapping[str, Any] | None:
    """Drop the partitions for which the output has None; return None if it has no others.

    Raises:
        SourceError: The output has a key, also of None, that is no partition of the run.
    """
    _refuse_unknown_partitions(output, partitions, asset.to_user_string())
    return {key: rows for key, rows in output.items() if rows is not None} or None


def changes_of_output(
    to_rows: ToRows, output: Any, asset: AssetKey, *, by_partition: bool
) -> Changes:
    """Return the rows to store, of one table or of one for each partition of the run."""
    name = asset.to_user_string()
    if by_partition:
        parts = {key: _spark_rows(to_rows, rows, name) for key, rows in output.items()}
        _check_columns(parts, name)
        return ChangesOfPartitions(
            reduce(lambda one, other: one.unionByName(other), parts.values()), parts=parts
        )
    changes = output if isinstance(output, Changes) else Changes(output)
    return Changes(_spark_rows(to_rows, changes.rows, name), changes.applied)


def _spark_rows(to_rows: ToRows, output: Any, asset: str) -> DataFrame:
    with translated(asset, operation="storing", otherwise=SourceError):
        rows = to_rows(output)
    if rows is None:
        raise SourceError(
            f"the asset function returned {type(output).__name__}, which is not a table.",
            table=asset,
            operation="storing",
            hint=f"Return {KNOWN}, a Changes of one of these, or None. In a run of several "
            "partitions, return {partition key: rows}.",
        )
    return rows


def _refuse_unknown_partitions(
    output: Mapping[str, Any], partitions: Sequence[str], asset: str
) -> None:
    unknown = [str(key) for key in output if key not in partitions]
    if unknown:
        raise SourceError(
            f"the asset function returned rows of {', '.join(unknown)}, which are not partitions "
            "of this run.",
            table=asset,
            operation="storing",
            hint=f"The run has {', '.join(partitions) or 'no partitions'}: return rows of these.",
        )


def _check_columns(parts: Mapping[str, DataFrame], asset: str) -> None:
    first, *others = parts
    types = {field.name.lower(): field.dataType for field in parts[first].schema}
    names = set(types)
    for key in others:
        differing = names ^ {name.lower() for name in parts[key].columns}
        if differing:
            raise SourceError(
                f"the rows of the partitions {first} and {key} differ in the columns "
                f"{', '.join(sorted(differing))}.",
                table=asset,
                operation="storing",
                hint="Return the same columns for each partition, or run them one by one.",
            )
        others_types = {f.name.lower(): f.dataType for f in parts[key].schema}
        unlike = [name for name, kind in types.items() if not _alike(kind, others_types[name])]
        if unlike:
            raise SourceError(
                f"the columns {', '.join(unlike)} have other types in the rows of the partition "
                f"{key} than in those of {first}.",
                table=asset,
                operation="storing",
                hint="Return the same types for each partition, or run them one by one.",
            )


def _alike(one: DataType, other: DataType) -> bool:
    """Return whether two types are the same; that of nulls alone fits every type."""
    is_same = one.simpleString() == other.simpleString()
    return is_same or isinstance(one, NullType) or isinstance(other, NullType)


@contextmanager
def viewed(changes: DataFrame) -> Iterator[str]:
    """Yield the name of a temporary view of the changes."""
    view = f"changes_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        try:
            changes.sparkSession.catalog.dropTempView(view)
        except Exception:  # the session ended, but its commit stands
            _logger.warning("The view %s stays", view, exc_info=True)


class TypeHandler(ABC):
    """Stores and loads values of further types, as `DbTypeHandler` does in Dagster's IO managers.

    >>> class Lake(SparkDeltaIOManager):
    ...     @staticmethod
    ...     def type_handlers() -> Sequence[TypeHandler]:
    ...         return [DuckDBRelations()]
    """

    @property
    @abstractmethod
    def supported_types(self) -> Sequence[type[object]]:
        """The types that the handler stores, with their subclasses; also mappings, as one value."""

    @abstractmethod
    def handle_output(self, context: OutputContext, obj: Any, spark: SparkSession) -> DataFrame:
        """Return the rows of a value, which the IO manager stores as the asset declares."""

    @abstractmethod
    def load_input(self, context: InputContext, rows: DataFrame) -> Any:
        """Convert an input's rows to the type that it is annotated with."""


def handler_of_value(handlers: Sequence[TypeHandler], value: object) -> TypeHandler | None:
    """Return the first handler of a value's type."""
    found = (each for each in handlers if isinstance(value, tuple(each.supported_types)))
    return next(found, None)


def handler_of_type(handlers: Sequence[TypeHandler], annotation: object) -> TypeHandler | None:
    """Return the first handler of the type that an input is annotated with."""
    return next((each for each in handlers if annotation in each.supported_types), None)
