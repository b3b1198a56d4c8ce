"""The sources of the rows of a table in YAML: files, a query or a Python function."""

# No `from __future__ import annotations`: Dagster resolves the fields by their annotations.

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetKey,
    Model,
    Resolvable,
    Resolver,
)
from dagster.components.lib.executable_component.function_component import ResolvableCallable
from pydantic import Field, field_validator

from dagster_deltaweave.landing import literal_path
from dagster_deltaweave.partitions import partition_keys
from deltaweave.errors import SourceError
from deltaweave.locations import check_given_location

_SPARK = "spark"


class PathSource(Model, Resolvable):
    """Changes in files under a path."""

    type: Literal["path"] = "path"
    path: Annotated[
        str,
        Field(description="Path or URI; each of the run's partitions replaces `{partition}`."),
    ]
    format: Annotated[str, Field(description="Any format that Spark reads.")] = "parquet"
    columns: Annotated[
        str | None, Field(description="The files' schema as DDL; by default Spark infers it.")
    ] = None
    options: Annotated[Mapping[str, str], Field(description="Options of Spark's reader.")] = {}

    @field_validator("path")
    @classmethod
    def _is_a_location(cls, path: str) -> str:
        check_given_location(path, operation="declaration")
        return path


class SqlSource(Model, Resolvable):
    """Changes that a query computes."""

    type: Literal["sql"] = "sql"
    sql: Annotated[
        str,
        Resolver(lambda context, text: text, model_field_type=str, inject_before_resolve=False),
        Field(description="A SELECT; an upstream asset is written as its name in braces."),
    ]
    upstreams: Annotated[
        Mapping[str, str],
        Field(description="Name in the query to the upstream asset's key, e.g. `sales/orders`."),
    ] = {}


class FunctionSource(Model, Resolvable):
    """Changes that a Python function returns, like the function of a `@merge_asset`."""

    type: Literal["function"] = "function"
    function: Annotated[
        ResolvableCallable,
        Field(description="`package.module.function`, or `.folder.module.function` under defs."),
    ]


Source = PathSource | SqlSource | FunctionSource
"""The possible sources of the rows of a table in YAML."""


def inputs_of_source(source: Source) -> Mapping[str, AssetIn] | None:
    """Return the upstream assets that a query names, as inputs; None for other sources."""
    if not isinstance(source, SqlSource):
        return None
    return {
        name: AssetIn(key=AssetKey.from_user_string(key)) for name, key in source.upstreams.items()
    }


def resources_of_source(source: Source) -> set[str]:
    """Return the resources that the source takes from the context."""
    # A function names the resources that it needs as its parameters.
    return set() if isinstance(source, FunctionSource) else {_SPARK}


def function_of_source(source: Source) -> Callable[..., Any]:
    """Build the asset's function, which returns the changes."""
    if isinstance(source, FunctionSource):
        return source.function
    if isinstance(source, SqlSource):
        return _query(source)
    return _files(source)


def _files(source: PathSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext) -> Any:
        reader = getattr(context.resources, _SPARK).session.read.format(source.format)
        reader = reader.options(**source.options)
        reader = reader.schema(source.columns) if source.columns else reader
        if "{partition}" not in source.path:
            return reader.load(source.path)
        keys, is_pattern = partition_keys(context), source.format.lower() != "delta"
        return reader.load([path_of_partition(source.path, each, is_pattern) for each in keys])

    return changes


def path_of_partition(path: str, key: str, is_pattern: bool = True) -> str:
    """Put a partition's key in place of `{partition}`, whatever characters the key holds.

    Args:
        path: The path.
        key: The partition's key.
        is_pattern: Whether the reader treats paths as patterns; Delta's reader does not.

    Raises:
        SourceError: The key leads to another directory.
    """
    if not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise SourceError(
            f"the key {key!r} leads to another directory.",
            table=path,
            operation="reading a source partition",
            hint="Give the partition a key that is a name.",
        )
    # As a pattern, the key `*` would read the files of all partitions.
    return path.replace("{partition}", literal_path(key) if is_pattern else key)


def _query(source: SqlSource) -> Callable[..., Any]:
    def changes(context: AssetExecutionContext, **upstreams: Any) -> Any:
        return getattr(context.resources, _SPARK).session.sql(source.sql, **upstreams)

    return changes
