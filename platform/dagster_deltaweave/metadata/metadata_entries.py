"""The metadata that Dagster shows for a merge: its own table metadata, and `merge/…` numbers.

Dagster shows entries in their order and draws a plot of each number. So what matters comes first,
and the numbers that people follow are flat. A number that can differ between merges of a table is
recorded by each, also if it is zero.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from dagster import AssetKey, AssetObservation, MetadataValue, TableColumn, TableRecord, TableSchema

from dagster_deltaweave.dagster_private import TableMetadataSet, UriMetadataSet
from dagster_deltaweave.tables import column_schema
from deltaweave._validation import counted
from deltaweave.engine.report import StrategyName
from deltaweave.identifiers import table_name

if TYPE_CHECKING:
    from deltaweave import ChangedRows, MergePlan, MergeResult, Table, TouchedRows, WriteResult


DONE_BY_STRATEGY: Mapping[str, str] = MappingProxyType(
    {each.value: each.did for each in StrategyName}
)
"""What each strategy did, in words."""

_MATERIALIZATION: Mapping[str, str] = MappingProxyType(
    {
        "NOT_MATERIALIZED_AUTO": "read again in each phase, since Delta tables alone are read",
        "NOT_MATERIALIZED_NONE": "read again in each phase, as the session's setting says",
        "MATERIALIZE_ALL": "computed once, as the session's setting says",
        "NON_DETERMINISTIC_SOURCE_NON_DELTA": "computed once, since more than Delta tables is read",
        "NON_DETERMINISTIC_SOURCE_OPERATORS": "computed once, since the query may give other rows",
        "NON_DETERMINISTIC_SOURCE_WITH_DETERMINISTIC_UDF": "computed once, since it calls a UDF",
        "IGNORE_UNREADABLE_FILES_CONFIGS_ARE_SET": (
            "computed once, since Spark may skip files that it cannot read"
        ),
        "FILTERED_BY_DAYS_THAT_PARQUET_LACKS": (
            "computed once, since filters on files lack some days"
        ),
        "SOURCE_CACHED": "computed once, since Spark may drop what it has cached",
    }
)
"""Delta's reason to materialize the source or not, to what was done and why."""


def summary(result: MergeResult) -> str:
    """Return one line on what a merge did, with what matters most first."""
    metrics = result.metrics
    if result.was_applied_before:
        return "Nothing was merged, since these changes were applied before."
    seconds = (metrics["executionTimeMs"] + result.commit_time_ms) / 1000
    files = _files(result)
    parts = [
        f"{_changed_rows(result)}.",
        f"{files[0].upper()}{files[1:]}.",
        *_retry_sentences(result),
        f"{seconds:.1f} s.",
    ]
    return " ".join(parts)


def _phase_records(result: MergeResult) -> Iterator[TableRecord]:
    """Yield a record for each phase that ran, and for the commit even if nothing was committed."""
    metrics = result.metrics
    why = _MATERIALIZATION.get(result.source_materialization, result.source_materialization)
    source = counted(metrics.num_source_rows, "row") + (f", {why}" if why else "")
    added = readable_size(metrics.num_target_bytes_added)
    written = (
        f"{DONE_BY_STRATEGY.get(result.strategy, result.strategy)}: {_changed_rows(result)}, "
        f"{metrics.num_target_rows_copied:,} copied; "
        f"{counted(metrics.num_target_files_added, 'file')} added ({added})"
    )
    phases = (
        ("Materialize source", source, metrics["materializeSourceTimeMs"]),
        ("Find touched files", _files(result), metrics["scanTimeMs"]),
        ("Write changes", written, metrics["rewriteTimeMs"]),
        ("Commit", _committed(result), result.commit_time_ms),
    )
    for phase, did, ms in phases:
        if ms or phase == "Commit":
            yield TableRecord({"phase": phase, "what it did": did, "seconds": ms / 1000})


