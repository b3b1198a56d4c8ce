"""Declarations of `@merge_asset` or of metadata: how an asset's output becomes its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dagster import AssetKey

from dagster_deltaweave.tables.catalog_names import NO_NAMESPACE, Namespace
from dagster_deltaweave.tables.merge_text import (
    clause_text,
    not_older,
    with_written_out_stars,
)
from deltaweave.clauses import Clause
from deltaweave.errors import NOTHING_DONE, StatementError
from deltaweave.locations import check_given_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DELETION_VECTORS = "delta.enableDeletionVectors"
TYPE_WIDENING = "delta.enableTypeWidening"

_OF_WHOLE_ROWS = {("matched", "update_all"), ("not_matched", "insert_all")}


SchemaPolicy = Literal["strict", "add", "widen"]
"""What happens to columns that a table lacks: an error, added, or added and types widened."""

IdempotentBy = Literal["partition", "delivery"]
"""What an asset applies only once: each partition, or each delivery of one."""

Order = Literal["partition", "any"]
"""The order of merges: `partition` never merges an older one after a newer one."""

WriteMode = Literal["append", "overwrite", "replace_where"]


@dataclass(frozen=True, kw_only=True)
class TablePlace:
    """What is declared of where an asset's table is; the IO manager says the rest.

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
        """Whether anything is declared of it."""
        return bool(self.table) or self.namespace.is_given


@dataclass(frozen=True, kw_only=True)
class TableDeclaration(TablePlace):
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
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] | None = None
    schema_policy: SchemaPolicy = "strict"
    partition_expr: str | Mapping[str, str] | None = None
    idempotent_by: IdempotentBy | None = None
    retries: int = 3

    @property
    def created_properties(self) -> dict[str, str]:
        """The properties of a created table."""
        widening = {TYPE_WIDENING: "true"} if self.schema_policy == "widen" else {}
        return {DELETION_VECTORS: "true", **widening, **(self.properties or {})}


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


@dataclass(frozen=True, kw_only=True)
class MergeDeclaration(TableDeclaration):
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

    on: str | None = None
    keys: tuple[str, ...] = ()
    unique_keys: bool = True
    clauses: tuple[Clause, ...] = ()
    merge_text: str | None = None
    except_column_list: tuple[str, ...] = ()
    sequence_by: str | None = None
    order: Order = "partition"
    skip_unchanged_updates: bool = False

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
            target: The table.
            source: The changes.
            columns: Columns of the changes. With `except_column_list` and a schema that evolves,
                each `*` is written out as those of them that the table may have.
        """
        if self.merge_text is not None:
            # Not str.format: other braces in the text, as in a JSON literal, are the user's.
            return self.merge_text.replace("{target}", target).replace("{source}", source)
        evolves = self.schema_policy != "strict"
        clauses = tuple(not_older(clause, self.sequence_by) for clause in self.clauses)
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
    """A table to which an asset's change events are applied.

    Attributes:
        arguments: The arguments of `deltaweave.apply_changes`.
    """

    arguments: Mapping[str, Any]

    @property
    def rescued(self) -> str | bool:
        """Where events that cannot be applied are put, as `deltaweave.apply_changes` takes it."""
        return self.arguments.get("rescued") or False

    @property
    def _locations(self) -> list[str]:
        return [*super()._locations, *_texts(self.arguments.get("rescued"))]


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
        arguments: The arguments of `deltaweave.MergeOnReadTable`.
    """

    part: Literal["changes", "base", "view"]
    view: AssetKey
    base_path: str | None = None
    changes_path: str | None = None
    checkpoint: str | None = None
    arguments: Mapping[str, Any]

    @property
    def rescued(self) -> str | bool:
        """Where events that cannot be applied are put, as `MergeOnReadTable` takes it."""
        return self.arguments.get("rescued") or False

    @property
    def _locations(self) -> list[str]:
        given = (self.base_path, self.changes_path, self.checkpoint)
        return [*super()._locations, *_texts(*given, self.arguments.get("rescued"))]

    def of_part(self, part: Literal["changes", "base"]) -> MergeOnReadDeclaration:
        """Return the declaration of the asset with the changes, or of that with the base."""
        table = self.base_path if part == "base" else self.changes_path
        return replace(self, part=part, table=table)

    def at(self, key: AssetKey) -> MergeOnReadDeclaration:
        """Return the declaration with its assets' actual keys, derived from the one known key.

        Definitions may get a prefix after they were declared (`load_assets_from_modules`).

        Args:
            key: The key of this part's asset.

        Raises:
            StatementError: The asset was renamed, so that the others are not found.
        """
        own = {"changes": self.changes, "base": self.base, "view": self.view}[self.part]
        if key.to_user_string() == own.to_user_string():
            return self
        if key.path[-1] != own.path[-1]:
            raise StatementError(
                f"the asset was declared as {own.to_user_string()}, and its key was replaced: the "
                "assets of a merge-on-read table are found by each other's names.",
                table=key.to_user_string(),
                operation="locating",
                state=NOTHING_DONE,
                hint="Name the table by name= of @merge_on_read_asset, and give the three assets "
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
