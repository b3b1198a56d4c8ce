"""What a MERGE statement means: Delta's analyzer resolves it, and this folder reads the result.

- `analyzer`: parses text, takes clauses or Delta's own builder, and resolves each into a
  `ResolvedMerge`.
- `resolved`: the statement after analysis: its condition, its clauses, and what they read.
- `merge_outline`: what a statement says before analysis, when its target need not exist.
- `column_origins`: the source columns from which each value of the merge comes.
- `lost_days`: days that filters on Parquet files lack.
- `conditions`: equalities of keys, pruning predicates, and what WHEN MATCHED clauses read.
- `builtin`: Delta's own MERGE, for callers that allow it as a fallback, and what it gets wrong.
"""

from __future__ import annotations

from deltaweave.delta.statement.analyzer import (
    MergeParts,
    ParsedMerge,
    is_merge,
    merge_plan,
    name_parts,
    parse_builder,
    parse_statement,
    resolve,
)
from deltaweave.delta.statement.builtin import builtin_defects, run_builtin_merge
from deltaweave.delta.statement.column_origins import Origin, origins
from deltaweave.delta.statement.conditions import (
    Equality,
    TargetReads,
    assignments,
    by_source_predicate,
    equalities,
    equalities_alone,
    keeps_columns,
    skipping_predicates,
    target_reads,
)
from deltaweave.delta.statement.lost_days import (
    days_skipped_by_zone,
    executors_may_shift_days,
    may_lose_days,
)
from deltaweave.delta.statement.merge_outline import EqualColumns, MergeOutline, outline
from deltaweave.delta.statement.resolved import (
    OF_LIMITED_LENGTH,
    ResolvedClause,
    ResolvedMerge,
    asks_for_current,
    spark_schema,
)

__all__ = [
    "OF_LIMITED_LENGTH",
    "EqualColumns",
    "Equality",
    "MergeOutline",
    "MergeParts",
    "Origin",
    "ParsedMerge",
    "ResolvedClause",
    "ResolvedMerge",
    "TargetReads",
    "asks_for_current",
    "assignments",
    "builtin_defects",
    "by_source_predicate",
    "days_skipped_by_zone",
    "equalities",
    "equalities_alone",
    "executors_may_shift_days",
    "is_merge",
    "keeps_columns",
    "may_lose_days",
    "merge_plan",
    "name_parts",
    "origins",
    "outline",
    "parse_builder",
    "parse_statement",
    "resolve",
    "run_builtin_merge",
    "skipping_predicates",
    "spark_schema",
    "target_reads",
]
