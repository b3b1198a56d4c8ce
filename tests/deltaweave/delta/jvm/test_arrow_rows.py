"""Rows are collected as Arrow of the same types, whatever a session sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from deltaweave.delta.jvm import collected


def kinds(text: pa.DataType, binary: pa.DataType) -> list[pa.DataType]:
    """Types with texts and bytes, by themselves and as parts of others."""
    struct = pa.struct([pa.field("t", text, nullable=False), pa.field("n", pa.int32())])
    return [text, binary, struct, pa.list_(struct), pa.map_(text, pa.list_(binary)), pa.int64()]


def test_texts_and_bytes_have_small_offsets() -> None:
    struct = {"t": "a", "n": 1}
    values = ["a", b"b", struct, [struct, None], [("k", [b"v", None])], 7]
    names = [f"c{place}" for place in range(len(values))]

    def table(of: list[pa.DataType]) -> pa.Table:
        columns = [pa.array([value, None], kind) for value, kind in zip(values, of, strict=True)]
        return pa.table(columns, names=names)

    large, small = (
        table(kinds(pa.large_string(), pa.large_binary())),
        table(kinds(pa.string(), pa.binary())),
    )
    rows: Any = SimpleNamespace(toArrow=lambda: large)
    assert collected(rows).equals(small)
