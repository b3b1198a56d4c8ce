"""Prepare the source of a merge: materialize it where needed, count it, collect its keys."""

from __future__ import annotations

from deltaweave.engine.source.collected import (
    CollectedSource,
    WantedRows,
    collect_source,
    collected_or_none,
    values_where_taken,
    with_broken_values,
)
from deltaweave.engine.source.keys import KeyValues, SourceKeys, row_identity, source_keys, within
from deltaweave.engine.source.prepared import (
    PreparedSource,
    check_same_source,
    collected_within,
    prepared_source,
)

__all__ = [
    "CollectedSource",
    "KeyValues",
    "PreparedSource",
    "SourceKeys",
    "WantedRows",
    "check_same_source",
    "collect_source",
    "collected_or_none",
    "collected_within",
    "prepared_source",
    "row_identity",
    "source_keys",
    "values_where_taken",
    "with_broken_values",
    "within",
]
