"""What must hold of the tables after each merge."""

from __future__ import annotations

from assets.returns_by_reason import returns_by_reason
from assets.web_returns import RETURN, web_returns
from dagster_deltaweave import build_merge_checks, build_table_checks

# A return that is there twice would be counted twice from then on, so the counts wait.
web_returns_rows = build_table_checks(
    web_returns, unique_key=RETURN, no_nulls=RETURN, blocking=True
)

web_returns_merges = build_merge_checks(web_returns, source_rows=True)

returns_by_reason_rows = build_table_checks(returns_by_reason, no_nulls=["returns", "quantity"])
