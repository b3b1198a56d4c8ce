"""Asset checks of a Delta table's rows: all that one asset asks for in one pass over the table.

What Dagster has is not built again; it reads the metadata that merges record:

- `build_column_schema_change_checks`: the columns against those of the materialization before.
- `build_metadata_bounds_checks`: any number between fixed bounds, as `dagster/row_count`.
- `FreshnessPolicy`, or `build_last_update_freshness_checks`: how long ago a run materialized the
  asset. Neither sees commits of other writers; `changed_within` here does.

Checks of what a merge did, which need no Spark, are in `merge_checks`.
"""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    MetadataValue,
    multi_asset_check,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dagster_deltaweave.declaration import table_declaration
from dagster_deltaweave.history import last_change
from deltaweave.errors import TableNotFoundError
from deltaweave.identifiers import RESERVED_PREFIX, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

    from dagster_deltaweave.io_manager import SparkDeltaIOManager
    from deltaweave import Table

UNIQUE_KEY = "unique_key"
NO_NULLS = "no_nulls"
SCHEMA = "declared_schema"
FRESH = "changed_recently"

Finding: TypeAlias = tuple[bool, str, dict[str, Any]]
"""Whether a check passed, what it found in words, and in metadata."""

_COLUMNS = "check/columns"
_TABLE_ID = "check/table_id"
_VERSION = "check/version"
_SAMPLE = 10
_ROWS = f"{RESERVED_PREFIX}rows"


