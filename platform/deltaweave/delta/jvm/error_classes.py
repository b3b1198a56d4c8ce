"""The error classes of Spark and Delta that are errors of `deltaweave.errors`."""

from __future__ import annotations

from collections.abc import Set

from deltaweave import errors

_NOT_FOUND = {
    "TABLE_OR_VIEW_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "PATH_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}
_NOT_DELTA = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",  # the path exists; a missing path is PATH_NOT_FOUND
    "DELTA_NOT_A_DELTA_TABLE",
    "DELTA_TABLE_ONLY_OPERATION",
    "DELTA_INVALID_FORMAT",
}
_SCHEMA_CHANGED = {
    "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS",
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
}
_CONSTRAINT = {
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    "EXCEED_LIMIT_LENGTH",
    "NOT_NULL_ASSERT_VIOLATION",
    "CAST_OVERFLOW_IN_TABLE_INSERT",
    "DELTA_CAST_OVERFLOW_IN_TABLE_WRITE",
}
_AMBIGUOUS = {"DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"}
CATALOG_NOT_LOADED = {f"_LEGACY_ERROR_TEMP_{number}" for number in range(2214, 2219)}
"""Spark cannot load the class that spark.sql.catalog.<name> names."""

KINDS: tuple[tuple[type[errors.DeltaweaveError], Set[str]], ...] = (
    (errors.TableNotFoundError, _NOT_FOUND),
    (errors.NotADeltaTableError, _NOT_DELTA),
    (errors.AmbiguousMatchError, _AMBIGUOUS),
    (errors.SchemaChangedError, _SCHEMA_CHANGED),
    (errors.ConstraintViolationError, _CONSTRAINT),
    (errors.StatementError, CATALOG_NOT_LOADED),
    (errors.SourceLostError, {"CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"}),
)
"""Our errors, and the error classes that are each of them, without what follows a dot."""
