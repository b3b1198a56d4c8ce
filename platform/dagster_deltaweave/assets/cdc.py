"""`@cdc_asset`: a Delta table as an asset, kept current by change events in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from dagster import AssetsDefinition, DagsterInvalidDefinitionError

from dagster_deltaweave.assets.table_asset import (
    ASSET_KINDS,
    DagsterArguments,
    asset_key,
    table_asset,
)
from dagster_deltaweave.tables import ChangesDeclaration, CurrentTableOptions, problem_of_table_key
from deltaweave._validation import choice_problem, keys_problem, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


def cdc_asset(  # noqa: PLR0913 - the public options
    *,
    keys: Sequence[str],
    sequence_by: str,
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: bool = False,
    present_columns: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    message_column: str | None = None,
    rescued: str | bool = False,
    stored_as_scd_type: Literal[1, 2] = 1,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    late_by: timedelta = timedelta(days=7),
    table: str | None = None,
    retries: int = 3,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    kinds: Set[str] = ASSET_KINDS,
    pool: str | None = None,
    **arguments: Unpack[DagsterArguments],
) -> Callable[[Callable[..., Any]], AssetsDefinition]:
    """Declare an asset whose function returns change events, which `apply_changes` applies.

    A run may apply events again, late, or from several partitions in any order: the table is always
    the same. So no event has to be marked as applied, and a failed run can be repeated unchanged.

    >>> @cdc_asset(keys=["id"], sequence_by="lsn", apply_as_deletes="op = 'd'",
    ...            except_column_list=["op", "lsn"])
    ... def customers(spark: SparkResource) -> DataFrame:
    ...     return spark.session.read.parquet("landing/customers")

    Args:
        keys: Columns that identify a row. `deltaweave.apply_changes` describes this argument and
            the next ones, up to `late_by`.
        sequence_by: SQL expression that orders the events of a key.
        apply_as_deletes: SQL condition of events that delete their key's row.
        apply_as_truncates: SQL condition of events that delete all older rows.
        ignore_null_updates: Whether nulls leave columns as they are.
        present_columns: Column with the names of the columns that an event sets.
        column_list: Columns of the events that are columns of the table.
        except_column_list: Columns of the events that are not.
        message_column: Column with the message of each event; not a column of the table.
        rescued: Whether events that cannot be applied are put into a table of their own: its path
            or name, or True for the table's with `_rescued` appended. By default they are errors.
        stored_as_scd_type: 1 for current rows, 2 for histories.
        track_history_column_list: Columns whose change begins a version.
        track_history_except_column_list: Columns whose change begins none.
        late_by: How long deletes are remembered.
        table: The table's path or catalog name; by default the IO manager's root and asset key.
        retries: How often a run tries again after a transient error.
        name: The asset's name; by default the function's.
        key_prefix: Prefix of the asset key.
        metadata: Further metadata of the definition.
        kinds: Kinds the UI shows.
        pool: The concurrency pool; by default one for each table.
        arguments: All other arguments of `dagster.asset`, with the same meaning.
    """
    options_given = locals()

    def decorate(function: Callable[..., Any]) -> AssetsDefinition:
        asset_name = name or function.__name__
        problem = keys_problem(keys) or choice_problem(
            "stored_as_scd_type", str(stored_as_scd_type), ("1", "2")
        )
        if problem is None and not table:
            problem = problem_of_table_key(asset_key(key_prefix, asset_name))
        if problem is not None:
            raise DagsterInvalidDefinitionError(f"cdc asset {asset_name}: {problem}")
        options = options_of(CurrentTableOptions, {**options_given, "keys": tuple(keys)})
        declaration = ChangesDeclaration(table=table, retries=retries, options=options)
        return table_asset(
            function,
            declaration,
            {
                **arguments,
                "name": asset_name,
                "key_prefix": key_prefix,
                "metadata": metadata,
                "kinds": kinds,
                "pool": pool,
            },
        )

    return decorate
