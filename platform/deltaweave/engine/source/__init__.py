"""The source of a merge: materialized where that is needed, counted, and its keys collected."""

from __future__ import annotations

from deltaweave.engine.source.keys import KeyValues, SourceKeys, row_identity, source_keys, within
from deltaweave.engine.source.prepared import PreparedSource, check_same_source, prepared_source

__all__ = [
    "KeyValues",
    "PreparedSource",
    "SourceKeys",
    "check_same_source",
    "prepared_source",
    "row_identity",
    "source_keys",
    "within",
]
