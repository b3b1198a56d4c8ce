"""Copy in place: tasks copy touched files with pyarrow, and Spark the files that are not worth it.

Files in which few rows change are worth it. Spark computes the changed rows and groups them by
file; a task for each file copies it and replaces these rows (see tasks/parquet_rewrite). Every row
keeps its place, so unmodified rows are not shuffled, and a sorted table stays sorted. Where an
update may move rows to another partition, all changed rows leave their files instead.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType
from pyspark.util import PythonEvalType

from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.commit import Transaction, WrittenFiles, written_without_spark
from deltaweave.delta.files import (
    ONLY_DELTA_CHECKS,
    additions,
    are_own,
    conditions_of_rows,
    data_columns,
    written_columns,
)
from deltaweave.delta.jvm import alongside, cast_to, collected, sql_expression
from deltaweave.delta.log import FileList, decoded_location, file_versions
from deltaweave.delta.scan import RowColumns, target_plan
from deltaweave.delta.statement import ResolvedMerge
from deltaweave.engine import limits
from deltaweave.engine.attempts import (
    WITHOUT_PYARROW,
    attempted,
    found_without_pyarrow,
    lacks_pyarrow,
    warn_of_fallback,
)
from deltaweave.engine.clauses import (
    BREAKS_CONSTRAINT,
    CLAUSE,
    CLAUSE_VALUES,
    FILE,
    IS_DELETED,
    NO_CLAUSE,
    NUMBER,
    SOURCE_ROW,
    TARGET_ROW_ID,
    asked_after_join,
    clause_taken,
    columns_before,
    updated,
    with_broken,
)
from deltaweave.engine.merge_run import MergeRun
from deltaweave.engine.pairs import TouchedFilesScan, with_numbers
from deltaweave.engine.report import StrategyName
from deltaweave.engine.staged import Staged
from deltaweave.engine.strategies.base import SparkScan, Strategy, may_move_rows, table_format
from deltaweave.engine.strategies.rows import (
    changed_rows,
    copy_phase,
    copy_touched_files,
    inserted_rows,
    remaining_rows,
    updated_and_inserted,
    updates_from_source,
    write_parts,
)
from deltaweave.engine.tasks import (
    REWRITTEN_SCHEMA,
    NotRewritableError,
    TableFormat,
    in_batches,
    in_whole,
    rewriter,
)
from deltaweave.errors import MergeFailedError

if TYPE_CHECKING:
    import numpy


logger = logging.getLogger(__name__)

_GROUPS_COME_IN_BATCHES = hasattr(PythonEvalType, "SQL_GROUPED_MAP_ARROW_ITER_UDF")  # Spark 4.1


class CopyInPlace(Strategy):
    """Rewrite the touched files: in place where that is cheaper, and by Spark the others."""

    name = StrategyName.COPY_IN_PLACE
    local_name = StrategyName.COPY_IN_PLACE
    needs_row_index = True

    def applies(self, run: MergeRun) -> Verdict:
        attempt = partial(_may_copy, run)
        unknown = no("it is not known whether Arrow copies its files as Spark does")
        return attempted(run.table, "Spark rewrites the touched files", attempt) or unknown

    def explain(self, run: MergeRun, instead_of: Mapping[StrategyName, str]) -> str:
        reason = "the table's files can be copied row by row in their order"
        if may_move_rows(run):
            reason += "; changed rows, which may move to other partitions, go to other files"
        return reason

    def write(self, run: MergeRun, found: SparkScan) -> Staged:
        scan = found.matches
        name, replacements = StrategyName.COPY_ON_WRITE, dict[str, str]()
        with copy_phase(run, scan):
            files = _worth_copying(run, scan)
            if not len(files):
                # Writing them apart needs row indexes, which only this strategy's scan has.
                apart = scan.may_broadcast_pairs and _most_rows_change(run, scan)
                written = copy_touched_files(run, scan, without_join=apart)
            elif may_move_rows(run):
                done = rewrite_without_changed_rows(run, scan, files)
                name = name if len(done.left) else self.name
                written = done.written
            else:
                done = rewrite_in_place(run, scan, files)
                written = done.written
                if len(done.left):
                    rows = changed_rows(run, scan, done.left, with_unmodified=True)
                    written = run.transaction.write(rows).union(written)
                else:
                    name, replacements = self.name, done.replacements
        return Staged.copied(run, name, scan, written, replacements)

    def can_rebase(self, staged: Staged, removed_paths: Collection[str]) -> Verdict:
        if may_move_rows(staged.run):
            return no("its new rows are in files with those of others")
        keeps_feed = staged.run.transaction.metadata.keeps_change_feed
        return no("it wrote the change feed") if keeps_feed else YES

    def rebased(
        self, staged: Staged, removed_paths: Collection[str], scan: TouchedFilesScan
    ) -> Staged | Verdict:
        done = rewrite_without_inserts(staged.run, scan, scan.touched)
        if len(done.left):
            return super().rebased(staged, removed_paths, scan)
        assert staged.written is not None
        assert staged.scan is not None
        dropped = {new for old, new in staged.replacements.items() if old in removed_paths}
        changed_before = zip(staged.scan.touched.paths, staged.scan.changed_by_file, strict=True)
        changed = sum(rows for path, rows in changed_before if path not in removed_paths)
        stayed = staged.touched.excluding(removed_paths)
        copied = staged.run.transaction.num_records(stayed) - changed
        copied += staged.run.transaction.num_records(scan.touched) - sum(scan.changed_by_file)
        return replace(
            staged,
            removed=stayed.union(scan.touched),
            written=staged.written.without(dropped).union(done.written),
            num_copied=copied,
        )


def _may_copy(run: MergeRun) -> Verdict:
    """Return whether some touched files may be rewritten in place."""
    if not run.source.gives_same_rows:
        # Changed rows are computed after the scan, and must be the rows that the scan saw.
        return no("the source may give other rows when it is read again")
    if not run.settings.in_place.verdict.ok:
        return run.settings.in_place.verdict
    if lacks_pyarrow(run.statement.spark):
        return no(WITHOUT_PYARROW)
    is_auto = run.settings.in_place.is_auto
    if is_auto and run.transaction.table.size_in_bytes < limits.MIN_BYTES_IN_PLACE:
        return no("the table is small")
    if is_auto and may_move_rows(run):
        # Each changed row would leave its file, and each merge add a file to each partition.
        return no("an update may move rows to another partition")
    if conditions_of_rows(run.transaction) is None:
        return no(ONLY_DELTA_CHECKS)
    columns = written_columns(run.transaction)
    return YES if isinstance(columns, list) else no(columns.reason)


def _most_rows_change(run: MergeRun, scan: TouchedFilesScan) -> bool:
    """Return whether too many rows of every touched file change to rewrite any in place."""
    is_big = scan.touched.size_in_bytes >= limits.MIN_BYTES_IN_PLACE
    return not run.settings.in_place.is_forced and is_big and not _few_rows_change(scan).any()


def _worth_copying(run: MergeRun, scan: TouchedFilesScan) -> FileList:
    """Return the touched files to rewrite in place: all of them if the setting is `true`."""
    if run.settings.in_place.is_forced:
        return scan.touched
    files = scan.touched.where(_few_rows_change(scan))
    return files if files.size_in_bytes >= limits.MIN_BYTES_IN_PLACE else scan.touched.empty()


def _few_rows_change(scan: TouchedFilesScan) -> numpy.ndarray:
    """Return for each touched file whether few of its rows change; false if that is not known."""
    import numpy as np

    at_most = limits.MAX_CHANGED_FRACTION_IN_PLACE * scan.touched.row_counts
    few: numpy.ndarray = np.array(scan.changed_by_file) <= at_most
    return few


@dataclass(frozen=True)
class RewrittenInPlace:
    """The outcome of rewriting files in place.

    Attributes:
        replacements: The path of the new file by that of the old one; a file without rows left has
            none.
        left: The touched files that were not rewritten, and are left to Spark.
    """

    written: WrittenFiles
    replacements: dict[str, str]
    left: FileList


def rewrite_in_place(run: MergeRun, scan: TouchedFilesScan, files: FileList) -> RewrittenInPlace:
    """Rewrite files where that is possible, and write the inserts at the same time.

    The scan knows each row's index in its file.
    """

    def insert() -> WrittenFiles | None:
        with run.transaction.active():
            return write_parts(run.transaction, inserted_rows(run, scan))

    # One task rewrites a file: a few files leave cores idle, which can write the inserts.
    with alongside(run.statement.spark, insert) as inserting:
        done = rewrite_without_inserts(run, scan, files)
    inserted = inserting.result()
    return done if inserted is None else replace(done, written=inserted.union(done.written))


def rewrite_without_inserts(
    run: MergeRun, scan: TouchedFilesScan, files: FileList, *, keeps_changed: bool = True
) -> RewrittenInPlace:
    """Rewrite files by tasks; all touched files are left to Spark if that fails as a whole.

    The scan knows each row's index in its file.

    Args:
        keeps_changed: Whether changed rows stay in their files. Otherwise they are left out, and
            tasks write no change feed.
    """
    transaction, own = run.transaction, run.transaction.own_files
    prefix = f"{own.prefix}{uuid.uuid4().hex[:8]}-"  # other files of the merge may stay
    may_have_written = False

    def attempt() -> RewrittenInPlace | None:
        nonlocal may_have_written
        columns = written_columns(transaction)
        if isinstance(columns, Verdict):
            raise NotRewritableError(columns.reason)
        table = replace(table_format(transaction, columns), file_prefix=prefix)
        ours = files.where(are_own(files))  # a new file is written beside the old one
        if not len(ours):
            return None
        if keeps_changed:
            changed = _changes(run, scan, ours)
        else:
            changed, table = _dropped(transaction, scan, ours), replace(table, change_feed=None)
        own.begin_beside(ours)
        may_have_written = True
        return _by_tasks(transaction, scan, ours, changed, table)

    done = attempted(transaction.merge.table, "Spark rewrites the files", attempt)
    if done is not None:
        return done
    if may_have_written:
        own.delete_all(prefix)
    return RewrittenInPlace(WrittenFiles.of(scan.touched.empty()), {}, scan.touched)


def _by_tasks(
    transaction: Transaction,
    scan: TouchedFilesScan,
    files: FileList,
    changes: DataFrame,
    table: TableFormat,
) -> RewrittenInPlace | None:
    results = results_of_tasks(transaction, changes, files, scan.names_of(files), table)
    if results is None:
        return None
    paths = dict(zip(files.rows["location"].to_pylist(), files.paths, strict=True))
    done = {paths[decoded_location(row["file"])]: row for row in results}
    table_name = transaction.merge.table
    for path, row in done.items():
        if row["refused"]:
            logger.info("%s: Spark rewrites %s: %s", table_name, path, row["refused"])
    warn_of_failed_copies(table_name, {path: row["failed"] for path, row in done.items()})
    in_place = {path for path, row in done.items() if not (row["refused"] or row["failed"])}
    new = {
        path: (row["name"], row["size"], row["stats"])
        for path, row in done.items()
        if row["name"] is not None
    }
    partitions = dict(zip(files.paths, files.rows["partition"].to_pylist(), strict=True))
    recorded = [
        (row["change_file"], row["change_file_size"], json.loads(partitions[path]))
        for path, row in done.items()
        if row["change_file"] is not None
    ]
    added = additions(files, new)
    written = written_without_spark(transaction.transaction, added).with_changes(recorded)
    replaced = [path for path in files.paths if path in new]
    replacements = dict(zip(replaced, written.files.paths, strict=True))
    return RewrittenInPlace(written, replacements, scan.touched.excluding(in_place))


def warn_of_failed_copies(table: str, reasons: Mapping[str, str | None]) -> None:
    """Warn once of all files that tasks failed to rewrite.

    `reasons` has the class and the message of each file's error, or None. Messages may quote rows,
    so the debug log alone has them.
    """
    failed = {path: reason for path, reason in reasons.items() if reason}
    if not failed:
        return
    for path, reason in failed.items():
        logger.debug("%s: Spark rewrites %s: %s", table, path, reason)
    classes = sorted({reason.partition(":")[0] for reason in failed.values()})
    named_classes = ", ".join(classes[: limits.MAX_SHOWN_ERRORS])
    files = f"{len(failed)} of {len(reasons)} files, the first of them {next(iter(failed))}"
    warn_of_fallback(table, f"Spark rewrites {files}", named_classes)


def rewrite_without_changed_rows(
    run: MergeRun, scan: TouchedFilesScan, files: FileList
) -> RewrittenInPlace:
    """Rewrite files without their changed rows, and write all new rows to other files.

    This is the way where an update may move rows to another partition than that of their file.

    The scan knows each row's index in its file.

    Returns:
        All that was written, with what stays of the files that are left to Spark.
    """

    def write_new_rows() -> WrittenFiles | None:
        with run.transaction.active():
            return write_parts(run.transaction, updated_and_inserted(run, scan))

    with alongside(run.statement.spark, write_new_rows) as writing:
        # The new rows' side writes the change feed.
        done = rewrite_without_inserts(run, scan, files, keeps_changed=False)
    new = writing.result()
    written = done.written
    if len(done.left):
        copied = run.transaction.write(remaining_rows(run.transaction, scan, done.left))
        written = copied.union(written)
    return replace(done, written=written if new is None else new.union(written))


def _dropped(transaction: Transaction, scan: TouchedFilesScan, files: FileList) -> DataFrame:
    """Return the changed rows of these files as deleted ones: see `_changes`."""
    fields = [each.dataType for each in data_columns(transaction)]
    row = StructType([StructField(f"v{i}", kind) for i, kind in enumerate(fields)])
    nothing = cast_to(transaction.merge.spark, F.lit(None), row).alias(CLAUSE_VALUES)
    flags = F.lit(True).alias(IS_DELETED), F.lit(False).alias(BREAKS_CONSTRAINT)
    return scan.changed_numbered(TARGET_ROW_ID, files=files).select(
        NUMBER, TARGET_ROW_ID, *flags, nothing
    )


def _changes(run: MergeRun, scan: TouchedFilesScan, files: FileList) -> DataFrame:
    """Return a row per change: its file's number, and what `tasks.rewrite_file` takes."""
    import numpy as np

    merge, conditions = run.statement, conditions_of_rows(run.transaction)
    assert conditions is not None, "CopyInPlace.applies"
    in_files = {column.name for column in data_columns(run.transaction)}
    stored = np.array([name in in_files for name in merge.evolved_schema.names])
    # Constraints may name partition columns, which files do not store.
    kept = np.ones(len(stored), dtype=bool) if conditions else stored
    updates = updates_from_source(run.transaction, scan, with_row_ids=False)
    if updates is not None:
        rows = scan.changed_numbered(TARGET_ROW_ID, SOURCE_ROW, CLAUSE, files=files)
        identity = scan.source_identity
        if updates and identity is not None:
            # The source is the left side, whose attribute ids Spark keeps.
            rows = run.source.for_join().join(rows, identity == F.col(SOURCE_ROW), "right")
        after = _new_row(merge, scan, updates, kept)
    else:
        added = RowColumns(file=FILE, row_index=TARGET_ROW_ID)
        target = target_plan(run.transaction, files, added=added)
        outer = merge.of_kind("not_matched_by_source")
        rows = target.join(run.source.for_join(), merge.condition, "left" if outer else "inner")
        clause = asked_after_join(merge, clause_taken(merge))
        rows = rows.withColumn(CLAUSE, clause).filter(F.col(CLAUSE) != NO_CLAUSE)
        rows = with_numbers(rows, scan.names_of(files))
        after = _struct(updated(merge, columns_before(merge)), kept)
    deletes = [i for i, clause in enumerate(merge.clauses) if clause.action == "delete"]
    is_deleted = F.col(CLAUSE).isin(deletes).alias(IS_DELETED)
    changes = rows.select(NUMBER, TARGET_ROW_ID, is_deleted, after.alias(CLAUSE_VALUES))
    return _checked(changes, merge, conditions, stored)


