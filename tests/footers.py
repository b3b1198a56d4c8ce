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