def readable_size(size_in_bytes: int) -> str:
    """Return a size in bytes in the unit that people read it in, e.g. `1.2 MB`."""
    size, unit = float(size_in_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def _changed_rows(result: MergeResult) -> str:
    metrics = result.metrics
    return (
        f"{counted(metrics.num_target_rows_updated, 'row')} updated, "
        f"{metrics.num_target_rows_inserted:,} inserted, "
        f"{metrics.num_target_rows_deleted:,} deleted"
    )


def _files(result: MergeResult) -> str:
    """Describe which files were skipped, and how the touched ones were changed."""
    metrics = result.metrics
    before = metrics.num_target_files_before_skipping
    if not before:
        return "the table had no files"
    skipped = before - metrics.num_target_files_after_skipping
    bytes_before = metrics.num_target_bytes_before_skipping
    bytes_skipped = bytes_before - metrics.num_target_bytes_after_skipping
    return (
        f"{skipped:,} of {counted(before, 'file')} skipped "
        f"({readable_size(bytes_skipped)} of {readable_size(bytes_before)}){_touched_files(result)}"
    )


def _touched_files(result: MergeResult) -> str:
    """Describe how touched files were changed; empty for Delta's own MERGE, which reports none."""
    if result.strategy == "builtin":
        return ""
    metrics = result.metrics
    num_vectors = (
        metrics.num_target_deletion_vectors_added + metrics.num_target_deletion_vectors_updated
    )
    vectors = f", {num_vectors:,} with new deletion vectors" if num_vectors else ""
    return f"{vectors}, {metrics.num_target_files_removed:,} rewritten"


def _retry_sentences(result: MergeResult) -> Iterator[str]:
    """Yield a sentence for each retry of the merge or its commit."""
    if result.attempts > 1:
        yield f"Ran {result.attempts} times, since executors died."
    if result.commit_attempts > 1:
        yield (
            f"Committed at attempt {result.commit_attempts}, since other commits won; "
            f"{counted(result.files_redone, 'file')} had to be written again."
        )


def _committed(result: MergeResult) -> str:
    if result.version is not None:
        return f"version {result.version}"
    if result.was_applied_before:
        return StrategyName.ALREADY_APPLIED.did
    return "nothing, since no row changed"


_WIDTH = 50  # what the page of an asset has room for on a screen of 1,440 pixels
_BEGIN_A_PART = frozenset({"AND", "OR", "THEN", "VALUES"})
_WORDS = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[^\s'"`])+""")


def statement_metadata(statement: str) -> dict[str, MetadataValue]:
    """Return the MERGE as it runs, for people, in lines that the UI shows as a whole."""
    return {"merge/statement": MetadataValue.md(f"```sql\n{wrapped(statement)}\n```")}


def wrapped(statement: str) -> str:
    """Break long lines at spaces outside of quotes and comments, so that the SQL stays the same."""
    lines = statement.split("\n")
    # A quote or comment that goes on in the next line would be broken inside.
    if "/*" in statement or any(_WORDS.sub("", line).strip() for line in lines):
        return statement
    return "\n".join(_wrapped_line(line) for line in lines)


def _wrapped_line(line: str) -> str:
    words = _WORDS.findall(line)
    if len(line) <= _WIDTH or " ".join(words) != line or "--" in line:
        return line
    lines: list[str] = []
    while words:
        indent = "  " if lines else ""
        number = _words_of_line(words, _WIDTH - len(indent))
        lines.append(indent + " ".join(words[:number]))
        words = words[number:]
    return "\n".join(lines)


def _words_of_line(words: Sequence[str], width: int) -> int:
    """Return how many words the next line has, which ends where a part of the SQL ends, if it can.

    A line has at least one word, however long that is.
    """
    lengths = accumulate(len(word) + 1 for word in words)
    fitting = max(1, sum(1 for _ in takewhile(lambda length: length - 1 <= width, lengths)))
    if fitting == len(words):
        return fitting
    for number in range(fitting, 0, -1):
        last, following = words[number - 1].upper(), words[number].upper()
        if last.endswith(",") or last == "SET" or following in _BEGIN_A_PART:
            return number
    return fitting


_PHASES = TableSchema(
    columns=[
        TableColumn("phase", "string"),
        TableColumn("what it did", "string"),
        TableColumn("seconds", "float"),
    ]
)


def merge_observation(
    asset_key: AssetKey, partition: str | None, result: MergeResult
) -> AssetObservation:
    """Build the observation of a merge: what it did, and `merge/phases`, a table of its phases.

    `partition` is the partition that was merged; None if it was none or several.
    """
    return AssetObservation(
        asset_key=asset_key,
        partition=partition,
        description=summary(result),
        metadata={"merge/phases": MetadataValue.table([*_phase_records(result)], schema=_PHASES)},
    )


MERGE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "merge/rows_updated": "numTargetRowsUpdated",
        "merge/rows_inserted": "numTargetRowsInserted",
        "merge/rows_deleted": "numTargetRowsDeleted",
        "merge/rows_copied": "numTargetRowsCopied",
        "merge/by_source_rows_updated": "numTargetRowsNotMatchedBySourceUpdated",
        "merge/by_source_rows_deleted": "numTargetRowsNotMatchedBySourceDeleted",
        "merge/source_rows": "numSourceRows",
        "merge/files_before_skipping": "numTargetFilesBeforeSkipping",
        "merge/files_after_skipping": "numTargetFilesAfterSkipping",
        "merge/files_removed": "numTargetFilesRemoved",
        "merge/files_added": "numTargetFilesAdded",
        "merge/deletion_vectors_added": "numTargetDeletionVectorsAdded",
        "merge/deletion_vectors_updated": "numTargetDeletionVectorsUpdated",
        "merge/deletion_vectors_removed": "numTargetDeletionVectorsRemoved",
        "merge/bytes_before_skipping": "numTargetBytesBeforeSkipping",
        "merge/bytes_after_skipping": "numTargetBytesAfterSkipping",
        "merge/bytes_removed": "numTargetBytesRemoved",
        "merge/bytes_added": "numTargetBytesAdded",
        "merge/change_files_added": "numTargetChangeFilesAdded",
        "merge/change_bytes_added": "numTargetChangeFileBytes",
    }
)
"""Metadata key to Delta's name of a count."""

