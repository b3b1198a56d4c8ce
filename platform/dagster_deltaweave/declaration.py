"""How an asset's output becomes its table: what `@merge_asset` or metadata declare, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dagster import AssetKey, MetadataValue
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue

from deltaweave.engine import clauses as when
from deltaweave.engine.clauses import Clause
from deltaweave.errors import StatementError
from deltaweave.identifiers import quoted
from deltaweave.locations import refuse_credentials

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DECLARATION = "deltaweave/merge"
"""Metadata key under which an asset's definition holds its declaration."""

WRITE = "deltaweave/write"
"""Metadata key of an asset that says how its output is written, where no `@merge_asset` does."""

PARTITION_EXPR = "partition_expr"
"""Metadata key, Dagster's own, of the expression that tells the partition of a table's row."""

UPSERT: tuple[Clause, ...] = (when.when_matched_update_all(), when.when_not_matched_insert_all())
"""The clauses of an asset that declares none: update matched rows, insert the others."""

DELETION_VECTORS = "delta.enableDeletionVectors"
TYPE_WIDENING = "delta.enableTypeWidening"

_PREFIX = "deltaweave/"
_MODES = frozenset({"append", "overwrite", "replace_where", "merge"})
_ENTRIES = frozenset(
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
    }
)
_WHEN = {
    "matched": "MATCHED",
    "not_matched": "NOT MATCHED",
    "not_matched_by_source": "NOT MATCHED BY SOURCE",
}


SchemaPolicy = Literal["strict", "add", "widen"]
"""What becomes of columns that a table lacks: an error, added, or added and types widened."""

IdempotentBy = Literal["partition", "delivery"]
"""What an asset applies once: each partition, or each delivery of one."""

WriteMode = Literal["append", "overwrite", "replace_where"]


@dataclass(frozen=True, kw_only=True)
class TableDeclaration:
    """The table of an asset, however it is written.

    Attributes:
        table: Path or catalog name of the table; None for the IO manager's root and asset key.
        schema: Schema of the table when it has to be created; None for that of the changes.
        partition_by: Partition columns of a created table.
        cluster_by: Clustering columns of a created table.
        properties: Table properties of a created table, on top of deletion vectors.
        schema_policy: What becomes of columns that the table lacks.
        partition_expr: SQL expression over the table's columns that gives the asset's partition,
            or one for each dimension; None where partitions are not parts of the table.
        idempotent_by: What is applied only once, where applying it twice is no harmless thing.
        retries: How often a run tries again after an error that may pass, such as a conflict.
    """

    table: str | None = None
    schema: StructType | str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] | None = None
    schema_policy: SchemaPolicy = "strict"
    partition_expr: str | Mapping[str, str] | None = None
    idempotent_by: IdempotentBy | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        """Refuse locations that hold credentials, when the definitions are loaded."""
        for text in self._locations:
            refuse_credentials(text, operation="declaration")

    @property
    def _locations(self) -> list[str]:
        return [self.table] if self.table else []

    @property
    def created_properties(self) -> dict[str, str]:
        """The properties of a created table."""
        widening = {TYPE_WIDENING: "true"} if self.schema_policy == "widen" else {}
        return {DELETION_VECTORS: "true", **widening, **(self.properties or {})}


@dataclass(frozen=True, kw_only=True)
class WriteDeclaration(TableDeclaration):
    """A table that takes an asset's output as it is.

    Attributes:
        mode: `append`; `overwrite` of the table or, where the asset is partitioned, of the run's
            partitions; `replace_where` of the rows that the predicate or the partitions name.
        replace_where: The predicate, or None for that of the run's partitions.
    """

    mode: WriteMode
    replace_where: str | None = None


@dataclass(frozen=True, kw_only=True)
class MergeDeclaration(TableDeclaration):
    """A table into which an asset's changes are merged.

    Attributes:
        on: The merge condition, or None where `merge_text` gives it.
        clauses: The clauses in their order; empty where `merge_text` gives them.
        merge_text: A whole MERGE statement with `{target}` and `{source}`, or None.
        except_columns: Columns of the changes that only clauses use, no columns of the table.
    """

    on: str | None = None
    clauses: tuple[Clause, ...] = ()
    merge_text: str | None = None
    except_columns: tuple[str, ...] = ()

    @property
    def _locations(self) -> list[str]:
        return [*super()._locations, *([self.merge_text] if self.merge_text else [])]

    def statement(self, target: str, source: str, columns: Sequence[str] = ()) -> str:
        """The MERGE text over a target and a source, both named as SQL names them.

        Args:
            target: The table.
            source: The changes.
            columns: Columns of the changes. Where the schema may evolve beside `except_columns`,
                each `*` is written out as those of them that the table may have.
        """
        if self.merge_text is not None:
            # Not str.format: other braces in the text, as in a JSON literal, are the user's.
            return self.merge_text.replace("{target}", target).replace("{source}", source)
        evolves = self.schema_policy != "strict"
        clauses = self.clauses
        if evolves and self.except_columns and columns:
            kept = self.table_columns(columns)
            clauses = tuple(_written_out(clause, kept) for clause in clauses)
        lines = [
            f"MERGE{' WITH SCHEMA EVOLUTION' if evolves else ''} INTO {target} AS t",
            f"USING {source} AS s",
            f"ON {self.on}",
            *(_clause_text(clause) for clause in clauses),
        ]
        return "\n".join(lines)

    def table_columns(self, columns: Sequence[str]) -> list[str]:
        """Those columns of the changes that are columns of the table too."""
        left_out = {name.lower() for name in self.except_columns}
        return [name for name in columns if name.lower() not in left_out]


