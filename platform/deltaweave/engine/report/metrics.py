"""Delta's merge metrics, counted from the data.

Row counts come from the pairs and from the statistics of the new files, which count what
successful tasks wrote. So retried and speculative tasks cannot inflate them.
"""

from __future__ import annotations

from deltaweave.delta.commit import Transaction
from deltaweave.engine.phases import Phases
from deltaweave.engine.report.result import MERGE_METRICS, MergeMetrics
from deltaweave.engine.source import PreparedSource
from deltaweave.engine.write import Changes


def merge_metrics(
    transaction: Transaction, source: PreparedSource, changes: Changes, phases: Phases
) -> MergeMetrics:
    """Collect all metrics of a merge that is about to be committed."""
    values: dict[str, int] = dict.fromkeys(MERGE_METRICS, 0)
    values |= {
        "numSourceRows": source.num_rows,
        "operationNumSourceRows": source.num_rows,
        "numTargetFilesBeforeSkipping": transaction.table.num_files,
        "numTargetBytesBeforeSkipping": transaction.table.size_in_bytes,
        "numTargetFilesAfterSkipping": len(changes.candidates),
        "numTargetBytesAfterSkipping": changes.candidates.size_in_bytes,
        "numTargetPartitionsAfterSkipping": changes.candidates.num_partitions,
        "numTargetFilesRemoved": len(changes.removed),
        "numTargetBytesRemoved": changes.removed.size_in_bytes,
        "numTargetPartitionsRemovedFrom": changes.removed.num_partitions,
        **phases.times_ms,
    }
    for i, num_rows in changes.rows_by_clause.items():
        clause = transaction.merge.clauses[i]
        if clause.kind != "not_matched":
            by = "Matched" if clause.kind == "matched" else "NotMatchedBySource"
            did = "Updated" if clause.action == "update" else "Deleted"
            values[f"numTargetRows{did}"] += num_rows
            values[f"numTargetRows{by}{did}"] += num_rows
    values["numTargetRowsCopied"] = changes.num_copied
    if changes.written is not None:
        added = changes.written.files
        not_inserted = values["numTargetRowsCopied"] + values["numTargetRowsUpdated"]
        values |= {
            "numTargetRowsInserted": transaction.num_records(added) - not_inserted,
            "numTargetFilesAdded": len(added),
            "numTargetBytesAdded": added.size_in_bytes,
            "numTargetPartitionsAddedTo": added.num_partitions,
            "numTargetChangeFilesAdded": changes.written.num_change_files,
            "numTargetChangeFileBytes": changes.written.change_file_bytes,
        }
    if changes.marked is not None:
        values |= {
            "numTargetDeletionVectorsAdded": changes.marked.num_added,
            "numTargetDeletionVectorsRemoved": changes.marked.num_removed
            + changes.removed.num_vectors,
            "numTargetDeletionVectorsUpdated": changes.marked.num_updated,
        }
    return MergeMetrics(values)
