"""`@merge_asset`: a Delta table as an asset, declared by its changes and how they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    DagsterInvalidDefinitionError,
    PartitionsDefinition,
    asset,
)

from dagster_deltaweave.changes import touched_upstreams
from dagster_deltaweave.declaration import MergeDeclaration, equi_keys, in_metadata
from deltaweave.engine import clauses as when
from deltaweave.engine.clauses import Clause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

UPSERT: tuple[Clause, ...] = (when.when_matched_update_all(), when.when_not_matched_insert_all())
"""The clauses of an asset that declares none: update matched rows, insert the others."""

KINDS: Set[str] = frozenset({"spark", "deltalake", "python"})


def merge_asset(
    *,
    keys: Sequence[str] = (),
    on: str | None = None,
    clauses: Sequence[Clause] = (),
    merge_text: str | None = None,
    with_schema_evolution: bool = False,
    table: str | None = None,
    schema: StructType | str | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    except_columns: Sequence[str] = (),
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    ins: Mapping[str, AssetIn] | None = None,
    deps: Iterable[Any] | None = None,
    partitions_def: PartitionsDefinition[str] | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    metadata: Mapping[str, Any] | None = None,
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: Set[str] = KINDS,
    code_version: str | None = None,
    pool: str | None = None,
    io_manager_key: str | None = None,
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Declare an asset whose function returns changes, and how they are merged into its table.

    The function returns the changes as a Spark DataFrame, or `Changes` where it applies touched
    rows of an upstream; None where there is nothing to merge. In SQL strings the table is `t` and
    the changes are `s`. The merge is given by `keys`, by `on`, or by `merge_text`.

    >>> @merge_asset(keys=["id"])
    ... def customers(spark: SparkResource) -> DataFrame:
    ...     return spark.session.read.parquet("landing/customers")

    Args:
        keys: Columns that identify a row: `ON t.k = s.k AND …`.
        on: The merge condition, where equal keys do not say it.
        clauses: What to do with which rows, first match wins: `deltaweave.clauses.when_…()`.
            Without any: update matched rows and insert the others.
        merge_text: A whole statement, `MERGE INTO {target} AS t USING {source} AS s ON …`.
        with_schema_evolution: Whether new columns of the changes are added to the table.
        table: The table's path or catalog name; by default the IO manager's root and asset key.
        schema: Schema for creating the table; by default that of the changes.
        partition_by: Partition columns for creating the table.
        properties: Table properties for creating the table.
        except_columns: Columns of the changes that only clauses use, left out of a created table.
        retries: How often to try again after an error that may pass (a commit conflict); all
            other errors fail the run at once.
        name: The asset's name; by default the function's.
        key_prefix: Prefix of the asset key.
        ins: Inputs; `AssetIn(metadata={"deltaweave/read": "touched"})` asks for touched rows.
        deps: Upstream assets that are no inputs.
        partitions_def: Partitions of the changes, not of the table; a run merges its partition.
        automation_condition: When Dagster materializes the asset by itself.
        metadata: Further metadata of the definition.
        description: What the asset is; by default the function's docstring.
        group_name: The asset group.
        owners: Owners, e-mail addresses or `team:…`.
        tags: Tags of the asset.
        kinds: Kinds the UI shows.
        code_version: Version of the function's code.
        pool: The concurrency pool; by default one for each table, so that Dagster, given a limit
            for it, runs one merge of a table at a time.
        io_manager_key: Resource key of the IO manager; by default `io_manager`.
    """

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        asset_name = name or function.__name__
        declaration = _declaration(asset_name)
        definition = asset(
            name=asset_name,
            key_prefix=key_prefix,
            ins=ins,
            deps=deps,
            partitions_def=partitions_def,
            automation_condition=automation_condition,
            metadata={**(metadata or {}), **in_metadata(declaration)},
            description=description,
            group_name=group_name,
            owners=owners,
            tags=tags,
            kinds=set(kinds),
            code_version=code_version,
            pool=pool or default_pool(key_prefix, asset_name),
            io_manager_key=io_manager_key,
        )(function)
        if len(touched_upstreams(definition)) > 1:
            raise DagsterInvalidDefinitionError(
                f"merge asset {asset_name}: only one input may read touched rows, because a merge "
                "commits one applied version."
            )
        return definition

    def _declaration(asset_name: str) -> MergeDeclaration:
        problem = _problem(keys, on, clauses, merge_text, with_schema_evolution, except_columns)
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"merge asset {asset_name}: {problem}")
        return MergeDeclaration(
            on=equi_keys(tuple(keys)) if keys else on,
            clauses=() if merge_text else tuple(clauses) or UPSERT,
            merge_text=merge_text,
            table=table,
            schema=schema,
            partition_by=tuple(partition_by),
            properties=properties,
            except_columns=tuple(except_columns),
            with_schema_evolution=with_schema_evolution,
            retries=retries,
        )

    return decorate


def default_pool(key_prefix: str | Sequence[str] | None, name: str) -> str:
    """The pool of an asset that names none: its table's."""
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    return "/".join(["merge", *prefix, name])


def _problem(
    keys: Sequence[str],
    on: str | None,
    clauses: Sequence[Clause],
    merge_text: str | None,
    with_schema_evolution: bool,
    except_columns: Sequence[str],
) -> str | None:
    """What is wrong with a declaration, in words for the one who wrote it."""
    if isinstance(keys, str):
        return f"keys is a list of columns: keys=[{keys!r}]."
    if sum(bool(given) for given in (keys, on, merge_text)) != 1:
        return "give exactly one of keys, on and merge_text."
    if merge_text and (clauses or with_schema_evolution):
        return "merge_text holds the whole statement: give no clauses or with_schema_evolution."
    if merge_text and not ("{target}" in merge_text and "{source}" in merge_text):
        return "merge_text must name {target} and {source}."
    if with_schema_evolution and except_columns:
        return "with_schema_evolution would add the except_columns to the table."
    return None
