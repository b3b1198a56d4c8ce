"""What a table's Parquet files look like: how new ones are written, and which old ones are read.

Tasks on executors and the driver use it. It needs only pyarrow.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from deltaweave.engine.tasks.file_statistics import FileStatistics
from deltaweave.engine.tasks.reader_contract import with_dictionary, with_statistics
from deltaweave.engine.tasks.storage import Storage, deleted_on_error

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

# The footer key without which Spark asks its settings for the calendar of a file's dates.
SPARK_VERSION = b"org.apache.spark.version"
# Footer keys of files whose dates are in the calendar of old Spark versions, and the first versions
# that wrote dates and times, and times as INT96, in the new one. Spark compares them as texts, too
# (DataSourceUtils.datetimeRebaseSpec, int96RebaseSpec).
_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_NEW_CALENDAR_SINCE = b"3.0.0"
_NEW_CALENDAR_OF_INT96_SINCE = b"3.1.0"

# Stored bytes of a row group, before compression. Of a column whose values are stored one by one,
# memory may hold all that it stores, if a few rows have most of it. Spark writes row groups of
# 128 MB.
MAX_ROW_GROUP_BYTES = 1 << 30


class NotRewritableError(Exception):
    """The file holds something that Arrow may not read or copy exactly: Spark does it."""


class TooBigError(NotRewritableError):
    """Rows have more bytes than memory may hold, or are too many: nobody may collect them."""


@dataclass(frozen=True)
class TableFormat:
    """The format of a table's new files.

    Attributes:
        schema: Their columns, by the names that files use, with field ids where the table has them.
        codec: Name of the compression, as pyarrow spells it.
        extension: What file names end with.
        statistics: Delta's schema of a file's statistics, as Spark's JSON.
        string_prefix: Characters of a string that statistics keep.
        spark_version: The version of Spark that files name as their writer. Their dates and times
            are in the calendar that it uses.
        new_calendar: Whether Spark takes the dates of files that name no version for dates of that
            calendar.
        file_prefix: What file names begin with.
        change_feed: The directory for the files of the change data feed, if the table keeps one.
        tracking: The names of the columns that keep row ids and commit versions of rows that came
            from other files, if the table tracks rows.
    """

    schema: pyarrow.Schema
    codec: str
    extension: str
    statistics: str
    string_prefix: int
    spark_version: str
    new_calendar: bool
    storage: Storage
    file_prefix: str = ""
    change_feed: str | None = None
    tracking: tuple[str, str] | None = None

    @property
    def file_schema(self) -> pyarrow.Schema:
        """All columns of a file whose rows came from another one."""
        import pyarrow as pa

        return pa.schema([*self.schema, *self.tracking_schema])

    @property
    def tracking_schema(self) -> pyarrow.Schema:
        """The columns that keep row ids and commit versions; none if rows are not tracked."""
        import pyarrow as pa

        return pa.schema([pa.field(name, pa.int64()) for name in self.tracking or ()])

    def new_name(self, *, of_change_feed: bool = False) -> str:
        """Return a name that no other file has."""
        kind = "cdc" if of_change_feed else "part"
        return f"{self.file_prefix}{kind}-00000-{uuid.uuid4()}.c000{self.extension}"

    @contextmanager
    def writer(
        self,
        location: str,
        schema: pyarrow.Schema,
        dictionaries: Sequence[str],
    ) -> Iterator[pyarrow.parquet.ParquetWriter]:
        """Open a writer of a new file, which keeps what `reader_contract` promises.

        Args:
            location: The location of the new file, which must not exist.
            dictionaries: The columns with a dictionary, by their paths in the file.
        """
        import pyarrow.parquet as pq

        with (
            self.storage.created(location) as file,
            pq.ParquetWriter(
                file,
                schema,
                compression=self.codec,
                use_dictionary=dictionaries,
                write_statistics=with_statistics(schema),
                store_decimal_as_integer=True,
                store_schema=False,
                write_page_index=True,
            ) as writer,
        ):
            yield writer
            # Not as metadata of the schema: that is not written without the schema itself.
            writer.add_key_value_metadata({SPARK_VERSION: self.spark_version.encode()})


class WrittenFile(NamedTuple):
    """A new file: its name, its size in bytes and its statistics as JSON."""

    name: str
    size: int
    statistics: str


def write_file(directory: str, rows: pyarrow.Table, table: TableFormat) -> WrittenFile:
    """Write rows as a new file.

    Args:
        rows: One row at least, in the table's schema.
    """
    name = table.new_name()
    location = f"{directory}/{name}"
    statistics = FileStatistics(json.loads(table.statistics), table.string_prefix)
    dictionaries = with_dictionary(table.file_schema, rows)
    with deleted_on_error(table.storage, location):
        with table.writer(location, table.file_schema, dictionaries) as writer:
            writer.write_table(rows)
        statistics.add(rows)
        return WrittenFile(name, table.storage.size(location), statistics.to_json())


def check_copyable(
    old: pyarrow.parquet.ParquetFile, schema: pyarrow.Schema, *, new_calendar: bool
) -> None:
    """Raise NotRewritableError unless every stored column has the type that it is written with.

    A column that is not stored was added to the table later, and is null.

    Args:
        schema: The columns, as they are written.
        new_calendar: See `TableFormat`.
    """
    if _may_be_of_old_calendar(old, new_calendar=new_calendar):
        raise NotRewritableError("its dates may be of the calendar that Spark used before 3.0")
    largest = max(
        (old.metadata.row_group(i).total_byte_size for i in range(old.num_row_groups)), default=0
    )
    if largest > MAX_ROW_GROUP_BYTES:
        raise NotRewritableError(f"it has a row group of {largest} bytes")
    stored = old.schema_arrow
    spelled = [name.lower() for name in stored.names]
    for wanted in schema:
        index = stored.get_field_index(wanted.name)
        if index == -1:
            if wanted.name.lower() in spelled:
                raise NotRewritableError(f"it spells column {wanted.name!r} in another way")
            continue
        if not _is_same(stored.field(index).type, wanted.type):
            raise NotRewritableError(
                f"column {wanted.name!r} is stored as {stored.field(index).type}, "
                f"not as {wanted.type}"
            )


def check_zones(file: pyarrow.parquet.ParquetFile, fields: Iterable[pyarrow.Field]) -> None:
    """Raise NotRewritableError for a time that is stored without a zone, unless it is an INT96."""
    import pyarrow.types as types

    physical = {
        file.schema.column(i).path: file.schema.column(i).physical_type
        for i in range(len(file.schema))
    }
    for field in fields:
        if types.is_timestamp(field.type) and field.type.tz and field.name in physical:
            stored = file.schema_arrow.field(field.name).type
            if stored.tz is None and physical[field.name] != "INT96":
                raise NotRewritableError(f"column {field.name!r} is stored without a time zone")


def _may_be_of_old_calendar(old: pyarrow.parquet.ParquetFile, *, new_calendar: bool) -> bool:
    """Return whether Spark reads the file's dates or times otherwise than Arrow, if it has any."""
    metadata = old.metadata.metadata or {}
    if any(key in metadata for key in _LEGACY_KEYS):
        return True
    version = metadata.get(SPARK_VERSION)
    if version is None:
        return not new_calendar
    columns = map(old.schema.column, range(len(old.schema)))
    has_int96 = any(column.physical_type == "INT96" for column in columns)
    since = _NEW_CALENDAR_OF_INT96_SINCE if has_int96 else _NEW_CALENDAR_SINCE
    return bool(version < since)


def _is_same(stored: pyarrow.DataType, wanted: pyarrow.DataType) -> bool:
    """Return whether both types have the same values; files may omit a timestamp's zone."""
    import pyarrow.types as types

    if types.is_timestamp(stored) and types.is_timestamp(wanted):
        # INT96 is read without a zone, and always means UTC.
        return stored.unit == wanted.unit and (
            stored.tz == wanted.tz or (stored.tz is None and wanted.tz == "UTC")
        )
    if types.is_struct(stored) and types.is_struct(wanted):
        ours = [wanted.field(i) for i in range(wanted.num_fields)]
        theirs = [stored.field(i) for i in range(stored.num_fields)]
        return len(ours) == len(theirs) and all(
            a.name == b.name and _is_same(a.type, b.type) for a, b in zip(theirs, ours, strict=True)
        )
    if types.is_list(stored) and types.is_list(wanted):
        return _is_same(stored.value_type, wanted.value_type)
    if types.is_map(stored) and types.is_map(wanted):
        return _is_same(stored.key_type, wanted.key_type) and _is_same(
            stored.item_type, wanted.item_type
        )
    return bool(stored.equals(wanted))