def build_table_checks(
    asset: AssetsDefinition,
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
    io_manager_key: str = "io_manager",
) -> AssetChecksDefinition:
    """Checks of the rows in an asset's table, run together: those that are asked for.

    - `unique_key`: no two rows have equal values in these columns. As for SQL's UNIQUE, rows with
      a null in one of them are equal to none. It reads these columns of the whole table, always:
      a row written now can have the key of any row that was there.
    - `no_nulls`: no row has a null in one of these columns. It reads only files added since the
      version at which it last passed for these columns: nulls can be nowhere else. Where it never
      passed, or the log no longer holds that version, it reads the table.
    - `declared_schema`: the table has these columns, of these types. Reads no rows.
    - `changed_recently`: the last commit that changed rows, by whichever writer, is not older than
      `changed_within`. A merge that changes nothing commits nothing: where only Dagster writes, a
      `FreshnessPolicy` says more. It fails where the log no longer holds that commit, which may be
      of any age. Reads no rows.

    They look at the newest version, which is what downstream assets of the run read, even where
    another run or writer committed it; `check/version` says which it was.

    The rows are read in one pass, by one aggregation; offending keys, 10 at most, are looked up
    only where a check fails and `sample` asks for them.

    >>> customers_checks = build_table_checks(customers, unique_key=["id"], blocking=True)

    Args:
        asset: The asset whose table is checked.
        unique_key: The columns of `unique_key`.
        no_nulls: The columns of `no_nulls`.
        whole_table: Whether `no_nulls` reads the whole table each time.
        schema: The columns of `declared_schema`, as a StructType or as DDL; their order and
            nullability do not matter.
        more_columns: Whether the table may have more columns than those.
        changed_within: How old the last change may be.
        sample: Whether `check/sample` shows up to 10 offending keys. Their values are then in
            Dagster's event log, for all who can open its UI: turn it off where keys are personal
            data or secrets.
        blocking: Whether a failure keeps downstream assets of the same run from running: of all
            these checks, or of those named.
        severity: Of a failure; a WARN blocks nothing.
        io_manager_key: Resource key of the `SparkDeltaIOManager` that holds the table.
    """
    for columns, name in ((unique_key, "unique_key"), (no_nulls, "no_nulls")):
        if isinstance(columns, str):
            raise _invalid(asset.key, f"{name} is a list of columns: {name}=[{columns!r}].")
    descriptions = {
        UNIQUE_KEY: f"No two rows have equal {', '.join(unique_key)}." if unique_key else None,
        NO_NULLS: f"No row has a null in {', '.join(no_nulls)}." if no_nulls else None,
        SCHEMA: "The table has the declared columns and types." if schema is not None else None,
        FRESH: f"Rows changed within {changed_within}." if changed_within is not None else None,
    }
    specs = check_specs(asset, descriptions, blocking)

    @multi_asset_check(
        specs=specs,
        name=check_op_name(specs),
        can_subset=True,
        required_resource_keys={io_manager_key},
    )
    def checks(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        table = asset_table(context, asset, io_manager_key)
        if not table.exists():
            missing: Finding = (False, f"There is no table at {table.path_or_name} yet.", {})
            yield from check_results(asset, dict.fromkeys(sorted(selected), missing), severity)
            return
        snapshot = table.snapshot()
        version = snapshot.version
        # A column that was dropped and added again has another physical name, and nulls anywhere.
        columns = sorted(snapshot.physical_names.get(name, name) for name in no_nulls)
        found: dict[str, Finding] = {}
        if UNIQUE_KEY in selected:
            # The pass that groups by key counts the nulls too, so then both read the whole table.
            nulls = no_nulls if NO_NULLS in selected else ()
            found |= _unique_key(table, version, unique_key, nulls, sample=sample)
        elif NO_NULLS in selected:
            key = AssetCheckKey(asset.key, NO_NULLS)
            since = None if whole_table else _passed_at(context.instance, key, table, columns)
            found[NO_NULLS] = _no_nulls(table, version, no_nulls, since)
        if SCHEMA in selected:
            assert schema is not None
            found[SCHEMA] = _schema(table, schema, more_columns)
        if FRESH in selected:
            assert changed_within is not None
            found[FRESH] = _fresh(table, changed_within)
        if NO_NULLS in found:
            found[NO_NULLS][2][_COLUMNS] = MetadataValue.json(columns)
        at: dict[str, Any] = {_VERSION: version, _TABLE_ID: snapshot.id}
        told = {
            name: (passed, text, {**more, **at}) for name, (passed, text, more) in found.items()
        }
        yield from check_results(asset, told, severity)

    return checks


def check_results(
    asset: AssetsDefinition, found: Mapping[str, Finding], severity: AssetCheckSeverity
) -> Iterator[AssetCheckResult]:
    """What the checks found, by their names, as Dagster takes it."""
    for name, (passed, description, metadata) in found.items():
        yield AssetCheckResult(
            asset_key=asset.key,
            check_name=name,
            passed=passed,
            severity=severity,
            description=description,
            metadata=metadata,
        )


def check_specs(
    asset: AssetsDefinition, descriptions: dict[str, str | None], blocking: bool | Iterable[str]
) -> list[AssetCheckSpec]:
    """Specs of the checks that have a description.

    Raises:
        DagsterInvalidDefinitionError: There is none, or `blocking` names another.
    """
    names = [name for name, description in descriptions.items() if description]
    if not names:
        raise _invalid(asset.key, f"no check is asked for; there are {', '.join(descriptions)}.")
    if isinstance(blocking, str):
        blocking = [blocking]
    blocked = set(names if blocking is True else blocking or ())
    if blocked - set(names):
        raise _invalid(
            asset.key, f"blocking names {min(blocked - set(names))!r}, which is not asked for."
        )
    return [
        AssetCheckSpec(
            name, asset=asset.key, description=descriptions[name], blocking=name in blocked
        )
        for name in names
    ]


def check_op_name(specs: Sequence[AssetCheckSpec]) -> str:
    """A name for the op that runs these checks: no other op can run them too."""
    words = [*specs[0].asset_key.path, *(spec.name for spec in specs)]
    return "__".join(re.sub(r"\W", "_", word) for word in words)


def asset_table(
    context: AssetCheckExecutionContext, asset: AssetsDefinition, io_manager_key: str
) -> "Table":
    """The table of an asset, as the IO manager of the run knows it."""
    tables: SparkDeltaIOManager = getattr(context.op_execution_context.resources, io_manager_key)
    metadata = asset.metadata_by_key[asset.key]
    return tables.table(asset.key, table_declaration(metadata, asset=asset.key.to_user_string()))


def _unique_key(
    table: "Table", version: int, key: Sequence[str], nulls: Sequence[str], *, sample: bool = True
) -> dict[str, Finding]:
    from pyspark.sql import functions as F

    null_counts = [F.count_if(column(name).isNull()).alias(_null_count(name)) for name in nulls]
    by_key = table.read(version).groupBy(*(column(name) for name in key))
    keys = by_key.agg(F.count("*").alias(_ROWS), *null_counts)
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
        UNIQUE_KEY: (
            not counts["keys"],
            f"{counts['keys']:,} keys are those of several rows."
            if counts["keys"]
            else f"All keys of {metadata['check/rows']:,} rows are unique.",
            metadata,
        )
    }
    if nulls:
        found[NO_NULLS] = _null_finding(counts, nulls, "the table")
    return found


