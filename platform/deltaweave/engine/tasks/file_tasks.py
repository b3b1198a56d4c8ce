"""The functions that tasks call with the changed rows of a file, to rewrite it in place.

They need only pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deltaweave.engine.tasks.parquet_rewrite import Rewritten, rewrite_file
from deltaweave.engine.tasks.storage import location_of
from deltaweave.engine.tasks.stored_rows import FirstRow
from deltaweave.engine.tasks.table_format import NotRewritableError, TableFormat

if TYPE_CHECKING:
    import pyarrow

REWRITTEN_SCHEMA = (
    "file string, name string, size bigint, stats string, "
    "change_file string, change_file_size bigint, refused string, failed string"
)
"""What a task returns for each file; if it was refused, or rewriting it failed, Spark must."""


# Maximum bytes in memory of a file's changed rows; a task holds a copy of them, too. Spark
# rewrites files in which more change.
MAX_CHANGED_BYTES = 96 << 20


def rewriter(
    table: TableFormat,
    files: Sequence[str],
    with_vectors: frozenset[str],
    first_rows: Mapping[str, FirstRow],
) -> Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table]:
    """Return a function that takes the changed rows of one file, and returns one row about it.

    In the changed rows, the file's number comes first, then what `rewrite_file` takes.

    Args:
        files: The files, in the order of their numbers (see `location_of`). A name in each row
            would be most of what tasks get.
        with_vectors: Locations of files in which rows are marked as deleted, which Spark rewrites.
        first_rows: The first rows of the files by their locations, if the table tracks rows.
    """

    def rewrite(key: tuple[Any, ...], batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
        import pyarrow as pa

        file = files[key[0].as_py()]
        done, refused, failed = Rewritten(None), None, None
        try:
            location = location_of(file)
            if location in with_vectors:
                raise NotRewritableError("rows in it are marked deleted")
            if table.tracking is not None and location not in first_rows:
                raise NotRewritableError("its rows have no ids yet")
            first_row = first_rows.get(location)
            changes = _bounded(batches).remove_column(0)
            done = rewrite_file(location, changes, table, first_row)
        except NotRewritableError as error:
            refused = str(error)
        except Exception as error:  # of pyarrow, the file system, a store; nothing is left of it
            failed = f"{type(error).__name__}: {error}"
        of_files = [*(done.file or [None] * 3), *(done.change_file or [None] * 2)]
        values = [file, *of_files, refused, failed]
        text, number = pa.string(), pa.int64()
        types = [text, text, number, text, text, number, text, text]
        return pa.table(
            [pa.array([value], kind) for value, kind in zip(values, types, strict=True)],
            names=[each.split()[0] for each in REWRITTEN_SCHEMA.split(", ")],
        )

    return rewrite


def in_batches(
    rewrite: Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table],
) -> Callable[[tuple[Any, ...], Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return what `applyInArrow` calls with the batches of a group, since Spark 4.1."""
    import pyarrow as pa

    def task(
        key: tuple[Any, ...], batches: Iterator[pyarrow.RecordBatch]
    ) -> Iterator[pyarrow.RecordBatch]:
        yield from rewrite(key, batches).to_batches()
        for _ in batches:  # of a refused file
            pass

    # Spark learns by the types that the function takes batches.
    of_batches = Iterator[pa.RecordBatch]
    task.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": of_batches,
        "return": of_batches,
    }
    return task


def in_whole(
    rewrite: Callable[[tuple[Any, ...], Iterable[pyarrow.RecordBatch]], pyarrow.Table],
) -> Callable[[tuple[Any, ...], pyarrow.Table], pyarrow.Table]:
    """Return what `applyInArrow` calls with all rows of a group, before Spark 4.1."""
    return lambda key, changes: rewrite(key, changes.to_batches())


def _bounded(batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
    """Return the rows of the batches; raise NotRewritableError before they become too many."""
    import pyarrow as pa

    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_CHANGED_BYTES:
            raise NotRewritableError(
                f"the changed rows of a file have more than {MAX_CHANGED_BYTES:,} bytes"
            )
        held.append(batch)
    return pa.Table.from_batches(held)
