"""Records a merge in Dagster's event log as soon as it returns: one observation, with its phases.

The materialization follows with the numbers, which are not repeated here. The time of the
observation is that of the commit, to some milliseconds (`latency`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import (
    AssetKey,
    AssetObservation,
    MetadataValue,
    TableColumn,
    TableRecord,
    TableSchema,
)

from dagster_deltaweave.metadata.merge_summary import phase_lines, summary

if TYPE_CHECKING:
    from deltaweave import MergeResult

_COLUMNS = TableSchema(
    columns=[
        TableColumn("phase", "string"),
        TableColumn("what it did", "string"),
        TableColumn("seconds", "float"),
    ]
)


def merge_observation(
    asset_key: AssetKey, partition: str | None, result: MergeResult
) -> AssetObservation:
    """Build the observation of a merge: what it did, and `merge/phases`, a table of its phases.

    Args:
        asset_key: The asset of the merge's target.
        partition: The partition that was merged, or None if it was none or several.
        result: What the merge reports.
    """
    records = [
        TableRecord({"phase": each.phase, "what it did": each.did, "seconds": each.seconds})
        for each in phase_lines(result)
    ]
    return AssetObservation(
        asset_key=asset_key,
        partition=partition,
        description=summary(result),
        metadata={"merge/phases": MetadataValue.table(records, schema=_COLUMNS)},
    )
