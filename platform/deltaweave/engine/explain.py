"""What a merge would do, and why. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

from deltaweave._validation import Verdict, counted, no
from deltaweave.delta.commit import Transaction, transaction_on
from deltaweave.delta.jvm import own_session, translated
from deltaweave.delta.log import FileList
from deltaweave.delta.statement import ResolvedMerge, by_source_predicate
from deltaweave.engine import limits
from deltaweave.engine.backends import (
    DeclinedError,
    file_eligibility,
    local_eligibility,
    may_find_by_keys,
)
from deltaweave.engine.merge_run import ANY_VERSION, MergeRun, MergeSettings
from deltaweave.engine.prune import candidate_files, files_by_conditions, stored_index
from deltaweave.engine.report import Phases, StrategyName
from deltaweave.engine.source import PreparedSource, SourceKeys, prepared_source, source_keys
from deltaweave.engine.strategies import Strategy, choose_strategy


@dataclass(frozen=True)
class Files:
    """Data files that are left after a step of pruning, and their size in bytes."""

    files: int
    bytes: int


@dataclass(frozen=True)
class MergePlan:
    """What a merge would do to its target as it is now.

    Attributes:
        table: The target's name in messages.
        version: The version of the target.
        strategy: How changes would be written, as in `MergeResult.strategy`.
        reason: Why this strategy.
        why_not_on_driver: Why Spark's executors work for the merge; empty if a job or two evaluate
            source and clauses, and the driver does the rest.
        source_rows: Rows of the source.
        source_bytes: Their bytes in memory, or None where they were not counted.
        source_materialization: Why the source is materialized or not, in Delta's words.
        before_skipping: The whole target.
        after_conditions: The files that the statement's conditions over the target alone leave.
        after_source_keys: The files that the source's keys then leave: those to be scanned.
        key_index: The column whose index (see `Table.index_keys`) was used, too; empty if none.
        touched_files: The most files that may be rewritten or marked, if no two rows of the target
            have the same key.
        join: How the scan joins target and source.
        write_amplification: Rows written for each source row, estimated; 1 where only changed rows
            are written. None where row counts are not known.
        advice: A setting or a layout that would help, in one line; empty if there is none.
    """

    table: str
    version: int
    strategy: str
    reason: str
    why_not_on_driver: str
    source_rows: int
    source_bytes: int | None
    source_materialization: str
    before_skipping: Files
    after_conditions: Files
    after_source_keys: Files
    key_index: str
    touched_files: int
    join: str
    write_amplification: float | None
    advice: str

    def __str__(self) -> str:
        """Return the plan as lines of text."""
        amplification = self.write_amplification
        return "\n".join(
            [
                f"MERGE INTO {self.table}, version {self.version}",
                f"strategy: {self.strategy} ({self.reason})",
                "on the driver: "
                + (f"no, since {self.why_not_on_driver}" if self.why_not_on_driver else "yes"),
                f"source: {counted(self.source_rows, 'row')} ({self.source_materialization})",
                f"before skipping: {_shown(self.before_skipping)}",
                f"after the statement's conditions: {_shown(self.after_conditions)}",
                "after the source's keys"
                + (f" and the index of {self.key_index}" if self.key_index else "")
                + f": {_shown(self.after_source_keys)}",
                f"touched: at most {counted(self.touched_files, 'file')}",
                f"join: {self.join}",
                "rows written for each source row: "
                + ("not known" if amplification is None else f"about {amplification:,.1f}"),
                f"advice: {self.advice or 'none'}",
            ]
        )


def explain_resolved(merge: ResolvedMerge) -> MergePlan:
    """Plan a resolved merge: read the source, and the target's file list and statistics.

    Raises:
        DeltaweaveError: As the merge would; nothing was written.
    """
    with translated(merge.table), own_session(merge.spark) as own:
        return _explained(merge.in_session(own))


def _explained(merge: ResolvedMerge) -> MergePlan:
    settings = MergeSettings.read(merge.spark)
    with transaction_on(merge) as transaction:
        transaction.refuse_unsupported()
        transaction.evolve_schema()  # in this transaction alone, which nobody commits
        with prepared_source(merge, attempt=1) as source:
            run = MergeRun(transaction, source, settings, ANY_VERSION, Phases(merge.spark))
            considered = files_by_conditions(transaction)
            keys = source_keys(merge, source, considered)
            return _plan(run, keys, considered, candidate_files(run, keys, considered))


def _join(run: MergeRun, keys: SourceKeys) -> str:
    if may_find_by_keys(run, keys).ok:
        return "none if the driver may read the files: it looks up the source's keys"
    if run.source.is_materialized and run.source.fits_broadcast:
        return "broadcast of the source, by its measured size"
    return "as Spark chooses by its estimates"


def _plan(run: MergeRun, keys: SourceKeys, considered: FileList, scanned: FileList) -> MergePlan:
    merge, source, table = run.statement, run.source, run.transaction.table
    choice = choose_strategy(run)
    strategy, touched = choice.strategy, 0
    name, reason, local = strategy.name, choice.reason, _local_verdict(run, scanned)
    if local.ok and strategy.local_name is not name:
        name = strategy.local_name
        reason = "the driver copies the files row by row in their order"
    if strategy.needs_scan:
        by_source = bool(merge.of_kind("not_matched_by_source"))
        touched = len(scanned) if by_source else min(len(scanned), source.num_rows)
    amplification = _amplification(strategy, source, scanned, touched)
    return MergePlan(
        table=merge.table,
        version=run.transaction.version,
        strategy=name.value,
        reason=reason,
        why_not_on_driver=local.reason,
        source_rows=source.num_rows,
        source_bytes=source.decoded_bytes,
        source_materialization=source.reason,
        before_skipping=Files(table.num_files, table.size_in_bytes),
        after_conditions=Files(len(considered), considered.size_in_bytes),
        after_source_keys=Files(len(scanned), scanned.size_in_bytes),
        key_index=_index_asked(run.transaction, keys),
        touched_files=touched,
        join=_join(run, keys),
        write_amplification=amplification,
        advice=_advice(run.transaction, keys, considered, scanned, amplification),
    )


def _local_verdict(run: MergeRun, candidates: FileList) -> Verdict:
    """Return whether the local backend is expected to do the merge."""
    try:
        local_eligibility(run)
    except DeclinedError as declined:
        return no(str(declined))
    return file_eligibility(candidates)


def _index_asked(transaction: Transaction, keys: SourceKeys) -> str:
    index = stored_index(transaction.table)
    answers = index is not None and any(index.answers(key) for key in keys.columns)
    return index.column if index is not None and answers else ""


def _amplification(
    strategy: Strategy, source: PreparedSource, scanned: FileList, touched: int
) -> float | None:
    if strategy.local_name is not StrategyName.COPY_IN_PLACE or not touched or not source.num_rows:
        return 1.0
    if scanned.num_records is None:
        return None
    return max(1.0, scanned.num_records / len(scanned) * touched / source.num_rows)


def _advice(
    transaction: Transaction,
    keys: SourceKeys,
    considered: FileList,
    scanned: FileList,
    amplification: float | None,
) -> str:
    merge = transaction.merge
    name = merge.table
    if merge.of_kind("not_matched_by_source") and by_source_predicate(merge) is None:
        return (
            "WHEN NOT MATCHED BY SOURCE looks at every file: give it a condition over the target's "
            "columns that says which rows the source covers."
        )
    if (
        transaction.table.num_files > limits.MIN_FILES_FOR_ADVICE
        and len(scanned) * 2 > transaction.table.num_files
    ):
        if not keys.columns:
            return (
                "ON sets no column of the target equal to a value of the source, so that no file "
                "can be skipped: add such an equality if there is one, e.g. on a partition column."
            )
        if len(scanned) == len(considered):
            columns = ", ".join(".".join(key.equality.path) for key in keys.columns)
            return (
                "The source's keys are spread over all files: bring rows with near keys together, "
                f"ALTER TABLE {name} CLUSTER BY ({columns}), then OPTIMIZE {name} FULL; or, where "
                "keys are as random as UUIDs, index them with Table.index_keys."
            )
    # Strategies that write changes alone have an amplification of 1.
    if amplification is not None and amplification > limits.HIGH_WRITE_AMPLIFICATION:
        return (
            "Most of what is written is not changed: ALTER TABLE "
            f"{name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') writes changed "
            "rows alone."
        )
    return ""


def _shown(files: Files) -> str:
    return f"{counted(files.files, 'file')}, {counted(files.bytes, 'byte')}"