PHASE_TIMES: Mapping[str, str] = MappingProxyType(
    {
        "merge/materialize_source_seconds": "materializeSourceTimeMs",
        "merge/scan_seconds": "scanTimeMs",
        "merge/rewrite_seconds": "rewriteTimeMs",
    }
)
"""Metadata key to Delta's name of a phase's time; Delta has no name for `merge/commit_seconds`."""

_FIRST = (
    "merge/summary",
    "merge/rows_updated",
    "merge/rows_inserted",
    "merge/rows_deleted",
    "merge/files_skipped",
    "merge/files_removed",
    "merge/seconds",
    "merge/write_amplification",
    "dagster/row_count",
)
"""The entries that are shown first."""

METRICS = "merge/metrics"
"""Metadata key of the table of numbers that have no plot."""

_BY_SOURCE_COUNTS = ("merge/by_source_rows_updated", "merge/by_source_rows_deleted")
_PLOTTED = frozenset({*_FIRST, "merge/source_rows", "merge/rows_copied", *_BY_SOURCE_COUNTS})
_CHANGE_FEED_COUNTS = ("merge/change_files_added", "merge/change_bytes_added")
_VECTOR_COUNTS = (
    "merge/deletion_vectors_added",
    "merge/deletion_vectors_updated",
    "merge/deletion_vectors_removed",
)
_BY_SOURCE = re.compile(r"\bNOT\s+MATCHED\s+BY\s+SOURCE\b", re.IGNORECASE)

WRITE_COUNTS: Mapping[str, str] = MappingProxyType(
    {
        "write/rows": "numOutputRows",
        "write/files_added": "numFiles",
        "write/bytes_added": "numOutputBytes",
        "write/files_removed": "numRemovedFiles",
        "write/bytes_removed": "numRemovedBytes",
    }
)
"""Metadata key to Delta's name of a count of a write without a merge."""

