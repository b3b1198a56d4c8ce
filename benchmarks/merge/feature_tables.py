"""web_returns with features of Delta: a change data feed, row tracking, constraints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.data import Workspace, sql_name

_CONSTRAINTS = {
    "some_quantity": "wr_return_quantity IS NULL OR wr_return_quantity > 0",
    "tax_added": "coalesce(wr_return_amt_inc_tax >= wr_return_amt, true)",
}


def with_change_feed(workspace: Workspace) -> Path:
    """Return web_returns with a change data feed."""
    return _with_properties(workspace, "change-feed", {"delta.enableChangeDataFeed": "true"})


def with_row_tracking(workspace: Workspace) -> Path:
    """Return web_returns whose rows keep their ids."""
    return _with_properties(workspace, "row-tracking", {"delta.enableRowTracking": "true"})


def with_constraints(workspace: Workspace) -> Path:
    """Return web_returns with two constraints: of one column, and of two."""

    def make(path: Path) -> None:
        workspace.write_delta(workspace.returns(), path)
        for name, condition in _CONSTRAINTS.items():
            workspace.spark.sql(
                f"ALTER TABLE {sql_name(path)} ADD CONSTRAINT {name} CHECK ({condition})"
            )

    return workspace.target("web_returns-constraints", make)


def _with_properties(workspace: Workspace, name: str, properties: Mapping[str, str]) -> Path:
    """Return a table of the rows of web_returns with these properties."""

    def make(path: Path) -> None:
        workspace.write_delta(workspace.returns(), path, properties=properties)

    return workspace.target(f"web_returns-{name}", make)
