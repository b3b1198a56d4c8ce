"""Reads and writes declarations in the metadata of assets: from decorators, or plain entries.

The columns that a declaration gives its table are shown before a run, in Dagster's type. What an
input reads of its upstream is metadata, too; `Changes` hands back what was applied of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from dagster import (
    AssetKey,
    AssetsDefinition,
    OpDefinition,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

from dagster_deltaweave.dagster_private import ObjectMetadataValue
from dagster_deltaweave.tables.declaration import (
    CATALOG,
    SCHEMA,
    UPSERT_CLAUSES,
    MergeDeclaration,
    MergeOnReadDeclaration,
    TableDeclaration,
    TableLocation,
    WriteDeclaration,
    entry_value,
    equal_keys_condition,
    locating_error,
    namespace_in,
)
from dagster_deltaweave.tables.options import IdempotentBy, Order, SchemaPolicy
from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from deltaweave import ChangedRows, TouchedRows


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
            table_column(
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

    DDL is read without Spark, because definitions load without a session. If it cannot be parsed
    here, no columns are shown: Spark decides when the table is created.
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
    return table_column(
        name[1:-1].replace("``", "`") if name.startswith("`") else name,
        re.sub(r"\s+", " ", found["type"]).lower(),
        re.sub(r"\\(.)", r"\1", comment["text"]) if comment else None,
        is_nullable=not _NOT_NULL.match(rest),
    )


def _split(ddl: str) -> Iterator[str]:
    """Split DDL at the commas between columns, which are outside of brackets and quotes."""
    depth, column = 0, ""
    for piece in _PIECE.findall(ddl):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(piece, 0)
        if piece == "," and depth == 0:
            yield column
            column = ""
        else:
            column += piece
    yield column


def table_column(name: str, kind: str, comment: str | None, *, is_nullable: bool) -> TableColumn:
    """Return a column of a table as Dagster shows it."""
    return TableColumn(
        name,
        type=kind,
        description=comment,
        constraints=TableColumnConstraints(nullable=is_nullable),
    )


DECLARATION = "deltaweave/merge"
"""Metadata key under which an asset's definition holds its declaration."""

WRITE = "deltaweave/write"
"""Metadata key of an asset without `@merge_asset` that says how its output is written."""

PARTITION_EXPR = "partition_expr"
"""Dagster's own metadata key of the expression that gives the partition of a table's row."""

_PREFIX = "deltaweave/"
_Location = TypeVar("_Location", bound=TableLocation)
_MODES_OF_WRITE = frozenset({"append", "overwrite", "replace_where", "merge"})
METADATA_ENTRIES = frozenset(
    {
        "keys",
        "replace_where",
        "table",
        "schema",
        "partition_by",
        "cluster_by",
        "properties",
        "schema_policy",
        "idempotent_by",
        "retries",
        "sequence_by",
        "order",
        "unique_keys",
    }
)


def declaration_metadata(declaration: TableDeclaration) -> dict[str, Any]:
    """Return the metadata entry that carries the declaration with the asset's definition."""
    # An object entry keeps the instance in the process and shows a text in the UI. Dagster would
    # replace a bare object by the name of its class, with a deprecation warning.
    return {DECLARATION: ObjectMetadataValue(declaration.in_words, instance=declaration)}


def merge_declaration_in(metadata: Mapping[str, Any]) -> MergeDeclaration | None:
    """Return the declared merge that the metadata of an asset's definition carries, if any."""
    instance = _instance_in(metadata)
    return instance if isinstance(instance, MergeDeclaration) else None


