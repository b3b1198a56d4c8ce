"""Partition columns in merges on the driver: the log has their value for each file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import row_schema
from deltaweave.engine.tasks import NotRewritableError

if TYPE_CHECKING:
    import pyarrow

PartitionValues: TypeAlias = "Mapping[str, pyarrow.Scalar]"
"""The values of a file's partition columns, by the names in the log."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class PartitionColumns:
    """A table's partition columns: strings, whole numbers and dates.

    Attributes:
        fields: The columns, by the names in the log; none in a table without partitions.
    """

    fields: pyarrow.Schema

    @classmethod
    def of(cls, transaction: Transaction) -> PartitionColumns:
        """Those of a merge's target."""
        import pyarrow as pa

        physical, rows = transaction.table.physical_names, row_schema(transaction)
        names = [physical[name] for name in transaction.partition_columns]
        return cls(pa.schema([rows.field(name) for name in names]))

    def of_file(self, partition: str) -> PartitionValues:
        """The values of a file.

        Args:
            partition: Its partition values as JSON, as `FileList.rows` has them.

        Raises:
            NotRewritableError: A value is not understood.
        """
        texts = json.loads(partition) if self.fields else {}
        return {field.name: _value(texts.get(field.name), field) for field in self.fields}


def _value(text: str | None, field: pyarrow.Field) -> pyarrow.Scalar:
    """A value, from the text in the log; "" may mean null (Delta protocol)."""
    import pyarrow as pa
    import pyarrow.types as types

    value: Any = text or None
    try:
        if value is not None and types.is_integer(field.type):
            value = int(value) if _WHOLE.fullmatch(value) else NotImplemented
        elif value is not None and types.is_date(field.type):
            value = date.fromisoformat(value) if _DAY.fullmatch(value) else NotImplemented
        return pa.scalar(value, field.type)
    except (ValueError, TypeError, OverflowError) as error:
        raise NotRewritableError(
            f"partition value {text!r} of {field.name!r} is not understood"
        ) from error


def with_partition(
    rows: pyarrow.Table, num_rows: int, values: PartitionValues, names: Collection[str]
) -> pyarrow.Table:
    """Columns of a file's rows, and of its partition.

    Args:
        rows: The rows, with the columns that are in the file.
        num_rows: How many there are, since a table without columns does not say it.
        values: The file's partition.
        names: The columns, in their order.
    """
    import pyarrow as pa

    columns = {
        name: pa.repeat(values[name], num_rows) if name in values else rows[name] for name in names
    }
    return pa.table(columns)