def _checked(
    changes: DataFrame, merge: ResolvedMerge, conditions: Sequence[Column], stored: numpy.ndarray
) -> DataFrame:
    """Add whether a new row breaks a constraint to the changes; keep stored columns alone."""
    keys = [NUMBER, TARGET_ROW_ID, IS_DELETED]
    if not conditions:
        return changes.select(*keys, F.lit(False).alias(BREAKS_CONSTRAINT), CLAUSE_VALUES)
    names = merge.evolved_schema.names
    rows = with_broken(changes, CLAUSE_VALUES, names, conditions, BREAKS_CONSTRAINT)
    breaks = F.col(BREAKS_CONSTRAINT) & ~F.col(IS_DELETED)
    rows = rows.select(*keys, breaks.alias(BREAKS_CONSTRAINT), CLAUSE_VALUES)
    if stored.all():
        return rows
    of_files = F.struct(
        *[f"{CLAUSE_VALUES}.v{i}" for i, is_stored in enumerate(stored) if is_stored]
    )
    return rows.withColumn(CLAUSE_VALUES, of_files)


def _new_row(
    merge: ResolvedMerge, scan: TouchedFilesScan, updates: Sequence[int], stored: numpy.ndarray
) -> Column:
    """Return the new values of rows that these update clauses take; null for deleted rows."""
    fields = compress(merge.evolved_schema.fields, stored)
    # Arrow refuses a struct with two fields of the same name.
    row = StructType([StructField(f"v{i}", field.dataType) for i, field in enumerate(fields)])

    def values(i: int) -> Column:
        return cast_to(merge.spark, merge.clauses[i].row(stored), row)

    took_rows = [i for i, count in scan.rows_by_clause.items() if count]
    if len(took_rows) == len(updates) == 1:
        return values(updates[0])
    # A clause's values may fail for rows of other clauses: only its own rows are computed.
    of_all = cast_to(merge.spark, sql_expression(merge.spark, "NULL"), row)
    for i in updates:
        of_all = F.when(F.col(CLAUSE) == i, values(i)).otherwise(of_all)
    return of_all


