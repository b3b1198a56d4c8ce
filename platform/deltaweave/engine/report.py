"""What a merge reports: its phases as they run, Delta's metrics, and the result for callers."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import Enum
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from deltaweave._validation import counted
from deltaweave.delta.jvm import suppress_cleanup_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


_DESCRIPTION = "spark.job.description"

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[str], object]) -> Iterator[None]:
    """Report the status of each phase that begins in the block, in the thread of the merge.

    Args:
        listener: Takes the status, e.g. `MERGE operation - scanning files for matches`. An error
            that it raises fails the merge; nothing is committed then.
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def notify(status: str) -> None:
    """Report a status to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(status)


@dataclass
class Phases:
    """The phases of one merge, timed as they run.

    Attributes:
        spark: The session the merge runs in.
        times_ms: Milliseconds by metric name.
    """

    spark: SparkSession
    times_ms: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def running(self, operation: str, status: str, metric: str) -> Iterator[None]:
        """Run the block as a phase.

        Args:
            operation: Delta's name of the phase (its extraOpType), for the log.
            status: Delta's status text; the Spark jobs of the block carry it as description.
            metric: The timing metric to which the block's time is added. At least 1 ms is added,
                so that 0 means that the phase did not run.
        """
        notify(status)
        started = time.perf_counter()
        logger.debug("%s: %s", operation, status)
        try:
            with self.described(status):
                yield
        finally:
            elapsed = max(1, round((time.perf_counter() - started) * 1000))
            self.times_ms[metric] = self.times_ms.get(metric, 0) + elapsed
            logger.debug("%s took %d ms", operation, elapsed)

    @contextmanager
    def described(self, status: str) -> Iterator[None]:
        """Append a status to the description of the Spark jobs that the block starts."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, f"{before} - {status}" if before else status)
        try:
            yield
        finally:
            with suppress_cleanup_errors("the job description"):
                # None clears the property, although pyspark's annotation does not allow it.
                context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


# Delta's own metric names and meanings (MergeIntoCommandBase.baseMetrics, Delta 4.4). Times are in
# ms, sizes in bytes.
MERGE_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "numSourceRows": "number of source rows",
        "numSourceRowsInSecondScan": "number of source rows (during repeated scan)",
        "operationNumSourceRows": "number of source rows (reported)",
        "numTargetRowsCopied": "number of target rows rewritten unmodified",
        "numTargetRowsInserted": "number of inserted rows",
        "numTargetRowsUpdated": "number of updated rows",
        "numTargetRowsMatchedUpdated": "number of rows updated by a matched clause",
        "numTargetRowsNotMatchedBySourceUpdated": (
            "number of rows updated by a not matched by source clause"
        ),
        "numTargetRowsDeleted": "number of deleted rows",
        "numTargetRowsMatchedDeleted": "number of rows deleted by a matched clause",
        "numTargetRowsNotMatchedBySourceDeleted": (
            "number of rows deleted by a not matched by source clause"
        ),
        "numTargetFilesBeforeSkipping": "number of target files before skipping",
        "numTargetFilesAfterSkipping": "number of target files after skipping",
        "numTargetFilesRemoved": "number of files removed to target",
        "numTargetFilesAdded": "number of files added to target",
        "numTargetChangeFilesAdded": "number of change data capture files generated",
        "numTargetChangeFileBytes": "total size of change data capture files generated",
        "numTargetBytesBeforeSkipping": "number of target bytes before skipping",
        "numTargetBytesAfterSkipping": "number of target bytes after skipping",
        "numTargetBytesRemoved": "number of target bytes removed",
        "numTargetBytesAdded": "number of target bytes added",
        "numTargetPartitionsAfterSkipping": "number of target partitions after skipping",
        "numTargetPartitionsRemovedFrom": (
            "number of target partitions from which files were removed"
        ),
        "numTargetPartitionsAddedTo": "number of target partitions to which files were added",
        "executionTimeMs": "time taken to execute the entire operation",
        "materializeSourceTimeMs": (
            "time taken to materialize source (or determine it's not needed)"
        ),
        "scanTimeMs": "time taken to scan the files for matches",
        "rewriteTimeMs": "time taken to rewrite the matched files",
        "numTargetDeletionVectorsAdded": "number of deletion vectors added",
        "numTargetDeletionVectorsRemoved": "number of deletion vectors removed",
        "numTargetDeletionVectorsUpdated": "number of deletion vectors updated",
    }
)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