TABLE_VERSION = "table/version"
"""Metadata key of the version that `dagster/row_count` and `dagster/column_schema` describe."""

TABLE_ID = "table/id"
"""Metadata key of Delta's id of the table: a table recreated in the same place has another."""


def in_order(run: Mapping[str, object], table: Mapping[str, object]) -> dict[str, object]:
    """Put a run's metadata before that of its table, and what matters most before both.

    What both have is as the run recorded it.
    """
    every = {**run, **table, **run}
    first = {key: every[key] for key in _FIRST if key in every}
    return {**first, **every}


def always_zero(table: Table, statement: str | None) -> set[str]:
    """Return the counts that are zero in each merge of this table with this statement.

    `statement` is the MERGE text; None for change events, which are applied by other clauses than
    WHEN NOT MATCHED BY SOURCE.
    """
    snapshot = table.snapshot()
    zero: set[str] = set()
    if statement is None or not _BY_SOURCE.search(statement):
        zero.update(_BY_SOURCE_COUNTS)
    for keys, setting in (
        (_CHANGE_FEED_COUNTS, "delta.enableChangeDataFeed"),
        (_VECTOR_COUNTS, "delta.enableDeletionVectors"),
    ):
        if (snapshot.setting(setting) or "false").lower() != "true":
            zero.update(keys)
    return zero


def merge_metadata(result: MergeResult, unused: Collection[str] = ()) -> dict[str, MetadataValue]:
    """Return what a merge did: flat numbers, a few texts, and a table of all other numbers.

    In addition to `MERGE_COUNTS` and `PHASE_TIMES` (most are in the table `merge/metrics`):

    - `merge/summary`: what it did, in a line for people.
    - `merge/seconds`: the time of the whole merge with its commit.
    - `merge/files_skipped`: files that the merge did not read, by their statistics and the source's
      keys.
    - `merge/files_touched`, `merge/bytes_touched`, in the table: files in which a row changed,
      rewritten or with a new deletion vector; missing if Delta's own MERGE ran, which does not
      report them.
    - `merge/write_amplification`: rows written for each changed row, to two digits. It is 1 if only
      changed rows were written, less if rows were deleted by deletion vectors, and more if rows
      were copied; missing if no row changed.
    - `merge/source_rows_unaffected`: source rows for which no row was changed
      (`MergeResult.num_source_rows_unaffected`), if that is known.
    - `merge/version`: the version that it committed, if any.

    Only of merges that did not go straight, since they are few and the summary says so:

    - `merge/attempts`: how often the merge ran; more than once if executors died.
    - `merge/commit_attempts`, `merge/files_redone`: how often it tried to commit (more than once if
      other commits won), and the touched files that were therefore written again.
    """
    metrics = result.metrics
    counts = {key: metrics[name] for key, name in MERGE_COUNTS.items()}
    skipped = counts["merge/files_before_skipping"] - counts["merge/files_after_skipping"]
    numbers: dict[str, float] = {
        **{key: count for key, count in counts.items() if count or key not in unused},
        **{key: metrics[name] / 1000 for key, name in PHASE_TIMES.items()},
        "merge/commit_seconds": result.commit_time_ms / 1000,
    }
    if result.strategy != "builtin":
        numbers["merge/files_touched"] = len(result.touched_files.removed)
        numbers["merge/bytes_touched"] = result.touched_files.removed_bytes
    seconds = (metrics["executionTimeMs"] + result.commit_time_ms) / 1000
    metadata: dict[str, MetadataValue] = {
        "merge/summary": MetadataValue.text(summary(result)),
        **{
            key: MetadataValue.int(int(number))
            for key, number in numbers.items()
            if key in _PLOTTED
        },
        "merge/files_skipped": MetadataValue.int(skipped),
        "merge/seconds": MetadataValue.float(seconds),
        "merge/strategy": MetadataValue.text(result.strategy),
        METRICS: _metrics_table(numbers),
        **_retry_counts(result),
    }
    amplification = _write_amplification(result)
    if amplification is not None:
        metadata["merge/write_amplification"] = MetadataValue.float(round(amplification, 2))
    if result.num_source_rows_unaffected is not None:
        metadata["merge/source_rows_unaffected"] = MetadataValue.int(
            result.num_source_rows_unaffected
        )
    if result.version is not None:
        metadata["merge/version"] = MetadataValue.int(result.version)
    return metadata


