"""Delta tables that others write, found and declared in YAML: `DeltaTablesComponent`."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

import json
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar
from uuid import uuid4

from dagster import (
    AssetKey,
    AssetSpec,
    ComponentLoadContext,
    Definitions,
    Model,
    Resolvable,
    StateBackedComponent,
    TableSchema,
    scaffold_with,
)
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import Field, field_validator

from dagster_deltaweave.components.table_component import AttributesScaffolder
from dagster_deltaweave.dagster_private import TableMetadataSet, UriMetadataSet
from dagster_deltaweave.logs import FoundTable, find_tables
from dagster_deltaweave.storage import local_path, without_query
from dagster_deltaweave.tables import problem_of_table_key, table_column
from deltaweave._validation import check_given_location
from deltaweave.errors import StatementError
from deltaweave.identifiers import table_name

FOUND_KINDS = frozenset({"delta"})

_logger = logging.getLogger(__name__)


class DeltaTablesScaffolder(AttributesScaffolder):
    """Writes a `defs.yaml` that finds the tables of a lake."""

    attributes: ClassVar[dict[str, Any]] = {"root": "/lake", "key_prefix": ["NAME"]}


@scaffold_with(DeltaTablesScaffolder)
class DeltaTablesComponent(StateBackedComponent, Resolvable, Model):
    """The Delta tables below a root, as external assets.

    `dg utils refresh-defs-state` finds the tables by their logs, without Spark, and keeps what it
    found as the state of Dagster; `dg dev` does so when it starts. Definitions load from it alone.
    An asset's key is the path of its table below the root, after `key_prefix`. It has the table's
    columns, description and URI, and is an input of other assets without further metadata.

    ```yaml
    type: dagster_deltaweave.DeltaTablesComponent
    attributes:
      root: s3a://lake/bronze
      key_prefix: [bronze]
      exclude: ["scratch/*"]
      translation:
        key: "raw/{{ table.name }}"
        group_name: "{{ table.path[0] }}"
    ```

    A subclass may override `get_asset_spec` in place of `translation`.
    """

    root: Annotated[str, Field(description="Path or URI of the directory to look in.")]
    levels: Annotated[
        int, Field(ge=1, le=10, description="How many directories below the root tables are.")
    ] = 3
    key_prefix: Annotated[
        Sequence[str], Field(description="What the assets' keys begin with.")
    ] = ()
    exclude: Annotated[
        Sequence[str],
        Field(
            description="Patterns of paths below the root to leave out, such as `scratch/*`: of "
            "tables, or of directories with all that is in them."
        ),
    ] = ()
    translation: Annotated[
        TranslationFn[Mapping[str, Any]] | None,
        TranslationFnResolver[Mapping[str, Any]](lambda table: {"table": table}),
        Field(
            description="What differs in the assets' specs: `table` has `name`, `path` (below the "
            "root), `location`, `description` and `columns`, and `spec` is the spec without it."
        ),
    ] = None
    defs_state: ResolvedDefsStateConfig = DefsStateConfigArgs.local_filesystem()

    @field_validator("root")
    @classmethod
    def _is_a_location(cls, root: str) -> str:
        check_given_location(root, operation="configuration")
        return root

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where Dagster keeps what was found."""
        key = f"DeltaTables[{':'.join([*self.key_prefix, without_query(self.root)])}]"
        # Dagster replaces characters of the key, so that two keys could be one.
        exact = json.dumps([list(self.key_prefix), self.root])
        key += f"-{sha256(exact.encode()).hexdigest()[:8]}"
        return DefsStateConfig.from_args(self.defs_state, default_key=key)

    def write_state_to_path(self, state_path: Path) -> None:
        """Look for the tables, and keep what their logs say.

        Raises:
            SourceError: The root does not exist or cannot be read; the state stays as it was.
        """
        tables = list(map(_state_of, find_tables(self.root, self.levels, self._is_excluded)))
        written = state_path.with_name(f"{state_path.name}.{uuid4().hex}")
        try:
            written.write_text(json.dumps({"tables": tables}, indent=1))
            written.replace(state_path)  # who reads meanwhile finds the state before
        finally:
            written.unlink(missing_ok=True)

    def build_defs_from_state(
        self, context: ComponentLoadContext, state_path: Path | None
    ) -> Definitions:
        """Build the assets of the tables that were found; none before the first refresh."""
        if state_path is None:
            return Definitions()
        tables = json.loads(state_path.read_text())["tables"]
        # The state may be older than what is excluded.
        shown = [each for each in tables if not self._is_excluded(tuple(each["path"]))]
        return Definitions(
            assets=[self.get_asset_spec({"name": each["path"][-1], **each}) for each in shown]
        )

    def get_asset_spec(self, table: Mapping[str, Any]) -> AssetSpec:
        """Build the spec of a table's asset.

        Args:
            table: `name`, `path` (below the root), `location`, `description` and `columns`.
        """
        spec = _spec(table, self.key_prefix)
        return spec if self.translation is None else self.translation(spec, table)

    def _is_excluded(self, names: tuple[str, ...]) -> bool:
        path = "/".join(names)
        problem = problem_of_table_key(AssetKey(names))
        if problem is not None:
            _logger.warning("What is below %s/%s is left out: %s", self.root, path, problem)
            return True
        above = ("/".join(names[:number]) for number in range(1, len(names) + 1))
        return any(fnmatchcase(path, pattern) for path in above for pattern in self.exclude)


def _state_of(table: FoundTable) -> dict[str, Any]:
    return {
        "path": list(table.path),
        "location": table.location,
        "description": table.description,
        "columns": _schema_fields(table),
    }


def _schema_fields(table: FoundTable) -> list[dict[str, Any]] | None:
    """Return the table's columns; None if a type is not known to this release of Spark."""
    # Imported here because loading the definitions needs no Spark; this starts none either.
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromJson(json.loads(table.schema))
    except Exception as error:  # pyspark raises several kinds
        _logger.warning("The columns of %s are left out: %s", table.location, error)
        return None
    return [
        {
            "name": field.name,
            "type": field.dataType.simpleString(),
            "description": field.metadata.get("comment"),
            "nullable": field.nullable,
        }
        for field in schema
    ]


def _spec(table: Mapping[str, Any], key_prefix: Sequence[str]) -> AssetSpec:
    location, columns = table["location"], table["columns"]
    local = local_path(location)
    metadata: dict[str, Any] = {
        **TableMetadataSet(
            column_schema=None
            if columns is None
            else TableSchema(
                [
                    table_column(
                        each["name"],
                        each["type"],
                        each["description"],
                        is_nullable=each["nullable"],
                    )
                    for each in columns
                ]
            ),
            table_name=_name_in_sql(location),
            storage_kind="deltalake",
        ),
        **UriMetadataSet(uri=location if local is None else f"file:{local}"),
        "deltaweave/table": location,
    }
    return AssetSpec(
        AssetKey([*key_prefix, *table["path"]]),
        description=table["description"],
        metadata=metadata,
        kinds=set(FOUND_KINDS),
    )


def _name_in_sql(location: str) -> str | None:
    try:
        return table_name(location)
    except StatementError:
        return None  # SQL cannot hold it
