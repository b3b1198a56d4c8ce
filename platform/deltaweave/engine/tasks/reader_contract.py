"""What a Parquet file of the engine promises to its readers, and how its footer keeps the promise.

Readers skip row groups and pages by what a file says of them. Spark, delta-rs, DuckDB and Polars do
not agree on what bounds of floating values mean, so a file says only what all of them read alike:

- **A filter finds the same rows as a scan.** That holds for every operator that Spark pushes down,
  for its vectorized and its row reader, and for DELETE and UPDATE by such a filter. It holds for
  DuckDB, Polars, Arrow and delta-rs, each with its own order of NaN.
- **Bounds are exact or absent.** Statistics and page index are written for columns, and fields of
  structs, of whole numbers, decimals, dates, times, texts, bytes and booleans. Null counts stand
  beside them. Texts longer than parquet-cpp's limit (4,096 bytes) have none.
- **Floating values have neither.** parquet-cpp leaves NaN out of the bounds, while Spark orders NaN
  above all numbers: it would skip the row group of a NaN. Elements of arrays and maps have none
  either, since no reader skips by them.
- **A dictionary holds no -0.0.** Spark looks filters up in dictionaries, where 0.0 and -0.0 are two
  values. A column of floating values is written without one if a new row holds -0.0, or if the
  copied file may hold values outside a dictionary. A dictionary that Spark wrote with a -0.0 is
  copied as it is.
- **Names, types and units are Spark's**: field ids where the table has them, decimals of up to 18
  digits as integers, times as microseconds. The footer names Spark's version, so that dates are
  read in its calendar.
- **The log's statistics** (`file_statistics`) are those of Delta's writer, with NaN as the highest
  floating value. So `count`, `min` and `max` without reading files are right.
- **VARIANT is left to Spark**, within other types too.

Older Spark reads the same footers. Spark 3.3 and later can compute aggregates from footers
(`spark.sql.parquet.aggregatePushdown`, off by default, never for Delta tables). It then fails for
floating columns: for `min` and `max`, as for files of Spark with a NaN, and for `count`. For others
it returns what it returns for files of Spark.

`DeltaTable.to_pyarrow_dataset` of delta-rs 1.6 loses rows, of Spark's tables as of the engine's: it
takes a bound that is missing in the log, or NaN, for one that excludes rows. The queries of
delta-rs do not.

It needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class LeafColumn:
    """A column of a Parquet file.

    Attributes:
        path: The names that lead to it.
        type: The type of its values.
        is_repeated: Whether it lies in an array or a map.
    """

    path: tuple[str, ...]
    type: pyarrow.DataType
    is_repeated: bool = False

    @property
    def name(self) -> str:
        """Return the path as Parquet spells it; names with a dot may share it with another."""
        return ".".join(self.path)

    @property
    def is_floating(self) -> bool:
        """Whether values may be NaN or -0.0."""
        import pyarrow.types as types

        return bool(types.is_floating(self.type))

    @property
    def is_bounded(self) -> bool:
        """Whether all readers understand the bounds that pyarrow writes of it."""
        import pyarrow.types as types

        understood = (
            types.is_integer,
            types.is_decimal,
            types.is_date,
            types.is_timestamp,
            types.is_string,
            types.is_binary,
            types.is_boolean,
        )
        return not self.is_repeated and any(test(self.type) for test in understood)


def with_statistics(schema: pyarrow.Schema) -> list[str]:
    """Return the columns that get statistics and a page index, by their paths in the file."""
    found = list(leaves(schema))
    return _excluding([leaf for leaf in found if not leaf.is_bounded], found)


def with_dictionary(schema: pyarrow.Schema, rows: pyarrow.Table | None = None) -> list[str]:
    """Return the columns that get a dictionary, by their paths in the file.

    Args:
        rows: The file's rows; if they are not known yet, any column may hold -0.0.
    """
    found = list(leaves(schema))
    floating = [leaf for leaf in found if leaf.is_floating]
    return _excluding(floating if rows is None else _with_negative_zero(floating, rows), found)


def leaves(schema: pyarrow.Schema) -> Iterator[LeafColumn]:
    """Yield the columns of a file with these fields."""
    for field in schema:
        yield from _leaves(LeafColumn((field.name,), field.type))


def values_at(rows: pyarrow.Table, path: tuple[str, ...]) -> pyarrow.ChunkedArray:
    """Return a column, or a field within a struct; null where the struct is."""
    import pyarrow.compute as pc

    values = rows[path[0]]
    for name in path[1:]:
        # By index: Arrow reads names that begin with a dot or a bracket as paths.
        values = pc.struct_field(values, values.type.get_field_index(name))
    return values


def _leaves(at: LeafColumn) -> Iterator[LeafColumn]:
    import pyarrow.types as types

    if types.is_struct(at.type):
        fields = [at.type.field(i) for i in range(at.type.num_fields)]
        inner = [LeafColumn((*at.path, f.name), f.type, at.is_repeated) for f in fields]
    elif types.is_map(at.type):
        entry = (*at.path, "key_value")
        inner = [
            LeafColumn((*entry, "key"), at.type.key_type, is_repeated=True),
            LeafColumn((*entry, "value"), at.type.item_type, is_repeated=True),
        ]
    elif types.is_list(at.type):
        inner = [LeafColumn((*at.path, "list", "element"), at.type.value_type, is_repeated=True)]
    else:
        yield at
        return
    for leaf in inner:
        yield from _leaves(leaf)


def _with_negative_zero(floating: list[LeafColumn], rows: pyarrow.Table) -> list[LeafColumn]:
    """Return the leaves in which a row holds -0.0; readers look up no filter in repeated ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def holds_it(leaf: LeafColumn) -> bool:
        inverted = pc.divide(pa.scalar(1, leaf.type), values_at(rows, leaf.path))
        return pc.any(pc.equal(inverted, pa.scalar(float("-inf"), leaf.type))).as_py() is True

    return [leaf for leaf in floating if not leaf.is_repeated and holds_it(leaf)]


def _excluding(excluded: list[LeafColumn], found: list[LeafColumn]) -> list[str]:
    """Return the names of the other leaves, but none that an excluded one shares."""
    names = {leaf.name for leaf in excluded}
    return [leaf.name for leaf in found if leaf.name not in names]
