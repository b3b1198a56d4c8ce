"""`@merge_asset`: a Delta table as an asset, declared by its changes and how they are merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, get_args

from dagster import AssetsDefinition, DagsterInvalidDefinitionError

from dagster_deltaweave.assets.table_asset import (
    ASSET_KINDS,
    DagsterArguments,
    asset_key,
    table_asset,
)
from dagster_deltaweave.tables import (
    PARTITION_EXPR,
    UPSERT_CLAUSES,
    IdempotentBy,
    MergeDeclaration,
    Namespace,
    Order,
    SchemaPolicy,
    equal_keys_condition,
    problem_of_table_key,
    touched_upstreams,
)
from deltaweave._validation import choice_problem, options_of
from deltaweave.clauses import Clause
from deltaweave.identifiers import unquoted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack


def merge_asset(  # noqa: PLR0913 - the public options
    *,
    keys: Sequence[str] = (),
    unique_keys: bool = True,
    on: str | None = None,
    clauses: Sequence[Clause] = (),
    merge_text: str | None = None,
    table: str | None = None,
    schema: StructType | str | None = None,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    schema_policy: SchemaPolicy = "strict",
    except_column_list: Sequence[str] = (),
    partition_expr: str | Mapping[str, str] | None = None,
    idempotent_by: IdempotentBy | None = None,
    sequence_by: str | None = None,
    order: Order = "partition",
    skip_unchanged_updates: bool = False,
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    kinds: Set[str] = ASSET_KINDS,
    pool: str | None = None,
    **arguments: Unpack[DagsterArguments],
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Declare an asset whose function returns changes, and how they are merged into its table.

    The function returns the changes as a DataFrame (of Spark, pandas or Polars, or Arrow's table or
    record batches), or `Changes` if it applies touched or changed rows of an upstream; None if
    there is nothing to merge. In a run of several partitions it may return `{partition key: rows}`.
    In SQL strings the table is `t` and the changes are `s`. The merge is given by `keys`, by `on`,
    or by `merge_text`.

    A run with the tag `deltaweave/full_refresh` rebuilds the table: the result is what the same
    output gives when it is merged into an empty table. The run must cover all partitions of the
    asset, or `partition_expr` must say which rows of the table belong to its partitions. A run of
    some partitions is refused if a newer one is merged that is not in the run, or if another
    partition's row has one of its `keys`.

    Partitions are merged in their order, so that an older one never replaces what a newer one
    wrote. A run waits for the runs of older partitions. If a newer partition was merged already,
    the run fails before it writes, with an `OutOfOrderError`. Of two concurrent merges into one
    table, the first one commits, and the other runs again if it read what the first one changed. A
    pool (by default one for each table) only avoids that wasted work.

    >>> @merge_asset(keys=["id"])
    ... def customers(spark: SparkResource) -> DataFrame:
    ...     return spark.session.read.parquet("landing/customers")

    Args:
        keys: Columns that identify a row: `ON t.k = s.k AND …`. A null is equal to nothing: each
            row with one is inserted, in every run. The changes have one row for each key: several
            rows of one run's partitions are reduced to the newest, by `sequence_by` or by the order
            of the partitions, which `partition_expr` names, or the function by returning
            `{partition key: rows}`. Where nothing decides, several rows for a key are an
            `AmbiguousMatchError` before anything is written.
        unique_keys: Whether that holds for keys that the table lacks, too. With False, all rows of
            a key that is new are inserted, as MERGE does, and nothing is reduced.
        on: The merge condition, if it is more than equal keys.
        clauses: The clauses; the first match wins: `deltaweave.clauses.when_…()`. Without
            clauses, the merge updates matched rows and inserts the others.
        merge_text: A whole statement, `MERGE INTO {target} AS t USING {source} AS s ON …`.
        table: The table's path or catalog name; by default the IO manager's root and asset key.
        schema: Schema for creating the table; by default that of the changes.
        partition_by: Partition columns for creating the table.
        cluster_by: Columns by which a created table is clustered; not with partition columns.
        properties: Table properties for creating the table. Deletion vectors are on unless
            `delta.enableDeletionVectors` is `"false"` here.
        schema_policy: `strict`: if the table lacks columns of the changes, an error names them
            before anything is written. `add`: these columns are added to the table. `widen`: also,
            types of the table become wider if those of the changes are. A `merge_text` says this
            itself, by WITH SCHEMA EVOLUTION.
        except_column_list: Columns of the changes that only clauses use and that are not columns of
            the table.
        partition_expr: SQL expression over the table's columns that gives a row's partition (or
            one for each dimension of multi-partitions), if partitions are parts of the table.
            Downstream assets then load only their partitions. It is Dagster's metadata of that
            name.
        idempotent_by: What a re-run must not apply again, if the clauses would count it twice: each
            `partition`, or each `delivery` of a partition (the run's tag `deltaweave/delivery`).
            The merge's own commit records what was applied, so it holds for killed and
            concurrent runs too. Such runs merge one partition at a time.
        sequence_by: Column of the changes and of the table that says which of two rows is newer, a
            number or a time, of the same type in both. A row is updated or deleted only by changes
            that are not older; a row without a sequence is older than all rows with one. If the
            merge always updates and inserts whole rows (as without `clauses`), partitions are then
            merged in any order. A merge with conditions, deletes, or updates of some columns keeps
            their order: a row that was skipped or deleted leaves no sequence that would rule out an
            older one (`@cdc_asset` remembers deletes).
        order: `partition`: partitions are merged in their order: time windows by their beginnings,
            fixed ones as defined, dynamic ones by their keys as strings, those of several
            dimensions by time. `any`: in any order, for merges in which it does not matter. Merges
            that only insert have no order.
        skip_unchanged_updates: Whether to skip updates that give a row the values that it has: see
            `deltaweave.merge`.
        retries: How often to try again after a transient error (a commit conflict); all other
            errors fail the run at once.
        name: The asset's name; by default the function's.
        key_prefix: Prefix of the asset key.
        metadata: Further metadata of the definition.
        kinds: Kinds the UI shows.
        pool: The concurrency pool; by default one for each table. If Dagster limits it to 1, one
            merge of a table runs at a time.
        arguments: All other arguments of `dagster.asset`, with the same meaning. `ins` may ask for
            touched rows with `AssetIn(metadata={"deltaweave/read": "touched"})`. `partitions_def`
            defines the partitions of the changes, and a run merges its own partitions.
    """
    given = locals()

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        asset_name = name or function.__name__
        problem = _problem_of_statement(keys, on, clauses, merge_text, schema_policy)
        if problem is None:
            declaration = _declaration(given)
            problem = (
                _order_problem(declaration)
                or _column_problem(declaration)
                or _table_problem(declaration, arguments)
                or (None if table else problem_of_table_key(asset_key(key_prefix, asset_name)))
            )
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"merge asset {asset_name}: {problem}")
        shown = {} if partition_expr is None else {PARTITION_EXPR: partition_expr}
        definition = table_asset(
            function,
            declaration,
            {
                **arguments,
                "name": asset_name,
                "key_prefix": key_prefix,
                "metadata": {**(metadata or {}), **shown},
                "kinds": kinds,
                "pool": pool,
            },
        )
        if len(touched_upstreams(definition)) > 1:
            raise DagsterInvalidDefinitionError(
                f"merge asset {asset_name}: only one input may read touched or changed rows: "
                "a merge commits one applied version."
            )
        return definition

    return decorate


