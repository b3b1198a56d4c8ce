"""Transactions on a table: what they read, what they write, and the commit.

- `transaction`: the transaction of a merge: lists and reads files, writes rows, commits.
- `begun_transactions`: begins it, and one that takes its place if its commit lost.
- `merge_operation`: the operation, tags and metrics of a MERGE commit.
- `written_files`: the files that a write left on storage.
- `partition_times`: the values of partitions in the hour that comes twice a year.
- `table_write`: appends and overwrites, which need no merge.
- `assigned_rows`: the rows of such a write, with the types of the table's columns.
- `file_rewrite`: rewrites data files without a change of rows.
- `table_creation`: creates tables, also when several writers do so at once.
- `analysis_checks`: checks that the table has not changed since the statement was resolved.
- `transaction_ids`: the idempotency pairs (application id, version) that a table holds.
- `local_disk`: lets one commit at a time through to a table on a disk.
- `lock_file`: the file that it locks, and the record of who holds the lock.
- `mounts`: whether a lock also excludes other hosts.
- `commit_call`: calls Delta's commit, and finds out whether a failed call committed.
- `after_commit`: steps after a commit, whose failures are warnings.
- `uncommitted_files`: deletes the files of a write that failed before its commit.
"""

from __future__ import annotations

from deltaweave.delta.commit.after_commit import AfterCommit
from deltaweave.delta.commit.analysis_checks import check_since_analysis
from deltaweave.delta.commit.begun_transactions import (
    has_same_domains,
    is_same_table,
    transaction_after,
    transaction_on,
)
from deltaweave.delta.commit.commit_call import Committed, committed
from deltaweave.delta.commit.file_rewrite import rewrite_files
from deltaweave.delta.commit.local_disk import TableLock, alone_on_local_disk, local_directory
from deltaweave.delta.commit.partition_times import check_partition_times, rewritable_partitions
from deltaweave.delta.commit.table_creation import (
    WantedTable,
    create_table,
    is_unwritten,
    is_unwritten_otherwise,
    made_unwritten,
    make_anew,
)
from deltaweave.delta.commit.table_write import Write, WriteResult, write_rows
from deltaweave.delta.commit.transaction import Transaction
from deltaweave.delta.commit.transaction_ids import (
    OF_A_PART,
    Lease,
    is_applied,
    reset_session_pair,
    run_command,
    session_pair,
    without_session_pair,
)
from deltaweave.delta.commit.written_files import (
    ChangeFileOf,
    WrittenFiles,
    written_without_spark,
)

__all__ = [
    "OF_A_PART",
    "AfterCommit",
    "ChangeFileOf",
    "Committed",
    "Lease",
    "TableLock",
    "Transaction",
    "WantedTable",
    "Write",
    "WriteResult",
    "WrittenFiles",
    "alone_on_local_disk",
    "check_partition_times",
    "check_since_analysis",
    "committed",
    "create_table",
    "has_same_domains",
    "is_applied",
    "is_same_table",
    "is_unwritten",
    "is_unwritten_otherwise",
    "local_directory",
    "made_unwritten",
    "make_anew",
    "reset_session_pair",
    "rewritable_partitions",
    "rewrite_files",
    "run_command",
    "session_pair",
    "transaction_after",
    "transaction_on",
    "without_session_pair",
    "write_rows",
    "written_without_spark",
]
