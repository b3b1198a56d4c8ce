"""Which table features the engine writes correctly, and which it refuses by name."""

from __future__ import annotations

from deltaweave import errors
from deltaweave.delta import jvm as jvm_
from deltaweave.delta.jvm import JavaObject

# Features (Delta protocol, "Table Features") with nothing for a merge to do, or that Delta's own
# writer (TransactionalWrite) and transaction take care of for every command.
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


def refuse_unsupported(snapshot: JavaObject, *, table: str) -> None:
    """Refuse, before anything is read or written, what the engine would write wrongly.

    Raises:
        UnsupportedFeatureError: It names every refused feature.
    """
    refused = sorted(_feature_names(snapshot.protocol()) - SUPPORTED)
    if refused:
        raise errors.UnsupportedFeatureError(refused, table=table, version=int(snapshot.version()))


def _feature_names(protocol: JavaObject) -> set[str]:
    """Features the protocol lists or, before table features, implies."""
    features = protocol.implicitlyAndExplicitlySupportedFeatures()
    return {feature.name() for feature in jvm_.iterate(features)}