def table_declaration(metadata: Mapping[str, Any], *, asset: str) -> TableDeclaration | None:
    """Return how an asset's table is written, by its definition's metadata; None without that.

    Either `@merge_asset` or `@cdc_asset` left its declaration there, or plain entries declare it:
    `deltaweave/write` (`append`, `overwrite`, `replace_where` or `merge`) and, beside it,
    `partition_expr` and `deltaweave/…` for `keys`, `replace_where`, `table`, `schema`,
    `partition_by`, `cluster_by`, `properties`, `schema_policy`, `idempotent_by` and `retries`; for
    merges, `order`, `sequence_by` and `unique_keys` too. With both, `schema` and `catalog` say
    which the table is in.

    Raises:
        StatementError: An entry is unknown, or excludes another entry.
    """
    declared = _instance_in(metadata)
    if not isinstance(declared, TableDeclaration):
        declared = _plain_declaration(metadata, asset)
    if isinstance(declared, MergeOnReadDeclaration):
        declared = declared.at(AssetKey.from_user_string(asset))
    return None if declared is None else _in_namespace(declared, metadata, asset)


def table_location(metadata: Mapping[str, Any], *, asset: str) -> TableLocation:
    """Return where an asset's table is, even if nothing declares how it is written.

    If its metadata declares that too, this is the whole declaration.

    Raises:
        StatementError: An entry is unknown, or excludes another entry.
    """
    declared = table_declaration(metadata, asset=asset)
    if declared is not None:
        return declared
    table = entry_value(metadata, f"{_PREFIX}table")
    if table is not None and not isinstance(table, str):
        raise _wrong_metadata_error(asset, f"{_PREFIX}table is {table!r}", {"a path", "a name"})
    return _in_namespace(TableLocation(table=table), metadata, asset)


def partition_expr_in(metadata: Mapping[str, Any]) -> str | Mapping[str, str] | None:
    """Return the expression of a row's partition in an asset's metadata; None if there is none."""
    expression: str | Mapping[str, str] | None = entry_value(metadata, PARTITION_EXPR)
    return expression


def _in_namespace(declared: _Location, metadata: Mapping[str, Any], asset: str) -> _Location:
    """Add the catalog and schema of the metadata, if there are any, to the declared location."""
    namespace = namespace_in(metadata, asset)
    if not namespace.is_given:
        return declared
    problem = None
    if isinstance(declared, MergeOnReadDeclaration):
        problem = "the tables of a merge-on-read asset are at paths"
    elif declared.table is not None:
        problem = f"its table is declared to be {declared.table}"
    if problem is not None:
        raise locating_error(
            asset,
            f"the asset's metadata names a {SCHEMA if namespace.schema else CATALOG}, but "
            f"{problem}.",
            f"Leave {SCHEMA} and {CATALOG} out of the metadata, or leave out the table.",
        )
    return replace(declared, namespace=namespace)


def _plain_declaration(metadata: Mapping[str, Any], asset: str) -> TableDeclaration | None:
    """Build the declaration from plain metadata entries; None if they do not say how to write."""
    given = {
        key.removeprefix(_PREFIX): entry_value(metadata, key)
        for key in metadata
        if key.startswith(_PREFIX)
    }
    mode = given.pop("write", None)
    if mode is None:
        return None
    unknown = set(given) - METADATA_ENTRIES
    if unknown:
        raise _wrong_metadata_error(
            asset, f"{_PREFIX}{min(unknown)} is not a known entry", METADATA_ENTRIES
        )
    if mode not in _MODES_OF_WRITE:
        raise _wrong_metadata_error(asset, f"{WRITE} is {mode!r}", _MODES_OF_WRITE)
    keys = _names(given.pop("keys", ()))
    _check_entries_of_mode(given, mode, asset, has_keys=bool(keys))
    _check_values(given, asset)
    for name in ("partition_by", "cluster_by"):
        given[name] = _names(given.get(name, ()))
    given["partition_expr"] = partition_expr_in(metadata)
    if mode == "merge":
        return MergeDeclaration(
            on=equal_keys_condition(keys), keys=keys, clauses=UPSERT_CLAUSES, **given
        )
    return WriteDeclaration(mode=mode, **given)


