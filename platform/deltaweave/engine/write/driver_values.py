"""New rows of a merge on the driver, from the values that clauses give to numbered rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltaweave.engine import limits
from deltaweave.engine.source import CollectedSource
from deltaweave.engine.tasks import NotRewritableError, as_stored

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class NewValues:
    """What the update and insert clauses give to numbered rows.

    The numbers are those of source rows for all clauses, or begin with 0 for each clause.

    Attributes:
        schema: The columns of the table, as files store them; those of partitions among them.
        of_clause: By the clause's index, the new rows in that schema. Rows that the clause does not
            take have arbitrary values there.
        broken: By the clause's index, whether the values of its rows break a constraint. Clauses
            whose values break none are missing.
    """

    schema: pyarrow.Schema
    of_clause: Mapping[int, pyarrow.Table]
    broken: Mapping[int, numpy.ndarray] = field(default_factory=dict)

    def rows(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> pyarrow.Table:
        """Return the new rows of some rows, in their order.

        Args:
            numbers: Their numbers.
            clauses: For each of them the index of its clause; one without values gives no row.
        """
        import numpy as np
        import pyarrow as pa

        parts, places = [self.nulls(0)], [np.array([], dtype=np.int64)]
        for clause, values in self.of_clause.items():
            of_clause = np.flatnonzero(clauses == clause)
            if len(of_clause):
                parts.append(values.take(pa.array(numbers[of_clause])))
                places.append(of_clause)
        if len(parts) <= 2:  # of one clause, in their order
            return parts[-1].combine_chunks()
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).combine_chunks().take(pa.array(order))

    def gives_row(self, clauses: numpy.ndarray) -> numpy.ndarray:
        """Return for each clause, by its index, whether it gives a new row."""
        import numpy as np

        return np.isin(clauses, list(self.of_clause))

    def breaks_constraint(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> bool:
        """Return whether a new row of some rows breaks a constraint; arguments as in `rows`."""
        return any(broken[numbers[clauses == i]].any() for i, broken in self.broken.items())

    def nulls(self, number: int) -> pyarrow.Table:
        """Return `number` rows of nulls."""
        import pyarrow as pa

        return pa.table([pa.nulls(number, f.type) for f in self.schema], schema=self.schema)

    def check_size(self, numbers: numpy.ndarray, clauses: numpy.ndarray) -> None:
        """Raise NotRewritableError if the new rows of some rows may be too big."""
        size = sum(
            size_at_most(values.nbytes, numbers[clauses == clause])
            for clause, values in self.of_clause.items()
        )
        refuse_above_limit(size)


def size_at_most(num_bytes: int, numbers: numpy.ndarray) -> int:
    """Return the most bytes that rows may have.

    Args:
        num_bytes: The size of the rows that they are drawn from, in bytes.
        numbers: The indexes of the drawn rows; an index may repeat.
    """
    import numpy as np

    return num_bytes * int(np.bincount(numbers).max(initial=0))


def refuse_above_limit(num_bytes: int) -> None:
    """Raise NotRewritableError if new rows have more bytes than the driver may hold."""
    if num_bytes > limits.MAX_NEW_BYTES_ON_DRIVER:
        raise NotRewritableError(f"the new rows may have {num_bytes:,} bytes")


def values_of_source(source: CollectedSource, schema: pyarrow.Schema) -> NewValues:
    """Return the values of clauses that need source rows alone, numbered as these rows.

    Clauses that keep columns of the target's rows are left out.
    """
    stored: dict[str, pyarrow.Table] = {}
    for name in dict.fromkeys(source.values_of.values()):
        if source.rows[name].type.num_fields == len(schema):
            stored[name] = as_stored(source.rows[name], schema)
    of_clause = {i: stored[name] for i, name in source.values_of.items() if name in stored}
    broken = {i: source.broken(i) for i in of_clause}
    return NewValues(schema, of_clause, {i: b for i, b in broken.items() if b is not None})
