"""The only module that imports Dagster's private names: check it for each new Dagster release.

These names are imported because Dagster offers no public way:

- `CheckError`: a step outside of a code location raises it when asked for its repository.
- `DATA_VERSION_TAG`: the tag with which events set a data version; `DataVersion` can only be given
  to `Output` and `MaterializeResult`, and sensors and IO managers return neither.
- `get_input_data_version_tag`: the tag that says which version of an upstream was read.
- `AssetGraph`: the type of a repository's public attribute `asset_graph`.
- `TableMetadataSet`, `UriMetadataSet`: the keys `dagster/row_count`, `dagster/uri` and their kin;
  Dagster documents the keys, but exports nothing that writes them.
- `ObjectMetadataValue`: the only metadata value that keeps a Python object; `MetadataValue` has no
  constructor for it.
- `UnresolvedAssetJobDefinition`: the type that the public `define_asset_job` returns.
- `AssetCheckExecutionRecordStatus`: the event log filters the records of a check by it.
- `FINISHED_STATUSES`, `NOT_FINISHED_STATUSES`: the statuses of runs that have ended, and of the
  others; a copy here would miss a status that Dagster adds.
- `PARENT_RUN_ID_TAG`, `PARTITION_NAME_TAG`, `RUN_KEY_TAG`, `SENSOR_NAME_TAG`: the tags that show
  where a run comes from; Dagster documents their texts, but exports no constants.
- `StepOutputHandle`: names the output of a step, whose IO manager and context it gives.
- `BulkActionsFilter`, `BulkActionStatus`, `BULK_ACTION_TERMINAL_STATUSES`: which backfills go on,
  and which have ended.
- `PartitionBackfill`, `AssetBackfillData`: the types of a backfill, and of what its daemon notes.
- `RANGE_TAGS`: likewise, the tags for the first and the last partition of a run of several.
- `InMemoryJob`, `execute_run`, `location_origins_from_yaml_paths`, `RemoteRepositoryOrigin`,
  `SINGLETON_REPOSITORY_NAME`: what executes a run in this process that belongs to a code location;
  `execute_in_process` makes runs without one, which the UI's timeline does not show.
- `PRIORITY_TAG`, `BACKFILL_ID_TAG`: likewise, the tags for a run's place in the queue and for the
  backfill that it belongs to.
"""

from __future__ import annotations

from dagster._check import CheckError
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.data_version import DATA_VERSION_TAG, get_input_data_version_tag
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.api import execute_run
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.execution.plan.outputs import StepOutputHandle
from dagster._core.remote_origin import RemoteRepositoryOrigin
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    PRIORITY_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
)
from dagster._core.workspace.load import location_origins_from_yaml_paths

RANGE_TAGS = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)

__all__ = [
    "BACKFILL_ID_TAG",
    "BULK_ACTION_TERMINAL_STATUSES",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "NOT_FINISHED_STATUSES",
    "PARENT_RUN_ID_TAG",
    "PARTITION_NAME_TAG",
    "PRIORITY_TAG",
    "RANGE_TAGS",
    "RUN_KEY_TAG",
    "SENSOR_NAME_TAG",
    "SINGLETON_REPOSITORY_NAME",
    "AssetBackfillData",
    "AssetCheckExecutionRecordStatus",
    "AssetGraph",
    "BulkActionStatus",
    "BulkActionsFilter",
    "CheckError",
    "InMemoryJob",
    "ObjectMetadataValue",
    "PartitionBackfill",
    "RemoteRepositoryOrigin",
    "StepOutputHandle",
    "TableMetadataSet",
    "UnresolvedAssetJobDefinition",
    "UriMetadataSet",
    "execute_run",
    "get_input_data_version_tag",
    "location_origins_from_yaml_paths",
]
