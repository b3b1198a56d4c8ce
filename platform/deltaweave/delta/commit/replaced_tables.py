"""Recognizes a table on a disk whose directory was deleted, and perhaps created again, meanwhile.

Delta's commit does not: it puts the next version of the deleted table into the new table's log. On
other storage there is no lock that would keep the answer true until the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from deltaweave.delta.commit.local_disk import local_directory
from deltaweave.delta.commit.uncommitted_files import OwnFiles
from deltaweave.delta.jvm import said_by
from deltaweave.delta.log import TableSnapshot, commit_name
from deltaweave.errors import TableReplacedError

logger = logging.getLogger(__name__)


def check_not_replaced(read: TableSnapshot, *, table: str, operation: str) -> None:
    """Fail if the file of the version that was read is another one now.

    Raises:
        TableReplacedError: The table was replaced.
    """
    directory = local_directory(read.data_path)
    if directory is None or read.version < 0:
        return
    versions = directory / "_delta_log"
    # By this time, Delta too knows versions apart.
    known = int(read.snapshot.logSegment().lastCommitFileModificationTimestamp())
    try:
        now = (versions / commit_name(read.version)).stat().st_mtime_ns // 1_000_000
        is_replaced = now != known
    except FileNotFoundError:
        # Old versions are deleted where there are newer ones.
        is_replaced = not (versions / commit_name(read.version + 1)).exists()
    if is_replaced:
        raise TableReplacedError(table=table, operation=operation, version=read.version)


@contextmanager
def replacement_shown(
    read: TableSnapshot, own_files: OwnFiles, *, table: str, operation: str
) -> Iterator[None]:
    """Raise `TableReplacedError` in place of an error before the commit, if that is the cause.

    Args:
        read: The version that the block read.
        own_files: The block's files. From the commit on, they show that the error stays: the
            commit has looked for itself, and it may have landed.
        table: The table's name in the error.
        operation: What the block does.
    """
    try:
        yield
    except Exception as error:
        if own_files.is_committing:
            raise
        try:
            check_not_replaced(read, table=table, operation=operation)
        except TableReplacedError as replaced:
            raise replaced from error
        except Exception as unknown:
            logger.debug("%s: cannot tell whether it was replaced: %s", table, said_by(unknown))
        raise
