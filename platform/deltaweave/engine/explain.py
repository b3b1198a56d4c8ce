"""What a merge would do, and why, found out without writing anything."""

from __future__ import annotations

from dataclasses import dataclass

from deltaweave.delta.analyzer import ResolvedMerge
from deltaweave.delta.conditions import by_source_predicate
from deltaweave.delta.deletion_vectors import vectors_writable
from deltaweave.delta.failures import translated
from deltaweave.delta.features import refuse_unsupported
from deltaweave.delta.file_list import FileList
from deltaweave.delta.transaction import Transaction, transaction_on
from deltaweave.engine.candidates import candidate_files, files_by_conditions
from deltaweave.engine.files_left import max_marked_fraction
from deltaweave.engine.in_place import why_not_in_place
from deltaweave.engine.key_index import key_index
from deltaweave.engine.source import PreparedSource, prepared_source
from deltaweave.engine.source_keys import SourceKeys, source_keys

# A table of fewer files has little to gain from skipping some.
_MANY_FILES = 10
_HIGH_AMPLIFICATION = 10


@dataclass(frozen=True)
class Files:
    """How much of the target is left after a step: data files, and their size in bytes."""

    files: int
    bytes: int


@dataclass(frozen=True)
class MergePlan:
    """What a merge would do to its target as it is now.

    Attributes:
        table: What messages call the target.
        version: The version that was looked at.
        strategy: How changes would be written, as in `MergeResult.strategy`.
        reason: Why in this way.
        source_rows: Rows of the source.
        source_bytes: Their measured size, or None where the source is not materialized.
        source_materialization: Why the source is materialized or not, in Delta's words.
        before_skipping: The whole target.
        after_conditions: What the statement's conditions over the target alone leave.
        after_source_keys: What the source's own keys leave of it: the files to be scanned.
        key_index: The column whose index (see `Table.index_keys`) was asked, too; empty if none.
        touched_files: At most so many files are rewritten or marked, where no two rows of the
            target have the same key.
        join: How the scan joins target and source.
        write_amplification: Rows written for each source row, estimated; 1 where only changed rows
            are written. None where row counts are not known.
        advice: What setting or layout would help, in one line; empty where none would.
    """

    table: str
    version: int
    strategy: str
    reason: str
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
        """The plan as lines of text."""
        amplification = self.write_amplification
        return "\n".join(
            [
                f"MERGE INTO {self.table}, version {self.version}",
                f"strategy: {self.strategy} ({self.reason})",
                f"source: {self.source_rows:,} rows ({self.source_materialization})",
                f"before skipping: {_shown(self.before_skipping)}",
                f"after the statement's conditions: {_shown(self.after_conditions)}",
                "after the source's keys"
                + (f" and the index of {self.key_index}" if self.key_index else "")
                + f": {_shown(self.after_source_keys)}",
                f"touched: at most {self.touched_files:,} files",
                f"join: {self.join}",
                "rows written for each source row: "
                + ("not known" if amplification is None else f"about {amplification:,.1f}"),
                f"advice: {self.advice or 'none'}",
            ]
        )


def explain(merge: ResolvedMerge) -> MergePlan:
    """Plan a resolved merge: the source is read, the target's file list and statistics are.

    Raises:
        DeltaweaveError: As the merge would; nothing was written.
    """
    with translated(merge.table), transaction_on(merge) as transaction:
        refuse_unsupported(transaction.snapshot, table=merge.table)
        with prepared_source(merge, attempt=1) as source:
            considered = files_by_conditions(transaction)
            keys = source_keys(merge, source, considered)
            scanned = candidate_files(transaction, source, keys, considered)
            return _plan(transaction, source, keys, considered, scanned)


def _plan(
    transaction: Transaction,
    source: PreparedSource,
    keys: SourceKeys,
    considered: FileList,
    scanned: FileList,
) -> MergePlan:
    merge = transaction.merge
    strategy, reason = _strategy(transaction)
    touched = 0
    if strategy != "insert-only":
        by_source = bool(merge.of_kind("not_matched_by_source"))
        touched = len(scanned) if by_source else min(len(scanned), source.num_rows)
    amplification = _amplification(strategy, source, scanned, touched)
    return MergePlan(
        table=merge.table,
        version=transaction.version,
        strategy=strategy,
        reason=reason,
        source_rows=source.num_rows,
        source_bytes=source.size_in_bytes,
        source_materialization=source.reason,
        before_skipping=Files(transaction.num_files, transaction.size_in_bytes),
        after_conditions=Files(len(considered), considered.size_in_bytes),
        after_source_keys=Files(len(scanned), scanned.size_in_bytes),
        key_index=_index_asked(transaction, keys),
        touched_files=touched,
        join="broadcast of the source, by its measured size"
        if source.is_broadcastable
        else "as Spark chooses by its estimates",
        write_amplification=amplification,
        advice=_advice(transaction, keys, considered, scanned, strategy, amplification),
    )


def _index_asked(transaction: Transaction, keys: SourceKeys) -> str:
    index = key_index(transaction.table)
    answers = index is not None and any(index.answers(key) for key in keys.columns)
    return index.column if index is not None and answers else ""


def _strategy(transaction: Transaction) -> tuple[str, str]:
    if transaction.merge.takes_insert_only_path:
        return "insert-only", "the statement has WHEN NOT MATCHED clauses alone"
    if vectors_writable(transaction):
        limit = max_marked_fraction(transaction)
        return "deletion-vectors", (
            "the table takes deletion vectors; files of which more than "
            f"{limit:.0%} of the rows would be marked are rewritten"
        )
    reason = why_not_in_place(transaction)
    if reason is None:
        return "copy-in-place", "the table's files can be copied row by row in their order"
    return "copy-on-write", f"Spark rewrites the touched files, since {reason}"


def _amplification(
    strategy: str, source: PreparedSource, scanned: FileList, touched: int
) -> float | None:
    if strategy in ("insert-only", "deletion-vectors") or not touched or not source.num_rows:
        return 1.0
    if scanned.num_records is None:
        return None
    return max(1.0, scanned.num_records / len(scanned) * touched / source.num_rows)


def _advice(
    transaction: Transaction,
    keys: SourceKeys,
    considered: FileList,
    scanned: FileList,
    strategy: str,
    amplification: float | None,
) -> str:
    merge = transaction.merge
    name = merge.table
    if merge.of_kind("not_matched_by_source") and by_source_predicate(merge) is None:
        return (
            "WHEN NOT MATCHED BY SOURCE looks at every file: give it a condition over the target's "
            "columns that says which rows the source speaks of."
        )
    if transaction.num_files > _MANY_FILES and len(scanned) * 2 > transaction.num_files:
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
    rewrites = strategy in ("copy-on-write", "copy-in-place")
    if rewrites and amplification is not None and amplification > _HIGH_AMPLIFICATION:
        return (
            "Most of what is written is not changed: ALTER TABLE "
            f"{name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') writes changed "
            "rows alone."
        )
    return ""


def _shown(files: Files) -> str:
    return f"{files.files:,} files, {files.bytes:,} bytes"
