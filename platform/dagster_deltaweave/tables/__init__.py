"""How assets declare their tables, and where those tables are.

- `declaration`: what decorators or metadata declare about a table.
- `metadata_declarations`: reads and writes declarations in the metadata of assets.
- `table_columns`: the columns of tables and declarations, in Dagster's type.
- `catalog_names`: names of tables by catalog and schema.
- `owner`: which asset created a table of a schema.
- `merge_text`: the SQL text of a declared merge.
- `locator`: `TableLocator`: finds and opens the table of an asset.
- `named_asset`: the asset of a table, by its definition or its key.
- `paths`: paths of tables, and the refusal of tables inside one another.
- `places`: in which directories and tables assets keep data.
- `merge_on_read`: the assets of a merge-on-read table, and the base and the changeset behind them.
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
from dagster_deltaweave.tables.catalog_names import Namespace, full_names
from dagster_deltaweave.tables.declaration import (
    TYPE_WIDENING,
    ChangesDeclaration,
    IdempotentBy,
    MergeDeclaration,
    MergeOnReadDeclaration,
    Order,
    SchemaPolicy,
    TableDeclaration,
    TablePlace,
    WriteDeclaration,
    WriteMode,
)
from dagster_deltaweave.tables.locator import TableLocator, run_locator
from dagster_deltaweave.tables.merge_on_read import (
    MergeOnReadAssets,
    MergeOnReadLocations,
    load_merge_on_read,
    merge_on_read_locations,
    open_merge_on_read,
)
from dagster_deltaweave.tables.merge_text import UPSERT_CLAUSES, equal_keys_condition
from dagster_deltaweave.tables.metadata_declarations import (
    PARTITION_EXPR,
    declaration_metadata,
    merge_declaration_in,
    partition_expr_in,
    table_declaration,
    table_place,
)
from dagster_deltaweave.tables.named_asset import AssetOrKey, NamedAsset, merge_on_read_tables
from dagster_deltaweave.tables.owner import check_owner, with_owner
from dagster_deltaweave.tables.paths import (
    check_parents,
    check_places,
    path_under,
    problem_of_table_key,
)
from dagster_deltaweave.tables.table_columns import column_schema, declared_column_schema

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
    "IdempotentBy",
    "MergeDeclaration",
    "MergeOnReadAssets",
    "MergeOnReadDeclaration",
    "MergeOnReadLocations",
    "NamedAsset",
    "Namespace",
    "Order",
    "SchemaPolicy",
    "TableDeclaration",
    "TableLocator",
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
    "partition_expr_in",
    "path_under",
    "problem_of_table_key",
    "run_locator",
    "table_declaration",
    "table_place",
    "touched_upstreams",
    "with_owner",
]
