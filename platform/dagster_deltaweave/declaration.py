"""How an asset's changes are merged into its table: what `@merge_asset` declares, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import OutputContext
from dagster._core.definitions.metadata.metadata_value import ObjectMetadataValue

from deltaweave.engine.clauses import Clause
from deltaweave.errors import StatementError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DECLARATION = "deltaweave/merge"
"""Metadata key under which an asset's definition holds its declaration."""

_WHEN = {
    "matched": "MATCHED",
    "not_matched": "NOT MATCHED",
    "not_matched_by_source": "NOT MATCHED BY SOURCE",
}


@dataclass(frozen=True)
class MergeDeclaration:
    """The merge of one asset.

    Attributes:
        on: The merge condition, or None where `merge_text` gives it.
        clauses: The clauses in their order; empty where `merge_text` gives them.
        merge_text: A whole MERGE statement with `{target}` and `{source}`, or None.
        table: Path or catalog name of the table; None for the IO manager's root and asset key.
        schema: Schema of the table when it has to be created; None for that of the changes.
        partition_by: Partition columns of a created table.
        properties: Table properties of a created table.
        except_columns: Columns of the changes that only clauses use, no columns of the table.
        with_schema_evolution: Whether new columns of the changes are added to the table.
        retries: How often a run tries again after an error that may pass, such as a conflict.
    """

    on: str | None = None
    clauses: tuple[Clause, ...] = ()
    merge_text: str | None = None
    table: str | None = None
    schema: StructType | str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] | None = None
    except_columns: tuple[str, ...] = ()
    with_schema_evolution: bool = False
    retries: int = 3

    def statement(self, target: str, source: str) -> str:
        """The MERGE text over a target and a source, both named as SQL names them."""
        if self.merge_text is not None:
            # Not str.format: other braces in the text, as in a JSON literal, are the user's.
            return self.merge_text.replace("{target}", target).replace("{source}", source)
        evolution = " WITH SCHEMA EVOLUTION" if self.with_schema_evolution else ""
        lines = [
            f"MERGE{evolution} INTO {target} AS t",
            f"USING {source} AS s",
            f"ON {self.on}",
            *(_clause_text(clause) for clause in self.clauses),
        ]
        return "\n".join(lines)


def equi_keys(keys: tuple[str, ...]) -> str:
    """The merge condition that all these columns are equal in target and source."""
    quoted = ["`" + key.replace("`", "``") + "`" for key in keys]
    return " AND ".join(f"t.{key} = s.{key}" for key in quoted)


def in_metadata(declaration: MergeDeclaration) -> dict[str, Any]:
    """The metadata entry that carries the declaration with the asset's definition."""
    # An object entry keeps the instance inside the process and shows its class in the UI; a bare
    # object would be replaced by text, with a deprecation warning.
    return {DECLARATION: ObjectMetadataValue(declaration)}


def declaration_in(metadata: Mapping[str, Any]) -> MergeDeclaration | None:
    """The declaration that the metadata of an asset's definition carries, if any."""
    entry = metadata.get(DECLARATION)
    instance = entry.instance if isinstance(entry, ObjectMetadataValue) else entry
    return instance if isinstance(instance, MergeDeclaration) else None


def declaration_of(context: OutputContext) -> MergeDeclaration:
    """The declaration of the asset whose output this is.

    Raises:
        StatementError: The asset declares no merge.
    """
    declaration = declaration_in(context.definition_metadata)
    if declaration is None:
        raise StatementError(
            "its asset declares no merge, so its output cannot be stored.",
            table=context.asset_key.to_user_string(),
            hint="Declare the asset with @merge_asset, or let it return None.",
        )
    return declaration


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
