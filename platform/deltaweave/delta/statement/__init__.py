"""What a MERGE statement means: Delta's analyzer resolves it, and this folder reads the result.

- `builder`: makes the unresolved plan from clauses, as the SQL parser does from text.
- `delta_builder`: reads it from the builder of Delta's own `DeltaTable.merge`.
- `analyzer`: parses text, and resolves a plan into a `ResolvedMerge`.
- `padded_tables`: makes the plan of a statement that reads CHAR columns.
- `resolved`: the statement after analysis: its condition, its clauses, and what they read.
- `spark_types`: data types of the JVM as PySpark's.
- `lost_days`: days that Spark's filters on Parquet files lack.
- `conditions`: what the conditions say about target rows: equalities of keys, pruning predicates.
- `read_columns`: what WHEN MATCHED clauses read of the target's rows.
- `lineage`: the source columns from which each value of the merge comes.
- `builtin`: Delta's own MERGE, for callers that allow it as a fallback.
- `defects`: the statements that Delta's own MERGE gets wrong.
"""

from __future__ import annotations

from deltaweave.delta.statement.analyzer import is_merge, parse_statement, resolve
from deltaweave.delta.statement.builder import merge_plan, name_parts
from deltaweave.delta.statement.builtin import run_builtin_merge
from deltaweave.delta.statement.conditions import (
    Assignment,
    Equality,
    assignments,
    by_source_predicate,
    equalities,
    equalities_alone,
    keeps_columns,
    skipping_predicates,
)
from deltaweave.delta.statement.defects import builtin_defects
from deltaweave.delta.statement.delta_builder import parse_builder
from deltaweave.delta.statement.lineage import Origin, origins
from deltaweave.delta.statement.lost_days import may_lose_days
from deltaweave.delta.statement.parsed import ParsedMerge
from deltaweave.delta.statement.read_columns import Attribute, TargetReads, target_reads
from deltaweave.delta.statement.resolved import ResolvedClause, ResolvedMerge, asks_for_current
from deltaweave.delta.statement.spark_types import OF_LIMITED_LENGTH, spark_schema

__all__ = [
    "OF_LIMITED_LENGTH",
    "Assignment",
    "Attribute",
    "Equality",
    "Origin",
    "ParsedMerge",
    "ResolvedClause",
    "ResolvedMerge",
    "TargetReads",
    "asks_for_current",
    "assignments",
    "builtin_defects",
    "by_source_predicate",
    "equalities",
    "equalities_alone",
    "is_merge",
    "keeps_columns",
    "may_lose_days",
    "merge_plan",
    "name_parts",
    "origins",
    "parse_builder",
    "parse_statement",
    "resolve",
    "run_builtin_merge",
    "skipping_predicates",
    "spark_schema",
    "target_reads",
]
