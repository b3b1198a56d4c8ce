"""Gives a table's Parquet file the footer of another writer."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow.parquet as pq

SPARK_VERSION = b"org.apache.spark.version"


def rewritten_footer(path: str, metadata: dict[bytes, bytes]) -> None:
    """Give a table's one file these keys and no others, as other writers do."""
    [file] = deltalake.DeltaTable(path).file_uris()
    rewritten_footer_of(file, metadata)


def rewritten_footer_of(file: str, metadata: dict[bytes, bytes]) -> None:
    """The same for one file."""
    stored = pq.read_table(file)
    with pq.ParquetWriter(file, stored.schema, store_schema=False) as writer:
        writer.write_table(stored)
        writer.add_key_value_metadata(metadata)
    Path(file).with_name(f".{Path(file).name}.crc").unlink(missing_ok=True)


def without_dictionary_offset(file: Path, column: int) -> None:
    """Write a column's footer as Parquet's Java library before 1.12 did, in a file of one group.

    The first page is the dictionary, and no field says so.
    """
    chunk = pq.read_metadata(file).row_group(0).column(column)
    stored = file.read_bytes()
    length = int.from_bytes(stored[-8:-4], "little")
    body, footer = stored[: -8 - length], stored[-8 - length : -8]
    # Thrift's compact fields 9 (data page) and 11 (dictionary), each two above the one before;
    # what follows a field is numbered from it.
    data, dictionary = (
        b"\x26" + _zigzag(offset)
        for offset in (chunk.data_page_offset, chunk.dictionary_page_offset)
    )
    assert footer.count(data + dictionary) == 1
    before, after = footer.split(data + dictionary)
    next_field = bytes([after[0] + 0x20]) if after[0] else after[:1]
    footer = before + dictionary + next_field + after[1:]
    file.write_bytes(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def _zigzag(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 127:
        number, found = number >> 7, found + bytes([number & 127 | 128])
    return found + bytes([number])