def _metrics_table(numbers: Mapping[str, float]) -> MetadataValue:
    schema = TableSchema(columns=[TableColumn("metric", "string"), TableColumn("value", "number")])
    rest = {key: number for key, number in numbers.items() if key not in _PLOTTED}
    records = [TableRecord({"metric": key, "value": number}) for key, number in rest.items()]
    return MetadataValue.table(records, schema=schema)


def _retry_counts(result: MergeResult) -> dict[str, MetadataValue]:
    counts = {}
    if result.attempts > 1:
        counts["merge/attempts"] = result.attempts
    if result.commit_attempts > 1:
        counts["merge/commit_attempts"] = result.commit_attempts
        counts["merge/files_redone"] = result.files_redone
    return {key: MetadataValue.int(count) for key, count in counts.items()}


def _write_amplification(result: MergeResult) -> float | None:
    metrics = result.metrics
    written = metrics.num_target_rows_inserted + metrics.num_target_rows_updated
    changed = written + metrics.num_target_rows_deleted
    return (written + metrics.num_target_rows_copied) / changed if changed else None


def write_metadata(
    result: WriteResult, how: str, predicate: str | None
) -> dict[str, MetadataValue]:
    """Describe as metadata what a write without a merge committed, and which rows it replaced."""
    metadata: dict[str, MetadataValue] = {"write/mode": MetadataValue.text(how)}
    for key, name in WRITE_COUNTS.items():
        if name in result.metrics:
            metadata[key] = MetadataValue.int(result.metrics[name])
    if result.version is None:
        metadata["write/mode"] = MetadataValue.text(StrategyName.ALREADY_APPLIED.value)
    else:
        metadata["write/version"] = MetadataValue.int(result.version)
    if predicate is not None:
        metadata["write/replaced_where"] = MetadataValue.text(predicate)
    return metadata


def touched_metadata(applied: TouchedRows | ChangedRows) -> dict[str, MetadataValue]:
    """Return which versions of the upstream a merge applied, and by how many files they differ."""
    metadata: dict[str, MetadataValue] = {"touched/until": MetadataValue.int(applied.until)}
    for count in ("added_files", "removed_files"):
        if hasattr(applied, count):
            metadata[f"touched/{count}"] = MetadataValue.int(getattr(applied, count))
    if applied.after is not None:
        metadata["touched/after"] = MetadataValue.int(applied.after)
    return metadata


def table_metadata(table: Table, version: int | None = None) -> dict[str, object]:
    """Return Dagster's standard metadata of a table's version, `table/version` and `table/id`.

    The row count comes from the log. It is left out if the statistics of some file do not say how
    many rows it has.

    Raises:
        DeltaweaveError: The version no longer exists.
    """
    snapshot = table.snapshot(version)
    return {
        **TableMetadataSet(
            row_count=snapshot.num_records(),
            column_schema=column_schema(snapshot.schema),
            table_name=table_name(table.path_or_name),
            storage_kind="deltalake",
        ),
        **UriMetadataSet(uri=table.location()),
        TABLE_VERSION: MetadataValue.int(snapshot.version),
        TABLE_ID: MetadataValue.text(snapshot.id),
    }


def warnings_metadata(warnings: Collection[str]) -> dict[str, MetadataValue]:
    """Return the warnings about what was committed as metadata, a line each; empty without any."""
    return {"deltaweave/warnings": MetadataValue.text("\n".join(warnings))} if warnings else {}


def plan_metadata(plan: MergePlan) -> dict[str, MetadataValue]:
    """Return the plan that was made before the merge ran, as metadata."""
    return {"merge/plan": MetadataValue.md(f"```\n{plan}\n```")}
