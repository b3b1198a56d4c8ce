"""Asset checks of a Delta table's rows: all checks of an asset take one pass over the table.

Dagster's own `build_column_schema_change_checks`, `build_metadata_bounds_checks` and
`FreshnessPolicy` read the metadata that merges record, so they are not built again;
`changed_within` also sees commits of other writers. `merge_results` has checks without Spark.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    MetadataValue,
    multi_asset_check,
)

from dagster_deltaweave.checks.check_definition import (
    CheckArguments,
    CheckFinding,
    asset_table,
    check_op_name,
    check_results,
    check_specs,
    checked_asset,
    for_each_asset,
    invalid_checks,
)
from dagster_deltaweave.dagster_private import AssetCheckExecutionRecordStatus
from dagster_deltaweave.io_manager import shows_errors_first
from dagster_deltaweave.logs import last_change
from dagster_deltaweave.tables import AssetOrKey, NamedAsset
from deltaweave._validation import counted, options_of
from deltaweave.errors import TableNotFoundError
from deltaweave.identifiers import RESERVED_PREFIX, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from deltaweave import Table
    from deltaweave.delta.log import FileList, TableSnapshot


UNIQUE_KEY = "unique_key"
NO_NULLS = "no_nulls"

CHECKED_COLUMNS = "check/columns"
CHECKED_TABLE_ID = "check/table_id"
CHECKED_VERSION = "check/version"
_ROWS_SHOWN_OF_CHECK = 10
_ROWS = f"{RESERVED_PREFIX}rows"
# A core reads so many bytes of Parquet in about a second, in which Spark would plan a shuffle and
# start its jobs.
SMALL_BYTES = 16 * 1024 * 1024
# On an object store, each file takes some 100 ms more.
_FEW_FILES = 50


def repeated_keys(
    table: "Table", version: int, key: Sequence[str], nulls: Sequence[str], *, sample: bool = True
) -> dict[str, CheckFinding]:
    """Find keys that repeat and columns that hold nulls, in one pass over the table."""
    from pyspark.sql import functions as F

    from deltaweave.delta.jvm import grouped

    snapshot = table.snapshot(version)
    rows = _rows_of(snapshot, snapshot.listed_files())
    null_counts = [F.count_if(column(name).isNull()).alias(_null_count(name)) for name in nulls]
    aggregates = [F.count("*").alias(_ROWS), *null_counts]
    keys = grouped(rows, [column(name) for name in key], aggregates)
    is_repeated = F.col(_ROWS) > 1
    for name in key:
        is_repeated = is_repeated & column(name).isNotNull()
    counts = keys.agg(
        F.sum(_ROWS).alias("rows"),
        F.count_if(is_repeated).alias("keys"),
        F.sum(F.when(is_repeated, F.col(_ROWS))).alias("repeated"),
        *(F.sum(column(_null_count(name))).alias(_null_count(name)) for name in nulls),
    ).first()
    assert counts is not None
    metadata: dict[str, Any] = {
        "check/rows": counts["rows"] or 0,
        "check/keys_repeated": counts["keys"],
        "check/rows_repeated": counts["repeated"] or 0,
    }
    if counts["keys"] and sample:
        rows_of_key = F.col(_ROWS).alias("number of rows")
        repeated = keys.where(is_repeated).select(*(column(k) for k in key), rows_of_key)
        metadata["check/sample"] = sample_table(repeated, [*key, "number of rows"])
    found = {
        UNIQUE_KEY: CheckFinding(
            not counts["keys"],
            f"{counted(counts['keys'], 'key is', 'keys are')} shared by several rows."
            if counts["keys"]
            else f"The keys of {counted(metadata['check/rows'], 'row')} are unique.",
            metadata,
        )
    }
    if nulls:
        found[NO_NULLS] = _null_finding(counts, nulls, "the table")
    return found


def nulls_in_columns(
    table: "Table", version: int, columns: Sequence[str], since: int | None
) -> CheckFinding:
    """Find columns that hold nulls: in files added since a version, or in the whole table.

    No job runs if the statistics say that they hold none.
    """
    from pyspark.sql import functions as F

    from deltaweave.delta.log import are_without_nulls

    snapshot = table.snapshot(version)
    files, where = _files_to_look_at(table, snapshot, since)
    if files is not None and are_without_nulls(snapshot, files, columns):
        rows_known = files.num_records
        if rows_known is not None:
            known = {"rows": rows_known, **{_null_count(name): 0 for name in columns}}
            return _null_finding(known, columns, where)
    counts = (
        _rows_of(snapshot, files)
        .agg(
            F.count("*").alias("rows"),
            *(F.count_if(column(name).isNull()).alias(_null_count(name)) for name in columns),
        )
        .first()
    )
    assert counts is not None
    return _null_finding(counts, columns, where)


class _LookedAt(NamedTuple):
    """The files that a check looks at, None if it reads all rows, and which they are in words."""

    files: "FileList | None"
    where: str


def _files_to_look_at(table: "Table", snapshot: "TableSnapshot", since: int | None) -> _LookedAt:
    """Return the files to look at: all, or those added since a version."""
    if since is not None:
        try:
            added = snapshot.files_not_in(table.snapshot(since))
        except TableNotFoundError:
            pass  # the log no longer holds that version
        else:
            return _LookedAt(added, f"{counted(len(added), 'file')} added since {since}")
    return _LookedAt(snapshot.listed_files(), "the table")


def _rows_of(snapshot: "TableSnapshot", files: "FileList | None") -> "DataFrame":
    """Read the rows of these files, or of the whole snapshot for None.

    A few small files are one partition, whose aggregates need no shuffle and one job.
    """
    if files is None:
        return snapshot.read()
    rows = snapshot.read_files(files)
    is_small = len(files) <= _FEW_FILES and files.size_in_bytes <= SMALL_BYTES
    return rows.coalesce(1) if is_small else rows


def _null_finding(
    counts: "Row | Mapping[str, int]", columns: Sequence[str], where: str
) -> CheckFinding:
    nulls = {name: counts[_null_count(name)] or 0 for name in columns}
    named = ", ".join(f"{count:,} in {name}" for name, count in nulls.items() if count)
    return CheckFinding(
        not named,
        f"There are nulls in {where}: {named}." if named else f"There is no null in {where}.",
        {
            "check/rows": counts["rows"] or 0,
            "check/nulls": sum(nulls.values()),
        },
    )


def _null_count(column: str) -> str:
    return f"{RESERVED_PREFIX}nulls_{column}"


def version_that_passed(
    instance: DagsterInstance, key: AssetCheckKey, table: "Table", columns: Sequence[str]
) -> int | None:
    """Return the table version at which the check last passed for these physical columns."""
    passed = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1, status={AssetCheckExecutionRecordStatus.SUCCEEDED}
    )
    for record in passed:
        event = record.event.dagster_event if record.event else None
        if event is None:
            continue
        metadata = event.asset_check_evaluation_data.metadata
        values = {name: entry.value for name, entry in metadata.items()}
        version = values.get(CHECKED_VERSION)
        same = values.get(CHECKED_TABLE_ID) == table.id() and values.get(CHECKED_COLUMNS) == columns
        return version if same and isinstance(version, int) else None
    return None


def schema_finding(
    snapshot: "TableSnapshot", schema: "StructType | str", more_columns: bool
) -> CheckFinding:
    """Compare the version's columns and types with the expected ones."""
    from pyspark.sql.types import StructType

    from dagster_deltaweave.landing import schema_as_struct, schema_differences

    expected, found = schema_as_struct(schema), snapshot.read().schema
    if more_columns:
        found = StructType([field for field in found if field.name in expected.names])
    wrong = "; ".join(schema_differences(expected, found))
    return CheckFinding(not wrong, wrong or "The table has the declared columns.", {})


