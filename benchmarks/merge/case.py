"""A case of the benchmark: a target, and the statements that are timed on clones of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data.tables import Workspace, sql_name

UPDATE_ALL = "WHEN MATCHED THEN UPDATE SET *"
INSERT_ALL = "WHEN NOT MATCHED THEN INSERT *"
UPSERT = (UPDATE_ALL, INSERT_ALL)


@dataclass(frozen=True)
class Statement:
    """A MERGE statement without a target yet.

    Attributes:
        source: The source in SQL: a table or a query in parentheses.
        condition: The ON condition, over `t` and `s`.
        clauses: The WHEN clauses, over `t` and `s`.
    """

    source: str
    condition: str
    clauses: tuple[str, ...]

    def into(self, target: Path) -> str:
        """Return the statement's text for the Delta table at this path."""
        return self.into_table(sql_name(target))

    def into_table(self, name: str) -> str:
        """Return the statement's text for the table of this name."""
        lines = [f"MERGE INTO {name} t", f"USING {self.source} s"]
        return "\n".join([*lines, f"ON {self.condition}", *self.clauses])


@dataclass(frozen=True)
class Merges:
    """The tables of a case once they are written.

    Attributes:
        target: The table that is cloned for each run.
        statements: The statements that a run executes on its clone, in order.
        compared: Condition of the rows to compare afterwards; None for all rows.
    """

    target: Path
    statements: tuple[Statement, ...]
    compared: str | None = None


@dataclass(frozen=True)
class Case:
    """One case of the benchmark.

    Attributes:
        name: The name on the command line and in the JSON report.
        label: The name in tables.
        prepare: Writes the tables that the case needs, unless they exist.
        is_deltas: Whether it is a case of Delta's benchmark; the geometric mean covers only these.
        with_builtin: Whether Delta's own MERGE runs too.
        with_rewrite: Whether a plain copy of the files that the engine touched is timed too.
        title: The name in plots; empty for the label.
    """

    name: str
    label: str
    prepare: Callable[[Workspace], Merges]
    is_deltas: bool = False
    with_builtin: bool = True
    with_rewrite: bool = False
    title: str = ""
