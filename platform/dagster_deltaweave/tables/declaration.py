"""Declarations of an asset's table: where it is, and how an output becomes its rows.

A table has a path, or a name in a catalog. For names, Dagster's IO managers of databases have the
same rule: first the metadata of the asset decides, then the IO manager's configuration, then the
prefix of the asset's key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dagster import AssetKey, MetadataValue

from dagster_deltaweave.tables.options import (
    CurrentTableOptions,
    MergeOnReadArguments,
    MergeOptions,
    TableOptions,
    options_in,
)
from deltaweave import clauses as when
from deltaweave._validation import check_given_location
from deltaweave.clauses import Clause
from deltaweave.errors import NOTHING_DONE, StatementError
from deltaweave.identifiers import back_quoted, quoted, unquoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


SCHEMA = "schema"
"""Metadata key of an asset, Dagster's own: the schema (database) that its table is in."""

CATALOG = "catalog"
"""Metadata key of an asset: the catalog that its table is in."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Namespace:
    """The catalog and the schema of a table; empty for a table at a path.

    Attributes:
        catalog: The catalog; None for the session's current one.
        schema: The schema; None for the last part of the key's prefix.
    """

    catalog: str | None = None
    schema: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether the table has a name in a catalog."""
        return bool(self.catalog or self.schema)

    def or_else(self, default: Namespace) -> Namespace:
        """Fill in what this namespace lacks from the default."""
        return Namespace(self.catalog or default.catalog, self.schema or default.schema)

    def name_of(self, key: AssetKey) -> str:
        """Return the name of an asset's table as SQL spells it: the key's last part, qualified.

        Raises:
            StatementError: Nothing names its schema, or SQL cannot hold the name.
        """
        schema = self.schema or (key.path[-2] if len(key.path) > 1 else None)
        if not schema:
            raise locating_error(
                key.to_user_string(),
                "nothing names the schema of its table.",
                f"Give the asset the metadata {SCHEMA}, its key a prefix, or the IO manager a "
                "schema.",
            )
        if schema.lower() == "delta" and not self.catalog:
            raise locating_error(
                key.to_user_string(),
                f"without a catalog, {schema}.{key.path[-1]} may mean a path.",
                f"Name the catalog too, by the metadata {CATALOG} or by the IO manager's catalog.",
            )
        parts = [part for part in (self.catalog, schema, key.path[-1]) if part]
        for part in parts:
            if "/" in part or part in (".", ".."):
                raise locating_error(
                    key.to_user_string(),
                    f"{part!r} is not a name in a catalog: catalogs make directories of names.",
                    "Name another schema, or give the asset another key.",
                )
        return ".".join(map(_spelled_name, parts))


NO_NAMESPACE = Namespace()


def namespace_in(metadata: Mapping[str, Any], asset: str) -> Namespace:
    """Read the catalog and schema in the metadata of an asset; only texts are names.

    Before Dagster had `dagster/column_schema`, `schema` was a common key for a table's columns: a
    `TableSchema` under it is not a name.
    """
    given = {word: entry_value(metadata, word) for word in (CATALOG, SCHEMA)}
    names = {word: name for word, name in given.items() if isinstance(name, str)}
    for word, name in names.items():
        if not name.strip():
            raise locating_error(
                asset,
                f"the {word} in the asset's metadata is empty.",
                f"Name a {word}, or leave it out of the metadata.",
            )
    return Namespace(names.get(CATALOG), names.get(SCHEMA))


def full_names(spark: SparkSession) -> Callable[[str], str]:
    """Return a function that gives a table's full name, equal for all spellings of its name.

    Names that differ only in case are equal, as in Spark's own catalog.
    """
    from deltaweave.delta.statement import name_parts

    current = [spark.catalog.currentCatalog(), spark.catalog.currentDatabase()]

    def full_name(name: str) -> str:
        parts = name_parts(spark, name)
        parts = [*current[: max(0, 3 - len(parts))], *parts]
        return ".".join(back_quoted(part.casefold()) for part in parts)

    return full_name


def _spelled_name(name: str) -> str:
    # Names without quotes where SQL needs none: Dagster shows them, and other tools write them so.
    return name if _PLAIN.fullmatch(name) else quoted(name)


def entry_value(metadata: Mapping[str, Any], key: str) -> Any:
    """Return an entry of metadata as a plain value; None without the entry."""
    entry = metadata.get(key)
    return entry.value if isinstance(entry, MetadataValue) else entry


def locating_error(table: str | None, problem: str, hint: str) -> StatementError:
    """Return the error for a table without a location, or at a wrong one."""
    return StatementError(problem, table=table, operation="locating", state=NOTHING_DONE, hint=hint)


