"""The columns of a table in Dagster's type: as a table has them, or as its declaration does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster import TableColumn, TableColumnConstraints, TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUOTED = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`"
_PIECE = re.compile(rf"{_QUOTED}|[<>(),]|[^'\"`<>(),]+|.", re.S)
_COLUMN = re.compile(
    r"(?P<name>`(?:[^`]|``)+`|\w+)\s*:?\s+(?P<type>\w+(?:\s*[<(].*?[>)])?)(?P<rest>(?:\s+.*)?)",
    re.S,
)
_COMMENT = re.compile(r"\bCOMMENT\s+(['\"])(?P<text>(?:[^\\]|\\.)*?)\1\s*$", re.S | re.I)
_NOT_NULL = re.compile(r"^\s+NOT\s+NULL\b", re.I)


def column_schema(schema: StructType) -> TableSchema:
    """Return a Spark schema as Dagster's type."""
    return TableSchema(
        columns=[
            _column(
                field.name,
                field.dataType.simpleString(),
                field.metadata.get("comment"),
                is_nullable=field.nullable,
            )
            for field in schema
        ]
    )


def declared_column_schema(schema: StructType | str | None) -> TableSchema | None:
    """Return the columns that a declaration gives its table, or None if it does not name them.

    DDL is read without Spark, because definitions load without a session. Of what is not
    understood, nothing is shown: Spark has the last word on it when the table is created.
    """
    if schema is None:
        return None
    if not isinstance(schema, str):
        return column_schema(schema)
    columns = [_declared_column(text) for text in _split(schema)]
    known = [column for column in columns if column is not None]
    return TableSchema(columns=known) if known and len(known) == len(columns) else None


def _declared_column(text: str) -> TableColumn | None:
    found = _COLUMN.fullmatch(text.strip())
    if found is None:
        return None
    name, rest = found["name"], found["rest"]
    comment = _COMMENT.search(rest)
    return _column(
        name[1:-1].replace("``", "`") if name.startswith("`") else name,
        re.sub(r"\s+", " ", found["type"]).lower(),
        re.sub(r"\\(.)", r"\1", comment["text"]) if comment else None,
        is_nullable=not _NOT_NULL.match(rest),
    )


def _split(ddl: str) -> Iterator[str]:
    """Split DDL at the commas between columns, which are in no brackets and no quotes."""
    depth, column = 0, ""
    for piece in _PIECE.findall(ddl):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(piece, 0)
        if piece == "," and depth == 0:
            yield column
            column = ""
        else:
            column += piece
    yield column


def _column(name: str, kind: str, comment: str | None, *, is_nullable: bool) -> TableColumn:
    return TableColumn(
        name,
        type=kind,
        description=comment,
        constraints=TableColumnConstraints(nullable=is_nullable),
    )
