"""How assets declare their tables, and where those tables are.

- `declaration`: what decorators or metadata declare about a table: where it is, how it is written.
- `options`: the options of merges and of change events, as decorators and YAML give them.
- `metadata_declarations`: reads and writes declarations, and columns, in the metadata of assets;
  `Changes`: rows, and the upstream version that they apply.
- `locator`: `TableLocator`: finds and opens the table of an asset; refuses that of another, and
  tables inside one another.
- `named_asset`: the asset of a table, by its definition or its key.
"""

from __future__ import annotations

from dagster_deltaweave.tables.declaration import (
    TYPE_WIDENING,
    UPSERT_CLAUSES,
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    Namespace,
    TableDeclaration,
    TableLocation,
    WriteDeclaration,
    WriteMode,
    equal_keys_condition,
    full_names,
)
from dagster_deltaweave.tables.locator import (
    MergeOnReadLocations,
    TableLocator,
    check_locations,
    check_owner,
    check_parents,
    load_merge_on_read,
    merge_on_read_locations,
    open_merge_on_read,
    path_under,
    problem_of_table_key,
    run_locator,
    with_owner,
)
from dagster_deltaweave.tables.metadata_declarations import (
    PARTITION_EXPR,
    READ_CHANGED,
    READ_METADATA_KEY,
    READ_TOUCHED,
    Changes,
    ChangesOfPartitions,
    application_id,
    column_schema,
    declaration_metadata,
    declared_column_schema,
    merge_declaration_in,
    partition_expr_in,
    table_declaration,
    table_location,
    touched_upstreams,
)
from dagster_deltaweave.tables.named_asset import (
    AssetOrKey,
    MergeOnReadAssets,
    NamedAsset,
    bound_resources,
    merge_on_read_tables,
)
from dagster_deltaweave.tables.options import (
    CurrentTableOptions,
    Duration,
    EventArguments,
    IdempotentBy,
    MergeOnReadArguments,
    MergeOptions,
    Order,
    SchemaPolicy,
    TableOptions,
    options_in,
)

__all__ = [
    "PARTITION_EXPR",
    "READ_CHANGED",
    "READ_METADATA_KEY",
    "READ_TOUCHED",
    "TYPE_WIDENING",
    "UPSERT_CLAUSES",
    "AssetOrKey",
    "Changes",
    "ChangesDeclaration",
    "ChangesOfPartitions",
    "CurrentTableOptions",
    "Duration",
    "EventArguments",
    "IdempotentBy",
    "MergeDeclaration",
    "MergeOnReadArguments",
    "MergeOnReadAssets",
    "MergeOnReadDeclaration",
    "MergeOnReadLocations",
    "MergeOptions",
    "NamedAsset",
    "Namespace",
    "Order",
    "SchemaPolicy",
    "TableDeclaration",
    "TableLocation",
    "TableLocator",
    "TableOptions",
    "WriteDeclaration",
    "WriteMode",
    "application_id",
    "bound_resources",
    "check_locations",
    "check_owner",
    "check_parents",
    "column_schema",
    "declaration_metadata",
    "declared_column_schema",
    "equal_keys_condition",
    "full_names",
    "load_merge_on_read",
    "merge_declaration_in",
    "merge_on_read_locations",
    "merge_on_read_tables",
    "open_merge_on_read",
    "options_in",
    "partition_expr_in",
    "path_under",
    "problem_of_table_key",
    "run_locator",
    "table_declaration",
    "table_location",
    "touched_upstreams",
    "with_owner",
]
