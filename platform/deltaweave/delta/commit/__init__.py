"""Transactions on a table: what they read, what they write, and the commit.

- `transaction`: the transaction of a merge: begins, lists and reads files, writes rows, commits.
- `analysis_checks`: checks that the table has not changed since the statement was resolved.
- `commit_call`: calls Delta's commit, finds out whether a failed call committed; what follows it;
  retries of what lost to another commit.
- `transaction_ids`: the transaction ids (application id, version) that a table holds.
- `written_files`: the files that a write left on storage, and their deletion if it fails.
- `partition_times`: the values of partitions in the hour that comes twice a year.
- `table_write`: appends, overwrites and rewritten files, which need no merge.
- `table_creation`: creates tables, also when several writers do so at once.
- `table_lock`: lets one commit at a time through to a table on a disk; the file that it locks.
"""

from __future__ import annotations

from deltaweave.delta.commit.analysis_checks import check_since_analysis
from deltaweave.delta.commit.commit_call import (
    AfterCommit,
    Committed,
    committed,
    retried_after_conflict,
)
from deltaweave.delta.commit.partition_times import check_partition_times, rewritable_partitions
from deltaweave.delta.commit.table_creation import (
    WantedTable,
    create_from,
    create_table,
    is_unwritten,
    is_unwritten_and_differs,
    made_unwritten,
    recreate_empty,
    retried_after_creation,
)
from deltaweave.delta.commit.table_lock import TableLock, alone_on_local_disk, local_directory
from deltaweave.delta.commit.table_write import Write, WriteResult, rewrite_files, write_rows
from deltaweave.delta.commit.transaction import (
    Transaction,
    has_same_domains,
    is_same_table,
    transaction_after,
    transaction_on,
)
from deltaweave.delta.commit.transaction_ids import (
    Lease,
    TransactionId,
    is_applied,
    reset_session_transaction_id,
    run_command,
    session_transaction_id,
    without_session_transaction_id,
)
from deltaweave.delta.commit.written_files import (
    ChangeFileOf,
    WrittenFiles,
    written_without_spark,
)

__all__ = [
    "AfterCommit",
    "ChangeFileOf",
    "Committed",
    "Lease",
    "TableLock",
    "Transaction",
    "TransactionId",
    "WantedTable",
    "Write",
    "WriteResult",
    "WrittenFiles",
    "alone_on_local_disk",
    "check_partition_times",
    "check_since_analysis",
    "committed",
    "create_from",
    "create_table",
    "has_same_domains",
    "is_applied",
    "is_same_table",
    "is_unwritten",
    "is_unwritten_and_differs",
    "local_directory",
    "made_unwritten",
    "recreate_empty",
    "reset_session_transaction_id",
    "retried_after_conflict",
    "retried_after_creation",
    "rewritable_partitions",
    "rewrite_files",
    "run_command",
    "session_transaction_id",
    "transaction_after",
    "transaction_on",
    "without_session_transaction_id",
    "write_rows",
    "written_without_spark",
]
