"""Names of tables in a catalog: which catalog and schema the table of an asset is in.

Dagster's IO managers of databases have the same rule: first the metadata of the asset decides, then
the IO manager's configuration, then the prefix of the asset's key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetKey

from deltaweave.errors import NOTHING_DONE, StatementError
from deltaweave.identifiers import back_quoted, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "schema"
"""Metadata key of an asset, Dagster's own: the schema (database) that its table is in."""

CATALOG = "catalog"
"""Metadata key of an asset: the catalog that its table is in."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Namespace:
    """What is said of the catalog and the schema of a table; nothing for a table at a path.

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
            raise _without_place(
                key,
                "nothing names the schema of its table.",
                f"Give the asset the metadata {SCHEMA}, its key a prefix, or the IO manager a "
                "schema.",
            )
        if schema.lower() == "delta" and not self.catalog:
            raise _without_place(
                key,
                f"without a catalog, {schema}.{key.path[-1]} may mean a path.",
                f"Name the catalog too, by the metadata {CATALOG} or by the IO manager's catalog.",
            )
        parts = [part for part in (self.catalog, schema, key.path[-1]) if part]
        for part in parts:
            if "/" in part or part in (".", ".."):
                raise _without_place(
                    key,
                    f"{part!r} is no name in a catalog: catalogs make directories of names.",
                    "Name another schema, or give the asset another key.",
                )
        return ".".join(map(_spelled, parts))


NO_NAMESPACE = Namespace()


def namespace_in(metadata: Mapping[str, Any], asset: str) -> Namespace:
    """Read the catalog and schema in the metadata of an asset; only texts are names.

    Before Dagster had `dagster/column_schema`, `schema` was a common key for a table's columns: a
    `TableSchema` under it is no name.

    Raises:
        StatementError: A name is empty.
    """
    names = {word: _text(metadata.get(word)) for word in (CATALOG, SCHEMA)}
    for word, name in names.items():
        if name is not None and not name.strip():
            raise StatementError(
                f"the {word} in the asset's metadata is empty.",
                table=asset,
                operation="locating",
                state=NOTHING_DONE,
                hint=f"Name a {word}, or leave it out of the metadata.",
            )
    return Namespace(names[CATALOG], names[SCHEMA])


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


def _spelled(name: str) -> str:
    # Names without quotes where SQL needs none: Dagster shows them, and other tools write them so.
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _text(value: Any) -> str | None:
    value = getattr(value, "value", value)  # of a MetadataValue
    return value if isinstance(value, str) else None


def _without_place(key: AssetKey, problem: str, hint: str) -> StatementError:
    return StatementError(
        problem,
        table=key.to_user_string(),
        operation="locating",
        state=NOTHING_DONE,
        hint=hint,
    )
