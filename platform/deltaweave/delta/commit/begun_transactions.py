"""Begins the transaction of a merge, and one that takes its place if its commit lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deltaweave.delta import jvm as jvm_
from deltaweave.delta.commit.compaction import compaction
from deltaweave.delta.commit.replaced_tables import replacement_shown
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.jvm import JavaObject, translated
from deltaweave.delta.log import TableSnapshot
from deltaweave.delta.statement import ResolvedMerge

# The protocol's domain of the row ids that were given out. Each commit of new rows raises it, and
# the transaction reads it again.
_ROW_IDS = "delta.rowTracking"


@contextmanager
def transaction_on(merge: ResolvedMerge) -> Iterator[Transaction]:
    """Open a transaction on the target's newest version, active on this thread in the block.

    While it is active, a source that reads the target too (a self-merge) reads the same version,
    and Delta registers its reads.

    Raises:
        TableReplacedError: The block failed, and the table's directory was deleted meanwhile.
    """
    view = jvm_.jvm(merge.spark)
    log = merge.target_log
    with translated(merge.table):
        transaction = log.startTransaction(merge.node.catalogTable(), jvm_.option(view, None))
    # The same commit raises the high-water marks of identity columns.
    transaction.setTrackHighWaterMarks(merge.node.trackHighWaterMarks())
    begun = Transaction(merge, log, transaction)
    shown = replacement_shown(begun.table, begun.own_files, table=merge.table, operation="MERGE")
    with begun.active(), begun.own_files.deleted_unless_committed(), shown:
        yield begun


def transaction_after(lost: Transaction) -> Transaction:
    """Begin a transaction on the newest version to commit the files that a lost one wrote.

    It has read nothing yet: whoever uses it registers again what the merge reads. Values that Delta
    remembers of the written rows, as those of identity columns, stay with the one that lost.
    """
    merge, view = lost.merge, jvm_.jvm(lost.merge.spark)
    with translated(merge.table, version=lost.version):
        begun = lost.log.startTransaction(merge.node.catalogTable(), jvm_.option(view, None))
        hook = compaction(merge.spark)
        # Delta's writer asked for it when it wrote the files.
        if lost.transaction.containsPostCommitHook(hook):
            begun.registerPostCommitHook(hook)
    newer = Transaction(merge, lost.log, begun)
    newer.__dict__["own_files"] = lost.own_files
    return newer


def is_same_table(then: TableSnapshot, now: TableSnapshot) -> bool:
    """Return whether a newer version has the same id, schema, properties and protocol.

    A statement that was resolved against the one then means the same for the other.
    """
    return (
        now.version >= then.version
        and bool(now.snapshot.metadata().equals(then.snapshot.metadata()))
        and bool(now.snapshot.protocol().equals(then.snapshot.protocol()))
    )


def has_same_domains(then: TableSnapshot, now: TableSnapshot) -> bool:
    """Return whether another version has the same domain metadata, e.g. clustering columns."""
    return _domains(then.snapshot) == _domains(now.snapshot)


def _domains(snapshot: JavaObject) -> dict[str, str]:
    domains = jvm_.iterate(snapshot.domainMetadata())
    known = {str(each.domain()): str(each.configuration()) for each in domains}
    known.pop(_ROW_IDS, None)
    return known