def _declaration(given: Mapping[str, Any]) -> MergeDeclaration:
    """Build the declaration from the arguments of `merge_asset`."""
    lists = ("keys", "partition_by", "cluster_by", "except_column_list")
    return options_of(
        MergeDeclaration,
        {
            **given,
            **{each: tuple(given[each]) for each in lists},
            "namespace": Namespace(),
            "on": equal_keys_condition(tuple(given["keys"])) if given["keys"] else given["on"],
            "clauses": () if given["merge_text"] else tuple(given["clauses"]) or UPSERT_CLAUSES,
        },
    )


def _problem_of_statement(
    keys: Sequence[str],
    on: str | None,
    clauses: Sequence[Clause],
    merge_text: str | None,
    schema_policy: str,
) -> str | None:
    """Return why a declared merge is invalid, for its author; None if it is valid."""
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


def _order_problem(declaration: MergeDeclaration) -> str | None:
    """Return why the declared order of merges is invalid; None if it is valid."""
    unknown = choice_problem("order", declaration.order, get_args(Order))
    if unknown is not None or declaration.sequence is None:
        return unknown
    if declaration.merge_text:
        return "merge_text holds the whole statement: compare the sequences there."
    name, given = declaration.sequence.lower(), declaration.sequence_by
    if name in {each.lower() for each in declaration.except_column_list}:
        return f"sequence_by={given!r} is a column of the table, too: do not except it."
    for clause in declaration.clauses:
        written = {unquoted(each).lower() for each in clause.assignments or ()}
        if clause.assignments is not None and name not in written:
            return f"each clause that names columns must set {given} to that of the changes."
    return None


def _column_problem(declaration: MergeDeclaration) -> str | None:
    """Return why the columns that arguments name are invalid; None if no problem is known.

    DDL is parsed where Spark runs, and a run then checks it.
    """
    named = {
        **declaration.named_columns,
        "partition_by": declaration.partition_by,
        "cluster_by": declaration.cluster_by,
    }
    excepted = {each.lower() for each in declaration.except_column_list}
    schema = declaration.schema
    columns = None if schema is None or isinstance(schema, str) else schema.names
    known = {each.lower() for each in columns or ()}
    for argument, names in named.items():
        for name in names:
            if name.lower() in excepted:
                return f"{argument} names {name}, which except_column_list leaves out of the table."
            is_plain = not {".", "`"} & set(name)  # a table may be clustered by a field
            if columns is not None and is_plain and name.lower() not in known:
                return f"{argument} names {name}; the columns of schema are {', '.join(columns)}."
    return None


def _table_problem(declaration: MergeDeclaration, arguments: DagsterArguments) -> str | None:
    """Return why the declared table or its partitions are invalid; None if they are valid."""
    idempotent_by = declaration.idempotent_by
    if declaration.partition_by and declaration.cluster_by:
        return "a table has partition_by or cluster_by, not both."
    if idempotent_by is None:
        return None
    unknown = choice_problem("idempotent_by", idempotent_by, get_args(IdempotentBy))
    if unknown is not None:
        return unknown
    if idempotent_by == "partition" and arguments.get("partitions_def") is None:
        return "idempotent_by='partition' needs a partitions_def."
    backfill_policy = arguments.get("backfill_policy")
    if backfill_policy is not None and backfill_policy.max_partitions_per_run != 1:
        return "idempotent_by records one partition in each commit: its runs have one partition."
    return None
