"""Merge on read: a base table and a changeset, read as one table and merged from time to time.

- `table`: `MergeOnReadTable`, the public class.
- `sides`: base and changeset, and the view of both at one moment.
- `changeset`: the append-only table of events, in numbered batches.
- `watermark`: the newest batch in the base, and the batches that it lacks, read consistently.
- `merged_view`: the ways to join base and changes.
- `rematerialization`: merges changes into the base, or rewrites it with them.
"""

from __future__ import annotations

from deltaweave.changes.merge_on_read.changeset import BATCH, INGESTED, NUMBERED, Pending
from deltaweave.changes.merge_on_read.merged_view import ViewMethod
from deltaweave.changes.merge_on_read.rematerialization import RematerializationStrategy
from deltaweave.changes.merge_on_read.table import MergeOnReadTable
from deltaweave.changes.merge_on_read.watermark import MERGED, surely_merged, watermark_id

__all__ = [
    "BATCH",
    "INGESTED",
    "MERGED",
    "NUMBERED",
    "MergeOnReadTable",
    "Pending",
    "RematerializationStrategy",
    "ViewMethod",
    "surely_merged",
    "watermark_id",
]
