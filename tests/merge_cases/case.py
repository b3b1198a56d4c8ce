"""One merge as data: target rows, source rows, clauses, and the rows that must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deltaweave import clauses as when
from deltaweave.engine.clauses import Clause

Rows = Sequence[tuple[Any, ...]]

# Short names, so that a case stays a few lines.
update = when.when_matched_update
update_all = when.when_matched_update_all
delete = when.when_matched_delete
insert = when.when_not_matched_insert
insert_all = when.when_not_matched_insert_all
by_source_update = when.when_not_matched_by_source_update
by_source_delete = when.when_not_matched_by_source_delete

AMBIGUOUS = "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE"


@dataclass(frozen=True, kw_only=True)
class MergeCase:
    """A merge and its outcome, which holds for Delta's MERGE and for the engine.

    Attributes:
        name: The behaviour it shows; the id of its tests.
        target: Rows of the target before the merge.
        source: Rows of the source.
        clauses: The WHEN clauses, in order.
        expected: Rows of the target afterwards, in any order; None where `error` is given.
        error: The Spark or Delta error class that the merge fails with.
        on: The match condition over `t` and `s`.
        sql: The whole statement in place of `on` and `clauses`, with `{target}` and `{source}`.
        target_schema: Columns of the target rows, as DDL.
        source_schema: Columns of the source rows, as DDL.
        target_ddl: See `builders.write_table`, as are the next five.
        files: Into how many files the target rows are split, in order.
        partition_by: Partition columns.
        cluster_by: Clustering columns.
        properties: Table properties.
        setup: Statements to run on the target before the merge.
        conf: Session configuration while the merge runs.
        with_schema_evolution: Whether the statement says WITH SCHEMA EVOLUTION.
        target_by: How the statement names the target.
        folder: The name of the target's folder.
        oracle_overcounts: Whether built-in MERGE counts source rows several times: its counter
            runs with the tasks, and a nested-loop join reads the source in each of them.
        why: What may go wrong here, where the name does not say it.
    """

    name: str
    target: Rows = ()
    source: Rows = ()
    clauses: tuple[Clause, ...] = ()
    expected: Rows | None = None
    error: str | None = None
    on: str = "t.k = s.k"
    sql: str | None = None
    target_schema: str = "k INT, v INT"
    source_schema: str = "k INT, v INT"
    target_ddl: str | None = None
    files: int = 1
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    with_schema_evolution: bool = False
    target_by: Literal["path", "name", "view"] = "path"
    folder: str = "table"
    oracle_overcounts: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        assert (self.expected is None) != (self.error is None), self.name
        assert bool(self.clauses) != bool(self.sql), self.name

    def statement(self, *, target: str, source: str) -> str:
        """The MERGE as SQL text."""
        if self.sql is not None:
            return self.sql.format(target=target, source=source)
        evolution = "WITH SCHEMA EVOLUTION " if self.with_schema_evolution else ""
        lines = [f"MERGE {evolution}INTO {target} AS t", f"USING {source} AS s", f"ON {self.on}"]
        return "\n".join(lines + [_as_sql(clause) for clause in self.clauses])


_WHEN = {
    "matched": "WHEN MATCHED",
    "not_matched": "WHEN NOT MATCHED",
    "not_matched_by_source": "WHEN NOT MATCHED BY SOURCE",
}


def _as_sql(clause: Clause) -> str:
    condition = "" if clause.condition is None else f" AND {clause.condition}"
    return f"{_WHEN[clause.kind]}{condition} THEN {_action_as_sql(clause)}"


def _action_as_sql(clause: Clause) -> str:
    assignments = clause.assignments or {}
    if clause.action == "update":
        return "UPDATE SET " + ", ".join(f"{name} = {v}" for name, v in assignments.items())
    if clause.action == "insert":
        values = ", ".join(str(value) for value in assignments.values())
        return f"INSERT ({', '.join(assignments)}) VALUES ({values})"
    return {"update_all": "UPDATE SET *", "insert_all": "INSERT *", "delete": "DELETE"}[
        clause.action
    ]
