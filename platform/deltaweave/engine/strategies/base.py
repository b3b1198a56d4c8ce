"""How the changes of a merge become files: what every strategy answers and does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from deltaweave._validation import Verdict, no
from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import (
    WritableColumn,
    arrow_schema,
    assumes_new_calendar,
    codec,
    file_mode,
)
from deltaweave.delta.scan import tracked_columns
from deltaweave.delta.statement import keeps_columns
from deltaweave.engine.attempts import storage_of
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan
from deltaweave.engine.prune import Candidates
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.tasks import Disk, NotRewritableError, TableFormat


@dataclass(frozen=True)
class SparkScan:
    """The files that Spark reads, and the matches in them, before it writes.

    Attributes:
        candidates: The candidate files, and the source's keys.
        scan: What the scan for matches found; None if the strategy needs none.
    """

    candidates: Candidates
    scan: TouchedFilesScan | None = None

    @property
    def matches(self) -> TouchedFilesScan:
        """The result of the scan, for a strategy that needs one."""
        assert self.scan is not None, "needs_scan"
        return self.scan


class Strategy(ABC):
    """A way to write changes.

    Attributes:
        name: The public word for it.
        needs_scan: Whether it needs the scan for matches.
        needs_row_index: Whether the scan must know the index of each row in its file.
        local_name: The strategy by which the local backend writes in its place.
    """

    name: ClassVar[StrategyName]
    needs_scan: ClassVar[bool] = True
    needs_row_index: ClassVar[bool] = False
    local_name: ClassVar[StrategyName]

    @abstractmethod
    def applies(self, run: MergeRun) -> Verdict:
        """Return whether it may write a merge. Nothing is written and no job runs."""

    @abstractmethod
    def explain(self, run: MergeRun, instead_of: Mapping[StrategyName, str]) -> str:
        """Explain why the strategy was chosen, given the reasons against those before it."""

    @abstractmethod
    def write(self, run: MergeRun, found: SparkScan) -> Staged:
        """Write the changes by Spark; a scan has found one touched file at least."""

    def can_rebase(self, staged: Staged, removed_paths: Collection[str]) -> Verdict:
        """Return whether the output of files that another commit removed can be replaced.

        `staged` is on a newer version, and its `scan` is known. `removed_paths` has the paths of
        the files with matches that the table lacks now.
        """
        return no("its new files hold rows of several files")

    def rebased(
        self, staged: Staged, removed_paths: Collection[str], scan: TouchedFilesScan
    ) -> Staged | Verdict:
        """Change rows in the files that they moved to; keep the changes of other files.

        The verdict says why that is not possible.

        `staged` is on a newer version, and `can_rebase` allows for it. `scan` found the same source
        rows and clauses in the new files.
        """
        return no("an added file has to be rewritten by Spark")


def may_move_rows(run: MergeRun) -> bool:
    """Return whether an update may move rows to another partition."""
    merge, partitioned_by = run.statement, run.transaction.partition_columns
    updates = [clause for clause in merge.clauses if clause.action == "update"]
    return bool(partitioned_by) and not all(
        keeps_columns(merge, each, partitioned_by) for each in updates
    )


def table_format(transaction: Transaction, columns: Sequence[WritableColumn]) -> TableFormat:
    """Return what new files of the table look like; Spark's settings choose the compression.

    Args:
        columns: The columns in the table's files, as `written_columns` gives them.
    """
    storage = storage_of(transaction.table)
    if storage is None:
        raise NotRewritableError("Arrow no longer sees the table's store")
    if isinstance(storage, Disk):
        storage = replace(storage, mode=file_mode(transaction))
    compression, extension = codec(transaction)
    tracked = tracked_columns(transaction)
    return TableFormat(
        arrow_schema(transaction, columns),
        compression,
        extension,
        transaction.statistics_schema,
        transaction.string_prefix_length,
        transaction.merge.spark.version,
        assumes_new_calendar(transaction.merge.spark),
        storage,
        transaction.own_files.prefix,
        transaction.own_files.change_feed() if transaction.metadata.keeps_change_feed else None,
        None if tracked is None else (tracked.row_id.name, tracked.commit_version.name),
    )