UPSERT_CLAUSES: tuple[Clause, ...] = (
    when.when_matched_update_all(),
    when.when_not_matched_insert_all(),
)
"""The clauses of an asset that declares none: update matched rows, insert the others."""
_WHEN = {
    "matched": "MATCHED",
    "not_matched": "NOT MATCHED",
    "not_matched_by_source": "NOT MATCHED BY SOURCE",
}


def equal_keys_condition(keys: tuple[str, ...]) -> str:
    """Build the merge condition that all these columns are equal in target and source."""
    return " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)


def with_written_out_stars(clause: Clause, columns: Sequence[str]) -> Clause:
    """Replace the clause's `*`, if any, by these columns of the source."""
    assignments = {quoted(name): f"s.{quoted(name)}" for name in columns}
    if clause.action == "update_all":
        return when.when_matched_update(assignments, clause.condition)
    if clause.action == "insert_all":
        return when.when_not_matched_insert(assignments, clause.condition)
    return clause


def not_older(clause: Clause, sequence: str | None) -> Clause:
    """Restrict the clause to source rows that are not older than the matched target row.

    A target row without a sequence is older than all source rows. A source row without a sequence
    is older than all target rows with one.

    `sequence` is the column of source and target that says which row is newer; None if none does.
    """
    if sequence is None or clause.kind != "matched":
        return clause
    column = quoted(unquoted(sequence))
    condition = f"(t.{column} IS NULL OR s.{column} >= t.{column})"
    if clause.condition is not None:
        condition = f"({clause.condition}) AND {condition}"
    return replace(clause, condition=condition)


def clause_text(clause: Clause) -> str:
    """Write a WHEN clause as SQL."""
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


DELETION_VECTORS = "delta.enableDeletionVectors"
TYPE_WIDENING = "delta.enableTypeWidening"

_OF_WHOLE_ROWS = {("matched", "update_all"), ("not_matched", "insert_all")}


WriteMode = Literal["append", "overwrite", "replace_where"]


@dataclass(frozen=True, kw_only=True)
class TableLocation:
    """The declared location of an asset's table; the IO manager completes it.

    Attributes:
        table: Path or catalog name of the table; None for the IO manager's path for its key.
        namespace: Catalog and schema of a table without `table`, by the asset's metadata.
    """

    table: str | None = None
    namespace: Namespace = NO_NAMESPACE

    def __post_init__(self) -> None:
        """Refuse locations that are empty or hold credentials, when definitions load."""
        for text in self._locations:
            check_given_location(text, operation="declaration")

    @property
    def _locations(self) -> list[str]:
        return _texts(self.table)

    @property
    def is_given(self) -> bool:
        """Whether a location is declared."""
        return bool(self.table) or self.namespace.is_given


@dataclass(frozen=True, kw_only=True)
class TableDeclaration(TableLocation, TableOptions):
    """The table of an asset, however it is written.

    Attributes:
        schema: Schema of a created table; None for that of the changes.
        partition_by: Partition columns of a created table.
        cluster_by: Clustering columns of a created table.
        properties: Table properties of a created table, in addition to deletion vectors.
        schema_policy: What happens to columns that the table lacks.
        partition_expr: SQL expression over the table's columns that gives the asset's partition,
            or one for each dimension; None if partitions are not parts of the table.
        idempotent_by: What is applied only once, if applying it twice would change the result.
        retries: How often a run tries again after a transient error, such as a conflict.
    """

    schema: StructType | str | None = None
    retries: int = 3

    can_be_rebuilt: ClassVar[bool] = True
    """Whether an output can replace all rows of the table, in a full refresh."""

    has_schema_policy: ClassVar[bool] = True
    """Whether the schema policy decides which columns a table gets; change events have none."""

    applies_again_after_restore: ClassVar[bool] = False
    """Whether an output whose rows a RESTORE took back is applied again."""

    @property
    def created_properties(self) -> dict[str, str]:
        """The properties of a created table."""
        widening = {TYPE_WIDENING: "true"} if self.schema_policy == "widen" else {}
        return {DELETION_VECTORS: "true", **widening, **(self.properties or {})}

    @property
    def in_words(self) -> str:
        """How an output becomes rows of the table, in the few words that the UI shows."""
        raise NotImplementedError

    @property
    def adds_only(self) -> bool:
        """Whether an output is added to the table and replaces no row of it."""
        return False

    @property
    def needs_order(self) -> bool:
        """Whether an older partition could replace what a newer one wrote."""
        return False

    @property
    def sequence(self) -> str | None:
        """The name of the column that says which of two rows is newer; None if none does."""
        return None

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """Argument to the columns that it names and that changes and table must have."""
        return {}

    @property
    def refuses_unknown_columns(self) -> bool:
        """Whether columns of the changes that the table lacks are an error."""
        return self.schema_policy == "strict"

    def table_rows(self, changes: DataFrame) -> DataFrame:
        """Drop the columns of the changes that the table lacks by declaration."""
        return changes


