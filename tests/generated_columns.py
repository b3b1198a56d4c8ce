"""Tables with generated columns for releases of Delta whose SQL cannot create them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from deltaweave._session import installed_pair, line

_GENERATED = re.compile(
    r"(?P<name>\S+) (?P<type>\S+) GENERATED (?P<when>ALWAYS|BY DEFAULT) AS "
    r"(IDENTITY( \(START WITH (?P<start>\S+) INCREMENT BY (?P<step>\S+)\))?|\((?P<value>.*)\))"
)
_DEFAULT = re.compile(r"(?P<column>\S+ \S+) DEFAULT (?P<value>.+)")


def sql_can_create(ddl: str) -> bool:
    """Whether CREATE TABLE takes these columns in the installed release of Delta."""
    return " GENERATED " not in ddl or line(installed_pair()[1]) >= (4, 4)


def create_generated(
    spark: SparkSession,
    path: str,
    ddl: str,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
) -> None:
    """Create a table by Delta's builder of tables.

    Args:
        spark: The session.
        path: The table's folder.
        ddl: Its columns, each with a type, and with a default or how its values are generated.
        partition_by: Partition columns.
        properties: Table properties.
    """
    builder = DeltaTable.create(spark).location(path).partitionedBy(*partition_by)
    for name, value in properties.items():
        builder = builder.property(name, value)
    for column in _columns(ddl):
        found = _GENERATED.fullmatch(column)
        if found is None:
            builder = builder.addColumns(_with_default(column))
            continue
        value: Any = found["value"]
        if value is None:
            value = IdentityGenerator(int(found["start"] or 1), int(found["step"] or 1))
        how: dict[str, Any] = {
            "ALWAYS": {"generatedAlwaysAs": value},
            "BY DEFAULT": {"generatedByDefaultAs": value},
        }[found["when"]]
        builder = builder.addColumn(found["name"], found["type"], **how)
    builder.execute()


def _columns(ddl: str) -> list[str]:
    """The columns' definitions, which commas part that no bracket holds."""
    columns, depth = [""], 0
    for character in ddl:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            columns.append("")
        else:
            columns[-1] += character
    return [column.strip() for column in columns]


def _with_default(column: str) -> StructType:
    """A column by its definition, with its default as a table's schema has it."""
    found = _DEFAULT.fullmatch(column)
    if found is None:
        return StructType.fromDDL(column)
    defaults = {"CURRENT_DEFAULT": found["value"], "EXISTS_DEFAULT": found["value"]}
    field = StructType.fromDDL(found["column"])[0]
    return StructType().add(field.name, field.dataType, metadata=defaults)