def age_finding(table: "Table", within: timedelta) -> CheckFinding:
    """Check that the last commit that changed rows is recent enough."""
    change = last_change(table)
    age = datetime.now(timezone.utc) - change.committed_at
    if not change.is_in_log:
        # The change may be much older than the log, so the check fails.
        text = f"No version changed rows since {change.version}, the oldest in the log, {age} ago."
        return CheckFinding(
            False, text, {"check/log_begins": MetadataValue.timestamp(change.committed_at)}
        )
    return CheckFinding(
        age <= within,
        f"Version {change.version} changed rows last, {age} ago.",
        {
            "check/last_change": MetadataValue.timestamp(change.committed_at),
            "check/seconds_since_change": age.total_seconds(),
        },
    )


def sample_table(rows: "DataFrame", columns: Sequence[str]) -> MetadataValue:
    """Lay out at most 10 rows as a table for the UI, with values as Spark shows them."""
    shown = rows.select(*(column(name).cast("string").alias(name) for name in columns))
    found = shown.limit(_ROWS_SHOWN_OF_CHECK).collect()
    header = "| " + " | ".join(columns) + " |"
    rule = "| " + " | ".join("---" for _ in columns) + " |"
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in found]
    return MetadataValue.md("\n".join([header, rule, *lines]))