def _struct(values: Sequence[Column], stored: numpy.ndarray) -> Column:
    return F.struct(*[value.alias(f"v{i}") for i, value in enumerate(values) if stored[i]])


def results_of_tasks(
    transaction: Transaction,
    changes: DataFrame,
    files: FileList,
    names: Sequence[str],
    table: TableFormat,
) -> list[dict[str, Any]] | None:
    """Rewrite files in tasks; return a row of `REWRITTEN_SCHEMA` for each, None without pyarrow.

    `names` has the files as `FILE` names them; `NUMBER` is an index among these.
    """
    with_vectors = frozenset(row["location"] for row in files.rows.to_pylist() if row["has_vector"])
    first_rows = {} if table.tracking is None else _first_rows(files)
    rewrite = rewriter(table, names, with_vectors, first_rows)
    task = in_batches(rewrite) if _GROUPS_COME_IN_BATCHES else in_whole(rewrite)
    rewritten = (
        _in_tasks(changes, _num_tasks(transaction, files))
        .groupBy(NUMBER)
        .applyInArrow(task, REWRITTEN_SCHEMA)
    )
    try:
        with transaction.translated():
            rows: list[dict[str, Any]] = collected(rewritten).to_pylist()
    except MergeFailedError as error:
        if not found_without_pyarrow(transaction.merge.spark, error):
            raise
        return None
    return rows


def _in_tasks(changes: DataFrame, number: int) -> DataFrame:
    """Split the changes into this many tasks, which share the files evenly."""
    if hasattr(changes, "repartitionById"):
        return changes.repartitionById(number, NUMBER)
    # Before Spark 4.1, by a hash, which leaves tasks without a file.
    return changes.repartition(number, NUMBER)


def _num_tasks(transaction: Transaction, files: FileList) -> int:
    """Return how many tasks share the files: as many, unless a task would have little to do."""
    busy = 2 * transaction.merge.spark.sparkContext.defaultParallelism
    by_size = math.ceil(files.size_in_bytes / limits.MIN_BYTES_OF_TASK_IN_PLACE)
    return max(1, min(len(files), limits.MAX_TASKS_IN_PLACE, max(busy, by_size)))


def _first_rows(files: FileList) -> dict[str, tuple[int, int]]:
    """Return the first row's id and commit version, by location, of files with tracked rows."""
    versions = zip(files.rows["location"].to_pylist(), file_versions(files), strict=True)
    row_ids = {location: each.row_ids.split("|") for location, each in versions}
    return {
        location: (int(texts[0]), int(texts[1]))
        for location, texts in row_ids.items()
        if all(texts)
    }
