"""The table features that the engine knows, with its answers; it refuses all others by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.metadata import TableMetadata
from deltaweave.delta.log.snapshot import TableSnapshot
from deltaweave.verdict import YES, Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TableFeature:
    """What the engine does with tables that have a feature (Delta protocol, "Table Features").

    Attributes:
        name: The feature's name in the protocol.
        rebase: Whether a merge's output may be committed on a newer version of such a table.
        is_used: Whether a table uses it. Old protocol versions imply features that tables may not
            use.
    """

    name: str
    rebase: Verdict
    is_used: Callable[[TableMetadata], bool] = lambda _: True


def _has_identity_columns(metadata: TableMetadata) -> bool:
    return "delta.identity." in metadata.schema_text


# A merge has nothing to do for them, or Delta's own writer (TransactionalWrite) and transaction
# handle them for every command. A feature that is not here is refused.
_FEATURES = (
    TableFeature("allowColumnDefaults", rebase=YES),
    TableFeature("appendOnly", rebase=YES),
    TableFeature("changeDataFeed", rebase=YES),
    TableFeature("checkConstraints", rebase=YES),
    TableFeature("checkpointProtection", rebase=YES),
    TableFeature("clustering", rebase=YES),
    TableFeature("columnMapping", rebase=YES),
    TableFeature("deletionVectors", rebase=YES),
    TableFeature("domainMetadata", rebase=YES),
    TableFeature("generatedColumns", rebase=YES),
    TableFeature(
        "identityColumns",
        rebase=Verdict("Delta keeps the identity values that it gave out in the lost transaction"),
        is_used=_has_identity_columns,
    ),
    TableFeature("inCommitTimestamp", rebase=YES),
    TableFeature("invariants", rebase=YES),
    TableFeature("materializePartitionColumns", rebase=YES),
    TableFeature("rowTracking", rebase=YES),
    TableFeature("timestampNtz", rebase=YES),
    TableFeature("typeWidening", rebase=YES),
    TableFeature("typeWidening-preview", rebase=YES),
    TableFeature("v2Checkpoint", rebase=YES),
    TableFeature("vacuumProtocolCheck", rebase=YES),
    TableFeature("variantShredding", rebase=YES),
    TableFeature("variantShredding-preview", rebase=YES),
    TableFeature("variantType", rebase=YES),
    TableFeature("variantType-preview", rebase=YES),
)
FEATURES = {feature.name: feature for feature in _FEATURES}

# Properties of Delta that say how files are written, kept and listed, or which feature is used.
_REBASED_PROPERTIES = frozenset(
    f"delta.{name}".lower()
    for name in (
        "appendOnly",
        "checkpointInterval",
        "checkpointPolicy",
        "checkpointRetentionDuration",
        "columnMapping.maxColumnId",
        "columnMapping.mode",
        "compatibility.symlinkFormatManifest.enabled",
        "dataSkippingNumIndexedCols",
        "dataSkippingStatsColumns",
        "dataSkippingStringPrefixLength",
        "deletedFileRetentionDuration",
        "enableChangeDataFeed",
        "enableDeletionVectors",
        "enableExpiredLogCleanup",
        "enableFullRetentionRollback",
        "enableInCommitTimestamps",
        "enableMaterializePartitionColumnsFeature",
        "enableRowTracking",
        "enableTypeWidening",
        "enableVariantShredding",
        "inCommitTimestampEnablementTimestamp",
        "inCommitTimestampEnablementVersion",
        "lastCommitTimestamp",
        "lastUpdateVersion",
        "logRetentionDuration",
        "minReaderVersion",
        "minWriterVersion",
        "parquet.compression.codec",
        "parquet.format.version",
        "randomPrefixLength",
        "randomizeFilePrefixes",
        "requireCheckpointProtectionBeforeVersion",
        "rowTrackingSuspended",
        "sampleRetentionDuration",
        "setTransactionRetentionDuration",
        "writePartitionColumnsToParquet",
    )
)
_REBASED_PREFIXES = (
    "delta.autooptimize",
    "delta.checkpoint.",
    "delta.constraints.",
    "delta.feature.",
    "delta.rowtracking.",
)


def may_rebase(snapshot: TableSnapshot) -> Verdict:
    """Return whether a merge's output may be committed on a newer version of the table.

    It may where that is known to be right for each of the table's features and properties.
    """
    for name in sorted(feature_names(snapshot.spark, snapshot.snapshot.protocol())):
        feature = FEATURES.get(name)
        if feature is None:
            return Verdict(f"the table has the feature {name}")
        if feature.is_used(snapshot.metadata) and not feature.rebase.ok:
            return feature.rebase
    of_properties = (property_verdict(*pair) for pair in snapshot.metadata.properties.items())
    return next((verdict for verdict in of_properties if not verdict.ok), YES)


def property_verdict(name: str, value: str) -> Verdict:
    """Return whether output may be committed again on a table with this property."""
    key = name.lower()
    is_known = (
        not key.startswith("delta.")  # Delta reserves this prefix for its own
        or key in _REBASED_PROPERTIES
        or key.startswith(_REBASED_PREFIXES)
        or (key, value.lower()) == ("delta.isolationlevel", "writeserializable")
    )
    return YES if is_known else Verdict(f"the table has the property {name}={value}")


def refuse_unsupported(snapshot: TableSnapshot, *, table: str) -> None:
    """Refuse a table with unsupported features, before anything is read or written.

    Args:
        snapshot: The table's version.
        table: What messages call the table.

    Raises:
        UnsupportedFeatureError: It names every refused feature.
    """
    refused = sorted(feature_names(snapshot.spark, snapshot.snapshot.protocol()) - FEATURES.keys())
    if refused:
        raise errors.UnsupportedFeatureError(refused, table=table, version=snapshot.version)


def feature_names(spark: SparkSession, protocol: JavaObject) -> set[str]:
    """Return the features that the protocol lists or, in old versions, implies."""
    features = protocol.implicitlyAndExplicitlySupportedFeatures()
    name = jvm_.function(spark, "org.apache.spark.sql.delta.TableFeature", "name")
    return set(str(features.map(name).mkString("\n")).split("\n")) - {""}
