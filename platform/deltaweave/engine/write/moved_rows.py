"""Changes rows in the files to which other commits moved them, and keeps all else that was written.

It serves merges whose output can be separated by file: deletion vectors, if the new rows come from
the source alone, and files that were rewritten in place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from deltaweave.delta.commit import Transaction
from deltaweave.delta.files import mark_here, may_mark_here, without_files
from deltaweave.engine.columns import FILE, TARGET_ROW_ID
from deltaweave.engine.find import TouchedFilesScan
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write.changes import Changes
from deltaweave.engine.write.in_place import rewrite_without_inserts
from deltaweave.engine.write.mark_or_rewrite import mark_or_rewrite
from deltaweave.engine.write.rows import updates_from_source
from deltaweave.engine.write.strategy import Strategy, may_move_rows


def why_not_moved(transaction: Transaction, changes: Changes, gone: Collection[str]) -> str | None:
    """Return why the output of files that are gone cannot be replaced; None if it can.

    Args:
        transaction: A transaction on the newest version.
        changes: What the merge wrote.
        gone: The paths of files with matches that are no longer in the table.
    """
    scan = changes.scan
    if scan is None or scan.source_identity is None:
        return "its pairs of source rows and target rows are not kept"
    if scan.num_repeated:
        return "several source rows delete one row"
    if changes.strategy is Strategy.COPY_IN_PLACE and may_move_rows(transaction):
        return "its new rows are in files with those of others"
    if changes.strategy is Strategy.COPY_IN_PLACE:
        return "it wrote the change feed" if transaction.metadata.keeps_change_feed else None
    if changes.strategy is not Strategy.DELETION_VECTORS:
        return "its new files hold rows of several files"
    if transaction.metadata.keeps_change_feed or updates_from_source(transaction, scan) is None:
        return "its new rows depend on the rows that they replace"
    if changes.num_copied and set(changes.removed.paths) & set(gone):
        return "rows of a file that is gone were copied"
    return None


def change_moved_rows(
    transaction: Transaction,
    source: PreparedSource,
    changes: Changes,
    gone: Collection[str],
    scan: TouchedFilesScan,
) -> Changes | None:
    """Change rows in the files that they moved to; keep the changes of other files.

    None if one of these files has to be rewritten by Spark.

    Args:
        transaction: A transaction on the newest version.
        source: The source.
        changes: What the merge wrote, which `why_not_moved` allows for.
        gone: The paths of the files that are gone.
        scan: What a scan of the files that came found: the same source rows and clauses.
    """
    if changes.strategy is Strategy.COPY_IN_PLACE:
        again = _copied(transaction, source, changes, gone, scan)
    else:
        again = _marked(transaction, changes, gone, scan)
    if again is None:
        return None
    return replace(
        again,
        matched=changes.matched.but_for(gone).and_also(scan.matched),
        touched=changes.touched.but_for(gone).and_also(scan.touched),
    )


def _marked(
    transaction: Transaction, changes: Changes, gone: Collection[str], scan: TouchedFilesScan
) -> Changes | None:
    fates = mark_or_rewrite(transaction, scan)
    rows = scan.changed_on_driver(fates.stay)
    if rows is None or len(fates.copied) or not may_mark_here(fates.stay):
        return None
    assert changes.marked is not None
    stayed = changes.touched.but_for(changes.removed.paths)
    own = without_files(changes.marked, stayed.among(gone))
    again = mark_here(transaction, rows[FILE], rows[TARGET_ROW_ID], fates.stay)
    removed = changes.removed.but_for(gone).and_also(fates.removed)
    return replace(changes, removed=removed, marked=own.and_also(again))


def _copied(
    transaction: Transaction,
    source: PreparedSource,
    changes: Changes,
    gone: Collection[str],
    scan: TouchedFilesScan,
) -> Changes | None:
    done = rewrite_without_inserts(transaction, source, scan, scan.touched)
    if len(done.left):
        return None
    assert changes.written is not None
    assert changes.scan is not None
    dropped = {new for old, new in changes.replacements.items() if old in gone}
    changed_then = zip(changes.scan.touched.paths, changes.scan.changed_by_file, strict=True)
    changed = sum(rows for path, rows in changed_then if path not in gone)
    stayed = changes.touched.but_for(gone)
    copied = transaction.num_records(stayed) - changed
    copied += transaction.num_records(scan.touched) - sum(scan.changed_by_file)
    return replace(
        changes,
        removed=stayed.and_also(scan.touched),
        written=changes.written.without(dropped).and_also(done.written),
        num_copied=copied,
    )