def _cell(value: str | None) -> str:
    return "null" if value is None else value.replace("|", "\\|")


DECLARED_SCHEMA = "declared_schema"
FRESH = "changed_recently"


@for_each_asset
def build_table_checks(  # noqa: PLR0913 - the public options
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
    checked.declared_location("checking")  # refuses a view
    for columns, name in ((unique_key, "unique_key"), (no_nulls, "no_nulls")):
        if isinstance(columns, str):
            raise invalid_checks(checked.key, f"{name} is a list of columns: {name}=[{columns!r}].")
    descriptions = {
        UNIQUE_KEY: f"No two rows have equal {', '.join(unique_key)}." if unique_key else None,
        NO_NULLS: f"No row has a null in {', '.join(no_nulls)}." if no_nulls else None,
        DECLARED_SCHEMA: "The table has the declared columns and types."
        if schema is not None
        else None,
        FRESH: f"Rows changed within {changed_within}." if changed_within is not None else None,
    }
    specs = check_specs(checked.key, descriptions, blocking, arguments)
    asked = options_of(_Asked, locals())

    @multi_asset_check(
        specs=specs,
        name=check_op_name(specs),
        can_subset=True,
        required_resource_keys={checked.io_manager_key},
        resource_defs=checked.resource_defs,
        pool=arguments.get("pool"),
        retry_policy=arguments.get("retry_policy"),
    )
    def checks(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        yield from check_results(context, findings(context), severity)

    @shows_errors_first
    def findings(context: AssetCheckExecutionContext) -> dict[str, CheckFinding]:
        return asked.findings(context, checked_asset(context), asset_table(context, checked))

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
    ) -> dict[str, CheckFinding]:
        """Check the newest version of the table; return the findings of this run's checks."""
        selected = {each.name for each in context.selected_asset_check_keys}
        if not table.exists():
            missing: CheckFinding = CheckFinding(
                False, f"There is no table at {table.path_or_name} yet.", {}
            )
            return dict.fromkeys(sorted(selected), missing)
        snapshot = table.snapshot()
        # A column that was dropped and added again has another physical name, and any file may hold
        # nulls in it.
        physical = {name.lower(): at for name, at in snapshot.physical_names.items()}
        columns = sorted(physical.get(name.lower(), "") for name in self.no_nulls)
        found: dict[str, CheckFinding] = {}
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
        if DECLARED_SCHEMA in selected:
            assert self.schema is not None
            found[DECLARED_SCHEMA] = schema_finding(snapshot, self.schema, self.more_columns)
        if FRESH in selected:
            assert self.changed_within is not None
            found[FRESH] = age_finding(table, self.changed_within)
        if NO_NULLS in found:
            found[NO_NULLS].metadata[CHECKED_COLUMNS] = MetadataValue.json(columns)
        at = {CHECKED_VERSION: snapshot.version, CHECKED_TABLE_ID: snapshot.id}
        return {name: finding.with_more(at) for name, finding in found.items()}
