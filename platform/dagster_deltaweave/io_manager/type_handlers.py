"""Further types of outputs and inputs, as users add them to the IO manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagster import InputContext, OutputContext
    from pyspark.sql import DataFrame, SparkSession


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
        """The types that the handler stores, with their subclasses."""

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
