"""New rows of a merge on the driver, from the values that clauses give to the source's rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from deltaweave.engine.source import CollectedSource
from deltaweave.engine.tasks import as_stored

if TYPE_CHECKING:
    import numpy
    import pyarrow


@dataclass(frozen=True)
class SourceValues:
    """What the clauses give to the source's rows.

    Attributes:
        source: The source's rows.
        schema: The columns of the table's files.
    """

    source: CollectedSource
    schema: pyarrow.Schema

    def rows(
        self, rows: numpy.ndarray, clauses: numpy.ndarray, *, in_source_order: bool = False
    ) -> pyarrow.Table:
        """The new rows that clauses give to source rows.

        Args:
            rows: The numbers of the source rows.
            clauses: For each of them the place of its clause; one without values gives no row.
            in_source_order: Whether new rows come in the order of the source, not as asked for.
        """
        import numpy as np
        import pyarrow as pa

        parts, places = [self.nulls(0)], [np.array([], dtype=np.int64)]
        for name, stored in self._stored.items():
            same = [i for i, column in self.source.values_of.items() if column == name]
            of_name = np.flatnonzero(np.isin(clauses, same))
            parts.append(stored.take(pa.array(rows[of_name])))
            places.append(rows[of_name] if in_source_order else of_name)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).combine_chunks().take(pa.array(order))

    def nulls(self, number: int) -> pyarrow.Table:
        """So many rows of nulls."""
        import pyarrow as pa

        return pa.table([pa.nulls(number, f.type) for f in self.schema], schema=self.schema)

    @cached_property
    def _stored(self) -> dict[str, pyarrow.Table]:
        """By the name of a column with values, those of all source rows as files store them."""
        names = dict.fromkeys(self.source.values_of.values())
        return {name: as_stored(self.source.rows[name], self.schema) for name in names}