def _no_nulls(table: "Table", version: int, columns: Sequence[str], since: int | None) -> Finding:
    from pyspark.sql import functions as F

    rows, where = table.read(version), "the table"
    if since is not None:
        try:
            touched = table.touched_rows(since, version)
            rows, where = touched.added, f"{touched.added_files:,} files added since {since}"
        except TableNotFoundError:
            pass  # the log no longer holds that version
    counts = rows.agg(
        F.count("*").alias("rows"),
        *(F.count_if(column(name).isNull()).alias(_null_count(name)) for name in columns),
    ).first()
    assert counts is not None
    return _null_finding(counts, columns, where)


def _null_finding(counts: "Row", columns: Sequence[str], where: str) -> Finding:
    nulls = {name: counts[_null_count(name)] or 0 for name in columns}
    named = ", ".join(f"{count:,} in {name}" for name, count in nulls.items() if count)
    return (
        not named,
        f"There are nulls in {where}: {named}." if named else f"There is no null in {where}.",
        {
            "check/rows": counts["rows"] or 0,
            "check/nulls": sum(nulls.values()),
        },
    )


def _null_count(column: str) -> str:
    return f"{RESERVED_PREFIX}nulls_{column}"


def _passed_at(
    instance: DagsterInstance, key: AssetCheckKey, table: "Table", columns: Sequence[str]
) -> int | None:
    """The version of this table at which the check last passed for these physical columns."""
    passed = instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1, status={AssetCheckExecutionRecordStatus.SUCCEEDED}
    )
    for record in passed:
        event = record.event.dagster_event if record.event else None
        if event is None:
            continue
        metadata = event.asset_check_evaluation_data.metadata
        values = {name: entry.value for name, entry in metadata.items()}
        version = values.get(_VERSION)
        same = values.get(_TABLE_ID) == table.id() and values.get(_COLUMNS) == columns
        return version if same and isinstance(version, int) else None
    return None


def _schema(table: "Table", schema: "StructType | str", more_columns: bool) -> Finding:
    from pyspark.sql.types import StructType

    from dagster_deltaweave.source_partition import as_struct, schema_differences

    expected, found = as_struct(schema), table.read().schema
    if more_columns:
        found = StructType([field for field in found if field.name in expected.names])
    wrong = "; ".join(schema_differences(expected, found))
    return not wrong, wrong or "The table has the declared columns.", {}


def _fresh(table: "Table", within: timedelta) -> Finding:
    change = last_change(table)
    age = datetime.now(timezone.utc) - change.committed_at
    if not change.is_in_log:
        # How much longer ago it was, nothing tells: what is not known to be fresh does not pass.
        text = f"No version changed rows since {change.version}, the oldest in the log, {age} ago."
        return False, text, {"check/log_begins": MetadataValue.timestamp(change.committed_at)}
    return (
        age <= within,
        f"Version {change.version} changed rows last, {age} ago.",
        {
            "check/last_change": MetadataValue.timestamp(change.committed_at),
            "check/seconds_since_change": age.total_seconds(),
        },
    )


def _invalid(key: AssetKey, problem: str) -> DagsterInvalidDefinitionError:
    return DagsterInvalidDefinitionError(f"checks of {key.to_user_string()}: {problem}")


def sample_table(rows: "DataFrame", columns: Sequence[str]) -> MetadataValue:
    """At most 10 rows as a table in the UI; values as Spark shows them."""
    shown = rows.select(*(column(name).cast("string").alias(name) for name in columns))
    found = shown.limit(_SAMPLE).collect()
    header = "| " + " | ".join(columns) + " |"
    rule = "| " + " | ".join("---" for _ in columns) + " |"
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in found]
    return MetadataValue.md("\n".join([header, rule, *lines]))


def _cell(value: str | None) -> str:
    return "null" if value is None else value.replace("|", "\\|")