@dataclass(frozen=True, kw_only=True)
class ChangesDeclaration(TableDeclaration):
    """A table to which an asset's change events are applied.

    Attributes:
        arguments: Those of `deltaweave.apply_changes`.
    """

    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MergeOnReadDeclaration(TableDeclaration):
    """One of the three assets of a merge-on-read table.

    Attributes:
        part: Which: the `changes`, the `base`, or the `view` of both, which has no table.
        view: The view's key. The others' end in `_changes` and `_base`.
        base_path: Where the base lies; None for the IO manager's root and asset key.
        changes_path: Where the changes lie; None for beside the base, or root and asset key.
        checkpoint: Where Spark keeps how far a stream was read; None for beside the changes.
        arguments: Those of `deltaweave.MergeOnReadTable`.
    """

    part: Literal["changes", "base", "view"]
    view: AssetKey
    base_path: str | None = None
    changes_path: str | None = None
    checkpoint: str | None = None
    arguments: Mapping[str, Any]

    @property
    def _locations(self) -> list[str]:
        given = (self.base_path, self.changes_path, self.checkpoint)
        return [*super()._locations, *(each for each in given if each)]

    @property
    def changes(self) -> AssetKey:
        """The key of the changes."""
        return _ending(self.view, "_changes")

    @property
    def base(self) -> AssetKey:
        """The key of the base."""
        return _ending(self.view, "_base")


def _ending(key: AssetKey, end: str) -> AssetKey:
    return AssetKey([*key.path[:-1], key.path[-1] + end])


def equi_keys(keys: tuple[str, ...]) -> str:
    """The merge condition that all these columns are equal in target and source."""
    return " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)


def in_metadata(declaration: TableDeclaration) -> dict[str, Any]:
    """The metadata entry that carries the declaration with the asset's definition."""
    # An object entry keeps the instance inside the process and shows its class in the UI; a bare
    # object would be replaced by text, with a deprecation warning.
    return {DECLARATION: ObjectMetadataValue(declaration)}


def declaration_in(metadata: Mapping[str, Any]) -> MergeDeclaration | None:
    """The declared merge that the metadata of an asset's definition carries, if any."""
    instance = _instance_in(metadata)
    return instance if isinstance(instance, MergeDeclaration) else None


def table_declaration(metadata: Mapping[str, Any], *, asset: str) -> TableDeclaration | None:
    """How an asset's table is written, by the metadata of its definition; None if it is not said.

    Either `@merge_asset` or `@cdc_asset` left its declaration there, or plain entries say it:
    `deltaweave/write` (`append`, `overwrite`, `replace_where` or `merge`) and, beside it,
    `partition_expr` and `deltaweave/…` for `keys`, `replace_where`, `table`, `schema`,
    `partition_by`, `cluster_by`, `properties`, `schema_policy`, `idempotent_by` and `retries`.

    Raises:
        StatementError: An entry is unknown, or does not go with the others.
    """
    declared = _instance_in(metadata)
    if isinstance(declared, TableDeclaration):
        return declared
    given = {
        key.removeprefix(_PREFIX): _plain(value)
        for key, value in metadata.items()
        if key.startswith(_PREFIX)
    }
    mode = given.pop("write", None)
    if mode is None:
        return None
    unknown = set(given) - _ENTRIES
    if unknown:
        raise _wrong(asset, f"{_PREFIX}{min(unknown)} is no known entry", _ENTRIES)
    if mode not in _MODES:
        raise _wrong(asset, f"{WRITE} is {mode!r}", _MODES)
    keys = _names(given.pop("keys", ()))
    if (mode == "merge") != bool(keys):
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
    for name, choices in (("schema_policy", SchemaPolicy), ("idempotent_by", IdempotentBy)):
        if name in given and given[name] not in get_args(choices):
            raise _wrong(asset, f"{_PREFIX}{name} is {given[name]!r}", set(get_args(choices)))
    for name in ("partition_by", "cluster_by"):
        given[name] = _names(given.get(name, ()))
    given["partition_expr"] = _plain(metadata.get(PARTITION_EXPR))
    if mode == "merge":
        return MergeDeclaration(on=equi_keys(keys), clauses=UPSERT, **given)
    return WriteDeclaration(mode=mode, **given)


def _instance_in(metadata: Mapping[str, Any]) -> object:
    entry = metadata.get(DECLARATION)
    return entry.instance if isinstance(entry, ObjectMetadataValue) else entry


def _wrong(asset: str, problem: str, known: Set[str]) -> StatementError:
    return StatementError(
        f"the asset's metadata cannot be meant: {problem}.",
        table=asset,
        operation="writing",
        hint=f"Known are {', '.join(sorted(known))}.",
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, MetadataValue) else value


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _written_out(clause: Clause, columns: Sequence[str]) -> Clause:
    """The clause with its `*`, if it has one, written out as these columns of the source."""
    assignments = {quoted(name): f"s.{quoted(name)}" for name in columns}
    if clause.action == "update_all":
        return when.when_matched_update(assignments, clause.condition)
    if clause.action == "insert_all":
        return when.when_not_matched_insert(assignments, clause.condition)
    return clause


def _clause_text(clause: Clause) -> str:
    condition = "" if clause.condition is None else f" AND ({clause.condition})"
    return f"WHEN {_WHEN[clause.kind]}{condition} THEN {_action_text(clause)}"


def _action_text(clause: Clause) -> str:
    assignments = clause.assignments or {}
    if clause.action == "update":
        return "UPDATE SET " + ", ".join(f"{name} = {value}" for name, value in assignments.items())
    if clause.action == "insert":
        names, values = ", ".join(assignments), ", ".join(map(str, assignments.values()))
        return f"INSERT ({names}) VALUES ({values})"
    return {"update_all": "UPDATE SET *", "insert_all": "INSERT *", "delete": "DELETE"}[
        clause.action
    ]