NAMES_BY_ATTRIBUTE = {_snake_case(name): name for name in MERGE_METRICS}


class StrategyName(Enum):
    """How the changes of a merge were written; the values are those of `MergeResult.strategy`."""

    INSERT_ONLY = "insert-only"
    DELETION_VECTORS = "deletion-vectors"
    COPY_IN_PLACE = "copy-in-place"
    COPY_ON_WRITE = "copy-on-write"
    NONE = "none"
    ALREADY_APPLIED = "already-applied"
    BUILTIN = "builtin"

    @property
    def did(self) -> str:
        """Return what it did, in words for users."""
        return _DID[self]


_DID: Mapping[StrategyName, str] = MappingProxyType(
    {
        StrategyName.INSERT_ONLY: "new rows were added in new files",
        StrategyName.DELETION_VECTORS: (
            "changed rows were deleted by deletion vectors and written to new files"
        ),
        StrategyName.COPY_IN_PLACE: "touched files were copied with their changed rows replaced",
        StrategyName.COPY_ON_WRITE: "the touched files were rewritten",
        StrategyName.NONE: "no row changed",
        StrategyName.ALREADY_APPLIED: "nothing: these changes were applied before",
        StrategyName.BUILTIN: "Delta's own MERGE ran",
    }
)


@dataclass(frozen=True)
class MergeMetrics(Mapping[str, int]):
    """The metrics of one merge: a mapping with Delta's names, attributes in snake_case.

    >>> metrics = MergeMetrics({"numTargetRowsUpdated": 3})
    >>> metrics["numTargetRowsUpdated"], metrics.num_target_rows_updated, metrics["scanTimeMs"]
    (3, 3, 0)
    """

    values_by_name: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        if name not in MERGE_METRICS:
            raise KeyError(name)
        return self.values_by_name.get(name, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(MERGE_METRICS)

    def __len__(self) -> int:
        return len(MERGE_METRICS)

    def __getattr__(self, attribute: str) -> int:
        try:
            return self[NAMES_BY_ATTRIBUTE[attribute]]
        except KeyError:
            raise AttributeError(attribute) from None


@dataclass(frozen=True)
class TouchedFiles:
    """Paths of the data files a merge removed from and added to the table, as the log spells them.

    Paths are relative to the table and percent-encoded (Delta protocol, "Add File and Remove
    File").

    Attributes:
        removed: The touched files, also those that were added again with a deletion vector.
        added: The new files, and those that were added again with a deletion vector.
        removed_bytes: Size of the touched files, in bytes.
    """

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed_bytes: int = 0


@dataclass(frozen=True, repr=False)
class MergeResult:
    """The outcome of one merge.

    Attributes:
        version: The version it committed, or None when nothing was committed.
        metrics: Row, file and byte counts and phase times, under Delta's names.
        touched_files: The files removed and added.
        strategy: How the changes were written, e.g. `"copy-on-write"`; the reference of metadata
            lists all words, at `merge/strategy`.
        attempts: How often it ran, from a clean state each time; more than 1 if executors died and
            the materialized source was lost.
        source_materialization: Why the source was materialized or not, in Delta's words (e.g.
            `"NON_DETERMINISTIC_SOURCE_NON_DELTA"`); empty if no source was read.
        commit_time_ms: How long the commit took. It is no metric, since metrics are committed.
        warnings: What failed after the commit, what Spark did because the local backend failed,
            and columns that no message of a batch has, a sentence each. The commit is not undone.
        num_source_rows_unaffected: Source rows that changed no row: no clause took them, or another
            source row deleted the row that they match. Together with the rows inserted, and updated
            and deleted by WHEN MATCHED clauses, they are all source rows, unless one matched
            several target rows or was lost. None if it is not known: after Delta's own MERGE,
            mostly after a merge that only inserts, and if the condition of an insert calls a Python
            function.
        commit_attempts: How often it tried to commit; more than 1 if other commits won. 0 if there
            was nothing to commit, and after Delta's own MERGE.
        files_redone: Touched files that were scanned and written again, because the merge ran
            again after it lost to another commit.
        num_events_rescued: Events of the batch that `apply_changes` put into the table of those
            that cannot be applied; 0 for a merge.
        table: The table, as the caller named it.
    """

    version: int | None
    metrics: MergeMetrics
    touched_files: TouchedFiles
    strategy: str
    attempts: int = 1
    source_materialization: str = ""
    commit_time_ms: int = 0
    warnings: tuple[str, ...] = ()
    num_source_rows_unaffected: int | None = None
    commit_attempts: int = 0
    files_redone: int = 0
    num_events_rescued: int = 0
    table: str = ""

    def __repr__(self) -> str:
        """Say on three lines what was done to which table; `str` has more."""
        lines = str(self).splitlines()
        return f"{self.table or 'MERGE'}: {lines[0]} ({self.strategy}, {self._time})\n" + "\n".join(
            f"  {line}" for line in lines[2:4]
        )

    @property
    def _time(self) -> str:
        return f"{(self.metrics['executionTimeMs'] + self.commit_time_ms) / 1000:,.2f} s"

    def __str__(self) -> str:
        """Return what was done, on a few lines."""
        counts = self.metrics
        return "\n".join(
            [
                "nothing was committed"
                if self.version is None
                else f"committed version {self.version}",
                f"strategy: {self.strategy}",
                f"rows: {counts['numTargetRowsUpdated']:,} updated, "
                f"{counts['numTargetRowsInserted']:,} inserted, "
                f"{counts['numTargetRowsDeleted']:,} deleted, "
                f"{counts['numTargetRowsCopied']:,} copied; {counts['numSourceRows']:,} in the "
                "source",
                f"files: {counts['numTargetFilesBeforeSkipping']:,} before skipping, "
                f"{counts['numTargetFilesAfterSkipping']:,} after, "
                f"{counts['numTargetFilesRemoved']:,} removed, "
                f"{counts['numTargetFilesAdded']:,} added",
                *(
                    [f"rescued: {counted(self.num_events_rescued, 'event')} that cannot be applied"]
                    if self.num_events_rescued
                    else []
                ),
                f"time: {self._time}",
                *(f"warning: {each}" for each in self.warnings),
            ]
        )

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        lines = [line.partition(": ") for line in str(self).splitlines()]
        rows = "".join(f"<tr><td>{a}</td><td>{escape(c)}</td></tr>" for a, _, c in lines)
        return f"<table><caption>{escape(self.table)}</caption>{rows}</table>"

    @property
    def was_applied_before(self) -> bool:
        """Whether nothing was done because the table held the transaction id."""
        return self.strategy == StrategyName.ALREADY_APPLIED.value

    def then(self, later: MergeResult) -> MergeResult:
        """Combine the result of this merge with that of a later one of the same table.

        The version is that of the last that committed; counts, sizes and times are sums.
        """
        warnings = (*self.warnings, *later.warnings)
        if later.version is None:
            return replace(self, warnings=warnings)
        if self.version is None:
            return replace(later, warnings=warnings)
        of_both = {name: self.metrics[name] + later.metrics[name] for name in MERGE_METRICS}
        between = set(self.touched_files.added) & set(later.touched_files.removed)
        removed = [path for path in later.touched_files.removed if path not in between]
        added = [path for path in self.touched_files.added if path not in between]
        return replace(
            later,
            metrics=MergeMetrics(of_both),
            touched_files=TouchedFiles(
                (*self.touched_files.removed, *removed),
                (*added, *later.touched_files.added),
                self.touched_files.removed_bytes + later.touched_files.removed_bytes,
            ),
            attempts=self.attempts + later.attempts,
            commit_attempts=self.commit_attempts + later.commit_attempts,
            files_redone=self.files_redone + later.files_redone,
            commit_time_ms=self.commit_time_ms + later.commit_time_ms,
            warnings=warnings,
            num_source_rows_unaffected=None,
        )