def _check_entries_of_mode(
    given: Mapping[str, Any], mode: object, asset: str, *, has_keys: bool
) -> None:
    """Raise a StatementError unless all entries go with the mode."""
    if (mode == "merge") != has_keys:
        raise StatementError(
            f"{_PREFIX}keys goes with {WRITE}: merge, and only with it.",
            table=asset,
            operation="writing",
        )
    if given.get("replace_where") is not None and mode != "replace_where":
        raise StatementError(
            f"{_PREFIX}replace_where goes with {WRITE}: replace_where only.",
            table=asset,
            operation="writing",
        )
    for name in ("order", "sequence_by", "unique_keys"):
        if name in given and mode != "merge":
            raise _wrong_metadata_error(
                asset, f"{_PREFIX}{name} goes with {WRITE}: merge only", _MODES_OF_WRITE
            )


def _check_values(given: Mapping[str, Any], asset: str) -> None:
    """Raise a StatementError if an entry has a value that is not one of its choices."""
    choices_of = {"schema_policy": SchemaPolicy, "idempotent_by": IdempotentBy, "order": Order}
    for name, choices in choices_of.items():
        if name in given and given[name] not in get_args(choices):
            raise _wrong_metadata_error(
                asset, f"{_PREFIX}{name} is {given[name]!r}", set(get_args(choices))
            )
    if not isinstance(given.get("unique_keys", True), bool):
        problem = f"{_PREFIX}unique_keys is {given['unique_keys']!r}"
        raise _wrong_metadata_error(asset, problem, {"True", "False"})


def _instance_in(metadata: Mapping[str, Any]) -> object:
    entry = metadata.get(DECLARATION)
    return entry.instance if isinstance(entry, ObjectMetadataValue) else entry


def _wrong_metadata_error(asset: str, problem: str, known: Set[str]) -> StatementError:
    return StatementError(
        f"the asset's metadata is invalid: {problem}.",
        table=asset,
        operation="writing",
        hint=f"Valid are {', '.join(sorted(known))}.",
    )


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


READ_METADATA_KEY = "deltaweave/read"
"""Metadata key of an `AssetIn` that says what to load of the upstream table."""

READ_TOUCHED = "touched"
"""Value of that key: the rows of files that were touched since the version last applied."""

READ_CHANGED = "changes"
"""Value of that key: exactly the rows changed since then, from the upstream's change data feed."""


@dataclass(frozen=True)
class Changes:
    """The rows to write, and the touched or changed rows of the upstream table that they apply.

    The merge commits `applied.until` together with the rows. So a run that is executed again
    applies nothing twice, and the next run continues from there.

    Attributes:
        rows: The changes, as the merge's source: a DataFrame of Spark, pandas or Polars, or
            Arrow's table or record batches.
        applied: The touched or changed rows from the asset's input, unchanged.
    """

    rows: Any
    applied: TouchedRows | ChangedRows | None = None


@dataclass(frozen=True)
class ChangesOfPartitions(Changes):
    """Changes of several partitions, and which of them each row is of.

    Attributes:
        parts: Partition key to its rows, a DataFrame of Spark; `rows` has those of all.
    """

    parts: Mapping[str, DataFrame] = field(default_factory=dict)


def application_id(upstream: AssetKey, downstream: AssetKey, table_id: str | None = None) -> str:
    """Return the application id of `downstream`'s commits of the versions of `upstream` it applied.

    `table_id` is Delta's id of the upstream's table; without it, the id is that of earlier
    releases.
    """
    name = f"{upstream.to_user_string()}→{downstream.to_user_string()}"
    return name if table_id is None else f"{name}@{table_id}"


def touched_upstreams(definition: AssetsDefinition) -> list[AssetKey]:
    """Return the upstream assets that this asset reads only by touched or changed rows."""
    if not isinstance(definition.node_def, OpDefinition):
        return []  # ops of a graph asset get whole tables
    inputs = definition.op.ins
    return [
        key
        for name, key in definition.keys_by_input_name.items()
        if name in inputs
        and (inputs[name].metadata or {}).get(READ_METADATA_KEY) in (READ_TOUCHED, READ_CHANGED)
    ]
