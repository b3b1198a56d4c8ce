"""How assets declare their tables, and where those tables are.

- `declaration`: what decorators or metadata declare about a table: where it is, how it is written.
- `options`: the options of merges and of change events, as decorators and YAML give them.
- `metadata_declarations`: reads and writes declarations, and columns, in the metadata of assets.
- `locator`: `TableLocator`: finds and opens the table of an asset, and refuses that of another.
- `places`: in which directories and tables assets keep data; refuses tables inside one another.
- `named_asset`: the asset of a table, by its definition or its key.
- `applied_changes`: `Changes`: rows, and the upstream version that they apply.
"""

from __future__ import annotations

from dagster_deltaweave.tables.applied_changes import (
    READ_CHANGED,
    READ_METADATA_KEY,
    READ_TOUCHED,
    Changes,
    ChangesOfPartitions,
    application_id,
    touched_upstreams,
)
from dagster_deltaweave.tables.declaration import (
    TYPE_WIDENING,
    UPSERT_CLAUSES,
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    Namespace,
    TableDeclaration,
    TablePlace,
    WriteDeclaration,
    WriteMode,
    equal_keys_condition,
    full_names,
)
from dagster_deltaweave.tables.locator import (
    MergeOnReadLocations,
    TableLocator,
    check_owner,
    load_merge_on_read,
    merge_on_read_locations,
    open_merge_on_read,
    run_locator,
    with_owner,
)
from dagster_deltaweave.tables.metadata_declarations import (
    PARTITION_EXPR,
    column_schema,
    declaration_metadata,
    declared_column_schema,
    merge_declaration_in,
    partition_expr_in,
    table_declaration,
    table_place,
)
from dagster_deltaweave.tables.named_asset import (
    AssetOrKey,
    MergeOnReadAssets,
    NamedAsset,
    merge_on_read_tables,
)
from dagster_deltaweave.tables.options import (
    CurrentTableOptions,
    Duration,
    EventOptions,
    IdempotentBy,
    MergeOnReadOptions,
    MergeOptions,
    Order,
    SchemaPolicy,
    TableOptions,
    options_in,
)
from dagster_deltaweave.tables.places import (
    check_parents,
    check_places,
    path_under,
    problem_of_table_key,
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
    "EventOptions",
    "IdempotentBy",
    "MergeDeclaration",
    "MergeOnReadAssets",
    "MergeOnReadDeclaration",
    "MergeOnReadLocations",
    "MergeOnReadOptions",
    "MergeOptions",
    "NamedAsset",
    "Namespace",
    "Order",
    "SchemaPolicy",
    "TableDeclaration",
    "TableLocator",
    "TableOptions",
    "TablePlace",
    "WriteDeclaration",
    "WriteMode",
    "application_id",
    "check_owner",
    "check_parents",
    "check_places",
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
    "table_place",
    "touched_upstreams",
    "with_owner",
]
