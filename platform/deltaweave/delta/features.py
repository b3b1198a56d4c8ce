"""Which table features the engine writes correctly, and which it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping

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
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",  # supported by the protocol; refused below where the schema has one
        "inCommitTimestamp",
        "invariants",
        "rowTracking",  # the same: refused where it is switched on
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

# Table properties that switch a feature on which the engine does not write yet.
_REFUSED_WHEN_TRUE: Mapping[str, str] = {
    "delta.enableRowTracking": "rowTracking (delta.enableRowTracking)",
}


def refuse_unsupported(snapshot: JavaObject, *, table: str) -> None:
    """Refuse, before anything is read or written, what the engine would write wrongly.

    Raises:
        UnsupportedFeatureError: It names every refused feature.
    """
    refused = sorted(_feature_names(snapshot.protocol()) - SUPPORTED)
    properties = snapshot.metadata().configuration()
    for key, name in _REFUSED_WHEN_TRUE.items():
        setting = properties.get(key)
        if setting.isDefined() and setting.get().lower() == "true":
            refused.append(name)
    if "delta.identity." in snapshot.metadata().schemaString():
        refused.append("identityColumns")
    if refused:
        raise errors.UnsupportedFeatureError(refused, table=table, version=int(snapshot.version()))


def _feature_names(protocol: JavaObject) -> set[str]:
    """Features the protocol lists or, before table features, implies."""
    features = protocol.implicitlyAndExplicitlySupportedFeatures()
    return {feature.name() for feature in jvm_.iterate(features)}
