"""The source of a merge: pruned to the columns used, read once where it must be, and counted.

A source that several phases read is materialized first, unless it is certain to give the same rows
each time: files may change, queries may be random, another writer may commit to a table. Delta's
setting `spark.databricks.delta.merge.materializeSource` decides, as it does for built-in MERGE
(document rows S1 and S2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.checkpoint import materialized
from deltaweave.delta.failures import delta_error, translated
from deltaweave.delta.source_plan import reason_to_materialize, with_files_chosen
from deltaweave.engine.unaffected_rows import insertable
from deltaweave.errors import SourceError
from deltaweave.identifiers import RESERVED_PREFIX

logger = logging.getLogger(__name__)

SOURCE_ROW_ID = f"{RESERVED_PREFIX}source_row_id"
SOURCE_ROW_PRESENT = f"{RESERVED_PREFIX}source_row_present"

# A materialized source up to this size is broadcast: rows decoded to a hash table take about three
# times their size on disk, which a 2 GiB driver still holds with ease.
BROADCAST_LIMIT_BYTES = 64 * 1024 * 1024

_SETTING = "spark.databricks.delta.merge.materializeSource"
# Each attempt keeps more copies of the blocks that the one before lost (document row S4).
_STORAGE_LEVELS = (
    ("rddStorageLevel", "DISK_ONLY"),
    ("rddStorageLevelFirstRetry", "DISK_ONLY_2"),
    ("rddStorageLevelRetry", "DISK_ONLY_3"),
)


@dataclass(frozen=True)
class PreparedSource:
    """The source rows as every phase reads them.

    Attributes:
        rows: The columns that the merge uses, and `SOURCE_ROW_ID` (bigint) if materialized.
        table: What messages call the target.
        size_in_bytes: Their measured size, or None where they were not materialized.
        reason: Why the source was materialized or not, in Delta's words.
        gives_same_rows: Whether evaluating them again is certain to give the same rows.
        insertable: Over a row, whether an insert clause takes it if it matches nothing; None where
            that is not asked (see unaffected_rows).
    """

    rows: DataFrame
    table: str
    size_in_bytes: int | None
    reason: str
    gives_same_rows: bool
    insertable: Column | None = None

    @cached_property
    def num_rows(self) -> int:
        """How many rows there are; counted in a job of its own unless it is known."""
        with translated(self.table, otherwise=SourceError):
            return self.rows.count()

    @property
    def is_counted(self) -> bool:
        """Whether the number of rows is known."""
        return "num_rows" in self.__dict__

    def with_num_rows(self, num_rows: int) -> PreparedSource:
        """This source, whose rows were counted on the way."""
        self.__dict__["num_rows"] = num_rows
        return self

    @cached_property
    def num_insertable(self) -> int:
        """How many rows an insert clause takes if they match nothing; counted unless known."""
        assert self.insertable is not None
        with translated(self.table, otherwise=SourceError):
            row = self.rows.agg(F.count_if(self.insertable)).first()
        assert row is not None
        return int(row[0])

    def with_num_insertable(self, num_rows: int) -> PreparedSource:
        """This source, of whose rows the insertable ones were counted on the way."""
        self.__dict__["num_insertable"] = num_rows
        return self

    @property
    def is_materialized(self) -> bool:
        """Whether the rows were computed once and are kept."""
        return self.size_in_bytes is not None

    @property
    def is_broadcastable(self) -> bool:
        """Whether the rows were measured to fit a broadcast."""
        return self.size_in_bytes is not None and self.size_in_bytes <= BROADCAST_LIMIT_BYTES

    def for_join(self) -> DataFrame:
        """The rows with `SOURCE_ROW_PRESENT`, hinted for broadcast where they were measured."""
        rows = self.rows.withColumn(SOURCE_ROW_PRESENT, F.lit(True))
        return F.broadcast(rows) if self.is_broadcastable else rows


@contextmanager
def prepared_source(merge: ResolvedMerge, attempt: int) -> Iterator[PreparedSource]:
    """Prepare the source, and let go of it when the block ends, whatever happened.

    Args:
        merge: The resolved merge.
        attempt: 1, or more after the materialized rows of an earlier attempt were lost.

    Raises:
        SourceError: The source's rows could not be read or computed.
    """
    materialize, reason = decide(merge)
    used = merge.used_source()
    if not materialize:
        same, num_rows = reason == "NOT_MATERIALIZED_AUTO", None
        if same:
            used, num_rows = with_files_chosen(used, merge.node.targetFileIndex().deltaLog())
        source = PreparedSource(used, merge.table, None, reason, same, insertable(merge))
        if not same:
            # Rows that may be others later are counted before they are merged.
            num_rows = source.num_rows
        yield source if num_rows is None else source.with_num_rows(num_rows)
        return
    setting, default = _STORAGE_LEVELS[min(attempt, len(_STORAGE_LEVELS)) - 1]
    level = merge.spark.conf.get(f"{_SETTING}.{setting}", default) or default
    numbered = used.withColumn(SOURCE_ROW_ID, F.monotonically_increasing_id())
    with ExitStack() as stack:
        with translated(merge.table, otherwise=SourceError):
            kept = stack.enter_context(materialized(numbered, level))
        logger.debug(
            "materialized the source (%s, attempt %d, %s): %d rows, %d bytes",
            reason,
            attempt,
            level,
            kept.num_rows,
            kept.size_in_bytes,
        )
        source = PreparedSource(
            kept.rows, merge.table, kept.size_in_bytes, reason, True, insertable(merge)
        )
        yield source.with_num_rows(kept.num_rows)


def check_same_source(merge: ResolvedMerge, source: PreparedSource) -> None:
    """Fail where the source now has more or fewer rows than at first, if the session asks for that.

    A materialized source cannot change. Delta's check of others costs it nothing, since its MERGE
    counts the rows twice; here it is one more job, so it runs only when asked for
    (`spark.databricks.delta.merge.failIfSourceChanged`, document row S6).

    Raises:
        SourceError: With Delta's wording.
    """
    asked = merge.spark.conf.get("spark.databricks.delta.merge.failIfSourceChanged", "false")
    if asked != "true" or source.is_materialized or merge.takes_insert_only_path:
        return
    with translated(merge.table, otherwise=SourceError):
        now = source.rows.count()
    if now != source.num_rows:
        error = delta_error(
            jvm_.jvm(merge.spark),
            "sourceNotDeterministicInMergeException",
            merge.spark._jsparkSession,
        )
        raise SourceError(
            f"{error.getMessage()} It had {source.num_rows} rows, then {now}.",
            table=merge.table,
            hint="Set spark.databricks.delta.merge.materializeSource to auto, or write the source "
            "to a table first.",
        )


def decide(merge: ResolvedMerge) -> tuple[bool, str]:
    """Whether to materialize the source, and why: by the setting, then by the plan (S1, S2)."""
    mode = (merge.spark.conf.get(_SETTING, "auto") or "auto").lower()
    if mode == "all":
        return True, "MATERIALIZE_ALL"
    if mode == "none":
        return False, "NOT_MATERIALIZED_NONE"
    if mode != "auto":
        return True, "INVALID_CONFIG"
    # Unlike Delta's, an insert-only merge too: it counts the rows, prunes by them and inserts them.
    reason = reason_to_materialize(merge)
    return (False, "NOT_MATERIALIZED_AUTO") if reason is None else (True, reason)
