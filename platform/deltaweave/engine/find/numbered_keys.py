"""Keys of whole numbers, each as one number, by which target rows find their source rows.

Arrow hashes the source's keys again for each batch of target rows. Of millions of keys that takes
longer than to look up the batch, so here they are prepared once, and all threads share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from deltaweave.engine import limits
from deltaweave.engine.find.driver_keys import SOURCE_NUMBER

if TYPE_CHECKING:
    import numpy
    import pyarrow

_NOTHING = -1
# Numbers that a table by number has for each key at most: some 60 bytes.
_NUMBERS_OF_A_KEY = 16


@dataclass(frozen=True)
class NumberedKeys:
    """The unique keys of a source, as numbers.

    A key of several columns is one number: its digits are the columns' values, less their lowest
    values.

    Attributes:
        names: The columns.
        bounds: The lowest and the highest value of each.
        numbers: The keys as numbers; sorted unless `by_number` is known.
        source_rows: The source row of each.
        by_number: For each number from 0 on, its source row or -1; None if too many numbers lie
            between the keys.
    """

    names: Sequence[str]
    bounds: Sequence[tuple[int, int]]
    numbers: numpy.ndarray
    source_rows: numpy.ndarray
    by_number: numpy.ndarray | None

    @classmethod
    def of(cls, keys: pyarrow.Table) -> NumberedKeys | None:
        """Number the keys of a source; None if 64 bits cannot tell all of them apart.

        Args:
            keys: A column for each compared value, none of them null, and `SOURCE_NUMBER`.
        """
        import numpy as np

        names = [name for name in keys.column_names if name != SOURCE_NUMBER]
        values = [_whole_numbers(keys[name]) for name in names]
        if any(each is None for each in values):
            return None
        columns = [each for each in values if each is not None]
        if not len(keys):
            return cls(names, [(0, -1)] * len(names), np.array([]), np.array([]), None)
        bounds = [(int(each.min()), int(each.max())) for each in columns]
        span = prod(highest - lowest + 1 for lowest, highest in bounds)
        if span > 1 << 62:
            return None
        numbers = _as_digits(columns, bounds)
        source_rows = keys[SOURCE_NUMBER].to_numpy()
        if span <= min(limits.MAX_NUMBERS_BETWEEN_KEYS, _NUMBERS_OF_A_KEY * len(keys)):
            by_number = np.full(span, _NOTHING, dtype=np.int32)
            by_number[numbers] = source_rows
            return cls(names, bounds, numbers, source_rows, by_number)
        order = np.argsort(numbers, kind="stable")
        return cls(names, bounds, numbers[order], source_rows[order], None)

    def found_in(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Keep the rows with a key of the source, with `SOURCE_NUMBER` in place of the key."""
        import numpy as np
        import pyarrow as pa

        rows = rows.drop_null()
        columns = []
        may_match = np.ones(rows.num_rows, dtype=bool)
        for name, (lowest, highest) in zip(self.names, self.bounds, strict=True):
            values = _whole_numbers(rows[name])
            assert values is not None, "they are of the types of the source's keys"
            may_match &= (values >= lowest) & (values <= highest)
            columns.append(values)
        places = np.flatnonzero(may_match)
        numbers = _as_digits([values[places] for values in columns], self.bounds)
        source_rows = self._source_rows(numbers)
        has_match = source_rows != _NOTHING
        found = rows.drop_columns(list(self.names)).take(pa.array(places[has_match]))
        return found.append_column(SOURCE_NUMBER, pa.array(source_rows[has_match], pa.int64()))

    def _source_rows(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Return the source row of each number, or -1."""
        import numpy as np

        if self.by_number is not None:
            rows: numpy.ndarray = self.by_number[numbers]
            return rows
        if not len(self.numbers):
            return np.full(len(numbers), _NOTHING)
        places = np.searchsorted(self.numbers, numbers)
        places[places == len(self.numbers)] = 0
        return np.where(self.numbers[places] == numbers, self.source_rows[places], _NOTHING)


def _whole_numbers(values: pyarrow.ChunkedArray) -> numpy.ndarray | None:
    """Convert the values to 64-bit integers; None if they are of another type."""
    import numpy as np
    import pyarrow.types as types

    kind = values.type
    if types.is_boolean(kind):
        values = values.cast("int8")
    elif types.is_date32(kind):
        values = values.cast("int32")
    elif not types.is_signed_integer(kind):
        return None
    numbers: numpy.ndarray = values.to_numpy().astype(np.int64, copy=False)
    return numbers


def _as_digits(
    columns: Sequence[numpy.ndarray], bounds: Sequence[tuple[int, int]]
) -> numpy.ndarray:
    """Combine the values of each row, which lie within the bounds, to one number."""
    numbers = columns[0] - bounds[0][0]
    for values, (lowest, highest) in zip(columns[1:], bounds[1:], strict=True):
        numbers = numbers * (highest - lowest + 1) + (values - lowest)
    return numbers