@dataclass(frozen=True, kw_only=True)
class WriteDeclaration(TableDeclaration):
    """A table to which an asset's output is written as it is.

    Attributes:
        mode: `append`; `overwrite` of the table or, if the asset is partitioned, of the run's
            partitions; `replace_where` of the rows that the predicate or the partitions name.
        replace_where: The predicate, or None for that of the run's partitions.
    """

    mode: WriteMode
    replace_where: str | None = None

    applies_again_after_restore: ClassVar[bool] = True

    @property
    def in_words(self) -> str:
        """The mode."""
        return self.mode

    @property
    def adds_only(self) -> bool:
        """Whether the mode is `append`."""
        return self.mode == "append"


@dataclass(frozen=True, kw_only=True)
class MergeDeclaration(TableDeclaration, MergeOptions):
    """A table into which an asset's changes are merged.

    Attributes:
        on: The merge condition, or None if `merge_text` gives it.
        keys: The columns that are equal by `on` and that identify a row; empty if none do.
        unique_keys: Whether several rows for one of the keys are an error.
        clauses: The clauses in their order; empty if `merge_text` gives them.
        merge_text: A whole MERGE statement with `{target}` and `{source}`, or None.
        except_column_list: Columns of the changes that only clauses use; the table lacks them.
        sequence_by: Column that says which of two rows is newer; None if none does.
        order: In which order partitions are merged.
        skip_unchanged_updates: Whether updates that give a row the values that it has are skipped.
    """

    clauses: tuple[Clause, ...] = ()

    applies_again_after_restore: ClassVar[bool] = True

    @property
    def in_words(self) -> str:
        """The keys, if they are all that decides which rows are merged with which."""
        return f"merged by {', '.join(self.keys)}" if self.keys else "merged by a condition"

    @property
    def sequence(self) -> str | None:
        """The name in `sequence_by`, without quotes."""
        return None if self.sequence_by is None else unquoted(self.sequence_by)

    @property
    def effective_clauses(self) -> tuple[Clause, ...]:
        """The clauses as the merge runs them: `sequence_by` is part of their conditions."""
        return tuple(not_older(clause, self.sequence_by) for clause in self.clauses)

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns of `keys` and `sequence_by`."""
        return {"keys": self.keys, "sequence_by": () if self.sequence is None else (self.sequence,)}

    @property
    def refuses_unknown_columns(self) -> bool:
        """Whether the policy is strict; a MERGE text itself says which columns it uses."""
        return super().refuses_unknown_columns and not self.merge_text

    def table_rows(self, changes: DataFrame) -> DataFrame:
        """Drop the columns of the changes that only clauses use."""
        return changes.drop(*self.except_column_list)

    @property
    def needs_order(self) -> bool:
        """Whether an older partition could replace what a newer one wrote."""
        if self.order == "any":
            return False
        if self.merge_text is not None:
            return True
        changing = [clause for clause in self.clauses if clause.kind != "not_matched"]
        if self.sequence_by is None:
            return bool(changing)
        # If rows are always taken whole, those with the newest sequence win in any order. A clause
        # that skips rows or columns loses a sequence, as a delete does: an older row would come
        # back, or columns of a newer row would be missing.
        return self.schema_policy != "strict" or any(
            clause.condition is not None or (clause.kind, clause.action) not in _OF_WHOLE_ROWS
            for clause in self.clauses
        )

    @property
    def _locations(self) -> list[str]:
        return [*super()._locations, *_texts(self.merge_text)]

    def statement(self, target: str, source: str, columns: Sequence[str] = ()) -> str:
        """Build the MERGE text over a target and a source, both named as SQL names them.

        Args:
            target: Name of the target table.
            source: Name of the changes.
            columns: Columns of the changes. With `except_column_list` and a schema that evolves,
                each `*` is written out as those of them that the table may have.
        """
        if self.merge_text is not None:
            # Not str.format: other braces in the text, as in a JSON literal, are the user's.
            return self.merge_text.replace("{target}", target).replace("{source}", source)
        evolves = self.schema_policy != "strict"
        clauses = self.effective_clauses
        if evolves and self.except_column_list and columns:
            kept = self.table_columns(columns)
            clauses = tuple(with_written_out_stars(clause, kept) for clause in clauses)
        lines = [
            f"MERGE{' WITH SCHEMA EVOLUTION' if evolves else ''} INTO {target} AS t",
            f"USING {source} AS s",
            f"ON {self.on}",
            *(clause_text(clause) for clause in clauses),
        ]
        return "\n".join(lines)

    def table_columns(self, columns: Sequence[str]) -> list[str]:
        """Keep the columns of the changes that are also columns of the table."""
        left_out = {name.lower() for name in self.except_column_list}
        return [name for name in columns if name.lower() not in left_out]


@dataclass(frozen=True, kw_only=True)
class ChangesDeclaration(TableDeclaration):
    """A table to which an asset's change events are applied."""

    options: CurrentTableOptions

    can_be_rebuilt: ClassVar[bool] = False
    has_schema_policy: ClassVar[bool] = False

    @property
    def in_words(self) -> str:
        """The keys whose rows follow the events, and what orders these."""
        kept = "histories" if str(self.options.stored_as_scd_type) == "2" else "rows"
        return (
            f"{kept} by {', '.join(self.options.keys)}, from change events in the order of "
            f"{self.options.sequence_by}"
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `deltaweave.apply_changes`."""
        return options_in(CurrentTableOptions, self.options)

    @property
    def rescued(self) -> str | bool:
        """Where events that cannot be applied are put, as `deltaweave.apply_changes` takes it."""
        return self.options.rescued

    @property
    def _locations(self) -> list[str]:
        return [*super()._locations, *_texts(self.options.rescued)]


@dataclass(frozen=True, kw_only=True)
class MergeOnReadDeclaration(TableDeclaration):
    """One of the three assets of a merge-on-read table.

    Attributes:
        part: Which asset: the `changes`, the `base`, or the `view` of both, which has no table.
        view: The view's key. The other keys end in `_changes` and `_base`.
        base_path: Where the base is; None for the IO manager's root and asset key.
        changes_path: Where the changes are; None for next to the base, or root and asset key.
        checkpoint: Where Spark keeps the stream's progress; None for a directory next to the
            changes.
    """

    part: Literal["changes", "base", "view"]
    view: AssetKey
    base_path: str | None = None
    changes_path: str | None = None
    checkpoint: str | None = None
    options: MergeOnReadArguments

    can_be_rebuilt: ClassVar[bool] = False
    has_schema_policy: ClassVar[bool] = False

    @property
    def in_words(self) -> str:
        """The part of the merge-on-read table."""
        return {
            "changes": "change events, kept until they are merged",
            "base": "change events, merged by upkeep",
            "view": "the base, with the changes that are not merged yet",
        }[self.part]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `deltaweave.MergeOnReadTable`."""
        return options_in(MergeOnReadArguments, self.options)

    @property
    def rescued(self) -> str | bool:
        """Where events that cannot be applied are put, as `MergeOnReadTable` takes it."""
        return self.options.rescued

    @property
    def _locations(self) -> list[str]:
        given = (self.base_path, self.changes_path, self.checkpoint)
        return [*super()._locations, *_texts(*given, self.options.rescued)]

    def of_part(self, part: Literal["changes", "base"]) -> MergeOnReadDeclaration:
        """Return the declaration of the asset with the changes, or of that with the base."""
        table = self.base_path if part == "base" else self.changes_path
        return replace(self, part=part, table=table)

    def at(self, key: AssetKey) -> MergeOnReadDeclaration:
        """Return the declaration with its assets' actual keys, derived from the one known key.

        Definitions may get a prefix after they were declared (`load_assets_from_modules`).

        Raises:
            StatementError: The asset was renamed, so that the others are not found.
        """
        own = {"changes": self.changes, "base": self.base, "view": self.view}[self.part]
        if key.to_user_string() == own.to_user_string():
            return self
        if key.path[-1] != own.path[-1]:
            raise locating_error(
                key.to_user_string(),
                f"the asset was declared as {own.to_user_string()}, and its key was replaced: the "
                "assets of a merge-on-read table are found by each other's names.",
                "Name the table by name= of @merge_on_read_asset, and give the three assets "
                "one prefix.",
            )
        return replace(self, view=AssetKey([*key.path[:-1], self.view.path[-1]]))

    @property
    def changes(self) -> AssetKey:
        """The key of the changes."""
        return _ending(self.view, "_changes")

    @property
    def base(self) -> AssetKey:
        """The key of the base."""
        return _ending(self.view, "_base")


def _texts(*given: object) -> list[str]:
    return [each for each in given if isinstance(each, str)]


def _ending(key: AssetKey, end: str) -> AssetKey:
    return AssetKey([*key.path[:-1], key.path[-1] + end])
