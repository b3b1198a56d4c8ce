"""The table features that the engine supports; it refuses all others by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject
from deltaweave.delta.log.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Supported features (Delta protocol, "Table Features"): a merge has nothing to do for them, or
# Delta's own writer (TransactionalWrite) and transaction handle them for every command.
SUPPORTED = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)


def refuse_unsupported(snapshot: TableSnapshot, *, table: str) -> None:
    """Refuse a table with unsupported features, before anything is read or written.

    Args:
        snapshot: The table's version.
        table: What messages call the table.

    Raises:
        UnsupportedFeatureError: It names every refused feature.
    """
    refused = sorted(_feature_names(snapshot.spark, snapshot.snapshot.protocol()) - SUPPORTED)
    if refused:
        raise errors.UnsupportedFeatureError(refused, table=table, version=snapshot.version)


def _feature_names(spark: SparkSession, protocol: JavaObject) -> set[str]:
    """The features that the protocol lists or, in versions before table features, implies."""
    features = protocol.implicitlyAndExplicitlySupportedFeatures()
    name = jvm_.function(spark, "org.apache.spark.sql.delta.TableFeature", "name")
    return set(str(features.map(name).mkString("\n")).split("\n")) - {""}
