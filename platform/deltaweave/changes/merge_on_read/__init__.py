"""Merge on read: a base table and a changeset, read as one table and merged from time to time.

- `table`: `MergeOnReadTable`, the public class.
- `sides`: base and changeset, and the view of both at one moment.
- `changeset`: the append-only table of events, in numbered batches.
- `base_and_batches`: a version of the base and the batches that it lacks, read consistently.
- `merged_view`: the ways to join base and changes.
- `newer_than_base`: whether all pending changes are newer than every row of the base.
- `key_anti_join`: the base's rows whose keys have no change.
- `rematerialization`: merges changes into the base, or rewrites it with them.
"""

from __future__ import annotations

from deltaweave.changes.merge_on_read.base_and_batches import MERGED, merged_mark
from deltaweave.changes.merge_on_read.changeset import BATCH, INGESTED, NUMBERED, Pending
from deltaweave.changes.merge_on_read.merged_view import ViewMethod
from deltaweave.changes.merge_on_read.rematerialization import Strategy
from deltaweave.changes.merge_on_read.table import MergeOnReadTable

__all__ = [
    "BATCH",
    "INGESTED",
    "MERGED",
    "NUMBERED",
    "MergeOnReadTable",
    "Pending",
    "Strategy",
    "ViewMethod",
    "merged_mark",
]
