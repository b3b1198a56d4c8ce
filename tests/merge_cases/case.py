"""One merge as data: target rows, source rows, clauses, and the rows that must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deltaweave import clauses as when
from deltaweave.clauses import Clause

Rows = Sequence[tuple[Any, ...]]

# Short names, so that a case stays a few lines.
update = when.when_matched_update
update_all = when.when_matched_update_all
delete = when.when_matched_delete
insert = when.when_not_matched_insert
insert_all = when.when_not_matched_insert_all
by_source_update = when.when_not_matched_by_source_update
by_source_delete = when.when_not_matched_by_source_delete

FEED = "delta.enableChangeDataFeed"
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
        view: The query of the view, where the statement names one.
        folder: The name of the target's folder.
        oracle_overcounts: Whether built-in MERGE may count source rows several times: its counter
            runs with the tasks, and a nested-loop join reads the source in each of them.
        oracle_loses_inserts: Whether built-in MERGE loses inserted rows on a table with a change
            feed and without deletion vectors (see test_strategies).
        without_vectors: Why the case cannot be run on a table with deletion vectors.
        without_feed: Why it cannot be run on a table with a change data feed.
        unpartitioned: Why its table cannot be partitioned, where the case does not say how.
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
    target_by: Literal["path", "name", "view", "permanent_view"] = "path"
    view: str = "SELECT * FROM {target}"
    folder: str = "table"
    oracle_overcounts: bool = False
    oracle_loses_inserts: bool = False
    without_vectors: str = ""
    without_feed: str = ""
    unpartitioned: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        assert (self.expected is None) != (self.error is None), self.name
        assert bool(self.clauses) != bool(self.sql), self.name

    def table(self) -> dict[str, Any]:
        """Arguments of `builders.write_table` for the target."""
        return {
            "rows": self.target,
            "schema": self.target_schema,
            "ddl": self.target_ddl,
            "files": self.files,
            "partition_by": self.partition_by,
            "cluster_by": self.cluster_by,
            "properties": dict(self.properties),
            "setup": self.setup,
        }

    def statement(self, *, target: str, source: str) -> str:
        """The MERGE as SQL text."""
        if self.sql is not None:
            return self.sql.format(target=target, source=source)
        evolution = "WITH SCHEMA EVOLUTION " if self.with_schema_evolution else ""
        lines = [f"MERGE {evolution}INTO {target} AS t", f"USING {source} AS s", f"ON {self.on}"]
        return "\n".join(lines + [_as_sql(clause) for clause in self.clauses])


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the tables of a case are kept, where the case does not say so itself.

    Attributes:
        vectors: With deletion vectors, or by copy on write.
        feed: With a change data feed, which then is a part of the outcome.
        partitioned: By a column of the case, so that its rows lie in several files and may move.
    """

    vectors: bool = False
    feed: bool = False
    partitioned: bool = False

    def __str__(self) -> str:
        words = ["vectors" if self.vectors else "copy_on_write"]
        words += ["feed"] * self.feed + ["partitioned"] * self.partitioned
        return "_".join(words)

    def refused_by(self, case: MergeCase) -> str:
        """Why the case cannot be run so, or an empty string."""
        if self.vectors and case.without_vectors:
            return case.without_vectors
        if self.feed and case.without_feed:
            return case.without_feed
        if self.feed and not self.vectors and case.oracle_loses_inserts:
            return "the oracle loses inserted rows"
        if self.partitioned and (case.partition_by or case.cluster_by):
            return "the case says how its table is laid out"
        if self.partitioned and not _partition_column(case):
            return case.unpartitioned or "no column whose values a partition keeps exactly"
        return ""

    def of(self, case: MergeCase) -> MergeCase:
        """The case, its table kept so."""
        properties = dict(case.properties)
        if self.vectors:
            properties["delta.enableDeletionVectors"] = "true"
        if self.feed:
            properties[FEED] = "true"
        ddl = case.target_ddl
        if self.feed and "delta.columnMapping.mode" in properties:
            # Delta refuses a write that makes such a table; a statement may make it.
            ddl = ddl or case.target_schema
        columns = (_partition_column(case),) if self.partitioned else case.partition_by
        return replace(case, properties=properties, target_ddl=ddl, partition_by=columns)


def _partition_column(case: MergeCase) -> str:
    """The case's last INT column but the first; an empty string where it has none."""
    if case.unpartitioned:
        return ""
    columns = [column.split() for column in case.target_schema.split(",")[1:]]
    integers = [words[0] for words in columns if len(words) == 2 and words[1] == "INT"]
    return integers[-1].strip("`") if integers else ""


COPY_ON_WRITE = Layout()
VECTORS_AND_FEED = Layout(vectors=True, feed=True)


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
