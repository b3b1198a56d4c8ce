"""The findings of a table's checks: keys that repeat, nulls, its schema and its age."""

# No `from __future__ import annotations`: Dagster takes the annotation of `context` as a class.

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckKey,
    DagsterInstance,
    MetadataValue,
)

from dagster_deltaweave.checks.check_definition import Finding
from dagster_deltaweave.dagster_private import AssetCheckExecutionRecordStatus
from dagster_deltaweave.logs import last_change
from deltaweave.counts import counted
from deltaweave.errors import TableNotFoundError
from deltaweave.identifiers import RESERVED_PREFIX, column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

    from deltaweave import Table
    from deltaweave.delta.log import FileList, TableSnapshot

UNIQUE_KEY = "unique_key"
NO_NULLS = "no_nulls"

CHECKED_COLUMNS = "check/columns"
CHECKED_TABLE_ID = "check/table_id"
CHECKED_VERSION = "check/version"
_SAMPLE = 10
_ROWS = f"{RESERVED_PREFIX}rows"
# A core reads so many bytes of Parquet in about a second, in which Spark would plan a shuffle and
# start its jobs.
_SMALL_BYTES = 16 * 1024 * 1024
# On an object store, each file takes some 100 ms more.
_FEW_FILES = 50


def repeated_keys(
    table: "Table", version: int, key: Sequence[str], nulls: Sequence[str], *, sample: bool = True
) -> dict[str, Finding]:
    """Find keys that repeat and columns that hold nulls, in one pass over the table."""
    from pyspark.sql import functions as F

    from deltaweave.delta.jvm import grouped

    snapshot = table.snapshot(version)
    rows = _rows_of(snapshot, snapshot.listed_files())
    null_counts = [F.count_if(column(name).isNull()).alias(_null_count(name)) for name in nulls]
    of_key = [F.count("*").alias(_ROWS), *null_counts]
    keys = grouped(rows, [column(name) for name in key], of_key)
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
) -> Finding:
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


def _files_to_look_at(
    table: "Table", snapshot: "TableSnapshot", since: int | None
) -> "tuple[FileList | None, str]":
    """Return the files to look at, and which they are in words: all, or those since a version."""
    if since is not None:
        try:
            added = snapshot.files_not_in(table.snapshot(since))
        except TableNotFoundError:
            pass  # the log no longer holds that version
        else:
            return added, f"{counted(len(added), 'file')} added since {since}"
    return snapshot.listed_files(), "the table"


def _rows_of(snapshot: "TableSnapshot", files: "FileList | None") -> "DataFrame":
    """Read the rows of these files, or of the whole snapshot for None.

    A few small files are one partition, whose aggregates need no shuffle and one job.
    """
    if files is None:
        return snapshot.read()
    rows = snapshot.read_files(files)
    is_small = len(files) <= _FEW_FILES and files.size_in_bytes <= _SMALL_BYTES
    return rows.coalesce(1) if is_small else rows


def _null_finding(counts: "Row | Mapping[str, int]", columns: Sequence[str], where: str) -> Finding:
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
) -> Finding:
    """Compare the version's columns and types with the expected ones."""
    from pyspark.sql.types import StructType

    from dagster_deltaweave.landing import schema_as_struct, schema_differences

    expected, found = schema_as_struct(schema), snapshot.read().schema
    if more_columns:
        found = StructType([field for field in found if field.name in expected.names])
    wrong = "; ".join(schema_differences(expected, found))
    return not wrong, wrong or "The table has the declared columns.", {}


def age_finding(table: "Table", within: timedelta) -> Finding:
    """Check that the last commit that changed rows is recent enough."""
    change = last_change(table)
    age = datetime.now(timezone.utc) - change.committed_at
    if not change.is_in_log:
        # The change may be much older than the log, so the check fails.
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


def sample_table(rows: "DataFrame", columns: Sequence[str]) -> MetadataValue:
    """Lay out at most 10 rows as a table for the UI, with values as Spark shows them."""
    shown = rows.select(*(column(name).cast("string").alias(name) for name in columns))
    found = shown.limit(_SAMPLE).collect()
    header = "| " + " | ".join(columns) + " |"
    rule = "| " + " | ".join("---" for _ in columns) + " |"
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in found]
    return MetadataValue.md("\n".join([header, rule, *lines]))


def _cell(value: str | None) -> str:
    return "null" if value is None else value.replace("|", "\\|")
