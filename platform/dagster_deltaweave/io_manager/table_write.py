"""Writes an asset's output to its table: by a merge, as it is, or as a rebuilt table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions as F

import deltaweave
from dagster_deltaweave.io_manager.row_effects import takes
from dagster_deltaweave.io_manager.transaction_ids import Marks
from dagster_deltaweave.tables import (
    ChangesDeclaration,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    WriteDeclaration,
)
from deltaweave import Lease
from deltaweave.delta.jvm import translated
from deltaweave.errors import CORRECT_STATEMENT, StatementError
from deltaweave.identifiers import column, table_name, unquoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from dagster_deltaweave.io_manager.start_version import Start
    from deltaweave import MergePlan, MergeResult, Table, WriteResult
    from deltaweave.clauses import Clause

_logger = logging.getLogger(__name__)


def statement_over(
    table: Table, declaration: MergeDeclaration, changes: DataFrame
) -> Callable[[str], str]:
    """Return the declared statement as a function of the name of the changes."""
    target = table_name(table.path_or_name)
    return lambda source: declaration.statement(target, source, changes.columns)


def merge(
    table: Table,
    declaration: MergeDeclaration,
    changes: DataFrame,
    marks: Marks,
    lease: Lease | None,
    recorded: Mapping[str, int],
) -> MergeResult:
    """Run the declared statement over a temporary view of the changes."""
    lease = lease or Lease(None, -1)
    statement = statement_over(table, declaration, changes)
    with _hinting_at_declaration(declaration, statement), _view(changes) as view:
        return deltaweave.merge(
            changes.sparkSession,
            statement(view),
            idempotency=marks.pair,
            applied_before=marks.before,
            lease=replace(lease, marks={**lease.marks, **recorded}),
            skip_unchanged_updates=declaration.skip_unchanged_updates,
        )


def apply(
    table: Table, declaration: ChangesDeclaration, events: DataFrame, marks: Marks
) -> MergeResult:
    """Apply the events to the table, which is created if it is missing."""
    return deltaweave.apply_changes(
        events.sparkSession,
        table.path_or_name,
        events,
        **declaration.arguments,
        idempotency=marks.pair,
    )


def explain(table: Table, declaration: MergeDeclaration, changes: DataFrame) -> MergePlan:
    """Explain what the declared statement is expected to do."""
    statement = statement_over(table, declaration, changes)
    with _hinting_at_declaration(declaration, statement), _view(changes) as view:
        return deltaweave.explain(changes.sparkSession, statement(view))


@contextmanager
def _hinting_at_declaration(
    declaration: MergeDeclaration, statement: Callable[[str], str]
) -> Iterator[None]:
    """Name in errors of a generated statement the arguments that its author wrote."""
    try:
        yield
    except StatementError as error:
        if declaration.merge_text is None and error.hint == CORRECT_STATEMENT:
            error.restate(
                hint="Correct on=, clauses= or the other arguments of the asset. They give this "
                f"statement:\n{statement('changes')}"
            )
        raise


@contextmanager
def _view(changes: DataFrame) -> Iterator[str]:
    view = f"changes_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        try:
            changes.sparkSession.catalog.dropTempView(view)
        except Exception:  # the session is gone, but its commit stands
            _logger.warning("The view %s stays", view, exc_info=True)


def write(
    table: Table,
    declaration: WriteDeclaration,
    rows: DataFrame,
    predicate: str | None,
    marks: Marks,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Append the rows, or replace all rows or those of the predicate with them."""
    if predicate is not None:
        _check_predicate(table, predicate)
    return table.write(
        rows,
        "append" if declaration.mode == "append" else "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=marks.pairs,
        once=True,
        applied_before=marks.before,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


def check_can_be_rebuilt(table: Table, declaration: TableDeclaration) -> None:
    """Raise a StatementError if a run's changes are not enough to rebuild the table."""
    if isinstance(declaration, (ChangesDeclaration, MergeOnReadDeclaration)):
        raise StatementError(
            "a table that change events keep is not rebuilt from some of them.",
            table=table.path_or_name,
            operation="full refresh",
            hint="Drop the table, then apply all events again: their order does not matter.",
        )


def rebuild(
    table: Table,
    declaration: TableDeclaration,
    changes: DataFrame,
    predicate: str | None,
    marks: Marks,
    recorded: Mapping[str, int],
    start: Start,
) -> WriteResult:
    """Replace all rows, or those of the predicate, with what an empty table would get."""
    if predicate is not None:
        _check_predicate(table, predicate)
    rows = changes
    if isinstance(declaration, MergeDeclaration):
        rows = _inserted_rows(table, declaration, changes)
    return table.write(
        rows,
        "overwrite",
        replace_where=predicate,
        with_schema_evolution=declaration.schema_policy != "strict",
        applied=marks.pairs,
        recorded=recorded,
        computed_from=start.version,
        reads_all=start.reads_all,
    )


def _inserted_rows(table: Table, declaration: MergeDeclaration, changes: DataFrame) -> DataFrame:
    """Return the rows that the merge would insert into an empty table, where no row matches."""
    inserts = [clause for clause in declaration.clauses if clause.kind == "not_matched"]
    if not inserts:
        raise StatementError(
            "a full refresh takes the rows that the asset's clauses insert, and there are none."
            if declaration.clauses
            else "a full refresh cannot be derived from a MERGE text.",
            table=table.path_or_name,
            operation="full refresh",
            hint="Declare the merge by keys or on, with a clause that inserts.",
        )
    source = changes.alias("s")
    taken = F.lit(False)
    rows: DataFrame | None = None
    with translated(table.path_or_name, operation="full refresh"):
        for clause in inserts:
            wanted = takes(clause)
            own = source.where(wanted & ~taken).select(*_values(clause, declaration, changes))
            rows = own if rows is None else rows.unionByName(own, allowMissingColumns=True)
            taken = taken | wanted
    assert rows is not None
    return rows


def _values(clause: Clause, declaration: MergeDeclaration, changes: DataFrame) -> Sequence[Column]:
    if clause.action == "insert_all":
        names = declaration.table_columns(changes.columns)
        return [column("s", name) for name in names]
    assignments = clause.assignments or {}
    return [F.expr(str(value)).alias(unquoted(name)) for name, value in assignments.items()]


def _check_predicate(table: Table, predicate: str) -> None:
    """Fail before anything is written if the predicate does not fit the table."""
    with translated(table.path_or_name, operation="overwriting", otherwise=StatementError):
        table.read().where(predicate)
