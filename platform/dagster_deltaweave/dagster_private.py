"""The only module that imports Dagster's private names: check it for each new Dagster release."""

from __future__ import annotations

# Dagster offers no public way to any of these names. A step outside of a code location raises this
# error when asked for its repository.
from dagster._check import CheckError

# Marks assets that the code location does not define, but names, e.g. as upstreams.
from dagster._core.definitions.assets.definition.asset_spec import (
    SYSTEM_METADATA_KEY_AUTO_CREATED_STUB_ASSET as STUB,
)

# Inputs without a value, which Dagster adds where a step can be subset, have it in their names.
from dagster._core.definitions.assets.definition.assets_definition import ASSET_SUBSET_INPUT_PREFIX

# The type of a repository's public attribute `asset_graph`.
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

# Sensors and IO managers return neither `Output` nor `MaterializeResult`, which alone take a
# `DataVersion`.
from dagster._core.definitions.data_version import DATA_VERSION_TAG, get_input_data_version_tag

# What executes a run in this process that belongs to a code location: this, `execute_run`,
# `location_origins_from_yaml_paths`, `RemoteRepositoryOrigin`. `execute_in_process` makes runs
# without one, which the UI's timeline does not show.
from dagster._core.definitions.job_base import InMemoryJob

# Dagster documents the keys `dagster/row_count` and `dagster/uri`, but not how to write them.
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

# The only metadata value that keeps a Python object.
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME

# The type that the public `define_asset_job` returns.
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.execution.api import execute_run

# Which backfills go on, and what their daemon notes.
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)

# Names the output of a step, whose IO manager and context it gives.
from dagster._core.execution.plan.outputs import StepOutputHandle

# Types of what names the code location of a run or a backfill.
from dagster._core.remote_origin import (
    RemoteJobOrigin,
    RemotePartitionSetOrigin,
    RemoteRepositoryOrigin,
)

# The event log filters the records of a check by it.
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

# A copy would miss a status that Dagster adds.
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES

# Dagster documents the texts of these tags, but exports no constants.
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    ASSET_RESUME_RETRY_TAG,
    BACKFILL_ID_TAG,
    PARENT_BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PARTITION_NAME_TAG,
    PRIORITY_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
)
from dagster._core.workspace.load import location_origins_from_yaml_paths

RANGE_TAGS = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)

__all__ = [
    "ASSET_RESUME_RETRY_TAG",
    "ASSET_SUBSET_INPUT_PREFIX",
    "BACKFILL_ID_TAG",
    "BULK_ACTION_TERMINAL_STATUSES",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "NOT_FINISHED_STATUSES",
    "PARENT_BACKFILL_ID_TAG",
    "PARENT_RUN_ID_TAG",
    "PARTITION_NAME_TAG",
    "PRIORITY_TAG",
    "RANGE_TAGS",
    "RUN_KEY_TAG",
    "SENSOR_NAME_TAG",
    "SINGLETON_REPOSITORY_NAME",
    "STUB",
    "AssetBackfillData",
    "AssetCheckExecutionRecordStatus",
    "AssetGraph",
    "BulkActionStatus",
    "BulkActionsFilter",
    "CheckError",
    "InMemoryJob",
    "ObjectMetadataValue",
    "PartitionBackfill",
    "RemoteJobOrigin",
    "RemotePartitionSetOrigin",
    "RemoteRepositoryOrigin",
    "StepOutputHandle",
    "TableMetadataSet",
    "UnresolvedAssetJobDefinition",
    "UriMetadataSet",
    "execute_run",
    "get_input_data_version_tag",
    "location_origins_from_yaml_paths",
]
