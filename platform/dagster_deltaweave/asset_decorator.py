"""`@merge_asset`: a Delta table as an asset, declared by its changes and how they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, get_args

from dagster import (
    AssetIn,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    DagsterInvalidDefinitionError,
    FreshnessPolicy,
    PartitionsDefinition,
    asset,
)

from dagster_deltaweave.changes import touched_upstreams
from dagster_deltaweave.declaration import (
    PARTITION_EXPR,
    UPSERT,
    IdempotentBy,
    MergeDeclaration,
    SchemaPolicy,
    equi_keys,
    in_metadata,
)
from dagster_deltaweave.table_paths import problem_of_key
from deltaweave.choices import choice_problem
from deltaweave.engine.clauses import Clause

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KINDS: Set[str] = frozenset({"spark", "deltalake", "python"})


def merge_asset(
    *,
    keys: Sequence[str] = (),
    on: str | None = None,
    clauses: Sequence[Clause] = (),
    merge_text: str | None = None,
    table: str | None = None,
    schema: StructType | str | None = None,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    schema_policy: SchemaPolicy = "strict",
    except_columns: Sequence[str] = (),
    partition_expr: str | Mapping[str, str] | None = None,
    idempotent_by: IdempotentBy | None = None,
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    ins: Mapping[str, AssetIn] | None = None,
    deps: Iterable[Any] | None = None,
    partitions_def: PartitionsDefinition[str] | None = None,
    backfill_policy: BackfillPolicy | None = None,
    automation_condition: AutomationCondition[AssetKey] | None = None,
    freshness_policy: FreshnessPolicy | None = None,
    metadata: Mapping[str, Any] | None = None,
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    kinds: Set[str] = KINDS,
    code_version: str | None = None,
    pool: str | None = None,
    io_manager_key: str | None = None,
    required_resource_keys: Set[str] = frozenset(),
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Declare an asset whose function returns changes, and how they are merged into its table.

    The function returns the changes as a DataFrame (of Spark, pandas or Polars, or Arrow's table or
    record batches), or `Changes` where it applies touched or changed rows of an upstream; None
    where there is nothing to merge. In SQL strings the table is `t` and the changes are `s`. The
    merge is given by `keys`, by `on`, or by `merge_text`.

    A run with the tag `deltaweave/full_refresh` rebuilds the table: it is then what the same
    output, merged into an empty table, makes of it. The run's partitions are all the asset has,
    or `partition_expr` says which rows of the table are theirs.

    Two merges of one table that run at once do no harm: Delta commits the one that is first and
    refuses the other where it read what the first changed; that run then tries again from the
    start. A pool (by default one for each table) only saves the wasted work.

    >>> @merge_asset(keys=["id"])
    ... def customers(spark: SparkResource) -> DataFrame:
    ...     return spark.session.read.parquet("landing/customers")

    Args:
        keys: Columns that identify a row: `ON t.k = s.k AND …`.
        on: The merge condition, where equal keys do not say it.
        clauses: What to do with which rows, first match wins: `deltaweave.clauses.when_…()`.
            Without any: update matched rows and insert the others.
        merge_text: A whole statement, `MERGE INTO {target} AS t USING {source} AS s ON …`.
        table: The table's path or catalog name; by default the IO manager's root and asset key.
        schema: Schema for creating the table; by default that of the changes.
        partition_by: Partition columns for creating the table.
        cluster_by: Columns by which a created table is clustered; not with partition columns.
        properties: Table properties for creating the table. Deletion vectors are on unless
            `delta.enableDeletionVectors` is `"false"` here.
        schema_policy: `strict`: columns of the changes that the table lacks are an error, by name,
            before anything is written. `add`: they are added to the table. `widen`: so are they,
            and the table's types become wider where those of the changes are. A `merge_text` says
            it itself, by WITH SCHEMA EVOLUTION.
        except_columns: Columns of the changes that only clauses use, never columns of the table.
        partition_expr: SQL expression over the table's columns that gives a row's partition (or
            one for each dimension of multi-partitions), where partitions are parts of the table:
            downstream assets then load only their partitions. Dagster's metadata of that name.
        idempotent_by: What a re-run must not apply again, where the clauses would count it twice:
            each `partition`, or each `delivery` of a partition (the run's tag
            `deltaweave/delivery`). The mark of what was applied is in the merge's own commit, so
            it holds for killed and simultaneous runs too. Such runs merge one partition at a time.
        retries: How often to try again after an error that may pass (a commit conflict); all
            other errors fail the run at once.
        name: The asset's name; by default the function's.
        key_prefix: Prefix of the asset key.
        ins: Inputs; `AssetIn(metadata={"deltaweave/read": "touched"})` asks for touched rows.
        deps: Upstream assets that are no inputs.
        partitions_def: Partitions of the changes, not of the table; a run merges its partition.
        backfill_policy: How many partitions a run of a backfill has; by default one.
        automation_condition: When Dagster materializes the asset by itself.
        freshness_policy: How fresh the asset must be.
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
        required_resource_keys: Resources that the function takes from its context.
    """

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        asset_name = name or function.__name__
        declaration = _declaration(asset_name)
        shown = {} if partition_expr is None else {PARTITION_EXPR: partition_expr}
        definition = asset(
            name=asset_name,
            key_prefix=key_prefix,
            ins=ins,
            deps=deps,
            partitions_def=partitions_def,
            backfill_policy=backfill_policy,
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            metadata={**(metadata or {}), **shown, **in_metadata(declaration)},
            description=description,
            group_name=group_name,
            owners=owners,
            tags=tags,
            kinds=set(kinds),
            code_version=code_version,
            pool=pool or default_pool(key_prefix, asset_name),
            io_manager_key=io_manager_key,
            required_resource_keys=set(required_resource_keys),
        )(function)
        if len(touched_upstreams(definition)) > 1:
            raise DagsterInvalidDefinitionError(
                f"merge asset {asset_name}: only one input may read touched or changed rows: "
                "a merge commits one applied version."
            )
        return definition

    def _declaration(asset_name: str) -> MergeDeclaration:
        problem = (
            _problem(keys, on, clauses, merge_text, schema_policy)
            or _table_problem(
                partition_by, cluster_by, idempotent_by, partitions_def, backfill_policy
            )
            or (None if table else problem_of_key(asset_key(key_prefix, asset_name)))
        )
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"merge asset {asset_name}: {problem}")
        return MergeDeclaration(
            on=equi_keys(tuple(keys)) if keys else on,
            clauses=() if merge_text else tuple(clauses) or UPSERT,
            merge_text=merge_text,
            table=table,
            schema=schema,
            partition_by=tuple(partition_by),
            cluster_by=tuple(cluster_by),
            properties=properties,
            schema_policy=schema_policy,
            except_columns=tuple(except_columns),
            partition_expr=partition_expr,
            idempotent_by=idempotent_by,
            retries=retries,
        )

    return decorate


