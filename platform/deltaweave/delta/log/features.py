"""The table features that the engine knows, with its answers; it refuses all others by name."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from deltaweave import errors
from deltaweave._validation import YES, Verdict, no
from deltaweave.delta.log.actions import TableMetadata
from deltaweave.delta.log.snapshot import TableSnapshot


@dataclass(frozen=True)
class TableFeature:
    """The engine's answers for tables with a feature (Delta protocol, "Table Features").

    Attributes:
        name: The feature's name in the protocol.
        local: Whether the local backend merges into a table that uses it.
        in_place: Whether Arrow copies and writes the files of such a table, for any backend.
        rebase: Whether a merge's output may be committed on a newer version of such a table.
        is_used: Whether a table's metadata shows that it uses the feature in a way that the answers
            are about. Old protocol versions imply features that tables may not use.
        by_metadata: Whether that alone decides, also where the protocol does not list the feature.
    """

    name: str
    local: Verdict
    in_place: Verdict
    rebase: Verdict
    is_used: Callable[[TableMetadata], bool] = lambda _: True
    by_metadata: bool = False

    def applies(self, names: Set[str], metadata: TableMetadata) -> bool:
        """Return whether the answers are about a table."""
        return (self.by_metadata or self.name in names) and self.is_used(metadata)


def _has_identity_columns(metadata: TableMetadata) -> bool:
    return any(
        key.startswith("delta.identity.")
        for field in metadata.schema
        for key in field.metadata or {}
    )


def _has_generated_columns(metadata: TableMetadata) -> bool:
    return "delta.generationExpression" in metadata.schema_text  # also partition columns


_GENERATED = no("the table has generated columns")
_BY_ID = no("the table finds columns in its files by id")
_STORES_PARTITION_COLUMNS = no("the table stores its partition columns in the files too")

# A merge has nothing to do for them, or Delta's own writer (TransactionalWrite) and transaction
# handle them for every command. What depends on a column is in `files.capabilities`, and what
# depends on constraints in `files.conditions_of_rows`. A feature that is not here is refused.
_FEATURES = (
    TableFeature("allowColumnDefaults", local=YES, in_place=YES, rebase=YES),
    TableFeature("appendOnly", local=YES, in_place=YES, rebase=YES),
    TableFeature("changeDataFeed", local=YES, in_place=YES, rebase=YES),
    TableFeature("checkConstraints", local=YES, in_place=YES, rebase=YES),
    TableFeature("checkpointProtection", local=YES, in_place=YES, rebase=YES),
    TableFeature("clustering", local=YES, in_place=YES, rebase=YES),
    TableFeature(
        "columnMapping",
        local=_BY_ID,
        in_place=_BY_ID,
        rebase=YES,
        is_used=lambda metadata: metadata.column_mapping == "id",
        by_metadata=True,
    ),
    TableFeature("deletionVectors", local=YES, in_place=YES, rebase=YES),
    TableFeature("domainMetadata", local=YES, in_place=YES, rebase=YES),
    TableFeature(
        "generatedColumns",
        local=_GENERATED,
        in_place=_GENERATED,
        rebase=YES,
        is_used=_has_generated_columns,
        by_metadata=True,
    ),
    TableFeature(
        "identityColumns",
        local=no("the table has identity columns"),
        in_place=YES,
        rebase=no("Delta keeps the identity values that it gave out in the lost transaction"),
        is_used=_has_identity_columns,
        by_metadata=True,
    ),
    TableFeature("inCommitTimestamp", local=YES, in_place=YES, rebase=YES),
    TableFeature("invariants", local=YES, in_place=YES, rebase=YES),
    TableFeature(
        "materializePartitionColumns",
        local=_STORES_PARTITION_COLUMNS,
        in_place=_STORES_PARTITION_COLUMNS,
        rebase=YES,
        is_used=lambda metadata: bool(metadata.partition_columns),
    ),
    TableFeature(
        "rowTracking",
        local=no("the table tracks its rows"),
        in_place=YES,
        rebase=YES,
        is_used=lambda metadata: metadata.is_on("delta.enableRowTracking"),
        by_metadata=True,
    ),
    TableFeature("timestampNtz", local=YES, in_place=YES, rebase=YES),
    TableFeature("typeWidening", local=YES, in_place=YES, rebase=YES),
    TableFeature("typeWidening-preview", local=YES, in_place=YES, rebase=YES),
    TableFeature("v2Checkpoint", local=YES, in_place=YES, rebase=YES),
    TableFeature("vacuumProtocolCheck", local=YES, in_place=YES, rebase=YES),
    TableFeature("variantShredding", local=YES, in_place=YES, rebase=YES),
    TableFeature("variantShredding-preview", local=YES, in_place=YES, rebase=YES),
    TableFeature("variantType", local=YES, in_place=YES, rebase=YES),
    TableFeature("variantType-preview", local=YES, in_place=YES, rebase=YES),
)
FEATURES = {feature.name: feature for feature in _FEATURES}

# Properties of Delta that set how files are written, kept and listed, or which feature is used.
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


def may_merge_locally(snapshot: TableSnapshot) -> Verdict:
    """Return whether the table's features leave its merges to the local backend too."""
    return _answer(snapshot, lambda feature: feature.local)


def may_copy_in_place(snapshot: TableSnapshot) -> Verdict:
    """Return whether the table's features leave its files to Arrow too."""
    return _answer(snapshot, lambda feature: feature.in_place)


def may_rebase(snapshot: TableSnapshot) -> Verdict:
    """Return whether a merge's output may be committed on a newer version of the table.

    It may where that is known to be right for each of the table's features and properties.
    """
    of_features = _answer(snapshot, lambda feature: feature.rebase)
    if not of_features.ok:
        return of_features
    of_properties = (property_verdict(*each) for each in snapshot.metadata.properties.items())
    return next((verdict for verdict in of_properties if not verdict.ok), YES)


def _answer(snapshot: TableSnapshot, answer: Callable[[TableFeature], Verdict]) -> Verdict:
    """Return the first answer that refuses a table, by its features; unknown ones refuse it."""
    names = snapshot.feature_names
    for name in sorted(names - FEATURES.keys()):
        return no(f"the table has the feature {name}")
    asked = (each for each in FEATURES.values() if not answer(each).ok)
    used = (each for each in asked if each.applies(names, snapshot.metadata))
    return next(map(answer, used), YES)


def property_verdict(name: str, value: str) -> Verdict:
    """Return whether output may be committed again on a table with this property."""
    key = name.lower()
    is_known = (
        not key.startswith("delta.")  # Delta reserves this prefix for its own
        or key in _REBASED_PROPERTIES
        or key.startswith(_REBASED_PREFIXES)
        or (key, value.lower()) == ("delta.isolationlevel", "writeserializable")
    )
    return YES if is_known else no(f"the table has the property {name}={value}")


def refuse_unsupported(snapshot: TableSnapshot, *, table: str) -> None:
    """Refuse a table with unsupported features, before anything is read or written.

    Raises:
        UnsupportedFeatureError: The table has refused features; the error names all of them.
    """
    refused = sorted(snapshot.feature_names - FEATURES.keys())
    if refused:
        raise errors.UnsupportedFeatureError(refused, table=table, version=snapshot.version)
