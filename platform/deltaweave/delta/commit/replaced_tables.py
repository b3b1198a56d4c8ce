"""Recognizes a table on a disk whose directory was deleted, and perhaps created again, meanwhile.

Delta's commit does not: it puts the next version of the deleted table into the new table's log. On
other storage there is no lock that would keep the answer true until the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from deltaweave.delta.commit.local_disk import local_directory
from deltaweave.delta.jvm import JavaObject, said_by
from deltaweave.delta.log import commit_name, data_path
from deltaweave.errors import TableReplacedError

logger = logging.getLogger(__name__)


def check_not_replaced(
    log: JavaObject, transaction: JavaObject, *, table: str, operation: str
) -> None:
    """Fail if the file of the version that a transaction read is another one now.

    Raises:
        TableReplacedError: It is.
    """
    directory, read = local_directory(data_path(log)), int(transaction.readVersion())
    if directory is None or read < 0:
        return
    versions = directory / "_delta_log"
    # By this time, Delta too knows versions apart.
    known = int(transaction.snapshot().logSegment().lastCommitFileModificationTimestamp())
    try:
        now = (versions / commit_name(read)).stat().st_mtime_ns // 1_000_000
        is_replaced = now != known
    except FileNotFoundError:  # old versions are deleted where there are newer ones
        of_disk = transaction.readSnapshotTableCommitCoordinatorClientOpt().isEmpty()
        is_replaced = of_disk and not (versions / commit_name(read + 1)).exists()
    if is_replaced:
        raise TableReplacedError(table=table, operation=operation, version=read)


@contextmanager
def replacement_shown(
    log: JavaObject, transaction: JavaObject, *, table: str, operation: str
) -> Iterator[None]:
    """Raise `TableReplacedError` in place of an error of the block, if that is what happened."""
    try:
        yield
    except Exception as error:
        try:
            check_not_replaced(log, transaction, table=table, operation=operation)
        except TableReplacedError as replaced:
            raise replaced from error
        except Exception as unknown:
            logger.debug("%s: cannot tell whether it was replaced: %s", table, said_by(unknown))
        raise
