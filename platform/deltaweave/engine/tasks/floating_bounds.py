"""Find files of earlier releases, whose footers hold bounds of floating values.

Spark may skip a row group that holds a NaN by such bounds (see `reader_contract`). It needs only
pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from deltaweave.engine.tasks.storage import Storage
from deltaweave.engine.tasks.table_format import SPARK_VERSION

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

BOUNDED_SCHEMA = "path string"
# What `TableFormat.new_name` makes, behind the prefix of `OwnFiles`.
OWN_NAME = r"(^|/)[0-9a-f]{12}-(?:[0-9a-f]{8}-)?part-00000-[0-9a-f-]{36}\.c000\."


def bounded_files(
    storage: Storage,
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return the function for `mapInArrow` that finds such files by their footers.

    It takes columns `path` and `location` (string), and gives a row of `BOUNDED_SCHEMA` for each
    file of the engine that holds bounds of floating values.
    """

    def found(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            paths, locations = (batch.column(name).to_pylist() for name in ("path", "location"))
            bounded = [
                path
                for path, location in zip(paths, locations, strict=True)
                if is_bounded(storage, location)
            ]
            yield pa.record_batch([pa.array(bounded, pa.string())], ["path"])

    return found


def is_bounded(storage: Storage, location: str) -> bool:
    """Return whether the engine wrote the file, with bounds of floating values in its footer."""
    with storage.opened(location) as file:
        footer = file.metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = (group.column(n) for group in groups for n in range(group.num_columns))
        return (
            footer.created_by.startswith("parquet-cpp")
            and SPARK_VERSION in (footer.metadata or {})
            and any(
                column.physical_type in ("FLOAT", "DOUBLE")
                and (column.is_stats_set or column.has_column_index)
                for column in columns
            )
        )
