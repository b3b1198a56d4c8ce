"""The schema policy: columns that a table lacks are an error, added, or added and widened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from dagster_deltaweave.tables import (
    TYPE_WIDENING,
    MergeDeclaration,
    TableDeclaration,
    check_owner,
)
from deltaweave.delta.commit import alone_on_local_disk, is_unwritten
from deltaweave.delta.jvm import translated
from deltaweave.errors import NOTHING_WRITTEN, DeltaweaveError, StatementError
from deltaweave.identifiers import table_name, unquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from deltaweave import Table


_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def rows_of_table(declaration: TableDeclaration, changes: DataFrame) -> DataFrame:
    """Drop the columns that only clauses use from the changes."""
    if isinstance(declaration, MergeDeclaration):
        return changes.drop(*declaration.except_column_list)
    return changes


def is_written(table: Table) -> bool:
    """Return whether the table is there, and not empty for a first write that failed."""
    return table.exists() and not is_unwritten(table.snapshot())


@contextmanager
def stating_empty_table(table: Table) -> Iterator[None]:
    """Say in errors of the block that the table was created, if it was, and is empty."""
    try:
        yield
    except DeltaweaveError as error:
        try:
            is_empty = error.state == NOTHING_WRITTEN and is_unwritten(table.snapshot())
        except Exception:  # there is no table, or it cannot be read: the error stays as it is
            is_empty = False
        if is_empty:
            error.restate(state="No row was committed. The table was created, and is empty.")
        raise


def refuse_missing_columns(table: Table, declaration: TableDeclaration, changes: DataFrame) -> None:
    """Refuse keys and a sequence that the changes or the table lack, before a table is created.

    Raises:
        StatementError: It names the argument, the column, and the existing columns.
    """
    if not isinstance(declaration, MergeDeclaration):
        return
    sequence = () if declaration.sequence_by is None else (unquoted(declaration.sequence_by),)
    named = {"keys": declaration.keys, "sequence_by": sequence}
    if not any(named.values()):
        return
    columns = {
        "the changes": changes.columns,
        "the table": _table_columns(table, declaration, changes),
    }
    is_exact = table.spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    for where, there in columns.items():
        verb = "has" if where == "the table" else "have"
        known = {name if is_exact else name.lower() for name in there}
        for argument, names in named.items():
            lacking = [name for name in names if (name if is_exact else name.lower()) not in known]
            if lacking:
                raise StatementError(
                    f"{argument}= names {', '.join(lacking)}: no such column is in {where}, which "
                    f"{verb} {', '.join(there)}.",
                    table=table.path_or_name,
                    hint=f"Correct {argument}= of the asset, or the columns of {where}.",
                )


def _table_columns(
    table: Table, declaration: MergeDeclaration, changes: DataFrame
) -> Sequence[str]:
    """Return the columns of the table, or of the one that would be created."""
    if table.exists() and not is_unwritten(there := table.snapshot()):
        return there.schema.names
    if declaration.schema is None:
        return rows_of_table(declaration, changes).columns
    if isinstance(declaration.schema, str):
        return table.spark.createDataFrame([], declaration.schema).columns
    return declaration.schema.names


def prepare_table(
    table: Table, declaration: TableDeclaration, changes: DataFrame, description: str | None
) -> None:
    """Create the table if it is missing; otherwise apply the declared policy to the changes.

    Args:
        table: The asset's table.
        declaration: How it is declared.
        changes: What the asset's function returned.
        description: The asset's description, which a created table gets.

    Raises:
        StatementError: The policy is strict and the changes have columns that the table lacks, or
            their sequence has another type than the table's.
    """
    rows = rows_of_table(declaration, changes)
    created = table.create_if_missing(
        _created_schema(declaration, rows.schema),
        declaration.partition_by,
        declaration.created_properties,
        declaration.cluster_by,
        for_a_write=True,
        description=description,
    )
    check_owner(table, declaration)  # another asset may have created it just now
    if declaration.schema_policy == "strict":
        # A MERGE text itself says which columns of its source it uses.
        if not (isinstance(declaration, MergeDeclaration) and declaration.merge_text):
            _refuse_unknown_columns(table, rows.schema)
    elif declaration.schema_policy == "widen" and not created:
        _enable_widening(table)
    if isinstance(declaration, MergeDeclaration) and declaration.sequence_by and not created:
        _refuse_other_sequence(table, unquoted(declaration.sequence_by), rows.schema)


def _created_schema(declaration: TableDeclaration, schema: StructType) -> StructType | str:
    if declaration.schema is not None:
        return declaration.schema
    # Later changes may have nulls in columns that have none in these changes.
    return StructType([StructField(f.name, f.dataType, True, f.metadata) for f in schema])


def _refuse_unknown_columns(table: Table, changes: StructType) -> None:
    is_exact = table.spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    known = table.read().schema
    unknown = list(_unknown(changes, known, is_exact, ""))
    if unknown:
        raise StatementError(
            f"the changes have columns that the table lacks: {', '.join(unknown)}.",
            table=table.path_or_name,
            hint=f"The table has {', '.join(known.names)}. Leave the others out of the changes, "
            "name them in except_column_list if only clauses use them, or let the schema_policy "
            "'add' or 'widen' add them.",
        )


def _refuse_other_sequence(table: Table, name: str, changes: StructType) -> None:
    """Refuse sequences that the table would truncate: an older row could then look newer."""
    ours, theirs = _type_of(name, changes), _type_of(name, table.snapshot().schema)
    sizes = [_WHOLE_NUMBERS.index(each) for each in (ours, theirs) if each in _WHOLE_NUMBERS]
    if None in (ours, theirs) or ours == theirs or (len(sizes) == 2 and sizes[0] < sizes[1]):
        return
    raise StatementError(
        f"the sequence {name} is {ours} in the changes and {theirs} in the table, where it would "
        "be stored less exactly than it is compared.",
        table=table.path_or_name,
        hint=f"Cast {name} of the changes to the table's type, or alter the table.",
    )


def _type_of(name: str, schema: StructType) -> str | None:
    types = [f.dataType.simpleString() for f in schema if f.name.lower() == name.lower()]
    return types[0] if types else None  # a statement without the column is refused by Spark


def _unknown(changes: StructType, known: StructType, is_exact: bool, parent: str) -> Iterator[str]:
    """Yield the names of fields that the table's struct lacks, with dots for nested structs."""
    fields = {field.name if is_exact else field.name.lower(): field for field in known}
    for field in changes:
        there = fields.get(field.name if is_exact else field.name.lower())
        if there is None:
            yield parent + field.name
        elif isinstance(field.dataType, StructType) and isinstance(there.dataType, StructType):
            yield from _unknown(field.dataType, there.dataType, is_exact, f"{parent}{field.name}.")


def _enable_widening(table: Table) -> None:
    """Let Delta widen the types of an existing table; this commits only the first time."""
    target = table_name(table.path_or_name)
    with translated(table.path_or_name, operation="enabling type widening"):
        [detail] = table.spark.sql(f"DESCRIBE DETAIL {target}").collect()
        if detail.properties.get(TYPE_WIDENING, "false").lower() != "true":
            set_property = f"SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'true')"
            with alone_on_local_disk(
                table.spark,
                table.location(),
                table=table.path_or_name,
                operation="enabling type widening",
            ):
                table.spark.sql(f"ALTER TABLE {target} {set_property}")