def asset_key(key_prefix: str | Sequence[str] | None, name: str) -> AssetKey:
    """The key that Dagster gives an asset of this prefix and name."""
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    return AssetKey([*prefix, name])


def default_pool(key_prefix: str | Sequence[str] | None, name: str) -> str:
    """The pool of an asset that names none: its table's."""
    return "/".join(["merge", *asset_key(key_prefix, name).path])


def _problem(
    keys: Sequence[str],
    on: str | None,
    clauses: Sequence[Clause],
    merge_text: str | None,
    schema_policy: str,
) -> str | None:
    """What is wrong with a declared merge, in words for the one who wrote it."""
    if isinstance(keys, str):
        return f"keys is a list of columns: keys=[{keys!r}]."
    if sum(bool(given) for given in (keys, on, merge_text)) != 1:
        return "give exactly one of keys, on and merge_text."
    unknown = choice_problem("schema_policy", schema_policy, get_args(SchemaPolicy))
    if unknown is not None:
        return unknown
    if merge_text and (clauses or schema_policy != "strict"):
        return "merge_text holds the whole statement: give no clauses and no schema_policy."
    if merge_text and not ("{target}" in merge_text and "{source}" in merge_text):
        return "merge_text must name {target} and {source}."
    return None


def _table_problem(
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    idempotent_by: str | None,
    partitions_def: PartitionsDefinition[str] | None,
    backfill_policy: BackfillPolicy | None,
) -> str | None:
    """What is wrong with a declared table or with its partitions."""
    if partition_by and cluster_by:
        return "a table has partition_by or cluster_by, not both."
    if idempotent_by is None:
        return None
    unknown = choice_problem("idempotent_by", idempotent_by, get_args(IdempotentBy))
    if unknown is not None:
        return unknown
    if idempotent_by == "partition" and partitions_def is None:
        return "idempotent_by='partition' needs a partitions_def."
    if backfill_policy is not None and backfill_policy.max_partitions_per_run != 1:
        return "idempotent_by marks one partition in each commit: its runs have one partition."
    return None
