"""Asset checks of a Delta table's rows: all checks of an asset take one pass over the table.

These checks of Dagster's own read the metadata that merges record, so they are not built again:

- `build_column_schema_change_checks`: compares the columns with those of the last materialization.
- `build_metadata_bounds_checks`: any number between fixed bounds, such as `dagster/row_count`.
- `FreshnessPolicy`, or `build_last_update_freshness_checks`: how long ago a run materialized the
  asset. Neither sees commits of other writers; `changed_within` here does.

Checks of what a merge did, which need no Spark, are in `merge_results`.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    MetadataValue,
    multi_asset_check,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    Finding,
    asset_table,
    check_op_name,
    check_results,
    check_specs,
    checked_asset,
    for_each_asset,
    invalid_checks,
)
from dagster_deltaweave.checks.table_findings import (
    CHECKED_COLUMNS,
    CHECKED_TABLE_ID,
    CHECKED_VERSION,
    NO_NULLS,
    UNIQUE_KEY,
    age_finding,
    nulls_in_columns,
    repeated_keys,
    schema_finding,
    version_that_passed,
)
from dagster_deltaweave.tables import AssetOrKey, NamedAsset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from deltaweave import Table

SCHEMA = "declared_schema"
FRESH = "changed_recently"


@for_each_asset
def build_table_checks(
    asset: AssetOrKey,
    *,
    unique_key: Sequence[str] = (),
    no_nulls: Sequence[str] = (),
    whole_table: bool = False,
    schema: "StructType | str | None" = None,
    more_columns: bool = False,
    changed_within: timedelta | None = None,
    sample: bool = True,
    blocking: bool | Iterable[str] = False,
    severity: AssetCheckSeverity = AssetCheckSeverity.ERROR,
    io_manager_key: str | None = None,
    **arguments: "Unpack[CheckArguments]",
) -> AssetChecksDefinition:
    """Build checks of the rows in an asset's table. The requested checks run together.

    - `unique_key`: no two rows have equal values in these columns. As for SQL's UNIQUE, a row with
      a null in one of them equals no other row. It always reads these columns of the whole table,
      because a new row can have the key of any existing row.
    - `no_nulls`: no row has a null in one of these columns. It reads only files added since the
      version at which it last passed for these columns, because only they can have new nulls. If it
      never passed, or the log no longer holds that version, it reads the whole table. Files whose
      statistics count no null in these columns are not read, if the log's checksum lists all files
      (tables of up to 50) or few were added.
    - `declared_schema`: the table has these columns, of these types. It reads no rows.
    - `changed_recently`: the last commit of any writer that changed rows is not older than
      `changed_within`. A merge that changes nothing commits nothing: if only Dagster writes, a
      `FreshnessPolicy` says more. The check fails if the log no longer holds that commit, which may
      be of any age. It reads no rows.

    They look at the newest version, which downstream assets of the run read, even if another run or
    writer committed it; `check/version` names it.

    One aggregation reads the rows in one pass, and in one job if they are below 16 MiB in up to 50
    files that the log's checksum lists. At most 10 offending keys are looked up, only if a check
    fails and `sample` asks for them.

    >>> customers_checks = build_table_checks(customers, unique_key=["id"], blocking=True)

    Args:
        asset: The asset whose table is checked, as its definition, spec or key; or a list of such,
            which gives a list of checks.
        unique_key: The columns of `unique_key`.
        no_nulls: The columns of `no_nulls`.
        whole_table: Whether `no_nulls` reads the whole table each time.
        schema: The columns of `declared_schema`, as a StructType or as DDL; their order and
            nullability do not matter.
        more_columns: Whether the table may have more columns than those.
        changed_within: How old the last change may be.
        sample: Whether `check/sample` shows up to 10 offending keys. Their values are then in
            Dagster's event log, for all who can open its UI: turn it off if keys are personal data
            or secrets.
        blocking: Whether a failure keeps downstream assets of the same run from running: for all
            these checks, or for those named.
        severity: The severity of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the table; by default
            that of the asset, or `io_manager` if only its key is given.
        arguments: `automation_condition`, `metadata`, `pool` and `retry_policy`, as in Dagster's
            own `asset_check`.
    """
    checked = NamedAsset.of(asset, io_manager_key)
    checked.declared_place("checking")  # refuses a view
    for columns, name in ((unique_key, "unique_key"), (no_nulls, "no_nulls")):
        if isinstance(columns, str):
            raise invalid_checks(checked.key, f"{name} is a list of columns: {name}=[{columns!r}].")
    descriptions = {
        UNIQUE_KEY: f"No two rows have equal {', '.join(unique_key)}." if unique_key else None,
        NO_NULLS: f"No row has a null in {', '.join(no_nulls)}." if no_nulls else None,
        SCHEMA: "The table has the declared columns and types." if schema is not None else None,
        FRESH: f"Rows changed within {changed_within}." if changed_within is not None else None,
    }
    specs = check_specs(checked.key, descriptions, blocking, arguments)
    asked = _Asked(unique_key, no_nulls, whole_table, schema, more_columns, changed_within, sample)

    @multi_asset_check(
        specs=specs,
        name=check_op_name(specs),
        can_subset=True,
        required_resource_keys={checked.io_manager_key},
        pool=arguments.get("pool"),
        retry_policy=arguments.get("retry_policy"),
    )
    def checks(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        table = asset_table(context, checked)
        found = asked.findings(context, checked_asset(context), table)
        yield from check_results(context, found, severity)

    return checks


@dataclass(frozen=True)
class _Asked:
    """The requested checks: arguments of `build_table_checks`."""

    unique_key: Sequence[str]
    no_nulls: Sequence[str]
    whole_table: bool
    schema: "StructType | str | None"
    more_columns: bool
    changed_within: timedelta | None
    sample: bool

    def findings(
        self, context: AssetCheckExecutionContext, key: AssetKey, table: "Table"
    ) -> dict[str, Finding]:
        """Check the newest version of the table; return the findings of this run's checks."""
        selected = {each.name for each in context.selected_asset_check_keys}
        if not table.exists():
            missing: Finding = (False, f"There is no table at {table.path_or_name} yet.", {})
            return dict.fromkeys(sorted(selected), missing)
        snapshot = table.snapshot()
        # A column that was dropped and added again has another physical name, and any file may hold
        # nulls in it.
        physical = {name.lower(): at for name, at in snapshot.physical_names.items()}
        columns = sorted(physical.get(name.lower(), "") for name in self.no_nulls)
        found: dict[str, Finding] = {}
        if UNIQUE_KEY in selected:
            # The pass that groups by key counts the nulls too, so both then read the whole table.
            nulls = self.no_nulls if NO_NULLS in selected else ()
            found |= repeated_keys(
                table, snapshot.version, self.unique_key, nulls, sample=self.sample
            )
        elif NO_NULLS in selected:
            since = None
            if not self.whole_table and all(columns):
                check = AssetCheckKey(key, NO_NULLS)
                since = version_that_passed(context.instance, check, table, columns)
            found[NO_NULLS] = nulls_in_columns(table, snapshot.version, self.no_nulls, since)
        if SCHEMA in selected:
            assert self.schema is not None
            found[SCHEMA] = schema_finding(snapshot, self.schema, self.more_columns)
        if FRESH in selected:
            assert self.changed_within is not None
            found[FRESH] = age_finding(table, self.changed_within)
        if NO_NULLS in found:
            found[NO_NULLS][2][CHECKED_COLUMNS] = MetadataValue.json(columns)
        at = {CHECKED_VERSION: snapshot.version, CHECKED_TABLE_ID: snapshot.id}
        return {
            name: (passed, text, {**more, **at}) for name, (passed, text, more) in found.items()
        }
